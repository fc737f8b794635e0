"""A trained model on other tables than those of its training."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.data.learned import PREPROCESSING
from parallel_epochs.pipeline.data.tables.fitted import unpack
from parallel_epochs.pipeline.gnn.base import linear
from parallel_epochs.pipeline.gnn.base.fit import apply, fit_base
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.config import GNNEvaluateConfig, NewDataConfig, NewTableConfig
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.command import evaluate
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.saved import SavedRun
from tests.helpers.building import open_graph as open_data, predicted
from tests.helpers.running import train

pytest.importorskip("duckdb")
WORDS = "alpha beta gamma delta epsilon zeta eta theta".split()
NUMBERS = [
    "data.nodes.features=[size,age]",
    "data.nodes.log1p=[size]",
    "data.nodes.standardize=true",
]
TEXTS = ["data.nodes.text=[about]", "data.nodes.text_chars=[id]", "data.nodes.text_tags=[tags]"]
EDGES = [
    "data.edges.weight=weight",
    "data.edges.features=[since]",
    "data.edges.relation=kind",
    "data.edges.directed_relations=true",
]
DATES = ["data.nodes.dates=[joined]", "data.edges.dates=[met]"]
LABEL = ["data.nodes.label=label", "data.nodes.split_column=split"]
CASES = {
    "everything": [
        *NUMBERS,
        "data.nodes.categories=[color,year]",
        *TEXTS,
        *EDGES,
        *LABEL,
        "data.nodes.text_channels=8",
    ],
    "logarithms of sums": [*EDGES, *LABEL],
    "degrees": ["data.edges.path=edges.parquet", *LABEL],
    "ids of neighbours": [
        *NUMBERS,
        *LABEL,
        "data.nodes.text_neighbors=true",
        "data.nodes.text_channels=8",
    ],
    "scores": [
        *TEXTS,
        *LABEL,
        "data.nodes.text_neighbors=true",
        "data.nodes.text_features=scores",
        "task.text_scores=2",
    ],
    "logarithms of values": [
        *NUMBERS,
        "data.nodes.label=age",
        "data.nodes.features=[size]",
        "data.metric=rmse",
        *TEXTS,
        "data.nodes.text_features=scores",
        "task.text_scores=1",
    ],
    "dates": [
        *NUMBERS,
        *LABEL,
        *EDGES,
        *DATES,
        "data.edges.log1p=[since]",
        "data.edges.standardize=true",
    ],
}

# Their columns are among those of others.
REPEATED = (
    "degrees",
    "dates",
    "ids of neighbours",
    "logarithms of values",
    "logarithms of sums",
)


def write(folder, *, num_nodes=60, num_edges=300, seed=0, **changes) -> None:
    """Write tables of nodes and edges with empty cells, the latter twice."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"n{number}" for number in range(num_nodes)])
    draw = {
        "color": ["red", "blue", ""],
        "year": ["1999", "2007", "2023"],
        "label": ["good", "bad", "odd"],
        "split": ["train", "valid", "test"],
    }
    nodes = pd.DataFrame(
        {
            "id": ids,
            "size": rng.integers(0, 9000, num_nodes).astype(str),
            "age": rng.normal(40, 9, num_nodes).round(2).astype(str),
            **{name: rng.choice(values, num_nodes) for name, values in draw.items()},
            "about": [" ".join(rng.choice(WORDS, 4)) for _ in ids],
            "tags": [f"a::{rng.choice(WORDS)}|b" for _ in ids],
        }
    )
    nodes.loc[::7, "size"] = ""
    nodes["joined"] = [
        f"2024-0{number % 9 + 1}-1{number % 7}" if number % 5 else "" for number in range(num_nodes)
    ]
    edges = pd.DataFrame(
        {
            "source": rng.choice(ids, num_edges),
            "target": rng.choice(ids, num_edges),
            "weight": rng.random(num_edges).round(3).astype(str),
            "since": rng.integers(0, 50, num_edges).astype(str),
            "kind": rng.choice(["likes", "knows"], num_edges),
        }
    )
    edges.loc[::9, "since"] = ""
    edges["met"] = [
        f"202{number % 4}-03-0{number % 8 + 1}T10:00+02:00" for number in range(num_edges)
    ]
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", nodes), ("edges", edges)):
        table = changes.get(name, lambda table: table)(table)
        table.to_csv(folder / f"{name}.csv", index=False)
        table.to_parquet(folder / f"{name}.parquet")


