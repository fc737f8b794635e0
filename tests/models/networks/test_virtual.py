"""Virtual nodes: by hand, in a union of graphs, and beside the published number of parameters."""

import pytest
import torch

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks.virtual import Spread, spread
from tests.helpers.graphs import random_graph

DATA = random_graph(30, 90, 0)


def build(**options) -> DeeperGCN:
    torch.manual_seed(0)
    model = DeeperGCN(
        5, 8, 2, 3, **{"edge_dim": 3, "virtual_node": "add", "dropout": 0.0, **options}
    )
    torch.nn.init.normal_(model.virtual.embedding)  # zeros would hide it
    return model


@pytest.mark.parametrize("pool", ["add", "mean"])
def test_layers_by_hand(pool):
    model = build(virtual_node=pool)
    attr, index = model.edge_encoder(DATA.edge_attr), DATA.edge_index
    h, state = model.node_encoder(DATA.x) + model.virtual.embedding, model.virtual.embedding
    h = model.convs[0](h, index, model.edge_lins[0](attr))
    for layer in (1, 2):
        a = model.norms[layer - 1](h).relu()
        state = model.virtual.mlps[layer - 1]((a.sum(0) if pool == "add" else a.mean(0)) + state)
        h = h + model.convs[layer](a + state, index, model.edge_lins[layer](attr))
    expected = model.head(model.norms[2](h).relu())
    torch.testing.assert_close(model(DATA.x, index, DATA.edge_attr), expected, rtol=1e-4, atol=1e-5)


def test_a_graph_of_a_union_is_alone_with_its_virtual_node():
    model, other = build(), random_graph(12, 40, 1)
    apart = [model(data.x, data.edge_index, data.edge_attr) for data in (DATA, other)]
    index = torch.cat(
        [DATA.edge_index.as_tensor().long(), other.edge_index.as_tensor().long() + 30], dim=1
    )
    union = model(
        torch.cat([DATA.x, other.x]),
        index,
        torch.cat([DATA.edge_attr, other.edge_attr]),
        torch.tensor([0, 30, 42]),
    )
    torch.testing.assert_close(union, torch.cat(apart), rtol=1e-4, atol=1e-5)


def test_rows_are_repeated_on_a_gpu_as_on_the_cpu():
    """Its gradient is a sum over segments there; the second graph has no node."""
    ptr = torch.tensor([0, 3, 3, 7])
    found = []
    for repeat in (Spread.apply, spread):
        state = torch.arange(6.0).view(3, 2).requires_grad_()
        out = repeat(state, ptr, 7)
        (out * torch.arange(14.0).view(7, 2)).sum().backward()
        found.append((out, state.grad))
    for ours, theirs in zip(*found):
        assert torch.equal(ours, theirs)
