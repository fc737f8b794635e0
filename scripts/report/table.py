"""Runs in a table: one CSV file with the evaluated rounds of several runs, in place of their directories."""

import csv
import io
from pathlib import Path

from parallel_epochs.pipeline.run import files

# Columns of numbers that change from round to round. All others are settings, which the first row of a run holds.
ROUND = (
    "round",
    "epochs",
    "step",
    "loss",
    "lr",
    "train",
    "valid",
    "test",
    "seconds",
    "wall_seconds",
)
WHOLE = ("round", "epochs", "step", "seed", "num_ranks")
REQUIRED = ("run", "metric", "seed", "num_ranks", "round", "epochs", "step", "loss", "valid")


def read_table(path: Path) -> dict[str, tuple[list[dict], dict]]:
    """Read the rounds and the settings of each run, in the order in which the runs begin.

    Raises:
        ValueError: a column is missing, a cell is not a number, or there are no rows.
    """
    rows = list(csv.DictReader(io.StringIO(files.read_text(path), newline="")))
    if missing := [name for name in REQUIRED if rows and rows[0].get(name) is None]:
        raise ValueError(
            f"{path} is not a table of runs: it lacks the columns {', '.join(missing)}"
        )
    if not rows:
        raise ValueError(f"{path} is not a table of runs: it has no rows")
    found: dict[str, tuple[list[dict], dict]] = {}
    for row in rows:
        cells = {
            key: _number(path, row["run"], key, cell) if key in ROUND + WHOLE else cell
            for key, cell in row.items()
            if key != "run" and cell
        }
        rounds, _ = found.setdefault(
            row["run"], ([], {key: cell for key, cell in cells.items() if key not in ROUND})
        )
        rounds.append({key: cell for key, cell in cells.items() if key in ROUND})
    return found


def _number(path: Path, run: str, key: str, cell: str) -> float:
    try:
        return int(cell) if key in WHOLE else float(cell)
    except ValueError:
        raise ValueError(f"{path}: {key} of {run} is {cell!r}, which is not a number") from None
