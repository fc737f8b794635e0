"""Vectors as people have them: every format, labels, and what is refused."""

import contextlib
import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import VectorsConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from tests.helpers import building as build
from tests.helpers.files import write_idx

X = np.array([[1, 2.5], [3, -4], [0.25, 6]], np.float32)


def read(path, labels=None):
    return cache.read(VectorsConfig(path=str(path), labels=labels and str(labels)))


TEXTS = {
    "plain.csv": "1,2.5\n3,-4\n0.25,6\n",
    "head.csv": "a,b\n1,2.5\n3,-4\n0.25,6\n",
    "tabs.tsv": "1\t2.5\n3\t-4\n0.25\t6\n",
    "blanks.txt": "1 2.5\n3 -4\n0.25 6\n",
}
NAMED = {
    "named.csv": "p,1,2.5\nq,3,-4\nr,0.25,6\n",
    "both.tsv": "id\ta\tb\np\t1\t2.5\nq\t3\t-4\nr\t0.25\t6\n",
    "words.txt": "3 2\np 1 2.5\nq 3 -4\nr 0.25 6\n",
}


@pytest.mark.parametrize("name", [*TEXTS, *NAMED])
def test_tables(name, tmp_path):
    path = tmp_path / name
    path.write_text({**TEXTS, **NAMED}[name])
    data = read(path)
    assert np.array_equal(data.x.numpy(), X) and data.num_nodes == 3 and "y" not in data
    assert unpack_names(data) == (["p", "q", "r"] if name in NAMED else ["0", "1", "2"])
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(path.read_text())
    assert torch.equal(read(tmp_path / f"{name}.gz").x, data.x)


@pytest.mark.parametrize(
    "name, text, x, names",
    [
        ("a.csv", "id,a,b\n7,1,2\n8,3,4\n", [[1, 2], [3, 4]], ["7", "8"]),  # numbers that are names
        ("a.csv", ",a,b\n0,1,2\n1,3,4\n", [[1, 2], [3, 4]], ["0", "1"]),  # the index of pandas
        ("a.csv", "NA,1\nnull,2\n", [[1], [2]], ["NA", "null"]),
        (
            "a.txt",
            "5 1\n3 4\n",
            [[5, 1], [3, 4]],
            ["0", "1"],
        ),  # points in the plane, no sizes of word2vec
        ("a.txt", "2 1\np 4\nq 5\n", [[4], [5]], ["p", "q"]),
        ("a.csv", "p,99999999999999999999\nq,1\n", [[1e20], [1]], ["p", "q"]),
    ],
)
def test_names_and_heads_are_no_numbers_and_no_row_is_lost(name, text, x, names, tmp_path):
    (tmp_path / name).write_text(text)
    data = read(tmp_path / name)
    assert (
        data.x.tolist() == [list(map(np.float32, row)) for row in x] and unpack_names(data) == names
    )


