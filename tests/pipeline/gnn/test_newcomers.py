"""New rows with edges to known nodes get the predictions of tables that have grown by them."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.pipeline.data.tables import new_rows
from parallel_epochs.pipeline.gnn.base import fusion, linear, trees
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.predict.newcomers import Newcomers
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
    "data.nodes.standardize": True,
    "data.nodes.categories": ["job", "shoe"],
    "data.nodes.text_chars": ["town2"],
    "data.nodes.text_tags": ["tags"],
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
    columns = model.newcomers().columns
    texts = [
        new_rows.to_table(rows, columns["rows"]),
        new_rows.to_table(edges, columns["edges"]),
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
    both = tuple(both) if model.run.config.data.schema is None else by_schema(*both)
    return model.predict(both, table=True, **{"data.known_labels": "all"}).tail(len(rows))


def by_schema(nodes, edges):
    """Name the tables by a schema, as init writes it."""
    end = {"type": "people"}
    people = {"label": "town", "features": ["age"], "dates": ["born"], "categories": ["job"]}
    knows = {"source": end, "target": end, "features": ["sum"], "relation": "kind"}
    return {
        "nodes": {"people": {"path": nodes, "text": ["note"], "standardize": True, **people}},
        "edges": {"knows": {"path": edges, **knows}},
    }


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
    rows = newcomers.predict(WIDE[:1])
    # Its edges count.
    assert len(rows) == 1 and abs(rows.iloc[0, 3:] - found.iloc[0, 3:]).max() > 1e-6
    assert newcomers.predict([{**WIDE[2], "age": True}]).equals(newcomers.predict(WIDE[2:]))


@pytest.mark.parametrize(
    "row, edge, message",
    [
        (
            {"age": ..., "pay": ...},
            {},
            r"rows\[0\] lacks 'age', 'pay'; write null for an empty cell",
        ),
        ({"id": "p1"}, {}, "rows: 'p1' is known already"),
        ({"id": None}, {}, r"rows\[0\]: id is empty; give the new row an id"),
        (
            {"job": "king"},
            {},
            r"row 1, column job holds 'king', a category that the training did not see",
        ),
        (
            {"age": "old"},
            {},
            "column age holds 'old', which is not a finite number of float32",
        ),
        ({"born": "2023-02-29"}, {}, "column born holds '2023-02-29', which is not a date"),
        ({"age": [1]}, {}, r"the cell of age must be a text, a number or null, and is \[1\]"),
        ({"hat": 1}, {}, "has the column 'hat', which the model does not read"),
        (
            {},
            {"kind": "loot"},
            r"the table of edges: row 1, column kind holds 'loot', a relation that the training did not see",
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
        "structure": lambda: trees.fit_forest(inputs, ("own", "relations"), 0, 5, train),
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
    for rows, edges in (
        (WITHOUT_NOTE, EDGES),
        (WITHOUT_NOTE[:1], [EDGES[0] | {"sum": 0.9}]),
    ):
        new = newcomers.encode(rows, edges)
        near = newcomers.take(new)
        with monkeypatch.context() as patch:
            patch.setattr(newcomers, "needs_graph", "the test compares")
            patch.setattr(newcomers, "_knows_sums", False)
            whole = newcomers.take(new)
        assert near.num_edges < newcomers._data.num_edges / 2 < whole.num_edges
        if name == "trees":  # their thresholds hide small differences
            columns = []
            for data in map(copy.copy, (near, whole)):
                if not newcomers._reach.weights:
                    data.edge_attr = None
                inputs = Inputs(data, newcomers._setup.task)
                columns.append(trees.columns_of(inputs, data.train_mask, ("labels",)))
            first = [each[: len(rows)] for each in columns]
            torch.testing.assert_close(*first, atol=1e-6, rtol=0)
        near, whole = newcomers.forward(near), newcomers.forward(whole)
        torch.testing.assert_close(near, whole, atol=1e-5, rtol=0)


def test_simple_methods_that_read_more_take_a_pass_over_the_graph(based, monkeypatch):
    assert (
        "reads the whole graph" in open_with(based.run, monkeypatch, "structure", 1.0).needs_graph
    )
    monkeypatch.undo()
    newcomers = open_with(based.run, monkeypatch, "propagation", 1.0)
    negative = newcomers.encode(WITHOUT_NOTE[:1], [EDGES[0] | {"sum": -1}])
    if based.run.config.data.edges.standardize:  # no edge is weighed
        assert newcomers.take(negative)
        return
    with pytest.raises(ValueError, match="a feature of a new edge is negative, and the simple"):
        newcomers.take(negative)


@pytest.mark.parametrize(
    "more",
    [
        {"task.base": "none"},
        {"task.base": "propagation", "task.candidate": "offset"},
        pytest.param({"train.label_input": 0.5, "model": "rgcn"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_schema_of_one_table_of_each_takes_new_rows(tmp_path, more):
    nodes, edges = tables()
    edges["kind"] = people()[1]["kind"]
    places = {"folder": tmp_path / "run", "cache_dir": tmp_path / "cache"}
    model = pe.train(by_schema(nodes, edges), **places, **SMALL | more).model
    assert_same(model, (nodes, edges), edges=[{**edge, "kind": "gift"} for edge in EDGES])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"task.base": "diffusion"},
        {"task.base": "none", "train.label_input": 0.5},
        {"task.base": "propagation", "task.candidate": "offset"},
        {"task.base": "smoothed"},
        {"task.base": "linear", "data.nodes.text_features": "scores", "task.candidate": "offset"},
        {"task.base": "none", "model": "pyg", "model.conv": "GCNConv"},
        {"task.base": "none", "data.to_undirected": False},
    ],
    ids=str,
)
def test_new_rows_are_exact_where_degrees_hops_and_labels_count(tmp_path, more):
    model = train(tmp_path, **more)
    assert_same(model)
    assert bool(model.newcomers().needs_graph) == (more.get("task.base") == "diffusion")
