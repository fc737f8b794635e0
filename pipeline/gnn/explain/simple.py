"""Scores of a run's simple method on graphs that lack edges, or with other columns of one node."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.gnn import fusion
from parallel_epochs.pipeline.gnn.explain.scene import Removed, Scene, key_links
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import SMOOTHED, apply
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.pairs import keep_edges

# Numbers that all copies of a graph send along its edges together, and the steps of a method.
MOST_SENT, STEPS = 1 << 34, {"diffusion": 50}
FEW_STEPS = 3
# The method is computed again if so many copies are allowed.
FEWEST_COPIES = 20


class SimpleMethod:
    """Scores rows of other graphs by what the simple method of a run has fitted.

    Args:
        setup: the run's data.
        kept: what the run keeps of the method.
        is_undirected: whether the two edges between two nodes are one link, in a graph with one type of nodes.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept, *, is_undirected: bool):
        self._is_undirected = is_undirected
        self._data, self._task, self._kept = setup.bare or setup.data, cast(NodeTask, setup.task), kept
        self._known: dict[int, Tensor] = {}

    @cached_property
    def num_copies(self) -> int:
        """Copies of the graph that an explanation may score; 0 if the method cannot be computed again, or takes long.
        """
        data, kept = self._data, self._kept
        if not kept.fitted or kept.name == SMOOTHED or "ptr" in data:
            return 0
        width = self._task.out_channels + (0 if data.x is None else data.x.size(1))
        sent = STEPS.get(kept.name, FEW_STEPS) * width * max(data.num_edges, data.num_nodes)
        return found if (found := MOST_SENT // sent) >= FEWEST_COPIES else 0

    def changes(self, row: int, scene: Scene, removed: Sequence[Removed]) -> Float[Tensor, "num_copies columns"]:
        """Return what is added to the scores of a row on graphs that lack something."""
        rows = [self._score(row, self._without(scene, one)) if one.links or one.nodes else self._whole(row)
                for one in removed]
        return torch.stack(rows) - self._whole(row)

    def without_column(self, row: int, channels: list[int], mean: Tensor) -> Float[Tensor, " columns"]:
        """Return what is added to the scores of a row if some of its own channels have their mean."""
        data = copy.copy(self._data)
        data.x = data.x.clone()
        data.x[row, channels] = mean[channels].to(data.x)
        return self._score(row, data) - self._whole(row)

    def _whole(self, row: int) -> Tensor:
        if row not in self._known:
            self._known[row] = self._score(row, self._data)
        return self._known[row]

    @cached_property
    def _edges(self) -> Tensor:
        return plain_edges(self._data.edge_index).long()

    @cached_property
    def _links(self) -> Tensor:
        """The link of each edge of the graph, as :func:`key_links` tells them apart."""
        data = self._data
        return key_links(data, self._edges, data.edge_attr, data.num_nodes, is_undirected=self._is_undirected)

    def _score(self, row: int, data: Data) -> Tensor:
        asked = torch.zeros(len(data.y), dtype=torch.bool)
        asked[row] = True
        return apply(self._kept.fitted, data, self._task, asked)[row]

    def _without(self, scene: Scene, removed: Removed) -> Data:
        """Return the graph without the edges of some links, and without all edges of some nodes."""
        data, n_id, edges = copy.copy(self._data), scene.data.n_id.cpu(), scene.edges.cpu()
        lacks = torch.isin(scene.link.cpu(), torch.tensor(removed.links, dtype=torch.int64))
        nodes = n_id[torch.tensor(removed.nodes, dtype=torch.int64)]
        attr = None if scene.data.edge_attr is None else scene.data.edge_attr.cpu()[lacks]
        # At the border of the scene, only one of an edge and its reverse edge is in it.
        gone = key_links(data, n_id[edges[:, lacks]], attr, data.num_nodes, is_undirected=self._is_undirected)
        kept = (~(torch.isin(self._links, gone) | torch.isin(self._edges, nodes).any(0))).nonzero().squeeze(1)
        data.edge_index = keep_edges(data.edge_index, kept)
        for key in ("edge_attr", "edge_time"):
            if data.get(key) is not None:
                data[key] = data[key].index_select(0, kept)
        return data
