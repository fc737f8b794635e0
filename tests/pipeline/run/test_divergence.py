"""A session ends a run whose loss explodes while it is finite."""

import math
from types import SimpleNamespace

import pytest

from parallel_epochs.pipeline.run.contract import About, Progress
from parallel_epochs.pipeline.run.session import Session


@pytest.mark.parametrize(
    "first, mean, limit, diverged",
    [
        (0.7, 6999.0, math.inf, False),
        (0.7, 10001.0, math.inf, True),
        (50.0, 4e5, math.inf, False),
        (50.0, 6e5, math.inf, True),
        (None, 2.35e12, 83.2, True),
        (4.2, 83.0, 83.2, False),
    ],
)
def test_a_loss_that_explodes_ends_the_run(first, mean, limit, diverged, tmp_path):
    about = About(
        metric="acc",
        kernel="",
        arithmetic="",
        num_epochs=1,
        num_steps=1,
        num_parameters=1,
        loss_limit=limit,
    )
    progress = Progress(loss_sum=2 * mean, loss_count=2, first_loss=first, best_epoch=3)
    trainer, session = SimpleNamespace(about=about, progress=progress), Session(tmp_path)
    if not diverged:
        return session._refuse_divergence(trainer)
    with pytest.raises(
        FloatingPointError,
        match=r"training has diverged: the mean loss of round 1 is .*; no run|"
        r"round 1 is .*The checkpoint of epoch 3 is kept in .*best.pt. Start a new run with a lower",
    ):
        session._refuse_divergence(trainer)
