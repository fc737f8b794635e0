"""Epochs of random clusters from a graph on disk, compared with reading its files, the graph in memory, and PyG."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader

from parallel_epochs.models.aggregate.reference_in_blocks import cut_into_blocks
from parallel_epochs.pipeline.data.graph import open_graph
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.graph.partition import Partition, random_partition
from parallel_epochs.pipeline.graph.stream import LIBRARY, ClusterStream
from parallel_epochs.pipeline.graph.subgraph import LIBRARY as SUBGRAPH, induced_subgraph
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.memory import machine_memory
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import call_apart, resident_mib, say, write_row

NUM_CLASSES = 10
# Number of edges that are drawn at a time.
DRAWN = 1 << 22


def bench_disk(
    num_nodes: tuple[int, ...] = PROTEINS[:1],
    num_edges: tuple[int, ...] = PROTEINS[1:],
    edge_channels: int = 8,
    channels: int = 8,
    num_parts: int = 10,
    repeat: int = 3,
    folder: str = ".cache",
    ways: tuple[str, ...] = ("bare read", "store", "memory", "pyg"),
    keep: bool = False,
) -> None:
    """Measure epochs of random clusters from a graph on disk, from memory, by PyG, and a bare read of its files.

    Args:
        num_nodes: number of nodes of each graph.
        num_edges: number of directed edges of each graph.
        channels: number of node features.
        folder: folder for the files, up to tens of GB.
        ways: ways to measure.
        keep: keep the files for another run.

    Raises:
        ValueError: the numbers of nodes and of edges are not equally many.
        FileError: the folder has no room for the files.
    """
    if len(num_nodes) != len(num_edges):
        raise ValueError(
            f"--num-nodes has {len(num_nodes)} numbers, but --num-edges has {len(num_edges)}: give one of "
            "each for a graph"
        )
    for nodes, edges in zip(num_nodes, num_edges):
        path = Path(folder) / f"random-{nodes}-{edges}-{edge_channels}-{channels}"
        if not store.is_store(path):
            start = time.perf_counter()
            write_random_graph(path, nodes, edges, edge_channels, channels)
            say(f"{path} written in {time.perf_counter() - start:.0f} s")
        size = sum(
            (path / f"{name}.bin").stat().st_size for name in ("edge_attr", "x")
        ) + _bytes_of_sources(path)
        fits = size < machine_memory() // 2
        if fits:
            _compare(path, num_parts, Path(folder))
        else:
            say(
                f"{path.name} is larger than half of the memory: it is neither compared nor measured in memory"
            )
        for round_ in range(repeat):
            for way in ways if fits else [way for way in ways if way in FROM_DISK]:
                _cool(path) if way in FROM_DISK else _warm(path)
                measured = call_apart(_measure, way, path, num_parts)
                write_row(
                    {
                        "bench": "disk",
                        "what": way,
                        "num_nodes": nodes,
                        "num_edges": edges,
                        "num_parts": num_parts,
                        "gb_read": round(size / 1e9, 3),
                        "round": round_,
                        **measured,
                    }
                )
        if not keep:
            shutil.rmtree(path)


def _measure(way: str, path: Path, num_parts: int) -> dict:
    """Measure an epoch read in one way: time, processor time, and peak memory without pages of files."""
    LIBRARY.get(), SUBGRAPH.get()  # compiled or loaded before the time is taken
    before, peak, ended = resident_mib("RssAnon"), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], resident_mib("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, busy = time.perf_counter(), time.process_time()
    num_edges = WAYS[way](path, num_parts)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    ended.set()
    watcher.join()
    return {
        "edges_in_batches": num_edges,
        "seconds": round(seconds, 3),
        "processor_s": round(busy, 3),
        "extra_mib": round(max(peak[0] - before, 0)),
    }


def _open(path: Path) -> Data:
    data = open_graph(path)
    data.on_disk, data.num_nodes = True, data.edge_index.get_sparse_size(1)
    return data


def _epoch(
    batches_of: Callable[[Data, Partition, Path], Iterable[Data]], path: Path, num_parts: int
) -> int:
    """Go through the batches of a random partition of the graph, and count their edges."""
    data = _open(path)
    partition = random_partition(data.num_nodes, num_parts, stream("bench", 0))
    return sum(batch.num_edges for batch in batches_of(data, partition, path))


def _from_store(data: Data, partition: Partition, path: Path) -> Iterable[Data]:
    return ClusterStream(data, spill=path.parent).induce(partition, range(partition.num_parts))


def _in_memory(data: Data, partition: Partition, _: Path) -> Iterable[Data]:
    return (
        induced_subgraph(data, partition.nodes(part), dtype=torch.int64)
        for part in range(partition.num_parts)
    )


def _by_pyg(data: Data, partition: Partition, _: Path) -> Iterable[Data]:
    plain = Data(
        x=data.x,
        edge_index=data.edge_index.as_tensor().long(),
        edge_attr=data.edge_attr,
        y=data.y,
        num_nodes=data.num_nodes,
    )
    return RandomNodeLoader(plain, num_parts=partition.num_parts, shuffle=True)


def _read_all(path: Path, num_parts: int) -> int:
    """Read the files that an epoch reads, and do nothing else."""
    buffer = memoryview(bytearray(1 << 24))
    for name, size in (("edges", _bytes_of_sources(path)), ("edge_attr", None), ("x", None)):
        with open(path / f"{name}.bin", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            left = os.fstat(file.fileno()).st_size if size is None else size
            while left:
                left -= file.readinto(buffer[:left])
    return 0


# The ways to read an epoch, and those of them that begin with files outside the system's cache.
WAYS = {
    "bare read": _read_all,
    "store": partial(_epoch, _from_store),
    "memory": partial(_epoch, _in_memory),
    "pyg": partial(_epoch, _by_pyg),
}
FROM_DISK = ("bare read", "store")


def write_random_graph(
    path: Path, num_nodes: int, num_edges: int, edge_channels: int, channels: int
) -> None:
    """Write a graph of random directed edges, with features and labels that depend on them, a block at a time."""
    rng = stream("random store", num_nodes, num_edges)
    degrees = rng.multinomial(num_edges, np.full(num_nodes, 1 / num_nodes))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    dtype = torch.int32 if num_edges < 2**31 else torch.int64
    labels = rng.integers(NUM_CLASSES, size=num_nodes)
    with store.StoreWriter(path) as writer:
        if not writer.has("edges", "edge_attr"):
            with writer.write(
                edges=((2, num_edges), dtype), edge_attr=((num_edges, edge_channels), torch.float32)
            ) as files:
                _write_edges(
                    files, indptr, rng, edge_channels, num_edges, np.dtype(str(dtype).split(".")[1])
                )
        writer.put("indptr", torch.from_numpy(indptr).to(dtype))
        if not writer.has("x"):
            centers = rng.standard_normal((NUM_CLASSES, channels), dtype=np.float32)
            with writer.write(x=((num_nodes, channels), torch.float32)) as files:
                for first in range(0, num_nodes, DRAWN // 8):
                    own = labels[first : first + DRAWN // 8]
                    x = (
                        rng.standard_normal((len(own), channels), dtype=np.float32)
                        + centers[own] / 4
                    )
                    files["x"].write(first * channels, x)
        writer.put("y", torch.from_numpy(labels).unsqueeze(1))
        split = rng.choice(3, size=num_nodes, p=[0.6, 0.2, 0.2])
        for number, mask in enumerate(MASKS):
            writer.put(mask, torch.from_numpy(split == number))
        writer.finish(
            {"metric": "acc", "out_channels": NUM_CLASSES, "num_categories": 0, "x_source": "data"}
        )


def _write_edges(
    files: dict[str, store.ArrayFile],
    indptr: np.ndarray,
    rng: np.random.Generator,
    edge_channels: int,
    num_edges: int,
    dtype: np.dtype,
) -> None:
    num_nodes = len(indptr) - 1
    for row, last in cut_into_blocks(torch.from_numpy(indptr), DRAWN):
        begin, end = int(indptr[row]), int(indptr[last])
        dst = np.repeat(np.arange(row, last), np.diff(indptr[row : last + 1]))
        both = dst * num_nodes + rng.integers(num_nodes, size=end - begin)
        both.sort()
        files["edges"].write(begin, (both % num_nodes).astype(dtype))
        files["edges"].write(num_edges + begin, dst.astype(dtype))
        files["edge_attr"].write(
            begin * edge_channels, rng.random((end - begin, edge_channels), dtype=np.float32)
        )


def _compare(path: Path, num_parts: int, spill: Path) -> None:
    """Compare the first cluster from the store with the same cluster from memory."""
    data = _open(path)
    partition = random_partition(data.num_nodes, num_parts, stream("bench", 0))
    ours = next(ClusterStream(data, spill=spill).induce(partition, [0]))
    theirs = induced_subgraph(data, partition.nodes(0), dtype=torch.int64)
    assert torch.equal(ours.edge_index.as_tensor(), theirs.edge_index.as_tensor())
    assert torch.equal(ours.edge_attr, theirs.edge_attr) and torch.equal(ours.x, theirs.x)
    say(f"{path.name}: the first cluster is the same from the store and in memory")


def _bytes_of_sources(path: Path) -> int:
    return (path / "edges.bin").stat().st_size // 2


def _cool(path: Path) -> None:
    """Drop the files of a store from the system's cache."""
    for file in path.glob("*.bin"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _warm(path: Path) -> None:
    for file in path.glob("*.bin"):
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 26):
                pass
