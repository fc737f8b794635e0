"""Layers that run fused here, forward and backward, compared with PyG's own."""

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.networks.pyg import FUSED
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    backward,
    describe_extensions,
    extra_of_both,
    say,
    seconds_of,
    side_by_side,
    write_row,
)


@dataclass(frozen=True)
class ConvCase:
    """A layer with `channels` inputs and outputs.

    Attributes:
        conv: name of PyG's class.
        heads: number of heads, which share the channels; 0 for a layer without.
        edges: what the layer reads of an edge: nothing, one weight, or features.
        kwargs: arguments of PyG's class so that all compute the same.
    """

    conv: str
    heads: int = 0
    edges: str = "nothing"
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return (
            self.conv
            + (f", {self.heads} heads" if self.heads else "")
            + ("" if self.edges == "nothing" else f", {self.edges}")
        )


NO_LOOPS = {"add_self_loops": False}
CASES = (
    ConvCase("GCNConv", edges="weight", kwargs={"normalize": False, **NO_LOOPS}),
    ConvCase("SAGEConv"),
    ConvCase("GATConv", heads=4, kwargs=NO_LOOPS),
    ConvCase("GATv2Conv", heads=4, kwargs=NO_LOOPS),
    ConvCase("GATConv", heads=4, edges="features", kwargs=NO_LOOPS),
    ConvCase("GATv2Conv", heads=4, edges="features", kwargs=NO_LOOPS),
    ConvCase("TransformerConv", heads=4, edges="features"),
    ConvCase("GINEConv", edges="features"),
    ConvCase("ResGatedGraphConv", edges="features"),
)


def bench_convs(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    channels: int = 64,
    repeat: int = 3,
    cases: tuple[str, ...] = (),
    device: str = "cpu",
) -> None:
    """Measure time and memory of the layers that run fused, beside PyG's.

    Args:
        cases: layers whose name contains one of these texts (default: all).
    """
    place = choose_device(device)
    chosen = [case for case in CASES if not cases or any(text in case.name for text in cases)]
    if not chosen:
        raise ValueError(
            f"--cases {' '.join(cases)}: no layer has such a name; there are "
            f"{'; '.join(case.name for case in CASES)}"
        )
    data = with_self_loops(graphs.proteins(num_nodes, num_edges // 2 * 2)).to(place)
    for case in chosen:
        write_row(_measure(case, data, channels, repeat))


def with_self_loops(data: Data) -> Data:
    """Add a self-loop to each node, with features of zeros, and sort the edges by destination."""
    loops, edge_index = torch.arange(data.num_nodes), data.edge_index.as_tensor()
    src, dst = torch.cat([edge_index, torch.stack([loops, loops])], 1)
    attr = torch.cat([data.edge_attr, torch.zeros(data.num_nodes, data.edge_attr.size(1))])
    dst, order = dst.sort(stable=True)
    indptr = torch.searchsorted(dst, torch.arange(data.num_nodes + 1))
    return Data(
        edge_index=from_csc(torch.stack([src[order], dst]), indptr),
        edge_attr=attr[order],
        num_nodes=data.num_nodes,
    )


def _measure(case: ConvCase, data: Data, channels: int, repeat: int) -> dict:
    say(case.name)
    torch.manual_seed(0)
    theirs, ours, x, edges, plain, gradient = _inputs(case, data, channels)
    run = partial(_run, gradient=gradient)

    setup = seconds_of(lambda: run(ours, plain, x, *edges)) - min(
        seconds_of(lambda: run(ours, plain, x, *edges)) for _ in range(3)
    )
    exact = run(
        copy.deepcopy(theirs).double(), plain, x.double(), *(value.double() for value in edges)
    )
    # A softmax does not change if the same is added to all keys, so that the gradient of their bias is 0.
    keys = "lin_key.bias", "lin_key.weight"
    scales = {keys[0]: float(exact[keys[1]].abs().max())} if keys[0] in exact else {}
    found = run(ours, data.edge_index, x, *edges)
    assert_close(found, exact, tolerance=1e-4, scales=scales)
    row = {
        "bench": "convs",
        "conv": case.name,
        "channels": channels,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "pyg_with": describe_extensions(),
        "ours_setup_s": round(setup, 4),
    }
    row |= side_by_side(
        lambda: run(theirs, plain, x, *edges),
        lambda: run(ours, data.edge_index, x, *edges),
        repeat,
        inner=9,
    )
    row |= extra_of_both(
        lambda: run(theirs, plain, x, *edges), lambda: run(ours, data.edge_index, x, *edges)
    )
    return row


def _inputs(
    case: ConvCase, data: Data, channels: int
) -> tuple[torch.nn.Module, torch.nn.Module, Tensor, tuple[Tensor, ...], Tensor, Tensor]:
    """Make PyG's layer and ours, features of the nodes, what the layers read of the edges, the edges as
    PyG gets them, and the gradient of the output.
    """
    place = data.edge_attr.device
    theirs, ours = (conv.to(place) for conv in build(case, channels, data.edge_attr.size(1)))
    x = graphs.exact(data.num_nodes, channels).to(place).requires_grad_()
    gradient = graphs.exact(data.num_nodes, channels).to(place)
    weight = graphs.exact(data.num_edges).to(place).abs() + 1 / 32
    edges = {"nothing": (), "weight": (weight,), "features": (data.edge_attr,)}[case.edges]
    return theirs, ours, x, edges, data.edge_index.as_tensor().clone(), gradient


def _run(
    conv: torch.nn.Module,
    edge_index: Tensor | EdgeIndex,
    x: Tensor,
    *edges: Tensor,
    gradient: Tensor,
) -> dict[str, Tensor]:
    """Compute the output of a layer, and the gradients of the nodes' features and of its parameters."""
    return backward(
        conv(x, edge_index, *edges), {"x": x, **dict(conv.named_parameters())}, gradient.to(x.dtype)
    )


def build(case: ConvCase, channels: int, edge_dim: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Create PyG's layer and ours with the same parameters."""
    kwargs: dict[str, Any] = dict(case.kwargs)
    if case.heads:
        kwargs["heads"] = case.heads
    if case.edges == "features":
        kwargs["edge_dim"] = edge_dim
    if case.conv == "GINEConv":
        kwargs["nn"] = torch.nn.Linear(channels, channels)
    else:
        kwargs |= {"in_channels": channels, "out_channels": channels // max(case.heads, 1)}
    kind = getattr(pyg, case.conv)
    theirs, ours = kind(**kwargs), FUSED[kind](**copy.deepcopy(kwargs), kernel="fused")
    with (
        torch.no_grad()
    ):  # multiples of 1/32, so that rounding decides no (leaky) ReLU, see `graphs.proteins`
        for parameter in theirs.parameters():
            parameter.copy_(graphs.exact(*parameter.shape, scale=1 / 8))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours
