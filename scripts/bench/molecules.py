"""Batches of molecules and training steps, compared with PyG's DataLoader and the same model of PyG's modules."""

from itertools import islice

import torch
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from parallel_epochs.models import DeeperGCN
from parallel_epochs.pipeline.data.cache import prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.scripts.bench.measure import assert_close, say, side_by_side, write_row
from parallel_epochs.scripts.bench.pyg_molecules import PyGMolecules


def bench_graphs(
    num_batches: int = 50,
    batch_size: int = 32,
    layers: int = 7,
    channels: int = 256,
    repeat: int = 3,
    folder: str = "dataset/ogbg_molhiv",
) -> None:
    """Measure batches and training steps on ogbg-molhiv, beside PyG's DataLoader and the same model of PyG's modules.

    Args:
        num_batches: number of training steps.
        batch_size: number of graphs of a batch.
        folder: ogbg-molhiv in OGB's raw layout.
    """
    config = OGBGraphConfig(folder=folder)
    data = prepare_as(config, read(config))
    loader, graphs = GraphLoader(data, batch_size=batch_size), split_into_list(data)
    learned = [graphs[i] for i in data.train_mask.nonzero().squeeze(1).tolist()]
    say(
        f"{len(graphs):,} graphs, {len(learned):,} of them for training, in batches of {batch_size}"
    )
    drawn = loader.draw(0, Share())
    for place in (0, drawn.num_parts // 2, drawn.num_parts - 1):
        assert_same_batch(next(loader.batches_of(drawn, [place])), graphs, drawn, place)
    common = {"num_graphs": len(learned), "batch_size": batch_size}

    theirs = DataLoader(learned, batch_size=batch_size, shuffle=True)
    write_row(
        {
            "bench": "graphs",
            "what": "batches of an epoch",
            "num_batches": drawn.num_parts,
            **common,
            **side_by_side(
                lambda: [None for _ in theirs],
                lambda: [None for _ in loader.batches(0, Share())],
                repeat,
            ),
        }
    )
    steps = _training_steps(data, graphs, loader, drawn, layers, channels, num_batches)
    write_row(
        {
            "bench": "graphs",
            "what": f"training steps {layers}x{channels}",
            "num_batches": min(num_batches, drawn.num_parts),
            **common,
            **side_by_side(*steps, repeat),
        }
    )


def split_into_list(data: Data) -> list[Data]:
    """Split a disjoint union into the list of graphs that PyG's DataLoader takes."""
    src, dst = data.edge_index.as_tensor().long()
    ptr, indptr = data.ptr, data.edge_index.get_csc()[0][0].long()
    return [
        Data(
            x=data.x[a:b].long(),
            edge_attr=data.edge_attr[first:last].long(),
            y=data.y[i : i + 1],
            edge_index=torch.stack([src[first:last], dst[first:last]]) - a,
        )
        for i, (a, b, first, last) in enumerate(
            zip(
                ptr[:-1].tolist(),
                ptr[1:].tolist(),
                indptr[ptr[:-1]].tolist(),
                indptr[ptr[1:]].tolist(),
            )
        )
    ]


def assert_same_batch(ours: Data, graphs: list[Data], drawn: Partition, place: int) -> None:
    """Stop unless a batch equals PyG's batch of the same graphs."""
    theirs = Batch.from_data_list([graphs[i] for i in drawn.nodes(place).tolist()])
    same = (
        torch.equal(ours.x.long(), theirs.x)
        and torch.equal(ours.ptr, theirs.ptr)
        and torch.equal(ours.y, theirs.y)
        and torch.equal(ours.edge_attr.long(), theirs.edge_attr)
        and torch.equal(ours.edge_index.as_tensor(), theirs.edge_index)
    )
    if not same:
        raise SystemExit(f"batch {place} differs from PyG's: nothing is timed")


def _training_steps(
    data: Data,
    graphs: list[Data],
    loader: GraphLoader,
    drawn: Partition,
    layers: int,
    channels: int,
    num_batches: int,
):
    """Compare loss and gradients; return two functions that train on some batches, with PyG and with our code."""
    torch.manual_seed(0)
    model = DeeperGCN(
        data.x.size(1),
        channels,
        1,
        layers,
        edge_dim=data.edge_attr.size(1),
        node_tables=data.x_tables,
        edge_tables=data.edge_tables,
        pool="mean",
        norm="batch",
        num_mlp_layers=1,
        dropout=0.2,
    )
    other = PyGMolecules(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4, fused=True) for m in (other, model)]

    def loss_of_theirs(batch: Data) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            other(batch.x, batch.edge_index, batch.edge_attr, batch.batch), batch.y
        )

    def loss_of_ours(batch: Data) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            model(batch.x, batch.edge_index, batch.edge_attr, ptr=batch.ptr), batch.y
        )

    _assert_same_gradients(
        model,
        other,
        next(loader.batches_of(drawn, [0])),
        Batch.from_data_list([graphs[i] for i in drawn.nodes(0).tolist()]),
        loss_of_ours,
        loss_of_theirs,
    )

    def train(batches, loss, optimizer) -> None:
        for batch in islice(batches, num_batches):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()

    learned = [graphs[i] for i in drawn.perm.tolist()]
    size = drawn.nodes(0).numel()
    return (
        lambda: train(DataLoader(learned, batch_size=size), loss_of_theirs, optimizers[0]),
        lambda: train(loader.batches(0, Share()), loss_of_ours, optimizers[1]),
    )


def _assert_same_gradients(
    model, other, ours: Data, theirs: Data, loss_of_ours, loss_of_theirs
) -> None:
    found = []
    for net, batch, loss in ((model, ours, loss_of_ours), (other, theirs, loss_of_theirs)):
        net.dropout, kept = 0.0, net.dropout
        net.train()
        value = loss(batch)
        value.backward()
        net.dropout = kept
        first = net.convs[0].mlp[0].weight.grad
        tables = (
            model.edge_lins[0].weight.grad
            if net is model
            else torch.cat([embedding.weight.grad for embedding in other.bond_encoders[0]])
        )
        found.append(
            {
                "loss": value.detach(),
                "gradient of the first layer": first,
                "gradient of its tables": tables,
            }
        )
    assert_close(*found, tolerance=1e-3)
