"""The trainer of blocks around a step that only counts: when it evaluates, what it scores, what its ranks exchange."""

import pytest
import torch

from parallel_epochs.pipeline.block_training.trainer import BlockTrainer, Round, RoundPlan
from parallel_epochs.pipeline.graph.node_parts import deal_nodes, orthogonal_rounds, tied_rounds
from parallel_epochs.pipeline.run.ranks import Ranks


class Counting(BlockTrainer):
    """Adds 1 to the rows of both partitions of each block, of heads and of tails."""

    def _open_round(self, round_):
        return Round(num_pairs=7)

    def _train(self, tasks):
        for block in (block for task in tasks for block in task):
            heads, tails = [table["rows"] for table in self._tables.values()] * (
                3 - len(self._tables)
            )
            for rows, part in ((heads, block[0]), (tails, block[1])):
                rows[self.parts.ptr[part] : self.parts.ptr[part + 1]] += 1
        return 1.0, 1.0


def counting(
    num_epochs=1,
    eval_every=1,
    *,
    score=lambda vectors: {"sum": float(vectors.sum())},
    ranks=Ranks(),
    sides=("vectors",),
):
    """Make a trainer of one table for both ends of its blocks, or of two."""
    arrange = tied_rounds if len(sides) == 1 else orthogonal_rounds
    parts = deal_nodes(torch.arange(10), 4)
    plan = RoundPlan(num_epochs=num_epochs, lr=1.0, last_lr=1.0, eval_every=eval_every)
    return Counting(
        parts,
        {side: {"rows": torch.zeros(10, 2)} for side in sides},
        arrange(4),
        plan,
        finish=torch.clone,
        score=score,
        metric="sum",
        dim=2,
        seed=0,
        ranks=ranks,
        stop=None,
    )


@pytest.mark.parametrize(
    "num_epochs, eval_every, expected",
    [(8, 3, [3, 6, 8]), (4, 1, [1, 2, 3, 4]), (3, 5, [3]), (6, 3, [3, 6])],
)
def test_epochs_are_evaluated_as_often_as_asked_and_at_the_end(num_epochs, eval_every, expected):
    trainer, evaluated = counting(num_epochs, eval_every), []
    for epoch in range(1, num_epochs + 1):
        list(trainer.steps())
        if trainer.evaluate() is not None:
            evaluated.append(epoch)
    assert evaluated == expected


def test_each_evaluation_scores_the_vectors_of_its_own_epoch():
    seen = []
    trainer = counting(3, score=lambda vectors: seen.append(vectors.copy()) or {"sum": 0.0})
    for _ in range(3):
        list(trainer.steps())
        trainer.evaluate()
        # The rows lie in the order of the partitions, what is scored in that of the graph.
        assert (seen[-1] == trainer._rows[trainer.parts.row.long()].numpy()).all()
    assert (
        [vectors.sum() for vectors in seen]
        == [seen[0].sum(), 2 * seen[0].sum(), 3 * seen[0].sum()]
        != [0, 0, 0]
    )


class Recorded(Ranks):
    """A rank that notes what it receives, and from whom."""

    received: list

    def sum_(self, tensor):
        pass

    def broadcast_(self, tensor, rank):
        self.received.append((rank, tensor.data_ptr()))

    def broadcast(self, value):
        return value


@pytest.mark.parametrize("sides", [["vectors"], ["heads", "tails"]])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_train_tasks_in_turn_and_receive_all_others(num_ranks, sides):
    """Every partition comes from the rank that has trained it, step by step, of each table its own."""
    whole = counting(sides=sides)
    list(whole.steps())
    trained = [torch.zeros(10, 2) for _ in sides]
    for rank in range(num_ranks):
        ranks = Recorded(rank, num_ranks)
        object.__setattr__(ranks, "received", [])
        trainer = counting(ranks=ranks, sides=sides)
        tables, ptr = (
            [table["rows"] for table in trainer._tables.values()],
            trainer.parts.ptr.tolist(),
        )
        list(trainer.steps())
        for total, rows in zip(trained, tables):
            total += rows
        expected = [
            (place % num_ranks, rows[ptr[part]].data_ptr())
            for tasks in trainer._schedule
            for place, task in enumerate(tasks)
            for side, rows in enumerate(tables)
            for part in sorted({block[side] for block in task})
        ]
        assert ranks.received == expected
    for total, table in zip(trained, whole._tables.values()):
        assert torch.equal(total, table["rows"]) and bool((total > 0).all())
