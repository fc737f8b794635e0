"""An epoch of batches by neighbour sampling, compared with PyG's NeighborLoader on the same graph in one process."""

import itertools

import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.data.readers.synthetic import synthetic_proteins
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader, check_pyg
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import say, side_by_side, write_row
from parallel_epochs.scripts.bench.partition import assert_same_subgraph


def bench_sampling(num_nodes: int = PROTEINS[0], num_edges: int = 6_000_000, batch_size: int = 1024,
                   num_seeds: int = 5_120, repeat: int = 3, num_neighbors: tuple[int, ...] = (15, 10, 5)) -> None:
    """Measure an epoch of sampled batches, beside PyG's NeighborLoader.

    First, the loaders must give the same batches if all neighbours are drawn.

    Args:
        num_seeds: number of nodes of an epoch.
        num_neighbors: neighbours per hop.

    Raises:
        SystemExit: PyG's loader has no sampling library, or the batches differ.
    """
    try:
        check_pyg()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    generated = synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=8)
    data = prepare(generated, origin="synthetic_proteins")
    plain = Data(edge_index=data.edge_index.as_tensor().long(), edge_attr=data.edge_attr, x=data.x, y=data.y,
                 num_nodes=num_nodes)
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[:num_seeds]

    def ours(sizes: list[int], nodes: torch.Tensor = seeds) -> NeighborLoader:
        return NeighborLoader(data, sizes, batch_size=batch_size, nodes=nodes)

    def theirs(sizes: list[int], nodes: torch.Tensor = seeds) -> PyGNeighborLoader:
        return PyGNeighborLoader(plain, sizes, input_nodes=nodes, batch_size=batch_size, is_sorted=True)

    few, everything = seeds[:8].sort().values, [-1] * min(len(num_neighbors), 2)
    for batch, other in zip(ours(everything, few).batches(0, Share()), theirs(everything, few), strict=True):
        assert_same_subgraph(batch, other)
        if not torch.equal(batch.n_id[batch.target].sort().values, other.n_id[:other.batch_size]):
            raise SystemExit("the seeds differ from those of PyG's loader: nothing is timed")
    sizes = [sum(batch.num_edges for batch in loader) for loader in
             (ours(num_neighbors).batches(0, Share()), theirs(num_neighbors))]
    say(f"outputs compared: with all neighbours drawn, the batches are the same; an epoch has {sizes[0]:,} edges with "
        f"our loader and {sizes[1]:,} with PyG's")

    rounds = itertools.count()
    measured = side_by_side(lambda: [None for _ in theirs(num_neighbors)],
                            lambda: [None for _ in ours(num_neighbors).batches(next(rounds), Share())], repeat)
    write_row({
        "bench": "sampling", "num_nodes": num_nodes, "num_edges": data.edge_index.size(1),
        "num_neighbors": " ".join(map(str, num_neighbors)), "num_seeds": len(seeds), "batch_size": batch_size,
        "pyg_edges": sizes[1], "ours_edges": sizes[0], **measured})
