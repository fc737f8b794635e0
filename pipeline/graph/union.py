"""Many whole graphs as one disjoint union: nodes and edges of each lie side by side, and are cut out by ranges."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import fill_csr, from_csc
from parallel_epochs.pipeline.names import MASKS


def select_graphs(data: Data, graphs: Int[Tensor, " num_graphs"]) -> Data:
    """Build the disjoint union of some graphs of a union, at a cost that grows with them alone.

    Args:
        data: ``edge_index``, an ``EdgeIndex`` sorted by destination, and ``by_source`` [all_edges], the positions of
            its edges sorted by source; ``ptr``, where each graph's nodes begin [all_graphs + 1]; ``x``; perhaps
            ``edge_attr``; ``y`` and masks with a row for each graph.
        graphs: their numbers, int64; the new graphs are in this order.

    Returns:
        The same attributes of these graphs, their nodes numbered from 0, with an int64 ``EdgeIndex`` whose CSC and CSR
        are filled; ``graph_id``, which is `graphs`; ``n_id`` [num_nodes], numbers of the nodes in `data`.
    """
    # numpy, whose calls cost a fraction of torch's where a batch is small
    (indptr, src), _ = data.edge_index.get_csc()
    ptr, indptr, src, chosen = data.ptr.numpy(), indptr.numpy(), src.numpy(), graphs.numpy()
    first_node, end_node = ptr[chosen], ptr[chosen + 1]
    nodes, node_ptr = expand(first_node, end_node)
    first_edge, end_edge = indptr[first_node].astype(np.int64), indptr[end_node].astype(np.int64)
    edges, edge_ptr = expand(first_edge, end_edge)
    num_edges = end_edge - first_edge

    degree = indptr[nodes + 1] - indptr[nodes]
    by_destination = np.stack(
        [
            src[edges] + np.repeat(node_ptr[:-1] - first_node, num_edges),
            np.repeat(np.arange(len(nodes)), degree),
        ]
    )
    perm = data.by_source.numpy()[edges] + np.repeat(edge_ptr[:-1] - first_edge, num_edges)
    by_source = by_destination[:, perm]
    edge_index = from_csc(torch.from_numpy(by_destination), torch.from_numpy(_begin(degree)))
    fill_csr(
        edge_index,
        perm=torch.from_numpy(perm),
        src=torch.from_numpy(by_source[0]),
        dst=torch.from_numpy(by_source[1]),
        rowptr=torch.from_numpy(_begin(np.bincount(by_destination[0], minlength=len(nodes)))),
    )

    n_id = torch.from_numpy(nodes)
    attributes = {key: data[key].index_select(0, graphs) for key in ("y", *MASKS)}
    if data.edge_attr is not None:
        attributes["edge_attr"] = data.edge_attr.index_select(0, torch.from_numpy(edges))
    return Data(
        edge_index=edge_index,
        x=data.x.index_select(0, n_id),
        ptr=torch.from_numpy(node_ptr),
        n_id=n_id,
        num_nodes=len(nodes),
        graph_id=graphs,
        **attributes,
    )


def expand(first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all numbers of some ranges [first, end) one after the other, and where each range begins among them."""
    ptr = _begin(end - first)
    return np.arange(ptr[-1]) + np.repeat(first - ptr[:-1], end - first), ptr


def _begin(sizes: np.ndarray) -> np.ndarray:
    ptr = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ptr[1:])
    return ptr
