"""int32 edges where torch_scatter is installed, whose pointers to segments must be int64."""

import types

import pytest
import torch
import torch_geometric
from torch_geometric.utils import _segment

from parallel_epochs.models import GENConv
from parallel_epochs.models.edge_index import for_pyg
from parallel_epochs.models.networks.heads import pool_graphs
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.models.networks.virtual import VirtualNode
from tests.helpers.graphs import random_graph


@pytest.fixture
def torch_scatter(monkeypatch):
    """Stands for torch_scatter, whose segment_csr takes int64 pointers alone; returns the calls of it."""
    calls = []

    def segment_csr(src, ptr, reduce):
        if ptr.dtype != torch.int64:
            raise RuntimeError("expected scalar type Long but found Int")
        calls.append(reduce)
        return _segment._torch_segment(src, ptr, reduce)

    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SCATTER", True)
    monkeypatch.setattr(_segment, "torch_scatter", types.SimpleNamespace(segment_csr=segment_csr))
    return calls


@pytest.fixture
def narrow():
    """A graph whose edges are int32, sorted by destination."""
    data = random_graph(20, 100, 0)
    assert data.edge_index.dtype == torch.int32 and data.edge_index.is_sorted_by_col
    return data


@pytest.mark.parametrize("conv", ["TransformerConv", "GENConv", "GATv2Conv"])
def test_layers_of_pyg_reduce_segments_of_int32_edges(conv, narrow, torch_scatter):
    model = PyGModel(narrow.num_features, 8, 3, 2, conv=conv, kernel="pyg").eval()
    out = model(narrow.x, narrow.edge_index)
    assert torch.equal(out, model(narrow.x, narrow.edge_index.long()))
    assert torch_scatter or conv == "GATv2Conv"  # whose self-loops leave no sorted order


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_pygs_own_code_of_a_layer_of_ours_takes_int32_edges(kernel, narrow, torch_scatter):
    layer = GENConv(narrow.num_features, 8, kernel=kernel)
    expected = layer(narrow.x, narrow.edge_index)
    layer.register_message_forward_hook(lambda *arguments: None)
    torch.testing.assert_close(layer(narrow.x, narrow.edge_index), expected, rtol=1e-4, atol=1e-5)
    assert torch_scatter


def test_graphs_are_pooled_by_int32_pointers(torch_scatter):
    h, ptr = torch.randn(10, 4), torch.tensor([0, 3, 10], dtype=torch.int32)
    for pool in ("mean", "sum", "max"):
        assert torch.equal(pool_graphs(h, ptr, pool), pool_graphs(h, ptr.long(), pool))
    node = VirtualNode(4, 1, pool="mean", norm="layer", dropout=0.0)
    state = node.start(ptr)
    assert torch.equal(node(0, state, h, ptr), node(0, state, h, ptr.long()))
    assert len(torch_scatter) == 8


def test_sparse_tensors_and_wide_edges_stay_what_they_are(narrow):
    wide = narrow.edge_index.long()
    sparse = torch.eye(3, dtype=torch.int32).to_sparse_coo()
    assert for_pyg(wide) is wide and for_pyg(sparse) is sparse
    assert for_pyg(narrow.edge_index).get_csc()[0][0].dtype == torch.int64
