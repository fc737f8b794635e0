"""What is learned: inputs, loss and metric. The loop does not know which task it runs."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from pipeline.metrics import rocauc

SPLITS = ("train", "valid", "test")


class NodeTask:
    """Predict the labels of nodes: binary tasks (metric "rocauc") or one class (metric "acc").

    Labels may be inputs too: in training a random part of the training nodes shows its labels and the loss is taken
    on the others; in prediction all training nodes show them. See "Masked Label Prediction: Unified Message Passing
    Model for Semi-Supervised Classification" (https://arxiv.org/abs/2009.03509). The metric of the train split then
    says nothing, as the model has seen its labels.

    Args:
        data: a graph as :func:`pipeline.data.load` returns it.
        label_input: fraction of the training nodes that show their labels in training, in [0, 1); 0 for no such input.

    Attributes:
        in_channels: columns of what the model gets, without one-hot categories.
        out_channels: columns of what it returns.
    """

    def __init__(self, data: Data, *, label_input: float = 0.0):
        self.metric: str = data.metric
        self.label_input = label_input
        self.out_channels: int = data.out_channels
        self.in_channels = data.x.size(1) - data.num_categories
        if label_input:
            self.in_channels += self.out_channels + 1
            labels = self._label_columns(data.y[data.train_mask])
            known = ~labels.isnan()
            # Rare labels are brought to the same scale as frequent ones.
            count = known.sum(0).clamp(min=1)
            self._mean = labels.nan_to_num().sum(0) / count
            deviation = torch.where(known, labels - self._mean, 0.0)
            self._std = (deviation.square().sum(0) / count).sqrt().clamp(min=1e-3)

    def predict(self, model: torch.nn.Module, batch: Data) -> Tensor:
        """Logits of every node of a batch, [num_nodes, out_channels]."""
        return model(self._inputs(batch, batch.train_mask), batch.edge_index, batch.edge_attr)

    def loss(self, model: torch.nn.Module, batch: Data) -> tuple[Tensor, Tensor]:
        """The loss summed over the labels that the batch has for training, and their number."""
        shown = batch.train_mask
        if self.label_input:
            shown = shown & (torch.rand(shown.shape) < self.label_input).to(shown.device)
            learned = batch.train_mask & ~shown
        else:
            learned = shown
        logits = model(self._inputs(batch, shown), batch.edge_index, batch.edge_attr)[learned].float()
        y = batch.y[learned]
        if self.metric == "acc":
            return F.cross_entropy(logits, y.squeeze(1), reduction="sum"), torch.tensor(y.size(0), device=y.device)
        known = ~y.isnan()
        each = F.binary_cross_entropy_with_logits(logits, y.nan_to_num(), reduction="none")
        return (each * known).sum(), known.sum()

    def _inputs(self, batch: Data, shown: Tensor) -> Tensor:
        if not self.label_input:
            return batch.x
        labels = (self._label_columns(batch.y) - self._mean.to(batch.y.device)) / self._std.to(batch.y.device)
        shown = shown.unsqueeze(1)
        return torch.cat([torch.where(shown, labels.nan_to_num(), 0.0), shown.float(), batch.x], dim=1)

    def _label_columns(self, y: Tensor) -> Tensor:
        return F.one_hot(y.squeeze(1), self.out_channels).float() if self.metric == "acc" else y

    def scores(self, logits: Tensor, data: Data, *, official: bool = False) -> dict[str, float]:
        """The metric on the nodes of each split; NaN for a split on which it is undefined.

        Args:
            logits: of every node of `data`, [num_nodes, out_channels].
            official: ask OGB's Evaluator, for the same numbers in ten times the time.

        Raises:
            FloatingPointError: a logit is not finite.
        """
        if not logits.isfinite().all():
            raise FloatingPointError("the model's predictions are not finite; try a lower train.lr or "
                                     "train.clip_grad_norm")
        return {split: self._score(logits[data[f"{split}_mask"]], data.y[data[f"{split}_mask"]], official)
                for split in SPLITS}

    def _score(self, logits: Tensor, y: Tensor, official: bool) -> float:
        if official:
            from pipeline.ogb_folder import evaluator  # takes as long to import as torch
        if y.size(0) == 0:
            return math.nan
        if self.metric == "acc":
            predicted = logits.argmax(1, keepdim=True)
            if official:
                return evaluator("acc", 1).eval({"y_true": y, "y_pred": predicted})["acc"]
            return float((predicted == y).double().mean())
        score = rocauc(y, logits)
        if official and not math.isnan(score):
            return float(evaluator("rocauc", y.size(1)).eval({"y_true": y, "y_pred": logits})["rocauc"])
        return score
