"""Layouts in two or three dimensions: edges drawn by weight in blocks, the same bits for any number of workers."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from parallel_epochs.models.embedding import layout
from parallel_epochs.models.embedding.layout import Drawn, EdgeBlock, LayoutOptions
from parallel_epochs.pipeline.block_training.trainer import BlockTrainer, Round, RoundPlan, Score
from parallel_epochs.pipeline.graph.node_parts import BlockEdges, NodeParts, tied_rounds
from parallel_epochs.pipeline.run import seeds
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest

# Points that attract each other come within a few units; so far apart, on average, they are in no layout.
FAR = 1000.0
# The part of a run, from its beginning, in which the attraction is stronger.
EARLY_FRACTION = 0.25


@dataclass(frozen=True, kw_only=True)
class LayoutPlan(RoundPlan):
    """How many epochs are trained, and how.

    Attributes:
        early_attraction: factor on what pulls neighbours together at the beginning.
    """

    early_attraction: float = 1.0

    def attraction(self, done: float) -> float:
        """Return the factor on what pulls neighbours together when a fraction of the rounds is done."""
        return self.early_attraction if done < EARLY_FRACTION else 1.0


def _loss_limit(options: LayoutOptions) -> float:
    """Return the loss of pairs FAR apart, and of negatives that all lie in one place."""
    nearest = -math.log(options.smooth) if 0 < options.smooth < 1 else 0.0
    return math.log1p(FAR**2) + options.negative_weight * nearest


class LayoutTrainer(BlockTrainer):
    """Places points so that neighbours lie close together, by LargeVis' objective.

    A round is an epoch: as many edges as there are, drawn by their weights. How many a block draws is their expected
    number, rounded up or down at random.

    Args:
        positions: the first ones, a row for each point in the order of `parts` [num_points, dim], float32.
        make_blocks: sorts the edges by blocks, and makes the tables to draw from.
        score, metric: see :class:`BlockTrainer`.
    """

    kernel = "layout on tied blocks"
    round_name = "epoch"

    def __init__(
        self,
        positions: Tensor,
        parts: NodeParts,
        make_blocks: Callable[[], tuple[BlockEdges, Drawn]],
        options: LayoutOptions,
        plan: LayoutPlan,
        *,
        score: Score,
        metric: str,
        seed: int = 0,
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
    ):
        super().__init__(
            parts,
            {"positions": {"rows": positions}},
            tied_rounds(parts.num_parts),
            plan,
            finish=lambda rows: rows,
            score=score,
            metric=metric,
            dim=positions.size(1),
            seed=seed,
            ranks=ranks,
            stop=stop,
            loss_limit=_loss_limit(options),
        )
        self.positions, self._layout_plan = positions, plan
        self._make_blocks, self._options = make_blocks, options
        self._num_pairs = np.zeros(0, np.int64)

    @functools.cached_property
    def _blocks(self) -> tuple[BlockEdges, Drawn]:
        make_blocks = self._make_blocks
        del self._make_blocks  # and what it holds
        return make_blocks()

    def _open_round(self, round_: int) -> Round:
        """Choose how many edges each block draws."""
        edges, _ = self._blocks
        expected = edges.mass / edges.mass.sum() * len(edges.edges)
        chance = seeds.stream("edges of an epoch", self._seed, round_).random(len(expected))
        self._num_pairs = np.floor(expected + chance).astype(np.int64)
        return Round(int(self._num_pairs.sum()))

    def _train(self, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        edges, drawn = self._blocks
        rows, first, num_parts = self.parts.ptr.tolist(), edges.ptr.tolist(), self.parts.num_parts

        def block(i: int, j: int) -> EdgeBlock:
            number = i * num_parts + j
            return EdgeBlock(
                number,
                rows[i],
                rows[j],
                rows[j + 1] - rows[j],
                first[number],
                first[number + 1] - first[number],
                int(self._num_pairs[number]),
            )

        done = self.progress.round / self.num_rounds
        return layout.train(
            self.positions,
            [[block(i, j) for i, j in task] for task in tasks],
            drawn,
            self._options,
            lr=self.progress.lr,
            attraction=self._layout_plan.attraction(done),
            key=seeds.key("layout", self._seed, self.progress.round),
        )
