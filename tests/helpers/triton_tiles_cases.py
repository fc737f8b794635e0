"""Cases for the Triton kernels of pairs in tiles, run by test_skipgram_tiles.py in a process of their own."""

import pytest
import torch

from parallel_epochs.models.embedding import layout_gpu, skipgram_gpu, skipgram_tiles
from parallel_epochs.models.embedding.layout import LayoutOptions
from parallel_epochs.models.embedding.skipgram import SkipGramOptions, Table
from tests.helpers import layout_tiles
from tests.helpers.triton_process import choose_device, more
from tests.models.embedding.test_skipgram_tiles import clone, random_tables, random_tiles

DEVICE = choose_device()
skipgram_gpu.PRECISION = "ieee"


def move(tiles):
    return type(tiles)(
        *(
            part.to(DEVICE) if isinstance(part, torch.Tensor) else part
            for part in vars(tiles).values()
        )
    )


@pytest.mark.parametrize(
    "optimizer, tied, dim, num_negatives",
    [
        ("sgd", False, 20, 16),
        ("adam", True, 16, 5),
        ("adagrad", False, 40, 20),
        *more(("sgd", True, 128, 16), ("adam", False, 70, 16)),
    ],
)
def test_a_round_is_that_of_torch(optimizer, tied, dim, num_negatives, rounds=1e-4):
    tiles = random_tiles(num_negatives=num_negatives, tied=tied)
    options = SkipGramOptions(optimizer=optimizer, weight_decay=0.01)
    heads, tails = random_tables(dim, optimizer, tied=tied)
    found, losses = [], []
    for function in (skipgram_tiles.train, skipgram_gpu.train, skipgram_gpu.train):
        ours = [table.to(DEVICE) for table in clone(heads, tails)]
        there = move(tiles)
        loss = torch.zeros(tiles.num_parts, dtype=torch.float64, device=DEVICE)
        for launch in range(tiles.num_launches):
            function(*ours, there, launch, options, loss, lr=0.05)
        found.append(ours), losses.append(loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=rounds, atol=rounds)
    assert torch.equal(losses[1], losses[2])
    for reference, first, second in zip(*found, strict=True):
        for name, tensor in first.tensors().items():
            torch.testing.assert_close(
                tensor, reference.tensors()[name], rtol=rounds, atol=rounds / 10
            )
            assert torch.equal(tensor, second.tensors()[name])
    assert not torch.equal(found[0][0].rows.cpu(), heads.rows)


@pytest.mark.parametrize("optimizer", ["adagrad", *more("sgd", "adam")])
def test_factors_of_eleven_bits_change_the_last_digits_alone(optimizer, monkeypatch):
    """A GPU trains so; Triton's interpreter rounds nothing."""
    monkeypatch.setattr(skipgram_gpu, "PRECISION", "tf32")
    test_a_round_is_that_of_torch(optimizer, False, 128, 16, rounds=2e-2)


def test_rows_stay_apart():
    """A table of zeros: no gradient moves a row that no pair names."""
    tiles, table = random_tiles(num_rows=40, num_pairs=3, num_parts=2), Table.zeros(40, 16)
    heads, tails = (
        table.to(DEVICE),
        Table(torch.ones(40, 16), table.moments, table.steps).to(DEVICE),
    )
    there = move(tiles)
    loss = torch.zeros(2, dtype=torch.float64, device=DEVICE)
    for launch in range(tiles.num_launches):
        skipgram_gpu.train(heads, tails, there, launch, SkipGramOptions(), loss, lr=0.05)
    moved = heads.rows.ne(0).any(1).nonzero()[:, 0].tolist()
    assert moved == sorted(set(tiles.pairs[:, 0].tolist()))


@pytest.mark.parametrize("dim, num_negatives", [(2, 8), (3, 20)])
def test_a_layout_is_that_of_torch(dim, num_negatives):
    tiles = random_tiles(num_negatives=num_negatives, tied=True)
    start = torch.randn(90, dim, generator=torch.Generator().manual_seed(0))
    options, found = LayoutOptions(num_negatives=num_negatives, smooth=0.1, clip=2.0), []
    for function in (layout_tiles.train, layout_gpu.train, layout_gpu.train):
        positions, loss = (
            start.to(DEVICE, copy=True),
            torch.zeros(tiles.num_parts, dtype=torch.float64, device=DEVICE),
        )
        for launch in range(tiles.num_launches):
            function(positions, move(tiles), launch, options, loss, lr=0.05, attraction=4.0)
        found.append((positions, loss))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(*pair) for pair in zip(found[1], found[2], strict=True))
    assert not torch.equal(found[0][0].cpu(), start)
