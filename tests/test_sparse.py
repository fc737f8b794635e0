"""The extra `sparse`: torch_sparse beside our layers and graphs."""

import pytest
import torch
from conftest import TOY
from torch_geometric import nn as pyg

from models import GENConv
from pipeline.data import load

pytestmark = pytest.mark.system


def test_genconv_takes_a_sparse_tensor(configure, tmp_path):
    from torch_sparse import SparseTensor

    data = load(configure(*TOY).data, tmp_path)
    src, dst = data.edge_index.as_tensor().long()
    adj_t = SparseTensor(row=dst, col=src, value=data.edge_attr, sparse_sizes=(data.num_nodes, data.num_nodes))
    theirs = pyg.GENConv(data.x.size(1), 6, edge_dim=8)
    ours = GENConv(data.x.size(1), 6, edge_dim=8)
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(data.x, adj_t)
    torch.testing.assert_close(ours(data.x, adj_t), expected)
    torch.testing.assert_close(ours(data.x, data.edge_index, data.edge_attr), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_a_prepared_graph_feeds_pygs_neighbor_loader(configure, tmp_path):
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = load(configure(*TOY).data, tmp_path)
    plain = Data(x=data.x, y=data.y, edge_index=data.edge_index.as_tensor().long(), num_nodes=data.num_nodes)
    seen = [batch.n_id[:batch.batch_size] for batch in NeighborLoader(plain, [5, 5], batch_size=50, shuffle=True)]
    assert sorted(torch.cat(seen).tolist()) == list(range(data.num_nodes))