def described(folder, tables, *overrides) -> SavedRun:
    """Name a run that nothing has trained."""
    config = cli.compose_config(
        [
            "data=tables",
            f"data.folder={tables}",
            "data.nodes.path=nodes.csv",
            "data.edges.path=edges.csv",
            "model.num_layers=2",
            "model.hidden_channels=8",
            "train.epochs=2",
            "train.patience=0",
            "task.base=none",
            "partition.num_parts=2",
            f"cache_dir={folder / 'cache'}",
            "evaluation=exact",
            *overrides,
        ]
    )
    return SavedRun(folder / "run", config, settings(config))


def trained(folder, tables, *overrides) -> SavedRun:
    run = described(folder, tables, *overrides)
    train(run.config, run.folder)
    return run


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A run on columns of every kind; its tables lie in the folder old beside it."""
    folder = tmp_path_factory.mktemp("everything")
    write(folder / "old")
    return trained(folder, folder / "old", *CASES["everything"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A run that reads labels of neighbours."""
    folder = tmp_path_factory.mktemp("shown")
    write(folder / "old")
    return trained(folder, folder / "old", *NUMBERS, *LABEL, "train.label_input=0.5")


def restored(run, tables=None, **paths):
    new = NewDataConfig(
        folder=None if tables is None else str(tables),
        **{name: NewTableConfig(path=str(path)) for name, path in paths.items()},
    )
    return predicted(run, data=new)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in REPEATED else []) for name in CASES],
)
def test_the_tables_of_the_training_as_new_data_give_the_same_bits(name, tmp_path, everything):
    write(tmp_path / "old")
    run = everything
    if name != "everything":
        run = trained(tmp_path, tmp_path / "old", *CASES[name])
    old, new = restored(run), restored(run, tmp_path / "old")
    assert torch.equal(old.setup.data.x, new.setup.data.x) and torch.equal(old.rows, new.rows)
    assert not new.setup.data.train_mask.any() and old.setup.data.train_mask.any()
    write(
        tmp_path / "bare", nodes=lambda table: table.drop(columns=["label", "split"])
    )  # which are not needed
    assert torch.equal(restored(run, tmp_path / "bare").rows, old.rows)
    assert not list((run.folder.parent / "cache").glob("other-*"))


def subjects(table: pd.DataFrame) -> pd.DataFrame:
    """Give each row a text that tells its label, which its columns of numbers do not, and a word of its own."""
    kinds = table["label"].to_numpy()
    return table.assign(
        about=[
            f"{kind} {'thing' if number % 2 else 'item'} w{number // 3}"
            for number, kind in enumerate(kinds)
        ]
    )


def ids_of_neighbours(folder, ids, own: str, other: str) -> np.ndarray:
    """Weigh the ids of the nodes that edges lead to, or come from, by TF-IDF."""
    found = pd.read_csv(folder / "edges.csv").groupby(own)[other].unique()
    return (
        TfidfVectorizer(analyzer=list)
        .fit_transform([found.get(each, []) for each in ids])
        .toarray()
    )


