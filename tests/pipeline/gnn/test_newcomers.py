"""New rows with edges to known nodes get the predictions of tables that have grown by them."""

import copy
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import open_other
from parallel_epochs.pipeline.data.tables.values import KNOWN
from parallel_epochs.pipeline.gnn import fusion, neighborhood, new_data
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.ids import ids_of
from parallel_epochs.pipeline.gnn.in_memory import written
from parallel_epochs.pipeline.gnn.newcomers import Newcomers
from parallel_epochs.pipeline.gnn.simple import linear, trees
from parallel_epochs.pipeline.gnn.simple.inputs import Inputs
from parallel_epochs.pipeline.gnn.simple.summaries import summarise
from tests.pipeline.test_model import SMALL, people

ROWS = [
    {"id": "n1", "age": 40, "job": "cook", "note": "likes soup", "born": "1990-05-01"},
    {"id": "n2", "age": None, "job": None, "note": None, "born": None},
]
EDGES = [
    {"source": "n1", "target": "p3", "sum": 0.5},
    {"source": "p4", "target": "n1", "sum": None},
    {"source": "n2", "target": "n1", "sum": 0.2},
    {"source": "p9", "target": "n2", "sum": 0.9},
    {"source": "n2", "target": "p9", "sum": 0.1},
]
KEYS = {
    "data.nodes.label": "town",
    "data.nodes.features": ["age"],
    "data.nodes.dates": ["born"],
    "data.nodes.categories": ["job"],
    "data.nodes.text": ["note"],
    "data.edges.features": ["sum"],
}
# Every kind of column.
ALL = KEYS | {
    "data.nodes.features": ["age", "pay", "size"],
    "data.nodes.log1p": ["pay"],
    "data.nodes.quantiles": ["size"],
    "data.nodes.standardize": True,
    "data.nodes.categories": ["job", "shoe"],
    "data.nodes.text_chars": ["town2"],
    "data.nodes.text_tags": ["tags"],
    "data.empty": "flag",
    "data.edges.weight": "weight",
    "data.edges.log1p": ["sum"],
    "data.edges.standardize": True,
    "data.edges.dates": ["day"],
    "data.edges.relation": "kind",
    "data.edges.directed_relations": True,
    "task.base": "none",
}
MORE = {"pay": "1e5", "size": "-0.5", "shoe": 42.0, "town2": "Münster", "tags": "a::b| c"}
WIDE = [
    {**ROWS[0], **MORE},
    {**ROWS[1], **dict.fromkeys(MORE), "age": " +5", "shoe": "NaN", "pay": "nan", "size": "1e-9"},
    {
        **ROWS[0],
        **MORE,
        "id": "n3",
        "age": 1,
        "born": "2024-05-31 18:00 +02:00",
        "pay": "0.1e1",
        "tags": " ",
        "note": "\n",
    },
]
WIDE_EDGES = [{"weight": 1, "day": "2020-01-01", "kind": "gift", **edge} for edge in EDGES] + [
    {"source": "n1", "target": "p3", "sum": "1e1", "weight": "2.5", "day": None, "kind": "loan"},
    {
        "source": "p3",
        "target": "n1",
        "sum": "7",
        "weight": None,
        "day": "1999-01-01 01:00",
        "kind": None,
    },
    {
        "source": "n3",
        "target": "n3",
        "sum": 3.0,
        "weight": " 4",
        "day": "2021-02-28",
        "kind": "loan",
    },
]


def tables():
    """People with a job, a note and a birthday."""
    nodes, edges = people()
    rng = np.random.default_rng(1)
    nodes["job"] = rng.choice(["cook", "smith", "baker"], 60)
    nodes["note"] = rng.choice(["likes soup", "likes bread and soup", "iron"], 60)
    nodes["born"] = rng.choice(["1980-01-31", "1999-12-01"], 60)
    return nodes, edges.drop(columns="kind")


