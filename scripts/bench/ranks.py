"""Several ranks on one machine, compared with one: their speed and the time of communication."""

import statistics
import time

import torch

from parallel_epochs.models import DeeperGCN
from parallel_epochs.pipeline.run.launch import launch
from parallel_epochs.pipeline.run.ranks import Ranks, join
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import GradientSync
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import say, write_row

CPU = torch.device("cpu")


def bench_ranks(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    layers: int = 112,
    num_ranks: int = 2,
    steps: int = 3,
) -> None:
    """Measure clusters per second of one and of several ranks, each with one thread and the same work."""
    single = None
    for count in (1, num_ranks):
        seconds, share, num_bytes = launch(
            _train_steps, count, 1, StopRequest(), num_nodes, num_edges, layers, steps
        )
        rate = count / seconds
        single = single or rate
        write_row(
            {
                "bench": "ranks",
                "num_nodes": num_nodes,
                "num_edges": num_edges,
                "layers": layers,
                "num_ranks": count,
                "step_median_s": round(seconds, 4),
                "clusters_per_s": round(rate, 4),
                "ratio": round(rate / single, 3),
                "gradient_mib": round(num_bytes / 2**20, 2),
                "all_reduce_percent": round(100 * share, 2),
            }
        )


def _train_steps(
    ranks: Ranks, stop: StopRequest, num_nodes: int, num_edges: int, layers: int, steps: int
) -> tuple:
    """Measure the seconds of a step, the share of the all-reduce once all ranks are there, and its bytes."""
    join(CPU)
    data = graphs.proteins(num_nodes, num_edges // 2 * 2)
    torch.manual_seed(0)
    x = torch.randn(num_nodes, 8)
    model = DeeperGCN(
        8,
        64,
        data.y.size(1),
        layers,
        edge_dim=8,
        dropout=0.1,
        gradient_checkpointing=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    sync = GradientSync(model, ranks)
    seconds, shares = [], []
    for step in range(steps + 1):
        ranks.wait()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(x, data.edge_index, data.edge_attr), data.y, reduction="sum"
        )
        loss.backward()
        arrived = time.perf_counter()
        ranks.wait()
        waited, sync.seconds = time.perf_counter() - arrived, 0.0
        sync(loss, torch.tensor(data.y.numel()))
        torch._foreach_mul_(
            [p.grad for p in model.parameters()], 1 / (data.y.numel() * ranks.num_ranks)
        )
        optimizer.step()
        total = time.perf_counter() - start
        if step and ranks.is_first:
            say(
                f"{ranks.num_ranks} ranks, step {step}: {total:.2f} s, of which {waited:.3f} s waiting for the others "
                f"and {sync.seconds:.3f} s summing gradients"
            )
        seconds.append(total)
        shares.append(sync.seconds / total)
    return statistics.median(seconds[1:]), statistics.median(shares[1:]), sync.num_bytes
