"""New rows with edges to known nodes get the predictions of tables that have grown by them."""

import numpy as np
import pandas as pd
import pytest

import parallel_epochs as pe
from tests.pipeline.test_model import SMALL, people

ROWS = [{"id": "n1", "age": 40, "job": "cook", "note": "likes soup", "born": "1990-05-01"},
        {"id": "n2", "age": None, "job": None, "note": None, "born": None}]
EDGES = [{"source": "n1", "target": "p3", "sum": 0.5}, {"source": "p4", "target": "n1", "sum": None},
         {"source": "n2", "target": "n1", "sum": 0.2}, {"source": "p9", "target": "n2", "sum": 0.9},
         {"source": "n2", "target": "p9", "sum": 0.1}]
KEYS = {"data.nodes.label": "town", "data.nodes.features": ["age"], "data.nodes.dates": ["born"],
        "data.nodes.categories": ["job"], "data.nodes.text": ["note"], "data.edges.features": ["sum"]}


def tables():
    """People with a job, a note and a birthday."""
    nodes, edges = people()
    rng = np.random.default_rng(1)
    nodes["job"] = rng.choice(["cook", "smith", "baker"], 60)
    nodes["note"] = rng.choice(["likes soup", "likes bread and soup", "iron"], 60)
    nodes["born"] = rng.choice(["1980-01-31", "1999-12-01"], 60)
    return nodes, edges.drop(columns="kind")


def train(folder, **more):
    return pe.train(tables(), folder=folder / "run", cache_dir=folder / "cache", **SMALL | more, **KEYS).model


def grown(model):
    """Predict the grown tables, in which training nodes alone have labels."""
    nodes, edges = tables()
    split = model.predict(table=True)["split"]
    nodes.loc[(split != "train").to_numpy(), "town"] = None
    both = pd.concat([nodes, pd.DataFrame(ROWS)]), pd.concat([edges, pd.DataFrame(EDGES)])
    return model.predict(both, table=True, **{"data.known_labels": "all"}).tail(2)


def assert_same(model):
    found, expected = model.newcomers().predict(ROWS, EDGES), grown(model)
    assert found["id"].tolist() == ["n1", "n2"] and list(found.columns) == list(expected.columns)
    assert found["class"].tolist() == expected["class"].tolist() and set(found["split"]) == {"unknown"}
    np.testing.assert_allclose(found.iloc[:, 3:].to_numpy(float), expected.iloc[:, 3:].to_numpy(float), atol=1e-5)
    return found


def test_new_rows_get_the_predictions_of_grown_tables(tmp_path):
    model = train(tmp_path, **{"task.base": "none"})
    found = assert_same(model)
    rows = model.newcomers().predict(ROWS[:1])
    assert len(rows) == 1 and abs(rows.iloc[0, 3:] - found.iloc[0, 3:]).max() > 1e-6  # its edges count
    for rows, edges, message in [
            ([{"id": "n1"}], [], r"rows\[0\] lacks the column 'age'; write null for an empty cell"),
            ([{**ROWS[0], "id": "p1"}], [], "rows: 'p1' is known already"),
            ([ROWS[0], ROWS[0]], [], "rows must have different ids"),
            ([{**ROWS[0], "job": "king"}], [], "holds 'king', a category that the training did not see"),
            ([{**ROWS[0], "age": "old"}], [], "holds 'old', which is not a finite number"),
            ([{**ROWS[0], "age": [1]}], [], r"the cell of age must be a text, a number or null, and is \[1\]"),
            ([{**ROWS[0], "hat": 1}], [], "has the column 'hat', which the model does not read"),
            ([7], [], r"rows\[0\] must be an object with the columns id, age"),
            (ROWS, [{**EDGES[0], "target": "p99"}], r"edges\[0\]: 'p99' is neither a known id nor that of a new row"),
            (ROWS, [{**EDGES[0], "source": "p1"}], r"edges\[0\]: neither 'p1' nor 'p3' is a new row")]:
        with pytest.raises(ValueError, match=message):
            model.newcomers().predict(rows, edges)


@pytest.mark.slow
@pytest.mark.parametrize("more", [
    {}, {"task.base": "diffusion"}, {"task.base": "none", "train.label_input": 0.5},
    {"task.base": "none", "data.propagate": 2}, {"task.base": "none", "data.degrees": True},
    {"task.base": "none", "model": "pyg", "model.conv": "GCNConv"},
    {"task.base": "none", "data.to_undirected": False, "data.add_self_loops": True},
    {"task.base": "linear", "data.nodes.text_features": "scores"}], ids=str)
def test_new_rows_are_exact_where_degrees_hops_and_labels_count(tmp_path, more):
    assert_same(train(tmp_path, **more))
