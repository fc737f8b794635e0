"""Tables to a store: equal to the same graph prepared in memory, whatever the format; odd rows; kills."""

import dataclasses
import importlib.util
import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data import cache, content
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.node_names import number_names, pack_names, unpack_names
from parallel_epochs.pipeline.data.tables import sql, to_store as tables
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns, NodeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.graph.store import ArrayFile, StoreWriter
from parallel_epochs.pipeline.graph.structure import inspect
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import FileError, Stopped
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers import disks
from tests.helpers.running import forked, status_of


def random_tables(
    seed: int = 0, num_nodes: int = 60, num_rows: int = 400
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Nodes and edges with ids of texts; some edges are there twice, both ways round, or from a node to itself.

    Four nodes have no edge, and one has none but to itself.
    """
    rng = np.random.default_rng(seed)
    ids = np.array([f"node-{number}" for number in rng.permutation(num_nodes)])
    nodes = pd.DataFrame(
        {
            "id": ids,
            "a": rng.normal(size=num_nodes).round(3),
            "b": rng.integers(0, 100, num_nodes),
            "kind": rng.choice(["libs", "games", "net"], num_nodes),
            "split": rng.choice(["train", "val", "test"], num_nodes),
        }
    )
    edges = pd.DataFrame(
        {
            "from": rng.choice(ids[:-5], num_rows),
            "to": rng.choice(ids[:-5], num_rows),
            "w": rng.random(num_rows).round(4),
            "p": rng.normal(size=num_rows).round(4),
            "q": rng.random(num_rows).round(4),
            "relation": rng.choice(["likes", "knows"], num_rows),
        }
    )
    alone = edges.iloc[:1].assign(**{"from": ids[-1], "to": ids[-1]})
    return nodes, pd.concat([edges, edges.iloc[:30], edges.iloc[10:15], alone], ignore_index=True)


def write(folder, nodes, edges) -> dict:
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return {
        "nodes": dict(path="nodes.csv"),
        "edges": dict(path="edges.csv", source="from", target="to"),
    }


def config_of(folder, nodes: dict, edges: dict, **options) -> TablesConfig:
    return TablesConfig(
        folder=str(folder), nodes=NodeColumns(**nodes), edges=EdgeColumns(**edges), **options
    )


def load(tmp_path, config: TablesConfig) -> Graph:
    return cache.load(config, tmp_path / "cache")


def read(
    nodes: pd.DataFrame, edges: pd.DataFrame, columns: dict, *, directed_relations: bool = False
) -> Graph:
    """The same tables read in memory, for :func:`prepare`: equal rows merged, x, labels and splits of the columns."""
    names = nodes["id"].to_numpy()
    place = {name: number for number, name in enumerate(names)}
    edges = edges.assign(s=edges["from"].map(place), t=edges["to"].map(place))
    merged = (
        edges.groupby(["s", "t"], sort=True)
        .agg(
            **{
                name: (name, "sum" if name == columns.get("weight") else "mean")
                for name in filter(None, [columns.get("weight"), *columns.get("features", [])])
            }
        )
        .reset_index()
        if columns.get("weight") or columns.get("features")
        else edges[["s", "t"]].drop_duplicates()
    )
    values = merged.drop(columns=["s", "t"]).to_numpy().astype(np.float32)
    data = Graph(
        edge_index=torch.from_numpy(merged[["s", "t"]].to_numpy(np.int64).T.copy()),
        num_nodes=len(names),
        edge_attr=torch.from_numpy(values) if values.shape[1] else None,
        **pack_names(names),
    )
    kinds, kind_names = number_names(nodes["kind"])
    data.y, data.metric = torch.from_numpy(kinds).unsqueeze(1), "acc"
    data.update(pack_names(kind_names, "label_names"))
    for mask, split in zip(MASKS, ("train", "val", "test")):
        data[mask] = torch.tensor((nodes["split"] == split).tolist())
    return data


def assert_equal(stored: Graph, expected: Graph) -> None:
    """Compare every tensor bit for bit, and every value."""
    names = set(expected.to_dict())
    assert names <= set(stored.to_dict()), names - set(stored.to_dict())
    for name in names - {"edge_index"}:
        value, other = expected[name], stored[name]
        if isinstance(value, torch.Tensor):
            assert other.dtype == value.dtype and torch.equal(other, value), name
        else:
            assert other == value, name
    ours, theirs = stored.edge_index, expected.edge_index
    assert torch.equal(plain_edges(ours), plain_edges(theirs)) and ours.dtype == theirs.dtype
    assert torch.equal(ours.get_csc()[0][0], theirs.get_csc()[0][0])
    assert stored.structure == vars(inspect(theirs))


LABELS = {"label": "kind", "split_column": "split"}


COLUMNS = [{}, {"weight": "w"}, {"features": ["p", "q"]}, {"weight": "w", "features": ["q"]}]
OPTIONS = [{}, {"node_features": "sum"}]
# Every pair of columns, options and direction; the other half of the cases is slow.
CASES = [
    pytest.param(
        columns,
        options,
        undirected,
        id=f"{'-'.join(columns)} {'-'.join(options)} {undirected}",
        marks=[] if (row + column + undirected) % 2 else pytest.mark.slow,
    )
    for row, columns in enumerate(COLUMNS)
    for column, options in enumerate(OPTIONS)
    for undirected in (True, False)
]


@pytest.mark.parametrize("columns, options, undirected", CASES)
def test_equal_to_the_graph_prepared_in_memory(tmp_path, columns, options, undirected):
    nodes, edges = random_tables()
    parts = write(tmp_path, nodes, edges)
    config = config_of(
        tmp_path,
        parts["nodes"] | LABELS,
        parts["edges"] | columns,
        to_undirected=undirected,
        **options,
    )
    expected = cache.prepare_as(config, read(nodes, edges, columns))
    assert_equal(load(tmp_path, config), expected)


def write_as(kind: str, folder, nodes, edges) -> tuple[dict, dict]:
    """Write the tables in a format; returns what names them."""
    if kind == "folder":
        (folder / "parts").mkdir()
        for number in range(3):
            edges.iloc[number * 150 : (number + 1) * 150].to_parquet(
                folder / "parts" / f"{number}.parquet"
            )
        nodes.iloc[:20].to_csv(folder / "nodes-0.csv", index=False)
        nodes.iloc[20:].to_csv(folder / "nodes-1.csv", index=False)
        return {"path": "nodes-*.csv"}, {"path": "parts"}
    if kind == "parquet":
        nodes.to_parquet(folder / "nodes.parquet")
        edges.to_parquet(folder / "edges.parquet")
    else:
        separator = "\t" if kind.startswith("tsv") else ","
        nodes.to_csv(folder / f"nodes.{kind}", index=False, sep=separator)
        edges.to_csv(folder / f"edges.{kind}", index=False, sep=separator)
    return {"path": f"nodes.{kind}"}, {"path": f"edges.{kind}"}


@pytest.mark.parametrize(
    "kind",
    ["csv.gz", "tsv", "parquet"],
)
def test_every_format_gives_the_same_graph(tmp_path, kind):
    nodes, edges = random_tables()
    node_table, edge_table = write_as(kind, tmp_path, nodes, edges)
    columns = {"weight": "w", "features": ["p", "q"]}
    config = config_of(
        tmp_path, node_table | LABELS, edge_table | columns | {"source": "from", "target": "to"}
    )
    assert_equal(load(tmp_path, config), cache.prepare_as(config, read(nodes, edges, columns)))


@pytest.mark.parametrize(
    "ids",
    [["10", "9", "2", "33"], ["b", "a", "10", "B"], ["1.5", "1", "0.25", "-3"], [7, 40, 5, 0]],
    ids=["whole", "texts", "numbers", "int64"],
)
def test_without_a_table_of_nodes_ids_are_numbered_as_by_data_edges(tmp_path, ids):
    edges = pd.DataFrame(
        {"source": [ids[0], ids[1], ids[2], ids[0]], "target": [ids[1], ids[2], ids[3], ids[1]]}
    )
    edges.to_parquet(tmp_path / "edges.parquet")
    config = config_of(tmp_path, {}, {"path": "edges.parquet"})
    places, names = number_names(
        pd.concat([edges["source"], edges["target"]], ignore_index=True).astype(str)
    )
    expected = Graph(
        edge_index=torch.from_numpy(places.reshape(2, -1)), num_nodes=4, **pack_names(names)
    )
    assert_equal(load(tmp_path, config), cache.prepare_as(config, expected))


@pytest.mark.parametrize("directed", [True, False])
def test_relations_become_columns(tmp_path, directed):
    nodes, edges = random_tables(2, 12, 40)
    parts = write(tmp_path, nodes, edges)
    data = load(
        tmp_path,
        config_of(
            tmp_path,
            parts["nodes"],
            parts["edges"]
            | {"relation": "relation", "directed_relations": directed, "weight": "w"},
        ),
    )
    assert data.edge_attr.size(1) == (5 if directed else 3) and "y" not in data
    names, there = unpack_names(data), set(zip(edges["from"], edges["to"], edges["relation"]))
    kinds = ["knows", "likes"]
    for (src, dst), found in zip(data.edge_index.t().tolist(), data.edge_attr[:, 1:].tolist()):
        forward = [float((names[src], names[dst], kind) in there) for kind in kinds]
        backward = [float((names[dst], names[src], kind) in there) for kind in kinds]
        both = [max(pair) for pair in zip(forward, backward)]
        # A self-loop is its own reverse edge, and is there once.
        assert found == (forward + (backward if src != dst else [0, 0]) if directed else both)


NODES = "id,a,kind,split\nx,1,u,train\ny,2,v,train\nz,3,u,val\nw,4,,test\n"
EDGES = "source,target,p\nx,y,1\ny,z,2\nz,w,3\n"


def small(
    folder, nodes: str = NODES, edges: str = EDGES, node_columns: dict | None = None, **options
) -> TablesConfig:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    columns = (
        {"path": "nodes.csv", "features": ["a"], **LABELS} if node_columns is None else node_columns
    )
    return config_of(folder, columns, {"path": "edges.csv", "features": ["p"]}, **options)


BAD = {
    "number": (
        NODES.replace("y,2", "y,two"),
        EDGES,
        {},
        "nodes.csv: row 2, column a holds 'two', which is not a finite .* as by data.nodes.csv=",
    ),
    "infinite": (
        NODES.replace("y,2", "y,1e39"),
        EDGES,
        {},
        "row 2, column a holds '1e39', which is not a finite number",
    ),
    "edge feature": (
        NODES,
        EDGES.replace("y,z,2", "y,z,?"),
        {},
        r"edges.csv: row 2, column p holds '\?'",
    ),
    "split": (
        NODES.replace("u,val", "u,vale"),
        EDGES,
        {},
        "row 3, column split holds 'vale'; a cell of the split is train, valid",
    ),
    "ragged": (
        NODES,
        EDGES + "x,y\n",
        {},
        "edges.csv: line 5: Expected Number of Columns: 3 Found: 2",
    ),
    "column": (
        NODES.replace("id,", "name,"),
        EDGES,
        {},
        "data.nodes.id=id: .*nodes.csv has no such column; there are name",
    ),
    "nobody": (
        NODES,
        "source,target,p\nm,n,1\n",
        {},
        "none of its 1 rows names two nodes; are source and target ids of the tables",
    ),
    "nothing": ("id,a,kind,split\n", EDGES, {}, "nodes.csv holds no rows: there are no nodes"),
    "head": (
        NODES,
        EDGES.replace("source,target", "source,source"),
        {},
        "names the column 'source' twice",
    ),
    "train": (NODES.replace("train", "test"), EDGES, {}, "the train split is empty"),
    "metric": (NODES, EDGES, {"metric": "nonsense"}, "data.metric=nonsense is unknown"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_by_file_column_and_row(tmp_path, case):
    nodes, edges, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        load(tmp_path, small(tmp_path, nodes, edges, **options))
    assert not list(
        tmp_path.glob("cache/graphs/*")
    )  # what the first line tells is refused before there is a cache


def test_odd_rows_are_counted_before_anything_is_written(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    said = []
    write_edges = tables.tables_edges.write
    monkeypatch.setattr(
        tables.tables_edges,
        "write",
        lambda *args, **options: (said.append(caplog.text), write_edges(*args, **options))[1],
    )
    nodes = NODES.replace("y,2", "y,").replace("w,4,", "w,nan,")
    data = load(tmp_path, small(tmp_path, nodes, EDGES + "x,x,1\nx,y,3\nq,x,1\n,x,1\nx,z,\n"))
    for text in (
        "4 nodes; 2 empty cells in a, taken for zeros",
        "2 for train; 1 for valid; 0 for test",
        "1 node without a label, in no split",
        "8 edges; 2 dropped, as they name no node (row 6 of",
        "column source names 'q', which is not a node",
        "1 empty cell in p, taken for zeros",
        "1 self-loop",
        "1 row was merged with an edge of the same relation between the same nodes",
        "1 node of a split has no label, and is left out of it",
    ):
        assert text in said[0], text
    assert data.x.flatten().tolist() == [1, 0, 3, 0] and data.y.flatten().tolist() == [0, 1, 0, 0]
    edges = {
        tuple(pair): value
        for pair, (value,) in zip(data.edge_index.t().tolist(), data.edge_attr.tolist())
    }
    assert (
        edges[0, 1] == edges[1, 0] == 2
        and edges[0, 0] == 1
        and edges[2, 0] == 0
        and len(edges) == 9
    )
    assert data.test_mask.sum() == 0 and data.structure["num_self_loops"] == 1


def test_ids_of_mixed_types_meet(tmp_path):
    pd.DataFrame({"id": [1, 2, 3], "a": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "nodes.parquet")
    pd.DataFrame({"source": [1.0, 2.0, np.nan], "target": ["2", "3", "1"]}).to_parquet(
        tmp_path / "edges.parquet"
    )
    data = load(
        tmp_path,
        config_of(
            tmp_path, {"path": "nodes.parquet", "features": ["a"]}, {"path": "edges.parquet"}
        ),
    )
    assert data.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]] and unpack_names(data) == [
        "1",
        "2",
        "3",
    ]


def test_columns_may_have_the_names_of_our_own(tmp_path):
    (tmp_path / "edges.csv").write_text('t,s,v0,k,r,"a ""b"""\nx,y,9,1,m,2\ny,z,9,2,n,3\n')
    data = load(
        tmp_path,
        config_of(
            tmp_path,
            {},
            {
                "path": "edges.csv",
                "source": "t",
                "target": "s",
                "weight": 'a "b"',
                "features": ["k"],
                "relation": "v0",
            },
        ),
    )
    edges = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_attr.tolist()))
    assert edges == {(0, 1): [2, 1, 1], (1, 0): [2, 1, 1], (1, 2): [3, 2, 1], (2, 1): [3, 2, 1]}


