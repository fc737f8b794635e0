"""The loop of every training, whatever the trainer: read this first."""

from typing import Any

from parallel_epochs.pipeline.run.contract import Trainer
from parallel_epochs.pipeline.run.session import Session


def fit(trainer: Trainer, session: Session) -> dict[str, Any]:
    """Train round by round, from the last checkpoint if there is one.

    Every random number is a function of (purpose, seed, round, step, rank): a run that was killed and resumed on the
    same machine with as many threads and ranks ends with the same bits.

    Raises:
        ValueError: the checkpoint is of another dataset or number of ranks.
        FloatingPointError: a loss or a gradient is not finite; the weights have not moved.
        RankError: the ranks' weights differ.
        Stopped: somebody asked for it; the checkpoint is saved. An evaluation that was stopped is due again.
    """
    session.resume(trainer)
    while not session.finished(trainer):
        for step in trainer.steps():
            session.after_step(trainer, step)
        session.close_round(trainer, session.evaluate(trainer))
    return session.result(trainer)
