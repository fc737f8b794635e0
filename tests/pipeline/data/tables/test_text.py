"""Features of texts in tables: hashed columns, and scores of models that have not seen the node."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.tables import (
    nodes as tables_nodes,
    scores as tables_scores,
    text as tables_text,
)
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns, NodeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import unpack
from parallel_epochs.pipeline.data.tables.groups import find_groups
from parallel_epochs.pipeline.data.tables.scores import (
    NUM_FOLDS,
    TextScores,
    divide_groups,
    fit_scores,
)
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.text import NUM_TERMS, TextFeatures
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.seeds import stream


def load(folder, nodes: pd.DataFrame, edges: str = "", name: str = "cache", **columns) -> Graph:
    """Prepare a table of nodes, with some lines of edges."""
    nodes.to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text(f"source,target\n{edges}")
    config = TablesConfig(
        folder=str(folder),
        nodes=NodeColumns(path="nodes.csv", **columns),
        edges=EdgeColumns(path="edges.csv"),
    )
    return cache.load(config, folder / name)


TEXTS = ["A small game", "small library of a game", "", "Driver"]


def test_features_of_text_are_scikit_learns(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "parallel_epochs.pipeline.data.tables.nodes.BLOCK", 3
    )  # terms are counted over all blocks
    tags = ["role::program|use::gaming", "role::library", "", "x"]
    columns = {"text": ["text"], "text_chars": ["text"], "text_tags": ["tags"]}
    nodes = pd.DataFrame({"id": list("abcd"), "text": TEXTS, "tags": tags})
    x = load(tmp_path, nodes, "a,b\n", text_channels=64, **columns).x.double()
    words, chars, kinds = (part / part.size(1) ** 0.5 for part in x.split([5, 64, 6], dim=1))
    expected = TfidfVectorizer(sublinear_tf=True).fit_transform(TEXTS).toarray()
    torch.testing.assert_close(
        words @ words.T, torch.from_numpy(expected @ expected.T), rtol=0, atol=1e-6
    )
    expected = (
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit_transform(TEXTS).toarray()
    )
    lengths = chars.norm(dim=1)  # more pieces than columns: products are kept on average
    assert expected.shape[1] > 64 and 0.5 < lengths[0] < 1.5 and lengths[2] == 0
    assert (
        (kinds != 0).sum(1).tolist() == [4, 2, 0, 1]
        and kinds[0] @ kinds[1] > 0
        and kinds[0] @ kinds[3] == 0
    )


def test_ids_of_neighbours_are_terms_of_either_direction(tmp_path, monkeypatch):
    monkeypatch.setattr("parallel_epochs.pipeline.data.tables.nodes.BLOCK", 3)
    ends = [("a", "b"), ("a", "B b"), ("a", "b"), ("c", "b"), ("nobody", "b"), ("B b", "B b")]
    edges = "".join(f"{start},{end}\n" for start, end in ends)
    nodes = pd.DataFrame({"id": ["a", "b", "B b", "c"]})
    x = load(tmp_path, nodes, edges, text_neighbors=True).x.double()
    rows = [
        (["b", "B b"], [], ["B b"], ["b"]),
        ([], ["a", "c"], ["a", "B b"], []),
    ]  # targets, then sources
    for part, terms in zip(x.split([2, 3], dim=1), rows, strict=True):
        expected = TfidfVectorizer(analyzer=lambda row: row).fit_transform(terms).toarray()
        torch.testing.assert_close(
            part @ part.T / part.size(1), torch.from_numpy(expected @ expected.T)
        )


def test_an_id_counts_in_scores_though_it_is_in_one_text_alone(tmp_path):
    """Without ids there would be no term at all, since each word is in one text, and such words do not count."""
    numbers = np.arange(20)
    nodes = pd.DataFrame(
        {
            "id": [f"{side}{number}" for side in "nm" for number in numbers],
            "kind": [*"ab" * 10, *[""] * 20],
            "word": [f"w{number}" for number in range(40)],
            "split": ["train"] * 16 + ["valid"] * 24,
        }
    )
    edges = "".join(f"n{number},m{number}\n" for number in numbers)
    scores = {"text": ["word"], "text_neighbors": True, "text_features": "scores"}
    data = load(tmp_path, nodes, edges, label="kind", split_column="split", **scores)
    assert data.x.shape == (40, 2)


def test_scores_of_a_neighbour_do_not_tell_the_label_of_a_node(tmp_path, monkeypatch):
    """Linked nodes have like texts, and labels are noise: a model that has seen a node tells its label by the score of
    its neighbour.
    """
    table, number = packages(), np.arange(200)
    table["text"], table["split"] = [f"a w{pair} x{pair}" for pair in number // 2], "train"
    table.loc[[0, 1], "split"] = "valid"
    kinds, told = table["kind"].map(sorted(KINDS).index).to_numpy()[2:], {}
    for folds in ("groups", "rows"):
        (tmp_path / folds).mkdir()
        if folds == "rows":
            monkeypatch.setattr(tables_nodes, "find_groups", lambda *_: np.arange(200))
        x = scores_of(
            tmp_path / folds,
            table,
            {"label": "kind"},
            edges="".join(f"n{one},n{one + 1}\n" for one in number[::2]),
        ).numpy()
        told[folds] = (x.argmax(1)[number ^ 1][2:] == kinds).mean()
    assert told["rows"] > 0.7 and told["groups"] < 0.4, told


def test_groups_are_of_bounded_size_and_of_linked_nodes(tmp_path):
    """Two grids with an edge between them, and nodes without edges; a hub is linked to all nodes of the first."""
    grid = np.arange(100).reshape(10, 10)
    ends = [
        np.stack([part[:, :-1].ravel(), part[:, 1:].ravel()])
        for part in (grid, grid.T, grid + 100, grid.T + 100)
    ]
    ends += [np.array([[99], [100]]), np.stack([np.full(100, 200), np.arange(100)])]
    source, target = np.concatenate(ends, axis=1)
    with Database(tmp_path) as db:
        db.fill("joined", pa.table({"s": source, "t": target}))
        group = find_groups(db, "SELECT s + 3 AS s, t + 3 AS t FROM joined", 206, 25)
        assert np.array_equal(
            group, find_groups(db, "SELECT t + 3 AS s, s + 3 AS t FROM joined", 206, 25)
        )
    sizes = np.bincount(group)
    ends = group[source + 3], group[target + 3]
    assert (sizes[ends[0]] + sizes[ends[1]])[ends[0] != ends[1]].min() > 25, (
        "two groups would fit together"
    )
    assert sizes.max() <= 25 and (sizes[group[[0, 1, 2, 204, 205]]] == 1).all()
    is_inner = source != 200
    assert (group[source + 3] == group[target + 3])[is_inner].mean() > 0.6


def test_ids_of_neighbours_are_refused_for_links():
    typed = {
        "nodes": {"a": {}, "b": {"text_neighbors": True}},
        "edges": {"has": {"path": "e.csv", "source": "a", "target": "b"}},
    }
    for config in (
        TablesConfig(nodes=NodeColumns(text_neighbors=True), edges=EdgeColumns(path="e.csv")),
        TablesConfig(schema=typed),
    ):
        with pytest.raises(
            ValueError, match="text_neighbors=true tells a node by its links, and task=link"
        ):
            config.check_links(["a", "has", "b"] if config.schema else None)


def test_hashed_products_are_right_on_average():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"word{word}" for word in rng.integers(5000, size=60)) for _ in range(80)]
    exact = TfidfVectorizer(sublinear_tf=True).fit_transform(texts).toarray()
    features = TextFeatures("words", 512)
    features.count(texts[:50]), features.count(texts[50:])
    hashed = (
        np.concatenate([features.transform(texts[:50]), features.transform(texts[50:])]) / 512**0.5
    )
    difference = hashed @ hashed.T - exact @ exact.T
    assert (
        abs(difference).mean() < 1 / np.sqrt(512) and abs(difference.mean()) < 0.01
    )  # 0.1 without signs


def long_texts(num_texts: int = 80) -> list[str]:
    """Texts of six subjects, each with ten words of its own; a few words are of other subjects."""
    rng = np.random.default_rng(0)
    return [
        " ".join(
            f"word{word}"
            for word in [*10 * (number % 6) + rng.integers(10, size=25), rng.integers(60)]
        )
        for number in range(num_texts)
    ]


@pytest.mark.parametrize("bound", ["", "MAX_TERMS", "MAX_TEXTS", "MAX_CELLS"])
def test_singular_vectors_are_those_of_all_frequent_terms(tmp_path, monkeypatch, bound):
    """And those of the most frequent terms, or of some of the texts, within the bounds on memory."""
    monkeypatch.setattr("parallel_epochs.pipeline.data.tables.nodes.BLOCK", 30)
    if bound:
        monkeypatch.setattr(
            tables_text, bound, {"MAX_TERMS": 30, "MAX_TEXTS": 9, "MAX_CELLS": 100}[bound]
        )
    texts = long_texts()
    nodes = pd.DataFrame({"id": range(80), "text": texts})
    data = load(tmp_path, nodes, "0,1\n", text=["text"], text_channels=6)
    (vectors,) = unpack(data.fitted)[0][0].columns.vectors
    assert vectors.dtype == np.float16 and vectors.shape[1] == 6 and data.x.shape == (80, 6)
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    terms = vectorizer.fit_transform(texts)
    frequency = np.bincount(terms.indices, minlength=terms.shape[1])
    if bound == "MAX_TERMS":
        assert len(vectors) == 30
        return
    terms = terms[:, np.flatnonzero(frequency > 1)].toarray()
    assert len(vectors) == terms.shape[1]
    left, sizes, _ = np.linalg.svd(terms, full_matrices=False)
    expected = left[:, :6] * sizes[:6]
    found = data.x.double().numpy()
    difference = (
        found @ found.T * np.square(sizes[:6]).sum() / np.square(found).sum()
        - expected @ expected.T
    )
    if bound:  # vectors of some texts are others
        assert 0.02 < abs(difference).max() and np.square(found).mean() < 1
    else:
        np.testing.assert_allclose(difference, 0, atol=5e-3)
        np.testing.assert_allclose(np.square(found).mean(), 1, rtol=1e-3)


def test_texts_without_frequent_terms_are_hashed(tmp_path):
    texts = [f"{word} only{number}" for number, word in enumerate(["a1", "a1", "b2", "c3"] * 10)]
    features = {kind: TextFeatures("words", 8, is_decomposed=kind) for kind in (False, True)}
    for one in features.values():
        one.count(texts)
    assert not len(features[True].terms) and not features[True].most_texts
    assert np.array_equal(features[True].transform(texts), features[False].transform(texts))


def test_vectors_of_other_terms_are_damage():
    texts, found = long_texts(), TextFeatures("words", 6, is_decomposed=True)
    found.count(texts)
    with pytest.raises(DamagedFile, match="vectors of terms are of other terms"):
        TextFeatures("words", 6, is_decomposed=True).restore(
            *found.counted(), np.ones((3, 6), np.float16)
        )


def test_tables_of_a_schema_have_the_features_of_the_run_unless_they_name_their_own(tmp_path):
    """So runs of before, which saved hashed, keep hashed columns."""
    pd.DataFrame({"id": range(80), "text": long_texts()}).to_csv(
        tmp_path / "nodes.csv", index=False
    )
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    table = {"path": "nodes.csv", "text": ["text"], "text_channels": 6}
    schema = {
        "nodes": {"a": table, "b": table | {"text_features": "hashed"}},
        "edges": {"has": {"path": "edges.csv", "source": "a", "target": "b"}},
    }
    found = {}
    for name in ("svd", "hashed"):
        config = TablesConfig(
            folder=str(tmp_path), schema=schema, nodes=NodeColumns(text_features=name)
        )
        found[name] = cache.load(config, tmp_path / "cache").x
    assert torch.equal(found["svd"][80:, :6], found["hashed"][80:, :6]), "the table names its own"
    assert torch.equal(found["hashed"][:80, :6], found["hashed"][80:, :6])
    assert not torch.equal(found["svd"][:80, :6], found["hashed"][:80, :6])


def test_terms_of_the_type_with_labels_are_a_sparse_matrix(tmp_path, monkeypatch):
    """It is written for this type alone, and not where texts are long; the other type stands in front."""
    pd.DataFrame(
        {"id": range(80), "text": long_texts(), "kind": [number % 6 for number in range(80)]}
    ).to_csv(tmp_path / "nodes.csv", index=False)
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    schema = {
        "nodes": {"b": {}, "a": {"path": "nodes.csv", "text": ["text"], "label": "kind"}},
        "edges": {"has": {"path": "edges.csv", "source": "b", "target": "a"}},
    }
    config = TablesConfig(folder=str(tmp_path), schema=schema)
    data = cache.load(config, tmp_path / "cache")
    inputs = Inputs(data, NodeTask(data))
    expected = TfidfVectorizer(sublinear_tf=True).fit_transform(long_texts())
    assert data.num_nodes == 81 and inputs.terms.shape == (80, NUM_TERMS)
    torch.testing.assert_close(
        torch.from_numpy((inputs.terms @ inputs.terms.T).toarray()),
        torch.from_numpy((expected @ expected.T).toarray()).float(),
    )
    monkeypatch.setattr("parallel_epochs.pipeline.data.tables.nodes.MOST_NUMBERS", 100)
    data = cache.load(config, tmp_path / "other cache")
    assert "text_ptr" not in data and Inputs(data, NodeTask(data)).terms is None


KINDS = ["game", "driver", "library", "font"]


def packages(num_nodes: int = 200) -> pd.DataFrame:
    """Texts with a word that tells their kind, but for one in ten, and words that tell nothing."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(KINDS, num_nodes)
    told = np.where(rng.random(num_nodes) < 0.1, rng.choice(KINDS, num_nodes), kinds)
    fillers = rng.integers(30, size=(num_nodes, 2))
    texts = [f"a {kind} of w{first} and w{second}" for kind, (first, second) in zip(told, fillers)]
    splits = np.array(["train", "train", "train", "valid", "test"])[rng.permutation(num_nodes) % 5]
    return pd.DataFrame(
        {
            "id": [f"n{number}" for number in range(num_nodes)],
            "text": texts,
            "kind": kinds,
            "split": splits,
            "is_game": (kinds == "game").astype(int),
            "length": rng.normal(size=num_nodes),
        }
    )


