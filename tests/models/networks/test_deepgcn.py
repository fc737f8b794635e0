import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric import nn as pyg

from parallel_epochs import models
from parallel_epochs.models import DeeperGCN, GENConv
from parallel_epochs.models.aggregate import AGGREGATIONS
from parallel_epochs.models.aggregate.reference import aggregate
from tests.helpers.graphs import random_graph
from tests.helpers.running import ROOT


def by_hand(x, edges, edge_attr, *, aggr, t, p, eps=1e-7):
    """One node and one channel at a time, with Python's own arithmetic."""
    out = [[0.0] * len(x[0]) for _ in x]
    for i in range(len(x)):
        incoming = [(j, k) for k, (j, to) in enumerate(edges) if to == i]
        for c in range(len(x[0])):
            m = [max(x[j][c] + edge_attr[k][c], 0.0) + eps for j, k in incoming]
            if not m:
                out[i][c] = 1e-4 ** (1 / p) if aggr == "powermean" and p != 1 else 0.0
                continue
            pyg_mean = sum(min(max(v, 1e-4), 100.0) ** p for v in m) / len(m)
            powermean = sum(m) / len(m) if p == 1 else min(max(pyg_mean, 1e-4), 100.0) ** (1 / p)
            top = max(t * v for v in m)
            w = [math.exp(t * v - top) for v in m]
            softmax = sum(a * b for a, b in zip(w, m, strict=True)) / sum(w)
            out[i][c] = {
                "add": sum(m),
                "mean": sum(m) / len(m),
                "max": max(m),
                "softmax": softmax,
                "softmax_sg": softmax,
                "softmax_sum": softmax * len(m) ** 0.5,
                "powermean": powermean,
            }[aggr]
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("aggr", AGGREGATIONS)
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(0, 30),
    st.integers(0, 10**6),
    st.floats(-4, 4),
    st.floats(0.3, 3),
)
def test_aggregations_by_hand(aggr, num_nodes, num_edges, seed, t, p):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_nodes, 3, generator=generator, dtype=torch.float64) * 4
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    attr = torch.randn(num_edges, 3, generator=generator, dtype=torch.float64)
    expected = by_hand(x.tolist(), edges.t().tolist(), attr.tolist(), aggr=aggr, t=t, p=p)
    torch.testing.assert_close(aggregate(x, edges, attr, aggr=aggr, t=t, p=p), expected)


OPTIONS = [
    dict(),
    dict(learn_t=True, t=0.3, edge_dim=3),
    dict(aggr="softmax_sg", t=0.1, norm="layer"),
    dict(aggr="max", msg_norm=True),
    dict(aggr="mean", num_layers=1, bias=True),
    dict(aggr="add", msg_norm=True, learn_msg_scale=True, edge_dim=3),
    dict(aggr="powermean"),
    dict(aggr="powermean", p=2.0),
    *(dict(aggr="powermean", p=p, learn_p=True, norm="layer") for p in (-2.0, 0.5, 3.0)),
    dict(aggr="powermean", aggr_kwargs=dict(p=2.0, clamp_max=0.5)),
]


# Every option has both sizes and both kernels.
@pytest.mark.parametrize(
    "options, sizes, kernel",
    [
        (options, sizes, ("auto", "reference")[(number + column) % 2])
        for number, options in enumerate(OPTIONS)
        for column, sizes in enumerate(((6, 6), (5, 6)))
    ],
)
def test_genconv_is_pygs(options, sizes, kernel):
    if options.get("edge_dim") is None:
        options = {**options, "edge_dim": 3}
    torch.manual_seed(0)
    theirs = pyg.GENConv(*sizes, **options)
    ours = GENConv(*sizes, **options, kernel=kernel)
    ours.load_state_dict(theirs.state_dict())
    theirs.double()
    data = random_graph(30, 100, 0)
    square = torch.randn(30, sizes[0]), data.edge_index.as_tensor().long(), data.edge_attr
    pair = torch.randn(30, sizes[0]), torch.randn(20, sizes[0])
    # The last nodes have no edges.
    pair = (
        pair,
        torch.stack([torch.randint(30, (50,)), torch.randint(18, (50,))]),
        data.edge_attr[:50],
    )
    for x, index, attr in (square, pair):
        for side in x if isinstance(x, tuple) else (x,):
            side[::3] *= 8  # beyond what the power mean clamps its mean to
        a, b = (_with_gradients(conv, x, index, attr) for conv in (ours, theirs))
        largest = max(expected.norm() for expected in b.values())
        for name, expected in b.items():
            error, scale = (a[name].double() - expected).norm(), expected.norm()
            # The bias before a batch norm has a gradient of 0, for both but for their rounding.
            scale = scale if scale > 1e-10 * largest else 0.1 * largest
            assert error <= 1e-4 * scale, f"{name}: {error:.1e} of {scale:.1e}"


