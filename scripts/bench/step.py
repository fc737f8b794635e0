"""A training step of DyResGEN-112: forward, loss, backward and Adam, compared with the same model of PyG's modules."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from parallel_epochs.models import DeeperGCN
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_same_model,
    extra_mib,
    extra_of_both,
    make_step,
    say,
    side_by_side,
    spread_of,
    write_row,
)
from parallel_epochs.scripts.bench.pyg_model import PyGDeeperGCN

NUM_TASKS = 112


def bench_step(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    pyg_layers: int = 14,
    layers: int = 112,
    repeat: int = 3,
    device: str = "cpu",
) -> None:
    """Measure a training step of DyResGEN-112, beside the same model of PyG's modules.

    Args:
        pyg_layers: number of layers for the comparison with PyG.
    """
    place = choose_device(device)
    data = graphs.proteins(num_nodes, num_edges // 2 * 2).to(place)
    torch.manual_seed(0)
    x, plain = torch.randn(num_nodes, 8).to(place), data.edge_index.as_tensor()

    def build(num_layers: int) -> DeeperGCN:
        return DeeperGCN(8, 64, NUM_TASKS, num_layers, edge_dim=8, dropout=0.1, kernel="fused").to(
            place
        )

    def stepper(model: torch.nn.Module, edge_index: torch.Tensor):
        return make_step(
            model,
            lambda: binary_cross_entropy_with_logits(model(x, edge_index, data.edge_attr), data.y),
        )

    model = build(pyg_layers)
    pyg = PyGDeeperGCN(model).to(place)
    assert_same_model(model, pyg, x, data, ("node_encoder", "edge_encoder", "head"))
    row = {"bench": "step", "num_nodes": num_nodes, "num_edges": plain.size(1)}
    pyg = PyGDeeperGCN(build(pyg_layers)).to(place)
    theirs, ours = stepper(pyg, plain), stepper(model, data.edge_index)
    compared = side_by_side(theirs, ours, repeat, inner=3)
    compared |= extra_of_both(theirs, ours)
    write_row({**row, "layers": pyg_layers, **compared})
    if layers != pyg_layers:
        say(f"{layers} layers without PyG, whose step would keep 1.1 GiB for every third layer")
        deep = stepper(build(layers), data.edge_index)
        deep()
        alone = spread_of(deep, repeat) | {"ours_extra_mib": round(extra_mib(deep), 1)}
        write_row({**row, "layers": layers, **dict.fromkeys(compared, ""), **alone})
