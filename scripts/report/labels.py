"""Rates of classes, mistakes, curves and further scores: all that a page computes of the scores of a run."""

from itertools import accumulate
from pathlib import Path

from parallel_epochs.pipeline.names import SCORES, SPLITS
from parallel_epochs.pipeline.run import files
from parallel_epochs.scripts.report.words import metric_name, score, shortened, title

# The word for a label, by the kind of the metric, and for several.
NOUNS = {
    "classes": ("class", "classes"),
    "binary tasks": ("task", "tasks"),
    "real values": ("target", "targets"),
    "links": ("pair", "pairs"),
}
NUM_BINS, MAX_MISTAKES = 10, 20


def read_scores(folder: Path) -> dict | None:
    """Read the scores that :func:`pipeline.gnn.base.label_scores.write_best` wrote; none of a run that left none."""
    path = folder / SCORES
    return files.read_json(path) if files.is_there(path) else None


def names_of(record: dict) -> list[str]:
    """Return the names of the classes or tasks; their numbers where they have none."""
    return record.get("names") or [str(number) for number in range(record["num_labels"])]


def scores_of_labels(record: dict) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of the table of each class, task or target."""
    splits, metric = record["splits"], metric_name(record["metric"])
    columns, rows = [f">Test {metric}", f">Validation {metric}"], []
    if record["kind"] == "classes":
        columns = [">Test F1", ">Test precision", ">Test recall", ">Validation F1"]
        valid, test = (rates(splits[split]["confusion"]) for split in ("valid", "test"))
    for i, name in enumerate(names_of(record)):
        counts = [splits[split]["labels"][i] for split in SPLITS]
        if record["kind"] == "classes":
            cells = [*(test[i][key] for key in ("f1", "precision", "recall")), valid[i]["f1"]]
        else:
            cells = [splits[split]["score"][i] for split in ("test", "valid")]
        cells = [score(value) for value in cells]
        if record["kind"] == "binary tasks":
            positive = sum(splits[split]["positive"][i] for split in SPLITS)
            cells.append(f"{positive / max(sum(counts), 1):.1%}")
        rows.append([shortened(name), *cells, *(f"{number:,}" for number in counts)])
    if record["kind"] == "binary tasks":
        columns.append(">Positive")
    labels = [">Training labels", ">Validation labels", ">Test labels"]
    return [title(NOUNS[record["kind"]][0]), *columns, *labels], rows


def rates(counts: list[list[int]]) -> list[dict[str, float | None]]:
    """Compute precision, recall and F1 of each class; None where a rate is undefined."""
    predicted = [sum(column) for column in zip(*counts, strict=True)]

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    return [
        {
            "precision": share(row[i], predicted[i]),
            "recall": share(row[i], sum(row)),
            "f1": share(2 * row[i], predicted[i] + sum(row)),
        }
        for i, row in enumerate(counts)
    ]


def extremes(scores: list) -> tuple[int, int, float] | None:
    """Return the places of the lowest and the highest score, and the median of those that are defined."""
    defined = sorted((value, i) for i, value in enumerate(scores) if value is not None)
    if len(scores) < 3 or not defined:
        return None
    middle = len(defined) // 2
    return defined[0][1], defined[-1][1], (defined[middle][0] + defined[~middle][0]) / 2


def mistakes(record: dict, split: str) -> list[list[str]]:
    """List the most frequent wrong predictions: class, predicted class, how often, and the share of the class."""
    names = names_of(record)
    wrong = [
        (number, sum(row), names[i], names[j])
        for i, row in enumerate(record["splits"][split]["confusion"])
        for j, number in enumerate(row)
        if i != j and number
    ]
    return [
        [shortened(own), shortened(other), f"{number:,}", f"{number / of:.1%}"]
        for number, of, own, other in sorted(wrong, key=lambda one: -one[0])[:MAX_MISTAKES]
    ]


def curves(record: dict, splits: dict[str, str]) -> dict[str, dict]:
    """Return the counts by score of validation and test that a run has recorded, by the name of the split."""
    if record["kind"] == "real values":
        return {}
    parts = {splits[name]: record["splits"][name].get("curve") for name in ("valid", "test")}
    return {name: curve for name, curve in parts.items() if curve}


def areas(curve: dict) -> list[str]:
    """Return both areas under the curves, the share that is positive, and the error of calibration."""
    positive, size = sum(curve["positive"]), sum(curve["positive"]) + sum(curve["negative"])
    error = sum(abs(x - y) * number for x, y, number in reliability(curve)) / size
    return [score(curve["rocauc"]), score(curve["ap"]), f"{positive / size:.1%}", score(error)]


def roc(curve: dict) -> list[tuple[float, float, int]]:
    """Return the false and the true positive rate at each threshold, from the highest down, and how many are above."""
    true, false = ([0, *accumulate(reversed(curve[key]))] for key in ("positive", "negative"))
    return [(f / false[-1], t / true[-1], t + f) for t, f in zip(true, false, strict=True)]


def precision_recall(curve: dict) -> list[tuple[float, float, int]]:
    """Return recall and precision at each threshold, from the highest down, and how many are above."""
    true, false = (list(accumulate(reversed(curve[key]))) for key in ("positive", "negative"))
    return [(t / true[-1], t / (t + f), t + f) for t, f in zip(true, false, strict=True)]


def reliability(curve: dict) -> list[tuple[float, float, int]]:
    """Return mean probability, share that is positive and number of labels of each range of probabilities."""
    bins: dict[int, list[tuple[int, int, float]]] = {}
    parts = (curve[key] for key in ("positive", "negative", "probability"))
    for positive, negative, probability in zip(*parts, strict=True):
        place = min(int(probability * NUM_BINS), NUM_BINS - 1)
        bins.setdefault(place, []).append((positive, negative, probability))
    points = []
    for _, own in sorted(bins.items()):
        size = sum(p + n for p, n, _ in own)
        mean = sum((p + n) * probability for p, n, probability in own) / size
        points.append((mean, sum(p for p, _, _ in own) / size, size))
    return points


def further_scores(run) -> list[list[str]]:
    """List what the summary holds besides the metric of each split: Hits@K, heads, tails, each relation."""
    rows = []
    for name, value in run.summary.get("scores", {}).items():
        metric, _, part = name.removeprefix("valid_").partition("@")
        if part.isdecimal():  # Hits@10 is a metric, and the MRR of heads one of a part
            metric, part = f"{metric}@{part}", ""
        is_valid = name.startswith("valid_") or part == "valid"
        split = ("Validation" if is_valid else "Test") if len(run.splits) > 1 else "All"
        if part.startswith("0."):  # a classifier that is trained on some of the labels
            part = f"{float(part):.0%} of the labels for training"
        part = "all" if part in ("", "valid") else shortened(part)
        if isinstance(value, float):
            rows.append([title(metric_name(metric)), split, part, score(value)])
    return rows
