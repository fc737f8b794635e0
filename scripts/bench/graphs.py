"""Generated graphs for the benchmarks."""

import numpy as np
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.data.readers.synthetic import synthetic_proteins
from parallel_epochs.pipeline.graph.edges import transpose
from parallel_epochs.scripts.bench.measure import say

# Nodes and directed edges of one of ten random clusters of ogbn-proteins, and of ogbn-proteins.
CLUSTER, PROTEINS = (13_253, 791_225), (132_534, 79_122_504)


def proteins(num_nodes: int, num_edges: int) -> Data:
    """Generate communities with log-normal degrees and 8 edge features, with CSC and CSR filled as in a batch.

    Features are multiples of 1/32. If those of `x` and `weight` are too, messages are exact in float32 in whatever
    order they are summed, and rounding decides no ReLU or maximum.
    """
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    data = synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=112)
    edges = data.edge_index
    edge_index = from_csc(edges.as_tensor().long(), edges.get_csc()[0][0])
    data.edge_attr.mul_(32).round_().div_(32)
    return Data(
        edge_index=transpose(edge_index), edge_attr=data.edge_attr, y=data.y, num_nodes=num_nodes
    )


def exact(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Draw normal numbers, rounded to multiples of 1/32 and clamped to +-4 * scale."""
    return (torch.randn(shape) * scale).clamp(-4 * scale, 4 * scale).mul(32).round().div(32)


def heavy_tailed(num_nodes: int, num_edges: int) -> EdgeIndex:
    """Draw directed int32 edges whose in- and out-degrees follow a power law, sorted by destination, with the CSC.

    They are neither symmetric nor free of duplicates. Sources are spread over all nodes, so that no cache helps.
    """
    rng = np.random.default_rng(0)
    degree = 1 / (1 - rng.random(num_nodes)) ** 0.5  # density ~ degree^-3
    ends = np.floor(
        np.cumsum(np.concatenate([[0.0], degree / degree.sum()])) * num_edges + 0.5
    ).astype(np.int64)
    indptr = torch.from_numpy(ends)
    edges = torch.empty(2, num_edges, dtype=torch.int32)
    block = 1 << 24
    for first in range(0, num_edges, block):
        last = min(first + block, num_edges)
        edges[1, first:last] = torch.from_numpy(
            np.searchsorted(ends, np.arange(first, last), side="right") - 1
        )
        # A source is the end of a random edge, so that nodes with many edges are sources more often.
        stub = rng.integers(0, num_edges, last - first)
        edges[0, first:last] = torch.from_numpy(np.searchsorted(ends, stub, side="right") - 1)
    return from_csc(edges, indptr)
