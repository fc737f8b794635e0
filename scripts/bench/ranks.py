"""Ranks on one machine: what two of them gain over one, what their gradients cost, and what memory they share."""

import re
import statistics
import tempfile
import time
from pathlib import Path

import torch

from models import DeeperGCN
from pipeline.config import SyntheticProteinsConfig
from pipeline.data import load
from pipeline.distributed import GradientSync, Ranks, StopRequest, join, launch
from pipeline.loader import BackgroundEpochs, ClusterLoader
from pipeline.partition import random_partition, stream
from scripts.bench import graphs
from scripts.bench.measure import say, write_row

CPU = torch.device("cpu")


def bench_ranks(num_nodes: int, num_edges: int, layers: int, num_ranks: int, steps: int) -> None:
    """Clusters per second of several ranks beside one, all of one thread and the same work for each rank."""
    writer, single = None, None
    for count in (1, num_ranks):
        seconds, share, num_bytes = launch(_train_steps, count, 1, StopRequest(), num_nodes, num_edges, layers, steps)
        rate = count / seconds
        single = single or rate
        writer = write_row(writer, {
            "bench": "ranks", "num_nodes": num_nodes, "num_edges": num_edges, "layers": layers, "num_ranks": count,
            "step_median_s": round(seconds, 4), "clusters_per_s": round(rate, 4), "ratio": round(rate / single, 3),
            "gradient_mib": round(num_bytes / 2**20, 2), "all_reduce_percent": round(100 * share, 2)})


def _train_steps(ranks: Ranks, stop: StopRequest, num_nodes: int, num_edges: int, layers: int, steps: int) -> tuple:
    """Seconds of a step, the all-reduce's share of it (once all ranks are there), and its bytes."""
    join(CPU)
    data = graphs.proteins(num_nodes, num_edges // 2 * 2)
    torch.manual_seed(0)
    x = torch.randn(num_nodes, 8)
    model = DeeperGCN(8, 64, data.y.size(1), layers, edge_dim=8, learn_t=True, dropout=0.1, gradient_checkpointing=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    sync = GradientSync(model, ranks)
    seconds, shares = [], []
    for step in range(steps + 1):
        ranks.wait()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x, data.edge_index, data.edge_attr), data.y,
                                                                    reduction="sum")
        loss.backward()
        arrived = time.perf_counter()
        ranks.wait()
        waited, sync.seconds = time.perf_counter() - arrived, 0.0
        sync(loss, torch.tensor(data.y.numel()), False)
        torch._foreach_mul_([p.grad for p in model.parameters()], 1 / (data.y.numel() * ranks.num_ranks))
        optimizer.step()
        total = time.perf_counter() - start
        if step and ranks.is_first:
            say(f"{ranks.num_ranks} ranks, step {step}: {total:.2f} s, of which {waited:.3f} s waiting for the others and "
                f"{sync.seconds:.3f} s adding up gradients")
        seconds.append(total)
        shares.append(sync.seconds / total)
    return statistics.median(seconds[1:]), statistics.median(shares[1:]), sync.num_bytes


def bench_memory(num_nodes: int, num_edges: int, num_parts: int, num_ranks: int) -> None:
    """Memory of all ranks together, each of which draws and builds an epoch: shared pages are counted once (PSS)."""
    writer, single = None, None
    with tempfile.TemporaryDirectory() as cache:
        config = SyntheticProteinsConfig(num_nodes=num_nodes, num_edges=num_edges, num_tasks=112)
        say("generating the graph")
        content_hash = load(config, cache).content_hash
        for count in (1, num_ranks):
            gib = launch(_pss, count, 1, StopRequest(), config, cache, content_hash, num_parts)
            single = single or gib
            writer = write_row(writer, {
                "bench": "memory", "num_nodes": num_nodes, "num_edges": num_edges, "num_parts": num_parts,
                "num_ranks": count, "pss_gib": round(gib, 3), "ratio": round(gib / single, 3)})


def _pss(ranks: Ranks, stop: StopRequest, config: SyntheticProteinsConfig, cache: str, content_hash: str,
         num_parts: int) -> float:
    join(CPU)
    data = load(config, cache, content_hash=content_hash)
    loader = ClusterLoader(data)
    draws = [(0, lambda: (random_partition(data.num_nodes, num_parts, stream("bench", ranks.rank)), None))]
    highest = 0.0
    with BackgroundEpochs(loader, draws) as epochs:
        for _ in epochs.epoch(0):
            time.sleep(0.5)  # as a step would: the thread has filled its queue
            ranks.wait()
            total = torch.tensor([int(re.search(r"Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) / 2**20])
            ranks.sum_(total)
            highest = max(highest, float(total))
            ranks.wait()
    return highest
