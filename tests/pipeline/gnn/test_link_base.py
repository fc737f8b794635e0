"""The simple method that a run on links begins at: what it may read, how it is chosen, and what the run answers."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.links import LinkSplit, divide_links
from parallel_epochs.pipeline.gnn.base import link_base, link_fusion, walks
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.base.fusion import Kept
from parallel_epochs.pipeline.gnn.base.link_base import (
    Trial,
    add_up,
    fit_link_base,
    scorer_of,
    try_out,
    values_by_source,
)
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig, NewDataConfig
from parallel_epochs.pipeline.gnn.predict.command import predict_rows
from parallel_epochs.pipeline.gnn.predict.ranking import Direction, Links, rank
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import link_metric, ranking_metric, values_of_pairs
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.saved import SavedRun
from tests.helpers import building as restore
from tests.helpers.graphs import random_graph
from tests.helpers.running import finish, summary_of, train

SMALL = [
    "task=link",
    "partition=whole",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
    "task.predictor=bilinear",
]
SPLIT = LinkSplit("random", 0.6, 0.2, 0, "sum")


def people(num_nodes: int = 60, num_edges: int = 300):
    """A graph of links without direction."""
    return divide_links(random_graph(num_nodes, num_edges, 3), SPLIT, "people")


def task_of(data, metric: str, **options) -> LinkTask:
    return LinkTask(data, hidden_channels=4, metric=metric, **options)


def base_of(name: str) -> Base:
    """Return a single walk as the simple method."""
    fitted = {"weights": {name: 1.0}, "units": {name: 1.0}}
    return Base("walk", name, None, {}, False, 0.0, fitted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": []},
        {"units": {}},
        {"scales": None},
        {"scales": [1.0, 0.0]},
        {"logit": []},
        {"logit": [1.0, math.nan]},
        {"weights": {"item cosine": "x"}},
        {"weights": {"item cosine": 1e308}},
    ],
)
def test_numbers_that_no_sum_of_walks_has_are_refused(wrong):
    right = {**base_of("item cosine").fitted, "scales": [1.0, 2.0], "logit": [1.0, 0.0]}
    assert link_fusion.base_of(Kept("sum", "a sum", 0.5, [1.0, 0.0], False, right)).fitted == right
    with pytest.raises(DamagedFile, match=r"^base\.pt is damaged"):
        link_fusion.base_of(Kept("sum", "a sum", 0.5, [1.0, 0.0], False, {**right, **wrong}))


def write_shop(folder, *, num_users: int = 40, num_items: int = 25, cold: int = 3):
    """Write tables of users with a city, of items, and of who bought what: users of a city buy the same third of items.

    The last users and items have no link.
    """
    rng = np.random.default_rng(0)
    users, items = np.arange(num_users), np.arange(num_items)
    pairs = [
        (user, item)
        for user in users[:-cold]
        for item in items[:-cold]
        if rng.random() < (0.6 if item % 3 == user % 3 else 0.05)
    ]
    pd.DataFrame(
        {"id": [f"u{user}" for user in users], "city": [f"c{user % 3}" for user in users]}
    ).to_csv(folder / "users.csv", index=False)
    pd.DataFrame({"id": [f"i{item}" for item in items], "price": items % 7}).to_csv(
        folder / "items.csv", index=False
    )
    pd.DataFrame({"id": ["c0", "c1", "c2"]}).to_csv(folder / "cities.csv", index=False)
    pd.DataFrame(pairs, columns=["user", "item"]).assign(
        user=lambda table: "u" + table["user"].astype(str),
        item=lambda table: "i" + table["item"].astype(str),
    ).to_csv(folder / "bought.csv", index=False)
    (folder / "shop.yaml").write_text("""
nodes:
  user: {path: users.csv, id: id}
  item: {path: items.csv, id: id, features: [price]}
  city: {path: cities.csv, id: id}
edges:
  buys: {path: bought.csv, source: {type: user, column: user}, target: {type: item, column: item}}
  lives: {path: users.csv, source: {type: user, column: id}, target: {type: city, column: city}}
