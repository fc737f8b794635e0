"""The tables of a knowledge graph with their optimizer: all of them on a device, or the rows of two parts at a time."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables

BuildOptimizer = Callable[[TripleTables], torch.optim.Optimizer]
# Rows that are moved at once between memory and a device.
MOVED = 2**17


class TrainedTables(TripleTables):
    """Tables that an optimizer moves.

    Args:
        tables: initial values, which are trained in place.
        build_optimizer: makes the optimizer of these tables.
    """

    def __init__(self, tables: TripleTables, build_optimizer: BuildOptimizer):
        super().__init__(
            tables.model,
            tables.entities.detach(),
            tables.relations.detach(),
            reciprocal=tables.reciprocal,
        )
        self.optimizer = build_optimizer(self)

    def hold(self, *parts: Tensor) -> None:
        """Take the rows and moments of two parts of the entities to where they are trained.

        Args:
            parts: the entities of a part [num_entities_of_part]; the same tensor means the same part.
        """

    def places(self, entities: Tensor) -> Tensor:
        """Return the rows of entities whose parts were taken."""
        return entities

    def whole(self) -> TripleTables:
        """Return the tables with the rows of all entities, as they are now."""
        return self

    def weights(self) -> dict[str, Tensor]:
        """Return ``entities`` [num_entities, dim] and ``relations`` [num_relations, relation_dim], not copied."""
        return {name: table.detach() for name, table in self.whole().named_parameters()}

    def moments(self) -> dict:
        """Return the state of the optimizer, with the moments of the rows of all entities, not copied."""
        return self.optimizer.state_dict()

    def load(self, weights: dict[str, Tensor], moments: dict | None = None) -> None:
        """Replace the tables by those that :meth:`weights` returned, and perhaps the state of the optimizer."""
        for name, table in self.weights().items():
            table.copy_(weights[name])
        if moments is not None:
            self.optimizer.load_state_dict(copy.deepcopy(moments))


class HeldTables(TrainedTables):
    """Tables of which a device holds the rows of two parts of the entities, and memory holds all.

    ``entities`` are the rows on the device [2 * part_size, dim].

    Args:
        tables: see :class:`TrainedTables`; rows of entities stay in memory.
        part_size: the number of entities in the largest part.
        device: where rows are trained.
    """

    def __init__(
        self,
        tables: TripleTables,
        build_optimizer: BuildOptimizer,
        part_size: int,
        device: torch.device,
    ):
        entities = tables.entities.detach()
        super().__init__(
            TripleTables(
                tables.model,
                torch.zeros(2 * part_size, entities.size(1), device=device),
                tables.relations.detach().to(device),
                reciprocal=tables.reciprocal,
            ),
            build_optimizer,
        )
        self._rows = {"": entities}  # of all entities, and their moments by name
        self._place = torch.zeros(len(entities), dtype=torch.int64)
        self._held: list[Tensor | None] = [None, None]
        self._has_changed = False

    def hold(self, *parts: Tensor) -> None:
        self._has_changed = True
        for side, held in enumerate(
            self._held
        ):  # first all that leave, as a new part may have their entities
            if not any(held is part for part in parts):
                self._put_back(side)
                self._held[side] = None
        for part in parts:
            if not any(part is held for held in self._held):
                side = next(side for side, held in enumerate(self._held) if held is None)
                self._held[side] = part
                self._place[part] = torch.arange(len(part)) + self._first(side)
                self._move(side, part, take=True)

    def places(self, entities: Tensor) -> Tensor:
        return self._place[entities]

    def _first(self, side: int) -> int:
        return side * len(self.entities) // 2

    def _put_back(self, side: int) -> None:
        if (part := self._held[side]) is not None:
            self._move(side, part, take=False)

    def _move(self, side: int, part: Tensor, *, take: bool) -> None:
        """Copy the rows and moments of a part to the device, or back."""
        buffer = torch.empty(
            min(MOVED, len(part)), self.entities.size(1), pin_memory=self.entities.is_cuda
        )
        for name, table in self._on_device().items():
            if name not in self._rows:  # an optimizer makes moments in its first step
                self._rows[name] = torch.zeros_like(self._rows[""])
            rows = self._rows[name]
            for begin in range(0, len(part), MOVED):
                numbers = part[begin : begin + MOVED]
                there, copied = (
                    table[self._first(side) + begin :][: len(numbers)],
                    buffer[: len(numbers)],
                )
                if take:
                    there.copy_(torch.index_select(rows, 0, numbers, out=copied))
                else:
                    rows.index_copy_(0, numbers, copied.copy_(there))

    def _on_device(self) -> dict[str, Tensor]:
        state = self.optimizer.state[self.entities]
        return {"": self.entities.detach()} | {
            name: value
            for name, value in state.items()
            if isinstance(value, Tensor) and value.shape == self.entities.shape
        }

    def whole(self) -> TripleTables:
        """Return all rows as they are now, in memory, as tables that later steps change."""
        if self._has_changed:
            for side in range(2):
                self._put_back(side)
        self._has_changed = False
        return TripleTables(
            self.model, self._rows[""], self.relations.detach().cpu(), reciprocal=self.reciprocal
        )

    def moments(self) -> dict:
        self.whole()
        found = self.optimizer.state_dict()
        if 0 not in found["state"]:  # before the first step
            return found
        rows = {name: table for name, table in self._rows.items() if name}
        return found | {"state": found["state"] | {0: found["state"][0] | rows}}

    def load(self, weights: dict[str, Tensor], moments: dict | None = None) -> None:
        self.whole()  # moments of the rows on the device stay
        self._held = [None, None]
        self._rows[""].copy_(weights["entities"])
        self.relations.detach().copy_(weights["relations"])
        if moments is None:
            return
        moments, there = copy.deepcopy(moments), self._on_device()
        of_entities = moments["state"].get(0, {})
        self._rows = {"": self._rows[""]}
        for name, rows in of_entities.items():
            if isinstance(rows, Tensor) and rows.shape == self._rows[""].shape:
                self._rows[name] = rows
                of_entities[name] = (
                    there[name] if name in there else torch.zeros_like(self.entities)
                )
        self.optimizer.load_state_dict(moments)
