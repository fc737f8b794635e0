"""The same graph gives the same edges and weights, or the same refusal, through every entry: files, tables, memory."""

import re

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import EdgesConfig, FileConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.objects import attributes_of, keys_of
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.graph.edges import check_weight

NAN, INF = float("nan"), float("inf")
# The directed edges of a graph with their weights, none for a graph without; or what the refusal says.
GRAPHS = {
    "a path": ("ab bc", None, ""),
    "weights": ("ab bc", (2, 0.5), ""),
    "a loop": ("aa ab", None, ""),
    "both ways": ("ab ba", None, ""),
    "two weights": ("ab ba bc", (1, 2, 3), ""),
    "one loop": ("aa", None, ""),
    "equal edges": ("ab ab bc", None, ""),
    "equal edges with weights": ("ab ab bc", (1, 2, 4), ""),
    "a small weight": ("ab bc", (1e-3, 1), ""),
    "a large weight": ("ab bc", (2**24 + 1, 1), ""),
    "many": (" ".join(f"{a}{b}" for a in "abcdefgh" for b in "hgfedcba" if a != b), None, ""),
    "many weights": (
        " ".join(f"{a}{b}" for a in "abcde" for b in "edcba"),
        tuple(range(1, 26)),
        "",
    ),
    "a negative weight": ("ab bc", (1, -1), "negative"),
    "weights that end at 0": ("ab ab bc", (1, -1, -5), "negative"),
    "no number": ("ab bc", (1, NAN), "finite|not a number|empty"),
    "infinite": ("ab bc", (INF, 1), "finite"),
    "beyond float32": ("ab bc", (1e300, 1), "finite|float32"),
    "complex": ("ab bc", (1, 1j), "real|complex|numbers|finite"),
}


def letters(pairs: str) -> tuple[list[str], list[str]]:
    return [pair[0] for pair in pairs.split()], [pair[1] for pair in pairs.split()]


def as_text(folder, ends, weights, end="\n", separator="\t", head=""):
    lines = [
        separator.join(map(str, row)) for row in zip(*ends, *([] if weights is None else [weights]))
    ]
    (folder / "edges.txt").write_text(head + end.join([*lines, ""]))
    return EdgesConfig(path=str(folder / "edges.txt"), to_undirected=False)


def as_header(folder, ends, weights):
    named = ends if weights is None else (weights, *ends)
    head = "source,target\n" if weights is None else "weight,source,target\n"
    return as_text(folder, named, None, separator=",", head=head)


def frame(ends, weights):
    return pd.DataFrame(
        {"source": ends[0], "target": ends[1], **({} if weights is None else {"weight": weights})}
    )


def as_tables(folder, ends, weights, ending="csv"):
    table = frame(ends, weights)
    table.to_csv(folder / "edges.csv", index=False) if ending == "csv" else table.to_parquet(
        folder / "edges.parquet"
    )
    return TablesConfig(
        folder=str(folder),
        to_undirected=False,
        edges=EdgeColumns(path=f"edges.{ending}", weight=None if weights is None else "weight"),
    )


def as_frames(folder, ends, weights):
    path = keys_of((None, frame(ends, weights)), folder, {})["data.edges.path"]
    return TablesConfig(
        to_undirected=False,
        edges=EdgeColumns(path=path, weight=None if weights is None else "weight"),
    )


def numbers(ends):
    names = sorted({*ends[0], *ends[1]})
    return names, [[names.index(name) for name in side] for side in ends]


def matrix(ends, weights):
    names, (source, target) = numbers(ends)
    values = np.ones(len(source)) if weights is None else np.array(weights)
    if (
        weights is None
    ):  # equal edges of a text without weights are one edge; those of a matrix add up
        source, target = zip(*sorted(set(zip(source, target))))
        values = np.ones(len(source))
    return sp.coo_array((values, (source, target)), shape=(len(names),) * 2)


def as_matlab(folder, ends, weights):
    scipy.io.savemat(folder / "edges.mat", {"network": sp.csc_matrix(matrix(ends, weights))})
    return EdgesConfig(path=str(folder / "edges.mat"), to_undirected=False)


