"""Predictions of new rows with edges to the nodes of the training, as of tables that have grown by them."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.pipeline.data.cache import load_own
from parallel_epochs.pipeline.data.degrees import add_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.data.propagate import propagate
from parallel_epochs.pipeline.gnn.base import bases, fusion, label_scores
from parallel_epochs.pipeline.gnn.base.fit import Base, apply
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import autocast
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.closure import REACH, Closure, Encoder, Reach, Row
from parallel_epochs.pipeline.gnn.predict.ids import ids_of
from parallel_epochs.pipeline.gnn.predict.table import Table
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import MASKS, TERMS
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

# A graph that has grown has none of these.
LEFT_OUT = ("names", "names_ptr", "store", "structure", "content_hash", FITTED, "on_disk", "types")


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
        self._run, config = run, run.config
        reason = _why_not(run)
        if reason is None:
            state = run.load()
            self._learned = learned = new_data.read_learned(run, state)
            own = load_own(config.data, config.cache_dir)
            if (source := own.get("x_source")) != "data":
                reason = f"its nodes have features of their edges ({source})"
        if reason is not None:
            raise ValueError(f"{run.folder} answers no new rows: {reason}")
        self._names = ids_of(own, None)
        _, self._epoch = new_data.place_of(state, is_best=run.is_best)
        device = choose_device(run.device)
        self._setup = setup = new_data.complete(
            config, run, state, learned, _copy(own), device, known_labels="all"
        )
        with fitting(state):
            setup.model.load_state_dict(state["model"])
        setup.model.eval()
        setup.base = None  # its scores of all nodes
        self._data = data = copy.copy(setup.bare or setup.data)
        known = dict(zip(self._names, range(len(self._names))))
        self._encoder = Encoder(run, learned, known, has_terms=TERMS[0] in data)
        self.columns, self.encode = self._encoder.columns, self._encoder.encode
        kept = fusion.read_kept(run)
        if kept is not None and not kept.share and not config.task.reads_base:
            kept = None  # the network answers alone
        self._kept = kept
        if config.data.propagate:
            own = _copy(own)
            if learned.degrees is not None:
                add_degrees(own, learned.degrees, num_last=config.data.num_last)
            data.x = own.x
        num_hops = self._count_hops() + config.data.propagate
        self._closure = Closure(
            data,
            learned,
            cast(NodeTask, setup.task),
            self._reach,
            seed=config.seed,
            num_hops=num_hops,
            is_whole=bool(self.needs_graph),
            knows_sums=kept is not None and not self.needs_graph,
        )
        self.take = self._closure.take

    def _count_hops(self) -> int:
        """Count the hops that an answer reads, and find out whether it reads the whole graph."""
        setup, kept = self._setup, self._kept
        is_alone = kept is not None and kept.share == 1
        num_hops, self.needs_graph = (0, "") if is_alone else count_hops(setup.model)
        self._reads_base = setup.config.task.reads_base and not is_alone
        self._reach = Reach(0)
        if kept is not None:
            reach = REACH.get(kept.fitted["name"], lambda *_: Reach(None))
            # The models of other folds read as far.
            self._reach = reach(kept.fitted["models"][0], self._data)
            if self._reach.num_hops is None:
                self.needs_graph = f"a simple method reads the whole graph ({kept.title})"
            else:  # the network may read it at each node that the network reads
                own_hops = self._reach.num_hops
                num_hops = num_hops + own_hops if self._reads_base else max(num_hops, own_hops)
        return num_hops

    def predict(
        self, rows: Sequence[Row], edges: Sequence[Row] = (), *, max_neighbors: int | None = None
    ) -> pd.DataFrame:
        """Predict new rows, as a table with the columns of ``predict output=TABLE``.

        Args:
            rows: of the table of nodes, each with an id that no node has.
            edges: of the table of edges, each with a new row at one end or both.
            max_neighbors: edges that are read of a known node, at most. The table has then a column ``bounded``, which
                is true where some were left out. None: all edges.

        Raises:
            ValueError: names the row, the column or the id that is wrong.
        """
        return self._predict(rows, edges, max_neighbors).frame()

    def predict_each(
        self,
        requests: Sequence[tuple[Sequence[Row], Sequence[Row]]],
        *,
        max_neighbors: int | None = None,
    ) -> list[Table | Exception]:
        """Predict the rows of several requests, which do not meet; what is wrong with one is its answer.

        Args:
            requests: rows and edges of each, as for :meth:`predict`.
        """
        found = list[Table | Exception]()
        for rows, edges in requests:
            try:
                found.append(self._predict(rows, edges, max_neighbors))
            except Exception as error:
                found.append(error)
        return found

    def _predict(
        self, rows: Sequence[Row], edges: Sequence[Row], max_neighbors: int | None
    ) -> Table:
        if max_neighbors is not None and max_neighbors < 1:
            raise ValueError(
                f"max_neighbors={max_neighbors}: give a number of at least 1, or leave it out to read all "
                "edges"
            )
        new, setup = self.encode(rows, edges), self._setup
        batch, is_bounded = self.take(new, max_neighbors)
        size = len(new.ids)
        masks = {mask: torch.zeros(size, dtype=torch.bool) for mask in MASKS}
        graph = Graph(num_nodes=size, split_is_known=False, y=setup.data.y[:0], **masks)
        predicted = Predicted(
            graph,
            setup.data,
            setup.task,
            setup.model,
            self.forward(batch),
            self._epoch,
            ids=np.array(new.ids, object),
            thresholds=self._thresholds,
        )
        kind = kind_of(self._run.config)
        table = kind.table(predicted, GNNPredictConfig(str(self._run.folder)))
        if max_neighbors is None:
            return table
        marks = np.array([is_bounded] * size, object)
        return replace(table, columns=lambda part: table.columns(part) | {"bounded": marks[part]})

    @cached_property
    def _thresholds(self) -> Tensor | None:
        return label_scores.read_thresholds(self._run, self._learned.out_channels)

    @torch.no_grad()
    def forward(self, batch: Graph) -> Float[Tensor, "num_new columns"]:
        """Predict new nodes from what :meth:`take` returns; float32."""
        setup, kept = self._setup, self._kept
        config, task = setup.config, cast(NodeTask, setup.task)
        if config.data.propagate:
            batch.x, _ = propagate(batch, config.data.propagate, self._learned.hops)
        own = None
        if kept is not None:
            read, asked = copy.copy(batch), None if self._reads_base else batch.target
            if not self._reach.weights and not self.needs_graph:
                read.edge_attr = (
                    None  # trees would choose weights again, by the edges that are here
                )
            scores = apply(kept.fitted, read, task, asked)
            own = task.from_learned(scores[batch.target])
            if kept.share == 1:
                return own
            base = Base(kept.name, kept.title, scores, {}, kept.reads_labels, 0.0, {})
            batch = cast(Graph, bases.show(config, batch, base, kept.moments))
        with autocast(setup.device, config.train.precision):
            rows = task.predict(setup.model, batch.to(setup.device))[1].float().cpu()
        return rows if own is None or kept is None else fusion.mix(rows, own, kept.share)


def _copy(own: Graph) -> Graph:
    return Graph(**{name: value for name, value in own.to_dict().items() if name not in LEFT_OUT})


def _why_not(run: SavedRun[GNNConfig]) -> str | None:
    """Say why a run predicts no new rows; none if it does."""
    config = run.config
    if run.shared is not None:
        return "it is a file without the data of the training"
    if not config.data.is_stored or cast(Any, config.data).is_typed:
        return "they need data=tables with one table of nodes and one of edges"
    if cast(Any, config.data).nodes.path is None:
        return "its nodes have no table"
    if cast(Any, config.data).nodes.text_neighbors:
        return "its features hold the ids of neighbours (data.nodes.text_neighbors)"
    if config.predicts_links:
        return "labels of nodes are predicted for them, and not links"
    if not config.evaluation.is_exact:
        return f"evaluation={config.evaluation.method} is random, and they need evaluation=exact"
    return new_data.why_not(config, 0.0)
