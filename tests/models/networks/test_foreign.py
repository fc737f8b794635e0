"""Models whose layers others wrote: PyG's convolutions by name, and a user's class by its path."""

import pytest
import torch
import torch_geometric.nn as pyg

from parallel_epochs.models.networks import pyg as stacks
from parallel_epochs.models.networks.custom import CustomModel
from parallel_epochs.models.networks.foreign import ForeignError, naming_failures, try_forward
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.pipeline.run.errors import Stopped
from tests.helpers import building as build
from tests.helpers.graphs import random_graph
from tests.helpers.nets import Lazy, Net, Third, Weighted
from tests.helpers.running import TOY

DATA = random_graph(60, 400, 0)
# Convolutions, what they need, how edge features come to them, and whether a node reads only the edges that enter it.
CONVS = [
    ("GATv2Conv", {"heads": 2}, "edge_attr", True),
    ("GATConv", {"heads": 2, "concat": False}, "edge_attr", True),
    ("SAGEConv", {"aggr": "max"}, "", True),
    ("GCNConv", {}, "", False),
    ("GINConv", {}, "", True),
    ("GINEConv", {}, "edge_attr", True),
    ("TransformerConv", {"heads": 4}, "edge_attr", True),
    ("GENConv", {}, "edge_attr", True),
    ("EdgeConv", {}, "", True),
    ("ChebConv", {"K": 2}, "", False),
    ("GCN2Conv", {"alpha": 0.1}, "", False),
    ("CGConv", {}, "edge_attr", True),
    ("NNConv", {}, "edge_attr", True),
    ("TAGConv", {"K": 2}, "", False),
    ("ResGatedGraphConv", {"edge_dim": None}, "", True),
]


@pytest.mark.parametrize("conv, kwargs, argument, splits", CONVS, ids=[case[0] for case in CONVS])
def test_layers_of_any_convolution(conv, kwargs, argument, splits):
    torch.manual_seed(0)
    model = PyGModel(5, 8, 2, 2, edge_dim=3, conv=conv, kwargs=kwargs).eval()
    assert model.edge_argument == argument and model.splits is splits
    assert type(model.layers[0].conv) is stacks.FUSED.get(getattr(pyg, conv), getattr(pyg, conv))
    inputs = DATA.x, DATA.edge_index.long(), DATA.edge_attr
    with torch.no_grad():
        whole, plain = model(*inputs), model(inputs[0], inputs[1].as_tensor(), inputs[2])
        assert (model(*inputs[:2], inputs[2] + 1) - whole).abs().max() > 1e-6 or not argument
    torch.testing.assert_close(plain, whole, rtol=1e-4, atol=1e-5)


STACKS = [
    {"num_categories": 2, "residual": True, "activation": "elu"},
    {"residual": False, "root_weight": True, "norm_last": False},
    {"feed_forward": True, "activation": "gelu", "dropout": 0.5},
    {"tied": True, "encode_x": False, "activation": "none", "norm": "none"},
]


@pytest.mark.parametrize("options", STACKS, ids=["plain", "root", "feed_forward", "tied"])
def test_a_stack_by_hand(options):
    torch.manual_seed(0)
    width, categories = 8, options.get("num_categories", 0)
    x, edges = DATA.x, DATA.edge_index.long()
    if "encode_x" in options:
        x = DATA.x.repeat(1, 2)[:, :width]
    model = PyGModel(
        x.size(1) - categories, width, 2, 3, conv="SAGEConv", **{"dropout": 0.0} | options
    ).eval()
    h = x
    if categories:
        x = torch.cat([x[:, :-categories], torch.eye(2)[torch.arange(60) % 2]], dim=1)
        h = torch.cat([x[:, :-categories], model.category_encoder(x[:, -categories:])], dim=1)
    h = h if model.node_encoder is None else model.node_encoder(h)
    activate = stacks.ACTIVATIONS[options.get("activation", "relu")]
    for number, layer in enumerate(model.layers):
        conv, bare = layer.conv, number == 2 and not options.get("norm_last", True)
        out = conv.lin_l(pyg.MeanAggregation()(h[edges[0]], edges[1], dim_size=60))
        out = out + conv.lin_r(h)
        if layer.root is not None:
            out = out + h @ layer.root.weight.t() + layer.root.bias
        out = out if bare else activate(layer.norm(out))
        h = h + out if options.get("residual", True) else out
        if layer.after is not None:
            wide = activate(h @ layer.after.lin1.weight.t() + layer.after.lin1.bias)
            h = layer.after.norm(h + wide @ layer.after.lin2.weight.t() + layer.after.lin2.bias)
    torch.testing.assert_close(model(x, edges), model.head(h))
    convs = [layer.conv for layer in model.layers]
    assert (convs[1] is convs[2]) == ("tied" in options) and convs[0] is not convs[1]
    if "dropout" in options:
        assert not torch.equal(*(model.train()(x, edges) for _ in range(2)))


