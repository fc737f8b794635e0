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
