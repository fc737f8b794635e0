"""Writes a network as a program of torch (.pt2), which runs without this package."""

import contextlib
import copy
import io
import json
import logging
import re
import time
import warnings
from collections.abc import Iterator
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
        checks: inputs to compare the program with the network on.
        description: what a reader of the program has to know, as JSON can hold it.
    """

    title: str
    network: torch.nn.Module
    inputs: dict[str, Tensor]
    sizes: dict[str, dict[int, str]]
    checks: dict[str, Tensor]
    description: dict[str, Any] = field(default_factory=dict)


def write(path: Path, program: Program) -> None:
    """Write a program and compare it with its network first.

    Raises:
        ValueError: the network cannot be written, and the message says why; or the program computes something else.
        FileError: the file cannot be written. No part of it is there then.
    """
    began, content = time.perf_counter(), io.BytesIO()
    with torch.no_grad(), _quiet():
        expected = program.network(**program.checks)
        try:
            about = {PROGRAM_MARK: json.dumps(program.description)}
            torch.export.save(_trace(program), content, extra_files=about)
            content.seek(0)
            found = torch.export.load(content).module()(**program.checks)
        except Exception as error:  # torch raises many kinds
            reason = str(error).strip().partition("\n")[0][:300].rstrip(".")
            raise ValueError(
                f"export={path}: {program.title} cannot be written as a program: {reason}. "
                "A file that ends with .pe holds it for this package"
            ) from error
    difference = _difference(found, expected)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"export={path}: the program and {program.title} differ by {difference:.1e}, more than "
            f"{TOLERANCE:g}, so nothing is written"
        )
    files.write_atomically(path, lambda file: file.write(content.getbuffer()))
    log.info(
        "wrote %s to %s: %s, in %.1f s; it differs from the network by %.1e at most, on %s (limit %g)",
        program.title,
        path,
        format_bytes(content.getbuffer().nbytes),
        time.perf_counter() - began,
        difference,
        words.count(len(expected), "row"),
        TOLERANCE,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch prints while it exports."""
    logger = logging.getLogger("torch")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
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
