"""Keeps scores of simple methods in the cache: `pipeline.baselines` writes them, runs read them at their end."""

import math
from dataclasses import dataclass
from pathlib import Path

from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files


@dataclass(frozen=True)
class Baseline:
    """A simple method, with the settings that the validation split has chosen.

    Attributes:
        name: of the method.
        scores: the metric of each split.
        seconds: what it took, all settings together.
    """

    name: str
    scores: dict[str, float]
    seconds: float


def path_of(cache_dir: str | Path, data_hash: str, metric: str) -> Path:
    """Return the file for a dataset and a metric."""
    return Path(cache_dir) / "baselines" / f"{data_hash}-{metric.replace('@', '-')}.json"


def save(path: Path, metric: str, baselines: dict[str, dict[str, float]]) -> None:
    """Keep the scores of each method, by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"metric": metric, "baselines": baselines})


def load_best(path: Path) -> dict | None:
    """Return the method with the best validation metric: its name, and its scores as "valid" and "test".

    None if there is no such file, if it is damaged, or if no method has a validation metric.
    """
    try:
        kept = files.read_json(path)
        defined = {
            name: scores
            for name, scores in kept["baselines"].items()
            if scores["valid"] is not None
        }
        if not defined:
            return None
        best = max(defined, key=lambda name: merit(kept["metric"], defined[name]["valid"]))
        return {
            "name": best,
            **{
                split: math.nan if (score := defined[best][split]) is None else float(score)
                for split in ("valid", "test")
            },
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
