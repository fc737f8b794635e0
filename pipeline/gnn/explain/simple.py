"""The simple method of a run: its part in the answer, and its scores on graphs that lack edges or columns of a node."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.gnn import fusion
from parallel_epochs.pipeline.gnn.explain.scene import LinkKeys, Removed, Scene
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import SMOOTHED, Base, apply
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
        kept: what the run keeps of the method; none without one.
        keys: tells the links of the graph apart.

    Attributes:
        rows: its scores for the graph of the training, as it learned them; none without a method of labels.
        part: of it in the answers.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept | None, keys: LinkKeys):
        self.kept, self._setup, self._keys, self._known = kept, setup, keys, dict[int, Tensor]()
        self._data, self._task = setup.bare or setup.data, cast(NodeTask, setup.task)
        self.rows = setup.base.rows if isinstance(setup.base, Base) else None
        self.part = (
            0.0
            if kept is None
            or self.rows is None
            or (kept.reads_labels and not bool(setup.data.train_mask.any()))
            else kept.share
        )

    @cached_property
    def num_copies(self) -> int:
        """Copies of the graph that an explanation may score; 0 if the method takes long, or cannot score others."""
        data, kept = self._data, self.kept
        if (
            kept is None
            or not self.part
            or not kept.fitted
            or kept.name == SMOOTHED
            or "ptr" in data
        ):
            return 0
        width = self._task.out_channels + (0 if data.x is None else data.x.size(1))
        sent = STEPS.get(kept.name, FEW_STEPS) * width * max(data.num_edges, data.num_nodes)
        return found if (found := MOST_SENT // sent) >= FEWEST_COPIES else 0

    def of(self, number: int | Sequence[int]) -> Tensor | None:
        """Return its scores for a row; none without a method, and for pairs."""
        return (
            None
            if self.rows is None or isinstance(number, Sequence)
            else self.rows[number].to(self._setup.device)
        )

    def mix(self, rows: Float[Tensor, "num_copies columns"], base: Tensor | None) -> Tensor:
        """Mix the network's answers of copies with scores of the method, as the run does."""
        if base is None or not self.part:
            return rows
        return fusion.mix(rows, cast(Any, self._task).from_learned(base).expand_as(rows), self.part)

    def without(
        self, number: int | Sequence[int], scene: Scene, removed: Sequence[Removed]
    ) -> Tensor | None:
        """Return its scores for a row on graphs that lack something; as they are where it is not computed again."""
        base = self.of(number)
        if base is None or not self.num_copies:
            return base
        return torch.stack(
            [
                self._scored(cast(int, number), self._without(scene, one))
                if one.links or one.nodes
                else base
                for one in removed
            ]
        )

    def without_column(
        self, row: int, channels: list[int], mean: Tensor
    ) -> Float[Tensor, " columns"]:
        """Return its scores for a row if some channels of the row have their mean."""
        data = copy.copy(self._data)
        data.x = data.x.clone()
        data.x[row, channels] = mean[channels].to(data.x)
        return self._scored(row, data)

    def _scored(self, row: int, data: Data) -> Tensor:
        """Add what the fitted method sees of a change to the score of a row, which may be out of fold."""
        if row not in self._known:
            self._known[row] = self._score(row, self._data)
        base = cast(Tensor, self.of(row))
        return base + (self._score(row, data) - self._known[row]).to(base)

    def _score(self, row: int, data: Data) -> Tensor:
        asked = torch.zeros(len(data.y), dtype=torch.bool)
        asked[row] = True
        return apply(cast(fusion.Kept, self.kept).fitted, data, self._task, asked)[row]

    @cached_property
    def _edges(self) -> Tensor:
        return plain_edges(self._data.edge_index).long()

    @cached_property
    def _links(self) -> Tensor:
        return self._keys.of(self._edges, self._data.edge_attr, self._data.num_nodes)

    def _without(self, scene: Scene, removed: Removed) -> Data:
        """Return the graph without the edges of some links, and without all edges of some nodes."""
        data, n_id, edges = copy.copy(self._data), scene.data.n_id.cpu(), scene.edges.cpu()
        lacks = torch.isin(scene.link.cpu(), torch.tensor(removed.links, dtype=torch.int64))
        nodes = n_id[torch.tensor(removed.nodes, dtype=torch.int64)]
        attr = None if scene.data.edge_attr is None else scene.data.edge_attr.cpu()[lacks]
        # At the border of the scene, only one of an edge and its reverse edge is in it.
        gone = self._keys.of(n_id[edges[:, lacks]], attr, data.num_nodes)
        kept = (
            (~(torch.isin(self._links, gone) | torch.isin(self._edges, nodes).any(0)))
            .nonzero()
            .squeeze(1)
        )
        data.edge_index = keep_edges(data.edge_index, kept)
        for key in ("edge_attr", "edge_time"):
            if data.get(key) is not None:
                data[key] = data[key].index_select(0, kept)
        return data