def as_file(folder, data):
    return FileConfig(path=keys_of(data, folder, {})["data.path"])


def as_networkx(folder, ends, weights):
    graph = nx.MultiDiGraph()
    for source, target, weight in zip(*ends, weights or [None] * len(ends[0])):
        graph.add_edge(source, target, **({} if weight is None else {"weight": weight}))
    return as_file(folder, graph)


def as_data(folder, ends, weights):
    _, edges = numbers(ends)
    values = {} if weights is None else {"edge_weight": torch.tensor(weights)}
    return as_file(folder, Data(edge_index=torch.tensor(edges), **values))


ENTRIES = {
    "text": as_text,
    "CRLF": lambda *args: as_text(*args, end="\r\n"),
    "blanks": lambda *args: as_text(*args, separator=" "),
    "semicolons": lambda *args: as_text(*args, separator=";"),
    "header": as_header,
    "csv": as_tables,
    "parquet": lambda *args: as_tables(*args, "parquet"),
    "frames": as_frames,
    "mat": as_matlab,
    "SciPy": lambda folder, *graph: as_file(folder, matrix(*graph)),
    "CSR": lambda folder, *graph: as_file(folder, matrix(*graph).tocsr()),
    "NetworkX": as_networkx,
    "Data": as_data,
}


def expected(ends, weights) -> dict:
    """The weight of each edge; those of equal edges are added."""
    found = {}
    for source, target, weight in zip(*ends, weights or [None] * len(ends[0])):
        found[source, target] = (
            1.0 if weight is None else float(np.float32(found.get((source, target), 0) + weight))
        )
    return found


def opened(config, folder, names) -> dict:
    """The weight of each edge as vectors of nodes are learned from it, 1 where it has none."""
    data = cache.load(config, folder / "cache")
    check_weight(data.edge_attr, config.origin())
    if (
        "names" in data and not (own := unpack_names(data))[0].isdecimal()
    ):  # others are the numbers of rows
        names = own
    weights = (
        torch.ones(data.edge_index.size(1)) if data.edge_attr is None else data.edge_attr[:, 0]
    )
    ends = data.edge_index.t().tolist()
    assert len(ends) == len(set(map(tuple, ends))) and len(names) == data.num_nodes
    return {
        (names[source], names[target]): weight
        for (source, target), weight in zip(ends, weights.tolist())
    }


@pytest.mark.parametrize(
    "entry",
    [
        entry
        if entry in ("header", "csv", "mat", "SciPy", "NetworkX")
        else pytest.param(entry, marks=pytest.mark.slow)
        for entry in ENTRIES
    ],
)
def test_every_entry_gives_the_same_graph_or_the_same_refusal(entry, tmp_path):
    wrong = {}
    for place, (name, (pairs, weights, refusal)) in enumerate(GRAPHS.items()):
        if (entry, name[:5]) in (("Data", "equal"), ("parquet", "compl")):
            continue  # equal edges of a Data stay, and are reported; Parquet has no complex numbers
        if name == "no number" and entry in ("csv", "parquet", "frames"):
            continue  # empty cells of tables are 0, and are counted
        ends, folder = letters(pairs), tmp_path / str(place)
        folder.mkdir()
        try:
            found = opened(ENTRIES[entry](folder, ends, weights), folder, numbers(ends)[0])
        except ValueError as error:
            found = str(error)
        if not (
            re.search(refusal, found)
            if refusal and isinstance(found, str)
            else found == expected(ends, weights)
        ):
            wrong[name] = found
    assert not wrong


def test_edges_of_a_multigraph_with_own_attributes_stay_apart():
    graph = nx.MultiDiGraph([(0, 1, {"edge_attr": 1.0}), (0, 1, {"edge_attr": 2.0})])
    found = attributes_of(graph)
    assert found["edge_index"].tolist() == [[0, 0], [1, 1]] and found["edge_attr"].tolist() == [
        1,
        2,
    ]
