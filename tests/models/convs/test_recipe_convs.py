"""The layers of AGDN, GIPA and GatedGCN by hand, on a graph with a hub, a node without edges and parallel edges."""

import pytest
import torch

from parallel_epochs.models.convs.recipe_convs import AGDNConv, GIPAConv
from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.networks.pyg import PyGModel

EDGES = torch.tensor([[1, 2, 3, 0, 0, 2, 1], [0, 0, 0, 1, 2, 2, 3]])  # node 4 has no edge
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
ATTR = torch.rand(7, 3, generator=torch.Generator().manual_seed(1))


def scores_by_hand(conv, attr):
    part = conv.scores
    out = [part.lin_src(X[j]) + part.lin_dst(X[i]) for j, i in EDGES.t().tolist()]
    if attr is not None:
        out = [score + part.lin_edge(part.edge_encoder(e).relu()) for score, e in zip(out, attr)]
    return torch.stack(out)


def softmax_by_hand(scores, nodes):
    out = torch.empty_like(scores)
    for node in nodes.unique():
        out[nodes == node] = scores[nodes == node].softmax(0)
    return out


def propagate_by_hand(h, weight):
    out = torch.zeros_like(h)
    for (j, i), w in zip(EDGES.t().tolist(), weight):
        out[i] += w[:, None] * h[j]
    return out


def norm_by_hand(norm, h):
    deviation = (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return (h - h.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


@pytest.mark.parametrize("attr", [ATTR, None], ids=["features", "none"])
@pytest.mark.parametrize("kind", [AGDNConv, GIPAConv])
def test_layers_by_hand(kind, attr):
    torch.manual_seed(0)
    conv = kind(6, 4, 2, edge_dim=3)
    for parameter in conv.parameters():  # no norm and no hop weight is what it begins with
        torch.nn.init.normal_(parameter, std=0.5)
    scores, h = scores_by_hand(conv, attr), conv.lin(X).view(5, 2, 4)
    if kind is GIPAConv:
        summed = propagate_by_hand(h, softmax_by_hand(scores, EDGES[1]))
        expected = conv.lin_out(norm_by_hand(conv.norm, summed).flatten(1)) + conv.lin_root(X)
    else:
        scores = torch.where(scores > 0, scores, 0.2 * scores)
        weight = (softmax_by_hand(scores, EDGES[1]) * softmax_by_hand(scores, EDGES[0])).sqrt()
        one = propagate_by_hand(h, weight)
        two = propagate_by_hand(one, weight)
        hops = [
            norm_by_hand(norm, hop) * factor
            for norm, hop, factor in zip(conv.norms, (one, two), conv.hop_weight)
        ]
        expected = sum(hops).flatten(1) + conv.lin_root(X)
    ours = conv(X, from_csc(EDGES, torch.tensor([0, 3, 4, 6, 7, 7])), attr)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(conv(X, EDGES, attr), expected)
    ours.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in conv.parameters())
    assert sum(p.grad is None for p in conv.parameters()) == (0 if attr is not None else 3)


@pytest.mark.parametrize("attr", [ATTR, None], ids=["features", "none"])
def test_gated_layers_update_edges_by_hand(attr):
    """Two layers: the second reads the edges that the first has updated."""
    torch.manual_seed(0)
    model = PyGModel(
        6, 4, 2, 2, edge_dim=None if attr is None else 3, conv="GatedGCNConv", norm="batch"
    ).eval()
    for layer in model.layers[:1]:  # running statistics that do something
        layer.norm.running_var.fill_(2.0)
        layer.edge_norm.running_mean.fill_(0.5)
    h = model.node_encoder(X)
    e = model.edge_columns.weight.expand(7, 4) if attr is None else model.edge_columns(attr)
    for number, layer in enumerate(model.layers):
        conv, summed, total, new = layer.conv, torch.zeros(5, 4), torch.zeros(5, 4), []
        for (j, i), edge in zip(EDGES.t().tolist(), e):
            new.append(conv.lin_src(h[j]) + conv.lin_dst(h[i]) + conv.lin_edge(edge))
            gate = 1 / (1 + (-new[-1]).exp())
            summed[i] += gate * conv.lin(h[j])
            total[i] += gate
        if number == 0:
            e = e + ((torch.stack(new) - 0.5) / (1 + 1e-5) ** 0.5).relu()
        out = conv.lin_root(h) + summed / (total + 1e-6)
        h = h + (out / ((2 if number == 0 else 1) + 1e-5) ** 0.5).relu()
    edges = from_csc(EDGES, torch.tensor([0, 3, 4, 6, 7, 7]))
    torch.testing.assert_close(model(X, edges, attr), model.head(h))
    assert model.layers[1].edge_norm is None and model.splits
    model.train()(X, edges, attr).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_gated_layers_drop_messages_but_keep_the_edges_features():
    model = PyGModel(6, 4, 2, 1, edge_dim=3, conv="GatedGCNConv", norm="none", edge_dropout=0.999)
    conv, edge_attr = model.layers[0].conv, model.edge_columns(ATTR)
    h = model.node_encoder(X)
    torch.manual_seed(0)
    out, edges = conv(h, EDGES, edge_attr)
    torch.testing.assert_close(out, conv.lin_root(h))  # every message is dropped
    torch.testing.assert_close(edges, conv.eval()(h, EDGES, edge_attr)[1])
    assert not torch.allclose(conv(h, EDGES, edge_attr)[0], out)
