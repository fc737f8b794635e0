"""Entities in parts, of which the device holds two at a time: what is drawn, held, moved and resumed."""

import contextlib
import copy

import pytest
import torch

from torch.utils._pytree import tree_leaves

from parallel_epochs.models.embedding.triples import MODELS, TripleTables
from parallel_epochs.pipeline.knowledge import tables as table_tools
from parallel_epochs.pipeline.knowledge.build import estimate_bytes
from parallel_epochs.pipeline.knowledge.parts import PartSteps, pairs_in_turn
from parallel_epochs.pipeline.knowledge.tables import HeldTables, TrainedTables
from parallel_epochs.pipeline.run.ranks import Ranks
from tests.helpers import building as build
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.pipeline.knowledge.test_device import follow, free  # noqa: F401 - a fixture
from tests.pipeline.knowledge.test_trainer import ADAGRAD, NEGATIVES, SGD, TOY

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
    return triples, TripleTables(MODELS["distmult"], torch.randn(41, 4, generator=rng), torch.randn(3, 4, generator=rng))


def test_a_round_trains_every_triple_once_among_two_parts():
    triples, tables = toy()
    steps, trained = PartSteps(triples, 41, num_parts=4, **OPTIONS), TrainedTables(tables, OPTIMIZERS["sgd"])
    orders, sizes, seen = [steps.order(round_) for round_ in range(2)], [], set()
    assert not torch.equal(*orders)
    for step in range(steps.num_steps):
        batch, drawn = steps._batch(trained, orders[1], step), steps._draw(trained, 1, step, (2, 30))
        among = torch.cat([steps._members[part] for part in steps._pairs[steps._pair_of_step[step]]])
        assert torch.isin(batch[:, [0, 2]], among).all() and torch.isin(drawn, among).all()
        assert {*drawn.flatten().tolist()} <= {*among.tolist()} and len(drawn.unique()) > len(among) / 2
        sizes.append(len(batch))
        seen |= {tuple(triple) for triple in batch.tolist()}
    assert seen == {tuple(triple) for triple in triples.tolist()} and sum(sizes) == 300 and 0 < max(sizes) <= 50
    assert torch.equal(orders[1].sort().values, torch.arange(300))


OPTIMIZERS = {
    "sgd": lambda tables: torch.optim.SGD(tables.parameters(), lr=0.1),
    "adagrad": lambda tables: torch.optim.Adagrad(tables.parameters(), lr=0.1),
    "adam": lambda tables: torch.optim.SparseAdam(tables.parameters(), lr=0.1)}


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
    held, resumed = (HeldTables(copy.deepcopy(tables), OPTIMIZERS[optimizer], 11, CPU) for _ in range(2))
    steps = PartSteps(triples, 41, num_parts=4, **OPTIONS)
    state = train(whole, steps, [0, 1])
    same(state, train(held, steps, [0, 1]))
    resumed.load(*state)
    train(resumed, steps, [1], first=3)
    for tables in (held, resumed):
        same((whole.weights(), whole.moments()), (tables.weights(), tables.moments()))
        assert len(tables.entities) == 22


def same(one, other):
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("overrides", [ADAGRAD, *(pytest.param(overrides, marks=pytest.mark.slow) for overrides in (
    SGD, NEGATIVES))])
def test_a_gpu_that_holds_two_of_four_parts_trains_what_the_cpu_does(overrides, configure, free, caplog):
    caplog.set_level("INFO")
    config = configure(*TOY, "train.epochs=2", "trainer.num_parts=4", *overrides)
    expected = follow(config, CPU, contextlib.nullcontext())
    tables, step = estimate_bytes(config, build.open_graph(config).data)
    config.device, config.trainer.num_parts, free[0] = "cuda", "auto", 6 * step + tables // 2
    found = follow(config, GPU, PretendGPU())
    assert "trainer.num_parts=auto: 4, as the tables take" in caplog.text
    assert found[:2] == expected[:2] and all(torch.equal(found[2][name], expected[2][name]) for name in found[2])
    resumed = follow(config, GPU, PretendGPU(), stop_after=3)
    assert resumed[:2] == expected[:2]


def test_parts_that_no_gpu_holds_are_refused(configure, free):
    config = configure(*TOY, *ADAGRAD)
    _, step = estimate_bytes(config, build.open_graph(config).data)
    config.device, free[0] = "cuda", 6 * step + 1
    with pytest.raises(ValueError, match="device=cuda: .* free, which is too little for a step of .* and two entities"):
        follow(config, GPU, PretendGPU())
    with pytest.raises(ValueError, match="trainer.num_parts=31: 60 entities make at most 30 parts of two"):
        build.open_graph(configure(*TOY, *ADAGRAD, "trainer.num_parts=31"))
