"""All batches of a random partition, compared with PyG's RandomNodeLoader on the same graph in one process."""

import itertools

import torch
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader

from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.data.readers.synthetic import synthetic_proteins
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.partition import random_partition
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import say, side_by_side, write_row


def assert_same_subgraph(batch: Data, other: Data) -> None:
    """Stop unless a batch equals PyG's induced subgraph of the same nodes, up to the order of nodes and edges."""
    def canonical(n_id: torch.Tensor, part: Data) -> tuple[torch.Tensor, torch.Tensor]:
        index = part.edge_index.as_tensor() if hasattr(part.edge_index, "as_tensor") else part.edge_index
        key = n_id[index[1]] * (int(n_id.max()) + 1) + n_id[index[0]]
        order = key.argsort()
        return key[order], part.edge_attr[order]

    for a, b in zip(canonical(batch.n_id, batch), canonical(other.n_id, other), strict=True):
        if not torch.equal(a, b):
            raise SystemExit("the batches differ from PyG's subgraphs: nothing is timed")


def bench_partition(num_nodes: int = PROTEINS[0], num_edges: int = 30_000_000, num_parts: int = 10,
                    repeat: int = 5) -> None:
    """Measure all batches of a random partition, beside PyG's RandomNodeLoader."""
    say(f"generating {num_edges:,} directed edges")
    generated = synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=8)
    data = prepare(generated, origin="synthetic_proteins")
    plain = Data(edge_index=data.edge_index.as_tensor().long(), edge_attr=data.edge_attr, x=data.x, y=data.y,
                 n_id=torch.arange(num_nodes), num_nodes=num_nodes)
    loader = ClusterLoader(data)
    pyg = RandomNodeLoader(plain, num_parts, shuffle=True)

    partition = random_partition(num_nodes, num_parts, stream("bench", 0))
    for batch in loader.batches_of(partition):
        assert_same_subgraph(batch, plain.subgraph(batch.n_id))
    say("outputs compared: every batch equals PyG's subgraph of its nodes")

    rounds = itertools.count()

    def ours() -> None:
        for _ in loader.batches_of(random_partition(num_nodes, num_parts, stream("bench", 1, next(rounds)))):
            pass

    measured = side_by_side(lambda: [None for _ in pyg], ours, repeat)
    write_row({
        "bench": "partition", "num_nodes": num_nodes, "num_edges": data.edge_index.size(1), "num_parts": num_parts,
        **measured})
