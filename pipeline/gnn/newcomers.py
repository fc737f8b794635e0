"""Predictions of new rows with edges to the nodes of the training, as of tables that have grown by them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.cache import load_own
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.gnn import answers, fusion, label_scores, neighborhood, new_data
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.ids import ids_of
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.nearby import Nearby, ReadsAll, why_all
from parallel_epochs.pipeline.gnn.predictor import build_predictor, predict_nodes
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import Base
from parallel_epochs.pipeline.gnn.table import Table
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.names import MASKS, TERMS
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

Row = Mapping[str, Any]
# A graph that has grown has none of these.
LEFT_OUT = ("names", "names_ptr", "store", "structure", "content_hash", FITTED, "on_disk", "types")


@dataclass(frozen=True)
class Asked:
    """New rows with the edges that join them to known nodes, encoded.

    Attributes:
        ids: of the rows.
    """

    ids: list[str]
    nodes: neighborhood.NewNodes


class Near(NamedTuple):
    """A request of :meth:`Newcomers.predict_each` that is answered from the neighbourhood of its rows."""

    place: int
    asked: Asked
    part: neighborhood.Surroundings
    is_bounded: bool | None


class Newcomers:
    """Predicts nodes that the tables of a training did not have.

    New rows and edges are encoded by what the training learned of its tables, and stand behind its own nodes, whose
    labels of training nodes are known. So the predictions are those of ``predict`` for tables that have grown by these
    rows, with data.known_labels=all where only training nodes have labels. The tables themselves are not read again.

    Only the neighbourhood of the new rows is computed, unless the answer needs the whole graph: :attr:`needs_graph`
    says why.

    Args:
        run: a run on one table of nodes and one of edges.

    Attributes:
        columns: names of the columns that a new row must have, by "rows" and "edges", the ids first, each with what is
            known of its cells: their kind, ``x-kind``, and categories, ``x-known``.
        needs_graph: why every answer takes a pass over the whole graph; empty where the neighbourhood is enough.

    Raises:
        ValueError: the run cannot predict new rows, and says why.
    """

    def __init__(self, run: SavedRun[GNNConfig]):
        self._run, config = run, run.config
        run.refuse_several("answers for new rows")
        if (reason := _why_not(run)) is not None:
            raise ValueError(f"{run.folder} answers no new rows: {reason}")
        state = run.load()
        self._state, self._device = state, choose_device(run.device)
        self._learned = new_data.read_learned(run, state)
        self._graph = load_own(config.data, config.cache_dir)
        if (source := self._graph.get("x_source")) != "data":
            raise ValueError(
                f"{run.folder} answers no new rows: its nodes have features of their edges ({source})"
            )
        self._names = ids_of(self._graph, None)
        self._known = dict(zip(self._names, range(len(self._names))))
        from parallel_epochs.pipeline.data.tables import (
            new_rows,
        )  # imports DuckDB, which other runs do not need

        self._encoder = new_rows.Encoder(
            cast(Any, config.data),
            cast(Tensor, self._learned.fitted),
            has_terms=TERMS[0] in self._graph,
        )
        self.columns = self._encoder.describe()
        self._model: torch.nn.Module | None = None
        self._nearby: Nearby | None = None
        self._round, self._epoch = new_data.place_of(state, is_best=run.is_best)
        self.needs_graph = self._open_nearby()

    def _open_nearby(self) -> str:
        """Set up the graph of the training, around whose nodes new ones are; returns why the answer needs all of it."""
        kept = fusion.read_kept(self._run)
        self._is_alone = kept is not None and kept.share == 1
        if kept is not None and not kept.share and not self._run.config.task.reads_base:
            kept = None  # the network answers alone
        if reason := why_all(self._learned, kept, self._graph):
            return reason
        self._setup = self._set_up(self._grow(None))
        try:
            self._nearby = Nearby(self._setup, self._learned, kept, self._grow(None))
        except ReadsAll as error:
            return str(error)
        finally:
            self._setup.base = None  # its scores of all nodes
        return ""

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
        (found,) = self.predict_each([(rows, edges)], max_neighbors=max_neighbors)
        if isinstance(found, Exception):
            raise found
        return found.frame()

    def predict_each(
        self,
        requests: Sequence[tuple[Sequence[Row], Sequence[Row]]],
        *,
        max_neighbors: int | None = None,
    ) -> list[Table | Exception]:
        """Predict the rows of several requests together, which do not meet; what is wrong with one is its answer.

        Args:
            requests: rows and edges of each, as for :meth:`predict`.
        """
        if max_neighbors is not None and max_neighbors < 1:
            raise ValueError(
                f"max_neighbors={max_neighbors}: give a number of at least 1, or leave it out to read all "
                "edges"
            )
        found = dict[int, Table | Exception]()
        near, size, no = list[Near](), 0, None if max_neighbors is None else False
        for place, (rows, edges) in enumerate(requests):
            try:
                asked = self.encode_rows(rows, edges)
                part = self.take(asked, max_neighbors)
                if part is None:
                    found[place] = self._table(asked, self._predict_grown(asked), is_bounded=no)
                    continue
            except Exception as error:
                found[place] = error
                continue
            if near and size + len(part.src) > neighborhood.MOST_EDGES:
                self._answer_near(near, found)
                near, size = [], 0
            near.append(Near(place, asked, part, no if no is None else part.is_bounded))
            size += len(part.src)
        if near:
            self._answer_near(near, found)
        return [found[place] for place in range(len(requests))]

    def take(
        self, asked: Asked, max_neighbors: int | None = None
    ) -> neighborhood.Surroundings | None:
        """Take the neighbourhood of new rows; none where the whole graph has to be predicted."""
        return None if self._nearby is None else self._nearby.take(asked.nodes, max_neighbors)

    def forward(self, parts: Sequence[neighborhood.Surroundings]) -> Tensor:
        """Predict new rows from their neighbourhoods, all in one batch [num_rows, columns], float32."""
        assert self._nearby is not None
        return self._nearby.forward(parts)

    def _answer_near(self, near: Sequence[Near], found: dict[int, Table | Exception]) -> None:
        try:
            rows = self.forward([each.part for each in near])
        except Exception as error:
            found.update((each.place, error) for each in near)
            return
        for each, own in zip(near, rows.split([each.part.num_new for each in near])):
            try:
                found[each.place] = self._table(
                    each.asked,
                    self._predicted(self._setup, each.asked, own),
                    is_bounded=each.is_bounded,
                )
            except ArithmeticError as error:
                found[each.place] = error

    def _predict_grown(self, asked: Asked) -> Predicted:
        """Predict new rows by a pass over the whole graph."""
        setup = self.grow(asked)
        new, rows = torch.arange(len(self._names), setup.data.num_nodes), None
        if self._is_alone:
            rows = cast(Base, setup.base).rows[new]  # the network has no part
        elif self._nearby is None:  # else its neighbourhood was too large
            rows = predict_nodes(setup, new)
        rows = build_predictor(setup)(self._round)[new] if rows is None else rows
        found = self._predicted(setup, asked, rows)
        mixed = answers.answer(
            setup, replace(found, graph=setup.data, chosen=new, is_whole=False), self._run
        )
        return replace(found, rows=mixed.rows, thresholds=mixed.thresholds)

    def grow(self, asked: Asked) -> Setup:
        """Set up the graph of the training with new rows behind its own, and the trained model."""
        return self._set_up(self._grow(asked))

    def _predicted(self, setup: Setup, asked: Asked, rows: Tensor) -> Predicted:
        size = len(asked.ids)
        graph = Graph(
            num_nodes=size,
            split_is_known=False,
            y=setup.data.y[:0],
            **{mask: torch.zeros(size, dtype=torch.bool) for mask in MASKS},
        )
        return Predicted(
            graph,
            setup.data,
            setup.task,
            setup.model,
            rows,
            self._epoch,
            ids=np.array(asked.ids, object),
        )

    def _table(self, asked: Asked, predicted: Predicted, *, is_bounded: bool | None) -> Table:
        if predicted.thresholds is None:
            predicted = replace(predicted, thresholds=self._thresholds)
        table = kind_of(self._run.config).table(predicted, GNNPredictConfig(str(self._run.folder)))
        if is_bounded is None:
            return table
        marks = np.array([is_bounded] * len(asked.ids), object)
        return replace(table, columns=lambda part: table.columns(part) | {"bounded": marks[part]})

    @cached_property
    def _thresholds(self) -> Tensor | None:
        return label_scores.read_thresholds(self._run, self._learned.out_channels)

    def _set_up(self, data: Graph) -> Setup:
        """Set up a graph, with the trained model."""
        setup = new_data.complete(
            self._run.config,
            self._run,
            self._state,
            self._learned,
            data,
            self._device,
            known_labels="all",
        )
        if self._model is None:
            with fitting(self._state):
                setup.model.load_state_dict(self._state["model"])
            self._model = setup.model.eval()
        setup.__dict__["model"] = self._model  # in place of one with first weights
        setup.__dict__["table"] = None
        return setup

    def encode_rows(self, rows: Sequence[Row], edges: Sequence[Row]) -> Asked:
        """Encode new rows and their edges.

        Raises:
            ValueError: a row lacks a column, a cell is wrong, an id is known already or names nothing.
        """
        one, (source, target, *_) = next(iter(self.columns["rows"])), self.columns["edges"]
        for name, given in (("rows", rows), ("edges", edges)):
            columns = list(self.columns[name])
            for number, row in enumerate(given):
                _check_row(f"{name}[{number}]", row, columns)
        texts, known = self._encoder.texts(rows, one), self._known
        if (
            lacks := next((number for number, text in enumerate(texts) if text is None), None)
        ) is not None:
            raise ValueError(
                f"rows[{lacks}]: {one} is empty; give the new row an id that no node has"
            )
        ids = [str(text) for text in texts]
        new = dict(zip(ids, range(len(known), len(known) + len(ids))))
        if len(new) < len(ids) or not ids:
            raise ValueError("rows must have different ids, and there must be one row at least")
        if (old := next((id for id in ids if id in known), None)) is not None:
            raise ValueError(
                f"rows: {old!r} is known already; ask for it by ids, or give the new row another id"
            )
        ends = [[str(id) for id in self._encoder.texts(edges, end)] for end in (source, target)]
        for number, pair in enumerate(zip(*ends)):
            if (
                lost := next((end for end in pair if end not in new and end not in known), None)
            ) is not None:
                raise ValueError(
                    f"edges[{number}]: {lost!r:.100} is neither a known id nor that of a new row"
                )
            if pair[0] not in new and pair[1] not in new:
                raise ValueError(
                    f"edges[{number}]: neither {pair[0]!r:.100} nor {pair[1]!r:.100} is a new row, and "
                    "edges between known nodes are those of the training"
                )
        numbers = np.array(
            [[new[end] if end in new else known[end] for end in column] for column in ends],
            np.int64,
        ).reshape(2, len(edges))
        x, terms = self._encoder.rows(rows, ends)
        found, attr = self._encoder.edges(edges, numbers, range(len(known), len(known) + len(ids)))
        return Asked(ids, neighborhood.NewNodes(x, found, attr, terms))

    def _grow(self, asked: Asked | None) -> Graph:
        """Put new nodes and their edges behind the graph of the training; none leave it as it is."""
        own, num_known = self._graph, len(self._names)
        grown = Graph(
            **{name: value for name, value in own.to_dict().items() if name not in LEFT_OUT}
        )
        if asked is None:
            return grown
        num_new = len(asked.ids)
        grown.x, grown.num_nodes = torch.cat([own.x, asked.nodes.x]), num_known + num_new
        grown.edge_index, order = sort_edges(
            torch.cat([own.edge_index.as_tensor(), asked.nodes.edges], dim=1), grown.num_nodes
        )
        if own.edge_attr is not None and asked.nodes.edge_attr is not None:
            grown.edge_attr = torch.cat([own.edge_attr, asked.nodes.edge_attr])[order]
        empty = torch.zeros(num_new, own.y.size(1), dtype=own.y.dtype)
        grown.y = torch.cat([own.y, empty.fill_(torch.nan) if own.y.is_floating_point() else empty])
        for mask in MASKS:
            grown[mask] = torch.cat([own[mask], torch.zeros(num_new, dtype=torch.bool)])
        if TERMS[0] in own:
            terms = cast(sp.csr_array, asked.nodes.terms)
            for name, values in zip(
                TERMS, (own[TERMS[0]][-1].item() + terms.indptr[1:], terms.indices, terms.data)
            ):
                grown[name] = torch.cat([own[name], torch.from_numpy(values).to(own[name].dtype)])
        return grown


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


def _check_row(place: str, row: object, columns: Sequence[str]) -> None:
    """Refuse a row that is no object, lacks a column, has another one, or holds a cell that is no single value."""
    if not isinstance(row, Mapping):
        raise ValueError(f"{place} must be an object with the columns {', '.join(columns)}")
    if (
        len(row) == len(columns)
        and all(name in row for name in columns)
        and all(
            cell is None
            or type(cell) in (int, float, bool)
            or type(cell) is str
            and cell.isprintable()
            for cell in row.values()
        )
    ):
        return  # as nearly all are, in a fifth of the time
    if missing := [name for name in columns if name not in row]:
        raise ValueError(f"{place} lacks the column {missing[0]!r}; write null for an empty cell")
    for name, cell in row.items():
        if name not in columns:
            raise ValueError(
                f"{place} has the column {name!r:.100}, which the model does not read; it reads "
                f"{', '.join(columns)}"
            )
        if cell is not None and type(cell) not in (str, int, float, bool):
            raise ValueError(
                f"{place}: the cell of {name} must be a text, a number or null, and is {cell!r:.50}"
            )
        if type(cell) is str and any(
            letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in cell
        ):
            raise ValueError(f"{place}: the cell of {name} holds a letter that no text has")
