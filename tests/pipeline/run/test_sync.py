"""What ranks exchange in a step, by threads in place of processes: held against sums and means written down by hand."""

import math
import signal
import threading
from dataclasses import dataclass, field

import pytest
import torch

from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import Agreement, GradientSync, sum_rows


@dataclass
class Meeting:
    """Where threads add up tensors as ranks would."""

    num_ranks: int
    barrier: threading.Barrier = field(init=False)
    brought: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        self.barrier = threading.Barrier(self.num_ranks, timeout=30)

    def sum_(self, rank: int, tensor: torch.Tensor) -> None:
        self.brought[rank] = tensor.clone()
        self.barrier.wait()
        total = sum(self.brought[rank] for rank in range(self.num_ranks))
        self.barrier.wait()
        tensor.copy_(total)


class ThreadRanks(Ranks):
    def sum_(self, tensor: torch.Tensor) -> None:
        self.meeting.sum_(self.rank, tensor)


def step(
    losses: list[float | None], *, grads: list[float] | None = None, stopped: int | None = None
) -> tuple[list[Agreement], list[torch.nn.Module]]:
    """Take a step: the loss of each rank, of as many labels as its number plus one, or none if it has no batch."""
    meeting, agreements, models = Meeting(len(losses)), {}, []

    def take(rank: int, model: torch.nn.Module, stop: StopRequest) -> None:
        ranks = ThreadRanks(rank, len(losses))
        object.__setattr__(ranks, "meeting", meeting)
        sync = GradientSync(model, ranks, stop)
        loss, count = losses[rank], torch.tensor(rank + 1)
        agreements[rank] = sync(None, None) if loss is None else sync(torch.tensor(loss), count)

    threads = []
    for rank, loss in enumerate(losses):
        model, stop = torch.nn.BatchNorm1d(2), StopRequest()
        stop.defer()
        model.running_mean += 10.0 * (rank + 1)
        model.num_batches_tracked += 5 + (loss is not None)
        if loss is not None:
            model.weight.grad = torch.full((2,), grads[rank] if grads else rank + 1.0)
        if rank == stopped:
            stop._note(signal.SIGTERM, None)
        models.append(model)
        threads.append(threading.Thread(target=take, args=(rank, model, stop)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [agreements[rank] for rank in range(len(losses))], models


@pytest.mark.parametrize(
    "losses, mean",
    [
        ([1.5, 2.0, 4.0], 20.0),
        ([1.5, None, 4.0], 20.0),
        ([None, 2.0, None], 20.0),
        ([1.5, 2.0, None], 15.0),
    ],
)
def test_gradients_are_summed_and_statistics_are_the_mean_over_the_ranks_with_a_batch(losses, mean):
    agreements, models = step(losses)
    active = [rank for rank, loss in enumerate(losses) if loss is not None]
    expected = Agreement(
        sum(losses[rank] for rank in active), sum(rank + 1 for rank in active), False, []
    )
    assert agreements == [expected] * 3
    for model in models:
        assert model.weight.grad.tolist() == [sum(rank + 1 for rank in active)] * 2
        assert model.bias.grad is None  # which no rank uses
        assert model.running_mean.tolist() == [mean] * 2 and model.running_var.tolist() == [1, 1]
        assert model.num_batches_tracked == 6 and model.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize(
    "losses, grads, broken",
    [
        ([1.0, math.nan, 1.0], [1.0, 1.0, 1.0], [1]),
        ([1.0, 1.0, 1.0], [1.0, 1.0, math.inf], [2]),
        ([math.inf, None, 1.0], [1.0, 1.0, math.nan], [0, 2]),
    ],
)
def test_the_ranks_that_are_not_finite_are_known_to_all(losses, grads, broken):
    agreements, _ = step(losses, grads=grads)
    assert [agreed.broken for agreed in agreements] == [broken] * 3


@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_request_to_stop_reaches_all_from_any_rank_with_or_without_a_batch(stopped):
    agreements, _ = step([1.0, 2.0, None], stopped=stopped)
    assert [agreed.stop for agreed in agreements] == [True] * 3


class Gathering(Ranks):
    """A rank whose others bring the sparse gradients that were written down beforehand."""

    def gather(self, tensor):
        return self.others.pop(0)


def test_rows_that_several_ranks_touch_are_added_and_each_comes_once():
    """Rank 0 touches the rows 3 and 1 (twice), rank 1 none, rank 2 the rows 1, 4 and 0."""
    table = torch.nn.Parameter(torch.zeros(6, 2))
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[3, 1, 1]]),
        torch.tensor([[1.0, 2], [4, 8], [16, 32]]),
        (6, 2),
        check_invariants=True,
    )
    ranks = Gathering(0, 3)
    pad, nothing = torch.nn.functional.pad, torch.zeros(3, dtype=torch.int64)
    object.__setattr__(
        ranks,
        "others",
        [
            [torch.tensor([2]), torch.tensor([0]), torch.tensor([3])],
            [pad(torch.tensor([1, 3]), (0, 1)), nothing, torch.tensor([0, 1, 4])],
            [
                torch.tensor([[20.0, 40], [1, 2], [0, 0]]),
                torch.zeros(3, 2),
                torch.tensor([[0.25, 0.5], [64, 128], [256, 512]]),
            ],
        ],
    )
    total = sum_rows(table, ranks)
    assert (
        total.is_coalesced()
        and total.indices().tolist() == [[0, 1, 3, 4]]
        and total.shape == (6, 2)
    )
    assert total.values().tolist() == [[0.25, 0.5], [84, 168], [1, 2], [256, 512]]
