"""Names, units and numbers as a reader of the page wants them."""

import functools

from pipeline import keys
from pipeline.config import MODEL_SCHEMAS, Config
from pipeline.data.config import DATA_SCHEMAS
from pipeline.run.log import format_score

NOTHING = "–"
METRICS = {"rocauc": "ROC-AUC", "acc": "accuracy", "ap": "average precision", "micro_f1": "micro-F1", "mae": "MAE",
           "rmse": "RMSE", "mrr": "MRR"}
SPLITS = {"train": "Training", "valid": "Validation", "test": "Test"}
# Settings that the report takes from the summary, under the keys that a user types.
KEYS = {"num_ranks": "parallel.num_ranks", "parallel": "parallel", "lr_scaling": "parallel.lr_scaling"}
_MODES = {"epochs": "parallel epochs", "split": "one draw, split among the ranks"}


def metric_name(metric: str) -> str:
    """Name a metric as its field writes it."""
    return METRICS.get(metric, metric.replace("hits@", "Hits@"))


def count(value: float | None, noun: str = "", plural: str = "") -> str:
    """Write a number with its thousands apart, and its noun in the right number."""
    if value is None:
        return NOTHING
    noun = f" {noun if value == 1 else plural or noun + 's'}" if noun else ""
    return f"{value:,}{noun}"


def score(value: float | None) -> str:
    """Write a metric."""
    return NOTHING if value is None else format_score(value)


def duration(seconds: float | None) -> str:
    """Write a time in the units that one would say it in."""
    if seconds is None:
        return NOTHING
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def memory(num_bytes: float | None) -> str:
    """Write a size in GiB."""
    return NOTHING if num_bytes is None else f"{num_bytes / 2**30:.2f} GiB"


def time_unit(seconds: list[float]) -> tuple[float, str]:
    """Choose the unit of a column of times: its length in seconds and its name."""
    longest = max(seconds, default=0)
    return next(((length, name) for length, name in ((3600, "h"), (60, "min")) if longest >= 5 * length), (1, "s"))


def setting(key: str, value: object) -> str:
    """Write the value of a setting."""
    if value is None:
        return NOTHING
    if key == "parallel":
        return _MODES.get(str(value), str(value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def versions(value: dict) -> str:
    """Write the versions of packages on one line."""
    return ", ".join(f"{name} {version}" for name, version in value.items())


@functools.cache
def meanings() -> dict[str, str]:
    """Return what each key of any configuration means, in the words of ``--help``."""
    parts = [(Config(), ""), *((schema(), "data.") for schema in DATA_SCHEMAS.values()),
             *((schema(), "model.") for schema in MODEL_SCHEMAS.values())]
    found: dict[str, set[str]] = {}
    for config, prefix in parts:
        for entry in keys.entries(config, prefix):
            found.setdefault(entry.name, set()).add(entry.meaning.text.rstrip("."))
    # A key that several datasets or models have, each with a meaning of its own, has none here.
    return {"parallel": "how the ranks share the work",
            **{name: min(texts) for name, texts in found.items() if len(texts) == 1}}
