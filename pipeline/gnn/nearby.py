"""Predictions of new nodes from their neighbourhood, as from the whole graph."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.pipeline.data.degrees import add_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.data.propagate import propagate
from parallel_epochs.pipeline.data.tables.text import NUM_TERMS
from parallel_epochs.pipeline.gnn import bases, fusion
from parallel_epochs.pipeline.gnn.contract import autocast
from parallel_epochs.pipeline.gnn.neighborhood import Growing, NewNodes, Surroundings
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import Base, apply
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
    return (
        Reach(2, len(list(weights_of_labels(data))) - 1)
        if "labels" in fitted["parts"]
        else Reach(0)
    )


# By the value of task.base: how far a method reads, from what was fitted and the graph that it was fitted to.
REACH: dict[str, Callable[[dict, Data], Reach | None]] = {
    "mean": lambda fitted, data: Reach(0),
    "linear": lambda fitted, data: Reach(0 if "terms" in fitted else max(fitted["hops"])),
    "propagation": lambda fitted, data: Reach(2, fitted["weight"]),
    "trees": _reach_of_trees,
}


class ReadsAll(Exception):
    """The prediction of a node reads the whole graph; the message says why."""


def why_all(learned: Learned, kept: fusion.Kept | None, data: Graph) -> str:
    """Say why the prediction of a node reads the whole graph, whatever the network reads; empty if it does not.

    Args:
        kept: the simple method that has a part in the answers.
        data: the graph of the training.
    """
    if learned.summaries is not None:
        return "features are summaries of the graph (data.summaries)"
    if kept is not None and _reach_of(kept, data) is None:
        return (
            f"a simple method that reads the whole graph has a part in the answers ({kept.title})"
        )
    return ""


def _reach_of(kept: fusion.Kept, data: Graph) -> Reach | None:
    if not kept.fitted or kept.fitted["name"] not in REACH:
        return None
    return REACH[kept.fitted["name"]](
        kept.fitted["models"][0], data
    )  # those of other folds read as far


class Nearby:
    """Predicts new nodes from their neighbourhood: by the network, by the simple method of the run, or by both.

    Args:
        setup: the graph of the training with its task and the trained model.
        learned: what the preparation of the training data learned.
        kept: the simple method, if it has a part in the answers.
        own: the graph of the training with its own columns alone.

    Raises:
        ReadsAll: the network reads the whole graph.
    """

    def __init__(self, setup: Setup, learned: Learned, kept: fusion.Kept | None, own: Graph):
        self._setup, self._learned, self._kept, config = setup, learned, kept, setup.config
        self._base: NearBase | None = None
        is_alone, data = kept is not None and kept.share == 1, copy.copy(setup.bare or setup.data)
        num_hops, reason = (0, "") if is_alone else count_hops(setup.model)
        if reason:
            raise ReadsAll(reason)
        if kept is not None:
            reach = _reach_of(kept, data)
            assert reach is not None  # as :func:`why_all` has found
            is_read = config.task.reads_base and not is_alone  # at each node that the network reads
            self._base = NearBase(
                kept.fitted, reach, data, cast(NodeTask, setup.task), scores_all=is_read
            )
            num_hops = num_hops + reach.num_hops if is_read else max(num_hops, reach.num_hops)
        if config.data.propagate:
            if learned.degrees is not None:
                add_degrees(own, learned.degrees, num_last=config.data.num_last)
            data.x = own.x
        self._num_hops = num_hops + config.data.propagate
        self.around = Growing(data, learned.degrees, config.seed)

    def take(self, new: NewNodes, max_neighbors: int | None = None) -> Surroundings | None:
        """Take the neighbourhood of new nodes; none where the whole graph has to be predicted.

        Raises:
            ValueError: a new edge has a negative feature, and the simple method takes these for weights.
        """
        if self._base is not None and not self._base.fits(new):
            if cast(fusion.Kept, self._kept).fitted["name"] == "propagation":
                raise ValueError(
                    "edges: a feature of a new edge is negative, and the simple method of the run weighs "
                    "edges by their features, none of which was negative in the training"
                )
            return None
        return self.around.take(new, self._num_hops, max_neighbors)

    @torch.no_grad()
    def forward(self, parts: Sequence[Surroundings]) -> Float[Tensor, "num_new columns"]:
        """Predict new nodes from their neighbourhoods, all in one batch; float32."""
        batch, kept = self.around.join(parts), self._kept
        if num_hops := self._setup.config.data.propagate:
            batch.x, _ = propagate(batch, num_hops, self._learned.hops)
        if self._base is None or kept is None:
            return self._of_network(batch)
        scores = self._base.score(batch, parts)
        own = cast(NodeTask, self._setup.task).from_learned(scores[batch.target])
        if kept.share == 1:
            return own
        base = Base(kept.name, kept.title, scores, {}, kept.reads_labels, 0.0, {})
        shown = bases.show(self._setup.config, batch, base, kept.moments)
        return fusion.mix(self._of_network(shown), own, kept.share)

    def _of_network(self, batch: Graph) -> Tensor:
        setup = self._setup
        with autocast(setup.device, setup.config.train.precision):
            return setup.task.predict(setup.model, batch.to(setup.device))[1].float().cpu()


class NearBase:
    """A simple method that scores the nodes of neighbourhoods as those of the graph around them.

    Args:
        fitted: what a :class:`pipeline.gnn.simple.base.Base` has under this name.
        reach: how far it reads.
        data: the graph of the training, without the columns of the method.
        task: what is learned.
        scores_all: whether the scores of all nodes are read that are near enough; otherwise those of new ones.
    """

    def __init__(
        self, fitted: dict[str, Any], reach: Reach, data: Graph, task: NodeTask, *, scores_all: bool
    ):
        self.reach, self._fitted, self._task, self._scores_all = reach, fitted, task, scores_all
        self._degree = self._sums(data)
        self._mean = Labels(data, task).mean(data.train_mask)
        self._terms = (
            Inputs(data, task).terms
            if any("terms" in model for model in fitted["models"])
            else None
        )

    def _weights(self, data: Data) -> Tensor | None:
        if self.reach.weights is None:
            return torch.ones(data.edge_index.size(1))
        return nth_weights(data, self.reach.weights)

    def _sums(self, data: Graph) -> Tensor:
        """Return the sums of the weights of the edges that end at each node, float32."""
        weights = self._weights(data)
        assert weights is not None
        return torch.bincount(
            plain_edges(data.edge_index)[1], weights.double(), minlength=data.num_nodes
        ).float()

    def fits(self, new: NewNodes) -> bool:
        """Tell whether new edges have the weights that the method reads."""
        return self._weights(_graph_of(new)) is not None

    def score(
        self, batch: Data, parts: Sequence[Surroundings]
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Score the nodes of a batch; the rows of other nodes than those that are read have any scores.

        Args:
            batch: as :meth:`Growing.join` makes it.
            parts: the neighbourhoods of which it was made.
        """
        return apply(
            self._fitted,
            self.graph(batch, parts),
            self._task,
            None if self._scores_all else batch.target,
        )

    def graph(self, batch: Data, parts: Sequence[Surroundings]) -> Graph:
        """Return what the method reads: the graph of a batch, with what it has to know of the whole graph."""
        graph = Graph(**batch.to_dict())
        if not self.reach.weights:
            graph.edge_attr = (
                None  # else trees would choose weights again, by the edges that are here
            )
        graph[WHOLE_MEAN] = self._mean
        graph[WHOLE_DEGREE] = torch.cat([self._degrees(part) for part in parts])
        if self._terms is not None:
            found = sp.csr_array(
                sp.vstack([rows for part in parts for rows in self._terms_of(part)])
            )
            for name, values in zip(TERMS, (found.indptr, found.indices, found.data)):
                graph[name] = torch.from_numpy(values)
        return graph

    def _degrees(self, part: Surroundings) -> Tensor:
        """Return the sums of the weights of all edges that end at the nodes of a part, with the new edges."""
        weights = self._weights(_graph_of(part.new))
        assert weights is not None
        ends, place = part.new.edges[1].unique(return_inverse=True)
        of_new = torch.zeros(len(ends) + 1).index_add_(0, place, weights)
        place = torch.searchsorted(ends, part.nodes)
        found = of_new[place].where(
            torch.cat([ends, ends.new_tensor([-1])])[place] == part.nodes, 0.0
        )
        found[part.num_new :] += self._degree[part.nodes[part.num_new :]]
        return found

    def _terms_of(self, part: Surroundings) -> list[sp.csr_array]:
        """Return the terms of the texts of the new nodes of a part, and those of its other nodes if they are read."""
        known, new = part.nodes[part.num_new :].numpy(), part.new.terms
        assert self._terms is not None and new is not None
        of_new = sp.csr_array((new.data, new.indices, new.indptr), shape=(part.num_new, NUM_TERMS))
        return [
            of_new,
            self._terms[known]
            if self._scores_all
            else sp.csr_array((len(known), NUM_TERMS), dtype=new.dtype),
        ]


def _graph_of(new: NewNodes) -> Graph:
    """Return the new edges alone."""
    return Graph(edge_index=new.edges, edge_attr=new.edge_attr, num_nodes=0)
