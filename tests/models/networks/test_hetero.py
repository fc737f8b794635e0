"""Batches of typed graphs as dicts, for models of PyG's kind."""

import pytest
import torch
from torch_geometric.data import HeteroData

from parallel_epochs.models.networks.custom import CustomModel
from parallel_epochs.models.networks.foreign import tiny_typed_graph, try_forward
from parallel_epochs.models.networks.hetero import HeteroView, make_schema

TYPES = ["user", "item", "tag"]
RELATIONS = [("user", "buys", "item"), ("item", "rev_buys", "user"), ("item", "has", "tag")]
NAMES = {"types": TYPES, "relations": RELATIONS, "labelled": "user"}
COLUMNS = [[(0, 1), (2, 4)], [(1, 4)], []]
ENDS = [(0, 1), (1, 0), (1, 2)]
SCHEMA = make_schema(NAMES, COLUMNS, 2)


def custom(name: str, **options) -> CustomModel:
    torch.manual_seed(0)
    options = {
        "edge_dim": 2,
        "num_categories": 3,
        "num_relations": 3,
        "type_columns": COLUMNS,
        "schema": NAMES,
        **options,
    }
    model = CustomModel(4, 8, 2, 2, path=f"tests.helpers.hetero_nets.{name}", **options)
    try_forward(
        model,
        name,
        num_columns=7,
        out_channels=2,
        edge_dim=2,
        num_categories=3,
        num_relations=3,
        ends=ENDS,
    )
    return model.eval()


def by_hand(x, edge_index, edge_attr) -> tuple[HeteroData, dict[str, torch.Tensor]]:
    """Make a HeteroData of a batch, one node and one edge after the other; and the nodes of each type."""
    data, types = HeteroData(), x[:, 4:].argmax(1).tolist()
    nodes = {
        name: [node for node, kind in enumerate(types) if kind == number]
        for number, name in enumerate(TYPES)
    }
    for name, ranges in zip(TYPES, COLUMNS):
        columns = [column for begin, end in ranges for column in range(begin, end)]
        data[name].x = x[nodes[name]][:, columns] if columns else torch.ones(len(nodes[name]), 1)
    for number, relation in enumerate(RELATIONS):
        source, _, target = relation
        chosen = [edge for edge in range(edge_index.size(1)) if int(edge_attr[edge, 0]) == number]
        ends = [
            (
                nodes[source].index(int(edge_index[0, edge])),
                nodes[target].index(int(edge_index[1, edge])),
            )
            for edge in chosen
        ]
        data[relation].edge_index = torch.tensor(ends).reshape(-1, 2).t()
        data[relation].edge_attr = edge_attr[chosen, 1:]
    return data, {name: torch.tensor(own) for name, own in nodes.items()}


def test_a_view_is_what_pyg_has():
    inputs = tiny_typed_graph(ENDS, 3, 7, 2)
    view, (data, _) = HeteroView(SCHEMA, COLUMNS, *inputs), by_hand(*inputs)
    assert list(view.x_dict) == TYPES and list(view.edge_index_dict) == RELATIONS
    for name, x in view.x_dict.items():
        assert torch.equal(x, data[name].x) and SCHEMA.in_channels[name] == x.size(1)
    for relation in RELATIONS:
        assert torch.equal(view.edge_index_dict[relation], data[relation].edge_index)
        assert torch.equal(view.edge_attr_dict[relation], data[relation].edge_attr)
    assert SCHEMA.metadata == data.metadata()


def test_types_and_relations_may_lack_in_a_batch():
    x, edge_index, edge_attr = tiny_typed_graph(ENDS, 3, 7, 2)
    kept = x[:, 4] == 1
    view = HeteroView(SCHEMA, COLUMNS, x[kept], edge_index[:, :0], edge_attr[:0])
    assert [len(rows) for rows in view.x_dict.values()] == [int(kept.sum()), 0, 0]
    assert all(ends.shape == (2, 0) for ends in view.edge_index_dict.values())
    out = view.put_back(torch.rand(int(kept.sum()), 2), "Net", 2)
    assert out.shape == (int(kept.sum()), 2)


@pytest.mark.parametrize("name", ["ToHetero", "Hgt", "Weighted"])
def test_outputs_and_gradients_are_those_of_the_model_alone(name):
    model, inputs = custom(name), tiny_typed_graph(ENDS, 3, 7, 2)
    data, nodes = by_hand(*inputs)
    assert model.takes_dicts and model.edge_argument == (
        "edge_attr_dict" if name == "Weighted" else ""
    )
    more = {"edge_attr_dict": data.edge_attr_dict} if name == "Weighted" else {}
    plain = model.model(x_dict=data.x_dict, edge_index_dict=data.edge_index_dict, **more)
    plain = plain if isinstance(plain, torch.Tensor) else plain["user"]
    out, weight = model(*inputs), torch.rand(len(nodes["user"]), 2)
    torch.testing.assert_close(out[nodes["user"]], plain)
    assert not out[torch.cat([nodes["item"], nodes["tag"]])].any()
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad((out[nodes["user"]] * weight).sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad((plain * weight).sum(), parameters, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-6)
