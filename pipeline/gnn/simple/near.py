"""Scores of new rows by a simple method, from their neighbourhood as from the whole graph."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.tables.text import NUM_TERMS
from parallel_epochs.pipeline.gnn.neighborhood import NewNodes, Surroundings
from parallel_epochs.pipeline.gnn.simple.base import apply
from parallel_epochs.pipeline.gnn.simple.inputs import Inputs
from parallel_epochs.pipeline.gnn.simple.labels import Labels
from parallel_epochs.pipeline.gnn.simple.propagation import nth_weights
from parallel_epochs.pipeline.gnn.simple.summaries import weights_of_labels
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import TERMS, WHOLE_DEGREE, WHOLE_MEAN


class Reach(NamedTuple):
    """How far into the graph the score of a row reads.

    Attributes:
        num_hops: hops against the edges.
        weights: number of the weights of the edges, as :func:`propagation.edge_weights` yields them, whose sums divide
            what comes along the edges; none: all edges count alike, self-loops too.
    """

    num_hops: int
    weights: int | None = None


def _reach_of_trees(fitted: dict, data: Data) -> Reach | None:
    if not {"own", "labels"}.issuperset(fitted["parts"]):
        return None  # PageRank, among others
    return Reach(2, len(list(weights_of_labels(data))) - 1) if "labels" in fitted["parts"] else Reach(0)


# By the value of task.base: how far a method reads, from what was fitted and the graph that it was fitted to.
REACH: dict[str, Callable[[dict, Data], Reach | None]] = {
    "mean": lambda fitted, data: Reach(0),
    "linear": lambda fitted, data: Reach(0 if "terms" in fitted else max(fitted["hops"])),
    "propagation": lambda fitted, data: Reach(2, fitted["weight"]), "trees": _reach_of_trees}


def reach_of(fitted: dict[str, Any], data: Data) -> Reach | None:
    """Tell how far into the graph a simple method reads for the score of a row; none if it reads all of it.

    Args:
        fitted: of a :class:`pipeline.gnn.simple.base.Base`.
        data: the graph that it was fitted to.
    """
    if fitted["name"] not in REACH:
        return None
    return REACH[fitted["name"]](fitted["models"][0], data)  # those of other folds read as far


class NearBase:
    """A simple method that scores the nodes of neighbourhoods as those of the graph around them.

    Args:
        fitted: of a :class:`pipeline.gnn.simple.base.Base`.
        reach: how far it reads.
        data: the graph of the training, without the columns of the method.
        task: what is learned.
        scores_all: whether the scores of all nodes are read that are near enough; otherwise those of new ones.
    """

    def __init__(self, fitted: dict[str, Any], reach: Reach, data: Graph, task: NodeTask, *, scores_all: bool):
        self.reach, self._fitted, self._task, self._scores_all = reach, fitted, task, scores_all
        self._degree = self._sums(data)
        self._mean = Labels(data, task).mean(data.train_mask)
        self._terms = Inputs(data, task).terms if any("terms" in model for model in fitted["models"]) else None

    def _weights(self, data: Data) -> Tensor | None:
        if self.reach.weights is None:
            return torch.ones(data.edge_index.size(1))
        return nth_weights(data, self.reach.weights)

    def _sums(self, data: Graph) -> Tensor:
        """Return the sums of the weights of the edges that end at each node, float32."""
        weights = self._weights(data)
        assert weights is not None
        return torch.bincount(plain_edges(data.edge_index)[1], weights, minlength=data.num_nodes).float()

    def fits(self, new: NewNodes) -> bool:
        """Tell whether new edges have the weights that the method reads."""
        return self._weights(_graph_of(new)) is not None

    def score(self, batch: Data, parts: Sequence[Surroundings]) -> Float[Tensor, "num_nodes out_channels"]:
        """Score the nodes of a batch; the rows of other nodes than those that are read have any scores.

        Args:
            batch: as :meth:`Growing.join` makes it.
            parts: of which it was made.
        """
        return apply(self._fitted, self.graph(batch, parts), self._task, None if self._scores_all else batch.target)

    def graph(self, batch: Data, parts: Sequence[Surroundings]) -> Graph:
        """Return what the method reads: the graph of a batch, with what it has to know of the whole graph."""
        graph = Graph(**batch.to_dict())
        graph[WHOLE_MEAN] = self._mean
        graph[WHOLE_DEGREE] = torch.cat([self._degrees(part) for part in parts])
        if self._terms is not None:
            found = sp.csr_array(sp.vstack([rows for part in parts for rows in self._terms_of(part)]))
            for name, values in zip(TERMS, (found.indptr, found.indices, found.data)):
                graph[name] = torch.from_numpy(values)
        return graph

    def _degrees(self, part: Surroundings) -> Tensor:
        """Return the sums of the weights of all edges that end at the nodes of a part, with the new edges."""
        weights, ends = self._weights(_graph_of(part.new)), part.new.edges[1]
        assert weights is not None
        total = torch.cat([torch.zeros(1, dtype=torch.float64), weights.double().cumsum(0)])
        found = (total[torch.searchsorted(ends, part.nodes, right=True)] -
                 total[torch.searchsorted(ends, part.nodes)]).float()
        found[part.num_new:] += self._degree[part.nodes[part.num_new:]]
        return found

    def _terms_of(self, part: Surroundings) -> list[sp.csr_array]:
        """Return the terms of the texts of a part: of the new nodes, and of the others if they are read."""
        known, new = part.nodes[part.num_new:].numpy(), part.new.terms
        assert self._terms is not None and new is not None
        of_new = sp.csr_array((new.data, new.indices, new.indptr), shape=(part.num_new, NUM_TERMS))
        return [of_new, self._terms[known] if self._scores_all else sp.csr_array((len(known), NUM_TERMS))]


def _graph_of(new: NewNodes) -> Graph:
    """Return the new edges alone."""
    return Graph(edge_index=new.edges, edge_attr=new.edge_attr, num_nodes=0)
