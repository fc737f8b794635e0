"""Layers on edges with room for more compute what they compute without it, for one batch after the other."""

import pytest
import torch

from parallel_epochs.models.convs.attention_convs import GATConv, GATv2Conv, TransformerConv
from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.convs.pna_conv import PNAConv
from parallel_epochs.models.convs.sum_convs import GCNConv, GINConv, GINEConv, SAGEConv
from parallel_epochs.models.edge_index import ShapeVaries
from parallel_epochs.models.structure import StaticEdges, as_edge_index, find_structure

NUM_NODES, ROOM, WIDTH = 40, 300, 8
LAYERS = {
    "GENConv": lambda: GENConv(WIDTH, WIDTH, learn_t=True, edge_dim=3),
    "GCNConv": lambda: GCNConv(WIDTH, WIDTH),
    "SAGEConv": lambda: SAGEConv(WIDTH, WIDTH),
    "GATConv": lambda: GATConv(WIDTH, WIDTH, heads=2, dropout=0.5),
    "GATv2Conv": lambda: GATv2Conv(WIDTH, WIDTH, heads=2),
    "GINConv": lambda: GINConv(torch.nn.Linear(WIDTH, WIDTH)),
    "GINEConv": lambda: GINEConv(torch.nn.Linear(WIDTH, WIDTH), edge_dim=3),
    "TransformerConv": lambda: TransformerConv(WIDTH, WIDTH, heads=2, edge_dim=3),
}
FEATURES = {"GENConv", "GINEConv", "TransformerConv"}


def draw(num_edges: int, seed: int, loops: bool = False):
    """Draw edges in both orders, and their features in that order."""
    rng = torch.Generator().manual_seed(seed)
    source = torch.randint(NUM_NODES, (num_edges,), generator=rng)
    target = (
        source
        if loops
        else (source + torch.randint(1, NUM_NODES, (num_edges,), generator=rng)) % NUM_NODES
    )
    edge_index = as_edge_index(
        find_structure(torch.stack([source, target]), NUM_NODES, NUM_NODES, by_source=True)
    )
    return edge_index, torch.randn(num_edges, 3, generator=rng)


def run(conv, edge_index, attr, name):
    x = torch.randn(NUM_NODES, WIDTH, generator=torch.Generator().manual_seed(5)).requires_grad_()
    torch.manual_seed(3)
    out = conv(x, edge_index, attr) if name in FEATURES else conv(x, edge_index)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *conv.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_do_not_see_the_padding(name):
    torch.manual_seed(0)
    conv, static, room = LAYERS[name](), None, torch.full((ROOM, 3), 7.0)
    for seed, num_edges in enumerate((200, 150, 299)):
        edge_index, attr = draw(num_edges, seed)
        room[:num_edges] = attr
        if static is None:
            static = StaticEdges(edge_index, ROOM)
        else:
            static.load(edge_index)
        assert static.edge_index.size(1) == ROOM
        found, expected = (
            run(conv, static.edge_index, room, name),
            run(conv, edge_index, attr, name),
        )
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_what_would_see_the_padding_is_refused():
    (edge_index, _), static = draw(200, 0), StaticEdges(draw(200, 0)[0], ROOM)
    attr, x = torch.zeros(ROOM, 3), torch.zeros(NUM_NODES, WIDTH)
    for conv, features, reason in (
        (
            GENConv(WIDTH, WIDTH),
            torch.zeros(ROOM, WIDTH, requires_grad=True),
            "the gradient of edge features",
        ),
        (GATConv(WIDTH, WIDTH, edge_dim=3), attr, "the features of new self-loops"),
        (
            PNAConv(WIDTH, WIDTH, ["mean"], ["identity"], torch.ones(3), edge_dim=3),
            attr,
            "the reference in blocks",
        ),
        (SAGEConv(WIDTH, WIDTH, aggr="std", kernel="auto"), None, "PyG's own code"),
    ):
        with pytest.raises(ShapeVaries, match=f"{reason} would read the padding"):
            conv(x, static.edge_index, *(() if features is None else (features,)))
    with pytest.raises(ShapeVaries, match="not sorted by both ends"):
        StaticEdges(edge_index.__class__(edge_index.as_tensor(), sort_order="col"), ROOM)


def test_self_loops_among_the_edges_are_refused_by_layers_that_weigh_them():
    static, conv, x = (
        StaticEdges(draw(200, 0)[0], ROOM),
        GCNConv(WIDTH, WIDTH),
        torch.ones(NUM_NODES, WIDTH),
    )
    conv(x, static.edge_index)
    with pytest.raises(ShapeVaries, match="a layer weighs self-loops, of which a batch has 50"):
        static.load(draw(50, 1, loops=True)[0])
