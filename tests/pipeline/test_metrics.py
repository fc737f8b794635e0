import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.predict.inference import predict_exact, predict_views
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.metrics import (
    RANKS,
    check_finite,
    choose_thresholds,
    count_by_score,
    link_ranking,
    score_decisions,
    values_of_sources,
)
from parallel_epochs.scripts.report.labels import precision_recall, reliability, roc
from tests.helpers import building as build, official
from tests.helpers.graphs import task_graph

CPU = torch.device("cpu")


def test_views_average_and_exact_equals_one_view_of_one_cluster(configure):
    data = task_graph(list(range(40)))
    config = configure("model.num_layers=3", "model.hidden_channels=8")
    model = build.build_model(config, data, NodeTask(data))
    loader = ClusterLoader(data)

    task = NodeTask(data)
    model.eval()
    predict = partial(task.predict, model)

    def views(num_views, num_parts, round_=0):
        return predict_views(
            predict,
            loader,
            num_rows=40,
            out_channels=2,
            num_views=num_views,
            num_parts=num_parts,
            seed=0,
            round_=round_,
        )

    exact = predict_exact(predict, data, num_rows=40, out_channels=2, device=CPU)
    torch.testing.assert_close(views(1, 1), exact)
    torch.testing.assert_close(views(3, 1), exact)
    assert torch.equal(views(2, 4), views(2, 4)) and not torch.equal(
        views(2, 4), views(2, 4, round_=1)
    )
    assert not torch.equal(views(2, 4), views(1, 4)) and not torch.allclose(
        views(2, 4), views(3, 4)
    )
    other = predict_views(
        predict, loader, num_rows=40, out_channels=2, num_views=1, num_parts=4, seed=1, round_=0
    )
    assert not torch.equal(other, views(1, 4))
    # An average over many views predicts every node in each: no row is left at zero or counted twice.
    single = views(1, 4)
    assert single.shape == (40, 2) and bool((single != 0).all())


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from([0, 0.3]), st.booleans())
def test_scores_are_those_of_ogbs_evaluator(seed, num_test, unlabelled, ties):
    g = torch.Generator().manual_seed(seed)
    data = task_graph(list(range(20)))
    y = (torch.randn(40, 17, generator=g) > 0).float()  # of more tasks than are ranked at once
    logits = torch.randn(40, 17, generator=g)
    if ties:
        logits = logits.round()
    data.y = y.where(torch.rand(40, 17, generator=g) >= unlabelled, math.nan)
    data.test_mask = torch.arange(40) < num_test
    task = NodeTask(data)
    for split, found in task.scores(None, logits).items():
        if not math.isnan(found):
            mask = data[f"{split}_mask"]
            expected = official.score("rocauc", data.y[mask], logits[mask])
            assert found == pytest.approx(expected, abs=1e-12)


