"""R-GCN and HGT as models: one layer by hand, graphs without types and relations, options and errors."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch.nn import functional as F

from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.models.networks.relational import HGT, RGCN

NUM_NODES, TYPES = 12, torch.arange(12) % 3
COLUMNS = [[(0, 2)], [(2, 4)], []]
rng = torch.Generator().manual_seed(0)
X = torch.cat([torch.randn(NUM_NODES, 4, generator=rng), F.one_hot(TYPES, 3).float()], 1)
EDGES, RELATION = torch.randint(12, (2, 50), generator=rng), torch.randint(4, (50,), generator=rng)
ATTR = torch.cat([RELATION[:, None].float(), torch.randn(50, 2, generator=rng)], 1)
TYPED = dict(edge_dim=3, num_categories=3, num_relations=4, type_columns=COLUMNS)


@pytest.mark.parametrize("num_bases", [0, 2])
def test_rgcn_is_a_stack_of_pygs_layers(num_bases):
    torch.manual_seed(0)
    model = RGCN(4, 8, 5, 2, num_bases=num_bases, **TYPED).eval()
    h = model.node_encoder(X)
    for layer, norm in zip(model.layers, model.norms, strict=True):
        conv = pyg.RGCNConv(8, 8, 4, num_bases=num_bases or None)
        given = {"weight": layer.weight, "root": layer.root.weight.t(), "bias": layer.root.bias}
        conv.load_state_dict(given | ({"comp": layer.comp} if num_bases else {}))
        h = h + norm(conv(h, EDGES, RELATION)).relu()
    torch.testing.assert_close(model(X, EDGES, ATTR), model.head(h))


@pytest.mark.parametrize("kind", [RGCN, HGT])
def test_every_parameter_learns_and_other_edge_features_are_not_read(kind):
    torch.manual_seed(0)
    model = kind(4, 8, 5, 2, dropout=0.2, input_dropout=0.1, edge_dropout=0.2, **TYPED)
    model(X, EDGES, ATTR).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    changed = torch.cat([ATTR[:, :1], ATTR[:, 1:] + 1], 1)
    assert torch.equal(model(X, EDGES, ATTR), model(X, EDGES, changed))
    other = torch.cat([(ATTR[:, :1] + 1) % 4, ATTR[:, 1:]], 1)
    assert not torch.allclose(model(X, EDGES, ATTR), model(X, EDGES, other))
    assert count_hops(model) == (2, "")


@pytest.mark.parametrize("kind", [RGCN, HGT])
@pytest.mark.parametrize("num_categories", [0, 3])
def test_a_graph_without_relations_has_one(kind, num_categories):
    torch.manual_seed(0)
    columns = 4 + num_categories
    plain = kind(4, 8, 5, 2, edge_dim=2, num_categories=num_categories).eval()
    typed = kind(4, 8, 5, 2, edge_dim=1, num_categories=num_categories, num_relations=1).eval()
    typed.load_state_dict(plain.state_dict())
    x = X[:, :columns]
    torch.testing.assert_close(plain(x, EDGES, ATTR[:, 1:]), typed(x, EDGES, torch.zeros(50, 1)))
    torch.testing.assert_close(plain(x, EDGES), plain(x, EDGES, ATTR[:, 1:]))
