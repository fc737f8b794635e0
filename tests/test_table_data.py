"""Tables to a store: equal to the same graph prepared in memory, whatever the format; odd rows; kills."""

import gzip
import logging
import sqlite3

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from pipeline.data import cache, tables
from pipeline.data.node_names import number_names, pack_names, unpack_names
from pipeline.data.prepare import prepare
from pipeline.data.tables_config import EdgeColumns, NodeColumns, TablesConfig
from pipeline.graph.edges import plain_edges
from pipeline.graph.structure import inspect
from pipeline.names import MASKS


def random_tables(seed: int = 0, num_nodes: int = 60, num_rows: int = 400) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Nodes and edges with ids of texts; some edges are there twice, both ways round, or from a node to itself."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"node-{number}" for number in rng.permutation(num_nodes)])
    nodes = pd.DataFrame({
        "id": ids, "a": rng.normal(size=num_nodes).round(3), "b": rng.integers(0, 100, num_nodes),
        "kind": rng.choice(["libs", "games", "net"], num_nodes), "split": rng.choice(["train", "val", "test"], num_nodes)})
    edges = pd.DataFrame({
        "from": rng.choice(ids[:-5], num_rows), "to": rng.choice(ids[:-5], num_rows),
        "w": rng.random(num_rows).round(4), "p": rng.normal(size=num_rows).round(4),
        "q": rng.random(num_rows).round(4), "relation": rng.choice(["likes", "knows"], num_rows)})
    return nodes, pd.concat([edges, edges.iloc[:30], edges.iloc[10:15]], ignore_index=True)


def write(folder, nodes, edges) -> dict:
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return {"nodes": dict(path="nodes.csv"), "edges": dict(path="edges.csv", source="from", target="to")}


def config_of(folder, nodes: dict, edges: dict, **options) -> TablesConfig:
    return TablesConfig(folder=str(folder), nodes=NodeColumns(**nodes), edges=EdgeColumns(**edges), **options)


def load(tmp_path, config: TablesConfig) -> Data:
    return cache.load(config, tmp_path / "cache")


def read(nodes: pd.DataFrame, edges: pd.DataFrame, columns: dict, *, directed_relations: bool = False) -> Data:
    """The same tables read in memory, for :func:`prepare`: equal rows merged, x, labels and splits of the columns."""
    names = nodes["id"].to_numpy()
    place = {name: number for number, name in enumerate(names)}
    edges = edges.assign(s=edges["from"].map(place), t=edges["to"].map(place))
    merged = edges.groupby(["s", "t"], sort=True).agg(
        **{name: (name, "sum" if name == columns.get("weight") else "mean")
           for name in filter(None, [columns.get("weight"), *columns.get("features", [])])}).reset_index() \
        if columns.get("weight") or columns.get("features") else edges[["s", "t"]].drop_duplicates()
    values = merged.drop(columns=["s", "t"]).to_numpy().astype(np.float32)
    data = Data(edge_index=torch.from_numpy(merged[["s", "t"]].to_numpy(np.int64).T.copy()), num_nodes=len(names),
                edge_attr=torch.from_numpy(values) if values.shape[1] else None, **pack_names(names))
    kinds, kind_names = number_names(nodes["kind"])
    data.y, data.metric = torch.from_numpy(kinds).unsqueeze(1), "acc"
    data.update(pack_names(kind_names, "label_names"))
    for mask, split in zip(MASKS, ("train", "val", "test")):
        data[mask] = torch.tensor((nodes["split"] == split).tolist())
    return data


def assert_equal(stored: Data, expected: Data) -> None:
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


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("columns", [{}, {"weight": "w"}, {"features": ["p", "q"]}, {"weight": "w", "features": ["q"]}],
                         ids=lambda columns: "-".join(columns) or "none")
@pytest.mark.parametrize("options", [{}, {"node_features": "log_sum"}, {"add_self_loops": True}],
                         ids=lambda options: "-".join(options) or "plain")
def test_equal_to_the_graph_prepared_in_memory(tmp_path, columns, options, undirected):
    nodes, edges = random_tables()
    parts = write(tmp_path, nodes, edges)
    config = config_of(tmp_path, parts["nodes"] | LABELS, parts["edges"] | columns, to_undirected=undirected, **options)
    assert_equal(load(tmp_path, config), prepare(read(nodes, edges, columns), config))


