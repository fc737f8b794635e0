"""Skip-gram by torch operations against autograd, and as a trainer in place of C++."""

import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from parallel_epochs.models.embedding import skipgram, skipgram_torch
from parallel_epochs.models.embedding.skipgram import Negatives, PairBlock, SkipGramOptions
from parallel_epochs.models.embedding.skipgram_torch import _draw, _tiles, _train_tiles
from parallel_epochs.models.kernels.hash import GOLDEN, mix_tensor, signed
from parallel_epochs.pipeline.node_embedding.trainer import NodeEmbeddingTrainer
from tests.helpers import building as build
from tests.helpers.communities import TIED, small_run, write_communities
from tests.helpers.running import train
from tests.helpers.tensors import threads
from tests.models.embedding.test_skipgram import problem, tables


@pytest.fixture
def small(tmp_path):
    return small_run(write_communities(tmp_path))


@pytest.fixture
def torch_trains(monkeypatch):
    """What a GPU does, on this CPU."""
    plain = NodeEmbeddingTrainer.__init__

    def init(trainer, *args, **kwargs):
        plain(trainer, *args, **kwargs)
        trainer._train_blocks = skipgram_torch.train

    monkeypatch.setattr(NodeEmbeddingTrainer, "__init__", init)


def test_hash_is_that_of_splitmix():
    """The first numbers of the sequence of seed 0 (https://prng.di.unimi.it/splitmix64.c)."""
    found = mix_tensor(torch.arange(1, 4) * signed(GOLDEN))
    assert [int(bits) % 2**64 for bits in found] == [0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f]


