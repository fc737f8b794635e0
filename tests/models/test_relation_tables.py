"""Relations in models: the same output and gradients as with one-hot columns, and what the models refuse."""

import pytest
import torch

from parallel_epochs.models import DeeperGCN, GENConv, RevGNN
from tests.helpers.graphs import random_graph

DATA = random_graph(40, 150, 0)
RELATIONS = torch.randint(
    4, (DATA.num_edges, 1), generator=torch.Generator().manual_seed(0)
).float()
ATTR = {
    num_features: torch.cat([RELATIONS, DATA.edge_attr[:, :num_features]], dim=1)
    for num_features in (0, 3)
}
PTR = torch.tensor([0, 15, 40])


def build(model, num_features, num_layers=3, **options):
    torch.manual_seed(0)
    return model(
        5, 8, 2, num_layers, edge_dim=1 + num_features, num_relations=4, **options
    ).double()


def with_gradients(model, num_features, *more):
    torch.manual_seed(1)
    attr = ATTR[num_features].double().requires_grad_()
    out = model(DATA.x.double(), DATA.edge_index, attr, *more)
    out.square().sum().backward()
    features = {"edge_attr": attr.grad[:, 1:]} if num_features else {}
    return {"out": out.detach()} | features | {name: p.grad for name, p in model.named_parameters()}


def forward_of_one_hot(
    self,
    x,
    edge_index,
    edge_attr,
    *,
    edge_encoder=None,
    edge_table=None,
    plain=GENConv.forward,
    **more,
):
    """GENConv with a column for each relation, and the table as columns of the encoder's weight."""
    if edge_table is None:
        return plain(self, x, edge_index, edge_attr, edge_encoder=edge_encoder, **more)
    columns = torch.nn.functional.one_hot(edge_attr[:, 0].long(), edge_table.size(0)).to(
        edge_attr.dtype
    )
    weight, bias = edge_encoder or (edge_table.new_empty(edge_table.size(1), 0), None)
    return plain(
        self,
        x,
        edge_index,
        torch.cat([columns, edge_attr[:, 1:]], dim=1),
        edge_encoder=(torch.cat([edge_table.t(), weight], dim=1), bias),
        **more,
    )


@pytest.mark.parametrize("num_features", [0, 3])
@pytest.mark.parametrize(
    "model, options, more",
    [
        (DeeperGCN, dict(edge_dropout=0.4), ()),
        (DeeperGCN, dict(gradient_checkpointing=True), ()),
        (DeeperGCN, dict(virtual_node="mean", pool="mean"), (PTR,)),
        (DeeperGCN, dict(aggr="add"), ()),
        (RevGNN, dict(edge_dropout=0.4), ()),
        (RevGNN, dict(tied=True, aggr="softmax"), ()),
    ],
    ids=lambda value: (
        " ".join(map(str, value)) if isinstance(value, dict) else getattr(value, "__name__", "")
    ),
)
def test_a_model_is_the_one_with_one_hot_columns(model, options, more, num_features, monkeypatch):
    ours = with_gradients(build(model, num_features, **options), num_features, *more)
    monkeypatch.setattr(GENConv, "forward", forward_of_one_hot)
    plain = with_gradients(build(model, num_features, **options), num_features, *more)
    assert ours.keys() == plain.keys() and any("relations" in name for name in ours)
    for name, expected in plain.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-6, atol=1e-9, msg=name)
