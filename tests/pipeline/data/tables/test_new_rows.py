"""Cells of new rows become the numbers that the reader of tables makes of them, to the last bit."""

import numpy as np
import pytest

from parallel_epochs.pipeline.data.tables import new_rows
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.values import CYCLES

NUMBERS = [
    "",
    "5",
    "-0",
    "1e5",
    "1E-5",
    "1e400",
    "1e39",
    "inf",
    "nan",
    " NaN ",
    "NaN",
    "1,5",
    " 5",
    "5\n",
    "+5",
    "1_000",
    ".5",
    "5.",
    "0x1F",
    "1e-400",
    "true",
    "١",
    "\u00a05",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257",
]
DATES = [
    "",
    "2024-02-29",
    "2023-02-29",
    "0001-01-01",
    "9999-12-31",
    "1969-12-31 23:59:59.5",
    "2024-05-31 18:00 +02:00",
    "2024-05-31T18:00:00Z",
    "infinity",
    "epoch",
    "20240531",
    "2024-5-31",
    "yesterday",
    "2024-01-01 00:00 Europe/Berlin",
]


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path, "500MB", 1) as db:
        yield db


def by_sql(db, cell, texts):
    """Compute an expression of SQL of the column ``cell`` of texts."""
    rows = ", ".join(
        f"({place}, {'NULL' if not text else sql_text(text)})" for place, text in enumerate(texts)
    )
    found = db.execute(f"SELECT {cell} FROM (VALUES {rows}) AS t(place, cell) ORDER BY place")
    return np.array([np.nan if value is None else value for (value,) in found], float)


def sql_text(text):
    return "'" + text.replace("'", "''") + "'"


def test_odd_cells_are_cast_as_by_the_reader(database):
    casts, largest = new_rows.Casts(), new_rows.LARGEST
    cell = "TRY_CAST(nullif(cell, '') AS DOUBLE)"  # of Source.number
    expected = by_sql(database, f"CASE WHEN abs({cell}) <= {largest} THEN {cell} END", NUMBERS)
    found = casts.numbers([text or None for text in NUMBERS])
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found[2]) and found[14] == 5 and found[15] == 1000 and np.isnan(found[5])
    time = f"epoch({new_rows.cast_time('cell')})"
    expected = by_sql(database, time, DATES)
    found = casts.times([text or None for text in DATES])
    np.testing.assert_array_equal(found, expected)
    assert found[1] == 1709164800 and np.isnan(found[2])
    waves = new_rows.features_of_date(found, 0.0)[1:]
    for wave, cycle in zip(waves, CYCLES, strict=True):
        np.testing.assert_array_equal(wave, by_sql(database, cycle.format(time), DATES))
