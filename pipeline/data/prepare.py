"""From a dataset as it was read to a graph that is ready for training."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.utils import add_remaining_self_loops, to_undirected

from pipeline.data.check import check
from pipeline.data.config import DataConfig
from pipeline.graph.edges import plain_edges, sort_edges
from pipeline.metrics import CLASS_METRICS
from pipeline.names import MASKS


def prepare(data: Data, config: DataConfig) -> Data:
    """Check a graph, sort its edges by destination, and give every node features.

    Raises:
        ValueError: see :func:`check`.
    """
    check(data)
    num_nodes, edge_index, edge_attr = data.num_nodes, data.edge_index, data.edge_attr
    if config.to_undirected and edge_attr is None:
        edge_index = to_undirected(plain_edges(edge_index).long(), num_nodes=num_nodes)
    elif config.to_undirected:
        edge_index, edge_attr = to_undirected(plain_edges(edge_index).long(), edge_attr, num_nodes, reduce="mean")
    if config.add_self_loops:
        edge_index, edge_attr = add_remaining_self_loops(plain_edges(edge_index).long(), edge_attr, "mean", num_nodes)
    if not isinstance(edge_index, EdgeIndex):
        edge_index, perm = sort_edges(edge_index, num_nodes)
        edge_attr = None if edge_attr is None else edge_attr.float().index_select(0, perm)
    if data.x is not None:
        x = data.x.float()
    else:
        x = incident_sum(edge_index, edge_attr, log=config.node_features == "log_sum")
    num_categories = 0
    if "species" in data:
        num_categories = int(data.species.max()) + 1
        x = torch.cat([x, torch.nn.functional.one_hot(data.species.long(), num_categories).float()], dim=1)
    # -1 may stand for no label outside of the splits.
    y = data.y.clamp(min=0) if data.metric in CLASS_METRICS else data.y
    out_channels = int(y.max()) + 1 if data.metric in CLASS_METRICS else y.size(1)
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=y, num_nodes=num_nodes, metric=data.metric,
                num_categories=num_categories, out_channels=out_channels, **{key: data[key].bool() for key in MASKS})


def incident_sum(edge_index: EdgeIndex, edge_attr: Float[Tensor, "num_edges edge_dim"] | None, *,
                 log: bool) -> Float[Tensor, "num_nodes channels"]:
    """Sum the features of each node's edges over the whole graph, or count them if they have none.

    Args:
        edge_index: sorted by destination.
        edge_attr: [num_edges, edge_dim] or none.
        log: take log1p and bring every column to mean 0 and variance 1.

    Returns:
        [num_nodes, edge_dim], or [num_nodes, 1].
    """
    (indptr, _), _ = edge_index.get_csc()
    if edge_attr is None:
        total = indptr.diff().double().unsqueeze(1)
    else:
        total = torch.segment_reduce(edge_attr, "sum", offsets=indptr.long(), axis=0, initial=0).double()
    if log:
        total = total.clamp(min=0).log1p()
        total = (total - total.mean(0)) / total.std(0, correction=0).clamp(min=1e-6)
    return total.float()
