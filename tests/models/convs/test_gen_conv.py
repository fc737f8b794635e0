"""GENConv in the place of PyG's: the same numbers whatever is done to it, and a word where PyG's own code runs."""

import copy
import os
import pickle
import re
import shutil

import pytest
import torch
from torch_geometric import EdgeIndex, nn as pyg
from torch_geometric.nn.conv import MessagePassing

from parallel_epochs.models import GENConv
from parallel_epochs.models.kernels import sorting
from tests.helpers.shapes import unchecked

pytestmark = [
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
    pytest.mark.usefixtures("said"),
]
N, E = 30, 100


def pair(theirs=pyg.GENConv, ours=GENConv, sizes=(6, 6), **options):
    torch.manual_seed(0)
    options = dict(edge_dim=3, norm="layer") | options
    layers = ours(*sizes, **options), theirs(*sizes, **options)
    layers[0].load_state_dict(layers[1].state_dict())
    return layers


def inputs(num_nodes=N):
    torch.manual_seed(1)
    return torch.randn(num_nodes, 6), torch.randint(num_nodes, (2, E)), torch.randn(E, 3)


def assert_same(ours, theirs, *arguments, **options):
    """Compare the outputs and the gradients of all parameters, and of x and edge_attr where they are tensors."""
    results = []
    for conv in (ours, theirs):
        leaves = [
            value.detach().clone().requires_grad_()
            if value.is_floating_point() and value.layout == torch.strided
            else value
            for value in arguments
        ]
        conv.zero_grad()
        out = conv(*leaves, **options)
        (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
        results.append(
            [
                out.detach(),
                *(leaf.grad for leaf in leaves if leaf.is_leaf),
                *(parameter.grad for parameter in conv.parameters()),
            ]
        )
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(1e-3, float(b.abs().max())))


def test_a_plain_layer_runs_fused(said, monkeypatch):
    ours, theirs = pair(learn_t=True)
    assert_same(ours, theirs, *inputs())
    ours.kernel = "fused"
    ours(*inputs())
    assert not said
    ours.kernel = "pyg"
    assert_same(ours, theirs, *inputs())
    assert said == ["GENConv: PyG's own code runs (kernel=pyg)"]


@pytest.mark.parametrize(
    "options, why",
    [
        (dict(aggr="median"), "aggr=median"),
        (dict(aggr=["mean", "max"]), "aggr=['mean', 'max']"),
        (dict(aggr=pyg.SoftmaxAggregation(learn=True)), "aggr=SoftmaxAggregation(learn=True)"),
        (dict(flow="target_to_source"), "flow=target_to_source"),
        (dict(aggr_kwargs=dict(t=0.3, semi_grad=True)), "aggr_kwargs with semi_grad"),
        (dict(), "x does not have 2 dimensions, or node_dim is not -2"),
    ],
)
def test_pygs_own_code_runs_and_one_warning_says_so(said, options, why):
    options = dict(edge_dim=None) | options
    ours, theirs = pair(**options)
    x, edge_index, _ = inputs()
    x = torch.stack([x, -x]) if why.startswith("x ") else x
    for _ in range(2):
        assert_same(ours, theirs, x, edge_index)
    assert said == [f"GENConv: PyG's own code runs ({why})"]
    ours.kernel = "fused"
    with pytest.raises(
        ValueError, match="kernel=fused cannot run: .*Use kernel=auto to run PyG's own code"
    ):
        ours(x, edge_index)


class Steps:
    """Each for a subclass of its own."""

    def message(self, x_j, edge_attr):
        return 2 * x_j.relu()

    def aggregate(self, inputs, index, ptr=None, dim_size=None):
        return MessagePassing.aggregate(self, inputs, index, ptr, dim_size) / 2

    def update(self, inputs):
        return inputs + 1

    def propagate(self, edge_index, size=None, **kwargs):
        return torch.zeros_like(kwargs["x"][1])


