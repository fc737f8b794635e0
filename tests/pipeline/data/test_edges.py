"""Tables of edges: what is an id, a comment, a header; matrices of SciPy; texts that are not UTF-8."""

import logging

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.readers import edge_table as edges


def read(path, content=None, *, labels=None):
    """Names, the set of edges and the weights."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    data = edges.read(EdgesConfig(path=str(path), labels=labels, train_fraction=0.5))
    return data, unpack_names(data), sorted(map(tuple, data.edge_index.t().tolist()))


@pytest.mark.parametrize(
    "content, names, pairs",
    [
        ("a,b#1\nb#1,c\n", ["a", "b#1", "c"], [(0, 1), (1, 2)]),  # no comment begins within an id
        ("#two\n#a b\na b\n # c d\nb c\n", ["a", "b", "c"], [(0, 1), (1, 2)]),
        ("\ufeff1 2\r\n2 3\r\n", ["1", "2", "3"], [(0, 1), (1, 2)]),
        ("a ,b\na,c \n", ["a", "b", "c"], [(0, 1), (0, 2)]),  # blanks around an id are none of it
        ('"a b",c\n', ["a b", "c"], [(0, 1)]),
        ("NA null\nnan NA\n", ["NA", "nan", "null"], [(0, 2), (1, 0)]),
        ("1.5 2\n2 01\n", ["01", "1.5", "2"], [(1, 2), (2, 0)]),
        ("% part one\na b\n% b\nb %20\n", ["%", "%20", "a", "b"], [(0, 3), (2, 3), (3, 1)]),
        ("9" * 5000 + " 1\n", ["1", "9" * 5000], [(1, 0)]),
        ("GO;1 P1\nGO;2 P1\n", ["GO;1", "GO;2", "P1"], [(0, 2), (1, 2)]),
        ("graph\t{a\nb\t{a\n", ["b", "graph", "{a"], [(0, 2), (1, 2)]),
        ('a\t"a"\n', ['"a"', "a"], [(1, 0)]),
        ('"a, ""b""";c\nc;"d e"\n', ['a, "b"', "c", "d e"], [(0, 1), (1, 2)]),
        ('5" 6"\n', ['5"', '6"'], [(0, 1)]),
    ],
)
def test_ids_stay_what_they_are(content, names, pairs, tmp_path):
    assert read(tmp_path / "edges.txt", content)[1:] == (names, pairs)


@pytest.mark.parametrize(
    "content, message",
    [
        (
            b"a b\ncaf\xe9 b\ncaf\xe8 b\n",
            "not UTF-8 text: line 2 has the byte 0xe9 in 'caf.xe9 b'. .* iconv -f LATIN1",
        ),
        (b"a b\n" * 5000 + b"\xff b\n", "line 5001 has the byte 0xff"),
        ("\u00e9 b\n".encode("utf-16"), "iconv -f UTF-16"),
        ("a b 1e300\n", "edge 1 has the weight '1e300', which is outside of float32"),
        ("a b 1\nb c 1e-300\n", "edge 2 has the weight '1e-300', which float32 rounds to 0"),
        ("a b 1\nb c True\n", "edge 2 has the weight 'True', which is not a finite number"),
        ("source target\n", "holds no edges: its only line is a header"),
        ("p,q,r,s\nv,w,x,y\n", "4 columns"),
        ("a,b,\nc,d,\n", "column 3 of edge 1 is empty: each line has 3 columns"),
        ("a b 1\nb c\n", "column 3 of edge 2 is empty: each line has 3 columns"),
        ('a,"b\nc"\nd,e\n', r"edge 1 holds 'b\\nc': close or double"),
        ("a b\nb c d\n", "Expected 2 fields in line 2, saw 3. An adjacency list"),
        ("# x.py\n# GMT Fri\n#\n0 1 2\n", "is an adjacency list of networkx"),
        ("0 1 {'weight': 3}\n", "is an edge list of networkx with dicts"),
        ('Creator "x"\ngraph [\n', "is GML"),
        ("*Vertices 3\n", "is a Pajek file"),
        ("<graphml>", "is XML"),
        ('{"nodes": []}', "is JSON"),
        ("graph {", "is DOT"),
        (b"PAR1\x15\xff", "is a Parquet file"),
        (
            "%%MatrixMarket matrix coordinate real general\n",
            "MatrixMarket file, which scipy.io.mmread",
        ),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "edges.txt", content)


def test_a_header_is_left_out_and_names_the_columns(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "edges.txt"
    assert read(path, "source target\na b\n")[1:] == (["a", "b"], [(0, 1)])
    assert "the first line is left out as a header: source target" in caplog.text
    for text in (
        ",source,target\n7,a,b\n",
        "x,Target,Source\n9,b,a\n",
        "w,target,id,source\n3,b,9,a\n",
        "Source_ID,Target_ID,x,y\na,b,1,2\n",
    ):
        found, *rest = read(path, text)
        assert rest == [["a", "b"], [(0, 1)]] and (found.edge_attr is None) == (text[0] != "w"), (
            text
        )
    assert "the columns are source, target, w" in caplog.text
    assert read(path, "source,target,score\na,b,3\n")[0].edge_attr.tolist() == [[3]]
    assert read(path, "a b w\nc d 1\n")[1:] == (["c", "d"], [(0, 1)])
    assert read(path, "x y\n1 2\n")[1:] == (["1", "2"], [(0, 1)])
    # No header: other ids are texts too.
    assert read(path, "x y\n1 z\n")[1] == ["1", "x", "y", "z"]


@pytest.mark.parametrize(
    "matrix, message",
    [
        (sp.coo_array(np.ones((2, 3))), "must be square, not 2 x 3"),
        (sp.coo_array(np.ones((2, 2)) * 1j), "holds complex128; weights are real numbers"),
        (sp.coo_array(np.array([[0, np.nan], [0, 0]])), "row 0, column 1 holds nan"),
        (sp.coo_array(np.array([[0, 0], [1e300, 0]])), r"row 1, column 0 holds 1e\+300"),
    ],
)
def test_a_matrix_that_is_no_graph(matrix, message, tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"network": sp.csc_matrix(matrix)})
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.mat")


def test_stored_zeros_are_no_edges(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    matrix = sp.csc_matrix((np.array([1.0, 0.0]), ([0, 1], [1, 0])), shape=(2, 2))
    scipy.io.savemat(tmp_path / "a.mat", {"network": matrix})
    assert read(tmp_path / "a.mat")[2] == [(0, 1)] and "1 stored zeros are not edges" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "New York\ta,b\nNew\tvery good\n",
        '"New York",a,b\nNew,"very good"\n',
        "New York;a;b\nNew;very good\n",
    ],
)
def test_labels_belong_to_the_whole_name(text, tmp_path):
    (tmp_path / "labels").write_text(text)
    data, names, _ = read(
        tmp_path / "edges.tsv", "New York\tNew\n", labels=str(tmp_path / "labels")
    )
    assert names == ["New", "New York"] and unpack_names(data, "label_names") == [
        "a",
        "b",
        "very good",
    ]
    assert data.y.tolist() == [[0, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("text", ["a 1 2\nb 3\n", "a\t1 2\nb\t3\n", "a,1,2\nb,3\n", "a 1,2\nb 3\n"])
def test_an_id_has_several_labels(text, tmp_path):
    (tmp_path / "labels").write_text(text)
    data = read(tmp_path / "edges", "a b\n", labels=str(tmp_path / "labels"))[0]
    assert data.y.tolist() == [[1, 1, 0], [0, 0, 1]] and unpack_names(data, "label_names") == [
        "1",
        "2",
        "3",
    ]
