"""What is wrong with a dataset of many graphs, or asked of it, is said in one line."""

import gzip

import numpy as np
import pytest

from parallel_epochs.pipeline.data.cache import load, prepare_as
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.data.readers.ogb_graph import read
from tests.helpers import building as build
from tests.helpers.files import write_csv
from tests.helpers.graph_toys import write_graphs


@pytest.fixture
def folder(tmp_path):
    return write_graphs(tmp_path / "toy", num_graphs=12)


def change(folder, file: str, change_table) -> None:
    path = folder / "raw" / f"{file}.csv.gz"
    with gzip.open(path, "rt") as opened:
        table = np.loadtxt(opened, delimiter=",", dtype=np.int64, ndmin=2)
    write_csv(path, change_table(table))


def at(row, column, value):
    def put(table):
        table[row, column] = value
        return table

    return put


@pytest.mark.parametrize(
    "file,change_table,message",
    [
        (
            "num-node-list",
            at(3, 0, 0),
            r"graph 3 \(from 0\) has no nodes, or less than no edge",
        ),
        (
            "num-node-list",
            lambda table: table[:-1],
            "has 11 graphs, but num-edge-list.csv.gz has 12",
        ),
        (
            "num-edge-list",
            at(0, 0, -1),
            "graph 0 .from 0. has no nodes, or less than no edge",
        ),
        (
            "edge",
            at(2, 1, 40),
            r"edge.csv.gz: row 2 \(from 0\) is \[\d+, 40\], which are no nodes of its graph",
        ),
        (
            "edge",
            lambda table: table[1:],
            r"edge.csv.gz has .* rows, and must have",
        ),
        (
            "node-feat",
            at(1, 0, 119),
            r"node-feat.csv.gz: row 1, column 0 \(from 0\) holds 119; .* categories 0 to 118",
        ),
        (
            "node-feat",
            lambda table: table[:, :8],
            "has 8 columns, and must have 9",
        ),
        (
            "node-feat",
            lambda table: table + 0.5,
            "row 0 .from 0. holds 9.5, which is not a whole number",
        ),
        (
            "edge-feat",
            at(0, 1, 6),
            r"edge-feat.csv.gz: row 0, column 1 \(from 0\) holds 6; .* categories 0 to 5",
        ),
        (
            "graph-label",
            lambda table: table[:-1],
            "graph-label.csv.gz has 11 rows, and must have 12",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(file, change_table, message, folder):
    change(folder, file, change_table)
    with pytest.raises(ValueError, match=message):
        read(folder, "ogbg-molhiv")


def test_labels_are_checked_as_those_of_nodes_and_named_as_graphs(folder):
    config = OGBGraphConfig(folder=str(folder))
    change(folder, "graph-label", lambda table: table + 2)
    with pytest.raises(ValueError, match="y must hold 0, 1 or NaN for the metric rocauc"):
        prepare_as(config, read(folder, config.name))
    write_csv(folder / "split" / "scaffold" / "train.csv.gz", [3, 12])
    with pytest.raises(ValueError, match="train.csv.gz names graph 12, and there are 12 graphs"):
        read(folder, config.name)
    write_csv(folder / "split" / "scaffold" / "train.csv.gz", list(range(12)))
    with pytest.raises(ValueError, match="the splits overlap: graph .* is in more than one"):
        prepare_as(config, read(folder, config.name))


def test_validation_labels_of_one_kind_have_no_score(folder, configure):
    change(folder, "graph-label", lambda table: 0 * table + (np.arange(12) == 0)[:, None])
    write_csv(folder / "split" / "scaffold" / "train.csv.gz", [0, 1, 2, 3, 4, 5])
    write_csv(folder / "split" / "scaffold" / "valid.csv.gz", [6, 7, 8])
    write_csv(folder / "split" / "scaffold" / "test.csv.gz", [9, 10, 11])
    config = configure("+experiment=ogbg_molhiv", f"data.folder={folder}")
    data = load(config.data, config.cache_dir)
    rows = data.y.new_zeros(12, 1)
    assert np.isnan(build.build_task(config, data).scores(None, rows)["valid"])


def test_a_wrong_folder_is_said(folder, tmp_path, ogb_toy):
    for wrong, message in (
        (tmp_path / "none", "does not exist or is not a folder"),
        (folder / "raw", "raw/edge.csv.gz is missing; data.folder must hold raw/ and split/"),
        (ogb_toy("ogbn-arxiv"), "graph-label.csv.gz is missing"),
    ):
        config = OGBGraphConfig(folder=str(wrong))
        with pytest.raises(ValueError, match=message):
            load(config, tmp_path / "cache")


@pytest.mark.parametrize(
    "overrides,message",
    [
        (["loader=neighbor"], "task=graph and loader=neighbor do not fit"),
        (["loader=cluster"], "task=graph and loader=cluster do not fit"),
        (["task=node"], "task=node and loader=graph do not fit"),
        (["data=digits"], "data=digits, task=graph and loader=graph do not fit"),
        (
            ["evaluation=views"],
            "task=graph needs evaluation=exact, .*this run has evaluation=views",
        ),
        (
            ["evaluation=neighbor", "evaluation.num_neighbors=[5,5]"],
            "task=graph needs .*evaluation=neighbor",
        ),
        (
            ["train.label_input=0.5"],
            "task=graph needs train.label_input=0, since labels of graphs and links are no inputs",
        ),
        (
            ["data.components=largest"],
            "data.components=largest needs one graph, but data=ogb_graph holds many graphs",
        ),
    ],
)
def test_what_does_not_go_with_whole_graphs_is_refused(overrides, message, folder, configure):
    overrides = (
        [f"data.folder={folder}", *overrides] if "data=digits" not in overrides else overrides
    )
    experiment = (
        ["+experiment=ogbg_molhiv"]
        if "data=digits" not in overrides
        else ["task=graph", "loader=graph"]
    )
    with pytest.raises(ValueError, match=message):
        build.open_graph(configure(*experiment, "model.num_layers=2", *overrides))