def test_linear_models_read_the_terms_of_texts(tmp_path):
    """Those of scikit-learn; and other tables are answered alike, but for those without texts."""
    write(tmp_path / "old", nodes=subjects)
    columns = [
        "data.nodes.text=[about]",
        "data.nodes.text_chars=[about]",
        "data.nodes.text_features=hashed",
        "data.nodes.text_channels=1",
    ]
    run = trained(
        tmp_path,
        tmp_path / "old",
        *columns,
        "data.nodes.label=label",
        "data.nodes.split_column=split",
        "task.base=linear",
        "task.candidate=network",
    )
    old, new = restored(run), restored(run, tmp_path / "old")
    base, data = old.setup.base, old.setup.data
    table = subjects(pd.read_csv(tmp_path / "old" / "nodes.csv", keep_default_na=False))
    terms = np.hstack(
        [
            TfidfVectorizer(sublinear_tf=True).fit_transform(table["about"]).toarray(),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4))
            .fit_transform(table["about"])
            .toarray(),
            TfidfVectorizer().fit_transform(table["about"]).toarray(),
            *(
                ids_of_neighbours(tmp_path / "old", table["id"], *ends)
                for ends in (("source", "target"), ("target", "source"))
            ),
        ]
    )
    terms = terms[:, (terms > 0).sum(0) > 1]  # a term that one text has tells nothing of others
    kept = Inputs(data, old.setup.task).terms.toarray()
    np.testing.assert_allclose(kept @ kept.T, terms @ terms.T, atol=1e-5)
    rest, train = ~data.train_mask.numpy(), data.train_mask.numpy()
    strength = min(float(re.search(r"TF-IDF of the texts \(C ([\d.]+)\)", base.title)[1]), 10.0)
    fitted = linear._fit_terms(Inputs(data, old.setup.task), data.train_mask, strength)
    ours = linear.predict(Inputs(data, old.setup.task), fitted, data.train_mask)
    theirs = LinearSVC(C=strength, random_state=0).fit(terms[train], data.y[train, 0])
    logits = torch.from_numpy(4 * theirs.decision_function(terms))
    logits = logits if logits.dim() > 1 else torch.stack([0 * logits, logits], 1)
    np.testing.assert_allclose(ours, logits.softmax(1), atol=3e-2)
    assert base.scores["test"] > 0.9
    assert new.setup.base.rows.shape == base.rows.shape
    torch.testing.assert_close(new.setup.base.rows[rest], base.rows[rest], rtol=1e-4, atol=1e-4)
    assert torch.equal(new.setup.data.text_terms, data.text_terms)


def test_a_component_keeps_the_terms_of_its_nodes(tmp_path):
    write(tmp_path / "old", num_edges=40, nodes=subjects)
    whole, part = (
        open_data(
            cli.compose_config(
                [
                    "data=tables",
                    f"data.folder={tmp_path / 'old'}",
                    "data.nodes.path=nodes.csv",
                    "data.edges.path=edges.csv",
                    "data.nodes.text=[about]",
                    *LABEL,
                    f"data.components={components}",
                    "task.base=none",
                    f"cache_dir={tmp_path / 'cache'}",
                ]
            )
        ).parts[0]
        for components in ("all", "largest")
    )
    inputs, own = (Inputs(setup.data, setup.task).terms for setup in (whole, part))
    assert 1 < len(part.data.n_id) < 60 and own.shape[0] == len(part.data.n_id)
    assert (own != inputs[part.data.n_id.numpy()]).nnz == 0 < own.nnz


def test_a_model_of_terms_refuses_data_without_texts_and_needs_no_columns(tmp_path, monkeypatch):
    write(tmp_path / "old", num_edges=20, nodes=subjects)  # few ids of neighbours
    run = trained(
        tmp_path,
        tmp_path / "old",
        "data.nodes.text=[about]",
        *LABEL,
        "task.base=linear",
        "task.candidate=network",
    )
    setup = restored(run).setup
    monkeypatch.setattr(linear, "MOST_COLUMNS", 0)
    of_terms = fit_base(setup.data, setup.task, "linear")
    assert "TF-IDF of the texts (C" in of_terms.title
    del setup.data.text_ptr
    with pytest.raises(ValueError, match="reads texts, as the tables of the training have them"):
        apply(of_terms.fitted, setup.data, setup.task)


def test_rows_that_are_added_leave_the_rows_of_others_as_they_were(everything, tmp_path):
    """Means, frequencies of terms, categories, relations and marked columns are those of the training."""
    run = everything

    def more_nodes(table):
        new = table.iloc[:5].assign(
            id=[f"new{n}" for n in range(5)],
            size="123456",
            age="",
            color="blue",
            about="omega omega",
            tags="z",
        )
        return pd.concat([table, new])

    def more_edges(table):
        return pd.concat(
            [table, table.iloc[:4].assign(source=["new0", "new1", "new2", "new3"], target="new4")]
        )

    write(tmp_path / "new", nodes=more_nodes, edges=more_edges)
    old, new = restored(run), restored(run, tmp_path / "new")
    assert new.rows.shape == (65, 3) and new.rows.isfinite().all()
    assert torch.equal(new.setup.data.x[:60], old.setup.data.x)
    torch.testing.assert_close(new.rows[:60], old.rows, rtol=1e-5, atol=1e-6)
    age = new.setup.data.x[60:, 1]
    assert (age == 0).all(), "empty cells are the mean of the training"
    only = restored(run, nodes=tmp_path / "new" / "nodes.csv")  # with the edges of the training
    assert only.rows.shape == (65, 3)


