"""One GENConv layer of a res+ block with norm, activation, dropout and MLP, forward and backward."""

import torch
from torch_geometric.data import Data

from parallel_epochs.models import DeeperGCN, GENConv
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER, PROTEINS
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    backward,
    extra_mib,
    extra_of_both,
    resident_mib,
    say,
    side_by_side,
    spread_of,
    write_row,
)
from parallel_epochs.scripts.bench.pyg_model import PyGDeeperGCN


def bench_layer(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    channels: int = 64,
    repeat: int = 3,
    full: bool = False,
    relations: int | None = None,
    device: str = "cpu",
) -> None:
    """Measure one layer with norm, activation and dropout, beside PyG's.

    Args:
        full: use a graph of ogbn-proteins' size, without PyG, which would need 74 GB.
        relations: compare a layer that reads this number of relations from a table with the same layer on one-hot
            columns instead.
    """
    num_nodes, num_edges = PROTEINS if full else (num_nodes, num_edges)
    place = choose_device(device)
    data = graphs.proteins(
        num_nodes, num_edges // 2 * 2, dtype=torch.int32 if full else torch.int64
    ).to(place)
    if relations is not None:
        for num_features in (0, 8):
            _measure_relations(data, channels, relations, num_features, repeat)
        return
    torch.manual_seed(0)
    # The second of two layers is a whole block. PyG's copy has the same parameters.
    model = (
        DeeperGCN(8, channels, 112, 2, edge_dim=8, learn_t=True, dropout=0.1, kernel="fused")
        .to(place)
        .eval()
    )
    h = torch.randn(num_nodes, channels).to(place).requires_grad_()
    gradient = torch.randn(num_nodes, channels).to(place)
    block = [
        *model.convs[1].parameters(),
        *model.norms[0].parameters(),
        *model.edge_lins[1].parameters(),
    ]
    encoder = list(model.edge_encoder.parameters())

    def ours():
        out = model.apply_layer(1, h, data.edge_index, data.edge_attr)
        return [out.detach(), *torch.autograd.grad(out, [h, *encoder, *block], gradient)]

    row = {
        "bench": "layer",
        "num_nodes": num_nodes,
        "num_edges": data.edge_index.size(1),
        "channels": channels,
    }
    if full:
        graph_mib = resident_mib()
        model.train()
        ours()
        row |= spread_of(ours, repeat) | {
            "ours_extra_mib": round(extra_mib(ours), 1),
            "graph_mib": round(graph_mib, 1),
            "beside": "PyG not run: it would need 74 GB",
        }
        say(
            f"{row['ours_median_s']:.2f} s, {row['ours_extra_mib']:.0f} MiB on top of the {graph_mib:.0f} MiB of "
            f"the graph and the process"
        )
        write_row(row)
        return

    pyg = PyGDeeperGCN(model, checkpointing=False).to(place).eval()
    plain, layer = data.edge_index.as_tensor(), pyg.layers[1]
    their_block = [
        *(layer.conv.get_parameter(name) for name, _ in model.convs[1].named_parameters()),
        *layer.norm.parameters(),
        *layer.conv.lin_edge.parameters(),
    ]

    def theirs():
        out = layer(h, plain, pyg.edge_encoder(data.edge_attr))
        return [out.detach(), *torch.autograd.grad(out, [h, *encoder, *their_block], gradient)]

    names = ["out", "h", "edge encoder's weight", "edge encoder's bias"]
    names += [name for name, _ in model.convs[1].named_parameters()]
    names += ["norm's weight", "norm's bias", "weight", "bias"]
    # Without dropout, as both draw other masks. A ReLU decided by rounding changes a sum by one of its terms.
    assert_close(
        dict(zip(names, ours(), strict=True)),
        dict(zip(names, theirs(), strict=True)),
        tolerance=1e-3,
    )
    model.train(), pyg.train()
    write_row(row | side_by_side(theirs, ours, repeat, inner=5) | extra_of_both(theirs, ours))


def _measure_relations(
    data: Data, channels: int, num_relations: int, num_features: int, repeat: int
) -> None:
    """Compare a convolution that reads relations from a table with the same one on one-hot columns."""
    torch.manual_seed(0)
    place, num_edges = data.edge_attr.device, data.num_edges
    conv = GENConv(
        channels, channels, "softmax", learn_t=True, norm="layer", bias=True, kernel="fused"
    ).to(place)
    relation = torch.randint(num_relations, (num_edges,), device=place)
    features = data.edge_attr[:, :num_features]
    attr = torch.cat([relation.unsqueeze(1).to(features.dtype), features], dim=1)
    columns = torch.cat(
        [torch.nn.functional.one_hot(relation, num_relations).to(features.dtype), features], dim=1
    )
    h, table, weight = (
        graphs.exact(*shape).to(place).requires_grad_()
        for shape in (
            (data.num_nodes, channels),
            (num_relations, channels),
            (channels, num_features),
        )
    )
    gradient = torch.randn(data.num_nodes, channels).to(place)
    leaves = {
        "h": h,
        "table": table,
        **({"weight": weight} if num_features else {}),
        **dict(conv.named_parameters()),
    }

    def ours():
        encoder = (weight, None) if num_features else None
        return backward(
            conv(h, data.edge_index, attr, edge_encoder=encoder, edge_table=table), leaves, gradient
        )

    def theirs():
        wide = torch.cat([table.t(), weight], dim=1) if num_features else table.t()
        return backward(
            conv(h, data.edge_index, columns, edge_encoder=(wide, None)), leaves, gradient
        )

    assert_close(ours(), theirs(), tolerance=1e-3)
    row = {
        "bench": "layer",
        "num_nodes": data.num_nodes,
        "num_edges": num_edges,
        "channels": channels,
        "relations": num_relations,
        "features": num_features,
    }
    row |= side_by_side(theirs, ours, repeat, inner=5, peer="one_hot")
    write_row(
        row
        | extra_of_both(theirs, ours, "one_hot")
        | {
            "one_hot_columns_mib": round(columns.nbytes / 2**20, 1),
            "ours_columns_mib": round(attr.nbytes / 2**20, 1),
        }
    )
