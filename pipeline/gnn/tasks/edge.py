"""The labels of edges: each edge with a label is a node between the nodes at its ends."""

import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.pairs import keep_edges

# The part of the training edges that are not learned in a step, so that their messages reach those that are.
SHOWN = 0.5
ENDS = ("source", "target")


class EdgeTask(NodeTask):
    """Predicts the labels of edges as :class:`NodeTask` does those of nodes.

    In a step, a random part of the training edges is learned, and sends no messages: an edge that is predicted later
    is not there yet. With labels as inputs, the other part shows them.
    """

    def draw(self, batch: Data, rng: torch.Generator) -> Float[Tensor, " num_nodes"] | None:
        """Draw the numbers that decide which labels are inputs, or which edges are not learned."""
        if self.label_input:
            return super().draw(batch, rng)
        return torch.rand(batch.train_mask.shape, generator=rng)

    def _divide(
        self, batch: Data, drawn: Float[Tensor, " num_nodes"] | None
    ) -> tuple[Bool[Tensor, " num_nodes"], Bool[Tensor, " num_nodes"]]:
        if self.label_input or drawn is None:
            return super()._divide(batch, drawn)
        shown = (drawn < SHOWN).to(batch.train_mask.device)
        return batch.train_mask, batch.train_mask & batch.target & ~shown

    def _hide(self, batch: Data, learned: Bool[Tensor, " num_nodes"]) -> Data:
        edges, out = plain_edges(batch.edge_index), copy.copy(batch)
        kept = (~learned[edges[0].long()]).nonzero().squeeze(1)
        out.edge_index = keep_edges(batch.edge_index, kept)
        if batch.edge_attr is not None:
            out.edge_attr = batch.edge_attr.index_select(0, kept)
        return out


def relations_of(data: Data) -> list[int]:
    """Return the numbers of the relations to labelled edges from the nodes at either end, or to rows from their node.

    Raises:
        ValueError: the labels of the graph are not of edges.
    """
    own, relations = data.types.labelled, data.types.relations
    found = [
        [
            number
            for number, (_, name, target) in enumerate(relations)
            if target == own and name == f"rev_{own}_{end}"
        ]
        for end in ENDS
    ]
    if own is None or not found[0]:
        raise ValueError(
            "task=edge needs labels of edges, and those of this graph are of nodes: set task=node"
        )
    return [numbers[0] for numbers in found if numbers]


def find_ends(data: Data) -> Int[Tensor, "num_edges ends"]:
    """Return the nodes at both ends of each labelled edge, -1 where a table names none; or the one of each row."""
    own = data.types.nodes_of(data.types.labelled)
    src, dst = plain_edges(data.edge_index).long()
    found = torch.full((len(own), len(relations := relations_of(data))), -1)
    for column, relation in enumerate(relations):
        of_end = data.edge_attr[:, 0] == relation
        found[dst[of_end] - own.start, column] = src[of_end]
    return found


def with_both_ways(data: Data) -> EdgeIndex:
    """Return the edges of a graph with those to the ends that are left out, sorted; METIS cuts undirected graphs."""
    own, ends = data.types.nodes_of(data.types.labelled), find_ends(data)
    src, dst = plain_edges(data.edge_index).long()
    is_own = (src >= own.start) & (src < own.stop)
    number = torch.arange(own.start, own.stop)
    back = torch.cat([torch.stack([number, end])[:, end >= 0] for end in ends.unbind(1)], dim=1)
    return sort_edges(
        torch.cat([torch.stack([src, dst])[:, ~is_own], back], dim=1), data.num_nodes
    )[0]
