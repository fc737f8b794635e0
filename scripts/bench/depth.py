"""Parameters, memory and time of a training step of models of any depth, each in its own process."""

import statistics

import torch
from torch_geometric.data import Data

from parallel_epochs.models import DeeperGCN, EquilibriumGNN, RevGNN
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_same_model,
    call_apart,
    extra_mib,
    say,
    seconds_of,
    write_row,
)
from parallel_epochs.scripts.bench.pyg_rev import PyGRevGNN

NUM_TASKS = 112
OPTIONS = dict(edge_dim=8, aggr="max", learn_t=False, dropout=0.1)


def _revgnn(channels: int, layers: int, **options) -> torch.nn.Module:
    return RevGNN(8, channels, NUM_TASKS, layers, **OPTIONS, **options)


def _deepergcn(channels: int, layers: int, **options) -> torch.nn.Module:
    return DeeperGCN(8, channels, NUM_TASKS, layers, **OPTIONS, **options)


MODELS = {
    "DeeperGCN": _deepergcn,
    "DeeperGCN, recomputed": lambda *sizes: _deepergcn(*sizes, gradient_checkpointing=True),
    "RevGNN": _revgnn,
    "RevGNN, tied": lambda *sizes: _revgnn(*sizes, tied=True),
    "EquilibriumGNN": lambda channels, layers: EquilibriumGNN(
        8, channels, NUM_TASKS, layers, **OPTIONS
    ),
    "RevGNN of PyG's GroupAddRev": lambda *sizes: PyGRevGNN(_revgnn(*sizes)),
}


def bench_depth(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    channels: int = 64,
    repeat: int = 3,
    layers: tuple[int, ...] = (7, 28, 112, 448, 1001),
    models: tuple[str, ...] = (),
    device: str = "cpu",
) -> None:
    """Measure a training step of models of many depths, and of PyG's GroupAddRev.

    Args:
        layers: numbers of layers.
        models: models whose name contains one of these texts (default: all).
    """
    place = choose_device(device)
    data, x = _draw(num_nodes, num_edges, place)
    ours = _revgnn(channels, 7).to(place)
    assert_same_model(ours, PyGRevGNN(ours).to(place), x, data, ("head", "node_encoder"))
    for name in (
        name for name in MODELS if any(part.lower() in name.lower() for part in models or [""])
    ):
        for depth in layers:
            row = call_apart(_measure, name, num_nodes, num_edges, channels, depth, repeat, place)
            say(f"{name}, {depth} layers: {row['step_median_s']} s, {row['activations_mib']} MiB")
            write_row(
                {
                    "bench": "depth",
                    "num_nodes": num_nodes,
                    "num_edges": num_edges,
                    "channels": channels,
                    "model": name,
                    "layers": depth,
                    **row,
                }
            )


def _draw(num_nodes: int, num_edges: int, place: torch.device) -> tuple[Data, torch.Tensor]:
    data = graphs.proteins(num_nodes, num_edges // 2 * 2).to(place)
    torch.manual_seed(0)
    return data, torch.randn(num_nodes, 8).to(place)


def _measure(
    name: str,
    num_nodes: int,
    num_edges: int,
    channels: int,
    depth: int,
    repeat: int,
    place: torch.device,
) -> dict:
    """Measure a training step. Weights, gradients and the two moments of Adam have their own column of memory."""
    data, x = _draw(num_nodes, num_edges, place)
    model = MODELS[name](channels, depth).to(place)
    edge_index = data.edge_index.as_tensor() if "PyG" in name else data.edge_index
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    weights_mib = sum(4 * p.numel() for p in model.parameters()) / 2**20

    def step() -> None:
        logits = model(x, edge_index, data.edge_attr)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, data.y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    seconds = [seconds_of(step) for _ in range(repeat)]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_median_s": round(statistics.median(seconds), 3),
        "step_min_s": round(min(seconds), 3),
        "step_max_s": round(max(seconds), 3),
        "activations_mib": round(extra_mib(step) - weights_mib, 1),
        "weights_gradients_adam_mib": round(4 * weights_mib, 1),
    }
