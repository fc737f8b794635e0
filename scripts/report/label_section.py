"""The sections of a page about classes, tasks, targets or pairs: labels, scores, and what was confused."""

from parallel_epochs.scripts.report import words
from parallel_epochs.scripts.report.curve_section import ranking_table
from parallel_epochs.scripts.report.elements import (
    Cell,
    Column,
    escape,
    matrix,
    number,
    paragraph,
    table,
    text,
)
from parallel_epochs.scripts.report.label_scores import (
    NOUNS,
    extremes,
    has_each,
    mistakes,
    names_of,
    rates,
)

# A matrix of more classes is a list of the most frequent mistakes instead, and a longer table is closed at first.
MAX_MATRIX, MAX_OPEN, MAX_MISTAKES = 30, 30, 20
MAX_PAIR = 12  # classes of two matrices that stand next to each other
PLURALS = {"class": "classes", "task": "tasks", "target": "targets", "pair": "pairs"}
SPLITS = ("train", "valid", "test")


def title_of(record: dict | None) -> str:
    """Return the heading of the section with the labels."""
    return "Labels" if record is None else PLURALS[NOUNS[record["kind"]]].capitalize()


def label_section(record: dict) -> str:
    """Build the numbers of labels of each split, and the scores of each class, task or target."""
    told = paragraph(_rows(record))
    if record["kind"] == "links":
        return told + ranking_table(record)
    noun, size = NOUNS[record["kind"]], record["num_labels"]
    if not has_each(record):
        return told + paragraph(
            f"{words.count(size, noun, PLURALS[noun])}: the run recorded no scores of each.", "note"
        )
    is_classes = record["kind"] == "classes"
    content = _classes(record) if is_classes else _columns(record)
    told += "" if is_classes else _range(record)
    shown = table(*content, label=f"Scores of each {noun}")
    if size > MAX_OPEN:
        shown = f"<details><summary>All {size:,} {PLURALS[noun]}</summary>{shown}</details>"
    return told + shown + paragraph(f"Scores after epoch {record['epoch']:,}.", "note")


def confusion_section(record: dict) -> str:
    """Build the confusion matrices of validation and test, or the most frequent mistakes of many classes."""
    if record["kind"] != "classes" or not has_each(record):
        return ""
    names, size = names_of(record), record["num_labels"]
    blocks = []
    for split in SPLITS[:0:-1]:
        counts = record["splits"][split]["confusion"]
        if not any(map(any, counts)):
            continue
        heading = f"<h3>{words.SPLITS[split]}</h3>"
        blocks.append(
            f"<div>{heading}{_matrix(names, counts, record['unit'])}</div>"
            if size <= MAX_MATRIX
            else f"<div>{heading}{_mistakes(names, counts)}</div>"
        )
    if not blocks:
        return ""
    told = (
        "Each row is a class, and each column a prediction. Blue cells are right, orange ones wrong; "
        "the shade is the share of the row."
        if size <= MAX_MATRIX
        else f"The most frequent wrong predictions among {size:,} classes."
    )
    kind = "stack" if MAX_PAIR < size <= MAX_MATRIX else "pair"
    return paragraph(told, "note") + f'<div class="{kind}">{"".join(blocks)}</div>'


def _rows(record: dict) -> str:
    """Say how many rows each split has."""
    unit = "pairs" if record["kind"] == "links" else record["unit"]
    parts = []
    for split in SPLITS:
        rows = record["splits"][split]
        more = f" and {rows['negatives']:,} that are not linked" if "negatives" in rows else ""
        parts.append(f"{words.SPLITS[split]}: {rows['rows']:,} {unit}{more}")
    return ". ".join(parts) + "."


