"""Layers of typed graphs, forward and backward, compared with PyG's and with DGL's."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor

from parallel_epochs.models.convs.expanded_edges import Relations
from parallel_epochs.models.convs.hgt_conv import HGTConv
from parallel_epochs.models.convs.typed_linear import NodeTypes
from parallel_epochs.models.networks.relational import RelationLayer
from parallel_epochs.scripts.bench.convs import import_dgl
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    backward,
    beside,
    describe_extensions,
    extra_of_both,
    say,
    seconds_of,
    side_by_side,
    write_row,
)

# FastRGCNConv gathers a matrix for each edge. It is left out where these take more bytes.
MOST_GATHERED = 2 * 2**30
TOLERANCE = 1e-4


@dataclass(frozen=True)
class TypedGraph:
    """A random typed graph: nodes sorted by type, and each relation between two types drawn at random.

    Attributes:
        name: name in the table.
        edges: [2, num_edges], int64.
        relation: [num_edges], int64.
        ends: source and destination type of each relation.
        sizes: number of nodes of each type.
    """

    name: str
    edges: Tensor
    relation: Tensor
    ends: list[tuple[int, int]]
    sizes: list[int]

    @classmethod
    def draw(
        cls, name: str, num_nodes: int, num_edges: int, num_relations: int, num_types: int
    ) -> "TypedGraph":
        """Draw a graph; every type is the destination of a relation."""
        rng = torch.Generator().manual_seed(0)
        sizes = [
            num_nodes // num_types + (kind < num_nodes % num_types) for kind in range(num_types)
        ]
        first = torch.tensor([0, *sizes]).cumsum(0)
        ends = [
            (int(torch.randint(num_types, (1,), generator=rng)), number % num_types)
            for number in range(num_relations)
        ]
        relation = torch.randint(num_relations, (num_edges,), generator=rng)
        kinds = torch.tensor(ends)[relation].t()
        draws = torch.rand(2, num_edges, generator=rng, dtype=torch.float64)
        return cls(
            name, (draws * torch.tensor(sizes)[kinds]).long() + first[kinds], relation, ends, sizes
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(self.sizes)

    def split(self) -> dict[tuple[str, str, str], Tensor]:
        """Return the edges of each relation as PyG's layers of heterogeneous graphs take them."""
        first = torch.tensor([0, *self.sizes]).cumsum(0)
        return {
            (str(src), f"r{number}", str(dst)): self.edges[:, self.relation == number]
            - torch.stack([first[src], first[dst]]).unsqueeze(1)
            for number, (src, dst) in enumerate(self.ends)
        }