def test_features_of_edges_are_scaled_as_in_the_training(tmp_path):
    """New nodes with many edges among themselves; the table of edges has no empty cells now."""
    write(tmp_path / "old")
    run = trained(tmp_path, tmp_path / "old", *CASES["logarithms of sums"])
    ids = [f"new{number}" for number in range(5)]

    def more_edges(table):
        new = pd.concat([table.iloc[:5].assign(source=ids, target=ids[::-1], weight="70")] * 30)
        return pd.concat([table.assign(since="3"), new])

    write(
        tmp_path / "new",
        nodes=lambda table: pd.concat([table, table.iloc[:5].assign(id=ids)]),
        edges=more_edges,
    )
    old, new = (one.setup.data for one in (restored(run), restored(run, tmp_path / "new")))
    assert torch.equal(new.x[:60, :1], old.x[:, :1]) and new.x.shape == (65, old.x.size(1))
    assert new.x[60:, 0].min() > old.x[:, 0].max()  # far beyond those of the training


def test_nodes_of_the_training_keep_the_scores_of_models_that_have_not_seen_them(tmp_path):
    """Also in another order, with new neighbours; a node of another text under an old id is another node."""
    write(tmp_path / "old")
    run = trained(tmp_path, tmp_path / "old", *CASES["scores"], "data.degrees=false")
    old = restored(run).setup.data
    changed = int(old.train_mask.nonzero()[3])

    def turn(table):
        table.loc[changed, "about"] = "alpha"
        return pd.concat([table.iloc[:1].assign(id="new"), table])[::-1]

    write(
        tmp_path / "new",
        nodes=turn,
        edges=lambda table: pd.concat([table.iloc[:1].assign(source="new", target="n1"), table]),
    )
    new = restored(run, tmp_path / "new").setup.data.x[:60].flip(0)
    same = old.train_mask.clone()
    same[changed] = False
    assert torch.equal(new[same], old.x[same]) and not torch.equal(new[changed], old.x[changed])
    kept = unpack(checkpoint.load(run.folder / PREPROCESSING)["fitted"])[0][0].columns.scores
    assert kept.weights.shape == (len(kept.terms), 3) and len(kept.digests) == int(
        old.train_mask.sum()
    )
    assert not len(kept.nodes), "no row of the training is kept"


def test_an_exported_model_reads_tables(everything, tmp_path):
    old = everything.folder.parent / "old"
    new_data.export(everything, tmp_path / "model.pe")
    config, shared = cli.load_run(tmp_path / "model.pe", trusts=False)
    assert str(old) not in shared["config"]
    opened = SavedRun(tmp_path / "model.pe", config, {}, shared=shared)
    with pytest.raises(
        ValueError, match="name those to predict by data.edges.path and data.nodes.path"
    ):
        restored(opened)
    found = restored(opened, nodes=old / "nodes.csv", edges=old / "edges.parquet")
    assert torch.equal(found.rows, restored(everything).rows)


def test_a_folder_says_nothing_of_an_absolute_path(everything, tmp_path):
    old = everything.folder.parent / "old"
    data = replace(
        everything.config.data,
        nodes=replace(everything.config.data.nodes, path=str(old / "nodes.csv")),
    )
    run = replace(everything, config=replace(everything.config, data=data))
    with pytest.raises(
        ValueError, match="which is in no folder. Name another table by data.nodes.path"
    ):
        restored(run, tmp_path)


def test_an_edge_to_nobody_and_an_odd_category_are_what_they_are_in_the_training(
    everything, tmp_path
):
    write(tmp_path / "new", nodes=lambda table: table.assign(color="nan"))
    with pytest.raises(ValueError, match="holds 'nan', a category that the training did not see"):
        restored(everything, tmp_path / "new")

    def with_a_stranger(table):
        return pd.concat([table, table.iloc[:1].assign(target="stranger", kind="hates")])

    write(tmp_path / "new", edges=with_a_stranger)
    assert torch.equal(restored(everything, tmp_path / "new").rows, restored(everything).rows)