def _range(record: dict) -> str:
    """Say between what scores the tasks or targets lie."""
    scores, names = record["splits"]["test"]["score"], names_of(record)
    if (found := extremes(scores)) is None or len(scores) < 3:
        return ""
    noun, (low, high, median) = NOUNS[record["kind"]], found
    shown = [f"{words.score(scores[i])} ({noun} {words.shortened(names[i])})" for i in (low, high)]
    told = (
        f"Test {words.metric_name(record['metric'])} of a {noun}: from {' to '.join(shown)}, median "
        f"{words.score(median)}."
    )
    if undefined := scores.count(None):
        told += (
            f" It is undefined for {words.count(undefined, noun, PLURALS[noun])}, whose labels are all of one "
            "kind or unknown."
        )
    return paragraph(told)


def _classes(record: dict) -> tuple[list[Column], list[list[Cell]]]:
    splits = record["splits"]
    columns = [
        Column("Class"),
        Column("Test F1", True, "harmonic mean of precision and recall"),
        Column("Test precision", True, "share of the rows predicted as this class that have it"),
        Column("Test recall", True, "share of the rows of this class that are predicted so"),
        Column("Validation F1", True, "harmonic mean of precision and recall"),
        *_count_columns(),
    ]
    valid, test = rates(splits["valid"]["confusion"]), rates(splits["test"]["confusion"])
    rows = [
        [
            _name(name),
            *(_score(test[i][key]) for key in ("f1", "precision", "recall")),
            _score(valid[i]["f1"]),
            *(_count(splits[split]["labels"][i]) for split in SPLITS),
        ]
        for i, name in enumerate(names_of(record))
    ]
    return columns, rows


def _columns(record: dict) -> tuple[list[Column], list[list[Cell]]]:
    """Build the table of binary tasks or of targets."""
    splits, metric = record["splits"], words.metric_name(record["metric"])
    is_binary = record["kind"] == "binary tasks"
    columns = [
        Column(NOUNS[record["kind"]].capitalize()),
        Column(f"Test {metric}", True),
        Column(f"Validation {metric}", True),
        *(
            [Column("Positive", True, "share of the labels of all splits that are 1")]
            if is_binary
            else []
        ),
        *_count_columns(),
    ]
    rows = []
    for i, name in enumerate(names_of(record)):
        counts = [splits[split]["labels"][i] for split in SPLITS]
        cells = [_name(name), *(_score(splits[split]["score"][i]) for split in SPLITS[:0:-1])]
        if is_binary:
            share = sum(splits[split]["positive"][i] for split in SPLITS) / max(sum(counts), 1)
            cells.append(number(share if any(counts) else None, f"{share:.1%}"))
        rows.append(cells + [_count(count) for count in counts])
    return columns, rows


def _count_columns() -> list[Column]:
    return [Column(f"{words.SPLITS[split]} labels", True) for split in SPLITS]


def _name(name: str) -> Cell:
    return Cell(escape(words.shortened(name)), name)


def _count(value: int) -> Cell:
    return number(value, words.count(value))


def _score(value: float | None) -> Cell:
    return number(value, words.score(value))


def _matrix(names: list[str], counts: list[list[int]], unit: str) -> str:
    shown = [words.shortened(name) for name in names]
    return matrix(
        shown,
        counts,
        label="Confusion matrix",
        hint=lambda i, j: (
            f"{counts[i][j]:,} of {sum(counts[i]):,} {unit} of {shown[i]} were predicted as {shown[j]}"
        ),
    )


def _mistakes(names: list[str], counts: list[list[int]]) -> str:
    found = mistakes(counts, MAX_MISTAKES)
    if not found:
        return paragraph("Every prediction is right.")
    columns = [
        Column("Class"),
        Column("Predicted as"),
        Column("How often", True),
        Column("Share of the class", True),
    ]
    rows = [
        [
            _name(names[i]),
            text(words.shortened(names[j])),
            _count(count),
            number(count / sum(counts[i]), f"{count / sum(counts[i]):.1%}"),
        ]
        for i, j, count in found
    ]
    return table(columns, rows, label="Most frequent mistakes")
