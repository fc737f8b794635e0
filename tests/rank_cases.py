"""What test_parallel.py lets every rank do; the processes import it by name."""

import copy

import torch

from pipeline import train
from pipeline.checkpoint import digest
from pipeline.config import Config
from pipeline.distributed import GradientSync, Ranks, StopRequest, join
from pipeline.loader import ClusterLoader
from pipeline.loop import build_model, partitioner_of, predictor
from pipeline.schedule import Schedule
from pipeline.task import NodeTask

CPU = torch.device("cpu")


def gradients(ranks: Ranks, stop: StopRequest, config: Config, data) -> list[list[torch.Tensor]]:
    """Every step's averaged gradients of a model that does not move."""
    join(CPU)
    task = NodeTask(data)
    torch.manual_seed(config.seed)
    model = build_model(config.model, data, task)
    sync = GradientSync(model, ranks)
    schedule = Schedule(config, partitioner_of(config, data), ranks)
    batches = list(ClusterLoader(data).batches(*schedule.draw(0, 0)))
    out = []
    for step in range(schedule.num_steps):
        model.zero_grad()
        loss_sum = count = None
        if step < len(batches):
            loss_sum, count = task.loss(model, batches[step])
            loss_sum.backward()
        agreed = sync(loss_sum, count, False)
        out.append([p.grad / max(agreed.count, 1) for p in model.parameters()])
    return out


def predictions(ranks: Ranks, stop: StopRequest, config: Config, data) -> torch.Tensor:
    join(CPU)
    return predict(config, data, ranks)


def predict(config: Config, data, ranks: Ranks) -> torch.Tensor:
    task = NodeTask(data)
    torch.manual_seed(config.seed)
    model = build_model(config.model, data, task)
    return predictor(model, task, ClusterLoader(data), config, ranks)(3)


def poisoned(ranks: Ranks, stop: StopRequest, config: Config, folder, content_hash: str) -> None:
    """Train; the loss of rank 1 is not a number in its sixth step."""
    loss, calls = NodeTask.loss, []

    def nan_once(self, model, batch):
        calls.append(batch)
        total, count = loss(self, model, batch)
        return total * torch.nan if len(calls) == 6 else total, count

    if ranks.rank == 1:
        NodeTask.loss = nan_once
    train._train_rank(ranks, stop, config, folder, "test", content_hash, None)


def drift(ranks: Ranks, stop: StopRequest) -> None:
    """The ranks compare their weights, one of which has moved by itself."""
    join(CPU)
    weights = {"weight": torch.ones(3)}
    ranks.assert_equal(digest(weights), "the weights")
    if ranks.rank == 2:
        weights = copy.deepcopy(weights)
        weights["weight"][1] += 1e-7
    ranks.assert_equal(digest(weights), "the weights")


def fail(ranks: Ranks, stop: StopRequest) -> None:
    """Rank 1 fails while the others wait for it."""
    join(CPU)
    if ranks.rank == 1:
        raise KeyError("a reason")
    ranks.wait()
