"""Predictions of new rows with edges to the nodes of the training, as of tables that have grown by them."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.pipeline.data.cache import load_own
from parallel_epochs.pipeline.data.degrees import (
    count_degrees,
    scale_degrees,
    slots_of,
)
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.base import bases, fusion, label_scores
from parallel_epochs.pipeline.gnn.base.fit import Base, apply
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.propagation import nth_weights, weights_of_labels
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import autocast
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.encoder import NewNodes, Row, encode
from parallel_epochs.pipeline.gnn.predict.ids import ids_of
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.sampling import GrowingSampler
from parallel_epochs.pipeline.names import MASKS, TERMS, WHOLE_DEGREE, WHOLE_MEAN
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.saved import SavedRun


class Reach(NamedTuple):
    """How far into the graph the score of a row reads.

    Attributes:
        num_hops: hops against the edges; none: the whole graph.
        weights: number of the weights of the edges, as :func:`propagation.edge_weights` yields them, whose sums divide
            what comes along the edges; none: all edges count alike.
    """

    num_hops: int | None
    weights: int | None = None


def _reach_of_trees(fitted: dict, data: Data) -> Reach:
    if not {"own", "labels"}.issuperset(fitted["parts"]):
        return Reach(None)  # PageRank, among others
    if "labels" not in fitted["parts"]:
        return Reach(0)
    return Reach(2, len(list(weights_of_labels(data))) - 1)


# By the value of task.base: how far a method reads, from what was fitted and the graph that it was fitted to.
REACH: dict[str, Callable[[dict, Data], Reach]] = {
    "mean": lambda fitted, data: Reach(0),
    "linear": lambda fitted, data: Reach(0 if "terms" in fitted else max(fitted["hops"])),
    "propagation": lambda fitted, data: Reach(2, fitted["weight"]),
    "trees": _reach_of_trees,
}


class Newcomers:
    """Predicts nodes that the tables of a training did not have.

    New rows and edges are encoded as the tables were, and stand behind the nodes of the training, whose labels of
    training nodes are known. So the predictions are those of ``predict`` for tables that have grown by these rows, with
    data.known_labels=all where only training nodes have labels. The tables themselves are not read again, and all that
    is computed is what the answer reads of the graph.

    Args:
        run: a run on one table of nodes and one of edges.

    Attributes:
        columns: names of the columns that a new row must have, by "rows" and "edges", the ids first, each with what is
            known of its cells: their kind, ``x-kind``, and categories, ``x-known``.
        needs_graph: why every answer reads the whole graph; empty where it does not.

    Raises:
        ValueError: the run cannot predict new rows, and says why.
    """

    def __init__(self, run: SavedRun[GNNConfig]):
        self._run, config, reason = run, run.config, _why_not(run)
        if reason is None:
            state = run.load()
            self._learned = learned = new_data.read_learned(run, state)
            own = load_own(config.data, config.cache_dir)
            if (source := own.get("x_source")) != "data":
                reason = f"its nodes have features of their edges ({source})"
        if reason is not None:
            raise ValueError(f"{run.folder} answers no new rows: {reason}")
        self._known = {name: number for number, name in enumerate(ids_of(own, None))}
        self._epoch = new_data.place_of(state, is_best=run.is_best)[1]
        self._thresholds = label_scores.read_thresholds(run, learned.out_channels)
        self._setup = setup = new_data.complete(
            config, run, state, learned, new_data.without_store(own), known_labels="all"
        )
        self._task = cast(NodeTask, setup.task)
        with fitting(state):
            setup.model.load_state_dict(state["model"])
        setup.model.eval()
        setup.base = None  # its scores of all nodes
        self._data = data = copy.copy(setup.bare or setup.data)
        from parallel_epochs.pipeline.data.tables import new_rows  # DuckDB

        self.columns = new_rows.describe(cast(Any, config.data), cast(Tensor, learned.fitted))
        kept = fusion.read_kept(run)
        if kept is not None and not kept.share and not config.task.reads_base:
            kept = None  # the network answers alone
        self._kept = kept
        self._num_hops = self._count_hops()
        self._knows_sums = kept is not None and not self.needs_graph
        self._sampler = GrowingSampler(data.edge_index)

    def _count_hops(self) -> int:
        """Count the hops that an answer reads, and find out whether it reads the whole graph."""
        setup, kept = self._setup, self._kept
        is_alone = kept is not None and kept.share == 1
        num_hops, self.needs_graph = (0, "") if is_alone else count_hops(setup.model)
        self._reads_base = setup.config.task.reads_base and not is_alone
        self._reach = Reach(0)
        if kept is None:
            return num_hops
        reach = REACH.get(kept.fitted["name"], lambda *_: Reach(None))
        # The models of other folds read as far.
        self._reach = reach(kept.fitted["models"][0], self._data)
        if self._reach.num_hops is None:
            self.needs_graph = f"a simple method reads the whole graph ({kept.title})"
            return num_hops
        # The network may read it at each node that the network reads.
        both = (num_hops, self._reach.num_hops)
        return sum(both) if self._reads_base else max(both)

    def encode(self, rows: Sequence[Row], edges: Sequence[Row]) -> NewNodes:
        """Encode new rows and their edges, see :func:`encoder.encode`."""
        has_terms = TERMS[0] in self._data
        given = self._run, self._learned, self._known, self.columns, rows, edges
        return encode(*given, has_terms=has_terms)

    def predict(self, rows: Sequence[Row], edges: Sequence[Row] = ()) -> pd.DataFrame:
        """Predict new rows, as a table with the columns of ``predict output=TABLE``.

        Args:
            rows: of the table of nodes, each with an id that no node has.
            edges: of the table of edges, each with a new row at one end or both.

        Raises:
            ValueError: names the row, the column or the id that is wrong.
        """
        new, setup = self.encode(rows, edges), self._setup
        size = len(new.ids)
        masks = {mask: torch.zeros(size, dtype=torch.bool) for mask in MASKS}
        predicted = Predicted(
            Graph(num_nodes=size, split_is_known=False, y=setup.data.y[:0], **masks),
            setup.data,
            setup.task,
            setup.model,
            self.forward(self.take(new)),
            self._epoch,
            ids=np.array(new.ids, object),
            thresholds=self._thresholds,
        )
        return setup.kind.table(predicted, GNNPredictConfig(str(self._run.folder))).frame()

    def take(self, new: NewNodes) -> Graph:
        """Take all that the predictions of new nodes read of the graph that has grown by them, as a batch in which these
        come first.

        Raises:
            ValueError: a new edge has a negative feature, and the simple method takes these for weights.
        """
        data, num_known, num_new = self._data, self._data.num_nodes, len(new.ids)
        seeds = torch.arange(num_known, num_known + num_new)
        num_hops = self._num_hops
        if self.needs_graph:
            seeds, num_hops = torch.cat([seeds, torch.arange(num_known)]), 1
        edge_index, nodes, place = self._sampler.sample_around(seeds, num_hops, new.edges)
        known = nodes[num_new:]
        batch = Graph(num_nodes=len(nodes), n_id=nodes, edge_index=edge_index)
        batch.target = torch.arange(len(nodes)) < num_new
        batch.x = self._features(nodes, new)
        if data.edge_attr is not None and new.edge_attr is not None:
            is_new = place >= len(data.edge_attr)
            batch.edge_attr = data.edge_attr.new_empty(len(place), data.edge_attr.size(1))
            batch.edge_attr[~is_new] = data.edge_attr[place[~is_new]]
            batch.edge_attr[is_new] = new.edge_attr[place[is_new] - len(data.edge_attr)]
        empty = torch.zeros(num_new, data.y.size(1), dtype=data.y.dtype)
        if empty.is_floating_point():
            empty.fill_(torch.nan)
        batch.y = torch.cat([empty, data.y[known]])
        for mask in MASKS:
            batch[mask] = torch.cat([torch.zeros(num_new, dtype=torch.bool), data[mask][known]])
        for name in ("metric", "num_categories", "out_channels"):
            batch[name] = data[name]
        if not data.types.homogeneous:
            batch.types = replace(data.types, counts=[len(nodes)])
        if self._knows_sums:
            batch[WHOLE_MEAN] = self._mean
            # The sums of the weights of all edges that end at a node, with the new edges.
            added = Graph(edge_index=new.edges, edge_attr=new.edge_attr, num_nodes=0)
            batch[WHOLE_DEGREE] = _sum_at(nodes, new.edges[1], self._weights(added))
            batch[WHOLE_DEGREE][num_new:] += self._sums[known]
        if new.terms is not None:
            ptr, *values = (data[name] for name in TERMS)
            counts = [new.terms[0].diff(), ptr[known + 1] - ptr[known]]
            first = torch.repeat_interleave(ptr[known] - counts[1].cumsum(0) + counts[1], counts[1])
            found = first + torch.arange(len(first))
            batch[TERMS[0]] = torch.cat([ptr.new_zeros(1), torch.cat(counts).cumsum(0)]).to(ptr)
            for name, own, more in zip(TERMS[1:], values, new.terms[1:], strict=True):
                batch[name] = torch.cat([more.to(own.dtype), own[found]])
        return batch

    def _features(self, nodes: Tensor, new: NewNodes) -> Tensor:
        data, num_new, moments = self._data, len(new.x), self._learned.degrees
        num_last = data.num_categories + self._setup.config.data.num_last
        first = new.x.size(1) - num_last  # degrees stand in front of the last columns
        found = data.x.new_empty(len(nodes), data.x.size(1))
        found[:num_new, :first], found[num_new:] = new.x[:, :first], data.x[nodes[num_new:]]
        found[:num_new, found.size(1) - num_last :] = new.x[:, first:]
        if moments is not None:
            counts = torch.zeros(len(nodes), moments.size(1), dtype=torch.int64)
            counts[num_new:] = self._counts[nodes[num_new:]].long()
            relation = torch.zeros(new.edges.size(1), dtype=torch.int64)
            if not data.types.homogeneous:
                relation = cast(Tensor, new.edge_attr)[:, 0].long()
            slots = slots_of(data.types)
            for ends, columns in zip(new.edges.flip(0), (slots.incoming, slots.outgoing)):
                own = torch.tensor(columns)[relation]
                for column in range(counts.size(1)):
                    counts[:, column] += _sum_at(nodes, ends, (own == column).float()).long()
            scaled = scale_degrees(counts.int().numpy(), moments)
            found[:, first : first + counts.size(1)] = scaled
        return found

    @cached_property
    def _counts(self) -> Tensor:
        return torch.from_numpy(
            count_degrees(self._data, cast(Tensor, self._learned.degrees).size(1))
        )

    @cached_property
    def _mean(self) -> Tensor:
        return Labels(self._data, self._task).mean(self._data.train_mask)

    @cached_property
    def _sums(self) -> Tensor:
        """The sums of the weights of the edges of the graph that end at each node."""
        ends, weights = plain_edges(self._data.edge_index)[1], self._weights(self._data)
        return torch.bincount(ends, weights.double(), minlength=self._data.num_nodes).float()

    def _weights(self, data: Data) -> Tensor:
        """Return the weights of edges that the simple method reads."""
        if self._reach.weights is None:
            return torch.ones(data.edge_index.size(1))
        weights = nth_weights(data, self._reach.weights)
        if weights is None:
            raise ValueError(
                "edges: a feature of a new edge is negative, and the simple method of the run weighs edges by "
                "their features, none of which was negative in the training"
            )
        return weights

    @torch.no_grad()
    def forward(self, batch: Graph) -> Float[Tensor, "num_new columns"]:
        """Predict new nodes from what :meth:`take` returns; float32."""
        setup, kept, task = self._setup, self._kept, self._task
        config = setup.config
        own = None
        if kept is not None:
            read, asked = copy.copy(batch), None if self._reads_base else batch.target
            if not self._reach.weights and not self.needs_graph:
                # Trees would choose weights again, by the edges that are here.
                read.edge_attr = None
            scores = apply(kept.fitted, read, task, asked)
            own = scores[batch.target]
            if kept.share == 1:
                return own
            base = Base(kept.name, kept.title, scores, {}, kept.reads_labels, 0.0, {})
            batch = cast(Graph, bases.show(config, batch, base, kept.moments))
        with autocast(setup.device, config.train.precision):
            rows = task.predict(setup.model, batch.to(setup.device))[1].float().cpu()
        return rows if own is None or kept is None else fusion.mix(rows, own, kept.share)


def _sum_at(nodes: Tensor, ends: Tensor, values: Tensor) -> Float[Tensor, " num_nodes"]:
    """Sum values by the nodes where they end, all of which are among `nodes`, or are not read."""
    order = nodes.argsort()
    place = torch.searchsorted(nodes, ends, sorter=order).clamp(max=len(nodes) - 1)
    there = nodes[order[place]] == ends
    return torch.zeros(len(nodes)).index_add_(0, order[place[there]], values[there])


def _why_not(run: SavedRun[GNNConfig]) -> str | None:
    """Say why a run predicts no new rows; none if it does."""
    config, data = run.config, cast(Any, run.config.data)
    if run.shared is not None:
        return "it is a file without the data of the training"
    if not data.is_stored or data.has_rows:
        return "they need data=tables without a label table"
    tables = data.tables
    if len(tables.nodes) > 1 or len(tables.edges) > 1:
        names = ", ".join([*tables.nodes, *tables.edges])
        return f"they need one table of nodes and one of edges, and it has {names}"
    (nodes,) = tables.nodes.values()
    if nodes.path is None:
        return "its nodes have no table"
    if nodes.columns.text_neighbors:
        return "its features hold the ids of neighbours (data.nodes.text_neighbors)"
    if config.predicts_links:
        return "labels of nodes are predicted for them, and not links"
    if not config.evaluation.is_exact:
        return f"evaluation={config.evaluation.method} is random, and they need evaluation=exact"
    return new_data.why_not(config, 0.0)
