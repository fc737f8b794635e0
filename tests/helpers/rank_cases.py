"""What test_ranks.py lets every rank do; the processes import it by name."""

import torch
import torch.distributed as dist
from torch_geometric.data import Data

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.gnn.config import GNNConfig as Config
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.run.ranks import Ranks, join
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import GradientSync
from tests.helpers import building as build

CPU = torch.device("cpu")


def compute(
    ranks: Ranks, stop: StopRequest, gradients: list, predictions: list
) -> tuple[list, list]:
    """What ranks compute of models that do not move, for several pairs of a configuration and data at one start.

    Returns:
        Of each of `gradients` every step's averaged gradients, and of each of `predictions` those of every row.
    """
    join(CPU)
    return (
        [gradients_of(config, data, ranks) for config, data in gradients],
        [predict(config, data, ranks) for config, data in predictions],
    )


def learn(config: Config, data: Data) -> tuple:
    """A task, a model and perhaps a table that are the same on every rank."""
    task = build.build_task(config, data)
    torch.manual_seed(config.seed)
    return task, build.build_model(config, data, task), build.build_table(config, data, CPU)


def loss_of(task, model, table, batch) -> tuple[torch.Tensor, torch.Tensor]:
    return task.loss(model, batch if table is None else table.attach(batch, CPU), torch.Generator())


def parameters_of(model, table) -> list[torch.nn.Parameter]:
    return [*model.parameters(), *([] if table is None else [table.weight])]


def gradients_of(config: Config, data: Data, ranks: Ranks) -> list[list[torch.Tensor]]:
    """Every step's averaged gradients, a table's as a dense tensor at last."""
    task, model, table = learn(config, data)
    sync = GradientSync(model, ranks, table=None if table is None else table.weight)
    loader = build.build_loader(config, data)
    schedule = build.build_schedule(config, loader.num_batches, ranks)
    batches, out = list(loader.batches(0, schedule.share(0))), []
    for step in range(schedule.num_steps):
        for parameter in parameters_of(model, table):
            parameter.grad = None
        loss_sum = count = None
        if step < len(batches):
            loss_sum, count = loss_of(task, model, table, batches[step])
            loss_sum.backward()
        agreed = sync(loss_sum, count)
        assert table is None or table.weight.grad.is_sparse and table.weight.grad.is_coalesced()
        out.append([p.grad.to_dense() / (agreed.count or 1) for p in parameters_of(model, table)])
    return out


def predict(config: Config, data: Data, ranks: Ranks) -> torch.Tensor:
    return build.predict_all(config, data, 3, ranks)


def poisoned(ranks: Ranks, stop: StopRequest, config: Config, folder, content_hash: str) -> None:
    """Train; the loss of rank 1 is not a number in its sixth step."""
    loss, calls = NodeTask.loss, []

    def nan_once(self, model, batch, rng):
        calls.append(batch)
        total, count = loss(self, model, batch, rng)
        return total * torch.nan if len(calls) == 6 else total, count

    if ranks.rank == 1:
        NodeTask.loss = nan_once
    training._train_launched(
        ranks, stop, config, folder, "test", content_hash, log_config=None, began=0.0
    )


def fail(ranks: Ranks, stop: StopRequest) -> None:
    """Rank 1 fails while the others wait for it."""
    join(CPU)
    if ranks.rank == 1:
        raise KeyError("a reason")
    ranks.wait()


def told_by_the_first(ranks: Ranks, stop: StopRequest) -> list:
    """Return what two broadcasts bring, of which nothing may pass a socket."""
    join(CPU)
    dist.broadcast_object_list = None
    return ranks.gather(
        torch.tensor(
            [ranks.broadcast(10 + ranks.rank), ranks.broadcast({"a": 20 + ranks.rank})["a"]]
        )
    )