@pytest.mark.parametrize("name", ["message", "aggregate", "update", "propagate"])
def test_steps_of_a_subclass_run(said, name):
    ours, theirs = (
        type("Own", (base,), {name: vars(Steps)[name]}) for base in (GENConv, pyg.GENConv)
    )
    x, edge_index, _ = inputs()
    assert_same(*pair(theirs, ours, edge_dim=None), x, edge_index)
    assert said == [f"Own: PyG's own code runs (the class overrides {name})"]


def double_output(module, given, out):
    return 2 * out


def double_kwargs(module, given):
    return ({name: None if value is None else 2 * value for name, value in given[-1].items()},)


@pytest.mark.parametrize(
    "register, hook",
    [
        ("register_message_forward_hook", double_output),
        ("register_aggregate_forward_hook", double_output),
        ("register_propagate_forward_hook", double_output),
        ("register_message_forward_pre_hook", double_kwargs),
        (
            "register_propagate_forward_pre_hook",
            lambda module, given: (given[0].flip(0), *given[1:]),
        ),
    ],
)
def test_hooks_are_called_until_they_are_removed(said, register, hook):
    ours, theirs = pair()
    arguments = inputs()
    handles = [getattr(conv, register)(hook) for conv in (ours, theirs)]
    assert_same(ours, theirs, *arguments)
    assert said == ["GENConv: PyG's own code runs (hooks on the steps of message passing)"]
    for handle in handles:
        handle.remove()
    ours.kernel = "fused"
    assert_same(ours, theirs, *arguments)


