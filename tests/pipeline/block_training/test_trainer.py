"""The trainer of blocks around a step that only counts: when it evaluates, what it scores, what its ranks exchange."""

import pytest
import torch

from parallel_epochs.pipeline.block_training.trainer import BlockTrainer, Round, RoundPlan
from parallel_epochs.pipeline.graph.node_parts import deal_nodes, tied_rounds
from parallel_epochs.pipeline.run.ranks import Ranks


class Counting(BlockTrainer):
    """Adds 1 to the rows of both partitions of each block."""

    def _open_round(self, round_):
        return Round(num_pairs=7)

    def _train(self, tasks):
        for block in (block for task in tasks for block in task):
            for part in block:
                self._rows[self.parts.ptr[part]:self.parts.ptr[part + 1]] += 1
        return 1.0, 1.0


def counting(num_epochs=1, eval_every=1, *, score=lambda vectors: {"sum": float(vectors.sum())}, ranks=Ranks()):
    parts = deal_nodes(torch.arange(10), 4)
    plan = RoundPlan(num_epochs=num_epochs, lr=1.0, last_lr=1.0, eval_every=eval_every)
    return Counting(parts, {"vectors": {"rows": torch.zeros(10, 2)}}, tied_rounds(4), plan, finish=torch.clone,
                    score=score, metric="sum", dim=2, seed=0, ranks=ranks, stop=None)


@pytest.mark.parametrize("num_epochs, eval_every, expected", [
    (8, 3, [3, 6, 8]), (4, 1, [1, 2, 3, 4]), (3, 5, [3]), (6, 3, [3, 6])])
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
    assert [vectors.sum() for vectors in seen] == [seen[0].sum(), 2 * seen[0].sum(), 3 * seen[0].sum()] != [0, 0, 0]


class Recorded(Ranks):
    """A rank that notes what it receives, and from whom."""

    received: list

    def sum_(self, tensor):
        pass

    def broadcast_(self, tensor, rank):
        self.received.append((rank, tensor.data_ptr()))

    def broadcast(self, value):
        return value


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_train_tasks_in_turn_and_receive_all_others(num_ranks):
    """Every partition comes from the rank that has trained it, step by step."""
    whole = counting()
    list(whole.steps())
    trained = torch.zeros(10, 2)
    for rank in range(num_ranks):
        ranks = Recorded(rank, num_ranks)
        object.__setattr__(ranks, "received", [])
        trainer = counting(ranks=ranks)
        rows, ptr = trainer._rows, trainer.parts.ptr.tolist()
        list(trainer.steps())
        trained += rows
        expected = [(place % num_ranks, rows[ptr[part]].data_ptr()) for tasks in tied_rounds(4)
                    for place, task in enumerate(tasks) for part in sorted({block[0] for block in task})]
        assert ranks.received == expected
    assert torch.equal(trained, whole._rows) and bool((trained > 0).all())
