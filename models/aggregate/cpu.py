"""Calls of the compiled C++ aggregation. The operators in ops.py document what each function computes."""

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from parallel_epochs.models.aggregate import relation_table
from parallel_epochs.models.aggregate.reduce import POWER_RANGE
from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.structure import Structure

# The aggregations that the kernels compute, in the order of problem.h. The others are computed from these.
KINDS = ("softmax", "softmax_sg", "powermean", "add", "max")

# Up to these exponents of softmax, with and without gradients, rounding stays below a thousandth.
STEEP, STEEP_FORWARD = 2.0**14, 2.0**20
# The same bound for the exponents of powermean.
MAX_POWER = 64.0


class SteepError(ValueError):
    """The exponents of the weights are too large for the kernel's float32."""


AggregationProblem = read_structure(Path(__file__).with_name("problem.h"), "AggregationProblem")
LIBRARY = NativeLibrary(
    "fused aggregation",
    Path(__file__).with_name("fused_cpu.cpp"),
    otherwise="the reference aggregation runs instead",
)


class AggregateCall(NamedTuple):
    """The arguments of the operators.

    Attributes:
        x: features of the source nodes [num_src, channels], float32 (on CUDA also 16 bits).
        edges: the fields of a :class:`models.structure.Structure`; positions are rows in `attr`. Only backward reads
            the order by source.
        attr: edge features [num_edges, edge_dim], or [num_edges, channels] without `weight`; dtype as `x`. With `table`
            the number of the relation and the features [num_edges, 1 + edge_dim], or [num_edges, 1] without `weight`.
        weight: linear encoder of the edge features [channels, edge_dim], float32.
        bias: the encoder's bias [channels], float32.
        table: a row for each relation [num_relations, channels], float32, which is added to its edges' messages.
        param: t or p, one element.
        aggr: one of `KINDS`.
        eps: added to every message.
    """

    x: Tensor
    edges: Sequence[Tensor | None]
    attr: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    table: Tensor | None
    param: Tensor
    aggr: str
    eps: float


def forward(call: AggregateCall, outputs) -> None:
    """Compute out, and those of stat and stat2 that have elements, into `outputs`."""
    power = float(call.param)
    if call.aggr == "powermean" and abs(power) > MAX_POWER:
        raise SteepError(f"p={power:g} is beyond {MAX_POWER:g}, the kernel's largest power")
    written = _nonempty(zip(("out", "stat", "stat2"), outputs, strict=True)) | {"out": outputs[0]}
    limit = STEEP if "stat" in written else STEEP_FORWARD
    order, function = Structure(*call.edges).by_destination, LIBRARY.get().fused_forward
    _run(function, call, order, num_others=call.x.size(0), limit=limit, **written)


def backward(results, call: AggregateCall, grads) -> None:
    """Compute the gradients for x, attr, weight, bias, table and param into those of `grads` that have elements."""
    names = ("grad_x", "grad_attr", "grad_weight", "grad_bias", "grad_table", "grad_param")
    arrays = _nonempty([*zip(names, grads, strict=True), *results._asdict().items()])
    arrays["gradient"] = results.grad
    order, function = Structure(*call.edges).by_source, LIBRARY.get().fused_backward
    _run(function, call, order, num_others=results.grad.size(0), **arrays)


def _nonempty(named) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named if tensor is not None and tensor.numel()}


def _run(function, call: AggregateCall, order: tuple, *, num_others: int, limit=0.0, **arrays):
    ptr, other, position = order
    attr, table = call.attr, call.table
    if attr is None:
        features = 0
    elif call.weight is not None:
        features = 1
    else:
        features = 2 if table is None else 0
    problem = fill(
        AggregationProblem,
        call._asdict() | dict(ptr=ptr, other=other, position=position) | arrays,
        num_rows=ptr.numel() - 1,
        num_others=num_others,
        num_edges=other.numel(),
        num_positions=other.numel() if attr is None else attr.size(0),
        channels=call.x.size(1),
        edge_dim=0 if attr is None else attr.size(1) - (table is not None),
        num_relations=0 if table is None else table.size(0),
        aggregation=KINDS.index(call.aggr),
        features=features,
        param=float(call.param),
        low=POWER_RANGE[0],
        high=POWER_RANGE[1],
        limit=limit,
    )
    status = function(ctypes.byref(problem))
    if status == 2:
        raise MemoryError(
            f"the aggregation from {num_others:,} to {problem.num_rows:,} nodes with "
            f"{problem.channels:,} channels does not fit into memory"
        )
    if status == 3:
        raise SteepError(
            f"t={problem.param:g} times a message is beyond {limit * math.log(2):,.0f}, where the kernel's "
            f"float32 rounds too much"
        )
    if status == 4:
        raise IndexError(relation_table.describe_wrong(attr[:, 0], table.size(0)))
    if status:
        raise IndexError(
            f"an edge has an end that is not in the graph, which has {num_others:,} and "
            f"{problem.num_rows:,} nodes, {problem.num_edges:,} edges and {problem.num_positions:,} rows "
            f"of edge features"
        )
