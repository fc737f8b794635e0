"""What test_ranks.py lets every rank do; the processes import it by name."""

import copy

import torch

from pipeline import build, training
from pipeline.config import Config
from pipeline.run.checkpoint import digest
from pipeline.run.ranks import Ranks, join
from pipeline.run.stop import StopRequest
from pipeline.run.sync import GradientSync
from pipeline.tasks.node import NodeTask

CPU = torch.device("cpu")


def gradients(ranks: Ranks, stop: StopRequest, config: Config, data) -> list[list[torch.Tensor]]:
    """Every step's averaged gradients of a model that does not move."""
    join(CPU)
    task, loader = build.build_task(config, data), build.build_loader(config, data)
    rng = torch.manual_seed(config.seed)
    model = build.build_model(config, data, task)
    sync = GradientSync(model, ranks)
    schedule = build.build_schedule(config, loader.num_batches, ranks)
    batches = list(loader.batches(0, schedule.share(0)))
    out = []
    for step in range(schedule.num_steps):
        model.zero_grad()
        loss_sum = count = None
        if step < len(batches):
            loss_sum, count = task.loss(model, batches[step], rng)
            loss_sum.backward()
        agreed = sync(loss_sum, count)
        out.append([p.grad / max(agreed.count, 1) for p in model.parameters()])
    return out


def predictions(ranks: Ranks, stop: StopRequest, config: Config, data) -> torch.Tensor:
    join(CPU)
    return predict(config, data, ranks)


def predict(config: Config, data, ranks: Ranks) -> torch.Tensor:
    task, loader = build.build_task(config, data), build.build_loader(config, data)
    torch.manual_seed(config.seed)
    model = build.build_model(config, data, task)
    return build.build_predictor(config, model, task, loader, ranks)(3)


def poisoned(ranks: Ranks, stop: StopRequest, config: Config, folder, content_hash: str) -> None:
    """Train; the loss of rank 1 is not a number in its sixth step."""
    loss, calls = NodeTask.loss, []

    def nan_once(self, model, batch, rng):
        calls.append(batch)
        total, count = loss(self, model, batch, rng)
        return total * torch.nan if len(calls) == 6 else total, count

    if ranks.rank == 1:
        NodeTask.loss = nan_once
    training._train_launched(ranks, stop, config, folder, "test", content_hash, None)


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
