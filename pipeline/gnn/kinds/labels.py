"""Kinds that learn labels: of nodes or of whole graphs."""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.learned import Learned, with_labels
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.gnn.base import fit, fusion
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.kinds.base import Kind, Predicted, numbers_of
from parallel_epochs.pipeline.gnn.predict.ids import ID
from parallel_epochs.pipeline.gnn.predict.table import Table, label_columns
from parallel_epochs.pipeline.gnn.tasks.losses import LabelLoss, check_class_weights
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.metrics import (
    KINDS,
    METRICS,
    check_finite,
    choose_thresholds,
    count_by_score,
    kind_of,
    read_threshold,
    score_decisions,
)
from parallel_epochs.pipeline.names import MASKS, MAX_LABELS, SPLITS
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.tables import Columns

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.setup import Setup

log = logging.getLogger(__name__)


class LabelKind(Kind):
    """Learns classes, binary tasks or real values.

    Attributes:
        learns: class of the task.
    """

    has_base = True
    learns: ClassVar[type[NodeTask]]

    def check(self) -> None:
        read_threshold(self.config.task.threshold)
        metric = self.config.task.metric
        if metric is None:
            return
        if metric not in METRICS:
            raise ValueError(f"task.metric={metric} is unknown; choose one of {', '.join(METRICS)}")
        check_class_weights(self.config.task.class_weights, kind_of(metric))

    def check_data(self, data: Data) -> None:
        check_metric(self.config.task.metric, data.metric)
        kind = kind_of(data.metric)
        check_class_weights(self.config.task.class_weights, kind)
        if (rule := self.config.task.threshold) not in ("f1", "none") and kind != "binary tasks":
            raise ValueError(
                f"task.threshold={rule} is for binary tasks, and the dataset ({data.metric}) has {kind}. "
                "Leave it out"
            )
        if "out_channels" in data and kind != "real values":
            # The graph is prepared: weights that do not fit its labels are refused here.
            LabelLoss(
                self.config.task.class_weights,
                data,
                num_labels=data.out_channels,
                is_binary=kind == "binary tasks",
            )
        if "out_channels" in data:
            warn_of_one_value(data, kind)

    def task(self, data: Data) -> NodeTask:
        return self.learns(
            data,
            label_input=self.config.train.label_input,
            metric=self.config.task.metric,
            class_weights=self.config.task.class_weights,
            text_scores=self.config.task.text_scores,
        )

    def record(
        self, data: Data, task: NodeTask, model: torch.nn.Module, rows: Tensor
    ) -> dict[str, Any]:
        num_labels, few = task.out_channels, task.out_channels <= MAX_LABELS
        splits, rule, thresholds = {}, self.config.task.threshold, None
        if task.kind == "binary tasks" and rule != "none":
            thresholds = choose_thresholds(
                data.y[data.valid_mask], rows[data.valid_mask].float(), rule
            )
        for split, mask in zip(SPLITS, MASKS):
            counts = (
                count_labels(
                    task.kind,
                    task.metric,
                    data.y[data[mask]],
                    rows[data[mask]],
                    scored=split != "train",
                )
                if few
                else {}
            )
            splits[split] = {"rows": int(data[mask].sum()), **counts}
            if thresholds is not None and split != "train":
                splits[split]["decisions"] = score_decisions(
                    data.y[data[mask]], rows[data[mask]], thresholds
                )
        return (
            {} if thresholds is None else {"threshold": rule, "thresholds": thresholds.tolist()}
        ) | {
            "num_labels": num_labels,
            "names": labels_of(data, num_labels) if few else None,
            "splits": splits,
        }

    def tensors(self, predicted: Predicted) -> dict[str, Tensor]:
        name = "values" if predicted.task.kind == "real values" else "logits"
        found = {
            name: predicted.rows,
            "temperature": predicted.temperatures,
        }
        return {name: value for name, value in found.items() if value is not None}

    def table(self, predicted: Predicted, asked: GNNPredictConfig) -> Table:
        check_finite(predicted.rows, "no table is written")
        embeddings = predicted.embeddings
        labels = labels_of(predicted.whole, predicted.task.out_channels)
        ids = self.ids(predicted) if predicted.ids is None else predicted.ids
        numbers = numbers_of(predicted.chosen, len(ids))
        rows_of = torch.from_numpy(numbers if predicted.is_whole else np.arange(len(numbers)))

        def columns(part: slice) -> Columns:
            own, rows = numbers[part], rows_of[part]
            found = {ID: ids[own], "split": splits_of(predicted.graph, own)}
            return (
                self.describe(own, predicted.graph, asked)
                | found
                | (
                    label_columns(
                        predicted.task.kind,
                        predicted.rows[rows],
                        labels,
                        asked.columns,
                        predicted.thresholds,
                    )
                    if self.is_labelled(predicted.graph, asked)
                    else {}
                )
                | ({} if embeddings is None else {"embedding": embeddings[rows].numpy()})
            )

        width = 0 if embeddings is None else embeddings.size(1)
        return Table(
            f"the predictions of {len(numbers):,} {self.unit}"
            + f", with embeddings of {width} numbers," * bool(width),
            len(numbers),
            predicted.rows.size(1) + width,
            columns,
        )

    def baselines(self, data: Data, task: NodeTask) -> Iterator[Baseline]:
        return fit.of_labels(data, task)

    def fit_base(self, data: Data, task: NodeTask, name: str, seconds: float) -> fit.Base:
        return fit.fit_base(data, task, name, seconds=seconds)

    def other_base(self, kept: fusion.Kept, data: Data) -> fit.Base:
        return fusion.score_other(kept, data, self.task(data))

    def choose_answer(
        self, setup: "Setup", rows: Tensor, epoch: int, folder: Path
    ) -> dict[str, Any]:
        return fusion.finish(setup, rows, epoch, folder)

    def answer(self, predicted: Predicted, setup: "Setup", kept: fusion.Kept) -> Predicted:
        return fusion.mix_in(predicted, cast(fit.Base, setup.base), kept)

    def accept(self, data: Data, learned: Learned) -> Data:
        return with_labels(learned, data, self.config.data.origin(), self.num_rows(data))

    def describe(self, numbers: np.ndarray, data: Data, asked: GNNPredictConfig) -> Columns:
        """Return the columns of a table that stand in front of the ids."""
        return {}

    def is_labelled(self, data: Data, asked: GNNPredictConfig) -> bool:
        """Tell whether what a table holds has labels."""
        return True

    @abstractmethod
    def num_rows(self, data: Data) -> int:
        """Return how many nodes or graphs there are."""

    @abstractmethod
    def ids(self, predicted: Predicted) -> np.ndarray:
        """Return the ids of the nodes or graphs, text or int64."""


