"""Speed of node2vec's walks, compared with PecanPy (pip install pecanpy)."""

import time

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.data.cache import read
from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.graph.edges import adjacency, with_reverse
from parallel_epochs.pipeline.graph.walks import WalkSampler
from parallel_epochs.scripts.bench.measure import import_peer, say, write_row

# Largest difference between the fractions of steps that return, and of those to a neighbour of the last node.
TOLERANCE = 0.005


def bench_walks(
    path: str,
    length: int = 40,
    num_walks: int = 10,
    p: float = 0.25,
    q: float = 4.0,
    repeat: int = 3,
) -> None:
    """Measure steps per second of node2vec's walks, beside PecanPy's.

    First, the statistics of the walks are compared.

    Args:
        path: table of edges, or a .mat file with network.
        length: length of a walk.
        num_walks: number of walks from each node.
        p: parameter of node2vec.
        q: parameter of node2vec.

    Raises:
        SystemExit: PecanPy is not installed, or the statistics of the walks differ.
        ValueError: the graph cannot be read.
    """
    pecanpy = import_peer("pecanpy.pecanpy", "pecanpy")
    data = read(EdgesConfig(path=path))
    edge_index = with_reverse(data.edge_index, data.num_nodes)
    matrix = adjacency(edge_index)
    num_nodes, threads = matrix.shape[0], torch.get_num_threads()
    theirs = pecanpy.SparseOTF(p=p, q=q, workers=threads, verbose=False, random_state=0)
    theirs.set_node_ids([str(node) for node in range(num_nodes)])
    theirs.indptr, theirs.indices = (
        matrix.indptr.astype(np.uint32),
        matrix.indices.astype(np.uint32),
    )
    theirs.data = np.ones(matrix.nnz, np.float32)
    ours = WalkSampler(edge_index, length=length, p=p, q=q, symmetric=True)
    ours.draw(0, 64, key=1), theirs.simulate_walks(1, 4)  # warm-up
    for round_ in range(repeat):
        start = time.perf_counter()
        walks = ours.draw(0, num_walks * ours.starts.numel(), key=round_, num_threads=threads)
        found = {"ours": (time.perf_counter() - start, walks.numpy())}
        start = time.perf_counter()
        texts = theirs.simulate_walks(num_walks, length)
        found["PecanPy"] = (
            time.perf_counter() - start,
            np.array([walk for walk in texts if len(walk) == length + 1], dtype=np.int64),
        )
        if round_ == 0:
            _compare(edge_index, *(walked for _, walked in found.values()))
        for name, (seconds, walked) in found.items():
            steps = int((walked[:, 1:] >= 0).sum())
            say(
                f"round {round_ + 1}, {name}: {steps:,} steps in {seconds:.2f} s, {steps / seconds / 1e6:.2f} M "
                "per second"
            )
            write_row(
                {
                    "bench": "walks",
                    "what": name,
                    "round": round_,
                    "p": p,
                    "q": q,
                    "steps": steps,
                    "seconds": round(seconds, 3),
                    "steps_per_second": round(steps / seconds),
                }
            )


def _compare(edge_index: EdgeIndex, *walked: np.ndarray) -> None:
    """Stop unless both return, and step to a neighbour of the last node, equally often."""
    edges = sp.csr_array(
        (
            np.ones(edge_index.size(1), np.int8),
            *(array.numpy() for array in (edge_index.get_csc()[0][1], edge_index.get_csc()[0][0])),
        ),
        shape=(edge_index.num_rows,) * 2,
    )
    shares = []
    for walks in walked:
        last, to = walks[:, :-2].ravel(), walks[:, 2:].ravel()
        there = (last >= 0) & (to >= 0)
        last, to = last[there][:200_000], to[there][:200_000]
        near = np.asarray(edges[last, to]).ravel() > 0
        shares.append((float((last == to).mean()), float(near.mean())))
    say(
        "returns and steps to a neighbour of the last node: "
        + ", ".join(f"{a:.4f} {b:.4f}" for a, b in shares)
    )
    if np.abs(np.subtract(*shares)).max() > TOLERANCE:
        raise SystemExit("the walks of the two differ in their statistics: nothing is timed")
