"""The section of a page on why some rows of the test are predicted as they are, as `explain examples=N` wrote it."""

import math
from pathlib import Path

from parallel_epochs.pipeline.gnn.explain.molecule import picture
from parallel_epochs.pipeline.names import WHY
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.scripts.report import words
from parallel_epochs.scripts.report.elements import (
    Cell,
    Column,
    escape,
    number,
    paragraph,
    table,
    text,
)

# Rows and columns of a table, examples, and characters of a cell that are shown at most.
MAX_ROWS, MAX_COLUMNS, MAX_EXAMPLES, MAX_TEXT = 5, 10, 100, 80
PARTS = {"columns": "Own columns", "neighbours": "Neighbours", "edges": "Edges"}
# Fields of an example, by their types.
FIELDS = {str: ("id", "unit", "truth"), float: ("prediction",), list: (*PARTS, "atoms", "notes")}


def read_why(folder: Path) -> dict[str, list[dict]]:
    """Read the explanations in a run directory; none where there are none.

    Raises:
        DamagedFile: it does not hold what :func:`pipeline.gnn.explain.command.explain_examples` returns.
    """
    path = folder / WHY
    if not files.is_there(path):
        return {}
    record = files.read_json(path)
    found = {which: record.get(which) for which in ("right", "wrong")}
    for which, examples in found.items():
        for one in examples if isinstance(examples, list) else [None]:
            if not _is_example(one):
                raise DamagedFile(
                    f"{path} is damaged: one of the {which} predictions is {one!r:.80}"
                )
    return found


def _is_example(one: object) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(name), kind) for kind, names in FIELDS.items() for name in names)
        and all(isinstance(row, dict) for part in PARTS for row in one[part])
        and all(isinstance(share, float) and math.isfinite(share) for share in one["atoms"])
    )


def why_section(record: dict[str, list[dict]]) -> str:
    """Build the explanations, those of right predictions first; the first of each is open."""
    found = [
        paragraph(
            "A share is a part of the score, from the means of all columns on; a drop is what the score "
            "loses without a neighbour or an edge.",
            "note",
        )
    ]
    for which, examples in record.items():
        shown = [
            _example(one, is_open=place == 0) for place, one in enumerate(examples[:MAX_EXAMPLES])
        ]
        found += (
            [f"<h3>{words.count(len(shown), f'{which} prediction')}</h3>", *shown] if shown else []
        )
    return "".join(found) if record else ""


def _example(one: dict, *, is_open: bool) -> str:
    label, value = one.get("label"), f"{one['prediction']:.4g}"
    what = value if label is None else f"{words.shortened(str(label))} ({value})"
    title = f"{words.shortened(one['id'], MAX_TEXT)}: predicted {what}, truth {words.shortened(one['truth']) or 'none'}"
    parts = [picture(one["id"], one["atoms"])] if one["atoms"] else []
    parts += [
        f"<div><h4>{name}</h4>{_table(one[part][:MAX_ROWS], name)}</div>"
        for part, name in PARTS.items()
        if one[part]
    ]
    notes = "".join(paragraph(words.shortened(str(note), 300), "note") for note in one["notes"])
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{''.join(parts)}{notes}</details>"


def _table(rows: list[dict], label: str) -> str:
    names = list(rows[0])[:MAX_COLUMNS]
    columns = [
        Column(words.shortened(str(name)), all(isinstance(row.get(name), float) for row in rows))
        for name in names
    ]
    return table(columns, [[_cell(row.get(name)) for name in names] for row in rows], label=label)


def _cell(value: object) -> Cell:
    if isinstance(value, float):
        return number(value, f"{value:.4g}")
    return text("" if value is None else words.shortened(str(value), MAX_TEXT))