@pytest.mark.parametrize("num_pairs", [31, 900])
def test_every_pair_is_in_one_group_of_its_head(num_pairs):
    pairs, _, _ = problem(num_pairs=num_pairs)
    head, tail, there = _tiles(pairs.long(), torch.tensor(5))
    found = torch.stack([head.unsqueeze(-1).expand_as(tail)[there], tail[there]], 1)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, pairs.tolist()))
    sizes = there.sum(-1).flatten()
    full = sum(-(-n // 8) for n in torch.bincount(pairs[:, 0]).tolist())
    assert int((sizes > 0).sum()) == full and sizes.max() <= 8 and head.shape == (-(-full // 8), 8)
    assert head[:, 0].tolist() != sorted(head[:, 0].tolist()) or num_pairs < 100, "groups are shuffled"


def test_negatives_follow_the_weights():
    _, negatives, block = problem()
    weight = torch.from_numpy(np.random.default_rng(0).exponential(size=50).astype(np.float32))
    drawn = _draw(torch.tensor(9), 40_000, block, negatives, 5)
    assert drawn.shape == (40_000, 5) and drawn.min() >= 0 and drawn.max() < block.num_tails
    # What the alias table of the partition says of each row.
    accept, alias = (part[block.first_tail:block.first_tail + block.num_tails] for part in
                     (negatives.accept.double(), negatives.alias.long()))
    expected = accept.clone().index_add_(0, alias, 1 - accept) / block.num_tails
    found = torch.bincount(drawn.flatten(), minlength=block.num_tails) / drawn.numel()
    assert weight.numel() == 50 and (found - expected).abs().max() < 0.004


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_goes_along_the_gradient(tied):
    """Of the sum over pairs of log sigma(u v) and over negatives of weighted log sigma(-u n)."""
    heads, tails = tables(45, 5)
    if tied:
        tails = heads
    rng = torch.Generator().manual_seed(0)
    head, tail = (torch.randint(45, shape, generator=rng) for shape in ((3, 8), (3, 8, 8)))
    there, drawn = torch.rand(3, 8, 8, generator=rng) < 0.6, torch.randint(45, (3, 7), generator=rng)
    u, v = (table.rows.double().requires_grad_() for table in (heads, tails))
    if tied:
        v = u
    positive = logsigmoid((u[head].unsqueeze(2) * v[tail]).sum(-1)) * there
    weight = 2.0 / 7 * there.sum(-1, keepdim=True)
    negative = weight * logsigmoid(-(u[head] @ v[drawn].mT))
    objective = positive.sum() + negative.sum()
    gradients = torch.autograd.grad(objective, [u] if tied else [u, v])
    expected = [table.rows + 0.1 * gradient for table, gradient in zip([heads] if tied else [heads, tails], gradients,
                                                                       strict=True)]
    options = SkipGramOptions(num_negatives=7, negative_weight=2.0)
    loss = _train_tiles(heads, tails, head, tail, there, drawn, options, [torch.full((45,), 0.1)] * 2)
    assert float(loss) == pytest.approx(-float(objective.detach()))
    for table, rows in zip([heads, tails], expected, strict=False):
        torch.testing.assert_close(table.rows.double(), rows, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", skipgram.OPTIMIZERS)
def test_small_blocks_come_near_to_the_kernel(optimizer):
    """With small steps it matters little that rows move at the end of some tiles: losses fall alike."""
    pairs, negatives, block = problem()
    losses = {}
    for name, function in (("kernel", skipgram.train), ("torch", skipgram_torch.train)):
        heads, tails = tables(45, 12, optimizer)
        per_pair = []
        for key in range(40):
            loss, count = function(heads, tails, [[block]], pairs, negatives, SkipGramOptions(
                num_negatives=8, negative_weight=1.0, optimizer=optimizer, weight_decay=0.001), lr=0.01, key=key)
            per_pair.append(loss / count)
        losses[name] = np.mean(per_pair[:3]), np.mean(per_pair[-10:])
    assert losses["torch"][1] < losses["torch"][0]
    assert losses["torch"][1] == pytest.approx(losses["kernel"][1], rel=0.06), losses


def test_a_row_that_all_pairs_move_does_not_diverge():
    """Every pair and every negative of a tile is one tail's: without a bound on its step, the loss is NaN."""
    pairs = torch.stack([torch.arange(500) % 40, torch.zeros(500)], 1).int()
    negatives = Negatives(torch.zeros(40), torch.zeros(40, dtype=torch.int32))
    block = PairBlock(0, 0, 0, 40, 40, 0, 500)
    for function in (skipgram.train, partial(skipgram.train, native=False), skipgram_torch.train):
        heads, tails = tables(40, 8)
        losses = [np.divide(*function(heads, tails, [[block]], pairs, negatives, SkipGramOptions(), lr=0.3, key=key))
                  for key in range(10)]
        # Each tail is as often the negative as the partner: at best -log(1/6) - 5 log(5/6).
        assert 2.7 < losses[-1] < 3.2 and heads.rows.abs().max() < 3, (function, losses)


def test_keys_and_blocks_draw_differently_and_threads_do_not_matter():
    pairs, negatives, block = problem()
    results = []
    for key, number, count in ((1, 4, 1), (1, 4, 2), (2, 4, 1), (1, 5, 1), (2**64 - 1, 4, 1)):
        heads, tails = tables(45, 12)
        with threads(count):
            skipgram_torch.train(heads, tails, [[dataclasses.replace(block, number=number)]], pairs,
                                 Negatives(negatives.accept, negatives.alias), SkipGramOptions(num_negatives=8),
                                 lr=0.05, key=key)
        results.append(heads.rows)
    assert torch.equal(results[0], results[1])
    assert all(not torch.equal(results[0], other) for other in results[2:])


ADAM = ["trainer.optimizer=adam", "train.lr=0.05"]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], TIED, ADAM, [*TIED, *ADAM], ["trainer.optimizer=adagrad"]])
def test_it_finds_the_communities(overrides, small, configure, tmp_path, torch_trains):
    summary = train(configure(*small, *overrides, "train.epochs=100", "train.eval_every=100"), tmp_path / "run")
    assert summary["test"] > 0.7, summary  # 0.30 without training; at worst 0.747 to 0.756, by the width of vectors


def test_its_state_goes_on(small, configure, torch_trains):
    config = configure(*small, "train.epochs=4", "train.eval_every=4", "trainer.episode_size=3000")
    data = build.open_graph(config).data

    def new():
        return build.open_trainer(config, data)

    with new() as whole, new() as first, new() as second:
        for _ in whole.steps():
            pass
        steps = first.steps()
        next(steps), next(steps)
        second.load(copy.deepcopy(first.state()))
        for _ in second.steps():
            pass
        assert torch.equal(whole.embedding(), second.embedding())


def test_a_gpu_and_tables_on_the_disk_are_refused(small, configure):
    config = configure(*small, "trainer.tables=disk")
    config.device = "cuda"
    with pytest.raises(ValueError, match="trainer.tables=disk needs the CPU; this run has device=cuda"):
        config.check()
