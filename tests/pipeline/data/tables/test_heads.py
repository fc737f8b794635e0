"""The names of columns, and the files of a table."""

import pytest

from parallel_epochs.pipeline.data.tables import heads


@pytest.mark.parametrize(
    "line, message",
    [
        ("id,,size", "names the column '' without a name; it is to name each column once"),
        ("id,size,size", "names the column 'size' twice; it is to name each column once"),
        ("id,size,Size", "the columns 'size' and 'Size' differ only by case"),
        ("", "is empty: its first line is to name the columns"),
        (
            "id;size",
            "one column. If ';' separates columns, say so by the key csv .*: csv={delim: ';'}",
        ),
    ],
)
def test_names_of_columns_that_nobody_can_tell_apart(tmp_path, line, message):
    (path := tmp_path / "nodes.csv").write_text(line)
    with pytest.raises(ValueError, match=message):
        heads.read_head(path, {})


@pytest.mark.parametrize(
    "names, message",
    [
        ((), "holds no table: there is no file that ends in .csv, .csv.gz,"),
        (
            ("a.csv", "b.csv.gz"),
            r"holds files of several kinds, .csv and .csv.gz: give a pattern, as in .*\*.csv",
        ),
        (("a.csv", "b.csv", "c.txt"), None),
    ],
)
def test_files_of_a_folder_are_of_one_kind(tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    if message is None:
        assert [path.name for path in heads.expand("data.nodes", tmp_path)] == ["a.csv", "b.csv"]
        return
    with pytest.raises(ValueError, match=message):
        heads.expand("data.nodes", tmp_path)