def warn_of_one_value(data: Data, kind: str) -> None:
    """Warn if all rows for training have the same label, which any method predicts."""
    y = data.y[data.train_mask]
    known = y[y >= 0] if kind == "classes" else y[~y.isnan()]
    if len(known) and bool((known == known[0]).all()):
        names = labels_of(data, data.out_channels) if kind == "classes" else None
        log.warning(
            "every label for training is %s: nothing can be learned, and the metrics say nothing",
            known[0].item() if names is None else names[int(known[0])],
        )


def check_metric(chosen: str | None, metric: str) -> None:
    """Refuse a metric of other labels than the dataset has.

    Args:
        metric: that of the dataset.

    Raises:
        ValueError: names those that fit.
    """
    if chosen is not None and chosen not in KINDS[kind := kind_of(metric)]:
        raise ValueError(
            f"task.metric={chosen} is a metric of {kind_of(chosen)}, and the dataset ({metric}) has "
            f"{kind}. Choose one of {', '.join(KINDS[kind])}"
        )


def splits_of(data: Data, chosen: np.ndarray) -> np.ndarray:
    """Return the split of some nodes, or graphs, as text: "none" for those of no split, "unknown" in other data, and
    there "old" and "new" where data.known_labels tells them apart.
    """
    number = torch.full((len(chosen),), len(SPLITS), dtype=torch.uint8)
    for split, mask in enumerate(MASKS):
        number[data[mask][torch.from_numpy(chosen)]] = split
    other = "none" if data.get("split_is_known", True) else "unknown"
    return np.array([*data.get("split_names", SPLITS), other], object)[number.numpy()]


def labels_of(data: Data, num_columns: int) -> list[str] | None:
    """Return the names of the classes or tasks; none where they have numbers."""
    if "label_names" not in data:
        return None
    return unpack_names(data, "label_names")[
        :num_columns
    ]  # behind them may be classes that no split has


def count_labels(
    kind: str, metric: str, y: Tensor, rows: Tensor, *, scored: bool
) -> dict[str, Any]:
    """Count the labels of each class, task or target in a split, and score each.

    Args:
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`.
        metric: one of its metrics.
        y: labels of the rows of the split, [num_rows, num_columns].
        rows: predictions of these rows, [num_rows, num_labels].
        scored: whether to score the predictions too.

    Returns:
        ``labels`` for each; ``positive`` for each binary task. If `scored`, ``confusion`` of classes, a list of how
        often each class was predicted for the rows of a class, or else ``score``, None where it is undefined. The
        ``curve`` of binary labels is that of all tasks together, see :func:`pipeline.metrics.count_by_score`.
    """
    if kind == "classes":
        known = y[:, 0] >= 0
        labels, num_labels = y[known, 0].long(), rows.size(1)
        found: dict[str, Any] = {"labels": torch.bincount(labels, minlength=num_labels).tolist()}
        if scored:
            both = labels * num_labels + rows[known].argmax(1)
            found["confusion"] = (
                torch.bincount(both, minlength=num_labels**2).view(num_labels, num_labels).tolist()
            )
        if scored and num_labels == 2:
            found["curve"] = count_by_score(labels.float(), rows[known, 1] - rows[known, 0])
        return found
    found = {"labels": (~y.isnan()).sum(0).tolist()}
    if kind == "binary tasks":
        found["positive"] = (y == 1).sum(0).tolist()
        if scored:
            found["curve"] = count_by_score(y.flatten(), rows.flatten())
    if scored:
        scores = [
            KINDS[kind][metric](y[:, [i]], rows[:, [i]]) if len(y) else math.nan
            for i in range(y.size(1))
        ]
        found["score"] = [score if math.isfinite(score) else None for score in scores]
    return found
