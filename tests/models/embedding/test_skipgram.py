"""The skip-gram kernel against the reference, tile by tile, and the same bits for any number of threads."""

import copy

import numpy as np
import pytest
import torch

from parallel_epochs.models.embedding import skipgram
from parallel_epochs.models.embedding.skipgram import (
    Negatives,
    PairBlock,
    SkipGramOptions,
    VectorTable,
)
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.pipeline.graph.walks import alias_tables
from tests.helpers import skipgram_numpy
from tests.helpers.random_bits import random_bits
from tests.helpers.tensors import same_for_any_threads


def tables(num_rows, dim, optimizer="sgd", seed=0):
    generator = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(2):
        table = VectorTable.zeros(num_rows, dim, optimizer)
        table.rows[:, :dim] = 0.3 * torch.randn(num_rows, dim, generator=generator)
        out.append(table)
    return out


def problem(num_heads=23, num_tails=17, num_pairs=900, seed=0):
    """Pairs of one block behind some rows and pairs that are none of its own."""
    rng = np.random.default_rng(seed)
    pairs = np.stack(
        [rng.integers(num_heads, size=num_pairs), rng.integers(num_tails, size=num_pairs)], 1
    )
    weight = torch.from_numpy(rng.exponential(size=num_heads + num_tails + 5).astype(np.float32))
    negatives = Negatives(
        *alias_tables(torch.tensor([0, 5, 5 + num_heads, 5 + num_heads + num_tails]), weight)
    )
    block = PairBlock(4, 5, 5 + num_heads, num_heads, num_tails, 30, num_pairs)
    return torch.from_numpy(pairs.astype(np.int32)), negatives, block


def run(heads, tails, optimizer="sgd", function=skipgram.train, key=7, **options):
    pairs, negatives, block = problem()
    options = SkipGramOptions(**{"optimizer": optimizer, **options})
    return function(heads, tails, [[block]], pairs, negatives, options, lr=0.05, key=key)


def assert_close(found, expected):
    for name, tensor in found.tensors().items():
        torch.testing.assert_close(tensor, expected.tensors()[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("optimizer", skipgram.OPTIMIZERS)
@pytest.mark.parametrize(
    "dim, num_negatives, weight_decay", [(16, 32, 0.0), (5, 7, 0.01), (37, 4, 0.0), (100, 1, 0.1)]
)
def test_native_and_reference_agree(optimizer, dim, num_negatives, weight_decay):
    before = tables(45, dim, optimizer)
    native, plain = copy.deepcopy(before), copy.deepcopy(before)
    options = dict(
        optimizer=optimizer,
        num_negatives=num_negatives,
        weight_decay=weight_decay,
        negative_weight=0.1 * num_negatives,
    )
    loss, count = run(*native, **options)
    expected, pairs = run(*plain, function=skipgram_numpy.train, **options)
    assert count == pairs > 0 and loss == pytest.approx(expected, rel=1e-4)
    for table, own, old in zip(native, plain, before, strict=True):
        assert_close(table, own)
        assert not table.rows[:, dim:].any(), "beyond the vectors there are zeros"
        assert torch.equal(table.rows[:5], old.rows[:5]), "rows of other partitions stay"
        assert not torch.equal(table.rows, old.rows)


def test_one_table_for_heads_and_tails():
    first, _ = tables(45, 12)
    native, plain = copy.deepcopy(first), copy.deepcopy(first)
    pairs, negatives, _ = problem(num_tails=23)
    block = PairBlock(0, 5, 5, 23, 23, 0, 500)
    for table, function in ((native, skipgram.train), (plain, skipgram_numpy.train)):
        function(table, table, [[block]], pairs % 23, negatives, SkipGramOptions(), lr=0.05, key=1)
    assert_close(native, plain)
    assert not torch.equal(native.rows, first.rows)


def test_a_group_moves_along_the_gradient():
    """Of one head with its pairs, one tile: the sum of the gradients of the loss that is written down."""
    heads, tails = tables(8, 16)
    before = [table.rows.clone().double().requires_grad_() for table in (heads, tails)]
    pairs = torch.tensor([[2, 0], [2, 3], [2, 6]], dtype=torch.int32)
    negatives = Negatives(torch.ones(8), torch.zeros(8, dtype=torch.int32))
    block = PairBlock(3, 0, 0, 8, 8, 0, 3)
    options = SkipGramOptions(num_negatives=4, negative_weight=2.0)
    lr = 1e-3
    skipgram.train(heads, tails, [[block]], pairs, negatives, options, lr=lr, key=11)
    bits = random_bits(mix(11 + 4 * GOLDEN & MASK))
    drawn = [next(bits) >> 32 for _ in range(4)]
    drawn = [
        number * 8 >> 32 for number in drawn
    ]  # no shuffle of a single group takes numbers before them
    u, v = before
    loss = (
        -torch.nn.functional.logsigmoid(v[[0, 3, 6]] @ u[2]).sum()
        - 2.0 * 3 / 4 * torch.nn.functional.logsigmoid(-v[drawn] @ u[2]).sum()
    )
    loss.backward()
    for table, start in ((heads, u), (tails, v)):
        # Within a tile later updates see earlier ones: equal up to the square of the learning rate.
        torch.testing.assert_close(
            (table.rows.double() - start.detach()) / lr, -start.grad, rtol=0, atol=5e-3
        )


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(3)
    pairs = torch.from_numpy(rng.integers(10, size=(4000, 2)).astype(np.int32))
    negatives = Negatives(torch.ones(50), torch.zeros(50, dtype=torch.int32))
    tasks = [
        [PairBlock(i, 10 * i, 10 * ((i + 1) % 5), 10, 10, 800 * i, 800 * (i + 1))] for i in range(5)
    ]

    def compute():
        heads, tails = tables(50, 20)
        loss = skipgram.train(
            heads, tails, tasks, pairs, negatives, SkipGramOptions(), lr=0.1, key=5
        )
        return heads.rows, tails.rows, loss

    same_for_any_threads(compute, (1, 2, 3, 4))
