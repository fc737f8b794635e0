"""The part of a graph that one prediction reads, which is predicted again with other features or without edges."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.gnn.loaders.snapshots import take_snapshot
from parallel_epochs.pipeline.gnn.predict import neighborhood
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.pairs import keep_edges
from parallel_epochs.pipeline.graph.union import select_graphs
from parallel_epochs.pipeline.names import SNAPSHOT


@dataclass(frozen=True)
class View:
    """The nodes and edges that one prediction reads.

    Attributes:
        data: a batch of them; ``x`` is what the model reads.
        edges: sources and destinations.
        link: number of the link that each edge belongs to: both directions of an undirected edge are one link.
        targets: the node that is predicted; all nodes of a graph.
        hop: steps from a target to each node, against the edges.
    """

    data: Data
    edges: Int[Tensor, "2 num_edges"]
    link: Int[Tensor, " num_edges"]
    targets: Int[Tensor, " num_targets"]
    hop: Int[Tensor, " num_nodes"]

    @property
    def hop_of_links(self) -> Int[Tensor, " num_links"]:
        """Steps from a target to the nearer end of each link: 0 for those that enter a target."""
        num_links = int(self.link.max()) + 1 if len(self.link) else 0
        far = torch.full((num_links,), self.data.num_nodes, device=self.link.device)
        return far.scatter_reduce(0, self.link, self.hop[self.edges[1]], "amin")


def without(data: Data, gone: Bool[Tensor, " num_edges"]) -> Data:
    """Return a graph that lacks some edges."""
    found, kept = copy.copy(data), (~gone).nonzero().squeeze(1)
    found.edge_index = keep_edges(data.edge_index, kept)
    for key in ("edge_attr", "edge_time"):
        if data.get(key) is not None:
            found[key] = data[key].index_select(0, kept)
    return found


def link_keys(
    data: Graph, edges: Int[Tensor, "2 num_edges"], edge_attr: Tensor | None
) -> Int[Tensor, " num_edges"]:
    """Return a number of each edge of a graph, which the edges between two nodes in a relation and its reverse share."""
    key = torch.zeros_like(edges[0])
    if not data.types.homogeneous:
        reverse = reverses_of(data.types.relations)
        forward = [reverse.get(number, number) for number in range(len(data.types.relations))]
        key = torch.tensor(forward, device=key.device)[cast(Tensor, edge_attr)[:, 0].long()]
    return (key * data.num_nodes + edges.amin(0)) * data.num_nodes + edges.amax(0)


def view_of(setup: Setup, x: Tensor, number: int) -> View:
    """Take what the prediction of a node or of a graph reads.

    Args:
        x: what the network reads of each node.
    """
    data, node = setup.data, number
    if "ptr" in data:
        local = select_graphs(data, torch.tensor([number]))
        local.target = torch.ones(1, dtype=torch.bool)
        return _build(setup, x, local, range(local.num_nodes))
    if SNAPSHOT in data:  # a row of a label table reads the graph of its time
        first = data.types.nodes_of(cast(str, data.types.labelled)).start
        data = take_snapshot(data, int(data[SNAPSHOT][number - first]))
        node = int((data.n_id == number).nonzero())
    num_hops, reason = count_hops(setup.model)
    if reason:  # it has no bound
        local = copy.copy(data)
        local.n_id = torch.arange(data.num_nodes)
        local.target = local.n_id == node
    else:
        local, node = neighborhood.take(data, torch.tensor([node]), num_hops), 0
    if data is not setup.data:
        local.n_id = data.n_id[local.n_id]
    return _build(setup, x, local, [node])


def _build(setup: Setup, x: Tensor, local: Data, nodes: Sequence[int]) -> View:
    setup.model.eval()
    edges = plain_edges(local.edge_index).long()
    keys = link_keys(setup.data, local.n_id[edges], local.edge_attr)
    if SNAPSHOT in setup.data:
        local.x = cast(NodeTask, setup.task).inputs(local, local.train_mask)
    else:
        local.x = x[local.n_id]
    size = (local.num_nodes, local.num_nodes)
    against = csr_array((np.ones(edges.size(1)), edges.flip(0).numpy()), shape=size)
    hop = dijkstra(against, indices=list(nodes), unweighted=True, min_only=True)
    device = setup.device
    return View(
        local.to(device),
        edges.to(device),
        keys.unique(return_inverse=True)[1].to(device),
        torch.tensor(nodes).to(device),
        torch.from_numpy(hop).clamp(max=local.num_nodes).long().to(device),
    )
