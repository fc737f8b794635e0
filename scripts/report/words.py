"""Names and numbers as a page shows them."""

import functools

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import schema
from parallel_epochs.pipeline.products import PRODUCTS
from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.log import format_score

NOTHING = "–"
METRICS = {
    "rocauc": "ROC-AUC",
    "acc": "accuracy",
    "balanced_acc": "balanced accuracy",
    "ap": "average precision",
    "micro_f1": "micro-F1",
    "macro_f1": "macro-F1",
    "mae": "MAE",
    "rmse": "RMSE",
    "mrr": "MRR",
    "mr": "mean rank",
    "knn_acc": "nearest-neighbour accuracy",
    "auc": "AUC of links",
}


def metric_name(metric: str) -> str:
    """Return the usual name of a metric."""
    return METRICS.get(metric, metric.replace("hits@", "Hits@"))


def title(text: str) -> str:
    return text[:1].upper() + text[1:]


def count(value: float | None, noun: str = "", plural: str = "") -> str:
    """Format a number with thousands separators, and its noun in singular or plural."""
    if value is None:
        return NOTHING
    return words.count(value, noun, plural) if noun else f"{value:,}"


def score(value: float | None) -> str:
    return NOTHING if value is None else format_score(value)


def duration(seconds: float | None) -> str:
    """Format a time in a suitable unit."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def memory(num_bytes: float | None) -> str:
    return NOTHING if num_bytes is None else f"{num_bytes / 2**30:.2f} GiB"


def setting(value: object) -> str:
    """Format the value of a setting."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell(value: object) -> str:
    """Format a value of an explanation."""
    return f"{value:.4g}" if isinstance(value, float) else shortened(value or "", 80)


def shortened(name: object, most: int = 60) -> str:
    """Cut a name that is too long for a table."""
    name = str(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


@functools.cache
def meanings() -> dict[str, str]:
    """Return what each key of any configuration means, in the words of ``--help``."""
    found: dict[str, set[str]] = {}
    for product in PRODUCTS.values():
        for config in schema.variants(product):
            for entry in keys.entries(config):
                found.setdefault(entry.name, set()).add(entry.meaning.text.rstrip("."))
    # A key that several datasets or models have, each with a meaning of its own, has none here.
    return {name: min(texts) for name, texts in found.items() if len(texts) == 1}
