"""Walks of node2vec a second, beside PecanPy's (pip install pecanpy)."""

import time

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex

from pipeline.data.config import EdgesConfig
from pipeline.data.edges import read
from pipeline.graph.edges import adjacency, with_reverse
from pipeline.graph.walks import WalkSampler
from scripts.bench.measure import say, write_row

# Of the fractions of steps that return, and that end at a neighbour of the last node.
TOLERANCE = 0.005


def bench_walks(path: str, length: int, num_walks: int, p: float, q: float, repeat: int) -> None:
    """Draw as many walks from each node by both, compare how they walk, and count steps a second.

    Raises:
        SystemExit: PecanPy is not installed, or the two walk differently.
        ValueError: the graph cannot be read.
    """
    try:
        from pecanpy.pecanpy import SparseOTF
    except ImportError:
        raise SystemExit("PecanPy, which this compares with, is not installed: pip install pecanpy") from None
    data = read(EdgesConfig(path=path))
    edge_index = with_reverse(data.edge_index, data.num_nodes)
    matrix = adjacency(edge_index)
    num_nodes, threads = matrix.shape[0], torch.get_num_threads()
    theirs = SparseOTF(p=p, q=q, workers=threads, verbose=False, random_state=0)
    theirs.set_node_ids([str(node) for node in range(num_nodes)])
    theirs.indptr, theirs.indices = matrix.indptr.astype(np.uint32), matrix.indices.astype(np.uint32)
    theirs.data = np.ones(matrix.nnz, np.float32)
    ours = WalkSampler(edge_index, length=length, p=p, q=q, symmetric=True)
    ours.draw(0, 64, key=1), theirs.simulate_walks(1, 4)  # what is compiled
    writer = None
    for round_ in range(repeat):
        start = time.perf_counter()
        walks = ours.draw(0, num_walks * ours.starts.numel(), key=round_, num_threads=threads)
        found = {"ours": (time.perf_counter() - start, walks.numpy())}
        start = time.perf_counter()
        texts = theirs.simulate_walks(num_walks, length)
        found["PecanPy"] = (time.perf_counter() - start,
                            np.array([walk for walk in texts if len(walk) == length + 1], dtype=np.int64))
        if round_ == 0:
            _compare(edge_index, *(walked for _, walked in found.values()))
        for name, (seconds, walked) in found.items():
            steps = int((walked[:, 1:] >= 0).sum())
            say(f"round {round_ + 1}, {name}: {steps:,} steps in {seconds:.2f} s, {steps / seconds / 1e6:.2f} M a "
                "second")
            writer = write_row(writer, {"bench": "walks", "what": name, "round": round_, "p": p, "q": q,
                                        "steps": steps, "seconds": round(seconds, 3),
                                        "steps_per_second": round(steps / seconds)})


def _compare(edge_index: EdgeIndex, *walked: np.ndarray) -> None:
    """Compare how often walks return, and how often they stay among the neighbours of the last node."""
    edges = sp.csr_array((np.ones(edge_index.size(1), np.int8), *(array.numpy() for array in (
        edge_index.get_csc()[0][1], edge_index.get_csc()[0][0]))), shape=(edge_index.num_rows,) * 2)
    shares = []
    for walks in walked:
        last, to = walks[:, :-2].ravel(), walks[:, 2:].ravel()
        there = (last >= 0) & (to >= 0)
        last, to = last[there][:200_000], to[there][:200_000]
        near = np.asarray(edges[last, to]).ravel() > 0
        shares.append((float((last == to).mean()), float(near.mean())))
    say("returns and steps to a neighbour of the last node: " + ", ".join(f"{a:.4f} {b:.4f}" for a, b in shares))
    if np.abs(np.subtract(*shares)).max() > TOLERANCE:
        raise SystemExit("the two walk differently: nothing is timed")
