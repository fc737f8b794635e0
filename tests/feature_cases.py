"""What test_features.py lets every rank do; the processes import it by name."""

import resource

import torch
from torch_geometric.data import Data

from pipeline import build, training
from pipeline.config import Config
from pipeline.features import NodeTable
from pipeline.run.ranks import Ranks, join
from pipeline.run.stop import StopRequest
from pipeline.run.sync import GradientSync, sum_rows
from pipeline.trainers.gnn import GNNTrainer

CPU = torch.device("cpu")


def learn(config: Config, data: Data):
    """A task, a model and a table that are the same on every rank."""
    task = build.build_task(config, data)
    torch.manual_seed(config.seed)
    return task, build.build_model(config, data, task), build.build_table(config, data, CPU)


def gradients(ranks: Ranks, stop: StopRequest, config: Config, data: Data) -> list[list[torch.Tensor]]:
    """Every step's gradients of a model and a table that do not move, the table's as a dense tensor at last."""
    join(CPU)
    task, model, table = learn(config, data)
    sync, loader = GradientSync(model, ranks, table=table.weight), build.build_loader(config, data)
    schedule = build.build_schedule(config, loader.num_batches, ranks)
    batches, out = list(loader.batches(0, schedule.share(0))), []
    for step in range(schedule.num_steps):
        model.zero_grad()
        table.zero_grad()
        loss_sum = count = None
        if step < len(batches):
            loss_sum, count = task.loss(model, table.attach(batches[step], CPU), torch.Generator())
            loss_sum.backward()
        agreed = sync(loss_sum, count)
        assert table.weight.grad.is_sparse and table.weight.grad.is_coalesced()
        out.append([p.grad / max(agreed.count, 1) for p in model.parameters()]
                   + [table.weight.grad.to_dense() / max(agreed.count, 1)])
    return out


def tampered(ranks: Ranks, stop: StopRequest, config: Config, folder, content_hash: str) -> None:
    """Train; before the third step one number of rank 1's table changes in its last bits."""
    step = GNNTrainer._step

    def tamper_then_step(self, batch, lr):
        if self.progress.step == 2:
            self.table.weight.data[-1, -1] += 1e-6
        return step(self, batch, lr)

    if ranks.rank == 1:
        GNNTrainer._step = tamper_then_step
    training._train_launched(ranks, stop, config, folder, "test", content_hash, None)


class TwoAlike(Ranks):
    """Two ranks that bring the same."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, tensor.clone()]


def check_memory_of_steps(num_nodes: int, num_ranks: int) -> None:
    """Take steps of a large table on 1,000 rows, in a process that does nothing else."""
    table, rows = NodeTable(num_nodes, 64, lr=0.01), torch.arange(1000) * (num_nodes // 1000)

    def step():
        batch = Data(x=torch.empty(1000, 0), n_id=rows, num_nodes=1000)
        table.zero_grad()
        table.attach(batch, CPU).x.square().sum().backward()
        if num_ranks > 1:
            table.weight.grad = sum_rows(table.weight, TwoAlike(0, 2))
        table.gradient()
        table.step(1.0)

    step()  # which makes the moments
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        step()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 8, f"{grown} MiB"