""")
    return [
        *SMALL,
        "data=tables",
        f"data.schema={folder / 'shop.yaml'}",
        "task.relation=buys",
        "model=rgcn",
        f"cache_dir={folder / 'cache'}",
    ]


def plain_shop(folder):
    """Write a table of who bought what alone."""
    write_shop(folder)
    return [
        *SMALL,
        "data=tables",
        f"data.edges.path={folder / 'bought.csv'}",
        "data.edges.source=user",
        "data.edges.target=item",
        f"cache_dir={folder / 'cache'}",
    ]


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A run on typed tables with a ranking metric."""
    folder = tmp_path_factory.mktemp("answered")
    config = cli.compose_config([*write_shop(folder), "task.metric=recall@5"])
    return folder, config, train(config, folder / "run")


@pytest.mark.parametrize("metric", ["recall@5", "rocauc"])
@pytest.mark.parametrize("kind", ["people", "shop", "typed"])
def test_a_link_that_is_hidden_does_not_show_in_any_score(metric, kind, tmp_path):
    """The scores of every method are the same when the links of validation and test are other ones."""
    if kind == "people":
        data = people()
    else:
        config = cli.compose_config(
            write_shop(tmp_path) if kind == "typed" else plain_shop(tmp_path)
        )
        data = restore.open_graph(config).parts[0].data
    other = data.clone()
    for split in (
        "valid",
        "test",
    ):  # the same nodes on both sides, so that the candidates are the same ones
        pairs = data[f"{split}_pairs"]
        other[f"{split}_pairs"] = torch.stack([pairs[:, 0], pairs[:, 1].roll(1)], dim=1)
    of_pairs, pairs = metric == "rocauc", torch.cat([data.test_pairs, data.valid_pairs])
    found = []
    for graph in (data, other):
        links = Links(graph)
        matrix = walks.matrix_of(links.answers("train"), graph.num_nodes)
        assert matrix.sum() == len(data.train_pairs) * (1 + links.is_two_way)
        found.append(
            {
                name: build().of_pairs(links.direct(pairs))
                for name, build in walks.find_walks(links, matrix, graph, of_pairs=of_pairs).items()
            }
        )
    assert found[0].keys() == found[1].keys() and len(found[0]) >= 5 - (
        kind == "people" and of_pairs
    )
    for name, scores in found[0].items():
        assert scores.equal(found[1][name]), name


@pytest.mark.parametrize("metric", ["recall@5", "ap"])
def test_validation_is_scored_by_training_links_alone_and_test_by_those_that_it_may_know(metric):
    data = people()
    data.edge_attr = None
    base = base_of("resource allocation over two hops")
    for valid_edges in (False, True):
        task = task_of(data, metric, valid_edges=valid_edges)
        for of_test in (False, True):
            known = [data.train_pairs, *[data.valid_pairs] * (of_test and valid_edges)]
            x = np.zeros((60, 60), np.float32)
            source, target = torch.cat(known).numpy().T
            x[source, target] = x[target, source] = 1
            expected = np.log1p(x / np.maximum(x.sum(0), 1) @ x)
            every = torch.arange(60)
            found = scorer_of(base, data, task, of_test=of_test)
            np.testing.assert_allclose(found(every, every), expected, atol=1e-5)
            pairs = torch.cartesian_prod(every, every)
            np.testing.assert_allclose(found.of_pairs(pairs).view(60, 60), expected, atol=1e-5)


def test_the_scores_of_pairs_are_those_of_all_candidates(tmp_path, monkeypatch):
    monkeypatch.setattr(walks, "BLOCK", 7)
    data = restore.open_graph(cli.compose_config(write_shop(tmp_path))).parts[0].data
    links = Links(data)
    matrix = walks.matrix_of(links.answers("train"), data.num_nodes)
    found = {
        **walks.find_walks(links, matrix, data),
        **walks.find_walks(links, matrix, data, of_pairs=True),
    }
    assert "walks along lives, lives back, buys" in found and "walks along buys" not in found
    for direction in links.answered:
        pairs = torch.cartesian_prod(direction.sources, direction.candidates)
        for name, build in found.items():
            for walk in (build(), build().in_logarithms(0.5)):
                torch.testing.assert_close(
                    walk.of_pairs(pairs).view(len(direction.sources), -1),
                    walk(direction.sources, direction.candidates),
                    msg=name,
                )


