"""Measures steps of GraphSAGE on sampled batches, which the CPU or the GPU makes, and how long training waits for them."""

from functools import partial
from itertools import islice, pairwise

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
from parallel_epochs.scripts.bench.measure import four_digits, make_step, say, seconds_of, write_row

CLASSES = 47


def bench_batches(
    num_nodes: int = 2_449_029,
    num_edges: int = 123_718_280,
    channels: int = 256,
    batch_size: int = 1024,
    num_neighbors: tuple[int, ...] = (10, 10, 10),
    steps: int = 60,
    features: int = 100,
    device: str = "cuda",
) -> None:
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
    expected, baseline = [], 0.0
    for way, options in {
        "cpu": None,
        "cuda": {},
        "pinned": {"far": ("x",), "num_near": num_nodes // 10},
    }.items():
        loader = NeighborLoader(data, num_neighbors, batch_size=batch_size, device=place)
        if options is not None:
            loader.place(partial(put_on, device=place, **options))
        found = [
            part.cpu()
            for batch in islice(loader.batches(0, Share()), 2)
            for value in batch.to_dict().values()
            if isinstance(value, torch.Tensor)
            for part in tensors_of(value)
        ]
        expected = expected or found
        if not all(map(torch.equal, found, expected)):
            raise SystemExit(
                f"batches with data.device={way} differ from those of the CPU: nothing is timed"
            )
        seconds, waited = train(
            loader, [features, *[channels] * (len(num_neighbors) - 1), CLASSES], steps, place
        )
        baseline = baseline or seconds
        write_row(
            {
                "bench": "batches",
                "conv": f"batches: {way}",
                "num_nodes": num_nodes,
                "num_edges": num_edges,
                "epoch_s": four_digits(seconds / steps * loader.num_batches),
                "waited": four_digits(waited),
                "step_ms": four_digits(1000 * seconds / steps),
                "ratio_median": four_digits(baseline / seconds),
            }
        )


def make_graph(num_nodes: int, num_edges: int, features: int, device: torch.device) -> Graph:
    """Draw edges whose sources are few nodes more often, features, classes, and 8 % of the nodes for training."""
    rng = torch.Generator(device).manual_seed(0)
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    src = (
        (torch.rand(num_edges, generator=rng, device=device) ** 2 * num_nodes)
        .long()
        .clamp_(max=num_nodes - 1)
    )
    dst = torch.randint(num_nodes, (num_edges,), generator=rng, device=device).sort().values
    indptr = torch.searchsorted(dst, torch.arange(num_nodes + 1, device=device))
    rows = torch.rand(num_nodes, generator=rng, device=device)
    x = torch.randn(num_nodes, features, generator=rng, device=device)
    return Graph(
        edge_index=from_csc(torch.stack([src, dst]).int().cpu(), indptr.int().cpu()),
        num_nodes=num_nodes,
        x=x.cpu(),
        y=(rows * 1e6).long().cpu() % CLASSES,
        train_mask=(rows < 0.08).cpu(),
    )


def train(
    loader: NeighborLoader, channels: list[int], steps: int, device: torch.device
) -> tuple[float, float]:
    """Take steps after a warm-up; return their seconds, and the share of them that training waits for batches."""
    convs = torch.nn.ModuleList(SAGEConv(*pair) for pair in pairwise(channels)).to(device)

    def loss() -> torch.Tensor:
        batch: Data = next(batches).to(device, non_blocking=True)
        x = batch.x
        for conv in convs:
            x = conv(x if conv is convs[0] else x.relu(), batch.edge_index)
        return cross_entropy(x[batch.target], batch.y[batch.target])

    step = make_step(convs, loss)
    rounds = [(round_, partial(loader.batches, round_, Share())) for round_ in range(steps + 3)]
    with BackgroundRounds(rounds, device=device) as background:
        batches = (batch for round_, _ in rounds for batch in background.batches(round_))
        for _ in range(3):
            step()
        before = background.wait_seconds
        seconds = seconds_of(lambda: [seconds_of(step) for _ in range(steps)])
        return seconds, max(background.wait_seconds - before, 0.0) / seconds
