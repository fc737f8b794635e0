"""The entities are dealt out into parts, of which the device holds two: tests of what is drawn, moved and resumed."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves

from parallel_epochs.models.embedding.triples import MODELS, TripleTables
from parallel_epochs.pipeline.knowledge import tables as table_tools
from parallel_epochs.pipeline.knowledge.parts import PartSteps, pairs_in_turn
from parallel_epochs.pipeline.knowledge.tables import HeldTables, TrainedTables
from parallel_epochs.pipeline.run.ranks import Ranks

CPU = torch.device("cpu")
OPTIONS = dict(batch_size=50, chunk_size=8, num_negatives=6, margin=0.0, temperature=1.0, seed=3)


@pytest.mark.parametrize("num_parts", [2, 3, 4, 7])
def test_all_pairs_of_parts_come_once_and_share_a_part_with_the_one_before(num_parts):
    pairs = pairs_in_turn(num_parts)
    assert sorted(pairs) == [(a, b) for a in range(num_parts) for b in range(a + 1, num_parts)]
    assert all({*one} & {*next_} for one, next_ in zip(pairs, pairs[1:]))


def toy():
    rng = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(size, (300,), generator=rng) for size in (41, 3, 41)], 1)
    return triples, TripleTables(
        MODELS["distmult"], *(torch.randn(size, 4, generator=rng) for size in (41, 3))
    )


def test_a_round_trains_every_triple_once_among_two_parts():
    triples, tables = toy()
    steps, trained = (
        PartSteps(triples, 41, num_parts=4, **OPTIONS),
        TrainedTables(tables, OPTIMIZERS["sgd"]),
    )
    orders, sizes, seen = [steps.order(round_) for round_ in range(2)], [], set()
    assert not torch.equal(*orders)
    for step in range(steps.num_steps):
        batch, drawn = (
            steps._batch(trained, orders[1], step),
            steps._draw(trained, 1, step, (2, 30)),
        )
        among = torch.cat(
            [steps._members[part] for part in steps._pairs[steps._pair_of_step[step]]]
        )
        assert torch.isin(batch[:, [0, 2]], among).all() and torch.isin(drawn, among).all()
        assert {*drawn.flatten().tolist()} <= {*among.tolist()} and len(drawn.unique()) > len(
            among
        ) / 2
        sizes.append(len(batch))
        seen |= {tuple(triple) for triple in batch.tolist()}
    assert (
        seen == {tuple(triple) for triple in triples.tolist()}
        and sum(sizes) == 300
        and 0 < max(sizes) <= 50
    )
    assert torch.equal(orders[1].sort().values, torch.arange(300))


OPTIMIZERS = {
    "sgd": lambda tables: torch.optim.SGD(tables.parameters(), lr=0.1),
    "adagrad": lambda tables: torch.optim.Adagrad(tables.parameters(), lr=0.1),
    "adam": lambda tables: torch.optim.SparseAdam(tables.parameters(), lr=0.1),
}


def train(tables, steps, rounds, first=0):
    """Train some rounds from a step of the first on; the state in the middle of the last one."""
    state = None
    for round_ in rounds:
        order = steps.order(round_)
        for step in range(first, steps.num_steps):
            if round_ == rounds[-1] and step == 3:
                state = copy.deepcopy((tables.weights(), tables.moments()))
            steps.backward(tables, order, round_, step, Ranks())
            tables.optimizer.step()
            tables.optimizer.zero_grad()
        first = 0
    return state


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_are_held_are_trained_as_all_rows_in_one_place(optimizer, monkeypatch):
    """Their moments too, from the state of either; a part of 11 entities moves in three pieces."""
    monkeypatch.setattr(table_tools, "MOVED", 4)
    triples, tables = toy()
    whole = TrainedTables(copy.deepcopy(tables), OPTIMIZERS[optimizer])
    held, resumed = (
        HeldTables(copy.deepcopy(tables), OPTIMIZERS[optimizer], 11, CPU) for _ in range(2)
    )
    steps = PartSteps(triples, 41, num_parts=4, **OPTIONS)
    state = train(whole, steps, [0, 1])
    same(state, train(held, steps, [0, 1]))
    resumed.load(*state)
    train(resumed, steps, [1], first=3)
    for tables in (held, resumed):
        same((whole.weights(), whole.moments()), (tables.weights(), tables.moments()))
        assert len(tables.entities) == 22
    for tables in (whole, held, resumed):
        train(tables, steps, [2])
        tables.load(state[0])  # moments stay
        same((state[0], whole.moments()), (tables.weights(), tables.moments()))


def same(one, other):
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
