"""Training steps of GCN and GAT on random graphs that grow: ours and PyG's, in processes of limited memory."""

import resource
import statistics
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.scripts.bench import convs
from parallel_epochs.scripts.bench.convs import Case
from parallel_epochs.scripts.bench.measure import assert_close, call_apart, say, seconds_of, write_row

CASES = {"GCN": Case("GCNConv", edges="weight", kwargs={"normalize": False, **convs.NO_LOOPS}),
         "GAT": Case("GATConv", heads=4, kwargs=convs.NO_LOOPS)}
# The quantity that each chart varies, and its values; the others stay at those of START.
NODES, DENSITY, HIDDEN = "number of nodes", "density", "hidden size"
VALUES: dict[str, tuple[float, ...]] = {
    NODES: (10_000, 20_000, 40_000, 70_000, 100_000), DENSITY: (0.0002, 0.0008, 0.0032, 0.0128),
    HIDDEN: (16, 32, 64, 128, 256)}
START: dict[str, float] = {NODES: 20_000, DENSITY: 0.0008, HIDDEN: 64}


@dataclass(frozen=True)
class Point:
    """A training step to measure: a library, a layer, and the sizes of a random graph."""

    library: str
    layer: str
    num_nodes: int
    density: float
    hidden: int


def bench_growth(repeat: int = 3, memory_gib: int = 8) -> None:
    """Measure training steps of GCN and GAT against nodes, density and hidden size, beside PyG's.

    Each point has a process of its own.
    """
    compare()
    for chart, values in VALUES.items():
        for value in values:
            sizes = START | {chart: value}
            for layer in CASES:
                for library in ("ours", "PyG"):
                    point = Point(library, layer, int(sizes[NODES]), sizes[DENSITY], int(sizes[HIDDEN]))
                    seconds = run_apart(point, repeat, memory_gib)
                    say(f"{point}: {seconds or 'does not fit'}")
                    write_row({"bench": "growth", "chart": chart, **vars(point), "step_s": seconds})


@torch.no_grad()
def compare() -> None:
    """Stop unless a layer of ours gives the same as PyG's on a small graph."""
    edge_index, weight = random_graph(300, 0.02)
    x = torch.randn(300, 32)
    for name, case in CASES.items():
        theirs, ours = convs.build(case, 32, 0)
        weights = weight if name == "GCN" else None
        found, expected = apply(ours, x, edge_index, weights), apply(theirs, x, edge_index.as_tensor(), weights)
        assert_close({name: found}, {name: expected}, tolerance=1e-4)


def run_apart(point: Point, repeat: int, memory_gib: int) -> float | str:
    """Measure a point in a process of its own; nothing if it does not fit into its memory."""
    try:
        return call_apart(measure, point, repeat, memory_gib)
    except (MemoryError, BrokenProcessPool):
        return ""


def measure(point: Point, repeat: int, memory_gib: int) -> float:
    """Return the median seconds of a training step.

    Raises:
        MemoryError: it does not fit.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_gib << 30,) * 2)
    try:
        step = make_step(point)
        step()
        return round(statistics.median(seconds_of(step) for _ in range(repeat)), 4)
    except RuntimeError as error:
        if "memory" not in str(error) and "bad_alloc" not in str(error):  # torch's ways to say that there is none
            raise
        raise MemoryError(str(error)) from error


def make_step(point: Point) -> Any:
    """Return a function that trains two layers once on a random graph; the loss is the mean square of the output."""
    torch.manual_seed(0)
    n = point.num_nodes
    edge_index, weight = random_graph(n, point.density)
    x, case = torch.randn(n, point.hidden), CASES[point.layer]
    is_ours = point.library == "ours"
    layers = [convs.build(case, point.hidden, 0)[is_ours] for _ in range(2)]
    edges = edge_index if is_ours else edge_index.as_tensor()
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 1e-3)

    def step() -> None:
        h = x
        for layer in layers:
            h = apply(layer, h, edges, weight if point.layer == "GCN" else None).relu()
        optimizer.zero_grad()
        h.square().mean().backward()
        optimizer.step()

    return step


def apply(layer: torch.nn.Module, h: Tensor, edges: Any, weight: Tensor | None) -> Tensor:
    """Apply a layer of either library [num_nodes, channels]."""
    return layer(h, edges) if weight is None else layer(h, edges, weight)


def random_graph(num_nodes: int, density: float) -> tuple[Any, Tensor]:
    """Draw as many random edges as a density asks for, and a self-loop of each node; and weights of the edges."""
    count = int(density * num_nodes**2)
    loops = torch.arange(num_nodes)
    dst, _ = torch.cat([torch.randint(num_nodes, (count,)), loops]).sort()
    src = torch.randint(num_nodes, (count + num_nodes,))
    indptr = torch.searchsorted(dst, torch.arange(num_nodes + 1))
    src[indptr[:-1]] = loops  # every node has an edge
    return from_csc(torch.stack([src, dst]), indptr), torch.rand(count + num_nodes)
