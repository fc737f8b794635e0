"""Losses of classes and of binary tasks: with weights of rare labels."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.node_names import unpack_names

BALANCED = "balanced"
# Weights of the labels: balanced ones; one for each class, or for the positive labels of each binary task; or none.
Weights = str | list[float] | None
# The class of rows that have no loss.
IGNORED = -100


# Tensors of a task on other devices than its own.
_copies = WeakIdKeyDictionary()


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. The copy is kept, since a copy waits for the device."""
    if tensor.device == device:
        return tensor
    known = _copies.setdefault(tensor, {})
    if device not in known:
        known[device] = tensor.to(device)
    return known[device]


def check_class_weights(weights: Weights, kind: str) -> None:
    """Refuse weights of classes where there are none.

    Args:
        weights: task.class_weights.
        kind: one of the names in :data:`pipeline.metrics.KINDS`.

    Raises:
        ValueError: labels of this kind have no weights.
    """
    if weights and kind == "real values":
        raise ValueError(
            f"task.class_weights={weights} needs classes or binary tasks; this run learns {kind}. "
            "Leave it out"
        )


class LabelLoss:
    """The loss of classes or binary tasks, summed over labels, and what the sum is to be divided by.

    One quotient is torch's mean: the sum over all batches and ranks, divided by the sum of what they are to be divided
    by. For classes without weights, the divisor is the number of labels. With weights it is the sum of the weights of
    the labels, as in ``F.cross_entropy(..., weight=weights)``. For binary tasks it is the number of known labels, as in
    ``F.binary_cross_entropy_with_logits(..., pos_weight=weights)``.

    Args:
        given: the weights of the labels.
        is_binary: whether the labels are those of binary tasks.
        data: a graph as :func:`pipeline.data.cache.load` returns it, or a part of it.
        num_labels: number of classes or tasks.

    Raises:
        ValueError: there are more or fewer weights than classes or tasks, or balanced weights are infinite.
    """

    def __init__(self, given: Weights, data: Data, *, num_labels: int, is_binary: bool):
        self._is_binary = is_binary
        self._names = (
            unpack_names(data, "label_names")
            if "label_names" in data
            else list(map(str, range(num_labels)))
        )
        self.weights = self._weights(given, data, num_labels)

    def __call__(
        self, logits: Float[Tensor, "num_rows num_labels"], y: Shaped[Tensor, "num_rows columns"]
    ) -> tuple[Float[Tensor, ""], Shaped[Tensor, ""]]:
        """Compute the loss, summed, and what it is to be divided by.

        Args:
            y: classes [num_rows, 1], int64, or 0, 1 and NaN [num_rows, num_labels].
        """
        weights = None if self.weights is None else on_device(self.weights, y.device)
        return (
            self._of_tasks(logits, y, weights)
            if self._is_binary
            else self._of_classes(logits, y[:, 0], weights)
        )

    def __str__(self) -> str:
        """Say how the loss differs from the plain one; "" if it does not."""
        if self.weights is None:
            return ""
        ends = dict.fromkeys((int(self.weights.argmin()), int(self.weights.argmax())))
        shown = [f"{self.weights[label]:.3g} ({self._names[label]})" for label in ends]
        what = "weights of positive labels" if self._is_binary else "class weights"
        return f"{what}: {' to '.join(shown)}"

    def _of_classes(
        self,
        logits: Float[Tensor, "num_rows num_labels"],
        y: Int[Tensor, " num_rows"],
        weights: Float[Tensor, " num_labels"] | None,
    ) -> tuple[Float[Tensor, ""], Shaped[Tensor, ""]]:
        count = (
            torch.tensor(y.size(0), device=y.device)
            if weights is None
            else weights[y].double().sum()
        )
        return F.cross_entropy(logits, y, weight=weights, reduction="sum"), count

    def _of_tasks(
        self,
        logits: Float[Tensor, "num_rows num_labels"],
        y: Float[Tensor, "num_rows num_labels"],
        weights: Float[Tensor, " num_labels"] | None,
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        known, target = ~y.isnan(), y.nan_to_num()
        each = F.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weights, reduction="none"
        )
        return (each * known).sum(), known.sum()

    def _weights(
        self, given: Weights, data: Data, num_labels: int
    ) -> Float[Tensor, " num_labels"] | None:
        if given is None:
            return None
        if isinstance(given, str):
            y = data.y[data.train_mask]
            return (
                self._balanced_tasks(y)
                if self._is_binary
                else self._balanced_classes(y[:, 0], num_labels)
            )
        if len(given) != num_labels:
            what = "binary tasks" if self._is_binary else "classes"
            shown = ", ".join(self._names[:5]) + ", ..." * (num_labels > 5)
            raise ValueError(
                f"task.class_weights has {len(given)} numbers, and the dataset has {num_labels:,} {what} "
                f"({shown}). Give one number for each, in this order"
            )
        return torch.tensor(given, dtype=torch.float32)

    def _balanced_classes(
        self, y: Int[Tensor, " num_rows"], num_labels: int
    ) -> Float[Tensor, " num_labels"]:
        counts = torch.bincount(y, minlength=num_labels)
        self._refuse_without(counts == 0, "class", "does not occur")
        return (len(y) / (num_labels * counts.double())).float()

    def _balanced_tasks(
        self, y: Float[Tensor, "num_rows num_labels"]
    ) -> Float[Tensor, " num_labels"]:
        positive, negative = (y == 1).sum(0), (y == 0).sum(0)
        self._refuse_without(positive == 0, "task", "has no positive label")
        self._refuse_without(negative == 0, "task", "has no negative label")
        return (negative.double() / positive).float()

    def _refuse_without(
        self, lacking: Bool[Tensor, " num_labels"], what: str, problem: str
    ) -> None:
        if lacking.any():
            raise ValueError(
                f"task.class_weights=balanced: {what} {self._names[int(lacking.nonzero()[0])]} {problem} "
                "in the training split, so its weight cannot be computed. Give a list of weights, or "
                "choose another split"
            )
