"""Tables in files: the same rows in every format, whole or not at all."""

import gzip

import numpy as np
import pandas as pd
import pytest

from parallel_epochs.pipeline.run import tables

PARTS = [
    {
        "id": np.array(["a", 'b "\t,'], object),
        "number": np.array([1, 2]),
        "x": np.array([0.1, 1e-9], np.float32),
        "row": np.arange(4, dtype=np.float32).reshape(2, 2),
    },
    {
        "id": np.array(["c"], object),
        "number": np.array([3]),
        "x": np.array([2.0], np.float32),
        "row": np.full((1, 2), 7, np.float32),
    },
]


@pytest.mark.parametrize("ending", tables.SEPARATORS)
def test_text_gives_every_cell_back(ending, tmp_path):
    path = tmp_path / f"t{ending}"
    tables.write(path, iter(PARTS))
    found = pd.read_csv(path, sep=tables.SEPARATORS[ending])
    assert list(found) == ["id", "number", "x", "row_0", "row_1"]
    assert found["id"].tolist() == ["a", 'b "\t,', "c"] and found["number"].tolist() == [1, 2, 3]
    assert found["x"].to_numpy(np.float32).tolist() == np.array([0.1, 1e-9, 2], np.float32).tolist()
    assert found["row_1"].tolist() == [1, 3, 7]
    again = tmp_path / f"u{ending}"
    tables.write(again, iter(PARTS))
    assert again.read_bytes() == path.read_bytes(), "no time of writing is in it"


def test_parquet_has_a_group_for_each_part_and_lists_for_a_matrix(tmp_path):
    from pyarrow import parquet

    tables.write(tmp_path / "t.parquet", iter(PARTS))
    assert parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 2
    found = pd.read_parquet(tmp_path / "t.parquet")
    assert found["id"].tolist() == ["a", 'b "\t,', "c"] and found["x"].dtype == np.float32
    assert np.stack(found["row"].tolist()).tolist() == [[0, 1], [2, 3], [7, 7]]


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
def test_a_table_that_fails_leaves_what_was_there(ending, tmp_path):
    def parts():
        yield PARTS[0]
        raise RuntimeError("in the middle")

    path = tmp_path / f"t{ending}"
    path.write_bytes(gzip.compress(b"before"))
    with pytest.raises(RuntimeError, match="in the middle"):
        tables.write(path, parts())
    assert gzip.decompress(path.read_bytes()) == b"before" and list(tmp_path.iterdir()) == [path]


def test_an_unknown_format_is_named():
    with pytest.raises(
        ValueError, match=r"output=t.xlsx: tables are one of .parquet, .csv, .csv.gz, .tsv, .tsv.gz"
    ):
        tables.format_of("output", "t.xlsx")
