"""What test_features.py lets every rank do; the processes import it by name."""

import resource

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.features import NodeTable
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.sync import sum_rows

CPU = torch.device("cpu")


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