def bench_relations(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1] - 1,
    num_relations: int = 8,
    channels: int = 64,
    heads: int = 8,
    num_bases: int = 8,
    repeat: int = 3,
    dgl: str = "",
) -> None:
    """Measure R-GCN and HGT layers with one node type and with four and thin relations, beside PyG's and DGL's.

    Args:
        num_relations: number of relations.
        num_bases: number of matrices of which those of relations are mixed.
    """
    library = import_dgl(dgl) if dgl else None
    row = dict[str, Any]()
    thin_nodes, thin_edges = round(num_nodes * 7.545), round(num_edges * 0.3792)
    for graph in (
        TypedGraph.draw("one type", num_nodes, num_edges, num_relations, 1),
        TypedGraph.draw("thin relations", thin_nodes, thin_edges, num_relations * 3 // 2, 4),
    ):
        for measure in (_measure_rgcn, _measure_hgt):
            row = dict.fromkeys(row, "") | measure(
                graph, channels, repeat, library, heads=heads, num_bases=num_bases
            )
            write_row(row)


def _measure_rgcn(
    graph: TypedGraph,
    channels: int,
    repeat: int,
    library: ModuleType | None,
    *,
    heads: int,
    num_bases: int,
) -> dict:
    num_relations = len(graph.ends)
    say(f"RGCNConv, {num_bases} bases, {graph.name}")
    torch.manual_seed(0)
    theirs = pyg.RGCNConv(channels, channels, num_relations, num_bases=num_bases)
    ours = RelationLayer(channels, num_relations, num_bases=num_bases, kernel="fused")
    ours.load_state_dict(
        {
            "weight": theirs.weight,
            "comp": theirs.comp,
            "root.weight": theirs.root.t(),
            "root.bias": theirs.bias,
        }
    )
    x = torch.randn(graph.num_nodes, channels, requires_grad=True)
    gradient = torch.randn(graph.num_nodes, channels)
    relations, setup = _expand(graph, lambda relations: ours(x, relations))

    def run(conv: torch.nn.Module, *given) -> dict[str, Tensor]:
        return backward(conv(x, *given), {"x": x, **dict(conv.named_parameters())}, gradient)

    run_theirs = lambda: run(theirs, graph.edges, graph.relation)  # noqa: E731
    run_ours = lambda: run(ours, relations)  # noqa: E731
    found = run_ours()
    found |= {"root": found["root.weight"].t(), "bias": found["root.bias"]}
    expected = run_theirs()
    assert_close(found, expected, TOLERANCE)
    row = _compare("RGCNConv", graph, channels, setup, run_theirs, run_ours, repeat)
    return (
        row
        | _beside_fast(theirs, graph, run, expected, run_ours, repeat)
        | _beside_dgl(theirs, graph, library, x, gradient, expected["out"], run_ours, repeat)
    )


def _beside_fast(
    theirs: torch.nn.Module,
    graph: TypedGraph,
    run: Callable,
    expected: dict[str, Tensor],
    ours: Callable[[], object],
    repeat: int,
) -> dict:
    """Time PyG's FastRGCNConv; empty columns where it gathers too much."""
    needed = 4 * graph.edges.size(1) * theirs.in_channels * theirs.out_channels
    if needed > MOST_GATHERED:
        say(
            f"FastRGCNConv is left out: it gathers a matrix for each edge, {needed / 2**30:.1f} GiB"
        )
        return beside("fast", None, ours, repeat, 3)
    fast = pyg.FastRGCNConv(
        theirs.in_channels, theirs.out_channels, theirs.num_relations, theirs.num_bases
    )
    fast.load_state_dict(theirs.state_dict())
    assert_close(run(fast, graph.edges, graph.relation), expected, TOLERANCE)
    return beside("fast", lambda: run(fast, graph.edges, graph.relation), ours, repeat, 3)


def _beside_dgl(
    theirs: torch.nn.Module,
    graph: TypedGraph,
    library: ModuleType | None,
    x: Tensor,
    gradient: Tensor,
    expected: Tensor,
    ours: Callable[[], object],
    repeat: int,
) -> dict:
    """Time DGL's RelGraphConv; empty columns where DGL was left out."""
    if library is None:
        return beside("dgl", None, ours, repeat, 3)
    conv = importlib.import_module("dgl.nn").RelGraphConv(
        theirs.in_channels, theirs.out_channels, theirs.num_relations, "basis", theirs.num_bases
    )
    with torch.no_grad():
        for parameter, value in (
            (conv.linear_r.W, theirs.weight),
            (conv.linear_r.coeff, theirs.comp),
            (conv.loop_weight, theirs.root),
            (conv.h_bias, theirs.bias),
        ):
            parameter.copy_(value)
    whole = library.graph(tuple(graph.edges), num_nodes=graph.num_nodes)
    whole.create_formats_()
    key = graph.edges[1] * theirs.num_relations + graph.relation
    norm = torch.bincount(key).clamp(min=1).float().reciprocal()[key].unsqueeze(1)

    def run() -> Tensor:
        out = conv(whole, x, graph.relation, norm)
        torch.autograd.grad(out, [x, *conv.parameters()], gradient)
        return out.detach()

    assert_close({"DGL's out": run()}, {"DGL's out": expected}, TOLERANCE)
    return beside("dgl", run, ours, repeat, 3)


def _measure_hgt(
    graph: TypedGraph,
    channels: int,
    repeat: int,
    library: ModuleType | None,
    *,
    heads: int,
    num_bases: int,
) -> dict:
    say(f"HGTConv, {heads} heads, {graph.name}")
    torch.manual_seed(0)
    by_type, names = graph.split(), [str(kind) for kind in range(len(graph.sizes))]
    theirs = pyg.HGTConv(channels, channels, (names, list(by_type)), heads)
    ours = HGTConv(channels, channels, len(names), len(by_type), heads, kernel="fused")
    copy_hgt(theirs, ours)
    x = torch.randn(graph.num_nodes, channels, requires_grad=True)
    gradient = torch.randn(graph.num_nodes, channels)
    types = (
        None
        if len(names) == 1
        else NodeTypes.of(
            torch.arange(len(names)).repeat_interleave(torch.tensor(graph.sizes)), len(names)
        )
    )
    relations, setup = _expand(graph, lambda relations: ours(x, relations, types))
    by_pair = heads, len(by_type), channels // heads, channels // heads

    def run_theirs() -> dict[str, Tensor]:
        out = torch.cat(list(theirs(dict(zip(names, x.split(graph.sizes))), by_type).values()))
        of = backward(out, {"x": x, **dict(theirs.named_parameters())}, gradient)
        return {
            "out": of["out"],
            "x": of["x"],
            **{
                name: of[f"{name}.weight"].view(by_pair).transpose(0, 1)
                for name in ("k_rel", "v_rel")
            },
        }

    def run_ours() -> dict[str, Tensor]:
        return backward(
            ours(x, relations, types), {"x": x, **dict(ours.named_parameters())}, gradient
        )

    assert_close(run_ours(), run_theirs(), TOLERANCE)
    return _compare("HGTConv", graph, channels, setup, run_theirs, run_ours, repeat)


@torch.no_grad()
def copy_hgt(theirs: torch.nn.Module, ours: HGTConv) -> None:
    """Give our layer the weights of PyG's."""
    for mine, other in ((ours.kqv_lin, theirs.kqv_lin), (ours.out_lin, theirs.out_lin)):
        for number, name in enumerate(theirs.node_types):
            mine.weight[number] = other.lins[name].weight.t()
            mine.bias[number] = other.lins[name].bias
    for mine, other in ((ours.k_rel, theirs.k_rel), (ours.v_rel, theirs.v_rel)):
        mine.copy_(other.weight.view(theirs.heads, -1, *mine.shape[2:]).transpose(0, 1))
    for number, kind in enumerate(theirs.edge_types):
        ours.p_rel[number] = theirs.p_rel["__".join(kind)][0]
    for number, name in enumerate(theirs.node_types):
        ours.skip[number] = theirs.skip[name]


def _expand(graph: TypedGraph, first: Callable[[Relations], Tensor]) -> tuple[Relations, float]:
    """Expand the edges by relation; also return the seconds that a first call takes longer than a second one."""
    made: list[Relations] = []

    def call() -> None:
        made.append(
            Relations(
                graph.edges, graph.relation, len(graph.ends), graph.num_nodes, graph.num_nodes
            )
        )
        first(made[-1]).sum().backward()

    call()  # compiles
    setup = min(seconds_of(call) for _ in range(3)) - min(
        seconds_of(lambda: first(made[-1]).sum().backward()) for _ in range(3)
    )
    return made[-1], setup


def _compare(
    conv: str,
    graph: TypedGraph,
    channels: int,
    setup: float,
    theirs: Callable[[], object],
    ours: Callable[[], object],
    repeat: int,
) -> dict:
    return {
        "bench": "relations",
        "conv": conv,
        "graph": graph.name,
        "channels": channels,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.edges.size(1),
        "num_relations": len(graph.ends),
        "pyg_with": describe_extensions(),
        "ours_setup_s": round(setup, 4),
        **side_by_side(theirs, ours, repeat, inner=3),
        **extra_of_both(theirs, ours),
    }