def to_sqlite(path, **tables):
    connection = sqlite3.connect(path)
    for name, table in tables.items():
        table.to_sql(name, connection, index=False)
    connection.close()


def to_duckdb(path, **tables):
    with duckdb.connect(str(path)) as connection:
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")


def write_as(kind: str, folder, nodes, edges) -> tuple[dict, dict]:
    """Write the tables in a format; returns what names them."""
    if kind in ("sqlite", "duckdb"):
        path = folder / "graph.db"
        (to_sqlite if kind == "sqlite" else to_duckdb)(path, nodes=nodes, edges=edges)
        return {"path": "graph.db", "table": "nodes"}, {"path": "graph.db", "table": "edges"}
    if kind == "folder":
        (folder / "parts").mkdir()
        for number in range(3):
            edges.iloc[number * 150:(number + 1) * 150].to_parquet(folder / "parts" / f"{number}.parquet")
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


@pytest.mark.parametrize("kind", ["csv.gz", "tsv", "tsv.gz", "parquet", "folder", "sqlite", "duckdb"])
def test_every_format_gives_the_same_graph(tmp_path, kind):
    nodes, edges = random_tables()
    node_table, edge_table = write_as(kind, tmp_path, nodes, edges)
    columns = {"weight": "w", "features": ["p", "q"]}
    config = config_of(tmp_path, node_table | LABELS, edge_table | columns | {"source": "from", "target": "to"})
    assert_equal(load(tmp_path, config), prepare(read(nodes, edges, columns), config))


@pytest.mark.parametrize("ids", [["10", "9", "2", "33"], ["b", "a", "10", "B"], ["1.5", "1", "0.25", "-3"], [7, 40, 5, 0]],
                         ids=["whole", "texts", "numbers", "int64"])
def test_without_a_table_of_nodes_ids_are_numbered_as_by_data_edges(tmp_path, ids):
    edges = pd.DataFrame({"source": [ids[0], ids[1], ids[2], ids[0]], "target": [ids[1], ids[2], ids[3], ids[1]]})
    edges.to_parquet(tmp_path / "edges.parquet")
    config = config_of(tmp_path, {}, {"path": "edges.parquet"})
    places, names = number_names(pd.concat([edges["source"], edges["target"]], ignore_index=True).astype(str))
    expected = Data(edge_index=torch.from_numpy(places.reshape(2, -1)), num_nodes=4, **pack_names(names))
    assert_equal(load(tmp_path, config), prepare(expected, config))


def test_pieces_of_edges_that_end_anywhere_make_the_same_graph(tmp_path, monkeypatch):
    nodes, edges = random_tables(1, 20, 300)  # twenty edges a node
    parts, columns = write(tmp_path, nodes, edges), {"weight": "w", "features": ["p"]}
    for batch in (1, 64):
        monkeypatch.setattr("pipeline.data.tables_sql.BATCH", batch)
        config = config_of(tmp_path, parts["nodes"] | LABELS, parts["edges"] | columns, add_self_loops=batch == 64)
        data = cache.load(config, tmp_path / f"cache-{batch}")
        assert_equal(data, prepare(read(nodes, edges, columns), config))


@pytest.mark.parametrize("directed", [True, False])
def test_relations_become_columns(tmp_path, directed):
    nodes, edges = random_tables(2, 12, 40)
    parts = write(tmp_path, nodes, edges)
    data = load(tmp_path, config_of(tmp_path, parts["nodes"], parts["edges"] | {
        "relation": "relation", "directed_relations": directed, "weight": "w"}))
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


def small(folder, nodes: str = NODES, edges: str = EDGES, node_columns: dict | None = None, **options) -> TablesConfig:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    columns = {"path": "nodes.csv", "features": ["a"], **LABELS} if node_columns is None else node_columns
    return config_of(folder, columns, {"path": "edges.csv", "features": ["p"]}, **options)


