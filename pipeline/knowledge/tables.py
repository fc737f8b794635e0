"""The tables of a knowledge graph with their optimizer."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables

BuildOptimizer = Callable[[TripleTables], torch.optim.Optimizer]


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

    def weights(self) -> dict[str, Tensor]:
        """Return ``entities`` [num_entities, dim] and ``relations`` [num_relations, relation_dim], not copied."""
        return {name: table.detach() for name, table in self.named_parameters()}

    def moments(self) -> dict:
        """Return the state of the optimizer, with the moments of the rows of all entities, not copied."""
        return self.optimizer.state_dict()

    def load(self, weights: dict[str, Tensor], moments: dict | None = None) -> None:
        """Replace the tables by those that :meth:`weights` returned, and perhaps the state of the optimizer."""
        for name, table in self.weights().items():
            table.copy_(weights[name])
        if moments is not None:
            self.optimizer.load_state_dict(copy.deepcopy(moments))
