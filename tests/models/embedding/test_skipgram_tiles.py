"""Skip-gram on tiles by torch operations against autograd, and as a trainer in place of C++."""

import contextlib
import copy
import importlib.util
import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from parallel_epochs.models.embedding import pair_tiles, skipgram_tiles
from parallel_epochs.models.embedding.skipgram import SkipGramOptions
from parallel_epochs.models.kernels.hash import GOLDEN, mix_tensor, signed
from parallel_epochs.pipeline.graph.node_parts import deal_nodes
from parallel_epochs.pipeline.graph.walks import collect_pairs
from parallel_epochs.pipeline.node_embedding import build as node_embedding_build, tiled
from tests.helpers import building as build
from tests.helpers.communities import TIED, small_run, write_communities
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.helpers.running import train
from tests.helpers.tensors import threads
from tests.helpers.triton_process import both_suites, needs_triton, run_cases
from tests.models.embedding.test_skipgram import tables


@pytest.fixture
def small(tmp_path):
    return small_run(write_communities(tmp_path))


@pytest.fixture
def torch_trains(monkeypatch):
    """What a GPU does, on this CPU."""
    monkeypatch.setattr(node_embedding_build, "trains_tiles", lambda device: True)
    monkeypatch.setattr(tiled, "load_kernel", lambda: skipgram_tiles.train)


def test_hash_is_that_of_splitmix():
    """The first numbers of the sequence of seed 0 (https://prng.di.unimi.it/splitmix64.c)."""
    found = mix_tensor(torch.arange(1, 4) * signed(GOLDEN))
    assert [int(bits) % 2**64 for bits in found] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def random_pairs(num_rows=90, num_pairs=700, seed=0):
    """Pairs of different rows, a third of them with row 3, and the rows by their degrees."""
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(num_rows, (2 * num_pairs, 2), generator=rng)
    pairs[::3, 1] = 3
    pairs = pairs[pairs[:, 0] != pairs[:, 1]][:num_pairs]
    return pairs, torch.bincount(pairs[:, 1], minlength=num_rows).argsort(
        descending=True, stable=True
    )


def random_tiles(*, num_rows=90, num_pairs=700, num_parts=4, num_negatives=16, tied=False, key=5):
    pairs, by_degree = random_pairs(num_rows, num_pairs)
    weight = pair_tiles.whole_weights(torch.arange(num_rows) % 7 + 1)
    deal = pair_tiles.deal_rows(by_degree, num_parts, key)
    return pair_tiles.arrange(pairs, deal, weight, num_negatives, key, tied=tied)


def random_tables(dim, optimizer="sgd", *, tied=False):
    heads, tails = tables(90, dim, optimizer)
    return (heads, heads) if tied else (heads, tails)


def clone(heads, tails):
    copied = copy.deepcopy(heads)
    return copied, copied if heads is tails else copy.deepcopy(tails)


def train_round(heads, tails, tiles, options=SkipGramOptions(), lr=0.05):
    loss = torch.zeros(tiles.num_parts, dtype=torch.float64)
    for launch in range(tiles.num_launches):
        skipgram_tiles.train(heads, tails, tiles, launch, options, loss, lr=lr)
    return float(loss.sum()) / len(tiles.pairs)


@pytest.mark.parametrize("num_rows, num_parts", [(90, 4), (23, 8), (7, 2)])
def test_parts_get_rows_of_all_degrees(num_rows, num_parts):
    by_degree = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    deals = [pair_tiles.deal_rows(by_degree, num_parts, key) for key in (1, 1, 2)]
    assert torch.equal(deals[0].part, deals[1].part) and not torch.equal(
        deals[0].part, deals[2].part
    )
    for deal in deals:
        assert (
            deal.rows.sort().values.tolist() == list(range(num_rows))
            and deal.num_parts == num_parts
        )
        for part, rows in enumerate(deal.rows.split(deal.ptr.diff().tolist())):
            assert (deal.part[rows] == part).all()
        for alike in by_degree.split(num_parts):
            assert len(deal.part[alike].unique()) == len(alike)


