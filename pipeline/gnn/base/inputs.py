"""Simple methods read the columns of nodes or graphs, and their sums over neighbours."""

import copy
import logging
import math
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.propagation import NormalizedAdjacency
from parallel_epochs.pipeline.data.tables.text import NUM_TERMS
from parallel_epochs.pipeline.gnn.base.graphs import count_contents, count_patterns
from parallel_epochs.pipeline.gnn.base.labels import Labels, to_logits
from parallel_epochs.pipeline.gnn.base.summaries import Summaries, summarise
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.pairs import keep_edges
from parallel_epochs.pipeline.names import SNAPSHOT, TERMS, WHOLE_DEGREE, merit
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Seconds for each column of each edge that is summarised.
OF_COLUMN = 3e-8


class Inputs:
    """The inputs of simple methods: a graph, or a union of graphs.

    Args:
        data: a prepared graph.
        task: what is learned.
        seconds: what a method may take, by an estimate.

    Attributes:
        labels: of all rows.
        own: rows that may have labels: the nodes of their type, or all.
        width: number of columns of these nodes.
        are_graphs: whether the rows are graphs.
        of_labels: columns of trees that read labels, behind the rows whose labels they read.
        has_relations: whether there are edges, and time for summaries by relation.
        plan: how the summaries by relation are made; none before they are.
        kept: labels that were propagated along some weights of edges: number of the weights, which labels, result.
    """

    def __init__(self, data: Data, task: NodeTask, seconds: float = math.inf):
        self.seconds, self.task, self.labels = seconds, task, Labels(data, task)
        self.data = data = without_times(data) if SNAPSHOT in data else data
        self.are_graphs, types = "ptr" in data, data.types
        self.own, self.width = slice(0, len(self.labels.y)), 0 if data.x is None else data.x.size(1)
        if len(types.names) > 1:
            assert types.labelled is not None
            nodes = types.nodes_of(types.labelled)
            self.own, self.width = (
                slice(nodes.start, nodes.stop),
                types.widths[types.names.index(types.labelled)],
            )
        of_relations = 3 * OF_COLUMN * data.num_edges * max(sum(types.widths), 1)
        self.has_relations = not self.are_graphs and of_relations < seconds
        if not self.are_graphs and not self.has_relations:
            log.info(
                "simple methods: no summaries of neighbours; task.base_seconds=%d allows them",
                math.ceil(of_relations),
            )
        self.has_loops, self._hops = True, list[Tensor]()
        self._moments = dict[int, tuple[Tensor, Tensor]]()
        self.kept: tuple[int, Tensor, Any] | None = None
        self.plan: Summaries | None = None
        self.of_labels: tuple[Tensor, Tensor] | None = None

    @cached_property
    def adjacency(self) -> NormalizedAdjacency:
        """The normalised adjacency of the edges, each of weight 1."""
        return NormalizedAdjacency(
            self.data.edge_index, self.data.num_nodes, degree=self.data.get(WHOLE_DEGREE)
        )

    @cached_property
    def _looped(self) -> NormalizedAdjacency:
        """The normalised adjacency with a loop at each node."""
        if not self.has_loops:
            return self.adjacency
        loops = torch.arange(self.data.num_nodes, dtype=self.data.edge_index.dtype)
        edges = torch.cat([self.data.edge_index.as_tensor(), loops.expand(2, -1)], dim=1)
        degree = self.data.get(WHOLE_DEGREE)
        return NormalizedAdjacency(
            edges, self.data.num_nodes, degree=None if degree is None else degree + 1
        )

    @cached_property
    def terms(self) -> sp.csr_array | None:
        """TF-IDF of the texts of the rows that may have labels [num_own, NUM_TERMS]; none without texts."""
        pointers, *arrays = (self.data.get(name) for name in TERMS)
        if pointers is None or len(pointers) != self.own.stop - self.own.start + 1:
            return None
        terms, weights = (array.numpy() for array in arrays)
        return sp.csr_array(
            (weights, terms, pointers.numpy()), shape=(len(pointers) - 1, NUM_TERMS)
        )

    @property
    def num_hops(self) -> int:
        """The largest hop of :meth:`hop`; -1 without columns."""
        if len(self.data.types.names) > 1:
            return int(self.has_relations)
        return -1 if not self.hop(0).size(1) else 0 if self.are_graphs else 3

    @cached_property
    def relations(self) -> Float[Tensor, "num_own columns"]:
        """Summaries of the neighbours and edges of the rows that may have labels."""
        types = self.data.types
        place = 0 if types.homogeneous else types.names.index(str(types.labelled))
        found, self.plan = summarise(self.data, place, self.plan)
        return found

    def hop(self, number: int) -> Float[Tensor, "num_own columns"]:
        """Return the columns of the rows that may have labels, after some steps along the edges.

        Each step multiplies by the normalised adjacency with a loop at each node (SGC,
        https://arxiv.org/abs/1902.07153). With several types of nodes, hop 1 are the summaries by relation.
        """
        if not self._hops:
            self._hops.append(
                count_contents(self.data, getattr(self.task, "num_last", 0))
                if self.are_graphs
                else self.data.x[self.own, : self.width].float()
            )
        while len(self._hops) <= number:
            self._hops.append(
                self._looped @ self._hops[-1] if len(self.data.types.names) == 1 else self.relations
            )
        return self._hops[number]

    @cached_property
    def patterns(self) -> Float[Tensor, "num_graphs num_patterns"] | None:
        """How often each pattern of categories is in a graph; none where nodes have no categories."""
        return count_patterns(self.data, getattr(self.task, "num_last", 0))

    @property
    def kept_plan(self) -> dict[str, Any] | None:
        """The values of the plan, with which a method can summarise other data; none without summaries."""
        return None if self.plan is None else asdict(self.plan)

    def follow(self, fitted: dict[str, Any]) -> None:
        """Summarise as for what was fitted."""
        self.has_loops = fitted.get("loops", False)  # models before version 0.7 have none
        if fitted.get("plan") is not None:
            self.plan = Summaries(**fitted["plan"])

    def moments(self, number: int) -> tuple[Float[Tensor, " columns"], Float[Tensor, " columns"]]:
        """Return the mean and the deviation of each column of a hop, float64; those of training rows of label tables."""
        if number not in self._moments:
            x = self.hop(number).double()
            x = x[self.labels.train[self.own]] if SNAPSHOT in self.data else x
            mean = x.mean(0)
            self._moments[number] = mean, (x - mean).square_().mean(0).sqrt_().nan_to_num_()
        return self._moments[number]

    def valid(self, found: Tensor) -> float:
        """Compute the metric of probabilities, or values, on the validation rows, with the sign for which more is
        better; the lowest of all numbers where it is undefined.
        """
        score = self.task.score("valid", to_logits(found, self.labels.plain))
        return -math.inf if math.isnan(score) else merit(self.task.metric, score)

    def draw(
        self, rows: Bool[Tensor, " num_rows"], most: int, seed: int
    ) -> Bool[Tensor, " num_rows"]:
        """Draw some rows at random if there are more than a limit."""
        chosen = rows.nonzero().squeeze(1).numpy()
        if len(chosen) <= most:
            return rows
        out = torch.zeros_like(rows)
        out[np.sort(stream("rows of bases", seed).choice(chosen, most, replace=False))] = True
        return out

    def among_all(
        self, rows: Tensor, others: Tensor, chosen: Tensor | slice = slice(None)
    ) -> Tensor:
        """Return rows of all nodes, given those of some that may have labels, and one for every other."""
        if len(rows) == len(self.labels.y):
            return rows
        out = others.to(rows.dtype).repeat(len(self.labels.y), 1)
        out[self.own][chosen] = rows
        return out


def without_times(data: Data) -> Data:
    """Return a graph with a label table without the edges that have a time: some are of the future of some rows.

    Columns of the rows summarise these edges.
    """
    found, kept = copy.copy(data), (data.edge_time < 0).nonzero().squeeze(1)
    found.edge_index, found.edge_attr = (
        keep_edges(data.edge_index, kept),
        data.edge_attr.index_select(0, kept),
    )
    del found.edge_time
    return found
