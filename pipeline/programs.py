"""Writes a network as a program that runs without this package: by torch alone (.pt2), or by onnxruntime (.onnx)."""

import contextlib
import copy
import importlib.util
import io
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as sizes

from parallel_epochs.models.kernels.choose import KERNELS
from parallel_epochs.pipeline.config import PROGRAM_MARK
from parallel_epochs.pipeline.run import files, words
from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)

# The largest difference between what a program and the network compute, relative to the largest number, or to 1.
TOLERANCE = 1e-5
# Guards of torch against few nodes, without which results are the same.
FEW = re.compile(r"size\(\)\[0\] (!= 1|>= 2)$")
# Operators that every torch has.
PLAIN = ("aten", "prim", "prims", "higher_order")


@dataclass(frozen=True)
class Program:
    """A network, and what is needed to write it as a program.

    Attributes:
        title: its name in messages.
        network: the module. Its ``forward`` takes `inputs` by their names.
        inputs: tensors to trace it with. No size that varies is 0 or 1.
        sizes: which dimensions of each input vary, each with a name such as "nodes".
        outputs: the names of the results.
        checks: inputs to compare the program with the network on.
        description: what a reader of the program has to know, as JSON can hold it.
    """

    title: str
    network: torch.nn.Module
    inputs: dict[str, Tensor]
    sizes: dict[str, dict[int, str]]
    outputs: tuple[str, ...]
    checks: dict[str, Tensor]
    description: dict[str, Any] = field(default_factory=dict)


def write(path: Path, program: Program) -> None:
    """Write a program and compare it with its network first. The end of the file's name chooses the format.

    Raises:
        ValueError: the network cannot be written, and the message says why; or the program computes something else.
        FileError: the file cannot be written. No part of it is there then.
    """
    began, (encode, load) = time.perf_counter(), FORMATS[path.suffix]
    if path.suffix == ".onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise ValueError(f"export={path} needs {name}: {install_command('onnx')}")
    with torch.no_grad(), _quiet():
        expected = _as_tuple(program.network(**program.checks))
        try:
            content = encode(_trace(program), program)
            found = _as_tuple(load(content, program))
        except Exception as error:  # torch raises many kinds
            reason = str(error).strip().partition("\n")[0][:300].rstrip(".")
            raise ValueError(
                f"export={path}: {program.title} cannot be written as a program: {reason}. "
                "A file that ends with .pe holds it for this package"
            ) from error
    difference = max(_difference(*pair) for pair in zip(found, expected, strict=True))
    if not difference <= TOLERANCE:
        raise ValueError(
            f"export={path}: the program and {program.title} differ by {difference:.1e}, more than "
            f"{TOLERANCE:g}, so nothing is written"
        )
    files.write_atomically(path, lambda file: file.write(content))
    rows = ", ".join(words.count(len(tensor), "row") for tensor in expected[:1])
    log.info(
        "wrote %s to %s: %s, in %.1f s; it differs from the network by %.1e at most, on %s (limit %g)",
        program.title,
        path,
        format_bytes(len(content)),
        time.perf_counter() - began,
        difference,
        rows,
        TOLERANCE,
    )


def suffix_of(path: Path) -> str:
    """Return the format of a program by the end of its file's name, or an empty text."""
    return path.suffix if path.suffix in FORMATS else ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch prints while it exports."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _trace(program: Program) -> ExportedProgram:
    """Export a network by plain operations, with sizes that vary."""
    network = copy.deepcopy(program.network).eval()
    for module in network.modules():
        if getattr(module, "kernel", None) in KERNELS:
            setattr(module, "kernel", "reference")  # noqa: B010
    dims = {
        name: dict.fromkeys(program.sizes[name], Dim.DYNAMIC) or None for name in program.inputs
    }
    # Otherwise a graph of one node would be another program.
    with sizes.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        found = torch.export.export(network, (), program.inputs, dynamic_shapes=dims)
        found = found.run_decompositions({torch.ops.aten.index_add.default: _scatter})
    # torch takes it for given that there are two nodes where its own branches tell sizes of 1 apart.
    found._guards_code = [
        guard for guard in getattr(found, "_guards_code", []) if not FEW.search(guard)
    ]
    for node in found.graph.nodes:
        for name in ("stack_trace", "from_node"):  # which name files of this machine
            node.meta.pop(name, None)
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in PLAIN:
            raise ValueError(f"the operator {node.target} is not one of torch's own")
    return found


