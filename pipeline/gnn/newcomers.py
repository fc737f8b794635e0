"""Predictions of new rows with edges to the nodes of the training, as of tables that have grown by them."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import choose_dtype, from_csc
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import load_own, open_other
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.gnn import answers, new_data
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig, NewDataConfig
from parallel_epochs.pipeline.gnn.ids import ids_of
from parallel_epochs.pipeline.gnn.in_memory import written
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.predictor import build_predictor, predict_nodes
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.names import MASKS, TERMS
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

Row = Mapping[str, Any]
# The system's folder in memory, and the bytes that must be free there.
IN_MEMORY, LEAST_FREE = "/dev/shm", 1 << 28


class Newcomers:
    """Predicts nodes that the tables of a training did not have.

    New rows and edges are prepared by what the training learned of its tables, and put behind its own, whose labels of
    training nodes are known. So the predictions are those of ``predict`` for tables that have grown by these rows, with
    data.known_labels=all where only training nodes have labels. The tables themselves are not read again.

    Args:
        run: a run on one table of nodes and one of edges.

    Attributes:
        columns: names of the columns that a new row must have, by "rows" and "edges", the ids first.

    Raises:
        ValueError: the run cannot predict new rows, and says why.
    """

    def __init__(self, run: SavedRun[GNNConfig]):
        self._run, config = run, run.config
        if (reason := _why_not(run)) is not None:
            raise ValueError(f"{run.folder} answers no new rows: {reason}")
        state = run.load()
        self._state, self._device = state, choose_device(run.device)
        self._learned = new_data.read_learned(run, state)
        self._graph = load_own(config.data, config.cache_dir)
        if (source := self._graph.get("x_source")) != "data":
            raise ValueError(f"{run.folder} answers no new rows: its nodes have features of their edges ({source})")
        self._names = ids_of(self._graph, None)
        self._known = dict(zip(self._names, range(len(self._names))))
        self._model: torch.nn.Module | None = None
        data = cast(Any, config.data)
        self.columns = {"rows": [data.nodes.id, *(name for _, name in data.value_columns("nodes")),
                                 *(name for name, _ in data.text_columns()), *data.nodes.categories],
                        "edges": [data.edges.source, data.edges.target, data.edges.relation,
                                  *(name for _, name in data.value_columns("edges"))]}
        self.columns = {name: [column for column in dict.fromkeys(found) if column is not None]
                        for name, found in self.columns.items()}

    def predict(self, rows: Sequence[Row], edges: Sequence[Row] = ()) -> pd.DataFrame:
        """Predict new rows, as a table with the columns of ``predict output=TABLE``.

        Args:
            rows: of the table of nodes, each with an id that no node has.
            edges: of the table of edges, each with a new row at one end or both.

        Raises:
            ValueError: names the row, the column or the id that is wrong.
        """
        setup = self.grow(rows, edges)
        new = torch.arange(len(self._names), setup.data.num_nodes)
        round_, epoch = new_data.place_of(self._state, is_best=self._run.is_best)
        found_rows = predict_nodes(setup, new)
        predicted = Predicted(setup.data, setup.data, setup.task, setup.model, torch.empty(0), epoch, new,
                              is_whole=found_rows is None, ids=np.concatenate([self._names, [
                                  str(row[self.columns["rows"][0]]) for row in rows]]))
        predicted = replace(predicted, rows=build_predictor(setup)(round_) if found_rows is None else found_rows)
        predicted = answers.answer(setup, predicted, self._run)
        return setup.kind.table(predicted, GNNPredictConfig(str(self._run.folder))).frame()

    def grow(self, rows: Sequence[Row], edges: Sequence[Row] = ()) -> Setup:
        """Set up the graph of the training with new rows behind its own, and the trained model; see :meth:`predict`."""
        frames = self._frames(rows, edges)
        with written(frames, self._run.config.data, self._run.folder, {}) as found:
            asked = keys.replaced(GNNPredictConfig(str(self._run.folder)), {**found, "data.unknown": "error"})
            config = keys.replaced(self._run.config, new_data.choose(self._run, cast(NewDataConfig, asked.data)))
            config.data.leave_labels()
            config.data.check()
            part = open_other(config.data, self._learned, _scratch(config.cache_dir))
        setup = new_data.complete(self._run.config, self._run, self._state, self._learned, self._grow(part, len(rows)),
                                  self._device, known_labels="all")
        if self._model is None:
            with fitting(self._state):
                setup.model.load_state_dict(self._state["model"])
            self._model = setup.model
        setup.__dict__["model"] = self._model  # in place of one with first weights
        setup.__dict__["table"] = None
        return setup

    def _frames(self, rows: Sequence[Row], edges: Sequence[Row]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Make small tables of the new rows, the known nodes that edges name, and the edges.

        Raises:
            ValueError: a row lacks a column, an id is known already or names nothing.
        """
        one, *_ = self.columns["rows"]
        for name, given in (("rows", rows), ("edges", edges)):
            for number, row in enumerate(given):
                _check_row(f"{name}[{number}]", row, self.columns[name])
        ids = [str(row[one]) for row in rows]
        if len(set(ids)) < len(ids) or not ids:
            raise ValueError("rows must have different ids, and there must be one row at least")
        if known := [id for id in ids if id in self._known]:
            raise ValueError(f"rows: {known[0]!r} is known already; ask for it by ids, or give the new row another id")
        source, target, *_ = self.columns["edges"]
        new, named = set(ids), dict[str, None]()
        for number, edge in enumerate(edges):
            ends = [str(edge[source]), str(edge[target])]
            for end in ends:
                if end not in new and end not in self._known:
                    raise ValueError(f"edges[{number}]: {end!r:.100} is neither a known id nor that of a new row")
            if not new & {*ends}:
                raise ValueError(f"edges[{number}]: neither {ends[0]!r:.100} nor {ends[1]!r:.100} is a new row, and "
                                 "edges between known nodes are those of the training")
            named |= dict.fromkeys(end for end in ends if end not in new)
        # Known nodes have features already: the cells of a new row stand for theirs, which are right ones at least.
        nodes = [{**row, one: id} for row, id in zip(rows, ids)] + [{**rows[0], one: id} for id in named]
        return _as_texts(nodes, self.columns["rows"]), _as_texts(edges, self.columns["edges"])

    def _grow(self, part: Graph, num_new: int) -> Graph:
        """Put the first nodes of a small graph, and their edges, behind the graph of the training."""
        own, num_known = self._graph, len(self._names)
        others = [self._known[name] for name in ids_of(part, None)[num_new:]]
        numbers = torch.tensor([*range(num_known, num_known + num_new), *others])
        ends = part.edge_index.as_tensor().long()
        joins = (ends < num_new).any(0)  # the others are loops that were added to known nodes
        new, order = sort_edges(numbers[ends[:, joins]], num_known + num_new)
        edge_index, is_new = _insert(own.edge_index, new, num_known)
        grown = Graph(edge_index=edge_index, x=torch.cat([own.x, part.x[:num_new]]), num_nodes=num_known + num_new)
        if own.edge_attr is not None:
            grown.edge_attr = own.edge_attr.new_empty(len(is_new), own.edge_attr.size(1))
            grown.edge_attr[is_new], grown.edge_attr[~is_new] = part.edge_attr[joins][order], own.edge_attr
        empty = torch.zeros(num_new, own.y.size(1), dtype=own.y.dtype)
        grown.y = torch.cat([own.y, empty.fill_(torch.nan) if own.y.is_floating_point() else empty])
        for mask in MASKS:
            grown[mask] = torch.cat([own[mask], torch.zeros(num_new, dtype=torch.bool)])
        if TERMS[0] in own:
            grown.update(_join_terms(own, part, num_new))
        for name, value in own.to_dict().items():
            if name not in grown and name not in ("names", "names_ptr", "store", "structure", "content_hash", FITTED,
                                                  "text_ptr", "text_terms", "text_weights", "on_disk", "types"):
                grown[name] = value
        return grown


