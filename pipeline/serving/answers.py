"""Answers of a trained model: from a table of all known rows, or by a computation."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.run.words import listed
from parallel_epochs.pipeline.serving.rows import Refused, Rows
from parallel_epochs.pipeline.serving.worker import Compute


@dataclass(frozen=True)
class Ask:
    """A question that needs a computation.

    Attributes:
        compute: answers several such questions at once.
        item: the question.
    """

    compute: Compute
    item: object


def ask(function: Callable[..., Any], *arguments: object) -> Ask:
    """Return a question that is answered by a call."""
    return Ask(one_by_one, (function, arguments))


class Answers:
    """The answers of a model whose rows have been predicted.

    Args:
        model: a trained model, :class:`pipeline.model.Model`.
        max_rows: rows of a request, at most.
        max_neighbors: edges that are read of a known neighbour of new rows, at most; none: all.

    Attributes:
        known: the rows of the training data; none for links, whose pairs are predicted.
        num_ids: number of the ids that can be asked for.
        columns: of new rows and edges, each with what is known of its cells; none where no new rows are answered, and
            `no_newcomers` says why.
    """

    def __init__(self, model: Any, *, max_rows: int, max_neighbors: int | None = None):
        self.model, self.folder, self._max_rows = model, str(model.run.folder), max_rows
        self._max_neighbors = max_neighbors
        config = model.run.config
        self.trainer, self.learns_vectors = config.trainer.name, not config.averages_runs
        self.predicts_links = not self.learns_vectors and config.predicts_links
        self.num_ids, self.classes = len(model.ids), model.classes
        self.known: Rows | None = None
        self._tables = dict[str, Rows]()
        if self.learns_vectors:
            self.known = Rows(
                pd.DataFrame({"id": model.ids, "vector": list(model.vectors())}), model.ids
            )
        elif not self.predicts_links:
            self.known = self._tables["all"] = Rows(model.predict(table=True), model.ids)
        self._newcomers: Any = None
        self.no_newcomers = (
            f"{self.folder} answers no new rows: only models of the labels of nodes do"
        )
        if self.known is not None and not self.learns_vectors:
            try:
                self._newcomers = model.newcomers()
            except ValueError as error:
                self.no_newcomers = one_line(error)
        self.columns: dict[str, dict[str, dict]] = (
            {} if self._newcomers is None else self._newcomers.columns
        )

    def predict(self, request: Mapping[str, Any]) -> list[bytes] | Ask:
        """Answer /predict: rows of ids at once; pairs and triples by a computation.

        Raises:
            ValueError: the request is wrong, and the message says how.
        """
        if self.trainer == "knowledge" and "triples" in request:
            return self._triples(request)
        if self.predicts_links:
            check_names(request, "pairs")
            pairs = lists_of(request, "pairs", 2, self._max_rows)
            return ask(self._score_pairs, pairs)
        if "rows" in request:
            return self._predict_new(request)
        check_names(
            request,
            "ids",
            *["columns"] * (not self.learns_vectors),
            *["rows", "edges"] * bool(self.columns),
        )
        ids, columns = texts_of(request, "ids", self._max_rows), request.get("columns", "all")
        if type(columns) is not str:
            raise ValueError(f"columns must be a text, such as all, and is {columns!r:.50}")
        if columns == "all" or self.learns_vectors:
            assert self.known is not None
            return self.known.find(ids)
        return ask(self._narrow, columns, ids)

    def top(self, request: Mapping[str, Any]) -> Ask:
        """Answer /top: the likeliest targets of nodes, the answers to triples, or the nearest vectors.

        Raises:
            ValueError: the request is wrong, or the model ranks nothing.
        """
        if self.trainer == "knowledge" and "triples" in request:
            return self._triples(request)
        if not (self.learns_vectors or self.predicts_links):
            raise Refused(
                404,
                f"{self.folder} ranks nothing: /top is for runs of task=link, and for those that "
                "learned vectors or triples",
            )
        check_names(request, "ids", "k", "candidates", "filtered")
        k, ids = (
            whole_of(request, "k", 10, self._max_rows),
            texts_of(request, "ids", self._max_rows),
        )
        if k * len(ids) > self._max_rows:
            raise Refused(
                413,
                f"k={k} for {len(ids):,} ids are more than the {self._max_rows:,} rows of a request",
            )
        candidates = (
            texts_of(request, "candidates", self.num_ids) if "candidates" in request else None
        )
        return ask(self._rank, k, ids, candidates, truth_of(request, "filtered", True))

    def explain(self, request: Mapping[str, Any]) -> Ask:
        """Answer /explain: which columns, neighbours and edges carry the prediction of a row.

        Raises:
            ValueError: the request is wrong.
        """
        check_names(request, "id", "top")
        top = whole_of(request, "top", 10, 1000)
        if self.predicts_links:
            return ask(self._explain, *lists_of({"id": [request.get("id")]}, "id", 2, 1), top)
        return ask(self._explain, *texts_of({"id": [request.get("id")]}, "id", 1), top)

    def _triples(self, request: Mapping[str, Any]) -> Ask:
        check_names(request, "triples", "k", "filtered")
        triples = lists_of(request, "triples", 3, self._max_rows)
        k, filtered = (
            whole_of(request, "k", 10, self._max_rows),
            truth_of(request, "filtered", True),
        )
        if k * len(triples) > self._max_rows:
            raise Refused(
                413,
                f"k={k} for {len(triples):,} triples are more than the {self._max_rows:,} rows of a "
                "request",
            )
        return ask(self._answer, k, triples, filtered)

    def _predict_new(self, request: Mapping[str, Any]) -> Ask:
        check_names(request, "rows", "edges")
        if self._newcomers is None:
            raise ValueError(self.no_newcomers)
        rows = _list_of(request, "rows", self._max_rows)
        edges = (
            _list_of(request, "edges", 100 * self._max_rows)
            if request.get("edges", []) != []
            else []
        )
        return Ask(self._new_rows, (rows, edges))

    def _new_rows(self, asked: Sequence[tuple[list, list]]) -> list[Any]:
        """Answer several requests with new rows together; what is wrong with one is its answer alone."""
        found = self._newcomers.predict_each(asked, max_neighbors=self._max_neighbors)
        return [
            each
            if isinstance(each, Exception)
            else Rows(each.columns(slice(0, each.num_rows))).all()
            for each in found
        ]

    def _score_pairs(self, pairs: list[list[str]]) -> list[bytes]:
        return Rows(self.model.predict(pairs=pairs, table=True)).all()

    def _answer(self, k: int, triples: list[list[str]], filtered: bool) -> list[bytes]:
        return Rows(self.model.predict(triples=triples, top=k, filtered=filtered)).all()

    def _rank(
        self, k: int, ids: list[str], candidates: list[str] | None, filtered: bool
    ) -> list[bytes]:
        return Rows(self.model.top(k, sources=ids, candidates=candidates, filtered=filtered)).all()

    def _narrow(self, columns: str, ids: list[str]) -> list[bytes]:
        """Answer with fewer columns, from a table that is made for the first such request."""
        if columns not in self._tables:
            self._tables[columns] = Rows(
                self.model.predict(table=True, columns=columns), self.model.ids
            )
        return self._tables[columns].find(ids)

    def _explain(self, one: str | list[str], top: int) -> list[bytes]:
        return [json.dumps(self.model.explain(one, top=top).to_dict(), default=_plain).encode()]


def _plain(value: object) -> object:
    """Return a number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else str(value)


