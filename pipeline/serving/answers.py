"""A trained model answers: from a table of all known rows, or by a computation."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import pandas as pd
from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, create_model

from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.serving.limits import ServiceLimits
from parallel_epochs.pipeline.serving.rows import Rows, encode

# The objects of JSON of an answer, or what computes them.
Found = list[bytes] | Callable[[], list[bytes]]


def _as_text(value: object) -> str:
    if type(value) is not str and type(value) is not int:
        raise ValueError(f"{value!r:.50} is no id; an id is a text or a whole number")
    return str(value)


Id = Annotated[str, PlainValidator(_as_text), WithJsonSchema({"type": ["string", "integer"]})]
CELL = {"type": ["string", "number", "boolean", "null"]}


class RequestBody(BaseModel):
    """The body of a request, which has no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answers:
    """The answers of a model, all of whose known rows are predicted at once.

    Args:
        model: a trained model, :class:`pipeline.model.Model`.
        limits: of requests.

    Attributes:
        routes: for each path the type of its requests, what answers one, and a title.
        no_newcomers: why no new rows are answered.
    """

    def __init__(self, model: Any, limits: ServiceLimits):
        self.model, self.folder, self.num_ids = model, str(model.run.folder), len(model.ids)
        self._limits = limits
        self.no_newcomers = "this run answers no new rows: only models of the labels of nodes do"
        config, most = model.run.config, limits.max_rows
        ids = _list(Id, most)
        ranked = {
            "k": (Annotated[int, Field(ge=1, le=most)], 10),
            "candidates": (_list(Id, max(self.num_ids, 1)) | None, None),
            "filtered": (bool, True),
        }
        known: dict[str, Any] = {"ids": (ids, ...)}
        if not config.explains:
            vectors = pd.DataFrame({"id": model.ids, "vector": list(model.vectors())})
            self._known = Rows(vectors, model.ids)
            top = known
            if config.trainer.name == "knowledge":
                question = '[head, relation, tail], with "?" for the head or the tail that is asked'
                triples: Any = Annotated[_list(_list(Id, 3, 3), most), Field(description=question)]
                top = {"ids": (ids | None, None), "triples": (triples | None, None)}
            self.routes = {
                "/predict": (_body("Known", **known), self._find, "Vectors of known rows"),
                "/top": (_body("Top", **top, **ranked), self._top, "The nearest vectors"),
            }
        elif config.predicts_links:
            pair = _list(Id, 2, 2)
            pairs = _body("Pairs", pairs=(_list(pair, most), ...))
            self.routes = {
                "/predict": (pairs, self._score, "Probabilities of links"),
                "/top": (_body("Top", **known, **ranked), self._top, "The likeliest targets"),
            }
        else:
            table = model.predict(table=True)
            self._known = Rows(table, model.ids)
            try:
                self._newcomers = model.newcomers()
            except ValueError as error:
                self.no_newcomers = one_line(error).replace(self.folder, "this run")
            else:
                known["ids"] = ids | None, None
                for name, columns in self._newcomers.columns.items():
                    known[name] = self._new(columns, 100 * most if name == "edges" else most), None
            one = _body("Explain", id=(Id, ...), top=(Annotated[int, Field(ge=1, le=1000)], 10))
            self.routes = {
                "/predict": (_body("Known", **known), self._find, "Predictions of rows"),
                "/explain": (one, self._explain, "What carries a prediction"),
            }

    @staticmethod
    def _new(columns: dict[str, dict], most: int) -> Any:
        """Return the type of new rows or edges, whose cells the model itself checks."""
        described = {
            "type": "object",
            "properties": {column: CELL | told for column, told in columns.items()},
            "required": list(columns),
            "additionalProperties": False,
        }
        return _list(Annotated[Any, WithJsonSchema(described)], most, 0) | None

    def _find(self, asked: Any) -> Found:
        """Answer what is known of ids, or new rows."""
        if getattr(asked, "rows", None):
            edges = getattr(asked, "edges", None) or []
            return lambda: Rows(self._newcomers.predict(asked.rows, edges)).all()
        return self._known.find(_ids_of(asked))

    def _score(self, asked: Any) -> Found:
        return lambda: Rows(self.model.predict(pairs=asked.pairs, table=True)).all()

    def _top(self, asked: Any) -> Found:
        """Rank what is likeliest for some ids, or answer questions to a knowledge graph."""
        triples = getattr(asked, "triples", None)
        questions = _ids_of(asked) if triples is None else triples
        most, more = self._limits.max_rows, {"filtered": asked.filtered}
        if asked.k * len(questions) > most:
            message = f"k={asked.k} for {len(questions):,} questions are more than the {most:,} rows of a request"
            raise HTTPException(413, message)
        if triples is not None:
            rank = partial(self.model.predict, triples=triples, top=asked.k, **more)
        else:
            more["candidates"] = asked.candidates
            rank = partial(self.model.top, asked.k, sources=questions, **more)
        return lambda: Rows(rank()).all()

    def _explain(self, asked: Any) -> Found:
        return lambda: [encode(self.model.explain(asked.id, top=asked.top).to_dict())]


def _list(kind: Any, most: int, least: int = 1) -> Any:
    return Annotated[list[kind], Field(min_length=least, max_length=most)]


def _body(name: str, **fields: Any) -> type[RequestBody]:
    return create_model(name, __base__=RequestBody, **fields)


def _ids_of(asked: Any) -> list[str]:
    if asked.ids is None:
        names = ", ".join(type(asked).model_fields)
        raise ValueError(f"the body has nothing to answer; it may have {names}")
    return asked.ids
