"""The layers that stand in for PyG's and sum, average or compare messages: PyG's numbers in float64."""

import copy

import pytest
import torch
from torch_geometric import EdgeIndex, nn as pyg
from torch_geometric.utils import to_torch_coo_tensor

from parallel_epochs.models.networks import pyg as stacks
from parallel_epochs.models.networks.foreign import NUM_EDGES as NUM, tiny_graph
from tests.helpers.tensors import Largest, same_for_any_threads

NUM_NODES, NUM_DST, NUM_EDGES, CHANNELS, EDGE_DIM = 30, 13, 150, 6, 3
WEIGHT, ATTR = "edge_weight", "edge_attr"
KINDS = torch.arange(NUM_EDGES) % 4

pytestmark = pytest.mark.usefixtures("said")


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(CHANNELS, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


# Layers, the arguments of their constructors, and the edge features that they get.
LAYERS = [
    ("GCNConv", (CHANNELS, 4), {}, ""),
    ("GCNConv", (CHANNELS, 4), {}, WEIGHT),
    ("GCNConv", (-1, 4), {"improved": True, "bias": False}, WEIGHT),
    ("GCNConv", (CHANNELS, 4), {"improved": True}, ""),
    ("GCNConv", (CHANNELS, 4), {"normalize": False}, ""),
    ("GCNConv", (CHANNELS, 4), {"normalize": False}, WEIGHT),
    ("GCNConv", (CHANNELS, 4), {"add_self_loops": False}, WEIGHT),
    ("GCNConv", (CHANNELS, 4), {"add_self_loops": False}, ""),
    ("SAGEConv", (CHANNELS, 4), {}, ""),
    ("SAGEConv", (-1, 4), {"aggr": "max", "bias": False}, ""),
    ("SAGEConv", (CHANNELS, 4), {"aggr": "add", "normalize": True, "project": True}, ""),
    ("SAGEConv", (CHANNELS, 4), {"aggr": "min", "root_weight": False}, ""),
    ("GraphConv", (CHANNELS, 4), {}, ""),
    ("GraphConv", (CHANNELS, 4), {"aggr": "mean", "bias": False}, WEIGHT),
    ("GraphConv", (-1, 4), {"aggr": "max"}, WEIGHT),
    ("GINConv", (mlp,), {"train_eps": True}, ""),
    ("GINConv", (mlp,), {"eps": 0.3, "aggr": "mean"}, ""),
    ("GINEConv", (mlp,), {"edge_dim": EDGE_DIM, "train_eps": True}, ATTR),
    ("GINEConv", (mlp,), {"aggr": "max"}, "wide"),
    ("ResGatedGraphConv", (CHANNELS, 19), {}, ""),
    ("ResGatedGraphConv", (CHANNELS, 4), {"edge_dim": EDGE_DIM, "bias": False}, ATTR),
]
BIPARTITE = ("SAGEConv", "GraphConv", "GINConv", "GINEConv", "ResGatedGraphConv")
IDS = [f"{number}-{name}" for number, (name, *_) in enumerate(LAYERS)]


def layers(name, arguments, options):
    """The layer of this project and PyG's, in float64, with the same parameters."""
    torch.manual_seed(0)
    made = [value() if callable(value) else value for value in arguments]
    theirs = getattr(pyg, name)(*made, **options).double()
    ours = stacks.FUSED[getattr(pyg, name)](*copy.deepcopy(made), **options).double()
    return ours, theirs


def inputs(features, num_dst=NUM_NODES):
    """Node features, edges with self-loops and repeated edges, and edge features, in float64."""
    rng = torch.Generator().manual_seed(1)
    edges = torch.stack(
        [torch.randint(bound, (NUM_EDGES,), generator=rng) for bound in (NUM_NODES, num_dst - 2)]
    )
    edges[:, 5] = edges[:, 6] = 3
    columns = {"": None, WEIGHT: (), ATTR: (EDGE_DIM,), "wide": (CHANNELS,)}[features]
    x = torch.randn(NUM_NODES, CHANNELS, dtype=torch.float64, generator=rng)
    return (
        x,
        edges,
        None
        if columns is None
        else torch.rand(NUM_EDGES, *columns, dtype=torch.float64, generator=rng),
    )


def results(conv, x, edges, attr, **more):
    """The output and the gradients by name: of the inputs and of the parameters, all in float64."""
    dtype = next(conv.parameters()).dtype
    nodes = [
        value.to(dtype, copy=True).requires_grad_()
        for value in (x if isinstance(x, tuple) else (x,))
    ]
    attr = () if attr is None else (attr.to(dtype, copy=True).requires_grad_(),)
    out = conv(tuple(nodes) if isinstance(x, tuple) else nodes[0], edges, *attr, **more)
    conv.zero_grad()
    (out * torch.arange(out.numel(), dtype=dtype).view_as(out).cos()).sum().backward()
    found = {
        "out": out.detach(),
        **{f"input {i}": leaf.grad for i, leaf in enumerate((*nodes, *attr))},
        **{name: parameter.grad for name, parameter in conv.named_parameters()},
    }
    return {name: value.double() for name, value in found.items() if value is not None}


def assert_same(ours, theirs, x, edges, attr, *, pygs_edges=None, tolerance=1e-9, **more):
    expected = results(theirs, x, edges if pygs_edges is None else pygs_edges, attr, **more)
    ours.load_state_dict(theirs.state_dict())
    for name, value in results(ours, x, edges, attr, **more).items():
        size = max(1.0, float(expected[name].abs().max()))
        torch.testing.assert_close(
            value,
            expected[name],
            rtol=0,
            atol=tolerance * size,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize("name, arguments, options, features", LAYERS, ids=IDS)
def test_output_and_gradients_are_pygs(name, arguments, options, features, said):
    ours, theirs = layers(name, arguments, options)
    x, edges, attr = inputs(features)
    if name != "ResGatedGraphConv":  # which has no reference of its own
        ours.kernel = "reference"
        assert_same(ours, theirs, x, edges, attr)
        ours.kernel = "auto"
    assert_same(ours.float(), theirs, x, edges, attr, tolerance=1e-5)
    order = edges[1].argsort(stable=True)
    by_target = EdgeIndex(
        edges[:, order].int(), sparse_size=(NUM_NODES, NUM_NODES), sort_order="col"
    )
    assert_same(
        ours,
        theirs,
        x,
        by_target,
        None if attr is None else attr[order],
        pygs_edges=edges[:, order],
        tolerance=1e-5,
    )
    assert not said


@pytest.mark.parametrize(
    "name, arguments, options, features",
    [case for case in LAYERS if case[0] in BIPARTITE],
    ids=[label for label in IDS if label.endswith(BIPARTITE)],
)
def test_bipartite_graphs(name, arguments, options, features, said):
    ours, theirs = layers(name, arguments, options)
    x, edges, attr = inputs(features, NUM_DST)
    size = (NUM_NODES, NUM_DST)
    if name == "ResGatedGraphConv":
        both = x, x[:NUM_DST].cos()
        assert_same(ours.float(), theirs, both, edges, attr, tolerance=1e-5)
    else:
        assert_same(ours, theirs, (x, x[:NUM_DST].cos()), edges, attr, size=size)
        alone = [
            conv((x, None), edges, *(() if attr is None else (attr,)), size=size)
            for conv in (ours, theirs)
        ]
        torch.testing.assert_close(*alone)
    assert not said


@pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks", "ignore:Converting sparse tensor", "ignore:Sparse CSR"
)
@pytest.mark.parametrize("name", ["GCNConv", "GraphConv", "SAGEConv", "GINConv"])
def test_values_of_a_sparse_matrix_are_weights(name):
    ours, theirs = layers(name, (mlp,) if name == "GINConv" else (CHANNELS, 4), {})
    x, edges, weight = inputs(WEIGHT)
    adj_t = to_torch_coo_tensor(edges.flip(0), weight, size=NUM_NODES).coalesce()
    ours.load_state_dict(theirs.state_dict())
    for layout in (torch.sparse_coo, torch.sparse_csr):
        adj = adj_t.to_sparse(layout=layout)
        torch.testing.assert_close(ours(x, adj), theirs(x, adj))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_bases": 3},
        {"root_weight": False, "bias": False},
    ],
    ids=str,
)
def test_relations(options, said):
    ours, theirs = layers("RGCNConv", (CHANNELS, 4, 5), options)
    x, edges, _ = inputs("", NUM_DST)
    kinds = KINDS.clone()  # one relation has no edges
    assert_same(ours, theirs, (x, x[:NUM_DST].cos()), edges, None, edge_type=kinds)
    kinds[:20] = 3
    assert_same(ours, theirs, x, edges, None, edge_type=kinds)
    assert not said


