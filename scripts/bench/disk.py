"""Epochs of random clusters from a graph on disk: beside the bare read of its files, the graph in memory, and PyG."""

import csv
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader

from pipeline.graph import store
from pipeline.graph.partition import Partition, random_partition
from pipeline.graph.stream import ClusterStream
from pipeline.graph.subgraph import induced_subgraph
from pipeline.names import MASKS
from pipeline.run.seeds import stream
from scripts.bench.measure import resident_mib, say, write_row

NUM_CLASSES = 10
# Edges that are drawn at a time.
DRAWN = 1 << 22


def bench_disk(num_nodes: int, num_edges: int, edge_channels: int, channels: int, num_parts: int, repeat: int,
               folder: str, keep: bool, peers: list[str]) -> None:
    """Write a random graph of such a size to a store unless it is there, and read epochs of random clusters from it.

    Raises:
        FileError: there is no room in the folder.
    """
    path = Path(folder) / f"random-{num_nodes}-{num_edges}-{edge_channels}-{channels}"
    if not store.is_store(path):
        start = time.perf_counter()
        write_random_graph(path, num_nodes, num_edges, edge_channels, channels)
        say(f"written in {time.perf_counter() - start:.0f} s")
    data = store.open_graph(path)
    data.store, data.num_nodes = str(path), num_nodes
    partition = random_partition(num_nodes, num_parts, stream("bench", 0))
    clusters = ClusterStream(data, spill=Path(folder))
    size = sum((path / f"{name}.bin").stat().st_size for name in ("edge_attr", "x")) + _bytes_of_sources(data)
    ways: dict[str, Callable[[], object]] = {
        "bare read of the files": lambda: _read_all(path, data),
        "epoch from the store": lambda: _count(clusters.induce(partition, range(num_parts))),
        "epoch in memory": lambda: _count(induced_subgraph(data, partition.nodes(part), dtype=torch.int64)
                                          for part in range(num_parts)),
        "PyG's RandomNodeLoader": lambda: _count(_pyg(data, num_parts)),
    }
    _compare(data, clusters, partition)
    writer: csv.DictWriter | None = None
    for round_ in range(repeat):
        for name, way in ways.items():
            if name not in peers and name in ("epoch in memory", "PyG's RandomNodeLoader"):
                continue
            in_memory = name in ("epoch in memory", "PyG's RandomNodeLoader")
            _warm(path) if in_memory else _cool(path)
            Path("/proc/self/clear_refs").write_text("5")
            start, busy = time.perf_counter(), time.process_time()
            way()
            seconds, busy = time.perf_counter() - start, time.process_time() - busy
            writer = write_row(writer, {
                "bench": "disk", "what": name, "num_nodes": num_nodes, "num_edges": num_edges, "num_parts": num_parts,
                "gb_read": round(size / 1e9, 3), "round": round_, "seconds": round(seconds, 3),
                "processor_s": round(busy, 3), "anonymous_peak_mib": round(resident_mib("RssAnon")),
                "peak_mib": round(resident_mib("VmHWM"))})
    if not keep:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def write_random_graph(path: Path, num_nodes: int, num_edges: int, edge_channels: int, channels: int) -> None:
    """Write a graph of random directed edges, with features and labels that depend on them, a block at a time."""
    rng = stream("random store", num_nodes, num_edges)
    degrees = rng.multinomial(num_edges, np.full(num_nodes, 1 / num_nodes))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    dtype = torch.int32 if num_edges < 2**31 else torch.int64
    labels = rng.integers(NUM_CLASSES, size=num_nodes)
    with store.StoreWriter(path) as writer:
        if not writer.has("edges", "edge_attr"):
            with writer.write(edges=((2, num_edges), dtype),
                              edge_attr=((num_edges, edge_channels), torch.float32)) as files:
                _write_edges(files, indptr, rng, edge_channels, num_edges, np.dtype(str(dtype).split(".")[1]))
        writer.put("indptr", torch.from_numpy(indptr).to(dtype))
        if not writer.has("x"):
            centers = rng.standard_normal((NUM_CLASSES, channels), dtype=np.float32)
            with writer.write(x=((num_nodes, channels), torch.float32)) as files:
                for first in range(0, num_nodes, DRAWN // 8):
                    own = labels[first:first + DRAWN // 8]
                    x = rng.standard_normal((len(own), channels), dtype=np.float32) + centers[own] / 4
                    files["x"].write(first * channels, x)
        writer.put("y", torch.from_numpy(labels).unsqueeze(1))
        split = rng.choice(3, size=num_nodes, p=[0.6, 0.2, 0.2])
        for number, mask in enumerate(MASKS):
            writer.put(mask, torch.from_numpy(split == number))
        writer.finish({"metric": "acc", "out_channels": NUM_CLASSES, "num_categories": 0, "x_source": "data"})


def _write_edges(files: dict[str, store.ArrayFile], indptr: np.ndarray, rng: np.random.Generator, edge_channels: int,
                 num_edges: int, dtype: np.dtype) -> None:
    row, num_nodes = 0, len(indptr) - 1
    while row < num_nodes:
        last = max(int(np.searchsorted(indptr, indptr[row] + DRAWN, side="right")) - 1, row + 1)
        begin, end = int(indptr[row]), int(indptr[last])
        dst = np.repeat(np.arange(row, last), np.diff(indptr[row:last + 1]))
        both = dst * num_nodes + rng.integers(num_nodes, size=end - begin)
        both.sort()
        files["edges"].write(begin, (both % num_nodes).astype(dtype))
        files["edges"].write(num_edges + begin, dst.astype(dtype))
        files["edge_attr"].write(begin * edge_channels, rng.random((end - begin, edge_channels), dtype=np.float32))
        row = last


def _compare(data: Data, clusters: ClusterStream, partition: Partition) -> None:
    """Compare the first cluster with the one that is selected in memory."""
    ours, theirs = next(clusters.induce(partition, [0])), induced_subgraph(data, partition.nodes(0), dtype=torch.int64)
    assert torch.equal(ours.edge_index.as_tensor(), theirs.edge_index.as_tensor())
    assert torch.equal(ours.edge_attr, theirs.edge_attr) and torch.equal(ours.x, theirs.x)
    say("outputs compared: the first cluster is the same from the store and in memory")


def _pyg(data: Data, num_parts: int) -> Iterator[Data]:
    plain = Data(x=data.x, edge_index=data.edge_index.as_tensor().long(), edge_attr=data.edge_attr, y=data.y,
                 num_nodes=data.num_nodes)
    yield from RandomNodeLoader(plain, num_parts=num_parts, shuffle=True)


def _count(batches: Iterator[Data]) -> int:
    return sum(batch.num_edges for batch in batches)


def _bytes_of_sources(data: Data) -> int:
    return data.num_edges * data.edge_index.element_size()


def _read_all(path: Path, data: Data) -> None:
    """Read what an epoch reads, and do nothing with it."""
    buffer = memoryview(bytearray(1 << 24))
    for name, size in (("edges", _bytes_of_sources(data)), ("edge_attr", None), ("x", None)):
        with open(path / f"{name}.bin", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            left = os.fstat(file.fileno()).st_size if size is None else size
            while left:
                left -= file.readinto(buffer[:left])


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