@pytest.mark.parametrize("tied", [False, True])
def test_programs_of_a_launch_share_no_rows(tied):
    pairs, by_degree = random_pairs()
    deal = pair_tiles.deal_rows(by_degree, 4, 5)
    tiles = random_tiles(tied=tied, num_negatives=3)
    expected = pairs[deal.part[pairs[:, 0]] != deal.part[pairs[:, 1]]] if tied else pairs
    assert sorted(map(tuple, tiles.pairs.tolist())) == sorted(map(tuple, expected.tolist()))
    assert (
        tiles.num_launches == (6 if tied else 4)
        and len(tiles.pair_ptr) == 4 * tiles.num_launches + 1
    )
    for launch in range(tiles.num_launches):
        taken = set()
        for block in range(4 * launch, 4 * launch + 4):
            own = tiles.pairs[tiles.pair_ptr[block] : tiles.pair_ptr[block + 1]].long()
            drawn = tiles.negatives[tiles.tile_ptr[block] : tiles.tile_ptr[block + 1]].long()
            assert len(drawn) == -(-len(own) // 16)
            used = {("head", int(part)) for part in deal.part[own[:, 0]].unique()}
            used |= {
                ("head" if tied else "tail", int(part)) for part in deal.part[own[:, 1]].unique()
            }
            assert len(used) in (0, 2) and not used & taken
            taken |= used
            assert not len(own) or (deal.part[drawn] == deal.part[own[0, 1]]).all()


def test_pairs_of_walks_are_those_of_the_cpu():
    walks = torch.tensor(
        [[0, 1, 2, 0, 1], [3, 2, -1, -1, -1], [4, 4, 5, -1, -1]], dtype=torch.int32
    )
    for distance, both in ((1, False), (2, True), (9, True)):
        parts = deal_nodes(torch.ones(6), 1)
        theirs = parts.node[collect_pairs(walks, parts, distance=distance, both=both).pairs.long()]
        ours = pair_tiles.pair_up(walks, distance, both)
        assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_negatives_follow_the_weights():
    weight = torch.rand(50, generator=torch.Generator().manual_seed(0))
    weight[::7] = 0
    deal = pair_tiles.deal_rows(torch.arange(50), 2, 1)
    pairs = torch.stack([torch.arange(50).repeat(4000), torch.randint(50, (200_000,))], 1)
    tiles = pair_tiles.arrange(pairs, deal, pair_tiles.whole_weights(weight), 8, 3, tied=False)
    found = torch.bincount(tiles.negatives.flatten(), minlength=50).double()
    for part in range(2):
        own = deal.rows[deal.ptr[part] : deal.ptr[part + 1]]
        share, expected = (values[own] / values[own].sum() for values in (found, weight))
        assert (share - expected).abs().max() < 0.005 and not share[expected == 0].any()


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_goes_along_the_gradient(tied):
    """Of the sum over pairs of log sigma(u v) and negatives, but a pair's tail, of weighted log sigma(-u n)."""
    heads, tails = random_tables(5, tied=tied)
    rng = torch.Generator().manual_seed(0)
    # Each tile has rows of its own, and with one table its heads are no tails.
    ends = torch.randint(10, (3, 16, 2), generator=rng) + 30 * torch.arange(3).view(3, 1, 1)
    ends[..., 1] += 10
    drawn = torch.randint(10, (3, 7), generator=rng) + 30 * torch.arange(3).view(3, 1) + 10
    there = torch.rand(3, 16, generator=rng) < 0.6
    u, v = (table.rows.double().requires_grad_() for table in (heads, tails))
    if tied:
        v = u
    head, tail = ends.unbind(-1)
    weight = 0.5 / 7 * there.unsqueeze(2) * (drawn.unsqueeze(1) != tail.unsqueeze(2))
    objective = (logsigmoid((u[head] * v[tail]).sum(-1)) * there).sum() + (
        weight * logsigmoid(-(u[head] @ v[drawn].mT))
    ).sum()
    gradients = torch.autograd.grad(objective, [u] if tied else [u, v])
    expected = [
        table.rows + 0.01 * gradient
        for table, gradient in zip([heads] if tied else [heads, tails], gradients, strict=True)
    ]
    options = SkipGramOptions(negative_weight=0.5)
    loss = skipgram_tiles._train_tiles(heads, tails, ends, there, drawn, options, 0.01)
    assert float(loss.sum()) == pytest.approx(-float(objective.detach()))
    for table, rows in zip([heads, tails], expected, strict=False):
        torch.testing.assert_close(table.rows.double(), rows, rtol=1e-5, atol=1e-6)


def test_a_row_that_all_pairs_move_does_not_diverge():
    """Every pair has one tail: without a bound on its step, the loss is NaN."""
    pairs = torch.stack([torch.arange(500) % 39 + 1, torch.zeros(500)], 1).long()
    deal = pair_tiles.deal_rows(torch.arange(40), 2, 0)
    heads, tails = tables(40, 8)
    losses = [
        train_round(
            heads,
            tails,
            pair_tiles.arrange(
                pairs, deal, pair_tiles.whole_weights(torch.ones(40)), 16, key, tied=False
            ),
            lr=3.0,
        )
        for key in range(20)
    ]
    assert losses[-1] < losses[0] and heads.rows.abs().max() < 30, losses


def test_keys_draw_differently_and_threads_do_not_matter():
    results = []
    for key, count in ((1, 1), (1, 2), (2, 1), (2**64 - 1, 1)):
        heads, tails = random_tables(12)
        with threads(count):
            train_round(heads, tails, random_tiles(key=key))
        results.append(heads.rows)
    assert torch.equal(results[0], results[1])
    assert all(not torch.equal(results[0], other) for other in results[2:])


@needs_triton
@pytest.mark.slow
@both_suites
def test_the_kernel_computes_the_same(chosen):
    run_cases("triton_tiles_cases.py", chosen)


ADAM = ["trainer.optimizer=adam", "train.lr=0.05"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], TIED, ADAM, [*TIED, *ADAM], ["trainer.optimizer=adagrad"]]
)
def test_it_finds_the_communities(overrides, small, configure, tmp_path, torch_trains):
    summary = train(
        configure(*small, *overrides, "train.epochs=100", "train.eval_every=100"), tmp_path / "run"
    )
    assert summary["test"] > 0.7, (
        summary
    )  # 0.30 without training; at worst 0.747 to 0.756, by the width of vectors


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
    with pytest.raises(
        ValueError, match="trainer.tables=disk needs the CPU; this run has device=cuda"
    ):
        config.check()


