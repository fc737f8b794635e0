"""What ranks exchange at a step of a knowledge graph, and when the triples are ranked; without any other process."""

import types

import pytest
import torch

from parallel_epochs.models.embedding.triples import MODELS, TripleTables, first_rows
from parallel_epochs.pipeline.knowledge.tables import TrainedTables
from parallel_epochs.pipeline.knowledge.trainer import KnowledgeTrainer
from parallel_epochs.pipeline.run.ranks import Ranks


class Doubled(Ranks):
    """Rank 0 of two, of which the other has the same: all sums are twice what it brings."""

    def sum_(self, tensor):
        tensor *= 2

    def gather(self, tensor):
        return [tensor, tensor]


class OneStep:
    """Gives each row of both tables a gradient of 1; of relations none, as a rank without a triple, if asked to."""

    num_steps = 1

    def __init__(self, *, is_sparse: bool, with_relations: bool = True):
        self.is_sparse, self._with_relations = is_sparse, with_relations

    def order(self, round_):
        return torch.arange(1)

    def backward(self, tables, order, round_, step, ranks):
        for table in list(tables.parameters())[: 1 + self._with_relations]:
            table.grad = (
                torch.ones_like(table).to_sparse(1) if self.is_sparse else torch.ones_like(table)
            )
        return 3.0, 5


def trainer_of(steps, *, num_epochs=1, eval_every=1, ranks=Ranks()):
    model = MODELS["complex"]
    tables = TripleTables(
        model,
        *first_rows(model, 6, 2, 4, margin=2.0, scale=0.5, rng=torch.Generator().manual_seed(0)),
        reciprocal=False,
    )
    # It moves by the gradients themselves.
    trained = TrainedTables(tables, lambda tables: torch.optim.SGD(tables.parameters(), lr=1.0))
    return KnowledgeTrainer(
        trained,
        steps,
        num_epochs=num_epochs,
        lr=1.0,
        last_lr=1.0,
        eval_every=eval_every,
        probe=lambda score_all: {"valid": 1.0},
        ranks=ranks,
    )


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("with_relations", [False, True])
def test_tables_move_by_the_sum_of_the_gradients_of_all_ranks(is_sparse, with_relations):
    trainer = trainer_of(
        OneStep(is_sparse=is_sparse, with_relations=with_relations), ranks=Doubled(0, 2)
    )
    before = [table.detach().clone() for table in trainer.tables.parameters()]
    list(trainer.steps())
    moved = [old - new.detach() for old, new in zip(before, trainer.tables.parameters())]
    for difference, expected in zip(moved, (2.0, 2.0 * with_relations)):
        torch.testing.assert_close(difference, torch.full_like(difference, expected))
    assert (trainer.progress.loss_sum, trainer.progress.loss_count) == (6.0, 10.0)


@pytest.mark.parametrize(
    "num_epochs, eval_every, expected", [(8, 3, [3, 6, 8]), (3, 1, [1, 2, 3]), (3, 5, [3])]
)
def test_triples_are_ranked_as_often_as_asked_and_at_the_end(num_epochs, eval_every, expected):
    trainer = trainer_of(
        types.SimpleNamespace(num_steps=0), num_epochs=num_epochs, eval_every=eval_every
    )
    assert [
        epoch for epoch in range(1, num_epochs + 1) if trainer.evaluate() is not None
    ] == expected
