"""One GENConv aggregation with messages and edge encoder, forward and backward, compared with PyG's."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from parallel_epochs.models.aggregate import aggregate, backend
from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    backward,
    beside,
    describe_extensions,
    extra_of_both,
    say,
    side_by_side,
    write_row,
)

EPS = 1e-7
# Up to this number of edges our output is compared with PyG's in float64, as its float32 has rounding errors too.
MAX_EXACT_EDGES = 2_000_000


@dataclass
class AggregateCase:
    aggr: str = "softmax"
    channels: int = 64
    edge_dim: int = 8


CASES = (
    AggregateCase(),
    AggregateCase(channels=128),
    AggregateCase(edge_dim=0),
    AggregateCase(aggr="max"),
    AggregateCase(aggr="powermean"),
)


def bench_aggregate(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    repeat: int = 3,
    eager: bool = False,
    device: str = "cpu",
) -> None:
    """Measure one aggregation beside PyG's, plain and compiled by torch.compile.

    Args:
        eager: leave out torch.compile, which takes a minute a row.
    """
    data = graphs.proteins(num_nodes, num_edges // 2 * 2).to(choose_device(device))
    for case in CASES:
        write_row(_measure(case, data, repeat, eager))


def _sizes_of_terms(out: Tensor, gradient: Tensor, param: str) -> Tensor:
    # d out / dp is out / p times a difference of logarithms, d out / dt a difference of products of messages.
    factor = out.log().abs().clamp(min=1) if param == "p" else out
    return (gradient * out * factor).abs()


def _in_float64(
    conv: pyg.GENConv,
    edge_index: Tensor,
    attr: Tensor | None,
    gradient: Tensor,
    x: Tensor,
    inputs: dict[str, Tensor],
) -> dict[str, Tensor]:
    """Compute PyG's output and gradients in float64, where rounding does not matter."""
    exact = copy.deepcopy(conv).double()
    x = x.detach().double().requires_grad_()
    leaves = {"x": x}
    if attr is not None:
        attr = attr.double()
        leaves |= {"weight": exact.lin_edge.weight, "bias": exact.lin_edge.bias}
    leaves |= {name: getattr(exact.aggr_module, name) for name in inputs if name in ("t", "p")}
    out = exact.propagate(edge_index, x=(x, x), edge_attr=attr, size=None)
    return backward(out, leaves, gradient.double())


def _measure(case: AggregateCase, data: Data, repeat: int, eager: bool) -> dict:
    place = data.edge_attr.device
    say(f"{case}, {backend(data.edge_attr, data.edge_index)}")
    torch.manual_seed(0)
    channels, plain = case.channels, data.edge_index.as_tensor()
    param = {"softmax": "t", "powermean": "p"}.get(case.aggr)
    conv = pyg.GENConv(
        channels,
        channels,
        case.aggr,
        t=1.0,
        learn_t=True,
        p=1.5,
        learn_p=True,
        bias=True,
        edge_dim=case.edge_dim or None,
        eps=EPS,
    ).to(place)

    x = _numbers(case, data.num_nodes, channels).to(place).requires_grad_()
    attr, weight, bias = (
        (data.edge_attr, conv.lin_edge.weight, conv.lin_edge.bias) if case.edge_dim else (None,) * 3
    )
    for parameter in (weight, bias):
        if parameter is not None:
            parameter.data.copy_(_numbers(case, *parameter.shape, scale=0.125))
    scalar = {param: getattr(conv.aggr_module, param)} if param else {}
    inputs = {"x": x} | ({"weight": weight, "bias": bias} if case.edge_dim else {}) | scalar
    gradient = graphs.exact(data.num_nodes, channels).to(place)
    (indptr, _), _ = data.edge_index.get_csc()

    differentiate = partial(backward, leaves=inputs, gradient=gradient)

    def theirs():
        return differentiate(conv.propagate(plain, x=(x, x), edge_attr=attr, size=None))

    def ours():
        out = aggregate(
            x,
            data.edge_index,
            attr,
            weight,
            bias,
            aggr=case.aggr,
            eps=EPS,
            kernel="fused",
            **scalar,
        )
        return differentiate(out)

    a, b, connected = ours(), theirs(), indptr.diff() > 0
    if plain.size(1) <= MAX_EXACT_EDGES:
        b = _in_float64(conv, plain, attr, gradient, x, inputs)
    for side in (a, b):  # without neighbours our result is 0 and PyG's is its lower bound
        side["out"] = side["out"][connected]
    # The gradients of t and p are sums over all nodes and channels, with terms of both signs.
    scales = (
        {param: float(_sizes_of_terms(a["out"], gradient[connected], param).sum())} if param else {}
    )
    assert_close(a, b, tolerance=1e-4 if plain.size(1) > MAX_EXACT_EDGES else 1e-5, scales=scales)
    row = {
        "bench": "aggregate",
        "aggr": case.aggr,
        "channels": channels,
        "edge_dim": case.edge_dim,
        "num_nodes": data.num_nodes,
        "num_edges": plain.size(1),
        "pyg_with": describe_extensions(),
        **side_by_side(theirs, ours, repeat, inner=9),
    }
    if not eager:
        row |= _compiled(
            lambda: conv.propagate(plain, x=(x, x), edge_attr=attr, size=None),
            differentiate,
            ours,
            b,
            repeat,
            connected,
        )
    return row | extra_of_both(theirs, ours)


def _compiled(
    propagate: Callable[[], Tensor],
    differentiate: Callable[[Tensor], dict[str, Tensor]],
    ours: Callable[[], object],
    exact: dict[str, Tensor],
    repeat: int,
    connected: Tensor,
) -> dict:
    """Time PyG's layer as torch.compile makes it; without columns of numbers where that fails.

    Args:
        exact: the output, of the nodes with neighbours, and the gradients to compare with.
    """
    compiled = torch.compile(propagate)
    try:
        found = differentiate(compiled())
    except Exception as error:  # of whatever kind the compiler raises
        say(f"torch.compile of PyG's layer failed: {one_line(error)[:200]}")
        return beside("compiled", None, ours, repeat, 9)
    found["out"] = found["out"][connected]
    compared = ("out", "x", "weight")
    assert_close(
        {name: found[name] for name in compared if name in found},
        {name: exact[name] for name in compared if name in found},
        tolerance=1e-4,
    )
    return beside("compiled", lambda: differentiate(compiled()), ours, repeat, 9)


def _numbers(case: AggregateCase, *shape: int, scale: float = 1.0) -> Tensor:
    # Messages of a power mean are clamped to [1e-4, 100]: stay within.
    values = graphs.exact(*shape, scale=scale)
    return values.abs() + 1 / 32 if case.aggr == "powermean" else values
