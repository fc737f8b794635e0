"""Chooses the answer of a run with a simple method when its network is trained, and gives it when it predicts."""

from pathlib import Path
from typing import Any, cast

from parallel_epochs.pipeline.gnn import fusion, link_fusion
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import Base
from parallel_epochs.pipeline.gnn.simple.link_base import LinkBase
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.stop import StopRequest


def finish(setup: Setup, folder: Path, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None) -> dict[str, Any]:
    """Choose the answer of a run, of labels or of links; see :func:`pipeline.gnn.fusion.finish`."""
    own = link_fusion.finish if isinstance(setup.base, LinkBase) else fusion.finish
    return own(setup, folder, ranks=ranks, stop=stop)


def answer(setup: Setup, predicted: Predicted, run: SavedRun) -> Predicted:
    """Mix the predictions of a network with those of the simple method of its run; those of links when they are asked.
    """
    if setup.base is None:
        return predicted
    if isinstance(setup.task, LinkTask):
        link_fusion.answer_with(setup.task, fusion.read_kept(run), setup.data)
        return predicted
    return fusion.mix_in(predicted, cast(Base, setup.base), fusion.read_kept(run))