@pytest.mark.parametrize(
    "changes, says",
    [
        (
            dict(nodes=lambda table: table.replace("red", "green")),
            "nodes.csv: row 2, column color holds 'green', a category that the training did not see; 21 rows",
        ),
        (
            dict(edges=lambda table: table.replace("likes", "hates")),
            "column kind holds 'hates', a relation that the training did not see. Leave such edges out",
        ),
        (dict(nodes=lambda table: table.drop(columns="age")), "data.nodes.features=age: "),
        (
            dict(nodes=lambda table: table.assign(size="much")),
            "row 1, column size holds 'much', which is not a finite num",
        ),
        (
            dict(nodes=lambda table: pd.concat([table, table.iloc[:1]])),
            "the id 'n0' of row 1 is there 2 times",
        ),
        (
            dict(edges=lambda table: table.assign(target="nobody")),
            "none of its 300 rows names two nodes",
        ),
    ],
    ids=["category", "relation", "column", "number", "twice", "other ids"],
)
def test_tables_that_do_not_fit_are_refused(changes, says, everything, tmp_path):
    write(tmp_path / "new", **changes)
    with pytest.raises(ValueError) as error:
        restored(everything, tmp_path / "new")
    assert says in str(error.value), error.value


def test_categories_and_relations_that_the_training_did_not_see_count_as_empty_on_request(
    everything, tmp_path, caplog
):
    caplog.set_level("INFO")
    new = dict(
        nodes=lambda table: table.replace("red", "green"),
        edges=lambda table: table.replace("likes", "hates"),
    )
    write(tmp_path / "new", **new)
    write(
        tmp_path / "bare",
        **{
            name: lambda table: table.replace({"color": {"red": ""}, "kind": {"likes": ""}})
            for name in new
        },
    )
    found = predicted(everything, data=NewDataConfig(folder=str(tmp_path / "new"), unknown="empty"))
    assert torch.equal(found.rows, restored(everything, tmp_path / "bare").rows)
    assert (
        "color: 21 cells with categories that the training did not see, such as 'green', taken"
        in caplog.text
    )
    with pytest.raises(
        ValueError, match="data.unknown=empty is for other tables than those of the training"
    ):
        predicted(everything, data=NewDataConfig(unknown="empty"))


def test_nodes_without_an_edge_are_predicted(everything, tmp_path):
    write(tmp_path / "new", num_nodes=4, edges=lambda table: table.iloc[:0])
    found = restored(everything, tmp_path / "new")
    assert found.rows.shape == (4, 3) and found.rows.isfinite().all()
    assert torch.equal(found.rows[:1], restored(everything, tmp_path / "new").rows[:1])


@pytest.mark.parametrize(
    "keys, new, says",
    [
        (
            LABEL,
            dict(path="a.pt"),
            "was trained on data=tables. Name other data by data.nodes.path or data.edges.path or ",
        ),
        ([*LABEL, "data.on_disk=true"], dict(folder="."), "it was trained with data.on_disk=true"),
        (
            LABEL,
            dict(known_labels="old"),
            "data.known_labels=old is for other tables than those of the training",
        ),
        (
            ["task=link"],
            dict(folder=".", known_labels="all"),
            "data.known_labels=all is for models of labels that were tr",
        ),
    ],
    ids=["graph", "disk", "own data", "links"],
)
def test_runs_on_tables_say_what_they_cannot_predict(keys, new, says, tmp_path):
    run = described(tmp_path, tmp_path, *keys)
    with pytest.raises(ValueError) as error:
        predicted(run, data=NewDataConfig(**new))
    assert says in str(error.value)


def later(folder, **changes):
    """Write the tables of a training with ten rows more, which have labels and neighbours too."""

    def append(table):
        rng = np.random.default_rng(7)
        more = table.sample(10, random_state=3).assign(
            id=[f"new{number}" for number in range(10)],
            label=rng.choice(["good", "bad", "odd"], 10),
        )
        return changes.get("label", lambda table: table)(
            pd.concat([table, more], ignore_index=True)
        )

    def link(table):
        ends = pd.DataFrame(
            {
                "source": [f"new{number % 10}" for number in range(30)],
                "target": [f"n{number * 7 % 60}" for number in range(20)] + ["new0"] * 10,
            }
        )
        more = ends.assign(weight="1", since="3", kind="likes", met=table["met"][0])
        return pd.concat([table, more], ignore_index=True)

    write(folder, nodes=append, edges=link)


