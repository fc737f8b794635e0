"""Tables of text: zipped or not, where they begin, what separates their columns; digests of files."""

import bz2
import gzip
import io
import lzma

import pytest

from parallel_epochs.pipeline.data import content
from parallel_epochs.pipeline.data.columns import (
    find_head,
    open_unzipped,
    read_bytes,
    read_lines,
    read_table,
)
from parallel_epochs.pipeline.data.sniffer import BLANKS, choose_separator, read_rows, sniff

TEXT = b"# made by hand\n\na\tb\n1\t2\n"


@pytest.mark.parametrize(
    "name, zip_",
    [
        ("t.txt", bytes),
        ("t.txt.gz", gzip.compress),
        ("t.txt.bz2", bz2.compress),
        ("t.txt.xz", lzma.compress),
        ("t.txt", gzip.compress),
    ],
)
def test_zipped_files_are_read_as_plain_ones(name, zip_, tmp_path):
    path = tmp_path / name
    path.write_bytes(zip_(TEXT))
    assert read_bytes(path) == TEXT and read_lines(path) == ["# made by hand", "", "a\tb", "1\t2"]
    with open_unzipped(path) as file:
        assert find_head(file, name, ("#",)) == ("a\tb", 2) and find_head(file, name) == (
            "# made by hand",
            0,
        )
        assert read_table(file, name, "\t", skiprows=2).values.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "name, zip_", [("t.gz", gzip.compress), ("t.bz2", bz2.compress), ("t.xz", lzma.compress)]
)
def test_a_damaged_file_is_named(name, zip_, tmp_path):
    path, whole = tmp_path / name, zip_(bytes(range(256)) * 40)
    for broken in (b"no such thing", whole[:-9], whole[:40] + b"?" * 20 + whole[60:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{name} is damaged or cut short: "):
            read_bytes(path)


def test_a_file_without_lines_has_no_head():
    assert find_head(io.BytesIO(b"\n# only\n \n"), "t", ("#",)) == ("", 3) and find_head(
        io.BytesIO(), "t"
    ) == ("", 0)


@pytest.mark.parametrize(
    "line, least, separator",
    [
        ("a\tb,c", 1, "\t"),
        ("a,b c", 1, ","),
        ("a b", 1, BLANKS),
        ("a, b c", 2, BLANKS),
        ("a,b,c", 2, ","),
        ("a b\t", 1, BLANKS),
        ("a;x b;y", 1, BLANKS),
        ("New York;Rome\nBonn;Oslo", 1, ";"),
        ('"a, b"\tr\tc', 2, "\t"),
        ('"a, b" r c', 2, BLANKS),
        ('5" x,6" y', 1, ","),
        ("a;x b 1\nc;y d 2", 1, BLANKS),
    ],
)
def test_the_first_line_tells_what_separates_columns(line, least, separator):
    assert choose_separator(line.split("\n"), least) == separator


@pytest.mark.parametrize(
    "content, rows",
    [
        ("1\tNew York\n2\tBonn", [["1", "New York"], ["2", "Bonn"]]),
        ('1,"York, NY"\n2,Bonn', [["1", "York, NY"], ["2", "Bonn"]]),
        ("1\ta, b c\n2\t3 4\n", [["1", "a", "b c"], ["2", "3", "4"]]),
        ("2;x, y\n", [["2", "x", "y"]]),
    ],
)
def test_labels_of_a_row_are_divided_by_what_separates_no_cells(content, rows, tmp_path):
    (tmp_path / "labels.txt").write_text(content)
    assert [row for _, row in read_rows(tmp_path / "labels.txt", {"1", "2"})] == rows


def test_texts_that_are_all_quoted_are_quoted():
    assert sniff(b'"a"\t"b"\t1\n"c"\t"d"\t2.5\n', "t").quoted and not sniff(b'a\t"b"\n', "t").quoted


def test_digests_are_those_that_kept_graphs_are_named_by(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv.gz"
    a.write_bytes(b"one"), b.write_bytes(b"two")
    whole = "c88d4df74262143a08e9d190e3bd67f1"
    assert content.hash_file(a) == content.sample_file(a) == whole
    assert (
        content.hash_parts([a, "|", b])
        == "965a215a63142f11a4edbe3a2af40c1536bdcfbe8e989ec0a1e65980d4c32653"
    )
    labelled = content.label([("x", a), ("", b)])
    assert (
        content.hash_parts(labelled)
        == "7f95e1f9d6fb5a935d315b686abe807025cc62fd65de6fcaa2112ca185436f33"
    )
    assert content.hash_named([a, b]) == "d10438a4a32ea719768efc1a5b98f7ab"
