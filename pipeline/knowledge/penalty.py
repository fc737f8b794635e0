"""Chooses the weight of the N3 penalty by validation."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import write_config
from parallel_epochs.pipeline.data.opened import OpenData, Part
from parallel_epochs.pipeline.knowledge.build import split_triples
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.trials import Trials

log = logging.getLogger(__name__)

# Weights that are compared, each in so large a part of the epochs; with more triples, the usual weight is taken.
TRIED, SHARE, USUAL, MOST_TRIPLES = (0.0, 0.01, 0.05), 3, 0.05, 100_000


def train_parts(
    train_one: Callable[[Part, Path], dict],
    opened: OpenData,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
) -> dict:
    """Train the vectors of a run, after the choice of its penalty."""
    part = opened.parts[0]
    if part.config.trainer.n3 != keys.AUTO:
        return train_one(part, folder)
    splits, epochs = split_triples(part.data), -(-part.config.train.epochs // SHARE)
    settings = {f"n3={value:g}": value for value in TRIED}

    def train(name: str, epochs: int) -> dict:
        short = {"trainer.n3": settings[name], "train.epochs": epochs, "train.patience": 0}
        return train_one(
            replace(part, config=keys.replaced(part.config, short)), folder / f"setting_{name}"
        )

    chosen = USUAL
    if not len(splits["valid"]) or len(splits["train"]) > MOST_TRIPLES:
        log.info(
            "trainer.n3=auto: %g, without a comparison for more than %s triples, or no validation triples",
            USUAL,
            f"{MOST_TRIPLES:,}",
        )
    else:
        chosen = settings[
            Trials(folder, train, ranks=ranks).choose(list(settings), first=epochs, most=epochs)
        ]
    config = keys.replaced(part.config, {"trainer.n3": chosen})
    if ranks.is_first:  # a resumed run reads it
        write_config(config, folder)
    return train_one(replace(part, config=config), folder)