def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Compute ``index_add`` by ``scatter_add``. ONNX has ScatterND for the former, of which onnxruntime's threads lose
    terms where an index is repeated.
    """
    if source.dim():
        shape = [1] * source.dim()
        shape[dim] = -1
        index = index.long().view(shape).expand(source.shape)
    return torch.scatter_add(x, dim, index, source if alpha == 1 else source * alpha)


def _to_torch(traced: ExportedProgram, program: Program) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(traced, buffer, extra_files={PROGRAM_MARK: json.dumps(program.description)})
    return buffer.getvalue()


def _run_torch(content: bytes, program: Program) -> Any:
    return torch.export.load(io.BytesIO(content)).module()(**program.checks)


def _keep_nan() -> Callable[..., Tensor]:
    """Return what computes the largest or smallest of entries, of which onnxruntime leaves out NaN, and puts NaN where
    one is.
    """
    is_inside = False

    def extreme(
        x: Tensor,
        dim: int,
        index: Tensor,
        source: Tensor,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Tensor:
        nonlocal is_inside
        if is_inside or reduce not in ("amax", "amin"):
            return NotImplemented  # the operator itself
        is_inside = True
        try:
            found = torch.scatter_reduce(x, dim, index, source, reduce, include_self=include_self)
        finally:
            is_inside = False
        is_nan = torch.scatter_add(torch.zeros_like(x), dim, index, source.isnan().to(x.dtype)) > 0
        return torch.where(is_nan, torch.nan, found)

    return extreme


def _to_onnx(traced: ExportedProgram, program: Program) -> bytes:
    traced = traced.run_decompositions({torch.ops.aten.scatter_reduce.two: _keep_nan()})
    found = torch.onnx.export(
        traced,
        (),
        kwargs=program.inputs,
        dynamo=True,
        verbose=False,
        output_names=list(program.outputs),
    )
    assert found is not None
    model = found.model
    model.producer_name, model.metadata_props[PROGRAM_MARK] = (
        PROGRAM_MARK,
        json.dumps(program.description),
    )
    for name, of_input in zip(program.inputs, model.graph.inputs, strict=True):
        assert of_input.name == name and of_input.shape is not None
        for dim, size in program.sizes[name].items():
            of_input.shape[dim] = size
    if any(node.op_type == "ScatterND" and "reduction" in node.attributes for node in model.graph):
        raise ValueError("its sums became ScatterND, of which onnxruntime's threads lose terms")
    for node in model.graph:
        node.metadata_props.clear()
    buffer = io.BytesIO()
    found.save(buffer)  # type: ignore[arg-type]
    return buffer.getvalue()


def _run_onnx(content: bytes, program: Program) -> Any:
    import onnxruntime  # an extra

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return tuple(
        map(
            torch.from_numpy,
            session.run(None, {name: tensor.numpy() for name, tensor in program.checks.items()}),
        )
    )


Encode = Callable[[ExportedProgram, Program], bytes]
# Functions that write and run programs, by the end of the file's name.
FORMATS: dict[str, tuple[Encode, Callable[[bytes, Program], Any]]] = {
    ".pt2": (_to_torch, _run_torch),
    ".onnx": (_to_onnx, _run_onnx),
}


def _as_tuple(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest number or 1; infinity where the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    largest = max(1.0, float(expected.nan_to_num().abs().max()))
    return (
        float(torch.where(found.isnan() & expected.isnan(), 0.0, (found - expected).abs()).max())
        / largest
    )