def scores_of(
    folder,
    table: pd.DataFrame,
    labels: dict,
    *,
    edges: str = "n0,n0\n",
    **columns,
) -> torch.Tensor:
    table.to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text(f"source,target\n{edges}")
    nodes = NodeColumns(
        path="nodes.csv",
        text_features="scores",
        split_column="split",
        **{"text": ["text"]} | labels | columns,
    )
    config = TablesConfig(folder=str(folder), nodes=nodes, edges=EdgeColumns(path="edges.csv"))
    return cache.load(config, folder / "cache").x


def expected_scores(table: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """Scores of classes, each node's by scikit-learn's classifiers of several classes that have not seen it."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    terms = vectorizer.fit_transform(table["text"])
    classes = {kind: number for number, kind in enumerate(sorted(KINDS))}
    kinds = table["kind"].map(classes).to_numpy()
    train = np.flatnonzero(table["split"] == "train")
    terms = terms[
        :, np.flatnonzero(np.bincount(terms[train].indices, minlength=terms.shape[1]) > 1)
    ]
    fold = divide_groups(np.arange(len(train)), stream("text scores", seed))
    every = np.stack(
        [
            LinearSVC(C=0.25, random_state=0)
            .fit(terms[train[fold != number]], kinds[train[fold != number]])
            .decision_function(terms)
            for number in range(NUM_FOLDS + 1)
        ]
    )
    out = every[NUM_FOLDS]
    out[train] = every[fold, train]
    return (out - out[train].mean()) / out[train].std()


def test_scores_are_those_of_models_that_have_not_seen_the_node(tmp_path, caplog):
    caplog.set_level("INFO")
    table = packages()
    x = scores_of(tmp_path, table, {"label": "kind"}).numpy()
    np.testing.assert_allclose(
        x, expected_scores(table), atol=0.02
    )  # liblinear stops at a tolerance
    assert (
        "scores of texts: 24 linear models of 36 terms, fitted to 120 nodes in 5 folds"
        in caplog.text
    )
    assert 0.8 < (x.argmax(1) == table["kind"].map(sorted(KINDS).index)).mean() < 0.97


def fit(terms, labels, metric: str, rng) -> TextScores:
    """Fit models to nodes of which each is a group, and whose terms are words."""
    rows = np.arange(len(labels))
    return fit_scores(rows, terms, labels, metric, rng, first_id=terms.shape[1], groups=rows)


def test_models_of_numbers_are_ridge_regressions():
    rng = np.random.default_rng(0)
    terms, labels = (
        sp.csr_array(rng.random((50, 6)) * (rng.random((50, 6)) < 0.5)),
        rng.normal(size=(50, 1)),
    )
    labels[3] = np.nan
    found = fit(terms, labels, "rmse", np.random.default_rng(1))
    fold = divide_groups(np.arange(50), np.random.default_rng(1))
    expected = np.zeros(50)
    for number in range(NUM_FOLDS):
        seen = np.flatnonzero((fold != number) & ~np.isnan(labels[:, 0]))
        expected[fold == number] = (
            Ridge()
            .fit(terms[seen].toarray(), labels[seen, 0])
            .predict(terms[np.flatnonzero(fold == number)].toarray())
        )
    np.testing.assert_allclose(
        found.own[:, 0], (expected - expected.mean()) / expected.std(), atol=1e-2
    )


def test_a_class_that_a_fold_lacks_is_a_sure_no():
    terms = sp.csr_array(np.tile(np.eye(2), (10, 1)))
    labels = np.tile([[0.0], [1.0]], (10, 1))
    labels[4] = 3  # the only one; nobody is 2
    found = fit(terms, labels, "acc", np.random.default_rng(0))
    assert (
        isinstance(found, TextScores)
        and found.own.shape == (20, 4)
        and np.isfinite(found.own).all()
    )
    assert (
        found.own[4, 3] < found.own[:, 3].mean() + 0.1
    )  # not above what models say that have seen the class
    assert len(set(found.own[:, 2])) == 1 and not found.weights[:, 2].any()  # the same for all


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"label": "id"},
            "fits a model to each class, 100 at most, and there are 200: set it to hashed",
        ),
        (
            {"label": "kind", "text": ["id"]},
            "no term is in the texts of two training nodes",
        ),
    ],
)
def test_what_cannot_have_scores_is_said(tmp_path, monkeypatch, columns, message):
    monkeypatch.setattr(tables_scores, "MAX_COLUMNS", 100)
    with pytest.raises(ValueError, match=message):
        scores_of(tmp_path, packages(), {}, **columns)
