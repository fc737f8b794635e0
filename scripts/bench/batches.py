"""Measures steps of GraphSAGE on sampled batches, which the CPU or the GPU makes, and how long training waits for them.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from parallel_epochs.models.convs.sum_convs import SAGEConv
from parallel_epochs.models.edge_index import from_csc, tensors_of
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader
from parallel_epochs.pipeline.graph.resident import put_on
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.scripts.bench.measure import four_digits, say, seconds_of, write_row

CLASSES = 47


class SAGE(torch.nn.Module):
    """Layers of GraphSAGE with a ReLU between them."""

    def __init__(self, *channels: int):
        super().__init__()
        self.convs = torch.nn.ModuleList(SAGEConv(*pair) for pair in zip(channels, channels[1:]))

    def forward(self, batch: Data) -> torch.Tensor:
        x = batch.x
        for conv in self.convs[:-1]:
            x = conv(x, batch.edge_index).relu()
        return self.convs[-1](x, batch.edge_index)


def bench_batches(num_nodes: int = 2_449_029, num_edges: int = 123_718_280, channels: int = 256, batch_size: int = 1024,
                  num_neighbors: tuple[int, ...] = (10, 10, 10), steps: int = 60, features: int = 100,
                  device: str = "cuda") -> None:
    """Measure training steps whose batches are sampled on the CPU, on the GPU, and there with features far away.

    The sizes are those of ogbn-products, and the edges random. First, two batches of all ways must have the same bits.

    Args:
        num_neighbors: neighbours per hop.
        features: number of node features.
        steps: number of steps that are timed, after three others.

    Raises:
        SystemExit: batches differ.
    """
    place = choose_device(device)
    data = make_graph(num_nodes, num_edges, features, place)
    ways = {"cpu": None, "cuda": partial(put_on, device=place),
            "pinned": partial(put_on, device=place, far=("x",), num_near=num_nodes // 10)}
    expected, baseline = [], 0.0
    for way, put in ways.items():
        loader = NeighborLoader(data, num_neighbors, batch_size=batch_size, device=place)
        if put is not None:
            loader.place(put)
        found = [bits_of(batch) for _, batch in zip(range(2), loader.batches(0, Share()))]
        expected = expected or found
        if not all(torch.equal(a, b) for ours, theirs in zip(found, expected) for a, b in zip(ours, theirs)):
            raise SystemExit(f"batches with data.device={way} differ from those of the CPU: nothing is timed")
        seconds, waited = train(loader, SAGE(features, *[channels] * (len(num_neighbors) - 1), CLASSES).to(place),
                                steps, place)
        baseline = baseline or seconds
        write_row({"bench": "batches", "conv": f"batches: {way}", "num_nodes": num_nodes, "num_edges": num_edges,
                   "epoch_s": four_digits(seconds / steps * loader.num_batches), "waited": four_digits(waited),
                   "step_ms": four_digits(1000 * seconds / steps), "ratio_median": four_digits(baseline / seconds),
                   "same_bits": len(found)})


def make_graph(num_nodes: int, num_edges: int, features: int, device: torch.device) -> Graph:
    """Draw edges whose sources are few nodes more often, features, classes, and 8 % of the nodes for training."""
    rng = torch.Generator(device).manual_seed(0)
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    src = (torch.rand(num_edges, generator=rng, device=device) ** 2 * num_nodes).long().clamp_(max=num_nodes - 1)
    dst = torch.randint(num_nodes, (num_edges,), generator=rng, device=device)
    keys = dst.mul_(num_nodes).add_(src).sort().values
    edges = torch.stack([keys % num_nodes, keys // num_nodes])
    indptr = torch.searchsorted(edges[1].contiguous(), torch.arange(num_nodes + 1, device=device))
    rows = torch.rand(num_nodes, generator=rng, device=device)
    x = torch.randn(num_nodes, features, generator=rng, device=device)
    y = (rows * 1e6).long() % CLASSES
    return Graph(edge_index=from_csc(edges.int().cpu(), indptr.int().cpu()), num_nodes=num_nodes, x=x.cpu(),
                 y=y.unsqueeze(1).cpu(), train_mask=(rows < 0.08).cpu())


def train(loader: NeighborLoader, model: SAGE, steps: int, device: torch.device) -> tuple[float, float]:
    """Take steps after a warm-up; return their seconds, and the share of them that training waits for batches."""
    optimizer, waited = torch.optim.Adam(model.parameters(), 1e-3), 0.0

    def take(batches: Iterator[Data], number: int) -> None:
        for _, batch in zip(range(number), batches):
            batch = batch.to(device, non_blocking=True)
            optimizer.zero_grad()
            logits = model(batch)[batch.target]
            loss = cross_entropy(logits, batch.y[batch.target].squeeze(1))
            loss.backward()
            optimizer.step()
            float(loss.detach())  # as the trainer does, which looks at every loss

    rounds = [(round_, partial(loader.batches, round_, Share())) for round_ in range(steps + 3)]
    with BackgroundRounds(rounds, device=device) as background:
        batches = (batch for round_, _ in rounds for batch in background.batches(round_))
        take(batches, 3)
        before = background.wait_seconds
        seconds = seconds_of(lambda: take(batches, steps))
        waited = background.wait_seconds - before
    return seconds, max(waited, 0.0) / seconds


def bits_of(batch: Data) -> list[torch.Tensor]:
    """Return all tensors of a batch on the CPU."""
    return [part.cpu() for _, value in sorted(batch.to_dict().items()) if isinstance(value, torch.Tensor)
            for part in tensors_of(value)]
