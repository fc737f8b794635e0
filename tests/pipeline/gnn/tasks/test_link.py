"""Link prediction as a user runs it: training, ranks, resuming, evaluation, predictions, and bad inputs."""

import contextlib
import copy
import dataclasses

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, schema as configuration
from parallel_epochs.pipeline.data.cache import load, read
from parallel_epochs.pipeline.data.config import OGBLinkConfig
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import link_metric
from parallel_epochs.pipeline.names import PAIRS
from tests.helpers import building as build, building as restore, official
from tests.helpers.building import EvaluateConfig
from tests.helpers.files import OWN_NEGATIVES, write_csv, write_links
from tests.helpers.graphs import link_graph
from tests.helpers.running import train

pytestmark = pytest.mark.usefixtures("importable")
CPU = torch.device("cpu")
SMALL = [
    "data=ogb_link",
    "task=link",
    "partition=random",
    "partition.num_parts=2",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=4",
    "task.pairs_per_step=60",
]
NO_INDEX = ["task.common_neighbors=false", "task.hide_pairs=false"]


@pytest.fixture
def configure_links(configure, ogb_toy):
    """Compose a small run on the toy of ogbl-collab."""

    def compose(*overrides: str) -> configuration.RunConfig:
        return configure(*SMALL, f"data.folder={ogb_toy('ogbl-collab')}", *overrides)

    return compose


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs: its configuration and its folder, which nothing may change."""
    folder = tmp_path_factory.mktemp("trained")
    config = cli.compose_config(
        [
            *SMALL,
            f"data.folder={write_links(folder / 'toy')}",
            "train.epochs=2",
            "task.base=none",
            f"cache_dir={folder / 'cache'}",
        ]
    )
    train(config, folder / "run")
    return config, folder / "run"


def test_the_folder_is_read_as_it_is(ogb_toy, tmp_path):
    data = load(OGBLinkConfig(folder=str(ogb_toy("ogbl-collab"))), tmp_path)
    expected = link_graph(60, 240)
    assert all(torch.equal(data[key], expected[key]) for key in PAIRS) and data.metric == "hits@50"
    assert torch.equal(data.edge_index.as_tensor(), expected.edge_index.as_tensor())
    torch.testing.assert_close(data.x, expected.x, atol=1e-3, rtol=0)
    assert data.valid_mask.nonzero().squeeze(1).tolist() == sorted(
        set(data.valid_pairs.flatten().tolist())
    )


def test_a_step_follows_the_published_loss(configure_links):
    """Against the loss as it is written in the papers: minus the logarithms of the probabilities."""
    config = configure_links(
        "partition=whole", "task.num_negatives=3", "model.dropout=0", "train.epochs=1"
    )
    data = build.open_graph(config).data
    with contextlib.closing(build.build_trainer(config, data, CPU)) as trainer:
        before = copy.deepcopy(trainer.model)
        next(iter(trainer.steps()))
        batch = next(iter(trainer.loader.batches(0, trainer.schedule.share(0))))
    h = before(batch.x, batch.edge_index)
    neighborhoods = before.find_paths(batch.edge_index, batch.num_nodes)
    positive, negative = (
        before.decode(h, pairs, neighborhoods).sigmoid() for pairs in (batch.pairs, batch.negatives)
    )
    assert (len(positive), len(negative)) == (60, 180)
    (-(positive.log().mean() + (1 - negative).log().mean())).backward()
    for (name, ours), (_, theirs) in zip(
        trainer.model.named_parameters(), before.named_parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
    moved = [
        not torch.equal(a, b)
        for a, b in zip(trainer.model.predictor.parameters(), before.predictor.parameters())
    ]
    assert len(moved) == 7 and all(moved)  # three layers, and the weight of the index


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["epochs", "split"])
def test_two_ranks_take_uneven_rounds_and_agree(mode, configure_links, tmp_path):
    config = configure_links(
        f"parallel={mode}", "parallel.num_ranks=2", "train.epochs=3", "partition.num_parts=3"
    )
    summary = train(config, tmp_path / "run")
    assert (summary["data_epochs"], summary["num_rounds"]) == (3, 2 if mode == "epochs" else 3)


def test_views_of_one_cluster_are_exact(configure_links, tmp_path):
    config = configure_links("task.valid_edges=true", "train.epochs=1")
    summary = train(config, tmp_path / "run")
    assert summary["metric"] == "hits@50"
    folder = str(tmp_path / "run")
    exact = restore.restore(EvaluateConfig(run=folder, device="cpu"))
    views = restore.restore(
        EvaluateConfig(run=folder, device="cpu", method="views", num_parts=1, num_views=2)
    )
    torch.testing.assert_close(exact.rows, views.rows)
    sampled = restore.restore(
        EvaluateConfig(run=folder, device="cpu", method="neighbor", num_neighbors=[-1, -1])
    )
    torch.testing.assert_close(exact.rows, sampled.rows)
    cut = restore.restore(EvaluateConfig(run=folder, device="cpu", method="views", num_parts=4))
    assert not torch.allclose(exact.rows, cut.rows)
    evaluated = restore.evaluate(EvaluateConfig(run=folder, device="cpu"))
    assert evaluated == {
        "train": summary["train"],
        "valid": summary["best_valid"],
        "test": summary["test"],
    }
    assert evaluated == exact.setup.task.scores(exact.setup.model, exact.rows)


def test_validation_edges_are_seen_by_the_test_alone(configure_links):
    plain, seeing = (
        configure_links(f"task.valid_edges={value}", "task.metric=mrr", *NO_INDEX)
        for value in ("false", "true")
    )
    data = build.open_graph(plain).data
    rows, scores = {}, {}
    for name, config in (("plain", plain), ("seeing", seeing)):
        task = build.build_task(config, data)
        torch.manual_seed(0)
        model = build.build_model(config, data, task)
        rows[name] = build.predict_all(config, data, model=model)
        scores[name] = task.scores(model, rows[name])
        if name == "seeing":
            expected = {
                frozenset(p) for p in [*data.train_pairs.tolist(), *data.valid_pairs.tolist()]
            }
            assert {
                frozenset(e) for e in task.test_data.edge_index.as_tensor().t().tolist()
            } == expected
            logits = [
                model.decode(rows[name][:, 8:], data[key]).detach()
                for key in ("test_pairs", "test_negatives")
            ]
            assert scores[name]["test"] == link_metric("mrr", *logits)
            swapped = task.scores(model, torch.cat([rows[name][:, :8], rows["plain"]], dim=1))
    assert torch.equal(rows["seeing"][:, :8], rows["plain"]) and rows["seeing"].shape == (60, 16)
    changed = (rows["seeing"][:, 8:] != rows["plain"]).any(1)
    assert bool(changed[data.valid_pairs].all())
    assert all(scores["seeing"][split] == scores["plain"][split] for split in ("train", "valid"))
    assert swapped == scores["plain"] and scores["seeing"]["test"] != scores["plain"]["test"]


def test_common_neighbors_are_those_of_the_graph_that_a_split_is_predicted_from(configure_links):
    config = configure_links("task.valid_edges=true", "task.common_neighbors=true")
    data = build.open_graph(config).data
    task = build.build_task(config, data)
    model, rows = (
        build.build_model(config, data, task),
        torch.zeros(60, 8),
    )  # the same product for all pairs
    for of_test, splits in ((False, ["train"]), (True, ["train", "valid"])):
        linked = torch.zeros(60, 60)
        for u, v in torch.cat([data[f"{split}_pairs"] for split in splits]).tolist():
            linked[u, v] = linked[v, u] = 1
        index = (linked / linked.sum(0).clamp(min=1) @ linked)[*data.test_pairs.t()]
        logits = task.decode(model, rows, data.test_pairs, of_test=of_test)
        expected = model.predictor.index_weight.detach() * (100 * index).log1p()
        torch.testing.assert_close(logits - logits.min(), expected - expected.min())
        assert len(index.unique()) > 3


def test_predictions_are_logits_of_pairs(trained, tmp_path):
    config, run = trained
    pairs = torch.tensor([[3, 4], [4, 3], [7, 9]])
    (tmp_path / "pairs.csv").write_text("source,target\n3,4\n4,3\n7,9\n")
    options = EvaluateConfig(
        run=str(run),
        device="cpu",
        predictions=str(tmp_path / "out.pt"),
        pairs=str(tmp_path / "pairs.csv"),
    )
    restored = restore.restore(options)
    restore.save(restored, options)
    saved = torch.load(tmp_path / "out.pt")
    assert torch.equal(saved["pairs"], pairs) and saved["logits"][0] == saved["logits"][1]
    model, data = restored.setup.model, restored.setup.data
    graph = (
        restored.setup.task.test_data
    )  # the toy of ogbl-collab, which allows validation links there
    neighborhoods = model.find_paths(graph.edge_index, data.num_nodes)
    expected = model.decode(saved["embeddings"], pairs, neighborhoods).detach()
    torch.testing.assert_close(saved["logits"], expected)
    restore.save(dataclasses.replace(restored, chosen=None), options)
    saved, data = torch.load(tmp_path / "out.pt"), build.open_graph(config).data
    assert torch.equal(saved["pairs"], torch.cat([data.test_pairs, data.test_negatives]))


def broken(**changes):
    data = link_graph()
    data.update(changes)
    return data


COMPLETE = torch.tensor([(u, v) for u in range(40) for v in range(u)])


@pytest.mark.parametrize(
    "changes, error",
    [
        (
            dict(test_pairs=torch.tensor([[0, 1], [39, 40]])),
            r"test_pairs is out of range: row 1 is the pair \[39, 40\], the graph has nodes 0 to 39",
        ),
        (
            dict(train_pairs=torch.zeros(0, 2, dtype=torch.int64)),
            "train_pairs is empty: there is no training pair",
        ),
        (
            dict(train_pairs=COMPLETE),
            "all 780 pairs of the 40 nodes are training pairs, so no negative",
        ),
        (
            dict(valid_pairs=torch.zeros(3, 3, dtype=torch.int64)),
            r"valid_pairs must be integers of shape \[num_pairs, 2\]",
        ),
        (dict(valid_pairs=torch.zeros(3, 2)), "valid_pairs must be integers .* not torch.float32"),
        (dict(test_negatives=None), "test_negatives is missing: a link task needs train_pairs"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(changes, error):
    with pytest.raises(ValueError, match=f"data=ogb_link: {error}|.*: {error}"):
        prepare(broken(**changes), origin="data=ogb_link")


def test_an_empty_validation_split_is_said_and_the_run_ends(ogb_toy, configure, tmp_path, caplog):
    folder = ogb_toy("ogbl-collab")
    torch.save(
        {"edge": np.zeros((0, 2), np.int64), "edge_neg": np.zeros((0,))},
        folder / "split" / "time" / "valid.pt",
    )
    caplog.set_level("INFO")
    config = configure(*SMALL, f"data.folder={folder}", "task.metric=hits@10")
    summary = train(config, tmp_path / "run")
    assert "valid_pairs is empty: the last epoch counts as the best one" in caplog.text
    assert summary["best_epoch"] == 4 and summary["test"] >= 0
    with pytest.raises(
        ValueError, match="train.schedule=plateau follows .* hits@10 is undefined on the valid"
    ):
        train(keys.replaced(config, {"train.schedule": "plateau"}), tmp_path / "refused")


@pytest.mark.parametrize(
    "overrides, error",
    [
        (
            ["task.metric=hits@61"],
            "hits@61 of the valid split: 60 negative pairs are fewer than 61",
        ),
        (["task.predictor=dot"], "task.predictor=dot is unknown; choose one of mlp, residual"),
        (
            ["features=embedding", "features.init=identity"],
            "features.init=identity is unknown; choose one of normal, orthogonal",
        ),
        (["task.metric=recall"], "the metric recall of links is unknown; choose mrr or hits@K"),
        (
            ["loader=neighbor", "loader.num_neighbors=[3,3]"],
            "task=link needs loader=cluster, .*this run has loader=neighbor",
        ),
        (
            ["data.components=largest"],
            "task=link needs data.components=all, .*; this run has data.components=largest",
        ),
        (
            ["train.label_input=0.5"],
            "task=link needs train.label_input=0, since labels of graphs and links",
        ),
        (
            ["task=node"],
            "data=ogb_link has no labels to learn: choose data=ogb for labels of nodes, predict its links by task=link",
        ),
        (
            ["model.encode_x=false", "model.hidden_channels=16"],
            "model.encode_x=false needs an x of hidden_channels=16 columns, but x has 8",
        ),
        (
            ["partition.num_parts=60"],
            "none of the 220 training pairs lies within one of 60 clusters",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(overrides, error, configure_links, tmp_path):
    with pytest.raises(ValueError, match=error):
        train(configure_links(*overrides), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_clusters_that_lose_most_training_pairs_are_warned_of(configure_links, tmp_path, caplog):
    train(configure_links("partition.num_parts=20", "train.epochs=1"), tmp_path / "run")
    assert "no other one is learned. Lower partition.num_parts" in caplog.text


def test_folders_of_another_layout_are_named(ogb_toy, configure, tmp_path):
    folder = ogb_toy("ogbl-collab")
    config = configure(*SMALL, f"data.folder={folder}")

    def message(break_it) -> str:
        break_it(ogb_toy("ogbl-collab"))
        with pytest.raises(ValueError) as caught:
            train(config, tmp_path / "run")
        return str(caught.value).replace(str(folder), "DIR")

    split = "split/time/test.pt"
    assert message(lambda f: (f / split).unlink()) == (
        f"DIR/{split} is missing; data.folder must hold raw/ and split/ as OGB lays them out"
    )
    assert message(lambda f: (f / split).write_text("?")).startswith(
        f"DIR/{split} is damaged, or does not hold pairs"
    )
    assert message(lambda f: torch.save([1], f / split)) == (
        f"DIR/{split} holds a list, not a table of pairs for each of its names"
    )
    assert message(lambda f: torch.save({"edge": np.zeros((1, 2), np.int64)}, f / split)) == (
        f"DIR/{split} has no table of pairs 'edge_neg' for the test split"
    )
    assert message(lambda f: (f / "raw" / "edge.csv.gz").unlink()).startswith(
        "DIR/raw/edge.csv.gz is missing"
    )
    assert message(lambda f: write_csv(f / "raw" / "num-edge-list.csv.gz", [9])) == (
        "DIR/raw/edge.csv.gz has 220 rows, and must have 9"
    )


def test_each_pair_is_ranked_among_its_own_negatives(ogb_toy, configure, tmp_path):
    folder = ogb_toy("ogbl-citation2")
    options = [*SMALL, "data.name=ogbl-citation2", f"data.folder={folder}"]
    data = build.open_graph(configure(*options)).data
    saved = torch.load(folder / "split" / "time" / "test.pt", weights_only=False)
    assert (
        data.negatives_per_pair == OWN_NEGATIVES
        and data.test_pairs[:, 0].tolist() == saved["source_node"].tolist()
    )
    lists = data.test_negatives.view(-1, OWN_NEGATIVES, 2)
    assert lists[:, :, 1].tolist() == saved["target_node_neg"].tolist()
    assert bool((lists[:, :, 0] == data.test_pairs[:, :1]).all())
    task, rng = LinkTask(data, hidden_channels=4), torch.Generator().manual_seed(0)
    # With many ties.
    scored = {
        key: torch.randint(5, (len(task.pairs_of(key)),), generator=rng).float() for key in PAIRS
    }
    scores = task.rank_pairs(scored.get)
    for split, others in (("train", "valid"), ("valid", "valid"), ("test", "test")):
        ranks = [
            1 + sum((score > own) + 0.5 * (score == own) for score in negatives)
            for own, negatives in zip(
                scored[f"{split}_pairs"].tolist(),
                scored[f"{others}_negatives"].view(-1, OWN_NEGATIVES).tolist(),
            )
        ]
        assert scores[split] == pytest.approx(np.mean(1 / np.array(ranks)))
    own = scored["test_negatives"].view(-1, OWN_NEGATIVES)
    expected = official.score_pairs("mrr", scored["test_pairs"], own)
    assert scores["test"] == pytest.approx(expected)
    summary = train(configure(*options), tmp_path / "run")
    assert summary["metric"] == "mrr" and 1 / (OWN_NEGATIVES + 1) < summary["test"] < 1


@pytest.mark.parametrize(
    "part, change, message",
    [
        (
            "test",
            lambda saved: saved.pop("target_node_neg"),
            r"the test split must have .* target_node_neg, \[num_pairs, ",
        ),
        (
            "train",
            lambda saved: saved.update(target_node=saved["target_node"].astype(float)),
            "the train split must have",
        ),
        (
            "valid",
            lambda saved: saved.update(target_node_neg=saved["target_node_neg"][:, 1:]),
            "a validation pair has 19 negatives and a test pair 20: they must have as many",
        ),
        (
            "test",
            lambda saved: saved["target_node_neg"].__setitem__((2, 3), 60),
            "test_negatives is out of range: row 43",
        ),
    ],
)
def test_lists_of_negatives_that_do_not_fit_are_refused(part, change, message, ogb_toy):
    folder = ogb_toy("ogbl-citation2")
    path = folder / "split" / "time" / f"{part}.pt"
    saved = torch.load(path, weights_only=False)
    change(saved)
    torch.save(saved, path)
    with pytest.raises(ValueError, match=message):
        prepare(
            read(OGBLinkConfig(folder=str(folder), name="ogbl-citation2")), origin="data=ogb_link"
        )
