"""Memory of one epoch of node vectors on a large generated graph, with the tables on disk."""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from parallel_epochs.models.embedding.skipgram import Table
from parallel_epochs.scripts.bench.measure import say, write_row
from parallel_epochs.scripts.bench.processes import peak_of

CHUNK = 2**20
# The probability of a node falls with this power of its number.
EXPONENT = 0.5


def bench_tables(
    num_nodes: int = 10_000_000,
    num_edges: int = 100_000_000,
    dim: int = 64,
    episode_size: int = 20_000_000,
    num_parts: int = 8,
    memory_gib: int = 8,
    folder: str = ".cache",
) -> None:
    """Measure the memory of an epoch of DeepWalk on a large generated graph, with its tables on disk.

    Args:
        episode_size: number of pairs of an episode.
        num_parts: number of partitions of the nodes.
        memory_gib: limit of the private memory in GiB, which the system enforces. Pages of files do not count, as the
            system takes them back if memory is short.
        folder: folder for tens of GB: the graph, its tables and their checkpoints.

    Raises:
        SystemExit: the training failed, perhaps at the limit.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name)
        start = time.perf_counter()
        write_edges(path / "edges.npy", num_nodes, num_edges)
        say(
            f"{num_edges:,} edges of {num_nodes:,} nodes written in {time.perf_counter() - start:.0f} s"
        )
        limit = memory_gib * 2**30
        resource.setrlimit(
            resource.RLIMIT_DATA, (limit, limit)
        )  # of the processes that are started below
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "pipeline.train",
            "trainer=node_embedding",
            "data=edges",
            f"data.path={path / 'edges.npy'}",
            "trainer.tables=disk",
            f"trainer.dim={dim}",
            f"trainer.num_parts={num_parts}",
            f"trainer.episode_size={episode_size}",
            "trainer.metric=auc",
            "trainer.holdout=0.0005",
            "train.epochs=1",
            "train.eval_every=1",
            f"cache_dir={path / 'cache'}",
            f"hydra.run.dir={path / 'run'}",
            f"parallel.threads_per_rank={os.environ.get('OMP_NUM_THREADS', 2)}",
        ]
        peak = peak_of(command, every=1.0)
        tables = 8 * Table.numbers_per_row(dim, "sgd") * num_nodes
        say(
            f"tables of {tables / 2**30:.2f} GiB; peak memory {peak[0] / 2**20:.2f} GiB, of which "
            f"{peak[1] / 2**20:.2f} GiB is private and the rest is pages of files"
        )
        write_row(
            {
                "bench": "tables",
                "num_nodes": num_nodes,
                "num_edges": num_edges,
                "dim": dim,
                "num_parts": num_parts,
                "seconds": round(time.perf_counter() - start),
                "tables_gib": round(tables / 2**30, 2),
                "resident_gib": round(peak[0] / 2**20, 2),
                "private_gib": round(peak[1] / 2**20, 2),
            }
        )


def write_edges(path: Path, num_nodes: int, num_edges: int) -> None:
    """Write random edges whose ends follow a power law."""
    rng = np.random.default_rng(0)
    edges = np.lib.format.open_memmap(path, "w+", np.int32, (num_edges, 2))
    for first in range(0, num_edges, CHUNK):
        uniform = rng.random(edges[first : first + CHUNK].shape)
        edges[first : first + CHUNK] = num_nodes * uniform ** (1 / (1 - EXPONENT))
    edges.flush()
