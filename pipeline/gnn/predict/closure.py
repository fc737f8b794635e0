"""New rows as nodes of the graph of a training, and all that their predictions read of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import open_other
from parallel_epochs.pipeline.data.degrees import count_degrees, scale_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.propagation import nth_weights, weights_of_labels
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.in_memory import written
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.sampling import GrowingSampler
from parallel_epochs.pipeline.names import MASKS, TERMS, WHOLE_DEGREE, WHOLE_MEAN
from parallel_epochs.pipeline.run.saved import SavedRun

Row = Mapping[str, Any]


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


@dataclass(frozen=True)
class NewNodes:
    """New nodes with edges to a graph, all of them behind its own.

    Attributes:
        ids: of the nodes.
        x: features of the new nodes, without degrees, float32.
        edges: ends of the edges, sorted by destination, then source, int64; a new node is at one end or both.
        edge_attr: features of the edges, float32; none without them.
        terms: where the terms of each new node begin, and these with their TF-IDF; none where no model reads them.
    """

    ids: list[str]
    x: Float[Tensor, "num_new channels"]
    edges: Int[Tensor, "2 num_edges"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None
    terms: tuple[Tensor, Tensor, Tensor] | None


class Encoder:
    """Encodes new rows and their edges by the code that encodes tables.

    Args:
        run: a run on one table of nodes and one of edges.
        learned: what it learned of its tables.
        known: the number of each node of the training, by its id.
        has_terms: whether a model reads the terms of texts.

    Attributes:
        columns: see :class:`pipeline.gnn.predict.newcomers.Newcomers`.
    """

    def __init__(
        self,
        run: SavedRun[GNNConfig],
        learned: Learned,
        known: dict[str, int],
        *,
        has_terms: bool,
    ):
        # DuckDB, which other runs do not need.
        from parallel_epochs.pipeline.data.tables import new_rows

        self._run, self._learned, self._known, self._has_terms = run, learned, known, has_terms
        self._tables = new_rows
        self.columns = new_rows.describe(cast(Any, run.config.data), cast(Tensor, learned.fitted))

    def encode(self, rows: Sequence[Row], edges: Sequence[Row]) -> NewNodes:
        """Encode new rows and their edges by the code that encodes tables.

        Raises:
            ValueError: a row lacks a column, a cell is wrong, an id is known already or names nothing.
        """
        run, known, tables = self._run, self._known, self._tables
        for what, given in (("rows", rows), ("edges", edges)):
            tables.check(what, given, self.columns[what])
        id_column, (source, target, *_) = next(iter(self.columns["rows"])), self.columns["edges"]
        ids = [tables.text_of(row[id_column]) or "" for row in rows]
        if "" in ids:
            raise ValueError(
                f"rows[{ids.index('')}]: {id_column} is empty; give the new row an id that no node has"
            )
        if len(set(ids)) < len(ids) or not ids:
            raise ValueError("rows must have different ids, and there must be one row at least")
        if old := [id for id in ids if id in known]:
            raise ValueError(
                f"rows: {old[0]!r} is known already; ask for it by ids, or give the new row another id"
            )
        numbers, others = dict(zip(ids, range(len(known), len(known) + len(ids)))), list[str]()
        for place, edge in enumerate(edges):
            ends = [tables.text_of(edge[end]) for end in (source, target)]
            for end in ends:
                if end not in numbers and end not in known:
                    raise ValueError(
                        f"edges[{place}]: {end!r:.100} is neither a known id nor that of a new row"
                    )
            own = [str(end) for end in ends if end not in numbers]
            if len(own) == 2:
                raise ValueError(
                    f"edges[{place}]: neither {own[0]!r:.100} nor {own[1]!r:.100} is a new row, and edges "
                    "between known nodes are those of the training"
                )
            others += own
        others = list(dict.fromkeys(others))
        # The known ends of edges need a row too; its features are not read.
        fillers = [{**rows[0], id_column: id} for id in others]
        both = (
            tables.to_table([*rows, *fillers], self.columns["rows"]),
            tables.to_table(edges, self.columns["edges"]),
        )
        with written(both, run.config.data, run.folder, {}) as found:
            asked = keys.replaced(GNNPredictConfig(str(run.folder)), found)
            config = keys.replaced(run.config, new_data.choose(run, asked.data)).data
            config.leave_labels()
            part = open_other(config, self._learned, run.config.cache_dir)
        place_of = torch.tensor([*numbers.values(), *(known[id] for id in others)])
        ends = place_of[plain_edges(part.edge_index).long()]
        is_own = (ends >= len(known)).any(0)  # not a self-loop of a known node
        order = np.lexsort(ends[:, is_own].numpy())
        attr = None if part.edge_attr is None else part.edge_attr[is_own][order]
        terms = None
        if self._has_terms:
            ptr = part[TERMS[0]][: len(ids) + 1]
            terms = ptr, *(part[name][: int(ptr[-1])] for name in TERMS[1:])
        return NewNodes(ids, part.x[: len(ids)].clone(), ends[:, is_own][:, order], attr, terms)


class Closure:
    """Takes what the predictions of new nodes read of the graph that has grown by them.

    Args:
        data: the graph of the training.
        learned: what the run learned of its tables.
        task: of the run.
        reach: how far the simple method reads.
        seed: of the hash that draws neighbours.
        num_hops: hops that an answer reads.
        is_whole: whether an answer reads the whole graph.
        knows_sums: whether the simple method reads sums of weights that it cannot see in a part of the graph.
    """

    def __init__(
        self,
        data: Graph,
        learned: Learned,
        task: NodeTask,
        reach: Reach,
        *,
        seed: int,
        num_hops: int,
        is_whole: bool,
        knows_sums: bool,
    ):
        self._data, self._learned, self._task, self._reach = data, learned, task, reach
        self._seed, self._num_hops = seed, num_hops
        self._is_whole, self._knows_sums = is_whole, knows_sums
        self._sampler = GrowingSampler(data.edge_index)

    def take(self, new: NewNodes, max_neighbors: int | None = None) -> tuple[Graph, bool]:
        """Take all that the predictions of new nodes read of the graph that has grown by them; these come first.

        Args:
            max_neighbors: edges of the graph that are taken of a known node, at most, drawn by a hash; none: all.

        Returns:
            A batch, and whether edges of known nodes are left out.

        Raises:
            ValueError: a new edge has a negative feature, and the simple method takes these for weights.
        """
        data, num_known, num_new = self._data, self._data.num_nodes, len(new.ids)
        seeds = torch.arange(num_known, num_known + num_new)
        hops = [max_neighbors or -1] * self._num_hops
        if self._is_whole:
            seeds, hops = torch.cat([seeds, torch.arange(num_known)]), [max_neighbors or -1]
        key = mix(self._seed + GOLDEN & MASK)
        edge_index, nodes, place, is_bounded = self._sampler.sample_around(
            seeds, key, hops, math.inf, new.edges
        )
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
        if self._knows_sums:
            batch[WHOLE_MEAN] = self._mean
            batch[WHOLE_DEGREE] = self._degrees(nodes, new)
        if new.terms is not None:
            ptr, *values = (data[name] for name in TERMS)
            counts = [new.terms[0].diff(), ptr[known + 1] - ptr[known]]
            first = torch.repeat_interleave(ptr[known] - counts[1].cumsum(0) + counts[1], counts[1])
            found = first + torch.arange(len(first))
            batch[TERMS[0]] = torch.cat([ptr.new_zeros(1), torch.cat(counts).cumsum(0)]).to(ptr)
            for name, own, more in zip(TERMS[1:], values, new.terms[1:], strict=True):
                batch[name] = torch.cat([more.to(own.dtype), own[found]])
        return batch, is_bounded

    def _features(self, nodes: Tensor, new: NewNodes) -> Tensor:
        x, (num_new, width) = self._data.x, new.x.shape
        found = x.new_empty(len(nodes), x.size(1))
        found[:num_new, :width], found[num_new:] = new.x, x[nodes[num_new:]]
        moments = self._learned.degrees
        if moments is not None:
            counts = torch.zeros(len(nodes), moments.size(1), dtype=torch.int64)
            counts[num_new:] = self._counts[nodes[num_new:]].long()
            for column, ends in enumerate(new.edges.flip(0)[: counts.size(1)]):
                counts[:, column] += _sum_at(nodes, ends, torch.ones(len(ends))).long()
            found[:, width:] = scale_degrees(counts.int().numpy(), moments)
        return found

    @cached_property
    def _counts(self) -> Tensor:
        assert self._learned.degrees is not None
        return torch.from_numpy(count_degrees(self._data, self._learned.degrees.size(1)))

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

    def _degrees(self, nodes: Tensor, new: NewNodes) -> Tensor:
        """Return the sums of the weights of all edges that end at some nodes, with the new edges."""
        added = Graph(edge_index=new.edges, edge_attr=new.edge_attr, num_nodes=0)
        found = _sum_at(nodes, new.edges[1], self._weights(added))
        found[len(new.ids) :] += self._sums[nodes[len(new.ids) :]]
        return found


def _sum_at(nodes: Tensor, ends: Tensor, values: Tensor) -> Float[Tensor, " num_nodes"]:
    """Sum values by the nodes where they end, all of which are among `nodes`, or are not read."""
    order = nodes.argsort()
    place = torch.searchsorted(nodes, ends, sorter=order).clamp(max=len(nodes) - 1)
    there = nodes[order[place]] == ends
    return torch.zeros(len(nodes)).index_add_(0, order[place[there]], values[there])
