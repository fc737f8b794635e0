"""Explains predictions of a run: chooses the edges and neighbours to take out, and joins drops and shares."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.gnn import fusion
from parallel_epochs.pipeline.gnn.explain import scene as scenes
from parallel_epochs.pipeline.gnn.explain.answer import Explanation
from parallel_epochs.pipeline.gnn.explain.gradients import STEPS, Means, integrate
from parallel_epochs.pipeline.gnn.explain.scene import LinkKeys, Removed, Scene
from parallel_epochs.pipeline.gnn.explain.score import Score, Tried
from parallel_epochs.pipeline.gnn.explain.simple import SimpleMethod
from parallel_epochs.pipeline.gnn.explain.tables import Tables
from parallel_epochs.pipeline.gnn.setup import Setup

# Edges and nodes of all copies without a link together; links that are tried, for each that is named and at most.
BUDGET, LEAST_TRIED, MOST_TRIED = 1 << 21, 3, 256


class Explainer:
    """Explains predictions of a run.

    Args:
        setup: the run's data and model.
        kept: what the run keeps of a simple method; none without one.
        ids: of all nodes of the graph.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept | None, ids: np.ndarray):
        self.setup, self._keys = setup, LinkKeys(setup.data)
        self.simple, self.means = SimpleMethod(setup, kept, self._keys), Means(setup)
        self.tables = Tables(setup, self.means, ids)

    def scene(self, number: int | Sequence[int]) -> Scene:
        """Take what the prediction of a node, a graph or a pair reads."""
        if isinstance(number, Sequence):
            return scenes.of_pair(self.setup, number, self._keys)
        if "ptr" in self.setup.data:
            return scenes.of_graph(self.setup, number)
        return scenes.of_node(self.setup, number, self._keys)

    def score(self, number: int | Sequence[int], label: str | None = None) -> Score:
        """Return the number that is explained; see :class:`Score`."""
        return Score(self.setup, self.simple, self.scene(number), number, label)

    def explain(
        self, number: int | Sequence[int], title: str, *, top: int, label: str | None = None
    ) -> Explanation:
        """Explain a prediction.

        Args:
            number: of a node or a graph, or those of the two nodes of a pair.
            title: names it for people.
            top: rows of each table, at most.
            label: the class or task. None: the likeliest.

        Raises:
            ValueError: there is no such class or task.
        """
        score, simple = self.score(number, label), self.simple
        scene, shares = score.scene, integrate(self.means, score)
        nodes, edges = shares.nodes, shares.edges
        tried = self.try_links(score, nodes.sum(1), top)
        links = [one.number for one in tried]
        near = self._try_neighbours(score, links[: 2 * top], nodes.sum(1), top)
        columns = (
            self.tables.columns(score, nodes)
            if simple.part < 1
            else self.tables.columns_of_simple(score)
        )
        neighbours = self.tables.neighbours(scene, near[:top], nodes).drop(
            columns=["columns", "share"] * (simple.part == 1)
        )
        own = torch.isin(torch.arange(len(nodes), device=nodes.device), scene.targets)
        totals = {
            "columns": float(nodes[own].sum()),
            "neighbours": float(nodes[~own].sum()),
            "edges": float(edges.sum()),
        }
        method = {}
        if simple.kept is not None and simple.part:
            method = {"method": simple.kept.title, "part": simple.part, "share": shares.base}
            totals["simple method"] = shares.base
        return Explanation(
            title,
            score.label,
            score.unit,
            score.prediction,
            shares.score,
            shares.baseline,
            columns[:top],
            neighbours,
            self.tables.edges(scene, tried[:top], edges),
            method,
            totals,
            score.without([Removed(links=links[:top])])[0].lowered if links else None,
            self._notes(score, len(links)),
            nodes.sum(1).tolist() if scene.is_graph and self.tables.ids.dtype == object else [],
        )  # SMILES

    def name_links(self, score: Score, top: int) -> list[int]:
        """Return the links that :meth:`explain` names."""
        shares = integrate(self.means, score, STEPS[:1])
        return [one.number for one in self.try_links(score, shares.nodes.sum(1), top)[:top]]

    def try_links(self, score: Score, share: Tensor, top: int) -> list[Tried]:
        """Take links out one by one; returns those that were tried, that without which the score loses most first.

        Links that enter a target come first, then those whose both ends have large shares.

        Args:
            share: of the features of each node.
        """
        scene, num_copies = score.scene, self.simple.num_copies
        if not scene.num_links:
            return []
        src, dst = scene.edges
        strength, hop = share.abs() + share.abs().mean() * 1e-3, scene.hop[dst]
        if self.simple.part == 1:  # no node has a share; labels count more than others
            strength = 1.0 + torch.isin(scene.data.n_id, self._known.to(src)).float()
        promise = (
            torch.where(hop == 0, 1.0, strength[dst] / strength.max()) * strength[src] / (1.0 + hop)
        )
        best = (
            promise.new_zeros(scene.num_links)
            .scatter_reduce(0, scene.link, promise, "amax")
            .cpu()
            .numpy()
        )
        entering = (scene.hop_of_links == 0).cpu().numpy()
        most = max(LEAST_TRIED * top, min(BUDGET // (len(src) + len(share)), MOST_TRIED))
        most = min(most, num_copies // 2) if num_copies else most
        order = np.lexsort((-best, ~entering))
        first = order[: int(entering.sum())][: -(-most * 2 // 3) if len(order) > most else most]
        tried = np.concatenate(
            [first, np.setdiff1d(np.argsort(-best, kind="stable"), first, assume_unique=True)]
        )[:most].tolist()
        return score.best(score.without([Removed(links=[link]) for link in tried]))

    @cached_property
    def _known(self) -> Tensor:
        return self.setup.data.train_mask.nonzero().squeeze(1)

    def _try_neighbours(
        self, score: Score, links: list[int], share: Tensor, top: int
    ) -> list[Tried]:
        """Take neighbours out one by one, those of the best links and those with large shares first."""
        scene, num_copies = score.scene, self.simple.num_copies
        may = (
            torch.ones(len(share), dtype=torch.bool)
            if scene.is_graph and len(share) > 1
            else torch.isin(torch.arange(len(share)), scene.targets.cpu(), invert=True)
        )
        ends = [end for link in links for end in scene.edges[:, scene.link == link][:, 0].tolist()]
        order = torch.argsort(-share.abs(), stable=True)[: 2 * top].tolist()
        tried = [node for node in dict.fromkeys([*ends, *order]) if bool(may[node])]
        return score.best(
            score.without(
                [
                    Removed(nodes=[node])
                    for node in (tried[: num_copies // 2] if num_copies else tried)
                ]
            )
        )

    def _notes(self, score: Score, num_tried: int) -> list[str]:
        found, simple, scene = [], self.simple, score.scene
        if not scene.num_links:
            found.append("it has no neighbours: only its own columns carry the prediction")
        elif num_tried < scene.num_links:
            found.append(
                f"{num_tried:,} of the {scene.num_links:,} edges that the prediction reads were taken out, "
                + (
                    "those nearest to it, with known labels first"
                    if simple.part == 1
                    else "those with the largest shares"
                )
            )
        if simple.part == 1 and simple.num_copies:
            found.append(
                "the simple method alone answers: its columns, neighbours and edges have no shares, and each "
                "drop is what its score loses without them"
            )
        elif simple.part == 1:
            found.append(
                "the simple method alone answers, and it cannot be computed again here in a short time: "
                "neither its columns nor its neighbours are told apart, and every drop is 0. Train with "
                "task.base=none for an explanation of the network"
            )
        elif simple.part and not simple.num_copies:
            found.append(
                "the scores of the simple method stay as they are when an edge is taken out"
            )
        if scene.is_pair and simple.kept is not None and simple.kept.share:
            found.append(
                "this explains the network alone, and its probability is not that of the run, which answers "
                f"with the simple method alone: {simple.kept.title}"
                if simple.kept.share == 1
                else f"{simple.kept.share:.0%} of the answer is a simple method, whose score has no share and is "
                f"the same without an edge: {simple.kept.title}"
            )
        return found
