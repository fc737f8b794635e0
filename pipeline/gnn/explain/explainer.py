"""Explains predictions of a run: chooses the edges and neighbours to take out, and names what has shares and drops."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.column_names import Channel, name_nodes
from parallel_epochs.pipeline.gnn.base import fusion
from parallel_epochs.pipeline.gnn.explain.answer import Explanation
from parallel_epochs.pipeline.gnn.explain.score import Explained, Score, Tried
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import MASKS

# Edges and nodes of all copies without a link together; links that are tried, for each that is named and at most.
BUDGET, LEAST_TRIED, MOST_TRIED = 1 << 21, 3, 256
# Columns of a neighbour or of an edge that are named.
NAMED = 3


class Explainer:
    """Explains predictions of a run.

    Args:
        setup: the run's data and model.
        kept: what the run keeps of a simple method; none without one.
        ids: of all nodes of the graph.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept | None, ids: np.ndarray):
        self.run, self.setup, self.data, self.ids = Explained(setup, kept), setup, setup.data, ids
        self.is_graphs = "ptr" in self.data
        self.are_values = setup.task.kind == "real values"

    def explain(self, number: int, *, top: int, label: str | None = None) -> Explanation:
        """Explain a prediction.

        Args:
            number: of a node or a graph.
            top: rows of each table, at most.
            label: the class or task. None: the likeliest.

        Raises:
            ValueError: there is no such class or task.
        """
        run, score = self.run, Score(self.run, number, label)
        view, shares = score.view, score.integrate()
        share_of = shares.nodes.sum(1)
        tried = self.try_links(score, share_of, top)
        links = [one.what for one in tried]
        near = self._try_neighbours(score, links[: 2 * top], share_of, top)[:top]
        simple = run.part == 1
        columns = self._columns_of_simple(score) if simple else self._columns(score, shares.nodes)
        own = torch.isin(torch.arange(len(share_of), device=share_of.device), view.targets)
        totals = {
            "columns": float(share_of[own].sum()),
            "neighbours": float(share_of[~own].sum()),
        }
        method = {}
        if run.kept is not None and run.part:
            method = {"method": run.kept.title, "part": run.part, "share": shares.base}
            totals["simple method"] = shares.base
        return Explanation(
            str(self.ids[number]),
            score.label,
            "value" if self.are_values else "log odds",
            score.prediction,
            shares.score,
            shares.baseline,
            columns[:top],
            self._table([self._neighbour(score, one, shares.nodes) for one in near]),
            self._table([self._edge(score, one) for one in tried[:top]]),
            method,
            totals,
            score.without(links=links[:top]).lowered if links else None,
            self._notes(score, len(links)),
        )

    def try_links(self, score: Score, share: Tensor, top: int) -> list[Tried]:
        """Take links out one by one; returns those that were tried, that without which the score loses most first.

        Links that enter a target come first, then those whose both ends have large shares.

        Args:
            share: of the features of each node.
        """
        view, num_copies = score.view, self.run.num_copies
        (src, dst), hop_of_links = view.edges, view.hop_of_links
        if not len(hop_of_links):
            return []
        hop, strength = view.hop[dst], share.abs() + share.abs().mean() * 1e-3
        if self.run.part == 1:  # no node has a share; labels count more than others
            strength = 1.0 + self.data.train_mask[view.data.n_id.cpu()].to(share)
        promise = torch.where(hop == 0, 1.0, strength[dst] / strength.max())
        promise = promise * strength[src] / (1.0 + hop)
        best = promise.new_zeros(len(hop_of_links)).scatter_reduce(0, view.link, promise, "amax")
        most = max(LEAST_TRIED * top, min(BUDGET // (len(src) + len(share)), MOST_TRIED))
        most = min(most, num_copies // 2) if num_copies else most
        order = torch.argsort(-best, stable=True)
        entering = order[hop_of_links[order] == 0]
        if len(order) > most:  # others are tried too
            entering = entering[: -(-most * 2 // 3)]
        others = order[torch.isin(order, entering, invert=True)]
        links = torch.cat([entering, others])[:most].tolist()
        return score.best([score.without(link, links=[link]) for link in links])

    def _try_neighbours(
        self, score: Score, links: list[int], share: Tensor, top: int
    ) -> list[Tried]:
        """Take neighbours out one by one, those of the best links and those with large shares first."""
        view, num_copies = score.view, self.run.num_copies
        ends = [end for link in links for end in view.edges[:, view.link == link][:, 0].tolist()]
        order = torch.argsort(-share.abs(), stable=True)[: 2 * top].tolist()
        of_graph = self.is_graphs and len(share) > 1
        targets = set[int]() if of_graph else set(view.targets.tolist())
        tried = [node for node in dict.fromkeys([*ends, *order]) if node not in targets]
        tried = tried[: num_copies // 2] if num_copies else tried
        return score.best([score.without(node, nodes=[node]) for node in tried])

    def _columns(self, score: Score, shares: Tensor) -> pd.DataFrame:
        """Sum the shares of the columns of the targets."""
        rows = list[tuple[str, str, float]]()
        for target in score.view.targets.tolist():
            rows += self._named(score, target, shares[target])
        found = pd.DataFrame(rows, columns=["column", "value", "share"])
        by = ["column"] if self.is_graphs else ["column", "value"]
        return _largest_first(found.groupby(by, as_index=False, sort=False)["share"].sum(), "share")

    def _columns_of_simple(self, score: Score) -> pd.DataFrame:
        """Say what the score of the simple method loses if a column of the node has its mean."""
        rows = list[tuple[str, str, float]]()
        if self.run.num_copies:
            data, number = self.run.bare, score.number
            kind = int(self.run.type_of(torch.tensor([number])))
            channels = name_nodes(self.setup.config.data, data)[kind]
            nodes = data.types.nodes_of(data.types.names[kind])
            mean = data.x[nodes.start : nodes.stop].float().mean(0)
            values = sum_by_column(channels, data.x[number].tolist(), [1.0] * len(channels))
            for name, text, _ in values[: self.run.num_copies]:
                places = [place for place, one in enumerate(channels) if one.column == name]
                rows.append((name, text, score.without_column(name, places, mean).drop))
        rows = [row for row in rows if row[2]]
        return _largest_first(pd.DataFrame(rows, columns=["column", "value", "drop"]), "drop")

    def _neighbour(self, score: Score, tried: Tried, shares: Tensor) -> dict[str, Any]:
        """Describe a neighbour that was taken out; what says nothing about it is none."""
        view, types, node = score.view, self.data.types, tried.what
        number, simple = view.data.n_id[node].cpu(), self.run.part == 1
        direct = torch.isin(view.edges[1], view.targets) & (view.edges[0] == node)
        is_labelled = self.setup.kind.has_labels and not self.is_graphs
        return {
            "id": self._name(score, node),
            "type": None if types.homogeneous else types.names[int(self.run.type_of(number))],
            "hops": None if self.is_graphs else int(view.hop[node]),
            "relation": self._relations(score, direct),
            "label": self.label_of(int(number)) if is_labelled else None,
            "share": None if simple else float(shares[node].sum()),
            "drop": tried.drop,
            "prediction": tried.lowered,
            "columns": None if simple else _text_of(self._named(score, node, shares[node])),
        }

    def _edge(self, score: Score, tried: Tried) -> dict[str, Any]:
        """Describe an edge that was taken out."""
        view = score.view
        own = (view.link == tried.what).nonzero().squeeze(1)
        source, target = view.edges[:, own[0]].tolist()
        return {
            "source": self._name(score, source),
            "target": self._name(score, target),
            "relation": self._relations(score, own),
            "hops": None if self.is_graphs else int(view.hop[view.edges[1, own]].min()) + 1,
            "drop": tried.drop,
            "prediction": tried.lowered,
        }

    @staticmethod
    def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
        return pd.DataFrame(rows).dropna(axis=1, how="all")

    def label_of(self, row: int) -> str:
        """Return the label of a node or graph in a split, as text; "" without one."""
        data, form = self.data, self.setup.task.kind
        in_a_split = "y" in data and any(bool(data[mask][row]) for mask in MASKS)
        if not self.setup.kind.has_labels or not in_a_split:
            return ""
        y = data.y[row]
        if form == "real values" or form == "binary tasks" and len(y) == 1:
            return f"{float(y[0]):.4g}"
        names = labels_of(data, cast(Any, self.setup.task).out_channels)
        on = [int(own) for own in y if own >= 0]
        if form != "classes":
            on = (y == 1).nonzero().flatten().tolist()
        return ", ".join(str(label) if names is None else names[label] for label in on[:NAMED])

    @cached_property
    def _channels(self) -> list[list[Channel]]:
        return self.setup.channels(self.run.means.size(1))

    def _named(self, score: Score, node: int, shares: Tensor) -> list[tuple[str, str, float]]:
        """Return each column of a node with its value, where that is known, and its share."""
        data = score.view.data
        channels = self._channels[int(self.run.type_of(data.n_id[node]))]
        return sum_by_column(channels, data.x[node].tolist(), shares.tolist())

    def _relations(self, score: Score, edges: Tensor) -> str | None:
        """Name the relations of some edges."""
        types = self.data.types
        if types.homogeneous:
            return None
        numbers = score.view.data.edge_attr[edges, 0].long().tolist()
        return ", ".join(types.name_of(number) for number in dict.fromkeys(numbers))

    def _name(self, score: Score, node: int) -> str:
        return str(node if self.is_graphs else self.ids[int(score.view.data.n_id[node])])

    def _notes(self, score: Score, num_tried: int) -> list[str]:
        found, run, num_links = [], self.run, len(score.view.hop_of_links)
        reads_simple = run.part or run.reads_base and run.rows is not None
        if not num_links:
            found.append("it has no neighbours: only its own columns carry the prediction")
        elif num_tried < num_links:
            found.append(
                f"{num_tried:,} of the {num_links:,} edges that the prediction reads were taken out"
            )
        if run.part == 1:
            found.append(
                "the simple method alone answers: its columns, neighbours and edges have no shares"
            )
        if reads_simple and not run.num_copies:
            found.append(
                "the scores of the simple method stay as they are when an edge is taken out"
            )
        return found


def _largest_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table.sort_values(column, key=lambda own: -own.abs(), kind="stable", ignore_index=True)


def sum_by_column(
    channels: Sequence[Channel], values: list[float], shares: list[float]
) -> list[tuple[str, str, float]]:
    """Sum the shares of the channels of each column, and say what is in it; the largest share first."""
    texts, sums = dict[str, str](), dict[str, float]()
    for channel, value, share in zip(channels, values, shares, strict=False):
        name = channel.column
        if not name:
            continue
        sums[name] = sums.get(name, 0.0) + share
        if channel.text is not None and value > 0.5:
            texts[name] = channel.text
        elif channel.scale is not None:
            texts[name] = f"{value * channel.scale + channel.shift:.4g}"
    order = sorted(sums, key=lambda name: -abs(sums[name]))
    return [(name, texts.get(name, ""), sums[name]) for name in order if sums[name]]


def _text_of(named: list[tuple[str, str, float]]) -> str:
    """Write the columns with the largest shares in a line."""
    return ", ".join(
        f"{name}={value} {share:+.2g}" if value else f"{name} {share:+.2g}"
        for name, value, share in named[:NAMED]
    )
