"""Vectors of nodes as they are trained: quality, the same bits for threads, ranks and restarts, tables of edges."""

import contextlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from sklearn.metrics import roc_auc_score

from parallel_epochs.models.embedding import skipgram, spectral
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.block_training import cosines
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import explain_idle_keys
from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.node_embedding import build as build_module
from parallel_epochs.pipeline.node_embedding.build import redraw_linked
from parallel_epochs.pipeline.node_embedding.probe import LabelProbe, LinkProbe
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers import building, building as build
from tests.helpers.building import EvaluateConfig
from tests.helpers.communities import (
    NAMES,
    SMALL,
    assert_chances,
    small_run,
    write_communities,
)
from tests.helpers.running import finish, rounds_of, summary_of, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_communities(tmp_path_factory.mktemp("edges"))


@pytest.fixture
def small(folder):
    return small_run(folder)


@pytest.mark.parametrize(
    "overrides, least",
    [
        (["trainer.model=deepwalk"], 0.8),
        (["trainer.model=line", "trainer.order=1"], 0.7),
        (["trainer.model=spectral", "trainer.propagation_steps=10"], 0.8),
        (["trainer.optimizer=adam", "train.lr=0.01"], 0.8),
        (["trainer.model=deepwalk", "trainer.metric=auc", "trainer.holdout=0.3"], 0.6),
    ],
)
def test_each_way_finds_the_communities(overrides, least, small, configure, tmp_path):
    summary = train(configure(*small, *overrides), tmp_path / "run")
    assert summary["test"] > least and summary["best_valid"] > least - 0.2, summary
    embedding = checkpoint.load(tmp_path / "run" / "checkpoints" / "best.pt")["model"]["embedding"]
    assert embedding.shape == (90, 12) and embedding.isfinite().all()
    record = rounds_of(tmp_path / "run")[-1]
    assert {"train", "valid", "test", "loss", "num_pairs"} <= set(record)
    if "auc" not in " ".join(overrides):
        assert {"micro_f1@0.1", "macro_f1@0.9"} <= set(summary["scores"])
        assert (
            summary["scores"]["micro_f1@0.5"] == summary["test"] or summary["metric"] == "macro_f1"
        )


@pytest.mark.parametrize(
    "overrides, is_better",
    [(["train.lr=1e-9"], True), ([], False)],
)
def test_the_spectral_filter_is_applied_where_validation_says_so(
    overrides, is_better, small, configure, tmp_path, caplog
):
    caplog.set_level("INFO")
    runs = {
        name: train(configure(*small, *overrides, *more), tmp_path / name)
        for name, more in (
            ("without", ["trainer.propagation_steps=0"]),
            ("auto", []),
        )
    }
    for key in ("weights_sha256", "best_valid"):
        assert (runs["auto"][key] == runs["without"][key]) != is_better
    assert runs["auto"]["best_valid"] >= runs["without"]["best_valid"]
    assert (": applied" if is_better else ": left out") in caplog.text


def test_the_filter_is_not_tried_where_memory_is_short(small, configure, monkeypatch):
    for options, numbers, is_filtered in (
        ([], 1 << 40, True),
        ([], 1 << 10, False),
        (["trainer.propagation_steps=0"], 1 << 40, False),
    ):
        monkeypatch.setattr(build_module, "machine_memory", lambda numbers=numbers: numbers)
        assert build_module._is_filtered(configure(*small, *options).trainer, 90) == is_filtered