BAD = {
    "number": (NODES.replace("y,2", "y,two"), EDGES, {}, "nodes.csv: row 2, column a holds 'two', which is no finite"),
    "infinite": (NODES.replace("y,2", "y,1e39"), EDGES, {}, "row 2, column a holds '1e39', which is no finite number"),
    "edge feature": (NODES, EDGES.replace("y,z,2", "y,z,?"), {}, r"edges.csv: row 2, column p holds '\?'"),
    "id twice": (NODES.replace("z,3", "x,3"), EDGES, {}, "the id 'x' of row 1 is there 2 times"),
    "no id": (NODES.replace("z,3", ",3"), EDGES, {}, "nodes.csv: row 3, column id is empty: every node needs an id"),
    "split": (NODES.replace("u,val", "u,vale"), EDGES, {}, "row 3, column split holds 'vale'; a split is train, valid"),
    "dangling": (NODES, EDGES + "q,x,4\nr,x,4\n", {"dangling": "error"},
                 "edges.csv: row 4, column source names 'q', which is no node; 2 rows in all"),
    "empty": (NODES.replace("y,2", "y,"), EDGES, {"empty": "error"}, "nodes.csv: row 2, column a is empty; 1 rows"),
    "empty of edges": (NODES, EDGES.replace("y,z,2", "y,z,"), {"empty": "error"}, "edges.csv: row 2, column p is empty"),
    "ragged": (NODES, EDGES + "x,y\n", {}, "edges.csv: line 5: Expected Number of Columns: 3 Found: 2"),
    "column": (NODES.replace("id,", "name,"), EDGES, {}, "data.nodes.id=id: .*nodes.csv has no such column; there are name"),
    "nobody": (NODES, "source,target,p\nm,n,1\n", {}, "none of its 1 rows names two nodes; are source and target ids of"),
    "nothing": ("id,a,kind,split\n", EDGES, {}, "nodes.csv holds no rows: there are no nodes"),
    "head": (NODES, EDGES.replace("source,target", "source,source"), {}, "names the column 'source' twice"),
    "train": (NODES.replace("train", "test"), EDGES, {}, "the train split is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_by_file_column_and_row(tmp_path, case):
    nodes, edges, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        load(tmp_path, small(tmp_path, nodes, edges, **options))
    assert not list((tmp_path / "cache" / "graphs").iterdir())


def test_odd_rows_are_counted_before_anything_is_written(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    said = []
    write_edges = tables.tables_edges.write
    monkeypatch.setattr(tables.tables_edges, "write", lambda *args, **options: (
        said.append(caplog.text), write_edges(*args, **options)))
    nodes = NODES.replace("y,2", "y,").replace("w,4,", "w,nan,")
    data = load(tmp_path, small(tmp_path, nodes, EDGES + "x,x,1\nx,y,3\nq,x,1\n,x,1\nx,z,\n"))
    for text in ("4 nodes; 2 empty cells in a, taken for zeros", "2 for train; 1 for valid; 0 for test",
                 "1 nodes without a label, in no split", "8 edges; 2 dropped, as they name no node (row 6 of",
                 "column source names 'q', which is no node", "1 empty cells in p, taken for zeros", "1 self-loops",
                 "1 edges are there already, and were merged", "1 nodes of a split have no label"):
        assert text in said[0], text
    assert data.x.flatten().tolist() == [1, 0, 3, 0] and data.y.flatten().tolist() == [0, 1, 0, 0]
    edges = {pair: value for *pair, value in ()} | {
        tuple(pair): value for pair, (value,) in zip(data.edge_index.t().tolist(), data.edge_attr.tolist())}
    assert edges[0, 1] == edges[1, 0] == 2 and edges[0, 0] == 1 and edges[2, 0] == 0 and len(edges) == 9
    assert data.test_mask.sum() == 0 and data.structure["num_self_loops"] == 1


def test_ids_of_mixed_types_meet(tmp_path):
    pd.DataFrame({"id": [1, 2, 3], "a": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "nodes.parquet")
    pd.DataFrame({"source": [1.0, 2.0, np.nan], "target": ["2", "3", "1"]}).to_parquet(tmp_path / "edges.parquet")
    data = load(tmp_path, config_of(tmp_path, {"path": "nodes.parquet", "features": ["a"]}, {"path": "edges.parquet"}))
    assert data.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]] and unpack_names(data) == ["1", "2", "3"]


def test_columns_may_have_the_names_of_our_own(tmp_path):
    (tmp_path / "edges.csv").write_text('t,s,v0,k,r,"a ""b"""\nx,y,9,1,m,2\ny,z,9,2,n,3\n')
    data = load(tmp_path, config_of(tmp_path, {}, {
        "path": "edges.csv", "source": "t", "target": "s", "weight": 'a "b"', "features": ["k"], "relation": "v0"}))
    edges = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_attr.tolist()))
    assert edges == {(0, 1): [2, 1, 1], (1, 0): [2, 1, 1], (1, 2): [3, 2, 1], (2, 1): [3, 2, 1]}
