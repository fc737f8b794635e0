"""The command `explain`."""

from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.predict.warm import Warm
from parallel_epochs.pipeline.run.saved import SavedRun


def explain(run: SavedRun[GNNConfig], asked: ExplainConfig) -> None:
    """Explain a prediction of a run, and print or write it.

    Raises:
        ValueError: the id names nothing, or there is no such class.
    """
    found = Warm(run, None, {}).explain(asked.node, asked.top, asked.label, "node")
    if asked.output is None:
        print(found)
    else:
        found.write(asked.output)
        print(f"{found.summary}\nwrote {asked.output}")
