"""Calls of the compiled C++ aggregation. The operators in ops.py document what each function computes."""

import ctypes
import math
from pathlib import Path

from torch import Tensor

from parallel_epochs.models.aggregate import relation_table
from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

# The aggregations that the kernels compute, in the order of problem.h, whose POWER is the last, too. The others are
# computed from these.
KINDS = ("softmax", "softmax_sg", "power", "add", "max", "powermean")


# Up to these exponents of softmax, with and without gradients, rounding stays below a thousandth.
STEEP, STEEP_FORWARD = 2.0**14, 2.0**20
# The same bound for the exponents of power.
MAX_POWER = 64.0


class SteepError(ValueError):
    """The exponents of the weights are too large for the kernel's float32."""


AggregationProblem = read_structure(Path(__file__).with_name("problem.h"), "AggregationProblem")
LIBRARY = NativeLibrary(
    "fused aggregation",
    Path(__file__).with_name("fused_cpu.cpp"),
    otherwise="the reference aggregation runs instead",
)


def forward(x, edges, attr, weight, bias, table, param, aggr, eps, low, high, outputs) -> None:
    """Compute out, and those of stat and stat2 that have elements, into `outputs`."""
    if aggr.startswith("power") and abs(float(param)) > MAX_POWER:
        raise SteepError(f"p={float(param):g} is beyond {MAX_POWER:g}, the kernel's largest power")
    written = _nonempty(zip(("out", "stat", "stat2"), outputs, strict=True)) | {"out": outputs[0]}
    _call(
        LIBRARY.get().fused_forward,
        x.size(0),
        x,
        edges.by_destination,
        attr,
        weight,
        bias,
        table,
        param,
        aggr,
        eps,
        low,
        high,
        limit=STEEP if "stat" in written else STEEP_FORWARD,
        **written,
    )


def backward(
    grad, out, stat, stat2, x, edges, attr, weight, bias, table, param, aggr, eps, low, high, grads
) -> None:
    """Compute the gradients for x, attr, weight, bias, table and param into those of `grads` that have elements."""
    names = ("grad_x", "grad_attr", "grad_weight", "grad_bias", "grad_table", "grad_param")
    written = _nonempty(zip(names, grads, strict=True))
    saved = _nonempty((("out", out), ("stat", stat), ("stat2", stat2)))
    _call(
        LIBRARY.get().fused_backward,
        grad.size(0),
        x,
        edges.by_source,
        attr,
        weight,
        bias,
        table,
        param,
        aggr,
        eps,
        low,
        high,
        gradient=grad,
        **written,
        **saved,
    )


def _nonempty(named) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named if tensor is not None and tensor.numel()}


def _call(
    function,
    num_others,
    x,
    order,
    attr,
    weight,
    bias,
    table,
    param,
    aggr,
    eps,
    low,
    high,
    limit=0.0,
    **arrays,
):
    ptr, other, position = order
    problem = fill(
        AggregationProblem,
        dict(
            ptr=ptr,
            other=other,
            position=position,
            x=x,
            attr=attr,
            weight=weight,
            bias=bias,
            table=table,
            **arrays,
        ),
        num_rows=ptr.numel() - 1,
        num_others=num_others,
        num_edges=other.numel(),
        num_positions=other.numel() if attr is None else attr.size(0),
        channels=x.size(1),
        edge_dim=0 if attr is None else attr.size(1) - (table is not None),
        num_relations=0 if table is None else table.size(0),
        aggregation=KINDS.index(aggr.removesuffix("mean")),
        fills=aggr == "powermean",
        features=0 if attr is None else 1 if weight is not None else 2 if table is None else 0,
        param=float(param),
        eps=eps,
        low=low,
        high=high,
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
            f"t={float(param):g} times a message is beyond {limit * math.log(2):,.0f}, where the kernel's "
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
