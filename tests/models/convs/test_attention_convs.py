"""GATConv, GATv2Conv and TransformerConv in the place of PyG's: the same numbers, names and errors."""

import pytest
import torch
from torch_geometric import EdgeIndex, nn as pyg

from parallel_epochs.models.convs import attention_convs

N, E = 30, 100
NAMES = ("GATConv", "GATv2Conv", "TransformerConv")


pytestmark = pytest.mark.usefixtures("said")


def pair(name, sizes=(6, 5), **options):
    torch.manual_seed(0)
    kernel = {"kernel": options.pop("kernel")} if "kernel" in options else {}
    ours, theirs = (
        getattr(attention_convs, name)(*sizes, **options, **kernel),
        getattr(pyg, name)(*sizes, **options),
    )
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs():
    torch.manual_seed(1)
    return torch.randn(N, 6), torch.randint(N, (2, E)), torch.randn(E, 3)


def run(conv, *arguments, **options):
    """Return outputs, and gradients of all parameters and of the inputs that are floating point."""
    arguments = [
        value.detach().clone().requires_grad_()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        else value
        for value in arguments
    ]
    conv.zero_grad()
    out = conv(*arguments, **options)
    out, weights = out if isinstance(out, tuple) else (out, None)
    total = (out * torch.arange(out.numel()).view_as(out).cos()).sum()
    if weights is not None:
        total = (
            total + (weights[1] * torch.arange(weights[1].numel()).view_as(weights[1]).sin()).sum()
        )
    total.backward()
    return [
        out,
        *(weights or ()),
        *(value.grad for value in arguments if isinstance(value, torch.Tensor)),
        *(parameter.grad for parameter in conv.parameters()),
    ]


def assert_same(ours, theirs, *arguments, **options):
    for a, b in zip(
        run(ours, *arguments, **options), run(theirs, *arguments, **options), strict=True
    ):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name, options",
    [
        ("GATConv", dict(heads=3)),
        ("GATConv", dict(heads=2, edge_dim=3, residual=True, concat=False)),
        ("GATConv", dict(edge_dim=3, fill_value="max", bias=False)),
        ("GATConv", dict(add_self_loops=False, edge_dim=3)),
        ("GATv2Conv", dict(heads=3, share_weights=True)),
        ("GATv2Conv", dict(heads=2, edge_dim=3, residual=True)),
        ("GATv2Conv", dict(edge_dim=3, fill_value=0.5, concat=False, negative_slope=-0.3)),
        ("GATv2Conv", dict(edge_dim=3, fill_value=torch.arange(3.0), add_self_loops=True)),
        ("TransformerConv", dict(heads=3, edge_dim=3, beta=True)),
        ("TransformerConv", dict(heads=2, concat=False, root_weight=False)),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_layers_are_pygs(said, name, options, kernel):
    ours, theirs = pair(name, **options, kernel=kernel)
    x, edge_index, edge_attr = inputs()
    features = (edge_attr,) if options.get("edge_dim") else ()
    assert_same(ours, theirs, x, edge_index, *features)
    assert_same(
        ours, theirs, x, EdgeIndex(edge_index, sparse_size=(N, N)).sort_by("col").values, *features
    )
    assert_same(ours, theirs, x, edge_index, *features, return_attention_weights=True)
    expected = "the reference computes gradients of attention weights"
    assert [expected in line for line in said] == [True] * (kernel == "auto")


@pytest.mark.parametrize("name", NAMES)
def test_bipartite_and_lazy_inputs(name):
    x, edge_index, edge_attr = inputs()
    edge_index[1] %= 12
    ours, theirs = pair(name, sizes=((6, 4), 5), heads=2, edge_dim=3)
    assert_same(ours, theirs, (x, x[:12, :4]), edge_index, edge_attr)
    ours, theirs = pair(name, sizes=((6, 4), 5), heads=2)
    assert_same(
        ours, theirs, (x[:12], x[:, :4]), edge_index.flip(0)
    )  # fewer sources than destinations
    if name == "GATConv":
        ours, theirs = pair(name, heads=2)
        assert_same(ours, theirs, (x, None), edge_index, size=(N, 12))
    ours = getattr(attention_convs, name)(-1, 5, edge_dim=3)
    out = ours(x, edge_index, edge_attr)
    theirs = getattr(pyg, name)(6, 5, edge_dim=3)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(out, theirs(x, edge_index, edge_attr))


@pytest.mark.parametrize(
    "change, why",
    [
        (dict(aggr="mean"), "aggr=mean"),
        (dict(flow="target_to_source"), "flow=target_to_source"),
        ("hook", "hooks on the steps of message passing"),
        ("lin_edge", "lin_edge was replaced or has hooks"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_pygs_own_code_runs_and_one_warning_says_so(said, name, change, why):
    ours, theirs = pair(name, edge_dim=3, **({} if isinstance(change, str) else change))
    for conv in (ours, theirs):
        if change == "hook":
            conv.register_message_forward_pre_hook(lambda *_: None)
        if change == "lin_edge":
            conv.lin_edge.register_forward_hook(lambda module, given, out: 2 * out)
    assert_same(ours, theirs, *inputs())
    assert said == [f"{name}: PyG's own code runs ({why})"]
    ours.kernel = "fused"
    with pytest.raises(
        ValueError, match="kernel=fused cannot run: .*Use kernel=auto to run PyG's own code"
    ):
        ours(*inputs())


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_drawn_from_torchs_state_and_only_in_training(name):
    ours, theirs = pair(name, edge_dim=3, dropout=0.5)
    results = []
    for kernel in ("auto", "reference", "auto"):
        ours.kernel = kernel
        torch.manual_seed(3)
        results.append(run(ours, *inputs()))
        for a, b in zip(results[0], results[-1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    given = inputs()
    torch.manual_seed(4)
    assert not torch.equal(ours(*given), results[0][0])
    ours.eval(), theirs.eval()
    assert_same(ours, theirs, *inputs())


def test_edge_dropout_removes_edges_in_training():
    ours, _ = pair("GATv2Conv", add_self_loops=False)
    x, edge_index, _ = inputs()
    ours.edge_dropout = 0.5
    _, (_, weights) = ours(x, edge_index, return_attention_weights=True)
    assert 25 < int((weights == 0).sum()) < 75
    _, (_, weights) = ours.eval()(x, edge_index, return_attention_weights=True)
    assert int((weights == 0).sum()) == 0
