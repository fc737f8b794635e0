"""Exchanges gradients, running statistics, losses and requests to stop between the ranks at every step."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest

# Rows of a table in one sum.
SUMMED = 2**20


@dataclass
class Agreement:
    """The result of a step that all ranks took together.

    Attributes:
        loss_sum: loss summed over the labels of all ranks.
        count: number of these labels, or the sum of their weights.
        stop: whether any rank was asked to stop.
        broken: the ranks whose loss or gradient is not finite. It is empty for a single process, which checks its own.
    """

    loss_sum: float
    count: float
    stop: bool
    broken: list[int]


class GradientSync:
    """Sums the gradients of all ranks at every step, and shares everything else that the ranks must agree on.

    Running statistics (of batch norms) become the mean over the ranks that had a batch in this step. Counters of
    batches become the rounded mean.

    Args:
        table: a parameter with sparse gradients. The ranks exchange only the rows that have one: see
            :func:`sum_rows`.

    Attributes:
        seconds: time spent here so far, including the wait for slower ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        ranks: Ranks,
        stop: StopRequest | None = None,
        *,
        table: torch.nn.Parameter | None = None,
    ):
        self._ranks, self._stop, self._table = ranks, stop or StopRequest(), table
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._statistics = [b for b in model.buffers() if b.is_floating_point()]
        self._counters = [b for b in model.buffers() if not b.is_floating_point()]
        self.seconds = 0.0

    @property
    def num_bytes(self) -> int:
        """Return the bytes that a rank contributes to a step."""
        return sum(4 * p.numel() for p in [*self._parameters, *self._statistics])

    def __call__(self, loss_sum: Tensor | None, count: Tensor | None) -> Agreement:
        """Replace every gradient by its sum over the ranks.

        Args:
            loss_sum: this rank's loss, after its backward pass; None if the rank had no batch in this step.
            count: number of labels in the loss, or the sum of their weights.
        """
        ranks, stop = self._ranks, self._stop.signum != 0
        if ranks.num_ranks == 1:
            assert loss_sum is not None and count is not None, (
                "a single rank has a batch in every step"
            )
            return Agreement(float(loss_sum.detach()), float(count), stop, [])
        device = self._parameters[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the time of backward is not this method's
        start = time.perf_counter()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        statistics = [b if loss_sum is not None else torch.zeros_like(b) for b in self._statistics]

        # In float64: losses, numbers of labels, flags, and counters, which are whole numbers below 2^53.
        message = torch.zeros(4 + ranks.num_ranks, dtype=torch.float64, device=device)
        counters = [b.flatten().double() * (loss_sum is not None) for b in self._counters]
        if loss_sum is not None and count is not None:
            rows = (
                []
                if self._table is None or self._table.grad is None
                else [self._table.grad._values()]
            )
            finite = (torch.nn.utils.get_total_norm([*grads, *rows]) + loss_sum.detach()).isfinite()
            message[:3] = torch.stack(
                [loss_sum.detach().double(), count.double(), torch.ones_like(message[0])]
            )
            message[4 + ranks.rank] = ~finite
        message[3] = stop
        used = [float(p.grad is not None) for p in self._parameters]
        message = torch.cat([message, message.new_tensor(used), *counters])
        ranks.sum_(message)
        flat = torch.cat([t.flatten() for t in (*grads, *statistics)])
        ranks.sum_(flat)

        message, uses, *counters = message.split(
            [4 + ranks.num_ranks, len(used), *(b.numel() for b in self._counters)]
        )
        loss, num_labels, num_active, stops, *broken = message.tolist()
        parts = flat.split([t.numel() for t in (*grads, *statistics)])
        for p, part, num_used in zip(self._parameters, parts, uses.tolist(), strict=False):
            p.grad = part.view_as(p) if num_used else None
        for b, part in zip(self._statistics, parts[len(grads) :], strict=True):
            b.copy_(part.view_as(b) / num_active)
        for b, part in zip(self._counters, counters, strict=True):
            b.copy_((part / num_active).round().view_as(b))
        if self._table is not None:
            self._table.grad = sum_rows(self._table, ranks)
        self.seconds += time.perf_counter() - start
        return Agreement(
            loss, num_labels, stops > 0, [rank for rank, flag in enumerate(broken) if flag]
        )


def sum_columns(table: Tensor) -> Tensor:
    """Sum the rows of a large table in float64, without copying the whole table. Returns [channels]."""
    return torch.stack([rows.sum(0, dtype=torch.float64) for rows in table.split(SUMMED)]).sum(0)


def sum_rows(table: Tensor, ranks: Ranks) -> Tensor:
    """Sum the sparse gradients of all ranks. Every rank gets the same bits, and only rows with gradients are sent.

    Every rank gathers the row numbers and rows of all ranks, padded to the longest, and adds them up in rank order.

    Args:
        table: [num_rows, channels], with a sparse gradient, or without one on a rank that had no batch.

    Returns:
        The sum, a coalesced sparse tensor with the rows that have a gradient on any rank.
    """
    grad = (
        table.grad
        if table.grad is not None
        else torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.int64, device=table.device),
            table.new_empty(0, table.size(1)),
            table.shape,
            check_invariants=False,
        )
    )
    grad = grad.coalesce()
    numbers, rows = grad.indices()[0], grad.values()
    lengths = [
        int(length) for length in ranks.gather(torch.tensor([len(rows)], device=table.device))
    ]
    missing = max(lengths) - len(rows)
    all_numbers = ranks.gather(torch.nn.functional.pad(numbers, (0, missing)))
    all_rows = ranks.gather(torch.nn.functional.pad(rows, (0, 0, 0, missing)))

    touched, places = torch.cat(
        [part[:length] for part, length in zip(all_numbers, lengths, strict=True)]
    ).unique(return_inverse=True)
    total = rows.new_zeros(len(touched), rows.size(1))
    for place, part in zip(places.split(lengths), all_rows, strict=True):
        total[place] += part[: len(place)]  # a rank has each row once
    return torch.sparse_coo_tensor(
        touched.unsqueeze(0), total, table.shape, is_coalesced=True, check_invariants=False
    )
