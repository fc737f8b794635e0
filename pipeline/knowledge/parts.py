"""Steps on triples of more entities than a device holds: it holds two parts of the entities at a time, as in GraphVite.

Zhu et al., WWW 2019, arXiv:1903.00757. In every round the entities are dealt out anew into P parts, and the triples to
the P (P - 1) / 2 pairs of parts. Triples within a part go to one of its pairs at random. Two pairs in a row share a
part, which stays on the device. Negatives are drawn from the two parts.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables
from parallel_epochs.pipeline.graph.partition import random_partition
from parallel_epochs.pipeline.knowledge.steps import NegativeSteps
from parallel_epochs.pipeline.knowledge.tables import TrainedTables
from parallel_epochs.pipeline.run.seeds import stream


def pairs_in_turn(num_parts: int) -> list[tuple[int, int]]:
    """List all pairs of different parts, the smaller number first; two pairs in a row share a part."""
    pairs = []
    for first in range(num_parts - 1):
        others = range(first + 1, num_parts)
        pairs += [(first, other) for other in (others if first % 2 == 0 else reversed(others))]
    return pairs


class PartSteps(NegativeSteps):
    """Steps of triples whose entities are in two parts.

    Args:
        triples: [num_triples, 3], in memory.
        num_parts: parts of the entities, at least two.
        options: see :class:`NegativeSteps`.
    """

    def __init__(self, triples: Tensor, num_entities: int, *, num_parts: int, **options: Any):
        super().__init__(triples, num_entities, **options)
        self._pairs = pairs_in_turn(num_parts)
        self._num_parts = num_parts
        # A pair takes a step more than its share, so that none is without a step, and no batch is too large.
        self.num_steps += len(self._pairs)

    def order(self, round_: int) -> Tensor:
        """Deal out the entities and the triples of a round; returns the order of the triples, pair by pair."""
        rng, num_pairs = stream("parts", self._seed, round_), len(self._pairs)
        self._parts = random_partition(self._num_entities, self._num_parts, rng)
        self._members = [self._parts.nodes(part) for part in range(self._num_parts)]
        pair_of, order = self._choose_pairs(rng), super().order(round_)
        counts = torch.bincount(pair_of, minlength=num_pairs)
        ends = counts.cumsum(0)
        num_steps = (ends * (self.num_steps - num_pairs) // len(order)).diff(
            prepend=ends.new_zeros(1)
        ) + 1
        pairs = torch.arange(num_pairs).repeat_interleave(num_steps)
        place = torch.arange(self.num_steps) - (num_steps.cumsum(0) - num_steps)[pairs]
        begins = (ends - counts)[pairs] + counts[pairs] * place // num_steps[pairs]
        self._pair_of_step, self._begins = pairs.tolist(), [*begins.tolist(), len(order)]
        return order[pair_of[order].argsort(stable=True)]

    def _choose_pairs(self, rng: np.random.Generator) -> Tensor:
        """Return the pair of parts of each triple."""
        part = torch.empty(self._num_entities, dtype=torch.int64)
        part[self._parts.perm] = torch.arange(self._num_parts).repeat_interleave(
            self._parts.ptr.diff()
        )
        heads, tails = part[self._triples[:, 0]], part[self._triples[:, 2]]
        others = torch.from_numpy(rng.integers(1, self._num_parts, size=len(heads)))
        tails = torch.where(heads == tails, (heads + others) % self._num_parts, tails)
        number = torch.zeros(self._num_parts, self._num_parts, dtype=torch.int64)
        for place, (first, second) in enumerate(self._pairs):
            number[first, second] = number[second, first] = place
        return number[heads, tails]

    def _batch(self, tables: TripleTables, order: Tensor, step: int) -> Tensor:
        assert isinstance(tables, TrainedTables)
        tables.hold(*(self._members[part] for part in self._pairs[self._pair_of_step[step]]))
        triples = self._triples[order[self._begins[step] : self._begins[step + 1]]]
        heads, relations, tails = triples.unbind(1)
        return torch.stack([tables.places(heads), relations, tables.places(tails)], 1)

    def _draw(self, tables: TripleTables, round_: int, step: int, shape: tuple[int, ...]) -> Tensor:
        assert isinstance(tables, TrainedTables)
        first, second = self._pairs[self._pair_of_step[step]]
        size, ptr = len(self._members[first]), self._parts.ptr
        numbers = torch.from_numpy(
            stream("negatives", self._seed, round_, step).integers(
                size + len(self._members[second]), size=shape
            )
        )
        numbers += torch.where(numbers < size, ptr[first], ptr[second] - size)
        return tables.places(self._parts.perm[numbers])
