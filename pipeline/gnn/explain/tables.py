"""The tables of an explanation, with the columns, ids and labels of the user."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.column_names import Channel, name_edges, name_nodes
from parallel_epochs.pipeline.gnn.explain.gradients import Means, relations_of, types_of
from parallel_epochs.pipeline.gnn.explain.scene import Scene
from parallel_epochs.pipeline.gnn.explain.score import Score, Tried
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import MASKS

# Columns of a neighbour or of an edge that are named.
NAMED = 3


class Tables:
    """Names what has shares and drops, by the ids of all nodes of the graph."""

    def __init__(self, setup: Setup, means: Means, ids: np.ndarray):
        self._setup, self._data, self._means, self.ids = setup, setup.data, means, ids
        self.are_values = setup.task.kind == "real values"

    def columns(self, score: Score, nodes: Tensor) -> pd.DataFrame:
        """Sum the shares of the columns of the targets, given those of all nodes [num_nodes, columns]."""
        rows, scene = [], score.scene
        for place, target in enumerate(scene.targets.tolist()):
            of = ("source: ", "target: ")[place] if scene.is_pair else ""
            rows += [
                (of + column, value, share)
                for column, value, share in self._named(scene, target, nodes[target])
            ]
        found = pd.DataFrame(rows, columns=["column", "value", "share"])
        by = ["column"] if scene.is_graph else ["column", "value"]
        return _largest_first(found.groupby(by, as_index=False, sort=False)["share"].sum(), "share")

    def columns_of_simple(self, score: Score) -> pd.DataFrame:
        """Say what the score of the simple method loses if a column of the node has its mean."""
        rows = list[tuple[str, str, float]]()
        if score.simple.num_copies and isinstance(score.number, int):
            data = self._setup.bare or self._data
            kind = int(types_of(data, torch.tensor([score.number])))
            channels = name_nodes(self._setup.config.data, data)[kind]
            nodes = data.types.nodes_of(data.types.names[kind])
            names = list(dict.fromkeys(one.column for one in channels if one.column))[
                : score.simple.num_copies
            ]
            drops = score.without_columns(
                {
                    name: [place for place, one in enumerate(channels) if one.column == name]
                    for name in names
                },
                data.x[nodes.start : nodes.stop].float().mean(0),
            )
            texts = {
                name: text
                for name, text, _ in sum_by_column(
                    channels, data.x[score.number].tolist(), [1.0] * len(channels)
                )
            }
            rows = [(name, texts[name], drop) for name, drop in drops.items() if drop]
        return _largest_first(pd.DataFrame(rows, columns=["column", "value", "drop"]), "drop")

    def neighbours(self, scene: Scene, tried: list[Tried], nodes: Tensor) -> pd.DataFrame:
        """Describe the neighbours that were taken out."""
        rows, types = [], self._data.types
        for node, drop, lowered in tried:
            number = int(scene.data.n_id[node])
            direct = torch.isin(scene.edges[1], scene.targets) & (scene.edges[0] == node)
            rows.append(
                {
                    "id": self._name(scene, node),
                    "type": types.names[int(types_of(self._data, torch.tensor(number)))],
                    "hops": int(scene.hop[node]),
                    "relation": self._relation_names(scene, direct),
                    "label": "" if scene.is_graph else self.label_of(number),
                    "share": float(nodes[node].sum()),
                    "drop": drop,
                    "prediction": lowered,
                    "columns": text_of(self._named(scene, node, nodes[node])),
                }
            )
        found = pd.DataFrame(
            rows,
            columns=[
                "id",
                "type",
                "hops",
                "relation",
                "label",
                "share",
                "drop",
                "prediction",
                "columns",
            ],
        )
        return found.drop(
            columns=["type"] * types.homogeneous
            + ["hops"] * scene.is_graph
            + ["label"] * (not self._setup.kind.has_labels or scene.is_graph)
            + ["relation"] * (scene.is_graph or not any(found["relation"]))
        )

    def edges(self, scene: Scene, tried: list[Tried], shares: Tensor) -> pd.DataFrame:
        """Describe the edges that were taken out."""
        rows, of_relation = [], name_edges(self._setup.config.data, self._data)
        for link, drop, lowered in tried:
            is_own = scene.link == link
            edge = int(is_own.nonzero()[0])
            source, target = scene.edges[:, edge].tolist()
            attr = [] if scene.data.edge_attr is None else scene.data.edge_attr[edge].tolist()
            channels = (
                of_relation[int(relations_of(self._data, scene.data.edge_attr[edge : edge + 1]))]
                if attr
                else []
            )
            rows.append(
                {
                    "source": self._name(scene, source),
                    "target": self._name(scene, target),
                    "relation": self._relation_names(scene, is_own),
                    "hops": int(scene.hop[scene.edges[1, is_own]].min()) + 1,
                    "share": float(shares[link].sum()),
                    "drop": drop,
                    "prediction": lowered,
                    "columns": text_of(sum_by_column(channels, attr, shares[link].tolist())),
                }
            )
        found = pd.DataFrame(
            rows,
            columns=[
                "source",
                "target",
                "relation",
                "hops",
                "share",
                "drop",
                "prediction",
                "columns",
            ],
        )
        return found.drop(
            columns=["relation"] * self._data.types.homogeneous
            + ["hops"] * scene.is_graph
            + ["columns", "share"] * (not any(found["columns"]))
        )

    def label_of(self, row: int) -> str:
        """Return the label of a node or graph in a split, as text; "" without one."""
        data, form = self._data, self._setup.task.kind
        if (
            not self._setup.kind.has_labels
            or "y" not in data
            or not any(bool(data[mask][row]) for mask in MASKS)
        ):
            return ""
        y = data.y[row]
        if form == "real values" or form == "binary tasks" and len(y) == 1:
            return f"{float(y[0]):.4g}"
        names = labels_of(data, cast(Any, self._setup.task).out_channels)
        on = (
            [int(own) for own in y if own >= 0]
            if form == "classes"
            else (y == 1).nonzero().flatten().tolist()
        )
        return ", ".join(str(label) if names is None else names[label] for label in on[:NAMED])

    @cached_property
    def _channels(self) -> list[list[Channel]]:
        return self._setup.channels(self._means.nodes.size(1))

    def _named(self, scene: Scene, node: int, shares: Tensor) -> list[tuple[str, str, float]]:
        """Return each column of a node with its value, where that is known, and its share."""
        channels = self._channels[int(types_of(self._data, scene.data.n_id[node]))]
        return sum_by_column(channels, scene.data.x[node].tolist(), shares.tolist())

    def _relation_names(self, scene: Scene, edges: Tensor) -> str:
        """Name the relations of some edges."""
        types = self._data.types
        numbers = (
            []
            if types.homogeneous
            else dict.fromkeys(scene.data.edge_attr[edges, 0].long().tolist())
        )
        return ", ".join(types.name_of(number) for number in numbers)

    def _name(self, scene: Scene, node: int) -> str:
        return str(node if scene.is_graph else self.ids[int(scene.data.n_id[node])])


def _largest_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table.sort_values(column, key=lambda own: -own.abs(), kind="stable", ignore_index=True)


def sum_by_column(
    channels: Sequence[Channel], values: list[float], shares: list[float]
) -> list[tuple[str, str, float]]:
    """Sum the shares of the channels of each column, and say what is in it; the largest share first."""
    found: dict[str, list] = {}
    for channel, value, share in zip(channels, values, shares, strict=False):
        if not channel.column:
            continue
        own = found.setdefault(channel.column, ["", 0.0])
        own[1] += share
        if channel.text is not None and value > 0.5:
            own[0] = channel.text
        elif channel.scale is not None:
            own[0] = f"{value * channel.scale + channel.shift:.4g}"
    return sorted(
        ((name, text, share) for name, (text, share) in found.items() if share),
        key=lambda one: -abs(one[2]),
    )


def text_of(named: list[tuple[str, str, float]]) -> str:
    """Write the columns with the largest shares in a line."""
    return ", ".join(
        f"{name}{'=' * bool(value)}{value} {share:+.2g}" for name, value, share in named[:NAMED]
    )