def test_a_walk_along_relations_is_a_product_of_probabilities(tmp_path):
    data = restore.open_graph(cli.compose_config(write_shop(tmp_path))).parts[0].data
    links, own = Links(data), data.types
    buys = np.zeros((data.num_nodes,) * 2)
    buys[tuple(data.train_pairs.numpy().T)] = 1
    lives = np.zeros_like(buys)
    number = [name for _, name, _ in own.relations].index("lives")
    lives[tuple(data.edge_index.as_tensor()[:, data.edge_attr[:, 0] == number].numpy())] = 1
    step = [each / np.maximum(each.sum(1, keepdims=True), 1) for each in (lives, lives.T, buys)]
    walk = walks.find_walks(links, walks.matrix_of(links.answers("train"), data.num_nodes), data)[
        "walks along lives, lives back, buys"
    ]()
    every = torch.arange(data.num_nodes)
    np.testing.assert_allclose(walk(every, every), step[0] @ step[1] @ step[2], atol=1e-6)


@pytest.mark.parametrize("metric", ["hits@3", "mrr", "rocauc", "ap"])
def test_a_metric_of_pairs_is_the_mean_of_what_each_link_adds(metric):
    rng = torch.Generator().manual_seed(0)
    positive, negative = (
        torch.randint(0, high, (num,), generator=rng).float() for high, num in ((9, 40), (7, 60))
    )
    assert float(values_of_pairs(metric, positive, negative).mean()) == pytest.approx(
        link_metric(metric, positive, negative)
    )


def test_equal_scores_get_the_mean_of_their_ranks():
    source = torch.tensor([4, 4, 4, 4, 9, 9, 9])
    is_link = torch.tensor([1, 0, 0, 1, 0, 1, 0]).bool()
    scores = torch.tensor([2.0, 2, 2, 1, 0, 0, 5])
    values = values_by_source("mrr@5", is_link, source)
    assert values(scores).tolist() == [1 / 2, 1 / 2.5]
    assert values(torch.zeros(7)).tolist() == [1 / 2.5, 1 / 2]


def test_a_trial_ranks_the_links_of_validation_as_the_metric_does():
    """With as many candidates as there are, its mean is the metric of the split."""
    data, links = people(), Links(people())
    task = task_of(data, "ndcg@20")
    walk = walks.allocate_in_two_hops(walks.matrix_of(links.answers("train"), 60))
    trial = try_out(task, links, [walk])
    answers = links.answers("valid")
    whole = ranking_metric(
        "ndcg@20", rank(walk, answers, links.known("valid"), links.answered), answers[:, 0]
    )
    assert float(trial.values(trial.columns[:, 0]).mean()) == pytest.approx(whole, abs=0.02)


def test_methods_are_added_while_the_metric_of_the_picked_values_grows():
    truth = torch.zeros(40)
    truth[::2] = 1
    noise = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    columns = torch.stack([truth + noise[:, 0], truth + noise[:, 1], noise[:, 2]], dim=1)
    is_link = truth.bool()
    trial = Trial(
        columns, lambda scores: values_of_pairs("rocauc", scores[is_link], scores[~is_link])
    )
    every = torch.ones(20, dtype=torch.bool)
    weights = add_up(trial, every)
    assert weights[0] > 0 and weights[1] > 0
    score = float(trial.values(columns @ weights).mean())
    assert score > max(float(trial.values(column).mean()) for column in columns.t())
    other = columns.clone()
    other[is_link.nonzero().squeeze(1)[10:]] -= 100
    changed = Trial(other, trial.values)
    first = torch.arange(20) < 10
    assert add_up(changed, first).equal(add_up(trial, first))  # what is not picked is not read


@pytest.mark.parametrize("metric", ["recall@5", "mrr@5", "rocauc", "hits@10"])
def test_the_chosen_method_is_not_below_popularity(metric, tmp_path):
    config = cli.compose_config([*write_shop(tmp_path), f"task.metric={metric}"])
    setup = restore.open_graph(config).parts[0]
    base, task, data = setup.base, setup.task, setup.data
    plain = walks.DEGREES if metric in ("rocauc", "hits@10") else walks.POPULARITY
    popular = base_of(plain)
    valid = link_base.score_by(scorer_of(popular, data, task, of_test=False), task, "valid")
    test = link_base.score_by(scorer_of(base, data, task, of_test=True), task, "test")
    assert base.scores["valid"] > valid and base.scores["test"] == pytest.approx(test)
    again = fit_link_base(data, task, setup.config.task.base_seconds)
    assert (
        again.fitted["weights"] == base.fitted["weights"]
        and again.scores["valid"] == base.scores["valid"]
    )