@pytest.mark.parametrize("aggr", ["softmax", "softmax_sum"])
def test_an_explainers_mask_counts(said, aggr):
    # PyG's own class is made first: what it leaves in the class must not reach ours.
    pyg.GENConv(2, 2)
    explained = GENConv(6, 6, aggr, edge_dim=3, norm="layer")
    arguments = inputs()
    before = explained(*arguments)
    mask = torch.randn(E, requires_grad=True)
    explained.explain, explained._edge_mask = True, mask
    out = explained(*arguments)
    (grad,) = torch.autograd.grad(out.sum(), mask)
    assert not torch.allclose(out, before) and grad.abs().sum() > 0
    assert said == ["GENConv: PyG's own code runs (an explainer's mask)"]
    explained.explain, explained._edge_mask = None, None
    torch.testing.assert_close(explained(*arguments), before)


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
def test_pygs_own_code_reads_sparse_tensors(said):
    ours, theirs = pair(learn_t=True)
    places = torch.randperm(N * N)[:E]
    adj_t = torch.sparse_coo_tensor(
        torch.stack([places // N, places % N]), torch.ones(E), (N, N), check_invariants=True
    ).coalesce()
    assert_same(ours, theirs, inputs()[0], adj_t)
    assert said == ["GENConv: PyG's own code runs (a sparse tensor of edges)"]
    with pytest.raises(ValueError, match="kernel=fused cannot run: a sparse tensor of edges"):
        ours.kernel = "fused"
        ours(inputs()[0], adj_t)


@pytest.mark.parametrize(
    "edit, dtype",
    [
        (lambda edge_index: edge_index.data.__setitem__((0, 0), 7), torch.int64),
        (lambda edge_index: edge_index.numpy().__setitem__((1, slice(0, 50)), 3), torch.int32),
        (lambda edge_index: edge_index.numpy()[0].sort(), torch.int64),
    ],
)
def test_changes_behind_torchs_back_are_noticed(edit, dtype):
    ours, theirs = pair()
    x, edge_index, edge_attr = inputs()
    edge_index = edge_index.to(dtype)
    before, version = ours(x, edge_index, edge_attr), edge_index._version
    edit(edge_index)
    assert edge_index._version == version
    after = ours(x, edge_index, edge_attr)
    torch.testing.assert_close(after, theirs(x, edge_index.long(), edge_attr), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, after)


def test_edges_are_sorted_once(monkeypatch):
    ours, _ = pair()
    sort, calls = sorting.sort_edges, []
    monkeypatch.setattr(sorting, "sort_edges", lambda *args: calls.append(1) or sort(*args))
    x, edge_index, edge_attr = inputs()
    for _ in range(3):
        ours(x, edge_index, edge_attr)
    assert len(calls) == 1


@pytest.mark.parametrize("sizes", [(-1, 6), (6, 8)])
def test_lazy_layers(sizes):
    arguments = inputs()
    torch.manual_seed(0)
    ours = GENConv(*sizes, edge_dim=-1, norm="layer")
    theirs = pyg.GENConv(*sizes, edge_dim=-1, norm="layer")
    ours(*arguments), theirs(*arguments)
    ours.load_state_dict(theirs.state_dict())
    ours.kernel = "fused"
    assert_same(ours, theirs, *arguments)
    fresh = GENConv(*sizes, edge_dim=-1, norm="layer")
    fresh.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(fresh(*arguments), theirs(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("msg_norm", [False, True])
def test_bipartite_graphs_and_sizes(msg_norm):
    ours, theirs = pair(edge_dim=None, msg_norm=msg_norm)
    x, x_dst, edge_index = torch.randn(N, 6), torch.randn(20, 6), torch.randint(20, (2, E))
    given = EdgeIndex(edge_index, sparse_size=(N, 20)).sort_by("col").values
    for edges, size in ((edge_index, None), (edge_index, (N, 20)), (given, None)):
        a, b = ours((x, x_dst), edges, size=size), theirs((x, x_dst), edges, size=size)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    cases = (
        [(edge_index, (N, N))]
        if msg_norm
        else [(edge_index, None), (edge_index, (N, 20)), (given, None)]
    )
    for edges, size in cases:
        a, b = ours((x, None), edges, size=size), theirs((x, None), edges, size=size)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for wrong in ((N + 1, 20), (N, 21)):
        for conv in (ours, theirs):
            with pytest.raises(ValueError):
                conv((x, x_dst), edge_index, size=wrong)


@pytest.mark.parametrize("aggr", ["softmax", "powermean", "max", "add", "mean"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_gradients_of_gradients(said, aggr, norm):
    options = dict(softmax=dict(learn_t=True), powermean=dict(p=2.0, learn_p=True)).get(aggr, {})
    ours, theirs = pair(aggr=aggr, norm=norm, **options)
    results = []
    for conv in (ours, theirs.double()):
        dtype = conv.mlp[0].weight.dtype
        x, edge_index, edge_attr = inputs()
        leaves = [
            x.to(dtype).requires_grad_(),
            edge_attr.to(dtype).requires_grad_(),
            *conv.parameters(),
        ]
        out = conv(
            leaves[0], edge_index, leaves[1] + leaves[0][edge_index[0], :3]
        )  # one depends on the other
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves)
        results.append([*first, *second])
    largest = max(float(b.norm()) for b in results[1][len(results[1]) // 2 :])
    for a, b in zip(*results, strict=True):
        assert (a.double() - b).norm() <= 1e-4 * b.norm() + 1e-7 * largest
    assert len(said) == 1 and "gradients of gradients" in said[0]


def test_dropped_elements_stay_dropped_in_gradients_of_gradients():
    from parallel_epochs.models.kernels import norm

    x, seed = torch.randn(40, 8, requires_grad=True), torch.tensor([7])
    weight, bias = torch.rand(8, requires_grad=True), torch.rand(8, requires_grad=True)
    call = norm.NormCall(x, weight, bias, seed, 1e-5, 0.5)
    out = norm.forward(call)[0]
    kept = torch.autograd.grad(out.sum(), [x, weight, bias])
    again = torch.autograd.grad(
        norm.forward(call)[0].sum(),
        [x, weight, bias],
        create_graph=True,
    )
    for a, b in zip(again, kept, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_transforms_of_torch_func():
    ours, theirs = pair(learn_t=True)
    x, edge_index, edge_attr = inputs()
    close = dict(rtol=1e-4, atol=1e-5)
    with unchecked():
        for transform in (torch.func.grad, torch.func.hessian):
            a, b = (
                transform(lambda v, conv=conv: conv(v, edge_index, edge_attr).square().sum())(x)
                for conv in (ours, theirs)
            )
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        (_out, slope), (_pygs_out, pygs_slope) = (
            torch.func.jvp(
                lambda v, conv=conv: conv(v, edge_index, edge_attr), (x,), (torch.ones_like(x),)
            )
            for conv in (ours, theirs)
        )
        torch.testing.assert_close(slope, pygs_slope, **close)
        torch.testing.assert_close(
            torch.vmap(lambda v: ours(v, edge_index, edge_attr))(torch.stack([x, -x]))[1],
            theirs(-x, edge_index, edge_attr),
            **close,
        )


def replace_relu(conv):
    conv.mlp[2] = torch.nn.GELU()


def replace_encoder(conv):
    conv.lin_edge = torch.nn.Sequential(conv.lin_edge, torch.nn.Tanh())


def replace_aggregation(conv):
    conv.aggr_module = pyg.MaxAggregation()


@pytest.mark.parametrize(
    "change",
    [
        replace_relu,
        replace_encoder,
        replace_aggregation,
        *(
            lambda conv, path=path: conv.get_submodule(path).register_forward_hook(
                lambda module, given, out: 2 * out
            )
            for path in ("mlp", "mlp.1", "mlp.2", "lin_edge", "aggr_module")
        ),
    ],
)
def test_changed_and_hooked_parts_of_a_layer_run(change):
    ours, theirs = pair()
    change(ours), change(theirs)
    assert_same(ours, theirs, *inputs())


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(aggr="softmax_sg"),
        dict(aggr="powermean", learn_p=True),
        dict(aggr=["mean", "max"], msg_norm=True, learn_msg_scale=True),
    ],
)
def test_states_names_and_copies(options):
    ours, theirs = pair(sizes=(5, 8), **options)
    assert repr(ours) == repr(theirs) and ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(ours.state_dict())
    x, edge_index, edge_attr = torch.randn(N, 5), *inputs()[1:]
    expected = ours(x, edge_index, edge_attr)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(copied(x, edge_index, edge_attr), expected)
    for conv in (ours, theirs):
        torch.manual_seed(3)
        conv.reset_parameters()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(x=torch.ones(N, 6, dtype=torch.int64)), "x is torch.int64 of shape"),
        (
            dict(edge_index=torch.zeros(E, 2, dtype=torch.int64)),
            "edge_index is torch.int64 of shape (100, 2)",
        ),
        (dict(edge_index=torch.zeros(2, E)), "edge_index is torch.float32 of shape (2, 100)"),
        (
            dict(edge_index=torch.zeros(2, E, dtype=torch.int64, device="meta")),
            "tensors are on 'cpu' and 'meta'",
        ),
        (
            dict(edge_attr=torch.ones(E, 2)),
            "edge_attr has shape (100, 2), but must be [num_edges, 3]",
        ),
        (dict(edge_attr=torch.ones(E)), "edge_attr has shape (100,), but must be [num_edges, 3]"),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_what_does_not_fit_is_refused(wrong, message, kernel):
    ours = GENConv(6, 6, edge_dim=3, norm="layer", kernel=kernel)
    x, edge_index, edge_attr = inputs()
    with pytest.raises(ValueError, match=re.escape(message)), unchecked():
        ours(**dict(x=x, edge_index=edge_index, edge_attr=edge_attr) | wrong)


def test_an_unknown_kernel_is_refused_at_once():
    with pytest.raises(
        ValueError, match="kernel=fast is unknown; choose one of auto, fused, reference, pyg"
    ):
        GENConv(6, 6, kernel="fast")
