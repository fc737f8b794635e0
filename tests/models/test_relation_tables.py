"""Relations in models: the same output and gradients as with one-hot columns, and what the models refuse."""

import re

import pytest
import torch
from torch_geometric import nn as pyg

from parallel_epochs.models import DeeperGCN, GENConv, RevGNN
from parallel_epochs.models.networks.blockwise import InBlocks
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
        (DeeperGCN, dict(block="dense", gradient_checkpointing=True), ()),
        (DeeperGCN, dict(virtual_node="mean", block="res", pool="mean"), (PTR,)),
        (DeeperGCN, dict(aggr="add", msg_norm=True), (None, torch.linspace(1, 2, 40))),
        (RevGNN, dict(edge_dropout=0.4), ()),
        (RevGNN, dict(tied=True, num_groups=4, aggr="softmax"), ()),
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


@pytest.mark.parametrize("num_features", [0, 3])
def test_the_unfolded_model_is_the_folded_one(num_features):
    folded, unfolded = (
        with_gradients(
            build(DeeperGCN, num_features, edge_dropout=0.4, fold_edge_encoder=fold), num_features
        )
        for fold in (True, False)
    )
    hooked = build(DeeperGCN, num_features, edge_dropout=0.4)
    seen = []
    hooked.relations[1].register_forward_hook(lambda *_: seen.append(1))
    for result in (unfolded, with_gradients(hooked, num_features)):
        for name, expected in folded.items():
            torch.testing.assert_close(result[name], expected, msg=name)
    assert seen == [1]


@pytest.mark.parametrize("num_features", [0, 3])
@pytest.mark.parametrize(
    "model, option", [(DeeperGCN, "gradient_checkpointing"), (RevGNN, "reversible")]
)
def test_recomputation_changes_no_bit(model, option, num_features):
    results = []
    for flag in (True, False):
        net = build(model, num_features, 4, dropout=0.3, edge_dropout=0.3, **{option: flag}).float()
        torch.manual_seed(1)
        out = net(DATA.x, DATA.edge_index, ATTR[num_features])
        out.square().sum().backward()
        results.append({"out": out.detach()} | {name: p.grad for name, p in net.named_parameters()})
    assert not [
        name for name, value in results[0].items() if not torch.equal(value, results[1][name])
    ]


@pytest.mark.parametrize(
    "num_features, options", [(0, {}), (3, {}), (3, dict(fold_edge_encoder=False))]
)
def test_predictions_in_blocks_are_those_of_one_forward(num_features, options):
    model = build(DeeperGCN, num_features, **options).float().eval()
    with torch.no_grad():
        expected = model(DATA.x, DATA.edge_index, ATTR[num_features])
    ours = InBlocks(model, num_rows=7, num_edges=50).eval()(
        DATA.x, DATA.edge_index, ATTR[num_features]
    )
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_every_parameter_gets_a_finite_gradient(autocast):
    for kind in (DeeperGCN, RevGNN):
        model = build(kind, 3).float()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(DATA.x, DATA.edge_index, ATTR[3])
        out.float().square().sum().backward()
        assert all(
            p.grad is not None and p.grad.isfinite().all() and p.grad.any()
            for p in model.parameters()
        )


@pytest.mark.parametrize("kernel", ["pyg", "reference", "fused"])
@pytest.mark.parametrize("features", [0, 3])
def test_a_layer_in_every_kernel(kernel, features):
    torch.manual_seed(0)
    conv = GENConv(5, 5, kernel=kernel)
    table, encoder = torch.randn(4, 5), (torch.randn(5, 3), torch.randn(5)) if features else None
    encoded = table[RELATIONS.long().squeeze(1)]
    if encoder:
        encoded = encoded + torch.nn.functional.linear(DATA.edge_attr, *encoder)
    torch.testing.assert_close(
        conv(DATA.x, DATA.edge_index, ATTR[features], edge_encoder=encoder, edge_table=table),
        pyg.GENConv.forward(conv, DATA.x, DATA.edge_index.as_tensor().long(), encoded),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("hooked", [False, True])
def test_a_layers_own_encoder_reads_the_other_columns(hooked):
    torch.manual_seed(0)
    conv, table = GENConv(5, 5, edge_dim=3), torch.randn(4, 5)
    expected = conv(
        DATA.x,
        DATA.edge_index,
        ATTR[3],
        edge_table=table,
        edge_encoder=(conv.lin_edge.weight, conv.lin_edge.bias),
    )
    if hooked:
        conv.lin_edge.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(conv(DATA.x, DATA.edge_index, ATTR[3], edge_table=table), expected)
    conv.kernel = "pyg"
    with pytest.raises(ValueError, match="edge_table works without PyG's own code only"):
        conv(DATA.x, DATA.edge_index, ATTR[3], edge_table=table)


def test_wrong_relations_are_refused():
    for options in ({}, dict(fold_edge_encoder=False)):
        model = build(DeeperGCN, 3, **options).float()
        for wrong in (4.0, -1.0, 0.5):
            attr = ATTR[3].clone()
            attr[17, 0] = wrong
            with pytest.raises(
                IndexError, match=f"the relation {wrong:g} at edge 17, but relations are the whole"
            ):
                model(DATA.x, DATA.edge_index, attr)
    for model in (DeeperGCN, RevGNN):
        with pytest.raises(
            ValueError, match="built for num_relations=4, but there is no edge_attr"
        ):
            build(model, 0).float()(DATA.x, DATA.edge_index)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(num_relations=-1), "num_relations must be at least 0, not -1"),
        (dict(num_relations=2.0), "num_relations must be an integer, not 2.0"),
        (
            dict(num_relations=3),
            "num_relations=3 needs edge_attr, whose column 0 holds the relation",
        ),
        (dict(num_relations=3, edge_dim=0), "num_relations=3 needs edge_attr"),
        (
            dict(num_relations=3, edge_dim=2, edge_tables=[3, 4]),
            "num_relations=3 cannot be combined with edge_tables=[3",
        ),
        (dict(type_columns=[[(0, 5)]]), "type_columns has 1 types, but num_categories=0"),
        (
            dict(type_columns=[[(0, 5)], []], num_categories=2, node_tables=[2] * 5),
            "type_columns needs an encoder of x",
        ),
        (
            dict(type_columns=[[(0, 5)]], num_categories=1, encode_x=False),
            "type_columns needs an encoder of x",
        ),
        *(
            (
                dict(type_columns=[[(0, 5), wrong]], num_categories=1),
                f"type_columns has the range [{wrong[0]}, {wrong[1]})",
            )
            for wrong in ((-1, 2), (2, 2), (3, 6))
        ),
    ],
)
def test_impossible_models(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        DeeperGCN(5, 8, 2, 2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_compile_without_a_graph_break(kernel):
    torch._dynamo.reset()
    model = build(DeeperGCN, 3, kernel=kernel, dropout=0.0).float()
    arguments = DATA.x, DATA.edge_index.as_tensor().long(), ATTR[3]
    expected = model(*arguments)
    expected.square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    out.square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(
            p.grad, gradients[name], rtol=1e-4, atol=1e-4 * float(gradients[name].abs().max())
        )