@pytest.mark.parametrize(
    "name, arguments, options, more, why",
    [
        ("GCNConv", (CHANNELS, 4), {"cached": True}, (), "cached=True"),
        ("RGCNConv", (CHANNELS, 4, 5), {"num_blocks": 2}, (KINDS,), "num_blocks"),
        ("RGCNConv", (CHANNELS, 4, 5), {"aggr": "max"}, (KINDS,), "aggr=max"),
        ("ResGatedGraphConv", (CHANNELS, 4), {}, (), "there is no kernel for torch.float64"),
    ],
)
def test_pygs_own_code_runs_where_no_kernel_can(name, arguments, options, more, why, said):
    ours, theirs = layers(name, arguments, options)
    ours.load_state_dict(theirs.state_dict())
    x, edges, _ = inputs("")
    assert torch.equal(ours(x, edges, *more), theirs(x, edges, *more))
    assert said == [f"{name}: PyG's own code runs ({why})"]


@pytest.mark.parametrize(
    "name, arguments, options, features",
    [
        ("GCNConv", (64, 64), {}, ""),
        ("GCNConv", (64, 64), {}, WEIGHT),
        ("SAGEConv", (64, 64), {"aggr": "max"}, ""),
        ("GraphConv", (64, 64), {"aggr": "mean"}, WEIGHT),
        ("GINConv", (torch.nn.Identity,), {}, ""),
        ("GINEConv", (lambda: torch.nn.Linear(64, 64),), {"edge_dim": EDGE_DIM}, ATTR),
        ("ResGatedGraphConv", (64, 64), {"edge_dim": EDGE_DIM}, ATTR),
    ],
)
@pytest.mark.parametrize("kernel", ["fused", "pyg"])
def test_no_tensor_of_edges_x_channels_is_made(name, arguments, options, features, kernel):
    conv = stacks.FUSED[getattr(pyg, name)](
        *[value() if callable(value) else value for value in arguments], **options, kernel=kernel
    )
    edges, attr = tiny_graph(EDGE_DIM)
    more = {"": [], WEIGHT: [attr[:, 0]], ATTR: [attr]}[features]
    edges = edges.as_tensor()  # PyG has no messages of GraphConv's for an EdgeIndex
    x = torch.randn(int(edges.max()) + 1, 64, requires_grad=True)
    with Largest(torch.is_floating_point) as largest:
        conv(x, edges, *more).sum().backward()
    assert (largest.elements >= NUM * 64) is (kernel == "pyg")


