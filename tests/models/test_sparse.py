"""The extra `sparse`: torch_sparse beside our layers and graphs."""

import pytest
import torch
from torch_geometric import nn as pyg

from parallel_epochs.models import GENConv
from parallel_epochs.pipeline.data.cache import load
from tests.helpers.running import TOY

pytestmark = pytest.mark.system


def test_genconv_takes_a_sparse_tensor():
    from torch_sparse import SparseTensor

    theirs, ours = pyg.GENConv(5, 6, edge_dim=3), GENConv(5, 6, edge_dim=3)
    ours.load_state_dict(theirs.state_dict())
    row, col = torch.randint(9, (2, 30))
    adj_t = SparseTensor(row=row, col=col, value=torch.rand(30, 3), sparse_sizes=(9, 9))
    x = torch.randn(9, 5)
    torch.testing.assert_close(ours(x, adj_t), theirs(x, adj_t))


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_a_prepared_graph_feeds_pygs_neighbor_loader(configure, tmp_path):
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = load(configure(*TOY).data, tmp_path)
    plain = Data(
        x=data.x, y=data.y, edge_index=data.edge_index.as_tensor().long(), num_nodes=data.num_nodes
    )
    seen = [
        batch.n_id[: batch.batch_size]
        for batch in NeighborLoader(plain, [5, 5], batch_size=50, shuffle=True)
    ]
    assert sorted(torch.cat(seen).tolist()) == list(range(data.num_nodes))
