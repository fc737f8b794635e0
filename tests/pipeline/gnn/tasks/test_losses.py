"""Losses of classes and binary tasks beside torch's and scikit-learn's, and what is refused of them."""

import contextlib
import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.node_names import pack_names
from parallel_epochs.pipeline.gnn.kinds.labels import warn_of_one_value
from parallel_epochs.pipeline.gnn.tasks.losses import LabelLoss, Weights
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from tests.helpers import building as build
from tests.helpers.graphs import class_graph, task_graph
from tests.helpers.running import TOY

WEIGHTS = [0.5, 3.0, 0.25, 1.0]
CPU = torch.device("cpu")


def batch(*, is_binary: bool, num_rows: int = 30, num_labels: int = 4):
    """Logits, and labels of which some are missing where they may be."""
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(num_rows, num_labels, generator=g)
    if not is_binary:
        return logits.requires_grad_(), torch.randint(num_labels, (num_rows, 1), generator=g)
    y = (torch.rand(num_rows, num_labels, generator=g) > 0.7).float()
    return logits.requires_grad_(), y.where(torch.rand(y.shape, generator=g) > 0.2, math.nan)


def loss_of(weights: Weights, *, is_binary: bool) -> LabelLoss:
    return LabelLoss(weights, Data(), num_labels=4, is_binary=is_binary)


def assert_same(logits, ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, check_dtype=False)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs))
    )


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_classes_is_torchs_mean(weights):
    logits, y = batch(is_binary=False)
    total, count = loss_of(weights, is_binary=False)(logits, y)
    theirs = F.cross_entropy(logits, y[:, 0], None if weights is None else torch.tensor(weights))
    assert_same(logits, total / count, theirs)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_binary_tasks_is_torchs_mean_over_the_known_labels(weights):
    logits, y = batch(is_binary=True)
    total, count = loss_of(weights, is_binary=True)(logits, y)
    theirs = F.binary_cross_entropy_with_logits(
        logits,
        y.nan_to_num(),
        pos_weight=None if weights is None else torch.tensor(weights),
        reduction="none",
    )
    assert_same(logits, total / count, theirs[~y.isnan()].mean())


def test_balanced_weights_are_scikit_learns_over_the_training_labels():
    data = class_graph(list(range(25)))
    weights = LabelLoss("balanced", data, num_labels=3, is_binary=False).weights
    y = data.y[:25, 0].numpy()
    assert weights.tolist() == pytest.approx(
        compute_class_weight("balanced", classes=np.arange(3), y=y)
    )
    assert len(set(weights.tolist())) == 3


def test_balanced_weights_of_tasks_are_negatives_per_positive():
    data = task_graph(list(range(25)))
    data.y[:5, 1] = math.nan
    weights = LabelLoss("balanced", data, num_labels=2, is_binary=True).weights
    assert weights.tolist() == pytest.approx(
        [float((y == 0).sum() / (y == 1).sum()) for y in data.y[:25].t()]
    )


def train_rounds(config, data) -> tuple[list[float], torch.Tensor]:
    with contextlib.closing(build.build_trainer(config, data, CPU)) as trainer:
        losses = []
        while trainer.progress.round < trainer.num_rounds:
            list(trainer.steps())
            losses.append(trainer.numbers.loss)
            trainer.evaluate()
        return losses, torch.cat([value.flatten() for value in trainer.weights().values()])


def test_a_run_depends_on_the_ratio_of_the_weights_alone(configure):
    data, runs = class_graph(list(range(20))), {}
    for scale in (1.0, 2.0**-12):
        config = configure(
            *TOY,
            "train.epochs=2",
            "train.eval_every=2",
            f"task.class_weights={[scale, 4 * scale, 16 * scale]}",
        )
        runs[scale] = train_rounds(config, data)
    assert runs[1.0][0] == pytest.approx(runs[2.0**-12][0], rel=1e-5)
    torch.testing.assert_close(runs[1.0][1], runs[2.0**-12][1], rtol=1e-3, atol=1e-5)