def _with_gradients(conv, x, index, attr):
    """The output and the gradients of everything, by name, in the precision of the layer."""
    dtype = conv.mlp[0].weight.dtype
    leaves = [
        value.to(dtype, copy=True).requires_grad_()
        for value in (*(x if isinstance(x, tuple) else (x,)), attr)
    ]
    out = conv(tuple(leaves[:-1]) if isinstance(x, tuple) else leaves[0], index, leaves[-1])
    conv.zero_grad()
    (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
    return (
        {"out": out.detach()}
        | {str(i): leaf.grad for i, leaf in enumerate(leaves)}
        | {
            name: parameter.grad
            for name, parameter in conv.named_parameters()
            if parameter.requires_grad
        }
    )


MOLECULES = dict(
    node_tables=[119, 5, 12, 12, 10, 6, 6, 2, 2], edge_tables=[5, 6, 2], edge_dim=3, norm="batch"
)
SEMI_GRADIENT = dict(aggr="softmax_sg", t=0.1, num_mlp_layers=1, norm="batch")
RECIPES = {
    "ogbn-proteins": (2_374_568, (8, 64, 112, 112), dict(edge_dim=8, num_categories=8)),
    "ogbn-arxiv": (491_176, (128, 128, 40, 28), SEMI_GRADIENT),
    "ogbn-products": (253_743, (100, 128, 47, 14), SEMI_GRADIENT),
    "ogbg-ppa": (
        2_336_421,
        (7, 128, 37, 28),
        dict(edge_dim=7, aggr="softmax_sg", t=0.01),
    ),
    # With the row of a category that OGB has added since.
    "ogbg-molhiv": (531_976 + 256, (9, 256, 1, 7), dict(num_mlp_layers=1, **MOLECULES)),
    "ogbg-molpcba": (
        5_550_208 + 256,
        (9, 256, 128, 14),
        dict(aggr="softmax_sg", virtual_node="add", **MOLECULES),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_parameter_counts_are_the_published_ones(name):
    count, sizes, options = RECIPES[name]
    with torch.device("meta"):
        assert sum(p.numel() for p in DeeperGCN(*sizes, **options).parameters()) == count


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_gradient_checkpointing_changes_no_bit(norm):
    data = random_graph(40, 200, 0)
    grads = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = DeeperGCN(
            5,
            8,
            2,
            4,
            edge_dim=3,
            norm=norm,
            dropout=0.5,
            edge_dropout=0.3,
            gradient_checkpointing=checkpointing,
        )
        torch.manual_seed(1)
        model(data.x, data.edge_index, data.edge_attr).square().sum().backward()
        # Statistics of batch norms are buffers: recomputing a layer must not count its batch twice.
        grads.append(
            {name: p.grad for name, p in model.named_parameters()} | dict(model.named_buffers())
        )
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def count_saved_elements(model, x, *edges) -> int:
    """Count what forward keeps for backward in tensors [num_nodes, channels]."""
    sizes = []

    def pack(tensor):
        if tensor.dim() == 2 and tensor.size(0) == x.size(0):
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x, *edges)
    return sum(sizes)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_gradient_checkpointing_keeps_little_and_recomputes_every_layer(monkeypatch, norm):
    data = random_graph(40, 200, 0)
    arguments, kept, calls = (data.x, data.edge_index, data.edge_attr), {}, []
    forward = GENConv.forward

    def count(self, *args, **kwargs):
        calls.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(GENConv, "forward", count)
    for checkpointing in (False, True):
        model = DeeperGCN(5, 8, 2, 12, edge_dim=3, norm=norm, gradient_checkpointing=checkpointing)
        kept[checkpointing] = count_saved_elements(model, *arguments)
        calls.clear()
        model(*arguments).sum().backward()
        convs = list(model.convs)
        assert calls == (convs + convs[::-1] if checkpointing else convs)
    assert kept[True] < 0.2 * kept[False]


def test_res_plus_is_the_published_order():
    torch.manual_seed(0)
    data = random_graph(20, 60, 0)
    model = DeeperGCN(5, 8, 2, 2).eval()
    index = data.edge_index
    h = model.convs[0](model.node_encoder(data.x), index)
    h = h + model.convs[1](model.norms[0](h).relu(), index)
    torch.testing.assert_close(model(data.x, index), model.head(model.norms[1](h).relu()))


def test_the_name_that_a_checkout_gives_to_the_package_leads_to_the_same_classes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    short = importlib.import_module("models")
    assert Path(short.__file__) == ROOT / "models" / "__init__.py"
    assert all(getattr(short, name) is getattr(models, name) for name in models.__all__)
    monkeypatch.delitem(sys.modules, "models")
