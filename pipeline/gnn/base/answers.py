"""Chooses the answer of a run when its network is trained, and gives it when the run predicts."""

from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.gnn.base import fusion, label_scores
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.predict.predictor import predict_best
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.contract import Trainer
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.stop import StopRequest


def finish(
    setup: Setup,
    trainer: Trainer,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Choose what a run answers with at its end if it has a simple method.

    Returns:
        What it adds to the summary.

    Raises:
        Stopped: a rank was asked to stop; all ranks raise it.
    """
    found = dict[str, Any]()
    if setup.base is not None:
        pulse.beat("predicting with the best checkpoint", pulse.State.LONG)
        rows, epoch = predict_best(setup, folder, ranks, stop)
        if ranks.is_first:
            found = setup.kind.choose_answer(setup, rows, epoch, folder)
    return found | (label_scores.read_decisions(folder) if ranks.is_first else {})


def answer(setup: Setup, predicted: Predicted, run: SavedRun) -> Predicted:
    """Mix the predictions of a network with those of the simple method of its run; those of links when they are asked."""
    if setup.base is None or (kept := fusion.read_kept(run)) is None:
        return predicted
    return setup.kind.answer(predicted, setup, kept)
