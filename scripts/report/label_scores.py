"""The scores of each class or task that a run left, and the numbers of labels of each split."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.names import MAX_LABELS, SCORES, SPLITS
from parallel_epochs.pipeline.run import files

# The word for a label, by the kind of the metric.
NOUNS = {"classes": "class", "binary tasks": "task", "real values": "target", "links": "pair"}
LARGEST = 2**53  # a count that a float holds


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_score(value: object) -> bool:
    return value is None or type(value) in (int, float) and math.isfinite(value)


def _is_curve(value: object) -> bool:
    """Tell whether a value is what :func:`pipeline.metrics.count_by_score` returns."""
    if not isinstance(value, dict) or not all(
        isinstance(value.get(key), list) for key in ("positive", "negative", "probability")
    ):
        return False
    positive, negative, probability = (
        value[key] for key in ("positive", "negative", "probability")
    )
    return (
        len(positive) == len(negative) == len(probability)
        and all(map(_is_count, [*positive, *negative]))
        and sum(positive) > 0 < sum(negative)
        and all(map(sum, zip(positive, negative)))
        and all(_is_score(p) and p is not None and 0 <= p <= 1 for p in probability)
        and all(_is_score(value.get(key)) and value[key] is not None for key in ("rocauc", "ap"))
    )


def _is_typed(value: object) -> bool:
    """Tell whether a value describes the types of nodes and the relations of a graph, and scores by neighbours."""
    if not (
        isinstance(value, dict)
        and isinstance(value.get("labelled"), str | None)
        and all(
            isinstance(value.get(key), list) and all(isinstance(item, dict) for item in value[key])
            for key in ("types", "relations", "neighbours")
        )
    ):
        return False
    are_types = all(
        isinstance(kind.get("name"), str)
        and _is_count(kind.get("nodes"))
        and _is_count(kind.get("columns"))
        for kind in value["types"]
    )
    names = {kind.get("name") for kind in value["types"]}
    are_relations = all(
        isinstance(relation.get("name"), str)
        and relation.get("source") in names
        and relation.get("target") in names
        and _is_count(relation.get("edges"))
        and isinstance(relation.get("is_reverse"), bool)
        for relation in value["relations"]
    )
    return (
        are_types
        and len(names) == len(value["types"]) > 0
        and are_relations
        and all(
            _is_count(near.get("relation"))
            and near["relation"] < len(value["relations"])
            and all(
                isinstance(near.get(which), dict)
                and _is_count(near[which].get("rows"))
                and _is_score(near[which].get("score"))
                for which in ("with", "without")
            )
            for near in value["neighbours"]
        )
    )


def read_scores(folder: Path) -> dict | None:
    """Read the scores of a run; none of a run that left none.

    Returns:
        The record that :func:`pipeline.gnn.label_scores.write_best` wrote.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / SCORES
    if not files.is_there(path):
        return None
    try:
        record = files.read_json(path)
        _check(record)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(path) in text else f"{path} is damaged: {text}") from None
    return record


def _check(record: dict) -> None:
    """Refuse a record that the page cannot show; fields that the page does not know are left alone."""
    _need(record, "kind", lambda value: isinstance(value, str) and value in NOUNS)
    _need(record, "epoch", _is_count)
    for key in ("metric", "unit"):
        _need(record, key, lambda value: isinstance(value, str))
    _need(
        record,
        "splits",
        lambda value: (
            isinstance(value, dict) and all(isinstance(value.get(split), dict) for split in SPLITS)
        ),
    )
    if "typed" in record:
        _need(record, "typed", _is_typed)
    splits = [record["splits"][split] for split in SPLITS]
    for split in splits:
        _need(split, "rows", _is_count)
        if split.get("curve") is not None:
            _need(split, "curve", _is_curve)
        if "ranking" in split:
            _need(
                split,
                "ranking",
                lambda value: isinstance(value, dict) and all(map(_is_score, value.values())),
            )
            _need(split, "each", lambda value: value is None or _is_count(value))
    if record["kind"] == "links":
        for split in splits[1:]:
            _need(split, "negatives", _is_count)
        return
    _need(record, "num_labels", _is_count)
    size, is_classes = record["num_labels"], record["kind"] == "classes"
    if size > MAX_LABELS:
        return

    def each(is_whole: Callable[[object], bool]) -> Callable[[object], bool]:
        return lambda value: (
            isinstance(value, list) and len(value) == size and all(map(is_whole, value))
        )

    if record.get("names") is not None:
        _need(record, "names", each(lambda name: isinstance(name, str)))
    for split in splits:
        _need(split, "labels", each(_is_count))
        if record["kind"] == "binary tasks":
            _need(split, "positive", each(_is_count))
    for split in splits[1:]:
        _need(split, "confusion", each(each(_is_count))) if is_classes else _need(
            split, "score", each(_is_score)
        )


def _need(record: dict, key: str, is_whole: Callable[[object], bool]) -> None:
    if not is_whole(value := record.get(key)):
        raise ValueError(f"{key} is {value!r:.80}")


def has_each(record: dict) -> bool:
    """Tell whether a record has the scores of each class or task."""
    return record["kind"] != "links" and 0 < record["num_labels"] <= MAX_LABELS


def names_of(record: dict) -> list[str]:
    """Return the names of the classes or tasks; their numbers where they have none."""
    return record.get("names") or [str(number) for number in range(record["num_labels"])]


def rates(confusion: list[list[int]]) -> list[dict[str, float | None]]:
    """Compute precision, recall and F1 of each class; None where a rate is undefined.

    Args:
        confusion: how often each class was predicted for the rows of each class.
    """
    predicted = [sum(column) for column in zip(*confusion)]
    return [
        {
            "precision": _share(row[i], predicted[i]),
            "recall": _share(row[i], sum(row)),
            "f1": _share(2 * row[i], predicted[i] + sum(row)),
        }
        for i, row in enumerate(confusion)
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def mistakes(confusion: list[list[int]], most: int) -> list[tuple[int, int, int]]:
    """List the most frequent wrong predictions: class, predicted class, and how often."""
    found = [
        (i, j, count)
        for i, row in enumerate(confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(found, key=lambda item: -item[2])[:most]


def extremes(scores: list[Any]) -> tuple[int, int, float] | None:
    """Return the places of the lowest and the highest score, and the median of those that are defined."""
    defined = sorted((score, i) for i, score in enumerate(scores) if score is not None)
    if not defined:
        return None
    middle = len(defined) // 2
    median = (defined[middle][0] + defined[~middle][0]) / 2
    return defined[0][1], defined[-1][1], median