def test_arrays(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    pd.DataFrame({"id": ["p", "q", "r"], "a": X[:, 0], "b": X[:, 1]}).to_parquet(
        tmp_path / "x.parquet"
    )
    for name in ("x.npy", "x.parquet"):
        assert np.array_equal(read(tmp_path / name).x.numpy(), X), name
    assert unpack_names(read(tmp_path / "x.parquet")) == ["p", "q", "r"]


def test_ids_that_may_have_been_rounded_are_refused(tmp_path):
    pd.DataFrame({"id": [2.0**53 + 2, 5.0], "a": [1.0, 2.0]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="the id 9007199254740994 is a floating point number"):
        read(tmp_path / "x.parquet")


def test_images_in_idx(tmp_path):
    images = np.arange(24).reshape(4, 3, 2)
    path = write_idx(tmp_path / "a-images-idx3-ubyte.gz", images)
    assert np.array_equal(read(path).x.numpy(), images.reshape(4, 6))
    with pytest.raises(
        ValueError,
        match="has no labels: a-labels-idx1-ubyte.gz is not next to it. Add that file, or",
    ):
        read(tmp_path)
    labels = write_idx(tmp_path / "a-labels-idx1-ubyte.gz", np.array([3, 1, 3, 0]))
    write_idx(tmp_path / "b-images-idx3-ubyte", images[:2] + 100)
    write_idx(tmp_path / "b-labels-idx1-ubyte", np.array([9, 1]))
    whole = read(tmp_path)
    assert whole.x[4:].tolist() == (images[:2] + 100).reshape(2, 6).tolist()
    assert whole.y.flatten().tolist() == [2, 1, 2, 0, 3, 1] and unpack_names(
        whole, "label_names"
    ) == list("0139")
    assert read(path, labels).y.flatten().tolist() == [2, 1, 2, 0]
    before = cache.hash_content(VectorsConfig(path=str(tmp_path)))
    write_idx(tmp_path / "b-labels-idx1-ubyte", np.array([9, 2]))
    assert cache.hash_content(VectorsConfig(path=str(tmp_path))) != before


def test_labels(tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "named.csv").write_text(NAMED["named.csv"])
    (tmp_path / "lines.txt").write_text("red fox\n\nblue\n")
    (tmp_path / "named.txt").write_text("r\t2\np\t10\nz\t3\n")
    np.save(tmp_path / "y.npy", np.array([2, 2, 0]))
    lines = read(tmp_path / "x.npy", tmp_path / "lines.txt")
    assert lines.y.flatten().tolist() == [1, -1, 0] and unpack_names(lines, "label_names") == [
        "blue",
        "red fox",
    ]
    named = read(tmp_path / "named.csv", tmp_path / "named.txt")
    assert named.y.flatten().tolist() == [1, -1, 0] and unpack_names(named, "label_names") == [
        "2",
        "10",
    ]
    assert read(tmp_path / "x.npy", tmp_path / "y.npy").y.flatten().tolist() == [1, 1, 0]


BAD = {
    "x.csv": ("1,2\n3,red\n", r"x.csv: row 2 of column 2 is 'red', which is not a number"),
    "empty.csv": ("\n", "empty.csv holds no rows"),
    "ragged.csv": ("1,2\n3,4,5\n", "ragged.csv is not a table: Expected 2 fields in line 2, saw 3"),
    "x.npy": ("nothing", "x.npy is not a file that numpy.save wrote"),
    "x.parquet": ("nothing", "x.parquet is not a readable table"),
    "x-idx3-ubyte": (
        "nothing",
        "x-idx3-ubyte is not a file in IDX format: it begins with 6e6f7468",
    ),
    "x.gexf": (
        "nothing",
        "x.gexf: vectors are read from files that end with one of .npy, .csv",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_none(name, tmp_path):
    content, message = BAD[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_arrays_that_are_no_vectors(tmp_path):
    for content, message in (
        (np.arange(3), r"holds an array of int64 of the shape \[3\]"),
        (np.array([["a", "b"]]), "holds an array of <U1"),
    ):
        np.save(tmp_path / "x.npy", content)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="is a directory without files of images in IDX"):
        read(tmp_path)
    path = write_idx(tmp_path / "a-images-idx3-ubyte", np.zeros((3, 2, 2)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"is damaged: it has 11 bytes of numbers for the shape \[3, 2, 2\]"
    ):
        read(path)


def test_labels_that_do_not_fit(tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "y.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match="y.txt has 2 labels for 3 vectors: give one for each"):
        read(tmp_path / "x.npy", tmp_path / "y.txt")
    (tmp_path / "named.csv").write_text(NAMED["named.csv"])
    (tmp_path / "y.txt").write_text("x\t1\ny\t2\n")
    with pytest.raises(ValueError, match="none of its ids is a name of a vector; the first is x"):
        read(tmp_path / "named.csv", tmp_path / "y.txt")


@pytest.mark.parametrize(
    "x, overrides, message",
    [
        (
            np.full((40, 3), np.nan),
            [],
            "a vector is not finite: row 0, column 0 holds nan",
        ),
        (
            np.where(np.arange(120).reshape(40, 3) == 7, np.inf, 1),
            [],
            "a vector is not .* row 2, column 1 holds inf",
        ),
        (np.full((40, 3), 1e300), [], "holds inf"),
        (np.ones((1, 3)), [], "needs at least three vectors; there are 1"),
        (np.ones((2, 3)), [], "needs at least three vectors; there are 2"),
        (np.ones((0, 3)), [], "needs at least three vectors; there are 0"),
        (np.ones((40, 0)), [], "the vectors have no numbers"),
        (
            np.ones((20, 3)),
            [],
            "trainer.num_neighbors=30 must be less than the 20 points .* set it to 19 at most",
        ),
        (
            np.ones((40, 3)),
            ["trainer.metric=knn_acc"],
            "trainer.metric=knn_acc cannot be computed for .* one of trustw",
        ),
        (np.ones((40, 3)), ["trainer.metric=auc"], "trainer.metric=auc cannot be computed for"),
        (np.ones((40, 3)), ["data.components=largest"], "data.components=largest: "),
    ],
)
def test_vectors_that_cannot_be_placed(x, overrides, message, configure, tmp_path):
    with np.errstate(over="ignore"):
        np.save(tmp_path / "x.npy", x)
        with pytest.raises(ValueError, match=message):
            build.open_graph(
                configure(
                    "trainer=layout", "data=vectors", f"data.path={tmp_path / 'x.npy'}", *overrides
                )
            )


@pytest.mark.parametrize("init", ["pca", "random"])
def test_equal_points_get_places_of_their_own(init, configure, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 4)))
    config = configure(
        "trainer=layout",
        "data=vectors",
        f"data.path={tmp_path / 'x.npy'}",
        "train.epochs=5",
        f"trainer.init={init}",
        "trainer.pca_dim=2",
    )
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, torch.device("cpu"))
    ) as trainer:
        for _ in trainer.steps():
            pass
        places = trainer.embedding()
        assert places.isfinite().all() and len(places.unique(dim=0)) == 50
        assert trainer.score(places.numpy())["test"] == 1  # no neighbour was nearer
