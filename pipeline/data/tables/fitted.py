"""Keeps what the preparation of tables learned of them with the graph, so that other tables are prepared alike."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.pipeline.data.tables.scores import TextScores
from parallel_epochs.pipeline.run.checkpoint import UNREADABLE, load_safely
from parallel_epochs.pipeline.run.errors import DamagedFile, one_line
from parallel_epochs.pipeline.run.read_back import build, check_values

# Stands for the file in messages.
FITTED = Path("fitted")


@dataclass
class Columns:
    """The columns of features of nodes, as they were fitted.

    Attributes:
        categories: the values of each column of categories, in the order of their numbers.
        latest: latest time of each of these columns in the training, seconds since 1970, float64; 0 of numbers.
        mean, std: of the columns of numbers and of those that dates become, float64; 0 and 1 if they are not
            standardised.
        texts: of each column of text how many texts were counted, the terms that occur in them and in how many texts
            each occurs, int64.
        kinds: of each column of text, as of :class:`~pipeline.data.tables.text.TextFeatures`. Earlier versions kept
            none.
        vectors: of each column of text the singular vectors of its terms, scaled, float16 [num_terms, channels]; empty
            for a hashed column. Earlier versions kept none.
        scores: of all columns of text; none without them.
    """

    categories: list[list[str]] = field(default_factory=list)
    latest: Float[np.ndarray, "_"] = field(default_factory=lambda: np.zeros(0))
    mean: Float[np.ndarray, "_"] = field(default_factory=lambda: np.zeros(0))
    std: Float[np.ndarray, "_"] = field(default_factory=lambda: np.ones(0))
    texts: list[tuple[int, Int[np.ndarray, "_"], Int[np.ndarray, "_"]]] = field(
        default_factory=list
    )
    kinds: list[str] = field(default_factory=list)
    vectors: list[Float[np.ndarray, "_ _"]] = field(default_factory=list)
    scores: TextScores | None = None


@dataclass
class Fitted:
    """The values that the preparation of tables of nodes and edges learned.

    Attributes:
        columns: of the table of nodes.
        relations: the kinds of edges, in the order of their numbers.
        latest: latest time of each of these columns in the training, as those of nodes.
        mean, std: of each of them, float64; 0 and 1 if it is not standardised. Earlier versions kept none.
    """

    columns: Columns
    relations: list[str] = field(default_factory=list)
    latest: Float[np.ndarray, "_"] = field(default_factory=lambda: np.zeros(0))
    mean: Float[np.ndarray, "_"] = field(default_factory=lambda: np.zeros(0))
    std: Float[np.ndarray, "_"] = field(default_factory=lambda: np.ones(0))

    def content(self) -> dict:
        """Return it as nested dicts, without the scores of its own nodes: other tables have other numbers of nodes."""
        columns, scores = vars(self.columns), self.columns.scores
        if scores is not None:
            kept = {name: value for name, value in vars(scores).items() if name != "nodes"}
            columns = columns | {"scores": kept}
        return vars(self) | {"columns": columns}


def content_of(packed: Tensor) -> Any:
    """Return what was packed as nested dicts and lists of texts, numbers and tensors."""
    with _naming():
        return load_safely(io.BytesIO(packed.numpy().tobytes()))


def pack(fitted: Sequence[Fitted], inputs: dict[str, Any] | None) -> Tensor:
    """Return what was learned of tables as bytes, uint8, which a store and a checkpoint can hold.

    Args:
        fitted: of each table of nodes, then of each table of edges.
        inputs: the keys of the tables that say what their columns are, as JSON can hold them; none for one table of
            nodes and one of edges, which are kept as one.
    """
    if inputs is None:
        nodes, edges = fitted
        content = dataclasses.replace(edges, columns=nodes.columns).content()
    else:
        content = {"inputs": inputs, "tables": [own.content() for own in fitted]}
    buffer = io.BytesIO()
    torch.save(_convert(content, _to_tensor), buffer)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).clone()


def unpack(packed: Tensor) -> tuple[list[Fitted], dict[str, Any] | None]:
    """Return what :func:`pack` was called for."""
    content = content_of(packed)
    with _naming():
        if "tables" not in content:
            found = _from_content(content)
            return [Fitted(found.columns), dataclasses.replace(found, columns=Columns())], None
        check_values(FITTED, content, {"inputs": dict[str, Any], "tables": list[dict[str, Any]]})
        return [_from_content(own) for own in content["tables"]], content["inputs"]


def _from_content(content: dict) -> Fitted:
    content = _convert(content, _to_array)
    columns = content.pop("columns")
    if (scores := columns.pop("scores")) is not None:
        own = np.empty((0, scores["weights"].shape[1]), np.float32)  # of versions of before
        scores = build(FITTED, TextScores, {"nodes": np.empty(0, np.int64), "own": own} | scores)
    gone = [columns.pop("flagged", []), content.pop("flagged", []), *columns.pop("quantiles", [])]
    if any(map(len, gone)):  # of versions of before
        raise ValueError(
            "it has data.empty=flag or data.nodes.quantiles, which version 0.6.0 reads"
        )
    columns["texts"] = [tuple(text) for text in columns["texts"]]
    columns = build(FITTED, Columns, {"scores": scores} | columns)
    return build(FITTED, Fitted, {"columns": columns} | content)


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    """Turn whatever odd content leads to into a DamagedFile."""
    try:
        yield
    except UNREADABLE as error:
        raise DamagedFile(
            f"what the run learned of its tables is damaged ({one_line(error)})"
        ) from error


def _convert(value: object, leaf: Callable[[Any], object]) -> Any:
    """Convert what nested dicts and lists hold."""
    if isinstance(value, dict):
        return {name: _convert(part, leaf) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert(part, leaf) for part in value]
    return leaf(value)


def _to_tensor(value: object) -> object:
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def _to_array(value: object) -> object:
    return value.numpy() if isinstance(value, Tensor) else value