def wide_tables():
    """People with a column of every kind."""
    (nodes, edges), rng = tables(), np.random.default_rng(2)
    nodes = nodes.assign(
        pay=rng.random(60).round(2),
        size=rng.random(60),
        shoe=rng.choice([40, 42], 60),
        town2=rng.choice(["Ulm", "Münster"], 60),
        tags=rng.choice(["a::b|c", "c", "a::d"], 60),
    )
    nodes.loc[3, "pay"] = None
    edges = edges.assign(
        weight=1.5,
        day=rng.choice(["2020-01-01", "2021-07-05", None], len(edges)),
        kind=people()[1]["kind"],
    )
    edges.loc[edges.index[0], "sum"] = None
    return nodes, edges


def train(folder, data=None, **more):
    return pe.train(
        data or tables(), folder=folder / "run", cache_dir=folder / "cache", **SMALL | KEYS | more
    ).model


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A run on columns of every kind."""
    return train(tmp_path_factory.mktemp("wide"), wide_tables(), **ALL)


@pytest.fixture(scope="module", params=[False, True], ids=["weights", "standardised"])
def based(request, tmp_path_factory):
    """A run on a chain of people whose network reads the scores of a simple method."""
    nodes, edges = tables()
    edges = edges[:59].assign(
        source=nodes["id"][:-1].to_numpy(),
        target=nodes["id"][1:].to_numpy(),
        sum=np.linspace(1, 0, 59),
    )
    return train(
        tmp_path_factory.mktemp("based"),
        (nodes, edges),
        **{
            "data.nodes.text": [],
            "task.base": "linear",
            "task.candidate": "offset",
            "data.edges.standardize": request.param,
        },
    )


def grown(model, data, rows, edges):
    """Predict the grown tables, in which training nodes alone have labels."""
    nodes, links = data
    split = model.predict(table=True)["split"]
    nodes.loc[(split != "train").to_numpy(), "town"] = None
    texts = [
        pd.DataFrame({name: new.texts(given, name) for name in table})
        for new, given, table in (
            (model.newcomers()._encoder, rows, rows[0]),
            (model.newcomers()._encoder, edges, edges[0]),
        )
    ]
    both = [pd.concat([table.astype(object), more]) for table, more in zip((nodes, links), texts)]
    both = [
        table.apply(
            lambda column: pd.array(
                [None if pd.isna(cell) else str(cell) for cell in column], "string"
            )
        )
        for table in both
    ]
    return model.predict(tuple(both), table=True, **{"data.known_labels": "all"}).tail(len(rows))


def assert_alike(found, expected):
    assert found["id"].tolist() == expected["id"].tolist() and list(found.columns) == list(
        expected.columns
    )
    assert found["class"].tolist() == expected["class"].tolist() and set(found["split"]) == {
        "unknown"
    }
    np.testing.assert_allclose(
        found.iloc[:, 3:].to_numpy(float), expected.iloc[:, 3:].to_numpy(float), atol=1e-5
    )


def assert_same(model, data=None, rows=ROWS, edges=EDGES):
    found = model.newcomers().predict(rows, edges)
    assert_alike(found, grown(model, data or tables(), rows, edges))
    return found


def test_new_rows_get_the_predictions_of_grown_tables(wide):
    newcomers = wide.newcomers()
    assert newcomers.needs_graph == ""
    found = assert_same(wide, wide_tables(), WIDE, WIDE_EDGES)
    asked = newcomers.encode_rows(WIDE, WIDE_EDGES)
    near, whole = newcomers.forward([newcomers.take(asked)]), newcomers._predict_grown(asked).rows
    torch.testing.assert_close(near, whole, atol=1e-5, rtol=0)
    rows = newcomers.predict(WIDE[:1])
    assert (
        len(rows) == 1 and abs(rows.iloc[0, 3:] - found.iloc[0, 3:]).max() > 1e-6
    )  # its edges count
    assert newcomers.predict([{**WIDE[2], "age": True}]).equals(newcomers.predict(WIDE[2:]))


def test_cells_are_encoded_as_the_reader_of_tables_encodes_them(wide):
    newcomers, run = wide.newcomers(), wide.run
    asked = newcomers.encode_rows(WIDE, WIDE_EDGES)
    ids = [
        "n1",
        "n2",
        "n3",
        *dict.fromkeys(
            end
            for edge in WIDE_EDGES
            for end in (edge["source"], edge["target"])
            if end.startswith("p")
        ),
    ]
    frames = []
    for rows in ([{**(WIDE[min(place, 2)]), "id": id} for place, id in enumerate(ids)], WIDE_EDGES):
        frames.append(
            pd.DataFrame(
                {name: pd.array(newcomers._encoder.texts(rows, name), "string") for name in rows[0]}
            )
        )
    with written(tuple(frames), run.config.data, run.folder, {}) as found:
        given = keys.replaced(GNNPredictConfig(str(run.folder)), found)
        config = keys.replaced(run.config, new_data.choose(run, given.data))
        config.data.leave_labels()
        part = open_other(config.data, newcomers._learned, run.config.cache_dir)
    torch.testing.assert_close(asked.nodes.x, part.x[:3].clone(), atol=0, rtol=0)
    names = np.array([*wide.ids, "n1", "n2", "n3"])
    expected = {
        (source, target): row
        for source, target, row in zip(
            *ids_of(part, None)[part.edge_index.as_tensor().numpy()], part.edge_attr
        )
    }
    assert len(expected) == asked.nodes.edges.size(1) == 9 and asked.nodes.edge_attr.size(1) > 10
    encoder = copy.copy(newcomers._encoder)
    encoder._fitted = copy.deepcopy(encoder._fitted)
    encoder._fitted.mean[1] = math.log(1.5)
    known, empty = encoder._of_edges(1, np.array([0.5, np.nan]))[0]
    assert known == KNOWN and np.isnan(empty)  # the mean is not taken for an empty cell
    for source, target, row in zip(*names[asked.nodes.edges.numpy()], asked.nodes.edge_attr):
        torch.testing.assert_close(row, expected[source, target].clone(), atol=0, rtol=0)


@pytest.mark.parametrize(
    "row, edge, message",
    [
        ({"age": ...}, {}, r"rows\[0\] lacks the column 'age'; write null for an empty cell"),
        ({"id": "p1"}, {}, "rows: 'p1' is known already"),
        ({"id": None}, {}, r"rows\[0\]: id is empty; give the new row an id"),
        (
            {"job": "king"},
            {},
            r"rows\[0\]: the cell of job holds 'king', a category that the training did not see",
        ),
        (
            {"age": "old"},
            {},
            "the cell of age holds 'old', which is not a finite number of float32",
        ),
        ({"age": "1e39"}, {}, "holds '1e39', which is not a finite number"),
        ({"age": "1,5"}, {}, "holds '1,5', which is not a finite number"),
        ({"born": "2023-02-29"}, {}, "the cell of born holds '2023-02-29', which is not a date"),
        ({"pay": -1}, {}, "the cell of pay holds -1, but its logarithm needs values above -1"),
        ({"age": [1]}, {}, r"the cell of age must be a text, a number or null, and is \[1\]"),
        ({"hat": 1}, {}, "has the column 'hat', which the model does not read"),
        (
            {},
            {"kind": "loot"},
            r"edges\[0\]: the cell of kind holds 'loot', a relation that the training did not see",
        ),
        ({}, {"target": "p99"}, r"edges\[0\]: 'p99' is neither a known id nor that of a new row"),
        ({}, {"source": "p1"}, r"edges\[0\]: neither 'p1' nor 'p3' is a new row"),
    ],
    ids=str,
)
def test_a_wrong_row_is_named(wide, row, edge, message):
    row = {name: cell for name, cell in (WIDE[0] | row).items() if cell is not ...}
    with pytest.raises(ValueError, match=message):
        wide.newcomers().predict([row], [WIDE_EDGES[0] | edge])
    with pytest.raises(ValueError, match="rows must have different ids"):
        wide.newcomers().predict([WIDE[0], WIDE[0]])
    with pytest.raises(
        ValueError, match="max_neighbors=0: give a number of at least 1, or leave it out"
    ):
        wide.newcomers().predict([WIDE[0]], max_neighbors=0)


def test_numbers_are_encoded_as_their_texts_are(wide):
    numbers = ("age", "pay", "size")
    rows = [
        {**WIDE[0], "id": f"n{place}", **dict.fromkeys(numbers, 0.1 + place)} for place in range(3)
    ]
    texts = [row | {name: str(row[name]) for name in numbers} for row in rows]
    found, expected = (wide.newcomers().encode_rows(given, []).nodes.x for given in (rows, texts))
    assert torch.equal(found, expected)
    with pytest.raises(
        ValueError, match=r"rows\[1\]: the cell of size holds 'inf', which is not a finite number"
    ):
        wide.newcomers().encode_rows([rows[0], rows[1] | {"size": math.inf}], [])


def test_requests_that_are_answered_together_do_not_meet(wide):
    newcomers = wide.newcomers()
    same = {**WIDE[2], "id": "n1"}
    requests = [
        (WIDE, WIDE_EDGES),
        ([{**WIDE[0], "age": "old"}], []),
        ([same], [WIDE_EDGES[0]]),
        ([WIDE[0]], [WIDE_EDGES[1]]),
    ]
    found = newcomers.predict_each(requests)
    assert "holds 'old'" in str(found[1]) and isinstance(found[1], ValueError)
    for place in (0, 2, 3):
        alone = newcomers.predict(*requests[place])
        assert_alike(found[place].frame(), alone)
    assert abs(found[2].frame().iloc[0, 3:] - found[3].frame().iloc[0, 3:]).max() > 1e-6


def test_a_bound_on_neighbours_is_told_and_drawn_by_a_hash(wide):
    newcomers = wide.newcomers()
    one, rows = WIDE_EDGES[0], WIDE[:1]
    exact, bounded = (newcomers.predict(rows, [one], max_neighbors=most) for most in (1000, 2))
    assert exact["bounded"].tolist() == [False] and bounded["bounded"].tolist() == [True]
    assert_alike(exact.drop(columns="bounded"), newcomers.predict(rows, [one]))
    assert abs(exact.iloc[0, 3:-1] - bounded.iloc[0, 3:-1]).max() > 1e-6
    assert bounded.equals(newcomers.predict(rows, [one], max_neighbors=2))
    asked = newcomers.encode_rows(rows, [one])
    part = newcomers.take(asked, 2)
    assert part.ptr.diff().tolist()[:2] == [
        1,
        3,
    ]  # two of the known node, and the one of the new row
    indptr, src = newcomers._graph.edge_index.get_csc()[0]
    known = int(part.nodes[1])
    own = src[indptr[known] : indptr[known + 1]].tolist()
    drawn = part.nodes[part.src[1:3]].tolist()
    assert len(set(drawn)) == 2 and {*drawn} < {*own} and drawn == sorted(drawn)
    other = copy.copy(newcomers._nearby.around)
    draws = set()
    for other._key in range(20):
        draws.add(tuple(other.take(asked.nodes, 2, 2).nodes.tolist()))
    assert len(draws) > 5


def test_a_large_neighbourhood_is_left_to_a_pass_over_the_graph(wide, monkeypatch):
    expected = wide.newcomers().predict(WIDE, WIDE_EDGES)
    monkeypatch.setattr(neighborhood, "MOST_EDGES", 10)
    asked = wide.newcomers().encode_rows(WIDE, WIDE_EDGES)
    assert wide.newcomers().take(asked) is None
    assert_alike(wide.newcomers().predict(WIDE, WIDE_EDGES), expected)


WITHOUT_NOTE = [{name: cell for name, cell in row.items() if name != "note"} for row in ROWS]


def open_with(run, monkeypatch, name, share):
    """Open a run as if its simple method were another one."""
    setup, kept = Newcomers(run)._setup, fusion.read_kept(run)
    data, train = setup.bare, setup.bare.train_mask
    inputs = Inputs(data, setup.task)
    fits = {
        "mean": lambda: {},
        "linear": lambda: linear.fit_hops(inputs, train, (0, 1, 2), "each", 1.0),
        "propagation": lambda: {
            "weight": int(not run.config.data.edges.standardize),
            "second": 3.0,
        },
        "trees": lambda: trees.fit_forest(inputs, ("own", "labels"), 0, 5, train),
        "structure": lambda: trees.fit_forest(inputs, ("own", "degrees"), 0, 5, train),
    }
    fitted = {
        "name": name.replace("structure", "trees"),
        "logits": {},
        "models": [{"mean": inputs.labels.mean(train), **fits[name]()}],
    }
    monkeypatch.setattr(fusion, "read_kept", lambda run: replace(kept, share=share, fitted=fitted))
    return Newcomers(run)


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("name", ["mean", "linear", "propagation", "trees"])
def test_simple_methods_score_new_rows_from_their_neighbourhood(based, monkeypatch, name, share):
    newcomers = open_with(based.run, monkeypatch, name, share)
    one = newcomers.encode_rows(WITHOUT_NOTE[:1], [EDGES[0] | {"sum": 0.9}])
    both = [newcomers.encode_rows(WITHOUT_NOTE, EDGES), one]
    parts = [newcomers.take(asked) for asked in both]
    near, whole = (
        newcomers.forward(parts),
        torch.cat([newcomers._predict_grown(asked).rows for asked in both]),
    )
    assert newcomers.needs_graph == "" and all(
        len(part.src) < newcomers._graph.num_edges / 2 for part in parts
    )
    torch.testing.assert_close(near, whole, atol=1e-5, rtol=0)
    if name == "trees":  # their thresholds hide small differences
        for asked, part in zip(both, parts):  # no feature of the second one's edges is negative
            nearby, whole = newcomers._nearby, newcomers.grow(asked)
            own = nearby._base.graph(nearby.around.join([part]), [part])
            columns = [
                summarise(Inputs(data, newcomers._setup.task), data.train_mask, ("labels",))[new]
                for data, new in ((own, own.target), (whole.bare, slice(-part.num_new, None)))
            ]
            torch.testing.assert_close(*columns, atol=1e-6, rtol=0)


def test_simple_methods_that_read_more_take_a_pass_over_the_graph(based, monkeypatch):
    assert (
        "reads the whole graph" in open_with(based.run, monkeypatch, "structure", 1.0).needs_graph
    )
    monkeypatch.undo()
    newcomers = open_with(based.run, monkeypatch, "propagation", 1.0)
    negative = newcomers.encode_rows(WITHOUT_NOTE[:1], [EDGES[0] | {"sum": -1}])
    if based.run.config.data.edges.standardize:  # no edge is weighed
        assert newcomers.take(negative) is not None
        return
    with pytest.raises(
        ValueError, match="a feature of a new edge is negative, and the simple method of the run"
    ):
        newcomers.take(negative)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"task.base": "diffusion"},
        {"task.base": "none", "train.label_input": 0.5},
        {"task.base": "propagation", "task.candidate": "offset"},
        {"task.base": "smoothed", "data.propagate": 1},
        {"task.base": "linear", "data.nodes.text_features": "scores", "task.candidate": "offset"},
        {"task.base": "none", "data.propagate": 2},
        {"task.base": "none", "data.degrees": True},
        {"task.base": "none", "model": "pyg", "model.conv": "GCNConv"},
        {"task.base": "none", "data.to_undirected": False, "data.add_self_loops": True},
        {"task.base": "linear", "data.nodes.text_features": "scores"},
    ],
    ids=str,
)
def test_new_rows_are_exact_where_degrees_hops_and_labels_count(tmp_path, more):
    model = train(tmp_path, **more)
    assert_same(model)
    assert bool(model.newcomers().needs_graph) == (more.get("task.base") == "diffusion")
