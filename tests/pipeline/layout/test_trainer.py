"""Layouts: the kernel against the reference, neighbours, scores, the same bits for threads, ranks and restarts."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.manifold import trustworthiness
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from parallel_epochs.models.embedding import layout, spectral
from parallel_epochs.models.embedding.layout import Drawn, EdgeBlock, LayoutOptions
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph import neighbors
from parallel_epochs.pipeline.graph.node_parts import deal_nodes, sort_into_blocks
from parallel_epochs.pipeline.graph.walks import alias_tables
from parallel_epochs.pipeline.layout import build as build_layout, nearest, probe as layout_probe
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.training import prepare
from tests.helpers import building, layout_numpy
from tests.helpers.building import EvaluateConfig
from tests.helpers.communities import assert_chances
from tests.helpers.running import finish, rounds_of, summary_of, train
from tests.helpers.tensors import threads

KINDS = ("ant", "bee", "cat")


def points_of(num_points=150, dim=8, seed=0):
    """Three clouds, far from each other."""
    rng = np.random.default_rng(seed)
    kind = np.arange(num_points) % 3
    return (6 * np.eye(3, dim)[kind] + rng.standard_normal((num_points, dim))).astype(
        np.float32
    ), kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    x, kind = points_of()
    np.save(path / "x.npy", x)
    path.joinpath("labels.txt").write_text("".join(f"{KINDS[k]}\n" for k in kind))
    rng = np.random.default_rng(0)
    path.joinpath("edges.tsv").write_text(
        "".join(
            f"n{a}\tn{b}\n"
            for a in range(90)
            for b in range(a)
            if rng.random() < (0.3 if a // 30 == b // 30 else 0.01)
        )
    )
    path.joinpath("kinds.tsv").write_text("".join(f"n{a}\t{KINDS[a // 30]}\n" for a in range(90)))
    return path


@pytest.fixture
def small(folder):
    return [
        "trainer=layout",
        "data=vectors",
        f"data.path={folder / 'x.npy'}",
        f"data.labels={folder / 'labels.txt'}",
        "trainer.num_neighbors=12",
        "trainer.perplexity=5",
        "trainer.num_parts=5",
        "train.epochs=20",
    ]


@pytest.fixture
def graph(folder):
    return [
        "trainer=layout",
        "data=edges",
        f"data.path={folder / 'edges.tsv'}",
        "trainer.num_parts=4",
        "train.epochs=20",
    ]


def problem(num_heads=23, num_tails=17, num_edges=120, seed=0):
    """A block behind rows and edges that are none of its own."""
    rng = np.random.default_rng(seed)
    edges = np.stack(
        [rng.integers(num_heads, size=num_edges), rng.integers(num_tails, size=num_edges)], 1
    )
    weight = [
        torch.from_numpy(rng.exponential(size=size).astype(np.float32))
        for size in (num_edges, 5 + num_heads + num_tails)
    ]
    drawn = Drawn(
        torch.from_numpy(edges.astype(np.int32)),
        *alias_tables(torch.tensor([0, 20, num_edges]), weight[0]),
        *alias_tables(torch.tensor([0, 5, 5 + num_heads, 5 + num_heads + num_tails]), weight[1]),
    )
    return drawn, EdgeBlock(4, 5, 5 + num_heads, num_tails, 20, num_edges - 20, 1500)


def places(num_rows, dim, seed=1):
    return 2 * torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "dim, num_negatives, smooth, attraction",
    [(2, 8, 1.0, 4.0), (3, 5, 0.1, 1.0), (2, 1, 0.1, 1.0), (3, 64, 1.0, 1.0)],
)
def test_native_and_reference_agree(dim, num_negatives, smooth, attraction):
    drawn, block = problem()
    before = places(45, dim)
    native, plain = before.clone(), before.clone()
    options = LayoutOptions(num_negatives=num_negatives, negative_weight=3.0, smooth=smooth)
    found = [
        train_blocks(rows, [[block]], drawn, options, lr=0.05, key=7, attraction=attraction)
        for rows, train_blocks in ((native, layout.train), (plain, layout_numpy.train))
    ]
    torch.testing.assert_close(native, plain, rtol=1e-3, atol=1e-4)
    assert found[0] == pytest.approx(found[1], rel=1e-4) and found[0][1] > 0
    assert torch.equal(native[:5], before[:5]), "rows of other partitions stay"
    assert not torch.equal(native, before)


def test_a_tile_moves_along_the_gradient():
    """Of one edge, drawn once: the gradient of the loss that is written down, of unclipped moves."""
    drawn = Drawn(
        torch.tensor([[0, 1]], dtype=torch.int32),
        torch.ones(1),
        torch.zeros(1, dtype=torch.int32),
        torch.tensor([0.0, 0.0, 1.0]),
        torch.full((3,), 2, dtype=torch.int32),
    )  # all negatives are point 2
    start = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.6, 0.4]])
    options, rows = LayoutOptions(num_negatives=4, negative_weight=2.0), start.clone()
    layout.train(rows, [[EdgeBlock(0, 0, 0, 3, 0, 1, 1)]], drawn, options, lr=1e-3, key=3)
    at = start.double().requires_grad_()
    square, other = (at[0] - at[1]).square().sum(), (at[0] - at[2]).square().sum()
    # With smooth = 1 the push is along the gradient of 1 / (1 + d^2).
    (square.log1p() + 2.0 / (1 + other)).backward()
    torch.testing.assert_close((rows.double() - start) / 1e-3, -at.grad, rtol=0, atol=2e-3)


def test_moves_are_clipped():
    drawn, block = problem()
    rows = 1e-3 * places(45, 2)
    moved = rows.clone()
    block = dataclasses.replace(block, num_pairs=1)
    layout.train(
        moved, [[block]], drawn, LayoutOptions(num_negatives=1, negative_weight=1e9), lr=0.01, key=0
    )
    assert 0.049 < float((moved - rows).abs().max()) <= 0.0501 + 0.01


def test_every_edge_is_in_its_block():
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((40, 40)) * (rng.random((40, 40)) < 0.3), 1)
    matrix = neighbors.symmetrise(build_layout.sp.csr_array(dense))
    parts = deal_nodes(torch.from_numpy(np.asarray(matrix.sum(1)).ravel()), 3)
    sorted_edges, found = sort_into_blocks(matrix, parts), np.zeros((40, 40))
    for block in range(9):
        i, j = divmod(block, 3)
        own = slice(int(sorted_edges.ptr[block]), int(sorted_edges.ptr[block + 1]))
        nodes = [
            parts.node[parts.ptr[part] + sorted_edges.edges[own, side].long()]
            for side, part in enumerate((i, j))
        ]
        found[nodes[0], nodes[1]] = sorted_edges.weight[own]
        assert sorted_edges.mass[block] == pytest.approx(
            float(sorted_edges.weight[own].sum()), rel=1e-5
        )
    np.testing.assert_allclose(found, (dense + dense.T) / 2, rtol=1e-6)


@pytest.mark.parametrize("dim", [3, 40])
def test_neighbours_are_those_of_all_distances(dim):
    x = np.random.default_rng(0).standard_normal((300, dim)).astype(np.float32)
    x[10:15] = x[9]  # as near as can be
    found, distance = neighbors.find_neighbors(x, 7)
    whole = cdist(x, x, "sqeuclidean")
    np.fill_diagonal(whole, np.inf)
    expected = np.sort(whole, 1)[:, :7]
    np.testing.assert_allclose(distance, expected, rtol=1e-5, atol=1e-10)
    np.testing.assert_allclose(np.take_along_axis(whole, found, 1), expected, rtol=1e-5, atol=1e-10)
    assert not (found == np.arange(300)[:, None]).any()


def test_approximate_neighbours_are_nearly_those():
    pytest.importorskip("faiss")
    x = np.random.default_rng(0).standard_normal((2000, 12)).astype(np.float32)
    exact, found = (neighbors.find_neighbors(x, 10, how=how)[0] for how in ("exact", "approximate"))
    same = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(exact, found)])
    assert same > 0.95
    with threads(3):
        again = neighbors.find_neighbors(x, 10, how="approximate")[0]
    assert np.array_equal(again, found)


def test_faiss_is_asked_for_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(neighbors.importlib.util, "find_spec", lambda name: None)
    assert neighbors.choose_search(50_000) == "exact"
    with pytest.raises(ValueError, match=r"not installed: pip .* '.\[layout\]'"):
        neighbors.choose_search(50_001)


def test_every_point_has_the_perplexity():
    x = np.random.default_rng(0).standard_normal((80, 5)).astype(np.float32)
    _, distance = neighbors.find_neighbors(x, 20)
    weight = neighbors.calibrate(distance, 7.0)
    np.testing.assert_allclose(weight.sum(1), 1)
    np.testing.assert_allclose(np.exp(-(weight * np.log(weight)).sum(1)), 7.0, rtol=1e-6)
    assert (np.diff(weight, axis=1) <= 0).all(), "the nearer count more"
    equal = neighbors.calibrate(np.zeros((3, 6)), 2.0)
    np.testing.assert_allclose(equal, 1 / 6)


def test_principal_components_are_those_of_all_of_them():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((500, 30)) * 0.5 ** np.arange(30) + 3).astype(np.float32)
    found = neighbors.reduce_vectors(x, 4, np.random.default_rng(1))
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, :4] * s[:4]), rtol=1e-3, atol=1e-3)
    assert neighbors.reduce_vectors(x[:, :2], 5, np.random.default_rng(1)).shape == (500, 2)


def test_smooth_functions_on_a_path():
    """Of a path they are cosines; a component of its own and a lone point get a place as well."""
    links = build_layout.sp.diags_array([np.ones(29)] * 2, offsets=[-1, 1], shape=(30, 30)).tocsr()
    found = spectral.diffuse(links, 2, rng=np.random.default_rng(0), num_steps=4000)
    expected = np.cos(np.pi * (np.arange(30) + 0.5) / 30)
    assert abs(np.corrcoef(found[:, 0], expected)[0, 1]) > 0.99
    with_lone = build_layout.sp.block_diag([links, np.zeros((1, 1))]).tocsr()
    assert np.isfinite(
        spectral.diffuse(build_layout.sp.csr_array(with_lone), 3, rng=np.random.default_rng(0))
    ).all()
    assert spectral.diffuse(
        build_layout.sp.csr_array((2, 2)), 3, rng=np.random.default_rng(0)
    ).shape == (2, 3)


@pytest.mark.slow
def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    x, positions = (
        rng.standard_normal((200, 6)).astype(np.float32),
        rng.standard_normal((200, 2)).astype(np.float32),
    )
    positions[:100] += 0.5 * x[:100, :2]
    labels = np.where(positions[:, 0] > 0, 3, rng.integers(0, 3, 200))
    expected = cross_val_score(KNeighborsClassifier(10), positions, labels, cv=LeaveOneOut()).mean()
    assert layout_probe.vote(positions, labels) == pytest.approx(expected) and 0.4 < expected < 0.9
    some = np.concatenate([labels, [-1, -1]])
    more = np.concatenate([positions, positions[:2]])
    assert layout_probe.vote(more, some) == pytest.approx(expected), (
        "points without a label do not vote"
    )
    everything = np.arange(200)
    found = layout_probe.trust(positions, x, everything)
    assert found == pytest.approx(trustworthiness(x, positions, n_neighbors=5), abs=1e-6)
    halves = [layout_probe.trust(positions, x, part) for part in (everything[:90], everything[90:])]
    assert (90 * halves[0] + 110 * halves[1]) / 200 == pytest.approx(found)
    links, others = rng.integers(200, size=(50, 2)), rng.integers(200, size=(70, 2))
    pairs = np.concatenate([links, others])
    length = np.linalg.norm(positions[pairs[:, 0]] - positions[pairs[:, 1]], axis=1)
    assert layout_probe.compare_links(positions, links, others) == pytest.approx(
        roc_auc_score(np.r_[np.ones(50), np.zeros(70)], -length)
    )


def test_scores_of_degenerate_layouts():
    assert np.isnan(layout_probe.vote(np.zeros((3, 2)), np.array([0, -1, -1])))
    assert np.isnan(
        layout_probe.trust(np.zeros((10, 2)), np.zeros((10, 2), np.float32), np.arange(10))
    )
    same = layout_probe.nearest_in(np.zeros((30, 2)), 5)
    assert same.shape == (30, 5) and not (same == np.arange(30)[:, None]).any()


@pytest.mark.parametrize(
    "overrides",
    [[], ["trainer.num_parts=900"]],
)
def test_each_way_parts_the_clouds(overrides, small, configure, tmp_path):
    summary = train(configure(*small, *overrides), tmp_path / "run")
    assert summary["metric"] == "knn_acc" and summary["test"] > 0.95
    assert (
        summary["scores"]["knn_acc"] == summary["test"]
        and summary["scores"]["trustworthiness"] > 0.8
    )
    with np.load(tmp_path / "run" / "layout.npz", allow_pickle=False) as found:
        assert found["position"].shape == (150, 2)
        assert found["position"].dtype == np.float32 and np.isfinite(found["position"]).all()
        assert found["names"].tolist() == [str(number) for number in range(150)]
        assert found["label_names"].tolist() == list(KINDS) and str(found["title"]) == "x"
        assert (
            np.array_equal(found["labels"], np.arange(150) % 3)
            and found["labels"].dtype == np.int64
        )


def test_a_graph_with_and_without_labels(graph, folder, configure, tmp_path):
    summary = train(configure(*graph), tmp_path / "alone")
    assert summary["metric"] == "auc" and summary["test"] > 0.8
    with np.load(tmp_path / "alone" / "layout.npz") as found:
        assert sorted(found["names"])[:2] == ["n0", "n1"] and (found["labels"] == -1).all()
        assert found["label_names"].size == 0
    summary = train(configure(*graph, f"data.labels={folder / 'kinds.tsv'}"), tmp_path / "labelled")
    assert (
        summary["metric"] == "knn_acc" and summary["test"] > 0.9 and summary["scores"]["auc"] > 0.8
    )


def test_negatives_are_drawn_by_a_power_of_the_points_weights(graph, configure):
    config = configure(*graph)
    data = building.open_graph(config).data
    trainer = building.build_trainer(config, data)
    degree = torch.bincount(
        data.edge_index.as_tensor()[1].long(), minlength=data.num_nodes
    ).double()
    assert_chances(trainer._blocks[1], trainer.parts, degree**0.75)


def test_threads_give_the_same_bits(small, configure, tmp_path):
    """From neighbours to scores: each has a cache of its own."""
    config = configure(*small, "trainer.pca_dim=5")
    runs = [
        train(
            keys.replaced(
                config,
                {
                    "parallel.threads_per_rank": threads,
                    "cache_dir": str(tmp_path / f"cache{threads}"),
                },
            ),
            tmp_path / f"{threads}",
        )
        for threads in (1, 3)
    ]
    assert (
        runs[0]["weights_sha256"] == runs[1]["weights_sha256"]
        and runs[0]["scores"] == runs[1]["scores"]
    )


def test_seeds_and_learning_rates(small, configure, tmp_path):
    config = configure(*small)
    runs = [train(keys.replaced(config, {"seed": seed}), tmp_path / f"{seed}") for seed in (0, 1)]
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]
    rates = [record["lr"] for record in rounds_of(tmp_path / "0")]
    assert len(rates) == 20 and rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.03 * 0.5


def test_neighbours_are_kept(small, configure, tmp_path, monkeypatch):
    prepare(configure(*small))
    assert len(list((tmp_path / "cache" / "graphs").glob("vectors-*-neighbors-*.pt"))) == 1
    monkeypatch.setattr(nearest, "_find_neighbors", None)  # not looked for again
    train(configure(*small, "seed=3"), tmp_path / "run")
    with pytest.raises(TypeError):
        train(configure(*small, "trainer.perplexity=4"), tmp_path / "other")


def test_the_search_for_neighbours_may_take_long_and_keeps_beating(
    small, configure, tmp_path, monkeypatch
):
    folder, signs, beats = tmp_path / "board", [], []
    (folder).mkdir()
    (folder / "board").write_bytes(bytes(pulse._LAYOUT.size))
    board = pulse.Board(folder)

    def calibrate(distance, perplexity, calibrate=neighbors.calibrate):
        before = board.signs()[0]
        weight = calibrate(distance, perplexity)
        signs.append(board.signs()[0])
        beats.append(signs[-1].beat - before.beat)
        return weight

    monkeypatch.setattr(neighbors, "calibrate", calibrate)
    pulse.join(board, 0, 0)
    try:
        prepare(configure(*small))
    finally:
        pulse.leave()
    assert [(sign.state, sign.doing) for sign in signs] == [
        (pulse.State.LONG, "looking for neighbours")
    ]
    assert beats[0] > 0  # a heartbeat for each chunk


@pytest.mark.slow
def test_ranks_give_the_same_bits(small, configure, tmp_path):
    runs = {"one": train(configure(*small), tmp_path / "one")}
    for ranks in (2, 3):
        status, output = finish(
            [*small, f"parallel.num_ranks={ranks}"], tmp_path / f"{ranks}", tmp_path / "other"
        )
        assert status == 0, output
        runs[f"{ranks} ranks"] = summary_of(tmp_path / f"{ranks}")
        assert (tmp_path / f"{ranks}" / "layout.npz").exists()
    assert len({summary["weights_sha256"] for summary in runs.values()}) == 1
    assert len({summary["test"] for summary in runs.values()}) == 1


def test_evaluate_and_predict(small, configure, tmp_path):
    summary = train(configure(*small, "train.epochs=3"), tmp_path / "run")
    for which in ("best", "last"):
        scores = building.evaluate(EvaluateConfig(run=str(tmp_path / "run"), checkpoint=which))
        assert (
            scores["test"] == summary["test"]
            and scores["trustworthiness"] == summary["scores"]["trustworthiness"]
        )
    for ending in ("npy", "parquet", "txt", "pt"):
        building.predict(
            EvaluateConfig(run=str(tmp_path / "run"), predictions=str(tmp_path / f"p.{ending}"))
        )
    with np.load(tmp_path / "run" / "layout.npz") as found:
        assert np.array_equal(np.load(tmp_path / "p.npy"), found["position"])


def test_saved_vectors_are_laid_out(folder, configure, tmp_path):
    """Vectors of nodes, saved with their names; labels by these."""
    train(
        configure(
            "trainer=node_embedding",
            "data=edges",
            f"data.path={folder / 'edges.tsv'}",
            "trainer.dim=12",
            "trainer.num_parts=4",
            "trainer.walk_length=10",
            "train.epochs=60",
            "train.eval_every=60",
            "trainer.holdout=0.1",
        ),
        tmp_path / "run",
    )
    graphs = []
    for ending in ("txt", "parquet"):
        path = tmp_path / f"nodes.{ending}"
        building.predict(EvaluateConfig(run=str(tmp_path / "run"), predictions=str(path)))
        config = configure(
            "trainer=layout",
            "data=vectors",
            f"data.path={path}",
            f"data.labels={folder / 'kinds.tsv'}",
            "trainer.num_neighbors=10",
            "trainer.perplexity=4",
            "train.epochs=15",
        )
        graphs.append(building.open_graph(config).data)
    for data in graphs:
        assert unpack_names(data) == unpack_names(graphs[0]) and torch.equal(data.y, graphs[0].y)
        torch.testing.assert_close(
            data.x, graphs[0].x, rtol=1e-5, atol=1e-7
        )  # text has fewer digits
    assert train(config, tmp_path / "layout")["test"] > 0.8
    with np.load(tmp_path / "layout" / "layout.npz") as found:
        assert sorted(found["names"])[:2] == ["n0", "n1"] and found["label_names"].tolist() == list(
            KINDS
        )