def test_gated_sums_have_the_same_bits_for_any_number_of_threads():
    rng = torch.Generator().manual_seed(2)
    edges = torch.randint(400, (2, 20_000), generator=rng)
    attr, x = (
        torch.randn(20_000, EDGE_DIM, generator=rng),
        torch.randn(400, CHANNELS, generator=rng),
    )
    torch.manual_seed(0)
    conv = stacks.FUSED[pyg.ResGatedGraphConv](CHANNELS, 16, edge_dim=EDGE_DIM, kernel="fused")

    def compute():
        out = conv(x, edges, attr)
        return out, *torch.autograd.grad(out.square().sum(), list(conv.parameters()))

    same_for_any_threads(compute, (1, 4, 4))


def test_gated_sums_say_why_the_kernel_cannot_run():
    x, edges, _ = inputs("")
    for options, message in (
        ({"act": torch.nn.Tanh()}, "no act=Tanh"),
        ({"aggr": "max"}, "with aggr=max"),
    ):
        conv = stacks.FUSED[pyg.ResGatedGraphConv](CHANNELS, 4, **options, kernel="fused")
        with pytest.raises(ValueError, match=f"kernel=fused cannot run: .*{message}"):
            conv(x.float(), edges)
    conv = stacks.FUSED[pyg.ResGatedGraphConv](CHANNELS, 4)
    broken = EdgeIndex(
        torch.tensor([[99], [1]]), sparse_size=(NUM_NODES, NUM_NODES), sort_order="col"
    )
    message = "edge_index names a node that is not in the graph, or .*: make a new EdgeIndex"
    with torch.no_grad(), pytest.raises(IndexError, match=message):
        conv(x.float(), broken)


def test_each_layer_has_a_fused_class_unless_pygs_is_asked_for():
    for kind, ours in stacks.FUSED.items():
        assert stacks.choose_class(kind, "auto") is stacks.choose_class(kind, "reference") is ours
        assert stacks.choose_class(kind, "pyg") is kind and issubclass(ours, kind)
    with pytest.raises(
        ValueError,
        match="kernel=fused cannot run ChebConv, which has no fused class. Set kernel=auto",
    ):
        stacks.PyGModel(5, 8, 2, 2, conv="ChebConv", kernel="fused")
