"""Compares models by validation."""

import logging
from collections.abc import Callable
from pathlib import Path

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import write_config
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.trials import Trials

log = logging.getLogger(__name__)

FOLDER = "setting_"
# Where nobody names a model: the largest graph and the epochs of a comparison, and what is left out of it.
MOST_EDGES, EPOCHS = 100_000, 60
SLOW = ("sage", "gatv2")
SECONDS = 600.0


def models_of(first: Setup) -> dict[str, dict]:
    """Return the options of each model that fits the data and the number of channels."""
    channels = first.config.model.hidden_channels
    return {
        name: options
        for name, options in first.kind.models(first.data).items()
        if "kwargs" not in options or channels % options["kwargs"]["heads"] == 0
    }


def choose(
    train_one: Callable[[Setup, Path], dict],
    opened: OpenData,
    folder: Path,
    *,
    of_base: Callable[[Setup], Setup],
    ranks: Ranks = Ranks(),
) -> OpenData:
    """Compare the models by validation, and return the data with the best one as the model of the run.

    With a simple method, the networks are compared before they are mixed with it.

    Args:
        train_one: trains a model in a folder.
        of_base: makes a set-up one whose network reads the simple method of the run, if it has one.
    """
    first = opened.parts[0]
    assert isinstance(first, Setup)
    config, models, most = first.config, models_of(first), first.config.train.epochs
    seconds = SECONDS if config.tune.seconds == keys.AUTO else config.tune.seconds
    if opened.config.model.name != keys.AUTO:
        is_small = (
            first.kind.is_one_graph and first.kind.has_labels and first.data.num_edges <= MOST_EDGES
        )
        if len(opened.parts) > 1 or not is_small:
            return opened
        models = {name: options for name, options in models.items() if name not in SLOW}
        most = min(most, EPOCHS)
        log.info(
            "model: comparing %s by validation for %d epochs each (tune.seconds=0 trains DeeperGCN at once)",
            ", ".join(models),
            most,
        )

    def setup_of(name: str, changes: dict) -> Setup:
        return Setup(
            keys.replaced(config.with_model(models[name]), changes | {"tune.seconds": seconds}),
            first.data,
            first.device,
            first.number,
            first.base,
            first.bare,
        )

    def train(name: str, epochs: int) -> dict:
        short = {"train.epochs": epochs, "train.patience": 0, "train.schedule": "none"}
        summary = train_one(of_base(setup_of(name, short)), folder / f"{FOLDER}{name}")
        # The answers of several networks may be the same simple method, and tell nothing of them.
        return (
            {**summary, "best_valid": summary["network"]["valid"]}
            if "network" in summary
            else summary
        )

    best = Trials(folder, train, ranks=ranks).choose(
        list(models),
        first=config.parallel.num_ranks,
        most=most,
        seconds=seconds,
    )
    chosen = keys.replaced(opened.config.with_model(models[best]), {"tune.seconds": seconds})
    if ranks.is_first:
        write_config(chosen, folder)
    return OpenData(chosen, opened.data, [setup_of(best, {})], opened.components)