def test_the_metric_is_that_without_weights(configure):
    data, rows = (
        class_graph(list(range(20))),
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)),
    )
    plain, weighted = (
        build.build_task(configure(*TOY, *more), data)
        for more in ([], ["task.class_weights=balanced"])
    )
    assert weighted.scores(None, rows) == plain.scores(None, rows)
    assert str(weighted.label_loss) and str(plain.label_loss) == ""


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["task.class_weights=[1,0]"],
            "task.class_weights: number 2 of 2 is 0. Give positive numbers",
        ),
        (["task.class_weights=[1,1e-50]"], "task.class_weights: number 2 of 2 is 1e-50"),
        (["task.class_weights=[1,true]"], "task.class_weights: number 2 of 2 is True"),
        (
            ["task.class_weights=balance"],
            "task.class_weights=balance is unknown. Choose balanced, or give a list",
        ),
        (["task.class_weights=[]"], r"task.class_weights=\[\] is unknown"),
        (
            ["task=link", "task.class_weights=balanced"],
            "task=link needs task.class_weights=null, since it is for labels of nodes and graphs",
        ),
    ],
)
def test_impossible_options_are_refused_before_anything_is_read(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        configure(*overrides).check()


def graph_file(path, y, metric, num_train=12):
    node = torch.arange(30)
    masks = {
        "train_mask": node < num_train,
        "val_mask": (node >= num_train) & (node < 20),
        "test_mask": node >= 20,
    }
    ring = torch.stack([node, (node + 1) % 30])
    torch.save(
        {
            "edge_index": torch.cat([ring, ring.flip(0)], 1),
            "x": torch.ones(30, 2),
            "y": y,
            "metric": metric,
            **masks,
        },
        path,
    )
    return ["data=file", f"data.path={path}"]


CLASSES, TASKS = (
    torch.arange(30) % 3,
    torch.stack([torch.arange(30) % 2, torch.arange(30) % 3 == 0], 1).float(),
)


@pytest.mark.parametrize(
    "y, metric, option, message",
    [
        (
            TASKS,
            "rmse",
            "class_weights=balanced",
            "task.class_weights=balanced needs classes or binary tasks",
        ),
        (
            CLASSES,
            "acc",
            "class_weights=[1,2]",
            r"has 2 numbers, and the dataset has 3 classes \(0, 1, 2\). Give one",
        ),
        (
            TASKS,
            "rocauc",
            "class_weights=[1,2,3]",
            "has 3 numbers, and the dataset has 2 binary tasks",
        ),
        (
            CLASSES.where(torch.arange(30) >= 12, 0),
            "acc",
            "class_weights=balanced",
            "task.class_weights=balanced: class 1 does not occur in the training split",
        ),
        (
            TASKS.where(torch.arange(30)[:, None] >= 12, 0),
            "rocauc",
            "class_weights=balanced",
            "task 0 has no positive label in the training split",
        ),
        (
            TASKS.where(TASKS[:, :1] == 1, 1),
            "rocauc",
            "class_weights=balanced",
            "task 0 has no negative label in",
        ),
    ],
)
def test_what_the_labels_do_not_have_is_refused_before_long_work(
    y, metric, option, message, configure, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "parallel_epochs.pipeline.gnn.build.find_or_read", None
    )  # components are long work
    config = configure(*graph_file(tmp_path / "graph.pt", y, metric), f"task.{option}")
    with pytest.raises(ValueError, match=message):
        build.open_graph(config)


def test_options_of_another_kind_than_a_chosen_metric_are_refused_before_the_data_are_opened(
    configure,
):
    with pytest.raises(
        ValueError,
        match="task.class_weights=balanced needs classes or binary tasks; this run learns real",
    ):
        build.check(configure("task.metric=mae", "task.class_weights=balanced"))


def test_a_class_is_named_by_its_name():
    data = class_graph(list(range(20)))
    data.y[data.y == 1] = 0
    data.update(pack_names(np.array(["libs", "rare", "games"]), "label_names"))
    with pytest.raises(ValueError, match="class rare does not occur in the training split"):
        NodeTask(data, class_weights="balanced")
    weighted = NodeTask(data, class_weights=[2.0, 1.0, 5.0])
    assert str(weighted.label_loss) == "class weights: 1 (rare) to 5 (games)"


@pytest.mark.parametrize(
    ("y", "kind", "warned"),
    [
        ([1, 1, 1, 0], "classes", "every label for training is 1"),
        ([1, 0, 1, 0], "classes", ""),
        ([2.5, math.nan, 2.5, 0.0], "real values", "every label for training is 2.5"),
    ],
)
def test_labels_of_one_value_are_named(y, kind, warned, caplog):
    data = Data(
        y=torch.tensor(y)[:, None],
        train_mask=torch.tensor([True, True, True, False]),
        out_channels=2,
    )
    warn_of_one_value(data, kind)
    assert warned in caplog.text and bool(warned) == bool(caplog.text)