def test_tensors_lie_on_the_gpu(small, configure, torch_trains, monkeypatch):
    """The trainer of a GPU that is not there ends with the bits of the one that computes the same on the CPU."""
    config = configure(*small, "train.epochs=4", "train.eval_every=4", "trainer.episode_size=3000")
    assert torch.equal(*train_on_both(config, lambda trainer: trainer.heads.rows, monkeypatch))


def train_on_both(config, rows_of, monkeypatch):
    """Train vectors on the CPU and on a pretended GPU, which must hold their rows, and return both."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # Triton need not be there
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**9, 2 * 10**9))
    data = build.open_graph(config).data
    for mode, device in ((contextlib.nullcontext(), torch.device("cpu")), (PretendGPU(), GPU)):
        config.device = device.type
        with mode, contextlib.closing(build.build_trainer(config, data, device)) as trainer:
            for _ in range(2):
                list(trainer.steps())
                trainer.evaluate()
            assert rows_of(trainer).device == device and math.isfinite(trainer.numbers.loss)
            yield trainer.embedding()


@pytest.mark.parametrize(
    "dim, num_negatives, fits",
    [
        (512, 16, True),
        (512, 17, False),
        (128, 112, True),
        (128, 113, False),
        (513, 1, False),
        (16, 500, True),
    ],
)
def test_tiles_that_a_multiprocessor_does_not_hold_are_known(dim, num_negatives, fits):
    """A kernel of 512 numbers takes 192 KiB of the 227 KiB of an H100 with 16 negatives, and 320 KiB with 17."""
    assert pair_tiles.fits_tile(dim, num_negatives) == fits
