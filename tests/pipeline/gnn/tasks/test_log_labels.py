"""Real values of which the logarithm is learned, while predictions and metrics are in the unit of the labels."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.base.fit import fit_base, of_labels
from parallel_epochs.pipeline.gnn.base.fusion import Kept, choose, mix_in
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import LOG_LABEL, TEXT_SCORES


def graph(**more) -> Graph:
    """Build nodes in a row, the labels of every other one for training; one label is unknown."""
    y = torch.tensor([0.0, 9.0, 99.0, math.nan, 3.0, 40.0]).unsqueeze(1)
    masks = {
        f"{split}_mask": torch.tensor(rows, dtype=torch.bool)
        for split, rows in (
            ("train", [1, 1, 1, 1, 0, 0]),
            ("valid", [0, 0, 0, 0, 1, 0]),
            ("test", [0, 0, 0, 0, 0, 1]),
        )
    }
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 2, 3, 4], [1, 2, 3, 4, 5, 4, 0, 1, 2, 3]])
    return Graph(
        x=torch.eye(6),
        y=y,
        edge_index=EdgeIndex(
            edges[:, edges[1].argsort(stable=True)], sort_order="col", sparse_size=(6, 6)
        ),
        num_nodes=6,
        num_categories=0,
        metric="rmse",
        out_channels=1,
        n_id=torch.arange(6),
        target=torch.ones(6, dtype=torch.bool),
        **masks,
        **{LOG_LABEL: True, **more},
    )


class Constant(torch.nn.Module):
    """Predicts a number of every node, in standard deviations from the mean."""

    def __init__(self, value: float):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))

    def forward(self, x, edge_index, edge_attr):
        self.x = x
        return self.value.expand(len(x), 1)


@pytest.mark.parametrize("metric", ["rmse", "mae"])
def test_logarithms_are_learned_and_predictions_are_in_the_unit_of_the_labels(metric):
    data = graph()
    task, model = NodeTask(data, metric=metric), Constant(0.5)
    logs = torch.tensor([0.0, 9.0, 99.0]).log1p()
    mean, std = logs.mean(), logs.std(correction=0)
    torch.testing.assert_close(task.label_moments, torch.stack([mean, std]).unsqueeze(1))
    loss, count = task.loss(model, data, torch.Generator())
    errors = 0.5 - (logs - mean) / std
    torch.testing.assert_close(loss, (errors.square() if metric == "rmse" else errors.abs()).sum())
    assert count == 3
    rows = task.predict(model, data)[1].detach()
    value = float((mean + 0.5 * std).expm1())
    torch.testing.assert_close(rows, torch.full((6, 1), value))
    scores = task.scores(model, rows)
    assert scores["valid"] == pytest.approx(abs(value - 3)) and scores["test"] == pytest.approx(
        abs(value - 40)
    )
    for name, label in ((f"{metric}_of_log@valid", 3), (f"{metric}_of_log", 40)):
        assert scores[name] == pytest.approx(abs(math.log1p(value) - math.log1p(label)))
    assert set(scores) == {"train", "valid", "test", f"{metric}_of_log", f"{metric}_of_log@valid"}
    assert NodeTask(graph(log_label=False)).scores(model, rows).keys() == {"train", "valid", "test"}


@pytest.mark.parametrize(
    "value, expected",
    [
        (-1e3, 0.0),
        (1e6, torch.tensor(88.0).expm1().item()),
        (math.inf, math.inf),
        (math.nan, math.nan),
    ],
)
def test_predictions_are_numbers_of_float32_that_are_not_negative(value, expected):
    task = NodeTask(graph())
    rows = task.predict(Constant(value), graph())[1].detach()
    assert float(rows[0]) == expected or math.isnan(expected) and bool(rows.isnan().all())


def test_labels_that_are_inputs_are_logarithms_too():
    data = graph()
    task, model = NodeTask(data, label_input=0.5), Constant(0.0)
    task.predict(model, data)
    mean, std = task.label_moments
    expected = (torch.tensor([0.0, 9.0, 99.0]).log1p() - mean) / std
    torch.testing.assert_close(model.x[:3, 0], expected)


def test_simple_methods_are_fitted_to_logarithms_and_scored_in_the_unit_of_the_labels():
    data = graph()
    found = {baseline.name: baseline.scores for baseline in of_labels(data, NodeTask(data))}
    mean = float(torch.tensor([0.0, 9.0, 99.0]).log1p().mean().expm1())
    assert found["mean label"]["valid"] == pytest.approx(abs(mean - 3), rel=1e-5)
    plain = graph(log_label=False)
    others = {baseline.name: baseline.scores for baseline in of_labels(plain, NodeTask(plain))}
    assert all(
        scores["valid"] != others[name]["valid"] for name, scores in found.items() if name in others
    )


def test_logits_begin_at_logarithms_of_a_simple_method():
    """Where the model adds nothing, its predictions are those of the method."""
    data = graph()
    base = fit_base(data, NodeTask(data), "mean")
    data.x, data.base_columns = torch.cat([data.x, base.rows], dim=1), (6, 1.0, 0.0)
    task = NodeTask(data)
    rows = task.predict(Constant(0.0), data)[1].detach()
    assert task.scores(None, rows)["valid"] == pytest.approx(base.scores["valid"])
    torch.testing.assert_close(rows, base.rows.expm1().clamp(min=0))
    answer = choose(task, torch.full((6, 1), 1e4), base)  # far off: the simple method alone answers
    assert answer.share == 1 and answer.scores["valid"] == pytest.approx(base.scores["valid"])
    far = Predicted(data, data, task, Constant(0.0), torch.full((6, 1), 1e4), 1)
    kept = Kept(base.name, base.title, 1.0, [1.0, 0.0], base.reads_labels, base.fitted)
    torch.testing.assert_close(mix_in(far, base, kept).rows, rows)


def test_a_component_keeps_what_is_known_of_labels_and_scores(tmp_path):
    data = graph(text_scores=2, content_hash="a" * 24)
    data.types  # noqa: B018 - those of one type
    component = cache.keep_component(
        SimpleNamespace(source="tables"), tmp_path, data, 1, torch.arange(6)
    )
    assert component[LOG_LABEL] is True and component[TEXT_SCORES] == 2