def _insert(own: EdgeIndex, new: EdgeIndex, num_known: int) -> tuple[EdgeIndex, Tensor]:
    """Insert sorted edges that have a new node at an end, whose number is above all others, into sorted edges.

    Returns:
        All edges, sorted by destination, then source, and which of them are new [num_edges].
    """
    (indptr, _), _ = own.get_csc()
    (others, _), _ = new.get_csc()  # of all nodes
    is_new = torch.zeros(own.size(1) + new.size(1), dtype=torch.bool)
    # Sources that are new stand behind the others of their destination.
    is_new[indptr[(new.as_tensor()[1].long() + 1).clamp(max=num_known)].long() + torch.arange(new.size(1))] = True
    edges = torch.empty(2, len(is_new), dtype=choose_dtype(len(others) - 1, len(is_new)))
    for row in (0, 1):
        edges[row, is_new] = new.as_tensor()[row].to(edges.dtype)
        edges[row, ~is_new] = own.as_tensor()[row].to(edges.dtype)
    ends = torch.cat([indptr, indptr[-1:].expand(len(others) - len(indptr))])
    return from_csc(edges, ends + others.to(ends.dtype)), is_new


def _scratch(cache_dir: str) -> str:
    """Choose the folder in which a few rows are prepared: in memory, where nothing waits for a disk, if it has room."""
    has_room = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= LEAST_FREE
    return IN_MEMORY if has_room else cache_dir


def _why_not(run: SavedRun[GNNConfig]) -> str | None:
    """Say why a run predicts no new rows; none if it does."""
    config = run.config
    if run.others:
        return f"it is a mean of {1 + len(run.others)} runs"
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
    if missing := [name for name in columns if name not in row]:
        raise ValueError(f"{place} lacks the column {missing[0]!r}; write null for an empty cell")
    for name, cell in row.items():
        if name not in columns:
            raise ValueError(f"{place} has the column {name!r:.100}, which the model does not read; it reads "
                             f"{', '.join(columns)}")
        if cell is not None and type(cell) not in (str, int, float, bool):
            raise ValueError(f"{place}: the cell of {name} must be a text, a number or null, and is {cell!r:.50}")
        if type(cell) is str and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in cell):
            raise ValueError(f"{place}: the cell of {name} holds a letter that no text has")


def _as_texts(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Make a table of texts, as a file of text would hold it, whatever the cells of a column are."""
    def text(cell: object) -> str | None:
        if isinstance(cell, bool):
            return str(cell).lower()
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        return None if cell is None else str(cell)

    return pd.DataFrame({name: pd.array([text(row[name]) for row in rows], "string") for name in columns})


def _join_terms(own: Graph, part: Graph, num_new: int) -> dict[str, Tensor]:
    """Put the terms of the texts of new nodes behind those of the training."""
    ptr, terms, weights = (part[name] for name in TERMS)
    last = int(ptr[num_new])
    return {TERMS[0]: torch.cat([own[TERMS[0]], own[TERMS[0]][-1] + ptr[1:num_new + 1]]),
            TERMS[1]: torch.cat([own[TERMS[1]], terms[:last]]), TERMS[2]: torch.cat([own[TERMS[2]], weights[:last]])}
