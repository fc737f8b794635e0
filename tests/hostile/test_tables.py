"""Columns of tables that are no features: missing, empty, nested, too many values, or the label itself."""

import datetime
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.hostile import Case, check

pytestmark = pytest.mark.slow

TABLES = (
    "pipeline.check data=tables data.nodes.path=nodes.{suffix} data.nodes.label=kind data.edges.path=edges.csv "
    "data.graph_seed=1 "
)
CHECK, PARQUET = TABLES.format(suffix="csv"), TABLES.format(suffix="parquet")


def nodes(column: list, *, name: str = "a", suffix: str = "csv", num_nodes: int = 40):
    """Write a ring of nodes with one column more, whose cells are repeated."""

    def write(folder: Path) -> None:
        cells = [column[place % len(column)] for place in range(num_nodes)]
        table = pd.DataFrame(
            {
                "id": [f"n{place}" for place in range(num_nodes)],
                "kind": [place % 3 for place in range(num_nodes)],
                name: cells,
            }
        )
        (table.to_csv if suffix == "csv" else table.to_parquet)(
            folder / f"nodes.{suffix}", index=False
        )
        (folder / "edges.csv").write_text(
            "source,target,w\n"
            + "".join(
                f"n{place},n{(place + 1) % num_nodes},{'' if place == 4 else 1}\n"
                for place in range(num_nodes)
            )
        )

    return write


DATES = [datetime.date(2024, 1, 1) + datetime.timedelta(days=place) for place in range(300)]
CATEGORIES = [
    Case(
        "categories of a missing column",
        CHECK + "data.nodes.categories=[b]",
        "data.nodes.categories=b: nodes.csv has no such column; there are id, kind, a",
        nodes(["x"]),
    ),
    Case(
        "categories of an empty column",
        CHECK + "data.nodes.categories=[a]",
        "nodes.csv: column a is empty in every row. Leave it out of data.nodes.categories",
        nodes([""]),
    ),
    Case(
        "many dates as categories",
        PARQUET + "data.nodes.categories=[a]",
        "nodes.parquet: column a holds 300 different values, which would be as many columns of x, "
        "and 256 are the most. Give the column as one of data.nodes.text_tags, "
        "which shares columns among values, or of data.nodes.features if it holds numbers",
        nodes(DATES, suffix="parquet", num_nodes=300),
    ),
    Case(
        "a column used twice",
        CHECK + "data.nodes.categories=[a,a]",
        None,
        nodes(["x"]),
    ),
    Case(
        "a number in two forms",
        CHECK + "data.nodes.categories=[a]",
        None,
        nodes(["1", "2", "1.0"]),
    ),
]
INPUTS = [
    Case(
        "one id in all rows",
        CHECK + "data.duplicates=first",
        "data.train_fraction=0.6 of 1 label is none. Raise it, or give more labels",
        nodes(["n0"], name="id"),
    ),
]


@pytest.mark.parametrize("case", CATEGORIES + INPUTS, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)
