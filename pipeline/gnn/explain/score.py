"""The number that an explanation is about, and what it loses without an edge or a neighbour."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.pipeline.gnn.explain.scene import Removed, Scene
from parallel_epochs.pipeline.gnn.explain.simple import SimpleMethod
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.setup import Setup


class Tried(NamedTuple):
    """The number of a link or node that was taken out, what the score loses, and the prediction without it."""

    number: int
    drop: float
    lowered: float


class Score:
    """The number that is explained: the log odds of a class, the logit of a task or link, or a value.

    Args:
        setup: the run's data and model.
        simple: the simple method of the run, which has a part in the answer.
        scene: what the prediction reads.
        number: of a node or a graph, or those of the two nodes of a pair.
        label: the class or task. None: the likeliest.

    Attributes:
        label: its name; none where there is one number.
        base: scores of the simple method, as it learned them; none without one.
        unit: for people.
        prediction: the probability, or the value.

    Raises:
        ValueError: there is no such class or task.
    """

    def __init__(
        self,
        setup: Setup,
        simple: SimpleMethod,
        scene: Scene,
        number: int | Sequence[int],
        label: str | None = None,
    ):
        self.scene, self.number, self.simple, self.base = scene, number, simple, simple.of(number)
        self._kind, self._column = setup.task.kind, 0
        whole = self._network([Removed()])
        rows = simple.mix(whole, self.base)
        names = (None if scene.is_pair else labels_of(setup.data, rows.size(1))) or list(
            map(str, range(rows.size(1)))
        )
        if label is not None and (label not in names or rows.size(1) == 1):
            raise ValueError(
                f"label={label} is no class or task of this run; "
                + (
                    f"choose one of {', '.join(names[:20])}{', ...' * (len(names) > 20)}"
                    if rows.size(1) > 1
                    else "leave it out, since there is one number"
                )
            )
        if label is not None:
            self._column = names.index(label)
        elif self._kind != "real values":
            self._column = int(rows[0].argmax())
        self.label = None if rows.size(1) == 1 else names[self._column]
        self.unit = "value" if self._kind == "real values" else "log odds"
        self.prediction = float(self.shown(self.of(whole, self.base)))

    def of(
        self, rows: Float[Tensor, "num_copies columns"], base: Tensor | None
    ) -> Float[Tensor, " num_copies"]:
        """Score the network's answers of copies, mixed with those of the simple method."""
        rows = self.simple.mix(rows, base)
        own = rows[:, self._column]
        if self._kind != "classes":
            return own
        others = torch.arange(rows.size(1), device=rows.device) != self._column
        return own - rows[:, others].logsumexp(1)

    def vary(
        self,
        x: Float[Tensor, "num_copies num_nodes channels"],
        edge_attr: Tensor | None,
        base: Tensor | None,
    ) -> Float[Tensor, " num_copies"]:
        """Score copies with other features, see :meth:`Scene.vary`, and other scores of the simple method."""
        return self.of(
            self.scene.vary(x, edge_attr) if self.simple.part < 1 or base is None else base, base
        )

    def without(self, removed: Sequence[Removed]) -> list[Tried]:
        """Predict without each of these, and say what the score loses."""
        if not removed:
            return []
        every = [Removed(), *removed]
        scores = self.of(self._network(every), self.simple.without(self.number, self.scene, every))
        drops, lowered = (scores[0] - scores[1:]).tolist(), self.shown(scores[1:]).tolist()
        return [
            Tried([*one.links, *one.nodes][0], drop, low)
            for one, drop, low in zip(removed, drops, lowered)
        ]

    def without_columns(self, columns: dict[str, list[int]], mean: Tensor) -> dict[str, float]:
        """Return what the score of the simple method loses if the channels of each column have their mean."""
        assert isinstance(self.number, int) and self.base is not None
        whole = self.base.expand(1, -1)
        changed = [
            self.simple.without_column(self.number, own, mean).expand(1, -1)
            for own in columns.values()
        ]
        return {
            name: float(self.of(whole, whole) - self.of(one, one))
            for name, one in zip(columns, changed)
        }

    def shown(self, scores: Float[Tensor, " num_copies"]) -> Float[Tensor, " num_copies"]:
        """Turn scores into probabilities, or values."""
        return scores if self.unit == "value" else scores.double().sigmoid()

    def best(self, tried: Sequence[Tried]) -> list[Tried]:
        """Sort by what the score loses, the most first; of values, by what changes them most."""
        return sorted(tried, key=lambda one: -abs(one.drop) if self.unit == "value" else -one.drop)

    def _network(self, removed: Sequence[Removed]) -> Float[Tensor, "num_copies columns"]:
        """Return the network's answers; where it has no part in the prediction, numbers without a meaning."""
        if self.simple.part == 1 and self.base is not None:
            return self.base.expand(len(removed), -1)
        return self.scene.without(removed)