def test_labels_that_the_model_saw_give_the_bits_of_the_training(shown, tmp_path):
    write(
        tmp_path / "new",
        nodes=lambda table: table.assign(label=table["label"].where(table["split"] == "train", "")),
    )
    new = NewDataConfig(folder=str(tmp_path / "new"), known_labels="all")
    found = predicted(shown, data=new).rows
    assert torch.equal(found, predicted(shown).rows)
    assert not torch.equal(found, restored(shown, tmp_path / "new").rows)


def test_labels_of_new_rows_are_scored_and_no_inputs(shown, tmp_path):
    run = shown
    later(tmp_path / "new")
    later(
        tmp_path / "other",
        label=lambda table: table.assign(
            label=table["label"].where(~table["id"].str.startswith("new"), "good")
        ),
    )
    asked = dict(data=NewDataConfig(folder=str(tmp_path / "new"), known_labels="old"))
    found = predicted(run, **asked)
    again = predicted(run, data=NewDataConfig(folder=str(tmp_path / "other"), known_labels="old"))
    assert torch.equal(found.rows, again.rows)
    everything = predicted(
        run, data=NewDataConfig(folder=str(tmp_path / "other"), known_labels="all")
    )
    assert not torch.equal(found.rows[:60], everything.rows[:60])
    scores = evaluate(
        run, GNNEvaluateConfig(str(run.folder), output=str(tmp_path / "out.csv"), **asked)
    )
    table = pd.read_csv(tmp_path / "out.csv")
    labels = pd.read_csv(tmp_path / "new" / "nodes.csv")["label"]
    is_new = table["id"].str.startswith("new")
    assert table["split"].eq("new").equals(is_new) and set(table["split"]) == {"old", "new"}
    assert scores["new"] == pytest.approx((table["class"] == labels)[is_new].mean())
    assert "old" not in scores


def test_a_class_that_the_training_did_not_see_is_refused_or_counted(shown, tmp_path, caplog):
    run = shown
    later(
        tmp_path / "new",
        label=lambda table: table.assign(label=table["label"].where(table["id"] != "new4", "fine")),
    )
    new = NewDataConfig(folder=str(tmp_path / "new"), known_labels="old")
    with pytest.raises(
        ValueError, match="column label holds 'fine', a category that the training did not see"
    ):
        predicted(run, data=new)
    caplog.set_level("INFO")
    found = predicted(run, data=replace(new, unknown="empty"))
    assert (
        "label: 1 cell with categories that the training did not see, such as 'fine', taken for empty"
        in caplog.text
    )
    assert int(found.graph.test_mask.sum()) == 9
    with pytest.raises(
        ValueError, match="other data have no test split. data.known_labels=old scores"
    ):
        evaluate(run, GNNEvaluateConfig(str(run.folder), data=replace(new, known_labels="all")))
    with pytest.raises(ValueError, match="there is nothing to score"):
        evaluate(
            run,
            GNNEvaluateConfig(
                str(run.folder), data=replace(new, folder=str(run.folder.parent / "old"))
            ),
        )


def test_labels_of_one_type_of_several_are_known(tmp_path):
    write(tmp_path / "old")
    later(tmp_path / "new")
    schema = {
        "nodes": {
            "row": {
                "path": "nodes.csv",
                "id": "id",
                "label": "label",
                "split_column": "split",
                "features": ["size"],
            }
        },
        "edges": {"likes": {"path": "edges.csv", "source": "row", "target": "row"}},
    }
    for name in ("old", "new"):
        (tmp_path / name / "schema.yaml").write_text(json.dumps(schema))
    run = trained(
        tmp_path,
        tmp_path / "old",
        "data.nodes.path=null",
        "data.edges.path=null",
        "data.folder=null",
        f"data.schema={tmp_path / 'old' / 'schema.yaml'}",
        "train.label_input=0.5",
    )
    found = predicted(
        run, data=NewDataConfig(schema=str(tmp_path / "new" / "schema.yaml"), known_labels="old")
    )
    assert found.graph.train_mask.sum() == 60 and found.graph.test_mask.nonzero().squeeze(
        1
    ).tolist() == list(range(60, 70))
