"""Keeps what preparation learned of a graph with a run, so that other data are prepared in the same way."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from parallel_epochs.pipeline.data.degrees import DEGREE_MOMENTS, without_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.incident import moments_of_edges
from parallel_epochs.pipeline.data.join_types import check_alike
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.metrics import CLASS_METRICS
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.read_back import build

# The array of a prepared graph that holds what was learned of tables, see :mod:`pipeline.data.tables.fitted`.
FITTED = "fitted"
# The file of a run that holds it.
PREPROCESSING = "preprocessing.pt"
# Raise it when what is kept means something else than before.
FORMAT = 1


@dataclass(frozen=True)
class Learned:
    """Properties that a model expects of a graph, and numbers that its preparation takes from the training data.

    Attributes:
        num_columns: of ``x``.
        num_edge_columns: of ``edge_attr``; none without it.
        num_categories: how many of the last columns of ``x`` are one-hot species.
        x_source: where the other columns are from, see :func:`pipeline.data.prepare.prepare`.
        metric: of the labels.
        out_channels: classes or columns of labels.
        tables: ``x_tables`` and ``edge_tables`` of many graphs, by these names.
        label_names: the tensors of the labels' names, see :mod:`pipeline.data.node_names`.
        edges: mean and deviation of what features are made of where they are made of
            edges [2, channels], float64; none where nothing was learned of them.
        degrees: mean and deviation of the columns of degrees [2, num_degrees], float64; none without them.
        labels: mean and deviation of labels that are inputs or real values [2, columns]; none for others.
        fitted: what was learned of the columns of tables, see :class:`pipeline.data.tables.fitted.Fitted`, uint8; none
            for other sources.
        schema: the types of a graph with several, as :class:`pipeline.data.graph_types.GraphTypes` gives them for JSON;
            none for others.
    """

    num_columns: int
    num_edge_columns: int | None
    num_categories: int
    x_source: str
    metric: str
    out_channels: int
    tables: dict[str, list[int]] = field(default_factory=dict)
    label_names: dict[str, Tensor] = field(default_factory=dict)
    edges: Float[Tensor, "2 channels"] | None = None
    labels: Float[Tensor, "2 columns"] | None = None
    fitted: UInt8[Tensor, " num_bytes"] | None = None
    schema: dict[str, Any] | None = None
    degrees: Float[Tensor, "2 num_degrees"] | None = None

    @property
    def num_own(self) -> int:
        """The number of columns that ``x`` has before degrees are counted."""
        num_degrees = 0 if self.degrees is None or self.schema is not None else self.degrees.size(1)
        return self.num_columns - self.num_categories - num_degrees

    def to_dict(self) -> dict[str, Any]:
        """Return what :func:`pipeline.run.checkpoint.save` can write."""
        return {
            "format": FORMAT,
            **{entry.name: getattr(self, entry.name) for entry in fields(self)},
        }


def from_dict(path: Path, content: Any) -> Learned:
    """Return what :meth:`Learned.to_dict` was called for.

    Args:
        path: of the file that holds it.

    Raises:
        ValueError: another version wrote it.
        DamagedFile: it holds something else.
    """
    if content["format"] != FORMAT:
        raise ValueError(
            f"it has format {content['format']}, and this version reads format {FORMAT}"
        )
    if content.get("log_label"):
        raise ValueError("it learned log(1 + label), as versions up to 0.6.0 could")
    found = build(
        path,
        Learned,
        {
            entry.name: content[entry.name]
            for entry in fields(Learned)
            if entry.name not in (FITTED, SCHEMA, "degrees") or entry.name in content
        },
    )  # of versions of before
    if found.schema is not None:
        GraphTypes.from_value(found.schema)
    names: object = found.label_names
    if names and len(unpack_names(names, "label_names")) < found.out_channels:
        raise ValueError(f"there are fewer names of labels than out_channels={found.out_channels}")
    return found


def learn(data: Graph, *, node_features: str, labels: Tensor | None) -> Learned:
    """Collect what the preparation of a graph in memory learned of it.

    A graph that was prepared before it was kept where features are from has no ``x_source``.

    Args:
        data: as :func:`pipeline.data.cache.load` or ``load_links`` returns it.
        node_features: the key data.node_features.
        labels: what the task learned of the labels.
    """
    source, edges = data.x_source, None
    if source != "data":
        edges = moments_of_edges(data.edge_index.get_csc()[0][0], data.edge_attr, node_features)
    types, num_columns = without_degrees(data.types), data.x.size(1)
    if data.types.degrees:
        num_columns = max(types.widths) + data.num_categories
    return Learned(
        num_columns,
        None if data.edge_attr is None else data.edge_attr.size(1),
        data.num_categories,
        source,
        data.metric,
        data.get("out_channels", 0),
        {name: data[name] for name in ("x_tables", "edge_tables") if name in data},
        {name: data[name] for name in ("label_names", "label_names_ptr") if name in data},
        edges,
        labels,
        data.get(FITTED),
        None if types.homogeneous else types.to_value(),
        data.get(DEGREE_MOMENTS),
    )


def check_inputs(learned: Learned, data: Graph) -> None:
    """Refuse a graph, as it was read, that cannot be prepared as the training data were.

    Raises:
        ValueError: says what it has and what the model was trained on.
    """
    check_alike(learned.schema, data)
    if data.x is None and learned.x_source == "data" and learned.schema is None:
        raise ValueError("there is no x, and the model reads features of nodes. Give them as x")
    if data.x is not None and learned.x_source != "data":
        raise ValueError(
            "there is an x, and the model reads features that were made of edges. Leave it out"
        )
    num_columns = (
        None
        if data.edge_attr is None
        else data.edge_attr.size(1)
        if data.edge_attr.dim() > 1
        else 1
    )
    if num_columns != learned.num_edge_columns:
        raise ValueError(
            f"the features of the edges have {num_columns or 'no'} columns, and the model was trained on "
            f"{learned.num_edge_columns or 'none'}"
        )
    if "species" in data and int(data.species.max()) >= learned.num_categories:
        raise ValueError(
            f"a node has species {int(data.species.max())}, and the model knows {learned.num_categories}, "
            "counted from 0"
        )
    if learned.num_categories and "species" not in data:
        raise ValueError("there is no species, and the model reads the species of nodes")


def check_columns(learned: Learned, data: Graph, origin: str) -> None:
    """Refuse a prepared graph that the model cannot read, before degrees are counted.

    Args:
        origin: where the graph comes from, for messages.

    Raises:
        ValueError: says what the graph has and what the model was trained on.
    """
    own = data.x.size(1) - data.num_categories
    expected = learned.num_own
    if own != expected:
        raise ValueError(
            f"{origin}: the features of the nodes have {own} columns, and the model was trained on "
            f"{expected}"
        )
    for name, what in (("x_tables", "nodes"), ("edge_tables", "edges")):
        if data.get(name) != learned.tables.get(name):
            raise ValueError(
                f"{origin}: the {what} have categories of {data.get(name)} values, and the model was "
                f"trained on {learned.tables.get(name)}"
            )


def with_labels(learned: Learned, data: Graph, origin: str, num_rows: int) -> Graph:
    """Give a prepared graph the labels that the model predicts: its own if it has them, otherwise unknown ones.

    Args:
        num_rows: how many nodes, or graphs, the labels are of.

    Raises:
        ValueError: its labels are of another kind, or of classes that the model does not know.
    """
    if "y" in data:
        if data.metric != learned.metric:
            raise ValueError(
                f"{origin}: its labels are measured by {data.metric}, and those of the training by "
                f"{learned.metric}. Leave y out"
            )
        found = data.out_channels
        if (
            found > learned.out_channels
            or data.metric not in CLASS_METRICS
            and found != learned.out_channels
        ):
            raise ValueError(
                f"{origin}: its labels have {found} classes or columns, and the model was trained on "
                f"{learned.out_channels}. Leave y out"
            )
    else:
        shape = (num_rows, 1 if learned.metric in CLASS_METRICS else learned.out_channels)
        data.y = (
            torch.zeros(shape, dtype=torch.int64)
            if learned.metric in CLASS_METRICS
            else torch.full(shape, torch.nan)
        )
        for mask in MASKS:
            data[mask] = torch.zeros(num_rows, dtype=torch.bool)
    data.metric, data.out_channels, data.split_is_known = (
        learned.metric,
        learned.out_channels,
        False,
    )
    return data.update(learned.label_names)
