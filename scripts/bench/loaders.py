"""Batches of a random partition and of neighbour sampling, compared with PyG's loaders in one process."""

import itertools

import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader, RandomNodeLoader

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.data.readers.synthetic import synthetic_proteins
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader
from parallel_epochs.pipeline.graph.partition import random_partition
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import say, side_by_side, write_row


def assert_same_subgraph(batch: Data, other: Data) -> None:
    """Stop unless a batch equals PyG's induced subgraph of the same nodes, up to the order of nodes and edges."""

    def canonical(n_id: torch.Tensor, part: Data) -> tuple[torch.Tensor, torch.Tensor]:
        index = (
            part.edge_index.as_tensor()
            if hasattr(part.edge_index, "as_tensor")
            else part.edge_index
        )
        key = n_id[index[1]] * (int(n_id.max()) + 1) + n_id[index[0]]
        order = key.argsort()
        return key[order], part.edge_attr[order]

    for a, b in zip(canonical(batch.n_id, batch), canonical(other.n_id, other), strict=True):
        if not torch.equal(a, b):
            raise SystemExit("the batches differ from PyG's subgraphs: nothing is timed")


def bench_partition(
    num_nodes: int = PROTEINS[0], num_edges: int = 30_000_000, num_parts: int = 10, repeat: int = 5
) -> None:
    """Measure all batches of a random partition, beside PyG's RandomNodeLoader."""
    data, plain = _generate(num_nodes, num_edges)
    plain.n_id = torch.arange(num_nodes)
    loader, pyg = ClusterLoader(data), RandomNodeLoader(plain, num_parts, shuffle=True)
    for batch in loader.batches_of(random_partition(num_nodes, num_parts, stream("bench", 0))):
        assert_same_subgraph(batch, plain.subgraph(batch.n_id))
    say("outputs compared: every batch equals PyG's subgraph of its nodes")

    rounds = itertools.count()
    measured = side_by_side(
        lambda: [None for _ in pyg],
        lambda: [
            None
            for _ in loader.batches_of(
                random_partition(num_nodes, num_parts, stream("bench", 1, next(rounds)))
            )
        ],
        repeat,
    )
    write_row(
        {
            "bench": "partition",
            "num_nodes": num_nodes,
            "num_edges": data.edge_index.size(1),
            "num_parts": num_parts,
            **measured,
        }
    )


def _generate(num_nodes: int, num_edges: int) -> tuple[Graph, Data]:
    """Generate a graph, and make it what PyG's loaders take."""
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    data = prepare(
        synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=8),
        origin="synthetic_proteins",
    )
    return data, Data(
        edge_index=data.edge_index.as_tensor().long(),
        edge_attr=data.edge_attr,
        x=data.x,
        y=data.y,
        num_nodes=num_nodes,
    )


def bench_sampling(
    num_nodes: int = PROTEINS[0],
    num_edges: int = 6_000_000,
    batch_size: int = 1024,
    num_seeds: int = 5_120,
    repeat: int = 3,
    num_neighbors: tuple[int, ...] = (15, 10, 5),
) -> None:
    """Measure an epoch of sampled batches, beside PyG's NeighborLoader.

    First, the loaders must give the same batches if all neighbours are drawn.

    Args:
        num_seeds: number of nodes of an epoch.
        num_neighbors: neighbours per hop.

    Raises:
        SystemExit: PyG's loader has no sampling library, or the batches differ.
    """
    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        raise SystemExit("PyG's NeighborLoader needs pyg-lib or torch_sparse (the extra sparse)")
    data, plain = _generate(num_nodes, num_edges)
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[:num_seeds]

    def ours(sizes: list[int], nodes: torch.Tensor = seeds) -> NeighborLoader:
        return NeighborLoader(data, sizes, batch_size=batch_size, nodes=nodes)

    def theirs(sizes: list[int], nodes: torch.Tensor = seeds) -> PyGNeighborLoader:
        return PyGNeighborLoader(
            plain, sizes, input_nodes=nodes, batch_size=batch_size, is_sorted=True
        )

    few, everything = seeds[:8].sort().values, [-1] * min(len(num_neighbors), 2)
    for batch, other in zip(
        ours(everything, few).batches(0, Share()), theirs(everything, few), strict=True
    ):
        assert_same_subgraph(batch, other)
        if not torch.equal(batch.n_id[batch.target].sort().values, other.n_id[: other.batch_size]):
            raise SystemExit("the seeds differ from those of PyG's loader: nothing is timed")
    sizes = [
        sum(batch.num_edges for batch in loader)
        for loader in (ours(num_neighbors).batches(0, Share()), theirs(num_neighbors))
    ]
    say(
        f"outputs compared: with all neighbours drawn, the batches are the same; an epoch has {sizes[0]:,} edges with "
        f"our loader and {sizes[1]:,} with PyG's"
    )

    rounds = itertools.count()
    measured = side_by_side(
        lambda: [None for _ in theirs(num_neighbors)],
        lambda: [None for _ in ours(num_neighbors).batches(next(rounds), Share())],
        repeat,
    )
    write_row(
        {
            "bench": "sampling",
            "num_nodes": num_nodes,
            "num_edges": data.edge_index.size(1),
            "num_neighbors": " ".join(map(str, num_neighbors)),
            "num_seeds": len(seeds),
            "batch_size": batch_size,
            "pyg_edges": sizes[1],
            "ours_edges": sizes[0],
            **measured,
        }
    )
