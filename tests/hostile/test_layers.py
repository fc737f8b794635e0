"""Layers, dropouts, schedules, experiments and benchmarks with arguments that nobody should give."""

import pytest

from tests.helpers.hostile import Case, check
from tests.helpers.running import TOY

pytestmark = pytest.mark.slow

TRAIN = f"pipeline.train {' '.join(TOY)} cache_dir=cache"
PYG = f"{TRAIN} model=pyg model.conv="
PLATEAU = f"{TRAIN} train.schedule=plateau train.plateau_"
RANGE = "model.{} must be in [0, 1), not {}"

CASES = [
    *(
        Case(f"model.conv={conv} {kwargs}", f"{PYG}{conv} 'model.kwargs={kwargs}'", message)
        for conv, kwargs, message in (
            (
                "GATConv",
                "{heads: 0}",
                "model.kwargs: heads of GATConv must be a whole number of at least 1, not 0",
            ),
            (
                "GATConv",
                "{heads: -4}",
                "model.kwargs: heads of GATConv must be a whole number of at least 1, not -4",
            ),
            (
                "GATv2Conv",
                "{heads: 2.5}",
                "model.kwargs: heads of GATv2Conv must be a whole number of at least 1, not 2.5",
            ),
            (
                "GIPAConv",
                "{heads: many}",
                "model.kwargs: heads of GIPAConv must be a whole number of at least 1, not 'many'",
            ),
            ("GATConv", "{heads: 3}", "model.hidden_channels=8 is not a multiple of heads=3"),
            (
                "GATConv",
                "{in_channels: 3}",
                "model.kwargs must not hold in_channels: it follows from model.hidden_channels",
            ),
            ("GATConv", "{dropout: 1.5}", "<*>ValueError: dropout must be in [0, 1], not 1.5<*>"),
            (
                "GCNConv",
                "{normalize: maybe}",
                "model.kwargs: normalize of GCNConv must be true or false, not 'maybe'",
            ),
            ("GCNConv", "3", "model.kwargs must be a mapping, as in {A: 1}, not 3"),
            ("PNAConv", "{}", "model.kwargs lacks aggregators, scalers, deg, which PNAConv needs"),
            (
                "SAGEConv",
                "{aggr: nonsense}",
                "model.kwargs: SAGEConv refuses them: ValueError: <*>",
            ),
            ("AGDNConv", "{hops: -1}", "model.kwargs: AGDNConv takes no hops; it takes <*>"),
        )
    ),
    Case(
        "no name of a layer",
        PYG,
        "model.conv= is not a convolution of torch_geometric.nn: choose one such as GATv2Conv",
    ),
    Case(
        "a function as a layer",
        f"{PYG}os.system",
        "model.conv=os.system is not a convolution of "
        "torch_geometric.nn: choose one such as GATv2Conv",
    ),
    Case(
        "a layer in small letters",
        f"{PYG}gatconv",
        "model.conv=gatconv is not a convolution of torch_geometric.nn; did you mean GATConv?",
    ),
    *(
        Case(f"{key}={value}", f"{TRAIN} model.{key}={value}", RANGE.format(key, shown))
        for key, value, shown in (
            ("input_dropout", "1", "1.0"),
            ("input_dropout", "-1e-9", "-1e-09"),
            ("edge_dropout", "1.5", "1.5"),
        )
    ),
    Case(
        "edge_dropout=nan",
        f"{TRAIN} model.edge_dropout=nan",
        "model.edge_dropout must be a finite number, not nan",
    ),
    Case(
        "nearly all inputs dropped",
        f"{TRAIN} model.input_dropout=0.999999 model.edge_dropout=0.999999",
        None,
    ),
    Case("a factor of 1", f"{PLATEAU}factor=1", "train.plateau_factor must be in (0, 1), not 1.0"),
    Case("a factor of nothing", f"{PLATEAU}factor=1e-300 train.plateau_patience=0", None),
    Case(
        "a patience below 0",
        f"{PLATEAU}patience=-1",
        "train.plateau_patience must be at least 0, not -1",
    ),
    Case(
        "a patience beyond 64 bits",
        f"{PLATEAU}patience=99999999999999999999",
        "train.plateau_patience must be less than 2^63, not 99999999999999999999",
    ),
    Case(
        "a schedule of another trainer",
        "pipeline.train trainer=layout data=digits train.schedule=plateau",
        "train.schedule=plateau is read by trainer=gnn only; this command has trainer=layout. Leave it out<*>",
    ),
    Case(
        "an experiment without its data",
        "pipeline.train +experiment=ogbn_proteins_gat data.folder=nowhere",
        "data.folder=nowhere does not exist or is not a folder",
    ),
    Case(
        "an experiment of few channels",
        "pipeline.train +experiment=ogbn_proteins_agdn data=digits "
        "model.hidden_channels=8 cache_dir=cache",
        "model.hidden_channels=8 is not a multiple of heads=6",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)