def test_a_list_is_given_where_a_layer_takes_a_tensor():
    given = {"aggregators": ["mean", "max"], "scalers": ["amplification"], "deg": [1, 2, 4]}
    with torch.device("meta"):  # as a model is built first
        model = PyGModel(5, 8, 2, 2, conv="PNAConv", kwargs=given)
    assert model.layers[0].conv.aggr_module.init_avg_deg_lin == pytest.approx(10 / 7)
    with pytest.raises(
        ValueError, match="kwargs: PNAConv refuses them: ValueError: too many dimensions"
    ):
        PyGModel(5, 8, 2, 2, conv="PNAConv", kwargs=given | {"deg": ["a"]})


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"conv": "GAT"},
            "conv=GAT is a whole model: set model=custom model.path=torch_geometric.nn.GAT",
        ),
        (
            {"conv": "sageconv"},
            "conv=sageconv is not a convolution of torch_geometric.nn: choose one such as GATv2Conv",
        ),
        ({"conv": "RGCNConv", "kwargs": {}}, "kwargs lacks num_relations, which RGCNConv needs"),
        (
            {"conv": "HANConv"},
            "conv=HANConv needs x_dict, edge_index_dict; a layer of model=pyg has only x",
        ),
        (
            {"conv": "SAGEConv", "kwargs": {"heads": 2}},
            "kwargs: SAGEConv refuses them: TypeError: .*heads",
        ),
        (
            {"conv": "GINConv", "kwargs": {"nn": 1}},
            "kwargs must not hold nn: it follows from model.hidden_channels",
        ),
        *(
            (
                {"conv": "GATConv", "kwargs": {"heads": heads}},
                f"kwargs: heads of GATConv must be a whole number of at least 1, not {heads!r}",
            )
            for heads in (0, -4, 2.0, "two")
        ),
        (
            {"conv": "AGDNConv", "kwargs": {"num_hops": 0}},
            r"kwargs: AGDNConv refuses them: ValueError: num_hops must be in \[1, 1000\), not 0",
        ),
        (
            {"conv": "AGDNConv", "kwargs": {"num_hops": 10**9}},
            "kwargs: AGDNConv refuses them: .*, not 1000000000",
        ),
        (
            {"conv": "GATConv", "kwargs": {"add_self_loops": "maybe"}},
            "kwargs: add_self_loops of GATConv must be true or false, not 'maybe'",
        ),
        ({"kwargs": {"heads": 3}}, "hidden_channels=8 is not a multiple of heads=3"),
        (
            {"conv": "GCNConv", "kwargs": {"cached": True}},
            "kwargs: cached=true keeps the edges of the first batch",
        ),
        (
            {"encode_x": False},
            "encode_x=false needs an x of hidden_channels=8 columns, but x has 5",
        ),
        ({"norm": "graph"}, "norm=graph is unknown; choose one of layer, batch, none"),
        ({"activation": "sine"}, "activation=sine is unknown; choose one of relu, leaky_relu"),
        *(
            ({name: 1.0}, rf"{name} must be in \[0, 1\), not 1.0")
            for name in ("dropout", "input_dropout", "edge_dropout")
        ),
    ],
)
def test_what_no_stack_can_be(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        PyGModel(5, 8, 2, 2, edge_dim=3, **options)


def custom(name, **options):
    return CustomModel(
        5, 8, 2, 3, **{"edge_dim": 3, "path": f"tests.helpers.nets.{name}", **options}
    )


def test_a_class_gets_what_it_names():
    model = custom("Net", kwargs={"width": 4})
    assert (
        isinstance(model.model, Net)
        and model.model.first.out_channels == 4
        and model.model.first.edge_dim == 3
    )
    assert model.edge_argument == "edge_attr" and model.title == "tests.helpers.nets.Net"
    sage = custom("", path="torch_geometric.nn.GraphSAGE")
    assert (
        sage.model.in_channels,
        sage.model.hidden_channels,
        sage.model.num_layers,
        sage.model.out_channels,
    ) == (5, 8, 3, 2) and sage.edge_argument == ""
    assert custom("", path="torch_geometric.nn.GAT").model.convs[0].edge_dim == 3
    assert custom("", path="torch_geometric.nn.GCN", edge_dim=1).edge_argument == "edge_weight"


def test_edge_features_reach_the_argument_that_takes_them():
    x, edges = DATA.x, DATA.edge_index.long()
    for name, kind, edge_dim, argument, shape in (
        ("Lazy", Lazy, 3, "", None),
        ("Weighted", Weighted, 3, "", None),
        ("Weighted", Weighted, 1, "edge_weight", (800,)),
        ("Third", Third, 3, "features", (800, 3)),
        ("Third", Third, None, "", None),
    ):
        model = custom(name, edge_dim=edge_dim)
        assert isinstance(model.model, kind) and model.edge_argument == argument
        assert model(
            x, edges, None if edge_dim is None else DATA.edge_attr[:, :edge_dim]
        ).shape == (60, 2)
        seen = getattr(model.model, "seen", None)
        assert (None if seen is None else tuple(seen.shape)) == shape


NOWHERE = {
    "": "path= does not name a class: give it as package.module.Class",
    "Net": "path=Net does not name a class",
    "no_such_module.Net": "path=no_such_module.Net cannot be imported: ModuleNotFoundError: No module named "
    "'no_such_module'; install it, or put it into the current folder or into PYTHONPATH",
    "tests.helpers.nets.None_": "path=tests.helpers.nets.None_: tests.helpers.nets has no None_",
    "tests.helpers.nets.NOT_A_CLASS": "path=tests.helpers.nets.NOT_A_CLASS is not a torch.nn.Module",
    "collections.OrderedDict": "path=collections.OrderedDict is not a torch.nn.Module",
}


def test_a_path_that_leads_nowhere(configure):
    config = configure("model=custom", "model.path=x.y")
    for config.model.path, message in NOWHERE.items():
        with pytest.raises(ValueError, match=f"^model.{message}"):
            build.check(config)


PREDICT_NOTHING = {
    "Flat": r"Flat returns torch.float32 of shape \[11\] for 11 nodes; it must return floats of shape "
    r"\[num_nodes, 3\], a column for each class or task",
    "Pair": r"Pair returns a tuple; it must return a tensor \[num_nodes, 3\]",
    "Broken": r"Broken fails on x \[11, 12\], edge_index \[2, 1009\] and edge_attr \[1009, 8\]: RuntimeError: .*mat1 "
    "and mat2",
    "Frozen": r"Frozen returns torch.float32 of shape \[11, 2\]",
    "PairInTraining": r"PairInTraining returns a tuple in training; it must return a tensor \[num_nodes, 3\]",
    "Detached": "Detached returns a tensor without a gradient in training",
    "Endless": r"Endless returns -?inf for x in \[0, 1\]; it must return finite numbers",
    "Exits": r"Exits fails on .*: it calls sys.exit\(0\) \(.*tests/helpers/nets.py, line [0-9]+\)",
}


def test_a_model_that_predicts_nothing_is_refused_before_long_work(configure):
    config = configure(*TOY[:5], "model=custom", "model.path=x.y")
    for name, message in PREDICT_NOTHING.items():
        config.model.path = f"tests.helpers.nets.{name}"
        with pytest.raises(ValueError, match=f"^tests.helpers.nets.{message}"):
            build.open_graph(config)
    with pytest.raises(
        ValueError, match="^tests.helpers.nets.Frozen has no parameters: there is nothing to train"
    ):
        try_forward(
            custom("Frozen"), "tests.helpers.nets.Frozen", num_columns=5, out_channels=2, edge_dim=3
        )


def test_a_batch_is_checked_as_the_tiny_graph_is():
    x, edges = DATA.x, DATA.edge_index.long()
    assert custom("Double")(x, edges).dtype == torch.float32
    with pytest.raises(
        ForeignError, match=r"^tests.helpers.nets.Flat returns .* \[60\] for 60 nodes in training; "
    ):
        custom("Flat")(x, edges)
    with torch.no_grad():  # as in an evaluation
        assert custom("Detached")(x, edges).shape == (60, 2)
    with pytest.raises(MemoryError), naming_failures("a model", x, edges, None):
        raise MemoryError
    with pytest.raises(Stopped), naming_failures("a model", x, edges, None):
        raise Stopped(0, "between two layers")