def test_scores_of_perfect_predictions_and_of_splits_without_any():
    data = task_graph(list(range(20)))
    logits = data.y.clone()
    assert NodeTask(data).scores(None, logits) == {"train": 1.0, "valid": 1.0, "test": 1.0}
    data.valid_mask[:] = False
    assert math.isnan(NodeTask(data).scores(None, logits)["valid"])
    with pytest.raises(FloatingPointError, match="not finite"):
        NodeTask(data).scores(None, logits / 0)
    data.metric, data.y = "acc", torch.arange(40).unsqueeze(1) % 3
    logits = torch.nn.functional.one_hot(torch.arange(40) % 3, 3).float()
    logits[:10] = 1 - logits[:10]
    scores = NodeTask(data).scores(None, logits)
    assert 0 < scores["train"] < 1
    expected = official.score("acc", data.y[data.train_mask], logits[data.train_mask])
    assert scores["train"] == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_errors(wrong):
    rows = torch.tensor([[-3e38, 0.0], [3e38, 1.0], [2.0, 5e-40]])
    check_finite(rows)
    check_finite(rows[:0])
    rows[2, 1] = wrong
    with pytest.raises(
        FloatingPointError, match="^the model's predictions are not finite; no table is written$"
    ):
        check_finite(rows, "no table is written")


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_curves_are_exact_at_each_threshold(share):
    rng = torch.Generator().manual_seed(0)
    y = (torch.rand(5000, generator=rng) < share).float()
    logits = (torch.randn(5000, generator=rng) + 2 * y).mul(8).round() / 8  # with ties
    y[::7] = float("nan")
    curve = count_by_score(y, logits)
    known = ~y.isnan()
    truth, scores = y[known].numpy(), logits[known].sigmoid().double().numpy()
    assert curve["rocauc"] == pytest.approx(roc_auc_score(truth, scores))
    assert curve["ap"] == pytest.approx(average_precision_score(truth, scores))
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    exact = set(zip(fpr.round(9), tpr.round(9)))
    points = roc(curve)
    assert len(points) > 40 and {(round(x, 9), round(y, 9)) for x, y, _ in points} <= exact
    assert sum(
        (b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(points, points[1:])
    ) == pytest.approx(curve["rocauc"], abs=2e-3)
    steps = [(0.0, 1.0, 0), *precision_recall(curve)]
    assert sum((b[0] - a[0]) * b[1] for a, b in zip(steps, steps[1:])) == pytest.approx(
        curve["ap"], abs=0.02
    )
    for low, (mean, positive, size) in enumerate(reliability(curve)):
        assert size > 0 and 0 <= positive <= 1 and low / 10 <= mean <= 1
    assert sum(size * positive for _, positive, size in reliability(curve)) == pytest.approx(
        truth.sum()
    )
    assert sum(size * mean for mean, _, size in reliability(curve)) == pytest.approx(
        scores.sum(), rel=1e-5
    )
    assert (
        count_by_score(y[y == 1], logits[y == 1]) is None
        and count_by_score(y[:0], logits[:0]) is None
    )


def test_links_are_ranked_as_by_counting():
    rng = torch.Generator().manual_seed(0)
    positive, negative = (torch.randn(size, generator=rng).round(decimals=1) for size in (40, 60))
    found = link_ranking(positive, negative)
    assert list(found) == ["mrr", "hits@1", "hits@3", "hits@10", "hits@20", "hits@50"]
    counted = (negative >= positive.unsqueeze(1)).sum(1)
    assert all(found[f"hits@{k}"] == float((counted < k).double().mean()) for k in RANKS if k <= 60)
    own = link_ranking(positive, negative.repeat(40, 1))  # each has its own, which are the same
    assert own == pytest.approx(found)


def column(*values):
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


@pytest.mark.parametrize(
    "rule, truth, logits, expected",
    [("cost:0.01", (1, 0), (0, 1), 1.5), ("f1", (1, 0), (2, 1), 1.5), ("f1", (1, 1), (2, 1), 0)],
)
def test_a_threshold_by_hand(rule, truth, logits, expected):
    """A miss may cost less than any false alarm, a threshold lies between two logits, and one kind alone has none."""
    assert choose_thresholds(column(*truth), column(*logits), rule).item() == expected


def test_decisions_counts_and_ranks_at_a_bound():
    at_threshold = score_decisions(column(1, 0), column(0, -1), torch.zeros(1))
    assert at_threshold["recall"] == 0
    y = column(*(row % 2 for row in range(50)))
    both = torch.cat([y.where(torch.arange(50)[:, None] < 5, torch.nan), y], dim=1)
    assert "precision@10" not in score_decisions(both, torch.randn(50, 2), torch.zeros(2))
    counts = count_by_score(torch.tensor([0.0, 1, 1]), torch.tensor([0.0, 1, 2]))
    assert counts["negative"] == [1, 0, 0] and counts["positive"] == [0, 1, 1]
    ranks, sources = torch.tensor([1.0, 2, 4]).double(), torch.tensor([0, 0, 1])
    assert values_of_sources("mrr@2", ranks, sources).tolist() == [1, 0]
