"""METIS and KaMinPar on the same generated graph: time, memory, edge cut and balance."""

import tempfile
import time

import numpy as np
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.data.readers.synthetic import synthetic_proteins
from parallel_epochs.pipeline.graph.cut import fill_empty
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.kaminpar import check_package, run_process, write_parhip
from parallel_epochs.pipeline.graph.metis import cut_with_metis
from parallel_epochs.pipeline.graph.partition import Partition, from_assignment, measure_partition
from parallel_epochs.scripts.bench.measure import extra_mib, say, write_row


def bench_cut(
    num_nodes: int = 400_000,
    num_edges: int = 6_000_000,
    num_parts: int = 10,
    num_micro_parts: int = 200,
) -> None:
    """Cut a graph of communities into a few and into many clusters, with METIS and with KaMinPar.

    Args:
        num_micro_parts: number of clusters of the second, finer cut.
    """
    check_package()
    say(f"generating {num_edges:,} directed edges")
    raw = synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=1)
    edge_index, _ = sort_edges(raw.edge_index, num_nodes)
    del raw
    for parts in (num_parts, num_micro_parts):
        for name, cut in (("METIS", _metis), ("KaMinPar", _kaminpar)):
            partition, seconds, mib = cut(edge_index, parts)
            _report(name, edge_index, partition, seconds, mib)


def _report(
    name: str, edge_index: EdgeIndex, partition: Partition, seconds: float, mib: float
) -> None:
    quality = measure_partition(edge_index, partition, seconds)
    say(f"{name}: {quality}, {mib:,.0f} MiB")
    write_row(
        {
            "bench": "cut",
            "num_nodes": partition.perm.numel(),
            "num_edges": edge_index.size(1),
            "num_parts": partition.num_parts,
            "partitioner": name,
            "seconds": round(seconds, 2),
            "mib": round(mib),
            "cut": round(quality.cut, 4),
            "imbalance": round(quality.imbalance, 3),
        }
    )


def _metis(edge_index: EdgeIndex, num_parts: int) -> tuple[Partition, float, float]:
    """Cut with METIS. The memory is that of this process beyond the graph."""
    found: list[tuple[Partition, float]] = []

    def cut() -> None:
        start = time.perf_counter()
        found.append((cut_with_metis(edge_index, num_parts, 0), time.perf_counter() - start))

    mib = extra_mib(cut)
    return *found[0], mib


def _kaminpar(edge_index: EdgeIndex, num_parts: int) -> tuple[Partition, float, float]:
    """Cut with KaMinPar. The time includes writing the graph; the memory is all of the other process."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as graph, tempfile.TemporaryFile() as parts:
        write_parhip(edge_index, graph)
        peak = run_process(graph, parts, num_parts, 0)
        part = fill_empty(np.frombuffer(parts.read(), np.int32).astype(np.int64), num_parts)
    return from_assignment(part, num_parts), time.perf_counter() - start, peak / 2**20
