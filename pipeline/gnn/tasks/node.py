"""The labels of nodes: binary tasks, one class, or real values."""

import copy
import math
from typing import Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.tasks.losses import (
    LabelLoss,
    Weights,
    check_class_weights,
    on_device,
)
from parallel_epochs.pipeline.metrics import KINDS, check_finite, kind_of
from parallel_epochs.pipeline.names import BASE_COLUMNS, SPLITS, TEXT_SCORES


class NodeTask:
    """Predicts the labels of nodes: binary tasks (such as metric "rocauc"), one class ("acc") or real values ("rmse").

    Real values are learned as multiples of their standard deviation from their mean, both of the training nodes, with
    the squared error as the loss for "rmse" and the absolute one for "mae"; predictions are in their own unit. The two
    numbers are a function of the graph, whose digest stands in the checkpoint.

    Labels may be inputs too: in training a random part of the training nodes shows its labels and the loss is taken
    on the others; in prediction all training nodes show them. See "Masked Label Prediction: Unified Message Passing
    Model for Semi-Supervised Classification" (https://arxiv.org/abs/2009.03509). The metric of the train split then
    says nothing, as the model has seen its labels.

    Where features are scores of texts or of a simple method, the logits may begin there, so that the model learns what
    the scores miss, as with the base margin of XGBoost (https://xgboost.readthedocs.io/en/stable/prediction.html).

    Args:
        data: a graph as :func:`pipeline.data.cache.load` returns it, perhaps with columns of a simple method.
        label_input: fraction of the training nodes that show their labels in training, in [0, 1); 0 for no such input.
        metric: name of the metric, one of those of the dataset's labels; that of the dataset if none is given.
        class_weights: weights of classes and of binary tasks in the loss.
        text_scores: weight of the scores of texts in the logits, unless these begin at a simple method.

    Attributes:
        metric: name of the metric.
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`.
        label_loss: the loss of classes and binary tasks; none for real values.
        in_channels: columns of what the model gets, without one-hot categories.
        out_channels: columns of what it returns.
        num_rows: number of nodes to predict.

    Raises:
        ValueError: the graph has no labels of nodes, or they do not fit `class_weights`.
    """

    def __init__(
        self,
        data: Data,
        *,
        label_input: float = 0.0,
        metric: str | None = None,
        class_weights: Weights = None,
        text_scores: float = 0.0,
    ):
        if "y" not in data:
            raise ValueError(
                "task=node needs a graph with labels of nodes; this one has pairs of nodes: set task=link"
            )
        self.metric: str = metric or data.metric
        self.kind = kind_of(data.metric)
        self.label_input = label_input
        self._is_of_texts = BASE_COLUMNS not in data
        first, self._base_scale, self._base_shift = data.get(
            BASE_COLUMNS, (data.get(TEXT_SCORES, 0), text_scores, 0.0)
        )
        # From the end, since columns of a learned table may come in front.
        self._first_base = first - data.x.size(1)
        self.out_channels: int = data.out_channels
        self.num_rows: int = data.num_nodes
        self.in_channels = data.x.size(1) - data.num_categories
        self._data = data
        check_class_weights(class_weights, self.kind)
        self.label_loss = (
            None
            if self.kind == "real values"
            else LabelLoss(
                class_weights,
                data,
                num_labels=self.out_channels,
                is_binary=self.kind == "binary tasks",
            )
        )
        if self.label_loss is None:
            self._mean, self._std = _standard(data.y[data.train_mask])
        if label_input:
            self.in_channels += self.out_channels + 1
        if label_input and self.kind != "real values":
            labels = self._label_columns(data.y[data.train_mask])
            known = ~labels.isnan()
            # Rare labels are brought to the same scale as frequent ones.
            count = known.sum(0).clamp(min=1)
            self._mean = labels.nan_to_num().sum(0) / count
            deviation = torch.where(known, labels - self._mean, 0.0)
            self._std = (deviation.square().sum(0) / count).sqrt().clamp(min=1e-3)

    @property
    def label_moments(self) -> Float[Tensor, "2 columns"] | None:
        """Mean and deviation of the training labels, of labels that are inputs or real values; none for others."""
        return torch.stack([self._mean, self._std]) if hasattr(self, "_mean") else None

    @label_moments.setter
    def label_moments(self, moments: Float[Tensor, "2 columns"] | None) -> None:
        if moments is not None:
            self._mean, self._std = moments

    def alone(self) -> Self:
        """Return this task without its graph, for batches whose ``x`` has the labels that are inputs already."""
        found = copy.copy(self)
        found.label_input = 0.0
        del found._data
        return found

    def predict(
        self, model: torch.nn.Module, batch: Data
    ) -> tuple[Int[Tensor, " num_targets"], Float[Tensor, "num_targets out_channels"]]:
        """Predict the targets of a batch.

        Returns:
            The numbers of these nodes in the graph, and their logits, or their values in the targets' own unit.
        """
        rows = self._predict(model, batch, batch.train_mask)
        if not batch.target.all():  # those of a whole graph are as large as it, and need no copy
            rows = rows[batch.target]
        return self._rows_of(batch)[batch.target], self._to_unit(rows)

    def predict_all(
        self, model: torch.nn.Module, batch: Data
    ) -> Float[Tensor, "num_rows out_channels"]:
        """Predict every row of a batch whose ``x`` has the labels that are inputs already; see :meth:`predict`."""
        return self._to_unit(self._predict(model, batch, batch.train_mask))

    def _to_unit(
        self, rows: Float[Tensor, "num_rows out_channels"]
    ) -> Float[Tensor, "num_rows out_channels"]:
        """Return logits as they are, and what is learned of real values in the unit of the labels."""
        if self.label_loss is not None:
            return rows
        mean, std = self._moments(rows.device)
        return rows.float() * std + mean

    def loss(
        self, model: torch.nn.Module, batch: Data, rng: torch.Generator
    ) -> tuple[Float[Tensor, ""], Shaped[Tensor, ""]]:
        """Compute the loss of a batch, summed over the labels that its targets have for training, and their number.

        With weights of classes, the second is the sum of the weights of these labels.

        Args:
            rng: on the CPU; decides which labels are inputs.
        """
        shown, learned = self._divide(batch, self.draw(batch, rng))
        logits = self._predict(model, self._hide(batch, learned), shown)[learned].float()
        y = batch.y[learned]
        if self.label_loss is not None:
            return self.label_loss(logits, y)
        return self._loss_of_values(logits, y)

    def draw(self, batch: Data, rng: torch.Generator) -> Float[Tensor, " num_nodes"] | None:
        """Draw the numbers, on the CPU, that decide which labels are inputs; none if no labels are."""
        return torch.rand(batch.train_mask.shape, generator=rng) if self.label_input else None

    def _loss_of_values(
        self, logits: Float[Tensor, "num_rows out_channels"], y: Float[Tensor, "num_rows columns"]
    ) -> tuple[Float[Tensor, ""], Shaped[Tensor, ""]]:
        known = ~y.isnan()
        mean, std = self._moments(y.device)
        errors = (logits - ((y - mean) / std).nan_to_num()) * known
        return (errors.abs() if self.metric == "mae" else errors.square()).sum(), known.sum()

    def _divide(
        self, batch: Data, drawn: Float[Tensor, " num_nodes"] | None
    ) -> tuple[Bool[Tensor, " num_nodes"], Bool[Tensor, " num_nodes"]]:
        """Tell which training nodes of a batch show their labels, if these are inputs; the others are learned."""
        shown, learned = batch.train_mask, batch.train_mask & batch.target
        if drawn is None:
            return shown, learned
        shown = shown & (drawn < self.label_input).to(shown.device)
        return shown, learned & ~shown

    def _hide(self, batch: Data, learned: Bool[Tensor, " num_nodes"]) -> Data:
        """Return the batch that those who are learned are predicted from."""
        return batch

    def scores(
        self,
        model: torch.nn.Module | None,
        rows: Float[Tensor, "num_rows out_channels"],
    ) -> dict[str, float]:
        """Compute the metric on the nodes of each split; NaN for a split on which it is undefined.

        Args:
            model: not needed here; a task whose rows are embeddings decodes them with it.
            rows: logits or values of every node.

        Raises:
            FloatingPointError: a logit is not finite.
        """
        check_finite(rows)
        return {split: self.score(split, rows) for split in SPLITS}

    def score(self, split: str, rows: Float[Tensor, "num_rows out_channels"]) -> float:
        """Compute the metric on the nodes of a split; NaN where it is undefined. Arguments as of :meth:`scores`."""
        mask = self._data[f"{split}_mask"]
        return self._score(rows[mask], self._data.y[mask])

    def labels_of(
        self, split: str
    ) -> tuple[Shaped[Tensor, "num_labelled columns"], Int[Tensor, " num_labelled"]]:
        """Return the labels of a split, and the numbers of its rows."""
        mask = self._data[f"{split}_mask"]
        return self._data.y[mask], mask.nonzero().squeeze(1)

    def is_defined(self, split: str) -> bool:
        """Tell whether the metric of a split is a number: it needs labels, and some metrics labels of both kinds."""
        y = self._data.y[self._data[f"{split}_mask"]]
        return not math.isnan(self._score(torch.zeros(y.size(0), self.out_channels), y))

    def _predict(
        self, model: torch.nn.Module, batch: Data, shown: Bool[Tensor, " num_nodes"]
    ) -> Float[Tensor, "num_nodes out_channels"]:
        logits = model(self.inputs(batch, shown), batch.edge_index, batch.edge_attr)
        return logits + self._start(batch) if self._base_scale else logits

    def _start(self, batch: Data) -> Float[Tensor, "num_nodes out_channels"]:
        """Turn columns of scores into what the model adds to: logits, or multiples of the deviation."""
        first = self._first_base + batch.x.size(1)
        rows = self._base_scale * batch.x[:, first : first + self.out_channels] + self._base_shift
        if self.label_loss is not None or self._is_of_texts:
            return rows
        mean, std = self._moments(rows.device)
        return (rows - mean) / std

    def _moments(
        self, device: torch.device
    ) -> tuple[Float[Tensor, " columns"], Float[Tensor, " columns"]]:
        """Return mean and deviation of the labels on a device."""
        return on_device(self._mean, device), on_device(self._std, device)

    def _rows_of(self, batch: Data) -> Int[Tensor, " num_nodes"]:
        return batch.n_id

    def inputs(
        self, batch: Data, shown: Bool[Tensor, " num_nodes"]
    ) -> Float[Tensor, "num_nodes channels"]:
        """Return what a model reads of each node: the labels that are shown, if they are inputs, and its features."""
        if not self.label_input:
            return batch.x
        mean, std = self._moments(batch.y.device)
        labels = (self._label_columns(batch.y) - mean) / std
        shown = shown.unsqueeze(1)
        return torch.cat(
            [torch.where(shown, labels.nan_to_num(), 0.0), shown.float(), batch.x], dim=1
        )

    def _label_columns(
        self, y: Shaped[Tensor, "num_nodes columns"]
    ) -> Float[Tensor, "num_nodes out_channels"]:
        return F.one_hot(y.squeeze(1), self.out_channels).float() if self.kind == "classes" else y

    def _score(self, logits: Tensor, y: Tensor) -> float:
        if y.size(0) == 0:
            return math.nan
        return KINDS[self.kind][self.metric](y, logits)


def _standard(
    y: Float[Tensor, "num_nodes columns"],
) -> tuple[Float[Tensor, " columns"], Float[Tensor, " columns"]]:
    """Compute mean and standard deviation of each column's known values; 0 and 1 of a column without, 1 of a constant."""
    mean = y.double().nanmean(0).nan_to_num()
    deviation = (y - mean).square().nanmean(0).sqrt().nan_to_num()
    # A spread that only comes from the rounding of float32 does not count.
    constant = deviation <= 1e-6 * mean.abs()
    return mean.float(), deviation.where(~constant, 1.0).float()
