"""The sections of a page about scores: ROC and precision-recall curves, calibration, and the ranks of links."""

from itertools import accumulate

from parallel_epochs.scripts.report import charts, words
from parallel_epochs.scripts.report.charts import Figures
from parallel_epochs.scripts.report.elements import Column, number, paragraph, table, text

SHOWN = ("valid", "test")
NUM_BINS = 10
NONE = "not computed: the run was trained by an earlier version, has too many {of}, or lacks {of} of one kind."


def ranking_table(record: dict) -> str:
    """Build the table of MRR and Hits@K of the links of validation and test."""
    splits = {
        split: record["splits"][split] for split in SHOWN if record["splits"][split].get("ranking")
    }
    if not splits:
        return paragraph(f"Ranking: {NONE.format(of='pairs')}", "note")
    names = max((part["ranking"] for part in splits.values()), key=len)
    columns = [Column("Metric"), *(Column(words.SPLITS[split], True) for split in splits)]
    rows = [
        [
            text(words.score_name("", words.metric_name(name))),
            *(
                number(value := part["ranking"].get(name), words.score(value))
                for part in splits.values()
            ),
        ]
        for name in names
    ]
    each = next(iter(splits.values())).get("each")
    among = f"its own {each:,} pairs" if each else "all pairs of its split"
    return table(columns, rows, label="Ranking") + paragraph(
        f"A linked pair is ranked among {among} that are not linked. Hits@K is the share of the linked pairs with "
        "fewer than K of them at or above their score.",
        "note",
    )


def _decisions(record: dict) -> str:
    """Build the table of precision, recall and F1 at the thresholds of a run; nothing for a run without."""
    splits = {split: own for split in SHOWN if (own := record["splits"][split].get("decisions"))}
    if not splits:
        return ""
    names = max(splits.values(), key=len)
    rows = [
        [
            text(name),
            *(number(own.get(name), words.score(own.get(name))) for own in splits.values()),
        ]
        for name in names
    ]
    rule = record["threshold"]
    how = (
        "with the best F1 in validation"
        if rule == "f1"
        else "of the probability " + rule
        if rule[0] != "c"
        else f"of the least cost in validation, where a missed positive costs {rule[5:]} false alarms"
    )
    return table(
        [Column("Mean over tasks"), *(Column(words.SPLITS[split], True) for split in splits)],
        rows,
        label="Decisions",
    ) + paragraph(
        f"A row is predicted to be positive above the threshold {how} (task.threshold). Precision@K is the share of "
        "positive rows among the K with the highest scores.",
        "note",
    )


def curve_section(record: dict, figures: Figures) -> str:
    """Draw ROC, precision-recall and calibration curves of binary labels or of links; nothing for other labels."""
    is_links = record["kind"] == "links"
    if record["kind"] == "real values" or record["kind"] == "classes" and record["num_labels"] != 2:
        return ""
    found = {split: curve for split in SHOWN if (curve := record["splits"][split].get("curve"))}
    if not found:
        return paragraph(f"Curves: {NONE.format(of='pairs' if is_links else 'labels')}", "note")
    lines = [
        (split, words.SPLITS[split], SHOWN.index(split), curve) for split, curve in found.items()
    ]
    legend = charts.legend_of([(split, label, place, 1) for split, label, place, _ in lines])
    shown = [
        ("ROC curve", roc, ("false positive rate", "true positive rate"), True),
        ("Precision-recall curve", precision_recall, ("recall", "precision"), False),
        ("Calibration", reliability, ("predicted probability", "share that is positive"), True),
    ]
    drawn = [
        charts.score_curves(
            figures,
            title,
            [(*line[:3], points(line[3])) for line in lines],
            axes,
            diagonal=diagonal,
        )
        for title, points, axes, diagonal in shown[: 2 if is_links else 3]
    ]
    return (
        _scores(found, is_links)
        + _decisions(record)
        + f'<div class="block">{legend}<div class="charts">{"".join(drawn)}</div></div>'
        + paragraph(_explanation(record, is_links), "note")
    )


def _scores(found: dict[str, dict], is_links: bool) -> str:
    """Build the table of the areas under the curves, and of the error of calibration."""
    columns = [
        Column("Split"),
        Column("ROC-AUC", True),
        Column("Average precision", True, "area under the precision-recall curve, by steps"),
        Column("Positive", True, "share that is positive: the average precision of a guess"),
    ]
    if not is_links:
        columns.append(
            Column(
                "Calibration error",
                True,
                "mean distance of the calibration curve from the diagonal, "
                "weighted by the number of labels",
            )
        )
    rows = []
    for split, curve in found.items():
        positive, size = sum(curve["positive"]), sum(curve["positive"]) + sum(curve["negative"])
        error = sum(abs(x - y) * n for x, y, n in reliability(curve)) / size
        rows.append(
            [
                text(words.SPLITS[split]),
                *(number(curve[key], words.score(curve[key])) for key in ("rocauc", "ap")),
                number(positive / size, f"{positive / size:.1%}"),
                *([] if is_links else [number(error, words.score(error))]),
            ]
        )
    return table(columns, rows, label="Areas under the curves")


def _explanation(record: dict, is_links: bool) -> str:
    if is_links:
        return (
            "A pair is predicted as a link above a threshold, which moves along the curves. Precision depends on "
            "how many unlinked pairs were drawn."
        )
    told = (
        f"Class {(record.get('names') or ['0', '1'])[1]} counts as positive. "
        if record["kind"] == "classes"
        else f"The labels of all {record['num_labels']:,} tasks are taken together, so the area differs from the mean "
        "of the tasks. "
        if record["num_labels"] > 1
        else ""
    )
    return (
        f"{told}A threshold moves along the first two curves. A calibrated model is on the diagonal of the third: "
        "80% of the labels that it predicts with probability 0.8 are positive. A point is a range of equal width."
    )


def roc(curve: dict) -> list[tuple[float, float, int]]:
    """Return the false and the true positive rate at each threshold, from the highest down, and how many are above."""
    positive, negative = (
        [0, *accumulate(reversed(curve[key]))] for key in ("positive", "negative")
    )
    return [
        (false / negative[-1], true / positive[-1], true + false)
        for true, false in zip(positive, negative)
    ]


def precision_recall(curve: dict) -> list[tuple[float, float, int]]:
    """Return recall and precision at each threshold, from the highest down, and how many are above."""
    positive, negative = (
        list(accumulate(reversed(curve[key]))) for key in ("positive", "negative")
    )
    return [
        (true / positive[-1], true / (true + false), true + false)
        for true, false in zip(positive, negative)
    ]


def reliability(curve: dict) -> list[tuple[float, float, int]]:
    """Return mean probability, share that is positive and number of labels of each range of probabilities."""
    bins: dict[int, list[tuple[int, int, float]]] = {}
    for positive, negative, probability in zip(
        curve["positive"], curve["negative"], curve["probability"]
    ):
        bins.setdefault(min(int(probability * NUM_BINS), NUM_BINS - 1), []).append(
            (positive, negative, probability)
        )
    points = []
    for _, groups in sorted(bins.items()):
        size = sum(p + n for p, n, _ in groups)
        points.append(
            (
                sum((p + n) * mean for p, n, mean in groups) / size,
                sum(p for p, _, _ in groups) / size,
                size,
            )
        )
    return points
