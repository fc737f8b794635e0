"""Which rank trains on which batch, and when: held against what one would write down by hand."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau

from parallel_epochs.pipeline.gnn.config import GNNTrainConfig
from parallel_epochs.pipeline.gnn.optimization import build_decay
from parallel_epochs.pipeline.keys import meaning_of
from parallel_epochs.pipeline.run.schedule import DECAYS, DecayOptions, Plateau, Schedule

# Numbers of epochs, batches and ranks: few enough to try them all.
ALL = list(itertools.product((1, 2, 5, 6), (1, 2, 3, 7), (1, 2, 3, 4)))


def test_evaluations_by_hand():
    def evaluated(num_epochs, num_ranks, eval_every):
        schedule = Schedule(
            num_epochs=num_epochs, num_batches=3, num_ranks=num_ranks, eval_every=eval_every
        )
        after, out = 0, []
        while after < num_epochs:
            before, after = after, after + schedule.epochs_of_round(after)
            out += [after] * schedule.is_evaluation_due(before, after)
        return out

    assert evaluated(5, 1, 1) == [1, 2, 3, 4, 5]
    assert evaluated(6, 1, 2) == [2, 4, 6]
    # The last round is always evaluated, and a round that passes a multiple of eval_every in its middle.
    assert evaluated(5, 1, 3) == [3, 5]
    assert evaluated(10, 3, 4) == [6, 9, 10]
    assert evaluated(4, 8, 100) == [4]


@pytest.mark.parametrize("split", [False, True])
def test_every_batch_of_every_epoch_is_trained_once_and_ranks_step_together(split):
    for num_epochs, num_batches, num_ranks in ALL:
        for accumulate in (1, 2, 5):
            check_rounds(num_epochs, num_batches, num_ranks, split, accumulate)


def check_rounds(num_epochs, num_batches, num_ranks, split, accumulate) -> None:
    schedules = [
        Schedule(
            num_epochs=num_epochs,
            num_batches=num_batches,
            rank=rank,
            num_ranks=num_ranks,
            split=split,
            accumulate=accumulate,
        )
        for rank in range(num_ranks)
    ]
    rounds = [list(schedule.remaining(0, 0)) for schedule in schedules]
    assert {len(of_rank) for of_rank in rounds} == {schedules[0].rounds_left(0)}
    assert schedules[0].total_steps == schedules[0].num_steps * len(rounds[0])
    trained = 0
    for at_once in zip(*rounds, strict=True):
        assert len({round_ for round_, _ in at_once}) == 1
        batches = [
            (share.draw, batch) for _, share in at_once for batch in share.batches(num_batches)
        ]
        assert len(set(batches)) == len(batches) and {batch for _, batch in batches} == set(
            range(num_batches)
        )
        most = max(len(share.batches(num_batches)) for _, share in at_once)
        assert math.ceil(most / accumulate) == schedules[0].num_steps
        trained += len(batches)
    assert trained == num_epochs * num_batches


@pytest.mark.parametrize("split", [False, True])
def test_a_resumed_round_has_the_batches_that_are_left(split):
    for num_epochs, num_batches, num_ranks in ALL:
        for accumulate in (1, 2):
            check_resumed_rounds(num_epochs, num_batches, num_ranks, split, accumulate)


def check_resumed_rounds(num_epochs, num_batches, num_ranks, split, accumulate) -> None:
    for rank in range(num_ranks):
        schedule = Schedule(
            num_epochs=num_epochs,
            num_batches=num_batches,
            rank=rank,
            num_ranks=num_ranks,
            split=split,
            accumulate=accumulate,
        )
        rounds = list(schedule.remaining(0, 0))
        for at, step in itertools.product(range(len(rounds)), range(schedule.num_steps)):
            epochs = at if split else at * num_ranks
            resumed = list(schedule.remaining(at, epochs, step))
            assert (
                list(resumed[0][1].batches(num_batches))
                == list(rounds[at][1].batches(num_batches))[step * accumulate :]
            )
            assert (
                resumed[0][0] == at
                and resumed[0][1].draw == rounds[at][1].draw
                and resumed[1:] == rounds[at + 1 :]
            )
            assert schedule.rounds_left(epochs) == len(resumed)


def test_learning_rates_of_split_are_scaled_by_the_batches_of_a_step():
    schedule = Schedule(
        num_epochs=2, num_batches=6, num_ranks=4, split=True, lr=0.1, lr_scaling="linear"
    )
    assert [schedule.learning_rate(9, 0, step) for step in range(2)] == pytest.approx([0.4, 0.2])
    # Steps of 2 batches a rank: 4 ranks have 8 of 11, then 3 have one or two of the others.
    more = Schedule(
        num_epochs=2,
        num_batches=11,
        num_ranks=4,
        split=True,
        accumulate=2,
        lr=0.1,
        lr_scaling="linear",
    )
    assert [more.learning_rate(9, 0, step) for step in range(2)] == pytest.approx([0.4, 0.3])
    few = Schedule(num_epochs=2, num_batches=3, num_ranks=8, split=True, lr=0.1, lr_scaling="sqrt")
    assert few.learning_rate(9, 1) == pytest.approx(
        0.1 * 3**0.5
    ) and "scaled (sqrt) 0.173205" in str(few)


@pytest.mark.parametrize(
    "scaling, factors", [("none", [1, 1]), ("sqrt", [2, 2**0.5]), ("linear", [4, 2])]
)
def test_learning_rates_by_hand(scaling, factors):
    schedule = Schedule(
        num_epochs=6, num_batches=3, num_ranks=4, lr=0.1, lr_scaling=scaling, warmup_steps=4
    )
    # Six epochs of four ranks: a round of four, and one of two.
    assert [schedule.learning_rate(10, epochs) / 0.1 for epochs in (0, 4)] == pytest.approx(factors)
    warmup = [schedule.learning_rate(step, 0) / (0.1 * factors[0]) for step in range(5)]
    assert warmup == pytest.approx([0.25, 0.5, 0.75, 1, 1])


@pytest.mark.parametrize(
    "decay, torchs",
    [
        (DECAYS["linear"], lambda optimizer: LinearLR(optimizer, 1.0, 0.0, total_iters=9)),
        (DECAYS["cosine"], lambda optimizer: CosineAnnealingLR(optimizer, 9)),
    ],
)
def test_a_falling_learning_rate_is_torchs_from_the_end_of_the_warm_up_on(decay, torchs):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs, ours = torchs(optimizer), decay(DecayOptions(0.3, first_step=4, last_step=13))
    assert [ours.lr(step) for step in range(5)] == [0.3] * 5
    for step in range(4, 13):
        assert ours.lr(step) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step(), theirs.step()
    assert ours.lr(13) == ours.lr(20) == pytest.approx(0)
    assert decay(DecayOptions(0.3, first_step=4, last_step=4)).lr(4) == 0.3, (
        "the warm-up is all there is"
    )


def test_a_run_gives_its_decay_the_steps_and_the_direction_of_its_metric(configure):
    schedule = Schedule(num_epochs=4, num_batches=5, warmup_steps=3)
    for name, metric, lower in (
        ("linear", "rmse", True),
        ("plateau", "rmse", True),
        ("plateau", "acc", False),
    ):
        config = configure(f"train.schedule={name}", "train.lr=0.5")
        decay = build_decay(config, SimpleNamespace(metric=metric), schedule)
        assert decay._options == DecayOptions(0.5, 3, 20, lower_is_better=lower)


def test_another_number_of_ranks_goes_on_with_the_learning_rate_where_it_was():
    one, two = (Schedule(num_epochs=16, num_batches=4, num_ranks=ranks) for ranks in (1, 2))
    rates = [
        build_decay(
            SimpleNamespace(
                train=SimpleNamespace(
                    schedule="cosine", lr=1, plateau_factor=0.1, plateau_patience=1
                )
            ),
            SimpleNamespace(metric="acc"),
            schedule,
        ).lr(schedule.steps_before(10))
        for schedule in (one, two)
    ]
    assert (one.steps_before(10), two.steps_before(10)) == (40, 20)
    assert rates[0] == pytest.approx(rates[1]) and rates[0] > 0.3


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_a_plateau_lowers_the_learning_rate_as_torch_does_and_goes_on_from_its_state(
    lower_is_better, caplog
):
    caplog.set_level("INFO")
    options = DecayOptions(
        0.1, plateau_factor=0.5, plateau_patience=1, lower_is_better=lower_is_better
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    theirs = ReduceLROnPlateau(
        optimizer, "min" if lower_is_better else "max", factor=0.5, patience=1
    )
    ours = Plateau(options)
    found = []
    for score in (0.5, 0.6, 0.6, 0.7, 0.6, 0.6, 0.4, 0.3, 0.5, 0.5):
        resumed = Plateau(options)
        resumed.load(ours.state())
        for plateau in (ours, resumed):
            plateau.observe(score)
        theirs.step(score)
        assert ours.state() == resumed.state() and ours.lr(0) == theirs.get_last_lr()[0]
        found.append(ours.lr(0))
    by_hand = (
        [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.125]
        if lower_is_better
        else [1, 1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    )
    assert found == pytest.approx([0.1 * factor for factor in by_hand])
    assert (
        "learning rate falls from 0.1 to 0.05: the validation metric was not better than "
        f"{0.5 if lower_is_better else 0.7:.4f}; evaluations in a row: 2" in caplog.text
    )
    few = Schedule(num_epochs=2, num_batches=6, num_ranks=4, lr=0.1, warmup_steps=10)
    assert few.learning_rate(4, 0, lr=ours.lr(4)) == pytest.approx(0.1 * 0.125 / 2)
    assert meaning_of(GNNTrainConfig, "schedule").choices == tuple(DECAYS)
