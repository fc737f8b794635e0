"""Encoders of nodes of several types, and relations as columns of edge features."""

import pytest
import torch
from torch.nn import functional as F

from parallel_epochs.models.networks.encoders import TypeEncoder
from parallel_epochs.models.networks.pyg import PyGModel

# The second and the third type share the column 3; the last type has none.
COLUMNS = [[(0, 2)], [(2, 4)], [(3, 5), (0, 1)], []]
TYPES = torch.tensor([2, 0, 3, 1, 2, 3, 0, 2])


def typed_x(types: torch.Tensor = TYPES) -> torch.Tensor:
    """Draw features: a node has 0 in the columns of other types."""
    torch.manual_seed(0)
    mask = torch.zeros(4, 5)
    for number, ranges in enumerate(COLUMNS):
        for first, end in ranges:
            mask[number, first:end] = 1
    return torch.cat(
        [torch.randn(types.numel(), 5) * mask[types], F.one_hot(types, 4).float()], dim=1
    )


def test_each_node_is_encoded_by_the_map_of_its_type():
    encoder, x = TypeEncoder(COLUMNS, 6), typed_x()
    assert [tuple(weight.shape) for weight in encoder.weights] == [(6, 2), (6, 2), (6, 3), (6, 0)]
    out = encoder(x)
    for row, number, h in zip(x, TYPES.tolist(), out, strict=True):
        own = torch.cat([row[first:end] for first, end in COLUMNS[number]] or [row[:0]])
        torch.testing.assert_close(h, encoder.weights[number] @ own + encoder.bias[number])
    assert (
        encoder.bias[3].abs().max() > 0.05
    )  # a vector that tells the type from others at the start
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(
    "row",
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 0.5, 0.5, 0], [0, 2, 0, 0]],
    ids=["zeros", "two", "halves", "two times one"],
)
def test_a_node_without_a_one_hot_type_is_an_error(row):
    x = typed_x()
    x[4, 5:] = torch.tensor(row)
    with pytest.raises(
        ValueError, match=r"^node 4 has no one-hot type: the last 4 columns of x are \[0"
    ):
        TypeEncoder(COLUMNS, 6)(x)


@pytest.mark.parametrize("conv", ["GINEConv", "GatedGCNConv"])
def test_convolutions_read_relations_as_one_hot_columns(conv):
    torch.manual_seed(0)
    edges, relation = (
        torch.tensor([[0, 1, 2, 5, 7, 7], [1, 2, 3, 3, 0, 0]]),
        torch.tensor([0, 2, 1, 1, 0, 2]),
    )
    attr = torch.cat([relation[:, None].float(), torch.randn(6, 2)], 1)
    model = PyGModel(
        5, 8, 3, 2, conv=conv, edge_dim=3, num_categories=4, num_relations=3, type_columns=COLUMNS
    ).eval()
    plain = PyGModel(
        5, 8, 3, 2, conv=conv, edge_dim=5, num_categories=4, type_columns=COLUMNS
    ).eval()
    plain.load_state_dict(
        {
            key.replace("edge_columns.1", "edge_columns"): value
            for key, value in model.state_dict().items()
        }
    )
    expected = plain(typed_x(), edges, torch.cat([F.one_hot(relation, 3).float(), attr[:, 1:]], 1))
    torch.testing.assert_close(model(typed_x(), edges, attr), expected)
    with pytest.raises(IndexError, match="column 0 holds the category 3"):
        model(typed_x(), edges, attr + 1)
    with pytest.raises(ValueError, match="^num_relations=3 needs edge_attr"):
        PyGModel(5, 8, 3, 2, conv=conv, num_relations=3)
    with pytest.raises(
        ValueError, match="^encode_x=false needs an x of numbers, and nodes of one type"
    ):
        PyGModel(5, 9, 3, 2, conv=conv, num_categories=4, type_columns=COLUMNS, encode_x=False)
