"""Exact inference on a whole graph of ogbn-products' size, with 14 layers x 128 channels."""

import torch

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.aggregate import backend
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import PRODUCTS
from parallel_epochs.scripts.bench.measure import (
    extra_mib,
    peak_gib,
    resident_mib,
    say,
    seconds_of,
    write_row,
)

IN_CHANNELS, NUM_CLASSES = 100, 47


def bench_inference(
    num_nodes: int = PRODUCTS[0],
    num_edges: int = PRODUCTS[1],
    layers: int = 14,
    channels: int = 128,
    device: str = "cpu",
) -> None:
    """Measure exact inference on a graph of ogbn-products' size."""
    place = choose_device(device)
    torch.manual_seed(0)
    _compare(layers, channels, place)
    say(f"generating {num_nodes:,} nodes, {num_edges:,} directed edges")
    edge_index = graphs.heavy_tailed(num_nodes, num_edges).to(place)
    x = torch.randn(num_nodes, IN_CHANNELS).to(place)
    model = _model(layers, channels, "fused").to(place)
    say(f"{resident_mib() / 1024:.1f} GiB resident with the graph, {backend(x, edge_index)}")

    seconds = []

    def infer() -> None:
        with torch.no_grad():
            seconds.append(seconds_of(lambda: model(x, edge_index)))

    extra = extra_mib(infer)
    write_row(
        {
            "bench": "inference",
            "num_nodes": num_nodes,
            "num_edges": num_edges,
            "layers": layers,
            "channels": channels,
            "seconds": round(seconds[0], 2),
            "extra_gib": round(extra / 1024, 2),
            "peak_gib": round(peak_gib(), 2),
            "beside": "PyG not run: the original needed 405 GB",
        }
    )


def _model(layers: int, channels: int, kernel: str) -> DeeperGCN:
    return DeeperGCN(
        IN_CHANNELS,
        channels,
        NUM_CLASSES,
        layers,
        aggr="softmax_sg",
        t=0.1,
        learn_t=False,
        norm="batch",
        num_mlp_layers=1,
        dropout=0.5,
        kernel=kernel,
    ).eval()


@torch.no_grad()
def _compare(layers: int, channels: int, place: torch.device) -> None:
    """Compare the fused path with plain torch in float64, on a small graph."""
    edge_index, x = (
        graphs.heavy_tailed(2000, 100_000).to(place),
        torch.randn(2000, IN_CHANNELS).to(place),
    )
    model = _model(layers, channels, "fused").to(place)
    reference = _model(layers, channels, "reference").to(place).double()
    reference.load_state_dict(model.state_dict())
    expected = reference(x.double(), edge_index)
    error = float((model(x, edge_index) - expected).abs().max() / expected.abs().max())
    say(f"logits: relative difference {error:.1e} from the reference in float64")
    if not error <= 1e-4:
        raise SystemExit("the logits differ from the reference's: nothing is timed")