def test_a_random_split_is_that_of_the_seed(tmp_path):
    nodes = [f"n{number},{'' if number % 10 == 0 else number % 3}" for number in range(100)]
    edges = [f"n{number},n{number + 1},1" for number in range(99)]
    config = small(
        tmp_path,
        "\n".join(["id,kind", *nodes, ""]),
        "\n".join(["source,target,p", *edges, ""]),
        {"path": "nodes.csv", "label": "kind"},
        train_fraction=0.5,
        valid_fraction=0.3,
    )

    def split(seed: int) -> list[list[int]]:
        data = load(tmp_path, dataclasses.replace(config, graph_seed=seed))
        return [data[mask].nonzero().flatten().tolist() for mask in MASKS]

    parts = split(0)
    assert [len(part) for part in parts] == [45, 27, 18]
    assert sorted(sum(parts, [])) == [number for number in range(100) if number % 10]
    assert split(1) != parts


def test_borders_without_a_zone_are_utc_wherever_the_machine_is(monkeypatch):
    config = TablesConfig(
        split="time", train_until="2024-05-31", valid_until="2024-06-01T02:00+02:00"
    )
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        found = config.until
    time.tzset()
    assert found == (1717113600.0, 1717200000.0)


@pytest.mark.parametrize(
    "times",
    [
        ["2020-05-01", "2019-01-01", "", "2021-12-31 10:00:00", "2021-12-31"],
        [
            "2020-05-02T04:00+03:00",
            "2020-05-01 23:30:00Z",
            "",
            "2020-05-02 05:00",
            "2020-05-01T22:00:00.5 -0600",
        ],
        ["10.5", "9", "", "1000", "100"],
    ],
    ids=["dates", "offsets", "numbers"],
)
def test_a_split_by_time_learns_from_the_earliest(tmp_path, caplog, times):
    caplog.set_level(logging.INFO)
    nodes = "id,kind,when\n" + "".join(f"{name},u,{time}\n" for name, time in zip("abcde", times))
    nodes += f"f,,{times[1]}\n"  # which has no label, and so is in no split
    config = small(
        tmp_path,
        nodes,
        "source,target,p\na,b,1\n",
        {"path": "nodes.csv", "label": "kind"},
        split="time",
        time_column="when",
        train_fraction=0.5,
        valid_fraction=0.25,
    )
    data = load(tmp_path, config)
    assert [data[mask].nonzero().flatten().tolist() for mask in MASKS] == [[0, 1], [4], [3]]
    config = dataclasses.replace(config, train_until=times[1], valid_until=times[0])
    if " -" not in times[0]:
        assert [load(tmp_path, config)[mask].nonzero().flatten().tolist() for mask in MASKS] == [
            [1],
            [0],
            [3, 4],
        ]
    for until, message in (
        ((times[0], None), "data.valid_until=null is no time"),
        (("nan", "9"), "nan is no time"),
        (("soon", "9"), "=soon is no time"),
        ((times[0], times[1]), "the first must not be later"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(config, train_until=until[0], valid_until=until[1]).check()
    if times[1].endswith("Z"):
        assert (
            "the times in when are compared as instants; 1 of 5 have no zone and count as UTC"
            in caplog.text
        )
    (tmp_path / "nodes.csv").write_text(nodes.replace(times[1], "soon"))
    with pytest.raises(
        ValueError, match="row [12], column when holds '.*', which is not a date; times are"
    ):
        load(tmp_path, config)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_name_of_a_column_may_have_several_lines(tmp_path, end):
    rows = [
        'id,a,kind,"note\nlong"',
        *(f'{name},{place},u,"one\ntwo"' for place, name in enumerate("abcde")),
    ]
    (tmp_path / "nodes.csv").write_bytes(end.join([*rows, ""]).encode())
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    data = load(
        tmp_path,
        config_of(
            tmp_path,
            {"path": "nodes.csv", "features": ["a"], "label": "kind"},
            {"path": "edges.csv"},
        ),
    )
    assert data.x.flatten().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("zone", ["America/New_York", None])
def test_times_do_not_depend_on_the_zone_of_the_machine(tmp_path, monkeypatch, zone):
    times = pd.Series(
        pd.date_range("2024-11-03 04:30", periods=4, freq="30min", tz="UTC")
    )  # the clock goes back
    edges = pd.DataFrame(
        {
            "source": list("abcd"),
            "target": list("bcde"),
            "w": times.dt.tz_convert(zone) if zone else times.dt.tz_localize(None),
        }
    )
    edges.to_parquet(tmp_path / "edges.parquet")
    connect = sql._connect
    monkeypatch.setattr(
        sql, "_connect", lambda *args: connect(*args).execute("SET TimeZone = 'America/New_York'")
    )
    data = load(
        tmp_path, config_of(tmp_path, {}, {"path": "edges.parquet", "time": "w"}, split="time")
    )
    assert sorted(set(data.edge_time.tolist())) == [time.timestamp() for time in times]


@pytest.mark.parametrize(
    ("rows", "columns", "metric", "y"),
    [
        ("0.5 -2 _ 3 4", "a", "rmse", "0.5 -2 nan 3 4"),
        ("0,1 1,_ _,_ 0,0 1,1", "a,b", "rocauc", "0,1 1,nan nan,nan 0,0 1,1"),
        ("7 -1 nan 30 99", "a", "acc", "1 0 0 2 0"),
        ("7 b _ 30 z", "a", "acc", "1 2 0 0 0"),
    ],
    ids=["real", "binary", "whole", "mixed"],
)
def test_kinds_of_labels(tmp_path, rows, columns, metric, y):
    """The last node is in no split: a class that it alone has does not count."""
    names, cells = columns.split(","), rows.replace("_", "").split(" ")
    splits = ["train", "train", "train", "val", ""]
    lines = [f"id,{columns},split", *map(",".join, zip("abcde", cells, splits)), ""]
    config = small(
        tmp_path,
        "\n".join(lines),
        "source,target,p\na,b,1\n",
        {"path": "nodes.csv", "split_column": "split", "label": names if len(names) > 1 else "a"},
    )
    data = load(tmp_path, config)
    expected = [[float(cell) for cell in row.split(",")] for row in y.split()]
    np.testing.assert_array_equal(data.y, expected)
    assert data.train_mask.tolist() == [True, True, False, False, False] and data.metric == metric
    assert data.out_channels == (3 if metric == "acc" else len(names))


@pytest.mark.parametrize("labels", ["01", ("no", "yes")])
@pytest.mark.parametrize("number_of_ones, metric", [(7, "rocauc"), (3, "acc")])
def test_rare_labels_are_measured_by_their_order(tmp_path, labels, number_of_ones, metric):
    rows = [f"n{i},{labels[i < number_of_ones]},{'train' if i % 2 else 'val'}" for i in range(9)]
    nodes = {"path": "nodes.csv", "split_column": "split", "label": "a"}
    config = small(
        tmp_path, "\n".join(["id,a,split", *rows, ""]), "source,target,p\nn0,n1,1\n", nodes
    )
    assert load(tmp_path, config).metric == metric


def test_features_of_numbers(tmp_path):
    nodes = "id,a,b\nx,1,0\ny,,3\nz,5,9\n"
    config = small(
        tmp_path,
        nodes,
        "source,target,p\nx,y,1\n",
        {"path": "nodes.csv", "features": ["b", "a"], "log1p": ["b"], "standardize": True},
    )
    b = np.log1p(np.array([0, 3, 9.0]))
    expected = np.stack([(b - b.mean()) / b.std(), np.array([-1, 0, 1])], axis=1)
    np.testing.assert_allclose(load(tmp_path, config).x.numpy(), expected, rtol=1e-6)


def test_features_of_categories_and_empty_cells(tmp_path, caplog):
    """Values are in their order, numbers as numbers."""
    caplog.set_level(logging.INFO)
    nodes = "id,a,b,c,floor,note\nx,,1,DE,10,up\ny,5,2,,9,down\nz,3,3,10,nan,up\nw,1,4,DE,10,up\n"
    config = small(
        tmp_path,
        nodes,
        "source,target,p\nx,y,\ny,x,3\nx,y,2\ny,z,1\n",
        {
            "path": "nodes.csv",
            "features": ["b", "a"],
            "text": ["note"],
            "categories": ["c", "floor"],
        },
    )
    data = load(tmp_path, config)
    assert data.x[:, [0, 1, 4, 5, 6, 7]].tolist() == [
        [1, 0, 0, 1, 0, 1],
        [2, 5, 0, 0, 1, 0],
        [3, 3, 1, 0, 0, 0],
        [4, 1, 0, 1, 0, 1],
    ]
    assert data.x[:, 2:4].norm(dim=1).tolist() == pytest.approx([2**0.5] * 4)  # the texts
    # Equal edges have the mean, and an edge and its reverse have the mean of both.
    edges = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_attr.tolist()))
    assert edges == {(0, 1): [2], (1, 0): [2], (1, 2): [1], (2, 1): [1]}
    assert (
        "1 empty cell in a, taken for zeros; c: 2 categories, and 1 empty cell in none of them; floor: 2 categories, and "
        "1 empty cell in none of them" in caplog.text
    )
    assert "1 empty cell in p, taken for zeros" in caplog.text


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_the_extra_is_named_where_a_package_is_missing(tmp_path, monkeypatch, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(
        ValueError, match=rf"data=tables needs {package}: pip install .* -e '.\[tables\]'"
    ):
        load(tmp_path, small(tmp_path))


def content_of(store: Path) -> dict:
    """The arrays and values of a store, as they lie on the disk, without the times of files."""
    manifest = files.read_json(store / "manifest.json")
    assert {path.name for path in store.iterdir()} == {
        ".lock",
        "manifest.json",
        *(f"{name}.bin" for name in manifest["arrays"]),
    }
    return {
        "values": manifest["values"],
        **{
            name: (entry["dtype"], entry["shape"], entry["blake2b"])
            for name, entry in manifest["arrays"].items()
        },
    }


def many_rows(folder: Path) -> TablesConfig:
    """Tables that take a while."""
    nodes, edges = random_tables(3, 3000, 60_000)
    nodes["text"] = [f"words {number % 17} of {number % 101}" for number in range(len(nodes))]
    nodes.loc[::5, "a"] = edges.loc[::5, "w"] = np.nan
    parts = write(folder, nodes, edges)
    columns = {
        "features": ["a"],
        "standardize": True,
        "text": ["text"],
        "text_channels": 16,
        "categories": ["b"],
        **LABELS,
    }
    return config_of(
        folder,
        parts["nodes"] | columns,
        parts["edges"] | {"weight": "w", "features": ["p", "q"]},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Tables that take a while, the content of their store and its node features, for tests that only read them."""
    folder = tmp_path_factory.mktemp("tables")
    config = many_rows(folder)
    data = load(folder, config)
    (store,) = (folder / "cache" / "graphs").iterdir()
    return config, store.name, content_of(store), data.x.clone()


POINTS = [
    "stage nodes",
    "stage joined",
    "stage sorted",
    "array edges",
    "array names",
    "array x",
    "finish",
]


def die_at(point: str, config: TablesConfig, cache_dir: Path) -> None:
    """Load, and die by kill -9 in the middle of a stage, of an array that is being written, or of the last step."""
    kind, _, name = point.partition(" ")
    execute, file_write, finish = Database.execute, ArrayFile.write, StoreWriter.finish

    def die(*args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_execute(self, sql, *args):
        if kind == "stage" and sql.startswith(f"CREATE TABLE {name} "):
            threading.Timer(0.003, die).start()
        return execute(self, sql, *args)

    def dying_write(self, first, values):
        file_write(self, first, values)
        if kind == "array" and self.path.name == f"{name}.bin":
            die()

    Database.execute, ArrayFile.write = dying_execute, dying_write
    StoreWriter.finish = die if kind == "finish" else finish
    cache.load(config, cache_dir)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point == "stage joined" else pytest.mark.slow)
        for point in POINTS
    ],
)
def test_a_kill_loses_no_stage_that_was_complete(tmp_path, point, whole, monkeypatch):
    config, name, expected, _ = whole
    assert status_of(forked(die_at, point, config, tmp_path / "killed")) == -signal.SIGKILL
    store = tmp_path / "killed" / "graphs" / name
    assert not store.exists() and store.with_name(f"{store.name}.part").exists()
    made = []
    execute = Database.execute
    monkeypatch.setattr(
        Database,
        "execute",
        lambda self, sql, *args: (
            made.append(sql.split()[2]) if sql.startswith("CREATE TABLE") else None,
            execute(self, sql, *args),
        )[1],
    )
    cache.load(config, tmp_path / "killed")
    assert content_of(store) == expected and [path.name for path in store.parent.iterdir()] == [
        store.name
    ]
    if not point.startswith("stage"):
        assert made == []


@pytest.mark.parametrize(
    "megabytes", [6, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))]
)
def test_a_full_disk_is_named_and_the_next_goes_on(tmp_path, megabytes, whole):
    """Wherever the room ends, in DuckDB or in an array: an error of one line, and with more room the same store."""
    config, _, _, expected = whole
    with disks.small_disk(tmp_path / "disk", megabytes) as disk:
        with pytest.raises(FileError, match=f"{disk}.*no space left|No space left on device"):
            cache.load(config, disk)
        assert not list(disk.glob("graphs/*.store"))
        disks.mount("-o", "remount,size=100m", disk)
        assert torch.equal(cache.load(config, disk).x, expected)


def test_a_request_to_stop_ends_a_long_query(tmp_path):
    with Database(tmp_path) as db, StopRequest():
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        start = time.monotonic()
        with pytest.raises(Stopped):
            db.stage(
                "long",
                "SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b WHERE a.range < b.range",
                "counting",
            )
        assert time.monotonic() - start < 60  # of hours
        assert not db.has("long") and db.execute("SELECT 1") == [(1,)]


@pytest.mark.slow
def test_sorting_spills_to_the_disk_under_the_limit(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 5000, (2, 600_000))
    pd.DataFrame(
        {"source": ends[0], "target": ends[1], **{name: rng.random(600_000) for name in "pqr"}}
    ).to_parquet(tmp_path / "edges.parquet")
    parts = {"path": "edges.parquet", "features": ["p", "q", "r"]}  # 38 MB of sorted rows

    def read(limit: str, seed: int):
        monkeypatch.setenv("PARALLEL_EPOCHS_MAX_TABLES", limit)
        return load(tmp_path, config_of(tmp_path, {}, parts, graph_seed=seed))

    wide, narrow = read("1GB", 0), read("40MB", 1)
    assert (
        torch.equal(wide.edge_attr, narrow.edge_attr) and wide.content_hash != narrow.content_hash
    )
    with pytest.raises(FileError, match="MAX_TABLES is too low, or .* has no space left"):
        read("1MB", 2)


def test_the_content_of_files_counts_and_of_large_ones_samples(tmp_path, monkeypatch):
    config = small(tmp_path)
    before = cache.hash_content(config)
    assert cache.hash_content(dataclasses.replace(config, graph_seed=1)) == before
    columns = [
        dataclasses.replace(config, nodes=dataclasses.replace(config.nodes, **options))
        for options in ({}, {"categories": ["a"]}, {"categories": ["split"]})
    ]
    hashes = [
        cache.hash_graph(config)
        for config in (*columns, dataclasses.replace(config, duplicates="first"))
    ]
    assert len(set(hashes)) == 4
    (tmp_path / "edges.csv").write_text(EDGES.replace("w,3", "w,4"))
    assert cache.hash_content(config) != before
    monkeypatch.setattr(content, "HASHED_WHOLLY", 10)
    monkeypatch.setattr(content, "HASHED_BLOCK", 4)
    sampled = cache.hash_content(config)
    assert cache.hash_content(config) == sampled
    os.utime(tmp_path / "edges.csv", (1, 1))
    assert cache.hash_content(config) != sampled


def test_the_order_of_rows_and_what_is_read_at_a_time_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "BATCH", 2)
    rows = [
        "x,y,1e16",
        "x,y,1",
        "x,y,-1e16",
        "y,x,3",
        "x,y,0.25",
    ]  # sums that depend on their order
    attrs = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 1, 3, 0], [0, 2, 3, 1, 4]):
        edges = "source,target,p\n" + "".join(f"{rows[place]}\n" for place in order)
        attrs.append(load(tmp_path, small(tmp_path, edges=edges)).edge_attr.clone())
    assert (
        torch.equal(attrs[0], attrs[1])
        and torch.equal(attrs[0], attrs[2])
        and attrs[0][0] == attrs[0][1]
    )


def _grouped(folder, *, labels=False, **keys) -> TablesConfig:
    ends = [(node, (node * 7 + step) % 40) for node in range(40) for step in (1, 2, 3)]
    folder.mkdir(exist_ok=True)
    names = "train", "Train", "val", "test", ""
    (folder / "edges.csv").write_text(
        "source,target,fold,team,odd\n"
        + "".join(
            f"{a},{b},{names[(a + b) % 5]},t{(a + b) % 9},{'x' * (a == 7)}\n" for a, b in ends
        )
    )
    (folder / "nodes.csv").write_text(
        "id,kind,team\n" + "".join(f"{a},k{a % 2},t{a % 9}\n" for a in range(40))
    )
    nodes = NodeColumns(path="nodes.csv", label="kind" if labels else None)
    column = keys.pop("split_column", None)
    edges = EdgeColumns(path="edges.csv", split_column=column)
    return TablesConfig(folder=str(folder), nodes=nodes, edges=edges, **keys)


def test_links_are_divided_by_a_column_and_by_groups(tmp_path):
    found = cache.load_links(_grouped(tmp_path, split_column="fold"), tmp_path)
    for number, part in enumerate(("train", "valid", "test")):
        ends = found[f"{part}_pairs"].sum(1) % 5
        assert set(ends.tolist()) == ({0, 1}, {2}, {3})[number]
    kept = {tuple(sorted(edge)) for edge in found.edge_index.t().tolist() if edge[0] != edge[1]}
    assert kept == {tuple(sorted(pair)) for pair in found.train_pairs.tolist()}
    found = cache.load_links(_grouped(tmp_path, split_by="team"), tmp_path)
    teams = [
        set((found[f"{part}_pairs"].sum(1) % 9).tolist()) for part in ("train", "valid", "test")
    ]
    assert all(teams) and sum(map(len, teams)) == len(set.union(*teams)) == 9


def test_nodes_of_one_group_are_in_one_split(tmp_path):
    found = cache.load(_grouped(tmp_path, labels=True, split_by="team"), tmp_path)
    teams = [
        set((found[mask].nonzero().flatten() % 9).tolist())
        for mask in ("train_mask", "valid_mask", "test_mask")
    ]
    assert all(teams) and sum(map(len, teams)) == len(set.union(*teams)) == 9
    of_team = [found.groups[team::9] for team in range(9)]
    assert len({int(each[0]) for each in of_team}) == 9
    assert all((each == each[0]).all() for each in of_team)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"split_column": "nobody"}, "data.edges.split_column=nobody: .* has no such column"),
        ({"split_column": "team"}, "row 1, column team holds 't1'; a cell of the split is train"),
        (
            {"split_column": "fold", "split": "time"},
            "data.split=time needs data.edges.time, a column of the edges",
        ),
        ({"split_by": "nobody"}, "data.split_by=nobody: .* has no such column"),
        ({"split_by": "odd"}, "row 1, column odd is empty; every row needs a group"),
        (
            {"split_by": "team", "labels": True},
            "data.split=group needs data.split_by, a column of the edges, and no labels of nodes",
        ),
        ({"split": "column"}, "data.split=column needs data.edges.split_column"),
    ],
)
def test_columns_that_cannot_divide_links_are_refused(keys, message, tmp_path):
    config = _grouped(tmp_path, **keys)
    with pytest.raises(ValueError, match=message):
        config.check()
        config.check_links()
        cache.load_links(config, tmp_path)


@pytest.mark.parametrize("reading", [5, 6])
def test_a_column_called_split_divides_the_nodes(tmp_path, reading):
    columns = {"path": "nodes.csv", "label": "kind", "features": ["a"]}
    nodes = NODES + "".join(f"n{i},1,u,{('test', 'valid', 'train')[i % 3]}\n" for i in range(30))
    data = load(tmp_path, small(tmp_path, nodes, node_columns=columns, reading=reading))
    is_own = data.test_mask[4:].tolist() == [i % 3 == 0 for i in range(30)]
    assert is_own == (reading == 6)


def test_a_column_called_split_of_other_words_is_not_the_split(tmp_path):
    nodes = NODES.replace("val\n", "north\n")
    columns = {"path": "nodes.csv", "label": "kind", "features": ["a"]}
    assert load(tmp_path, small(tmp_path, nodes, node_columns=columns)).train_mask.sum() == 1


def test_numbers_and_labels_are_read_as_the_table_says(tmp_path):
    nodes = 'id,a,kind\nx,"1.234,5","2,5"\ny,"-0,5","1.000"\nz,7,3\nw,"1e3","0,1"\n'
    csv = {"decimal_separator": ",", "thousands": "."}
    columns = {"path": "nodes.csv", "features": ["a"], "label": "kind", "csv": csv}
    data = load(tmp_path, small(tmp_path, nodes, node_columns=columns))
    assert data.x[:, 0].tolist() == [1234.5, -0.5, 7, 1000] and data.metric == "rmse"
    assert data.y[:, 0].tolist() == pytest.approx([2.5, 1000, 3, 0.1])
    with pytest.raises(ValueError, match="row 1, column a holds '1.5', which is not a finite"):
        load(tmp_path, small(tmp_path, nodes.replace("1.234,5", "1.5"), node_columns=columns))