def test_a_method_that_scores_all_pairs_alike_is_no_part_of_the_answer(tmp_path, monkeypatch):
    """Its scores would be divided by a deviation of nothing."""
    found = walks.find_walks

    def with_nothing(links, matrix, *args, **options):
        nothing = matrix.copy()
        nothing.data[:] = 0
        return {
            **found(links, matrix, *args, **options),
            "nothing": lambda: walks.Walk(nothing, matrix),
        }

    monkeypatch.setattr(link_base, "find_walks", with_nothing)
    config = cli.compose_config([*write_shop(tmp_path), "task.metric=recall@5"])
    base = restore.open_graph(config).parts[0].base
    assert "nothing" not in base.fitted["weights"] and max(base.fitted["weights"].values()) < 1e4


def test_a_method_that_takes_too_long_is_left_out(caplog):
    caplog.set_level("INFO")
    data = people()
    base = fit_link_base(data, task_of(data, "recall@5"), 1e-9)
    assert set(base.fitted["weights"]) == {walks.POPULARITY} and base.name == "walk"
    assert any(
        "left out, since they would take more than task.base_seconds" in text
        for text in caplog.messages
    )


@pytest.mark.parametrize("mended, leaves", [(0, False), (1, False), (15, True)])
def test_the_simple_method_is_left_for_more_than_a_standard_error(mended, leaves):
    simple = torch.zeros(100)
    simple[:50] = 1
    network = simple.clone()
    network[50 : 50 + mended] = 5
    network[: mended // 3] = -5
    share, gain, error = link_fusion.choose(
        Trial(torch.stack([network, simple], dim=1), lambda scores: (scores > 0.45).double())
    )
    assert (share < 1) == leaves == (gain > error)
    few = Trial(
        torch.stack([network, simple], dim=1)[50:58], lambda scores: (scores > 0.45).double()
    )
    assert link_fusion.choose(few)[0] == 1
    # All gains are of one of two sources.
    columns, sources = torch.stack([network, simple], dim=1), torch.arange(100) // 50
    of_two = Trial(columns, lambda scores: (scores > 0.45).double(), sources)
    assert link_fusion.choose(of_two)[0] == 1


def test_scores_are_divided_by_their_own_scales_and_mixed(monkeypatch):
    data = people()
    monkeypatch.setattr(link_fusion, "scorer_of", lambda *args, of_test: None)
    mixture = link_fusion.Mixture(
        base_of("x"), 0.25, [2.0, 8.0], [3.0, 1.0], data, task_of(data, "ap")
    )
    found = mixture.answer(lambda: torch.tensor(4.0), lambda _: torch.tensor(8.0), of_test=False)
    assert found == 3 * (0.75 * 4 / 2 + 0.25 * 8 / 8) + 1


def test_probabilities_of_links_are_those_of_as_many_pairs_without_one():
    pairs, noise = {"valid_pairs": 40, "valid_negatives": 400}, torch.linspace(-3, 3, 440)
    task = SimpleNamespace(
        pairs_of=lambda name: torch.full((pairs[name], 2), float(pairs[name] == 40)),
        decode=lambda model, rows, pairs: (
            2 * pairs[:, 0] + noise[torch.arange(len(pairs)) * 7 % 440]
        ),
    )
    factor, constant = link_fusion._fit_logit(task, None, None)
    scores = task.decode(None, None, torch.cat([task.pairs_of(name) for name in pairs]))
    found = (factor * scores + constant).sigmoid()
    assert float(found[:40].mean() + found[40:].mean()) == pytest.approx(1, abs=0.01)


def test_a_share_is_chosen_by_a_method_that_knows_no_validation_link(tmp_path, monkeypatch):
    asked, score = [], link_fusion.scorer_of

    def scorer(*args, of_test):
        asked.append(of_test)
        return score(*args, of_test=of_test)

    monkeypatch.setattr(link_fusion, "scorer_of", scorer)
    more = ["task.metric=recall@5", "task.valid_edges=true", "train.epochs=1"]
    train(cli.compose_config([*plain_shop(tmp_path), *more]), tmp_path / "run")
    assert not asked[0]


class Noise:
    """Scores pairs at random, and always in the same way."""

    def __init__(self, seed: int):
        self.factor = torch.tensor([12.9898, 78.233]) * (1 + seed)

    def of_pairs(self, pairs):
        return (43758.5453 * (pairs.float() @ self.factor).sin()).frac().abs()


def test_noise_is_not_added_up(monkeypatch):
    """The best sum of it is better than each on the links that chose it, and on no others."""
    data, noise = people(), {link_base.DEGREES: Noise(0), **{f"{i}": Noise(i) for i in range(1, 9)}}
    monkeypatch.setattr(link_base, "_affordable", lambda *args, **options: noise)
    monkeypatch.setattr(link_base, "scorer_of", lambda *args, **options: None)
    monkeypatch.setattr(link_base, "score_by", lambda *args: 0.5)
    assert fit_link_base(data, task_of(data, "rocauc"), 1.0).name == "walk"


def test_a_run_predicts_what_its_summary_says(answered):
    folder, _, summary = answered
    assert {"base", "answer", "network"} <= summary.keys() and set(summary["network"]) == {
        "train",
        "valid",
        "test",
    }
    found = restore.evaluate(restore.EvaluateConfig(run=str(folder / "run")))
    assert found["valid"] == pytest.approx(summary["best_valid"]) and found[
        "test"
    ] == pytest.approx(summary["test"])
    assert summary["best_valid"] >= summary["base"]["valid"] - 1e-9


def test_a_user_without_links_gets_what_is_popular(answered, tmp_path):
    folder, _, _ = answered
    output = tmp_path / "top.csv"
    restore.predict(
        restore.EvaluateConfig(run=str(folder / "run"), device="cpu", output=str(output), top=5)
    )
    found = pd.read_csv(output)
    bought = pd.read_csv(folder / "bought.csv")
    cold = found[found["source"].isin(["u37", "u38", "u39"])]
    assert len(cold) == 15 and len(found) == 5 * 40
    assert not {*found[["source", "target"]].itertuples(index=False, name=None)} & {
        *bought.itertuples(index=False, name=None)
    }
    ranked = bought["item"].value_counts()
    assert ranked.reindex(cold["target"]).fillna(0).mean() > ranked.mean()
    assert found["score"].between(0, 1).all()
    assert all(part["score"].is_monotonic_decreasing for _, part in found.groupby("source"))


def test_other_data_are_answered_by_their_own_links(answered, tmp_path):
    """The new table has the training links alone, so that it is answered as the training data are; also from a file."""
    folder, config, summary = answered
    data = restore.open_graph(config).parts[0].data
    names = np.array(
        [*pd.read_csv(folder / "users.csv")["id"], *pd.read_csv(folder / "items.csv")["id"]]
    )
    pd.DataFrame(names[data.train_pairs.numpy()], columns=["user", "item"]).to_csv(
        folder / "bought_new.csv", index=False
    )
    asked = pd.DataFrame(names[data.test_pairs.numpy()], columns=["source", "target"])
    asked.to_csv(tmp_path / "pairs.csv", index=False)
    (folder / "new.yaml").write_text(
        (folder / "shop.yaml").read_text().replace("bought.csv", "bought_new.csv")
    )
    pe.load(folder / "run").export(tmp_path / "model.pe")
    for path in (folder / "run", tmp_path / "model.pe"):
        own, shared = cli.load_run(path, trusts=False)
        run = SavedRun(path, own, {}, shared=shared)
        given = GNNPredictConfig(str(path), pairs=str(tmp_path / "pairs.csv"), predictions="none")
        _, before = predict_rows(SavedRun(folder / "run", config, {}), given)
        given.data = NewDataConfig(schema=str(folder / "new.yaml"))
        setup, found = predict_rows(run, given)
        assert summary["answer"]["share"] > 0 and found.task.mixture is not None
        torch.testing.assert_close(
            setup.kind.tensors(found)["logits"], setup.kind.tensors(before)["logits"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["ndcg@5", "hits@10"])
def test_two_ranks_that_are_resumed_answer_as_a_run_in_one_piece(metric, tmp_path):
    overrides = [
        *plain_shop(tmp_path)[:-1],
        f"task.metric={metric}",
        "parallel.num_ranks=2",
        "train.epochs=4",
    ]
    cache = tmp_path / "cache"
    status, output = finish([*overrides[:-1], "train.epochs=2"], tmp_path / "resumed", cache)
    assert status == 0, output
    status, output = finish(
        [f"resume={tmp_path / 'resumed'}", "train.epochs=4"], tmp_path / "resumed", cache
    )
    assert status == 0, output
    status, output = finish(overrides, tmp_path / "whole", cache)
    assert status == 0, output
    first, second = summary_of(tmp_path / "resumed"), summary_of(tmp_path / "whole")
    same = ("weights_sha256", "best_valid", "test", "network", "answer")
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert first["base"]["valid"] == second["base"]["valid"]


@pytest.mark.parametrize("metric", ["recall@5", "rocauc"])
@pytest.mark.parametrize("valid_fraction", [0.0, 0.4])
def test_a_run_may_have_no_links_for_validation_or_test(metric, valid_fraction, tmp_path):
    config = cli.compose_config(
        [
            *plain_shop(tmp_path),
            f"task.metric={metric}",
            "task.common_neighbors=true",
            "data.train_fraction=0.6",
            f"data.valid_fraction={valid_fraction}",
        ]
    )
    summary = train(config, tmp_path / "run")
    assert np.isnan(summary["test"]) == (valid_fraction > 0) and ("base" in summary) == (
        valid_fraction > 0
    )
    assert np.isnan(summary.get("base", {"test": np.nan})["test"])


def test_items_are_recommended_from_a_table_and_from_python(tmp_path):
    """The experiment recommends as `predict top=K` does, to a few users and of a few items too."""
    write_shop(tmp_path)
    overrides = [
        "+experiment=recommend",
        f"data.edges.path={tmp_path / 'bought.csv'}",
        "data.edges.source=user",
        "data.edges.target=item",
        f"cache_dir={tmp_path / 'cache'}",
        "train.epochs=2",
        "train.eval_every=1",
        "model.hidden_channels=8",
        "features.channels=8",
    ]
    summary = train(cli.compose_config(overrides), tmp_path / "run")
    assert (
        summary["metric"] == "ndcg@10" and summary["best_valid"] >= summary["base"]["valid"] - 1e-9
    )
    restore.predict(
        restore.EvaluateConfig(
            run=str(tmp_path / "run"), device="cpu", output=str(tmp_path / "top.csv"), top=4
        )
    )
    expected, model = pd.read_csv(tmp_path / "top.csv"), pe.load(tmp_path / "run", device="cpu")
    pd.testing.assert_frame_equal(model.top(4), expected, check_dtype=False, atol=1e-6)
    found = model.top(2, sources=["u7", "u1"], candidates=["i3", "i4", "i5", "i6"], filtered=False)
    assert found["source"].tolist() == ["u7", "u7", "u1", "u1"] and set(found["target"]) <= {
        "i3",
        "i4",
        "i5",
        "i6",
    }
    for wrong in ("3", 0):
        with pytest.raises(ValueError, match=f"k must be a whole number, 1 or more, not {wrong!r}"):
            model.top(wrong)
    with pytest.raises(ValueError, match="sources is a list of ids"):
        model.top(2, sources="u7")
    for argument in ("sources", "candidates"):  # no word of the files and keys that stand behind it
        with pytest.raises(
            ValueError, match=f"^{argument}: no node has the id 'nobody' of row 1; [^;=/]*$"
        ):
            model.top(2, **{argument: ["nobody"]})


def test_only_models_of_links_rank_targets(tmp_path):
    result = pe.train(
        "digits",
        folder=tmp_path / "run",
        verbose=False,
        num_layers=2,
        hidden_channels=8,
        epochs=1,
        **{"task.base": "none", "cache_dir": tmp_path / "cache"},
    )
    with pytest.raises(ValueError, match="does not predict links"):
        result.model.top(3)


def test_of_equal_sums_the_first_is_taken():
    trial = link_base.Trial(torch.eye(2), lambda scores: torch.ones(2))
    assert link_base.add_up(trial, torch.ones(2, dtype=torch.bool)).tolist() == [1, 0]


def test_a_sum_grows_beyond_one_that_is_no_better():
    """Twice the first method is no better than once, and leads to sums that are."""
    target = torch.tensor([1.0, 0.3, 0.0])
    trial = Trial(
        torch.eye(3), lambda score: torch.cosine_similarity(score, target, dim=0).expand(2)
    )
    weights = add_up(trial, torch.tensor([True, False]))
    assert weights.tolist() == [7, 2, 0]  # nearest to 1 : 0.3


def test_ease_inverts_no_matrix_of_many_targets_of_other_data(monkeypatch):
    data, name = people(), "EASE (penalty 300)"
    task, base = (
        task_of(data, "recall@5"),
        base_of(name),
    )
    scorer_of(base, data, task, of_test=True)
    monkeypatch.setattr(link_base, "MOST_ITEMS", 59)
    with pytest.raises(
        ValueError,
        match="EASE, which inverts a matrix of all targets, and these data have 60; 59 are",
    ):
        scorer_of(base, data, task, of_test=True)


def links_with_columns(num_sources: int = 30, num_targets: int = 12):
    """Links, and columns of sources and targets. The sources are the nodes 2, 4, ..., the targets those from 70."""
    rng = np.random.default_rng(0)
    direction = Direction(2 + 2 * torch.arange(num_sources), 70 + torch.arange(num_targets))
    dense = (rng.random((num_sources, num_targets)) < 0.3).astype(np.float32)
    row, column = dense.nonzero()
    links = walks.matrix_of(
        torch.stack([direction.sources[row], direction.candidates[column]], dim=1), 100
    )
    return (
        links,
        direction,
        dense,
        *(rng.normal(size=(number, 3)).astype(np.float32) for number in dense.shape),
    )


@pytest.mark.parametrize("has_columns", [False, True])
def test_ease_predicts_each_target_from_the_others_by_ridge_regression(has_columns):
    links, direction, rows, of_sources, of_targets = links_with_columns()
    asked, penalty = rows, 5.0
    if has_columns:
        asked = np.hstack([rows, of_sources])
        rows = np.vstack([asked, np.hstack([walks.OF_TARGETS * of_targets.T, np.zeros((3, 3))])])
    expected = np.zeros((30, 12))
    for target in range(12):
        others = [column for column in range(rows.shape[1]) if column != target]
        x = rows[:, others].astype(np.float64)
        solved = np.linalg.solve(x.T @ x + penalty * np.eye(len(others)), x.T @ rows[:, target])
        expected[:, target] = asked[:, others] @ solved
    walk = walks.ease(links, direction, penalty, (of_sources, of_targets) if has_columns else None)
    np.testing.assert_allclose(walk(direction.sources, direction.candidates), expected, atol=1e-5)
    assert not walk(direction.sources, torch.tensor([99])).any()  # which has no column


def test_nodes_without_links_are_compared_by_the_links_of_the_other():
    walk = walks.by_degrees(walks.matrix_of(torch.tensor([[0, 1], [0, 2]]), 3))
    assert walk.of_pairs(torch.tensor([[0, 1], [1, 1], [1, 0]])).tolist() == [6, 2, 1]


def test_a_matrix_is_inverted_once_and_not_many_are_kept(monkeypatch):
    links, direction, *_ = links_with_columns()
    made, invert = [], walks._invert
    monkeypatch.setattr(walks, "_kept", {})
    monkeypatch.setattr(
        walks, "_invert", lambda own, penalty: made.append(penalty) or invert(own, penalty)
    )
    monkeypatch.setattr(walks, "MOST_BYTES", 2 * 12 * 12 * 4)
    for penalty in (1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 2.0):
        walks.ease(links, direction, penalty)
    assert made == [1, 2, 3, 2] and len(walks._kept) == 2
    links.data[0] = 2
    walks.ease(links, direction, 2.0)
    assert made[4:] == [2]


def test_a_source_without_links_is_answered_by_its_columns(tmp_path):
    """The last users have no links, but a city; users of a city have the same third of the items."""
    config = write_shop(tmp_path)
    (tmp_path / "shop.yaml").write_text(
        (tmp_path / "shop.yaml")
        .read_text()
        .replace("users.csv, id: id}", "users.csv, id: id, categories: [city]}")
        .partition("  lives:")[0]
        .replace("  city: {path: cities.csv, id: id}\n", "")
    )
    setup = restore.open_graph(cli.compose_config([*config, "task.metric=recall@5"])).parts[0]
    links, data = Links(setup.data), setup.data
    matrix = walks.matrix_of(links.answers("train"), data.num_nodes)
    assert "EASE with columns" in walks.find_walks(links, matrix, data)
    (direction,) = links.answered
    score = walks.ease(matrix, direction, 3.0, walks.columns_of(data, direction))
    best = score(torch.arange(37, 40), 40 + torch.arange(25)).topk(4).indices
    assert (best % 3 == torch.arange(37, 40)[:, None] % 3).float().mean() > 0.9


def test_the_choice_for_hits_at_k_does_not_hang_on_one_negative():
    data = people()
    data.edge_attr = None
    task = task_of(data, "hits@2")
    trial = try_out(
        task,
        Links(data),
        [
            walks.Sum(
                [(1.0, walks.by_degrees(walks.matrix_of(Links(data).answers("train"), 60)))],
                Links(data).direct,
            )
        ],
    )
    scores = torch.rand(len(trial.columns), generator=torch.Generator().manual_seed(0))
    positive, negative = scores[: len(data.valid_pairs)], scores[len(data.valid_pairs) :]
    each = [link_metric(f"hits@{k}", positive, negative) for k in (1, 2, 4)]
    expected = sum(each) / 3
    assert abs(expected - each[1]) > 1e-3
    assert float(trial.values(scores).mean()) == pytest.approx(expected)


def test_a_method_of_pairs_is_not_left_out_for_the_time_that_all_candidates_would_take():
    data = people(1000, 4000)
    data.x, data.x_source = torch.rand(1000, 64), "data"
    walk = walks.by_features(data)
    assert walk.seconds(1000, 50) < walk.seconds(1000) / 100
    assert "cosine of features" in link_base._affordable(Links(data), data, 0.2, of_pairs=True)


@pytest.mark.parametrize("name, allows", [("ogbl-collab", True), ("ogbl-ddi", False)])
def test_the_test_of_ogbl_collab_knows_validation_links(name, allows, ogb_toy):
    keys = [
        "task=link",
        "data=ogb_link",
        f"data.name={name}",
        "partition=whole",
        "model.num_layers=2",
        "task.base=none",
        "task.metric=mrr",
    ]
    for more, expected in (
        ([], allows),
        (["task.valid_edges=false"], False),
        (["task.valid_edges=true"], True),
    ):
        config = cli.compose_config([*keys, f"data.folder={ogb_toy(name)}", *more])
        assert (restore.open_graph(config).parts[0].task.test_data is not None) == expected


def changing_shop(folder):
    """Write a table of who bought what when: old items for 17 months, and then new ones by other users each month."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{rng.integers(60)}", month)
        for month in range(17)
        for user in range(0, 240, 4)
    ]
    rows += [(f"u{user}", f"j{rng.integers(10)}", 17 + user % 4) for user in range(240)]
    pd.DataFrame(rows, columns=["user", "item", "month"]).to_csv(folder / "bought.csv", index=False)
    return [
        *SMALL,
        "data=tables",
        f"data.edges.path={folder / 'bought.csv'}",
        "data.edges.source=user",
        "data.edges.target=item",
        "data.edges.time=month",
        "data.split=time",
        "data.train_fraction=0.9",
        "data.valid_fraction=0.05",
        f"cache_dir={folder / 'cache'}",
        "task.metric=recall@5",
    ]


def test_the_latest_links_are_known_ones(tmp_path):
    config = cli.compose_config([*changing_shop(tmp_path), "task.base=none"])
    data = restore.open_graph(config).parts[0].data
    links = Links(data)
    for splits in (["train"], ["train", "valid"]):
        known = torch.cat([links.answers(split) for split in splits])
        matrix = walks.matrix_of(known, links.num_nodes)
        _, times = links.timed()
        latest = walks.latest_of(links, matrix)
        last = times[: len(known)].sort().values[int(0.8 * len(known))]
        assert latest.nnz == int((times[: len(known)] >= last).sum()) < 0.4 * len(known)
        assert (matrix - latest).min() >= 0  # no other link
        every = torch.arange(links.num_nodes)
        x, y = matrix.toarray(), latest.toarray()
        expected = x / np.maximum(x.sum(0), 1) @ (x.T / np.maximum(x.sum(1), 1)) @ y
        named = walks.find_walks(links, matrix, data)
        np.testing.assert_allclose(named[walks.GAINED]()(every, every), expected, atol=1e-5)
        np.testing.assert_allclose(named["popularity lately"]()(every, every)[0], y.sum(0))


def test_a_run_reads_the_latest_links_where_tastes_change_and_all_of_other_data_without_times(
    tmp_path, caplog
):
    config = cli.compose_config(changing_shop(tmp_path))
    setup = restore.open_graph(config).parts[0]
    assert any(name.endswith(" lately") for name in setup.base.fitted["weights"])
    data = setup.data.clone()
    del data.pair_times
    scorer_of(setup.base, data, setup.task, of_test=True)
    assert "the simple method asks for the latest links, and these have no times" in caplog.text