def one_by_one(asked: Sequence[tuple[Callable[..., Any], tuple]]) -> Iterator[Any]:
    """Call functions with their arguments; what one raises is its answer."""
    for function, arguments in asked:
        try:
            yield function(*arguments)
        except Exception as error:
            yield error


def check_names(request: Mapping[str, Any], *known: str) -> None:
    """Refuse a name that a request may not have; a ValueError names it."""
    for name in request:
        if name not in known:
            raise ValueError(f"{name!r:.100} is unknown here; a request may have {listed(known)}")


def _list_of(request: Mapping[str, Any], name: str, most: int) -> list:
    """Return a list that has an item at least."""
    found = request.get(name)
    if not isinstance(found, list) or not found:
        seen = f", and is {found!r:.50}" if name in request else ""
        raise ValueError(f"{name} must be a list with one item at least{seen}")
    if len(found) > most:
        raise Refused(413, f"{name} has {len(found):,} items, and {most:,} are allowed")
    return found


def texts_of(request: Mapping[str, Any], name: str, most: int) -> list[str]:
    """Return a list of ids, texts or whole numbers, as texts."""
    found = _list_of(request, name, most)
    for item in found:
        if type(item) is not str and type(item) is not int:
            raise ValueError(f"{name}: {item!r:.50} is no id; an id is a text or a whole number")
    return [str(item) for item in found]


def lists_of(request: Mapping[str, Any], name: str, length: int, most: int) -> list[list[str]]:
    """Return a list of pairs or triples of ids."""
    found = _list_of(request, name, most)
    for item in found:
        if not isinstance(item, list) or len(item) != length:
            raise ValueError(f"{name}: {item!r:.50} is not a list of {length} ids")
    return [texts_of({name: item}, name, length) for item in found]


def whole_of(request: Mapping[str, Any], name: str, usual: int, most: int) -> int:
    """Return a whole number from 1 to a largest one."""
    found = request.get(name, usual)
    if type(found) is not int or not 1 <= found <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, and is {found!r:.50}")
    return found


def truth_of(request: Mapping[str, Any], name: str, usual: bool) -> bool:
    """Return true or false."""
    found = request.get(name, usual)
    if type(found) is not bool:
        raise ValueError(f"{name} must be true or false, and is {found!r:.50}")
    return found