def test_episodes_have_negatives_of_their_own_and_the_last_no_walk_too_many(
    small, configure, monkeypatch
):
    config = configure(*small, "trainer.episode_size=3000", "train.epochs=7")
    data, keys_of = build.open_graph(config).data, []
    with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
        plan, drawn, draw = trainer._walk_plan, [], trainer._sampler.draw
        monkeypatch.setattr(
            trainer._sampler,
            "draw",
            lambda first, count, *args, **options: (
                drawn.append((first, count)) or draw(first, count, *args, **options)
            ),
        )
        monkeypatch.setattr(
            skipgram,
            "train",
            lambda *args, key, **options: (
                keys_of.append((trainer.progress.round, key)) or (0.0, 1.0)
            ),
        )
        for _ in range(trainer.num_rounds):
            list(trainer.steps())
            trainer.progress.round += 1
            trainer.progress.begin_round()
    each = plan.walks_per_episode
    assert plan.num_walks % each and trainer.num_rounds == -(-plan.num_walks // each) > 1
    assert drawn == [
        (first, min(each, plan.num_walks - first)) for first in range(0, plan.num_walks, each)
    ]
    assert len(set(keys_of)) == len({key for _, key in keys_of}) == trainer.num_rounds


def test_negatives_are_drawn_by_the_degrees_of_their_rows(small, configure):
    """In each partition in proportion to a power of the degree."""
    config = configure(*small)
    data = build.open_graph(config).data
    with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
        negatives, parts = trainer._negatives, trainer.parts
    degree = torch.bincount(
        data.edge_index.as_tensor()[1].long(), minlength=data.num_nodes
    ).double()
    assert_chances(negatives, parts, degree**0.75)


@pytest.mark.parametrize("name", ["components=separate", "components=largest"])
def test_components_are_refused(name, small, configure):
    with pytest.raises(
        ValueError, match=f"data.{name}: trainer=node_embedding trains on all components"
    ):
        configure(*small, f"data.{name}")


@pytest.mark.parametrize(
    "overrides, idle",
    [
        (
            ["trainer.model=spectral", "trainer.num_negatives=7", "trainer.p=2"],
            [
                "trainer.p=2.0 with trainer.model=spectral",
                "trainer.num_negatives=7 with trainer.model=spectral",
            ],
        ),
        (
            ["trainer.model=line", "trainer.walk_length=9", "trainer.order=1"],
            ["trainer.walk_length=9 with trainer.model=line"],
        ),
        (
            [
                "trainer.metric=auc",
                "trainer.num_draws=9",
                "trainer.portions=[0.2]",
                "trainer.holdout=0.1",
            ],
            [
                "trainer.portions=[0.2] with trainer.metric=auc",
                "trainer.num_draws=9 with trainer.metric=auc",
            ],
        ),
        (
            ["trainer.metric=micro_f1", "trainer.holdout=0.1"],
            ["trainer.holdout=0.1 with trainer.metric=micro_f1"],
        ),
        (
            [
                "trainer.optimizer=adam",
                "trainer.num_draws=9",
                "trainer.portions=[0.2]",
                "train.patience=3",
            ],
            [],
        ),
    ],
)
def test_keys_that_do_nothing_are_named(overrides, idle, configure):
    said = explain_idle_keys(
        configure("trainer=node_embedding", "data=edges", "data.path=x", *overrides)
    )
    assert (said or "").removeprefix("without effect: ") == ", ".join(idle)


def test_threads_give_the_same_bits(small, configure, tmp_path):
    config = configure(*small, "train.epochs=40")
    runs = [
        train(
            keys.replaced(config, {"parallel.threads_per_rank": threads}), tmp_path / f"{threads}"
        )
        for threads in (1, 3)
    ]
    assert (
        runs[0]["weights_sha256"] == runs[1]["weights_sha256"]
        and runs[0]["scores"] == runs[1]["scores"]
    )


@pytest.mark.slow
def test_ranks_give_the_same_bits(small, configure, tmp_path):
    runs = {"one": train(configure(*small), tmp_path / "one")}
    for ranks in (2, 3):
        status, output = finish(
            [*small, f"parallel.num_ranks={ranks}"],
            tmp_path / f"{ranks}",
            tmp_path / "cache",
        )
        assert status == 0, output
        runs[f"{ranks} ranks"] = summary_of(tmp_path / f"{ranks}")
    assert len({summary["weights_sha256"] for summary in runs.values()}) == 1
    assert len({summary["test"] for summary in runs.values()}) == 1


def test_edges_alone(folder, configure, tmp_path):
    """Without labels links are held out; the other trainers say that there is nothing to learn."""
    edges_alone = f"data.path={folder / 'edges.tsv'}"
    summary = train(configure(*SMALL, edges_alone, "trainer.holdout=0.3"), tmp_path / "run")
    assert summary["metric"] == "auc" and summary["test"] > 0.6
    for overrides, message in (
        (["trainer.metric=micro_f1"], "trainer.metric=micro_f1 needs labels, and .* has none"),
        (["trainer.holdout=0.001"], "trainer.holdout=0.001 of .* edges leaves no link to valid"),
        (["trainer.num_parts=91"], "trainer.num_parts=91 is more than the 90 nodes"),
    ):
        with pytest.raises(ValueError, match=message):
            train(configure(*SMALL, edges_alone, *overrides), tmp_path / "refused")
    (tmp_path / "two.tsv").write_text("a\tb\nb\tc\n")
    with pytest.raises(
        ValueError,
        match="4 edges link 2 different pairs of nodes: training, validation and test need",
    ):
        train(
            configure(
                *SMALL,
                f"data.path={tmp_path / 'two.tsv'}",
                "trainer.num_parts=1",
                "trainer.holdout=0.5",
            ),
            tmp_path / "refused",
        )
    with pytest.raises(ValueError, match="has no labels to learn: give them"):
        train(configure("data=edges", edges_alone), tmp_path / "refused")


def test_isolated_nodes_are_told_of_and_keep_their_vectors(configure, tmp_path, caplog):
    network = np.zeros((12, 12))
    network[:10, :10] = 1 - np.eye(10)
    scipy.io.savemat(
        tmp_path / "g.mat", {"network": sp.csr_array(network), "group": np.eye(12)[:, :2]}
    )
    with caplog.at_level("INFO"):
        data = build.open_graph(
            configure(
                "trainer=node_embedding",
                "data=edges",
                "trainer.metric=auc",
                f"data.path={tmp_path / 'g.mat'}",
            )
        ).data
    assert (
        "graph: undirected (every edge has its reverse), 12 nodes, 90 directed edges" in caplog.text
    )
    assert "2 nodes without an edge keep the vectors that they begin with" in caplog.text
    assert data.num_nodes == 12 and data.num_edges == 90 and data.y.shape == (12, 2)
    assert int(data.y.isnan().any(1).sum()) == 10


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read(path, labels=None):
    return cache.read(EdgesConfig(path=str(path), labels=labels and str(labels)))


def test_ids_are_in_the_order_of_numbers_and_weights_add_up(tmp_path):
    data = read(write(tmp_path / "e.txt", "10 9 0.5\n9 2 1\n10 9 2\n"))
    assert unpack_names(data) == ["2", "9", "10"]
    assert data.edge_index.t().tolist() == [
        [1, 0],
        [2, 1],
    ] and data.edge_attr.flatten().tolist() == [1, 2.5]


def test_labels_of_some_nodes(tmp_path, caplog):
    table = write(tmp_path / "e.txt", "a b\nb c\nc d\n")
    labels = write(tmp_path / "l.txt", "a 10 2\nc 2\nnobody 3\n")
    data = read(table, labels)
    assert data.y[[0, 2]].tolist() == [[1, 1], [1, 0]] and data.y[[1, 3]].isnan().all()
    assert (
        "1 of its ids name no node of the edges and are left out; the first is nobody"
        in caplog.text
    )
    assert sum(int(data[mask].sum()) for mask in ("train_mask", "valid_mask", "test_mask")) == 2


BAD = {
    "one column": ("a\nb\n", "", "has 1 column: a line holds two ids"),
    "four columns": ("a b c d\n", "", "has 4 columns: a line holds two ids"),
    "ragged": ("a b\nb c d\n", "", "Expected 2 fields in line 2, saw 3"),
    "short": ("a b 1\nb c\n", "", "column 3 of edge 2 is empty: each line has 3 columns"),
    "negative": (
        "a b 1\nb c -2\n",
        "",
        "edge 2 has the weight '-2', which is negative; weights must not be",
    ),
    "no number": ("a b 1\nb c x\n", "", "edge 2 has the weight 'x', which is not a finite number"),
    "nothing": ("# nothing\n", "", "holds no rows"),
    "no label": ("a b\n", "a\n", "line 1 has no label"),
    "strangers": ("a b\n", "z 1\n", "none of its ids is a node of the edges; the first is z"),
}


@pytest.mark.parametrize("name", BAD)
def test_tables_that_are_none(name, tmp_path):
    table, labels, message = BAD[name]
    path = write(tmp_path / "e.txt", table)
    table_of_labels = write(tmp_path / "l.txt", labels) if labels else None
    with pytest.raises(ValueError, match=message) as raised:
        read(path, table_of_labels)
    assert str(tmp_path) in str(raised.value)


def test_the_filter_is_the_one_of_its_definition():
    """The expansion in Chebyshev polynomials against eigenvectors of the Laplacian."""
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((20, 20)) < 0.4, 1).astype(np.float32)
    graph, x = sp.csr_array(dense + dense.T), rng.standard_normal((20, 3)).astype(np.float32)
    looped = graph.toarray() + np.eye(20)
    laplacian = np.eye(20) - looped / looped.sum(1, keepdims=True)
    values, vectors = np.linalg.eig(laplacian)
    # Of exp(-theta x), x = (l - mu)^2 / 2 - 1, the coefficients in the polynomials of x are Bessel functions of theta.
    kernel = np.exp(-0.5 * ((values - 0.2) ** 2 / 2 - 1))
    filtered = (vectors @ np.diag(kernel) @ np.linalg.inv(vectors)).real @ x
    u, s, _ = np.linalg.svd(looped @ (x - filtered), full_matrices=False)
    expected = u * np.sqrt(s)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = spectral.propagate(graph, x, num_terms=12)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=2e-4)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A short run, which nothing may change."""
    path = tmp_path_factory.mktemp("trained")
    train(
        cli.compose_config([*small_run(folder), "train.epochs=2", f"cache_dir={path / 'cache'}"]),
        path / "run",
    )
    return path / "run"


def test_vectors_in_the_formats_of_the_field(trained, tmp_path):
    best = checkpoint.load(trained / "checkpoints" / "best.pt")["model"]["embedding"]

    def predict(file, **options):
        building.predict(
            EvaluateConfig(run=str(trained), predictions=str(tmp_path / file), **options)
        )
        return tmp_path / file

    assert np.array_equal(np.load(predict("v.npy")), best.numpy())
    saved = torch.load(predict("v.pt"))
    assert torch.equal(saved["embedding"], best) and sorted(saved["names"]) == sorted(NAMES)
    table = pd.read_parquet(predict("v.parquet"))
    assert table["id"].tolist() == saved["names"] and np.array_equal(
        table.iloc[:, 1:].to_numpy(), best.numpy()
    )
    head, *lines = predict("v.txt").read_text().splitlines()
    assert head == "90 12" and [line.split()[0] for line in lines] == saved["names"]
    np.testing.assert_allclose(
        [[float(x) for x in line.split()[1:]] for line in lines], best.numpy(), rtol=1e-5
    )
    with pytest.raises(ValueError, match="method=views is read for runs of trainer=gnn only"):
        predict("x.pt", method="views")
    with pytest.raises(
        ValueError, match=r"vectors can only be saved as one of .pt, .npy, .parquet, .txt"
    ):
        predict("x.csv")


def test_nearest_vectors_some_at_a_time(monkeypatch):
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    unit, numbers = torch.nn.functional.normalize(rows), torch.arange(40)
    monkeypatch.setattr(cosines, "MAX_PRODUCTS", 90)
    nearest, found = cosines.nearest_of(unit, 5, numbers, numbers)
    expected = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=2)
    torch.testing.assert_close(found, expected.fill_diagonal_(-2).topk(5).values)
    torch.testing.assert_close(found, expected.gather(1, nearest))
    assert not (nearest == numbers[:, None]).any()


def test_a_classifier_knows_the_number_of_labels():
    """Of each node as many labels as it has: perfect vectors give perfect scores, whatever their scale."""
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]] * 10)
    probe = LabelProbe(labels.astype(float), metric="micro_f1", portions=[0.5], num_draws=2)
    scores = probe(7.0 * labels)
    assert scores["test"] == 1 and scores["valid"] == 1 and scores["macro_f1@0.5"] == 1
    rng = np.random.default_rng(0)
    assert probe(rng.standard_normal((40, 4)))["test"] < 0.8
    with pytest.raises(ValueError, match="2 nodes have labels"):
        LabelProbe(
            np.where(np.arange(40)[:, None] < 2, labels, np.nan),
            metric="micro_f1",
            portions=[],
            num_draws=1,
        )


def test_the_area_under_the_curve():
    """Of vectors along axes: cosines are -1, 0 or 1, so that many are equal."""
    rng = np.random.default_rng(0)
    rows = rng.choice([-3.0, 2.0], (90, 1)) * np.eye(3)[rng.integers(0, 3, 90)]
    links, others = np.arange(50).reshape(25, 2), np.arange(50, 90).reshape(20, 2)
    pairs = np.concatenate([links, others])
    truth, score = (
        np.r_[np.ones(25), np.zeros(20)],
        np.sign((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1)),
    )
    found = LinkProbe({"test": (links, others)})(rows)["test"]
    assert found == pytest.approx(roc_auc_score(truth, score)) and 0 < found < 1 and found != 0.5


def test_links_that_are_held_out_are_no_edges(small, configure):
    config = configure(*small, "trainer.metric=auc", "trainer.holdout=0.2")
    data = build.open_graph(config).data
    with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
        pairs = trainer.score.pairs
        every = {tuple(edge) for edge in data.edge_index.as_tensor().t().tolist()}
        walked = {
            tuple(edge)
            for walk in trainer._sampler.draw(0, 2000, 3).tolist()
            for edge in zip(walk, walk[1:])
        }
    held = {tuple(link) for split in ("valid", "test") for link in pairs[split][0].tolist()}
    assert 0.15 < len(held) / (data.num_edges / 2) < 0.25 and held <= every
    for links, others in pairs.values():  # each once, whichever way round it stands in the graph
        assert len(np.unique(np.sort(links, 1), axis=0)) == len(links) == len(others)
        assert not every & set(map(tuple, others.tolist())) and (others[:, 0] != others[:, 1]).all()
    assert not set(map(tuple, pairs["valid"][0].tolist())) & set(
        map(tuple, pairs["test"][0].tolist())
    )
    assert (
        not walked & (held | {(b, a) for a, b in held})
        and walked <= every
        and len(walked) > 0.7 * len(every)
    )
    assert {tuple(link) for link in pairs["train"][0].tolist()} <= walked | {
        (b, a) for a, b in walked
    }


def test_pairs_of_the_holdout_are_no_links_and_no_loops(caplog):
    links = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 2, 3, 4, 0, 3]])
    drawn = np.random.default_rng(0).integers(6, size=(400, 2))
    pairs = redraw_linked(np.random.default_rng(1), drawn, sort_edges(links, 6)[0], 6)
    linked = {frozenset(edge) for edge in links.t().tolist()}
    assert not any(len(pair) == 1 or pair in linked for pair in map(frozenset, pairs.tolist()))
    good = [len(pair) == 2 and pair not in linked for pair in map(frozenset, drawn.tolist())]
    assert 50 < sum(good) < 350 and np.array_equal(pairs[good], drawn[good])
    every = sort_edges(torch.combinations(torch.arange(6)).t(), 6)[0]
    assert redraw_linked(np.random.default_rng(1), drawn, every, 6).shape == (400, 2)
    assert "400 pairs drawn for the AUC are still a link or one node twice" in caplog.text
