"""The extra `sparse`: torch_sparse beside our layers and graphs."""

import pytest
import torch
from torch_geometric import EdgeIndex, nn as pyg

from parallel_epochs.models import GENConv
from parallel_epochs.pipeline.data.cache import load
from tests.helpers.running import TOY

pytestmark = pytest.mark.system


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize(
    "options", [dict(learn_t=True), dict(aggr="powermean", p=2.0, learn_p=True)]
)
def test_genconv_takes_a_sparse_tensor(configure, tmp_path, options, square):
    from torch_sparse import SparseTensor

    data = load(configure(*TOY).data, tmp_path)
    src, dst = data.edge_index.as_tensor().long()
    theirs = pyg.GENConv(data.x.size(1), 6, edge_dim=8, norm="layer", **options)
    ours = GENConv(data.x.size(1), 6, edge_dim=8, norm="layer", **options)
    ours.load_state_dict(theirs.state_dict())
    results = []
    num_dst = data.num_nodes if square else int(dst.max()) + 7
    for conv in (ours, theirs.double()):
        dtype = conv.mlp[0].weight.dtype
        x, value = (
            tensor.to(dtype, copy=True).requires_grad_() for tensor in (data.x, data.edge_attr)
        )
        adj_t = SparseTensor(row=dst, col=src, value=value, sparse_sizes=(num_dst, data.num_nodes))
        x_dst = x if square else None
        out = conv((x, x_dst), adj_t)
        out.square().sum().backward()
        assert torch.equal(conv((x, x_dst), adj_t), out)
        assert torch.equal(
            conv((x, x_dst), adj_t.set_value(None, layout=None), adj_t.storage.value()), out
        )
        if square:
            index = EdgeIndex(torch.stack([src, dst]), sparse_size=(data.num_nodes, data.num_nodes))
            torch.testing.assert_close(conv(x, index, value), out, rtol=1e-4, atol=1e-5)
        results.append(
            {"out": out, "x": x.grad, "value": value.grad}
            | {
                name: parameter.grad
                for name, parameter in conv.named_parameters()
                if parameter.grad is not None
            }
        )
    for name, expected in results[1].items():
        error = (results[0][name].double() - expected).norm()
        assert error <= 1e-4 * expected.norm() + 1e-5, (
            f"{name}: {error:.1e} of {expected.norm():.1e}"
        )


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
