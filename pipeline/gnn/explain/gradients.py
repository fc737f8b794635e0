"""Integrated gradients (https://arxiv.org/abs/1703.01365): shares of columns, edge features and the simple method."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.pipeline.gnn.explain.answer import LEAST_GAP, TOLERANCE
from parallel_epochs.pipeline.gnn.explain.scene import Scene
from parallel_epochs.pipeline.gnn.explain.score import Score
from parallel_epochs.pipeline.gnn.setup import Setup

# Points of the path from the means to the features: four times as many until the shares add up, or the last number.
STEPS = (8, 32, 128)


class Shares(NamedTuple):
    """Shares of features and of the simple method, and the score with the features as they are and at their means."""

    nodes: Float[Tensor, "num_nodes columns"]
    edges: Float[Tensor, "num_links edge_columns"]
    base: float
    score: float
    baseline: float


class Means:
    """The means of what the model of a run reads, at which the path of integrated gradients begins."""

    def __init__(self, setup: Setup):
        self._setup, self._data = setup, setup.data

    def ends(
        self, scene: Scene, base: Tensor | None, rows: Tensor | None
    ) -> list[tuple[Tensor, Tensor] | None]:
        """Return the features of nodes and of edges, and scores of the simple method, each with its mean; none without.

        Args:
            base: scores of the simple method for what is predicted, of those for all `rows`.
        """
        x, edge_attr = scene.data.x, scene.data.edge_attr
        found: list[tuple[Tensor, Tensor] | None] = [None, None, None]
        if scene.encoder is None:
            found[0] = x.float(), self.nodes[types_of(self._data, scene.data.n_id)].to(x.device)
        else:  # the vectors of categories
            weight = scene.encoder.weight.detach()
            found[0] = (
                scene.encoder(x).detach(),
                (self._frequencies.to(weight) @ weight).expand(len(x), -1),
            )
        if edge_attr is not None and edge_attr.is_floating_point():
            found[1] = edge_attr, self._edges[relations_of(self._data, edge_attr)].to(x.device)
        if base is not None and rows is not None:
            found[2] = base, rows.double().mean(0).to(base)
        return found

    def by_table(self, scene: Scene, grad: Tensor) -> Tensor:
        """Divide the shares of vectors of categories among the columns of these."""
        sizes, found = cast(TableEncoder, scene.encoder).sizes, []
        tables = zip(
            cast(TableEncoder, scene.encoder).weight.detach().split(sizes),
            self._frequencies.split(sizes),
        )
        for column, (rows, frequencies) in enumerate(tables):
            mean = frequencies.to(rows) @ rows
            found.append(((rows[scene.data.x[:, column].long()] - mean) * grad).sum(1))
        return torch.stack(found, 1)

    @cached_property
    def nodes(self) -> Tensor:
        """The means of the nodes of each type [num_types, columns]; labels that are inputs are unknown there."""
        setup, types = self._setup, self._data.types
        whole = Data(
            x=self._data.x, n_id=torch.arange(self._data.num_nodes), num_nodes=self._data.num_nodes
        )
        if setup.table is not None:
            whole = setup.table.attach(whole, torch.device("cpu"))
        means = (
            torch.stack(
                [
                    whole.x[types.nodes_of(name).start : types.nodes_of(name).stop].double().mean(0)
                    for name in types.names
                ]
            )
            .nan_to_num()
            .float()
        )
        num_labels = (
            0
            if not setup.kind.has_labels
            else cast(Any, setup.task).in_channels
            + self._data.num_categories
            - self._data.x.size(1)
        )
        return torch.cat([means.new_zeros(len(means), num_labels), means], 1)

    @cached_property
    def _frequencies(self) -> Tensor:
        """How often each category of each column of the nodes occurs, a fraction."""
        return torch.cat(
            [
                torch.bincount(self._data.x[:, column].long(), minlength=size)[:size]
                / len(self._data.x)
                for column, size in enumerate(self._data["x_tables"])
            ]
        )

    @cached_property
    def _edges(self) -> Tensor:
        """The means of the edges of each relation [num_relations, columns]."""
        attr, relation = self._data.edge_attr, relations_of(self._data, self._data.edge_attr)
        sums = torch.zeros(
            max(len(self._data.types.relations), 1), attr.size(1), dtype=torch.float64
        )
        sums.index_add_(0, relation, attr.double())
        return (
            sums / torch.bincount(relation, minlength=len(sums)).clamp(min=1).unsqueeze(1)
        ).float()


def types_of(data: Data, nodes: Tensor) -> Tensor:
    """Return the number of the type of each node."""
    counts = data.types.counts
    return torch.searchsorted(torch.tensor(counts).cumsum(0), nodes.cpu(), right=True).clamp(
        max=len(counts) - 1
    )


def relations_of(data: Data, edge_attr: Tensor) -> Tensor:
    """Return the number of the relation of each edge."""
    return edge_attr[:, 0].long().cpu() * (not data.types.homogeneous)


def integrate(means: Means, score: Score, steps: Sequence[int] = STEPS) -> Shares:
    """Compute integrated gradients along the line from the means to the features."""
    scene = score.scene
    ends = means.ends(scene, score.base, score.simple.rows)

    def at(places: Tensor, *, grad: bool) -> tuple[Tensor, list[Tensor | None]]:
        given: list[Any] = [None] * 3
        for number, (last, first) in (
            (number, pair) for number, pair in enumerate(ends) if pair is not None
        ):
            weight = places.to(last.device).view(-1, *[1] * last.dim())
            given[number] = (first + weight * (last - first)).requires_grad_(grad)
        return score.vary(*given), given

    with torch.no_grad():
        baseline, last = (float(at(torch.full((1,), place), grad=False)[0]) for place in (0.0, 1.0))
    for num_steps in steps:
        sums: list[Any] = [0.0, 0.0, 0.0]
        for places in ((torch.arange(num_steps) + 0.5) / num_steps).split(scene.copies_at_once):
            found, given = at(places, grad=True)
            named = [number for number, one in enumerate(given) if one is not None]
            grads = torch.autograd.grad(
                found.sum(), [cast(Tensor, given[number]) for number in named], allow_unused=True
            )
            for number, grad in zip(named, grads, strict=True):
                sums[number] = sums[number] + (0.0 if grad is None else grad.sum(0) / num_steps)
        nodes, attr, base = (
            None if pair is None else (pair[0] - pair[1]) * own for pair, own in zip(ends, sums)
        )
        assert nodes is not None
        edges = nodes.new_zeros(scene.num_links, 1 if attr is None else attr.size(1))
        if attr is not None:
            edges.index_add_(0, scene.link, attr)
        of_base, difference = 0.0 if base is None else float(base.sum()), last - baseline
        if abs(float(nodes.sum() + edges.sum()) + of_base - difference) <= max(
            TOLERANCE * abs(difference), LEAST_GAP
        ):
            break
    return Shares(
        nodes if scene.encoder is None else means.by_table(scene, sums[0]),
        edges,
        of_base,
        last,
        baseline,
    )
