"""What is learned: the loss of a batch and the metric of all predictions. The loop does not know which task it runs."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from pipeline.ogb_folder import evaluator

SPLITS = ("train", "valid", "test")


class NodeTask:
    """Predict the labels of nodes: binary tasks (metric "rocauc") or one class (metric "acc").

    Args:
        data: a graph as :func:`pipeline.data.load` returns it.
    """

    def __init__(self, data: Data):
        self.metric: str = data.metric
        self.out_channels = int(data.y.max()) + 1 if self.metric == "acc" else data.y.size(1)

    def loss(self, logits: Tensor, batch: Data) -> tuple[Tensor, Tensor]:
        """The loss summed over the labels of the batch's training nodes, and their number.

        Args:
            logits: [num_nodes, out_channels]
        """
        logits, y = logits[batch.train_mask].float(), batch.y[batch.train_mask]
        if self.metric == "acc":
            return F.cross_entropy(logits, y.squeeze(1), reduction="sum"), torch.tensor(y.size(0), device=y.device)
        known = ~y.isnan()
        each = F.binary_cross_entropy_with_logits(logits, y.nan_to_num(), reduction="none")
        return (each * known).sum(), known.sum()

    def scores(self, logits: Tensor, data: Data) -> dict[str, float]:
        """The metric on the nodes of each split, by OGB's Evaluator; NaN for a split on which it is undefined.

        Args:
            logits: of every node of `data`, [num_nodes, out_channels].
        """
        prediction = logits.argmax(1, keepdim=True) if self.metric == "acc" else logits
        return {split: self._score(prediction[data[f"{split}_mask"]], data.y[data[f"{split}_mask"]])
                for split in SPLITS}

    def _score(self, prediction: Tensor, y: Tensor) -> float:
        # ROC-AUC needs a task with labels of both kinds.
        if y.size(0) == 0 or self.metric == "rocauc" and not bool(((y == 0).any(0) & (y == 1).any(0)).any()):
            return math.nan
        result = evaluator(self.metric, y.size(1)).eval({"y_true": y, "y_pred": prediction})
        return float(result[self.metric])
