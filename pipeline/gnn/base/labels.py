"""Labels of nodes or graphs as columns of numbers, and the logits that probabilities of them are."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base.calibration import fit_temperatures, log_loss
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import WHOLE_MEAN

# Probabilities this close to 0 and 1 are as good as certain.
CERTAIN = 1e-6


class Labels:
    """Labels as columns of numbers: of each class, of each binary task, or values.

    Args:
        data: a graph, or a union of graphs.
        task: what is learned.

    Attributes:
        are_classes, are_values: what they are; binary tasks otherwise.
        y: float32 [num_rows, columns]; NaN is unknown.
        train: which rows are for training [num_rows].
    """

    def __init__(self, data: Data, task: NodeTask):
        self.are_classes, self.are_values = task.kind == "classes", task.kind == "real values"
        self.train: Bool[Tensor, " num_rows"] = data.train_mask
        self._mean = data.get(WHOLE_MEAN)
        if self.are_classes:
            known = data.y >= 0
            self.y = torch.nn.functional.one_hot(
                data.y[:, 0].clamp(min=0), task.out_channels
            ).float()
            self.y = self.y.where(known, torch.nan)
        else:
            self.y = data.y.float()

    @property
    def plain(self) -> dict:
        """Settings of :func:`to_logits` that make logits of probabilities by their logarithms alone."""
        return {} if self.are_values else {"form": "logarithm", "are_classes": self.are_classes}

    @property
    def mean_name(self) -> str:
        """The name of the mean of such labels."""
        return "mean label" if self.are_values else "most frequent label"

    def known(self, rows: Bool[Tensor, " num_rows"]) -> Bool[Tensor, "num_rows columns"]:
        """Tell which labels of some rows are known."""
        return ~self.y.isnan() & rows.unsqueeze(1)

    def mean(self, rows: Bool[Tensor, " num_rows"]) -> Float[Tensor, " columns"]:
        """Compute the mean label of some rows; in a part of a graph, return that of the whole."""
        if self._mean is not None:
            return self._mean
        known = self.known(rows)
        return torch.where(known, self.y, 0.0).sum(0) / known.sum(0).clamp(min=1)

    def calibrate(
        self, found: Float[Tensor, "num_rows columns"], rows: Bool[Tensor, " num_rows"]
    ) -> dict:
        """Fit what makes probabilities of rows that no model was fitted to logits; see :func:`to_logits`.

        Logarithms of probabilities, and shares of neighbours as they are, are divided by a temperature. The likelihood
        of the labels says which of the two it is.

        Args:
            found: probabilities, or values.
            rows: whose labels the temperature is fitted to.
        """
        if self.are_values:
            return {}
        rows = rows & ~self.y.isnan().all(1)
        y = self.y[rows].argmax(1, keepdim=True) if self.are_classes else self.y[rows]
        best: tuple[float, dict] | None = None
        for form in ("logarithm", "share"):
            fitted = {"form": form, "are_classes": self.are_classes, "mean": self.mean(self.train)}
            fitted["temperature"] = fit_temperatures(
                to_logits(found[rows], fitted), y, are_classes=self.are_classes
            )
            loss = float(log_loss(to_logits(found[rows], fitted), y, are_classes=self.are_classes))
            if best is None or loss < best[0]:
                best = loss, fitted
        assert best is not None
        return best[1]


def to_logits(
    found: Float[Tensor, "num_rows columns"], fitted: dict
) -> Float[Tensor, "num_rows columns"]:
    """Make probabilities logits, by what :meth:`Labels.calibrate` has fitted; leave values as they are.

    The order of the classes of a row, and that of the rows of a binary task, does not change.
    """
    if not fitted:
        return found
    if fitted["form"] == "logarithm":
        logits = (
            found.clamp(min=CERTAIN).log()
            if fitted["are_classes"]
            else found.clamp(CERTAIN, 1 - CERTAIN).logit()
        )
        return logits / fitted.get("temperature", 1)
    if fitted["are_classes"]:
        return found / fitted.get("temperature", 1)
    mean = fitted["mean"]
    return (found - mean) / fitted.get("temperature", 1) + mean.clamp(CERTAIN, 1 - CERTAIN).logit()
