"""What simple methods reach on the data of a run."""

from collections.abc import Iterator

from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.run.baseline_file import Baseline


def metric_of(setup: Setup) -> str:
    """Return the name of the metric of the runs on this dataset."""
    return setup.task.metric


def find_baselines(setup: Setup) -> Iterator[Baseline]:
    """Fit each simple method to the data of a run and score it; yields one after the other, as they end."""
    return setup.kind.baselines(setup.data, setup.task)
