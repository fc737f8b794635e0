"""The keys of data=tables: where the tables of nodes and edges lie, and what their columns are."""

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pipeline.data.base_config import DataConfig
from pipeline.keys import key

SPLITS = ("column", "random", "time")
MEMORY = re.compile(r"\d+(\.\d+)? ?([KMGT]i?B)", re.IGNORECASE)
# More columns than any table of people: what is asked for by mistake would fill the disk.
MAX_CHANNELS = 1 << 16


@dataclass
class NodeColumns:
    """The table of nodes. The order of its rows is that of the nodes."""

    path: str | None = key(None, "the table of nodes; none: the nodes are the ids that the edges name",
                           names_files=True)
    table: str | None = key(None, "of a DuckDB or SQLite file: the table in it", shapes_graph=True)
    id: str = key("id", "column of the nodes' ids, of any type", shapes_graph=True)
    features: list[str] = key([], "columns of numbers that are node features", shapes_graph=True)
    log1p: list[str] = key([], "those of features whose log(1 + x) is taken", shapes_graph=True)
    standardize: bool = key(False, "bring every column of features to mean 0 and variance 1", shapes_graph=True)
    text: list[str] = key([], "columns of prose: TF-IDF of their words, hashed", shapes_graph=True)
    text_words: int = key(1, "of text: words in a row that count as one term, at most", minimum=1, below=6,
                          shapes_graph=True)
    text_chars: list[str] = key([], "columns of names: TF-IDF of the pieces of their words, hashed", shapes_graph=True)
    char_lengths: list[int] = key([2, 4], "of text_chars: letters of a piece, from and to", shapes_graph=True)
    text_tags: list[str] = key([], "columns of tags, as in role::program|use::text: TF-IDF of each and of what stands "
                               "before its ::", shapes_graph=True)
    tag_separator: str = key("|", "of text_tags: what stands between two tags", shapes_graph=True)
    text_features: str = key("hashed", "columns of text become hashed columns each, or scores: of linear models of all "
                             "terms, one for each class, which have not seen the node", choices=("hashed", "scores"),
                             shapes_graph=True)
    text_channels: int = key(256, "node features that each column of text becomes if hashed, at most", minimum=1,
                             below=MAX_CHANNELS, shapes_graph=True)
    label: str | None = key(None, "column of the labels: texts or whole numbers are classes, other numbers real values",
                            shapes_graph=True)
    labels: list[str] = key([], "in place of label: columns of 0 and 1, a binary task each, or of numbers",
                            shapes_graph=True)
    split_column: str | None = key(None, "column of train, valid (or val) and test", shapes_graph=True)


@dataclass
class EdgeColumns:
    """The table of edges."""

    path: str = key(..., "the table of edges", names_files=True)
    table: str | None = key(None, "of a DuckDB or SQLite file: the table in it", shapes_graph=True)
    source: str = key("source", "column of the ids that edges come from", shapes_graph=True)
    target: str = key("target", "column of the ids that edges go to", shapes_graph=True)
    weight: str | None = key(None, "column of weights, the first edge feature; those of equal edges are added",
                             shapes_graph=True)
    features: list[str] = key([], "columns of numbers that are edge features; of equal edges the mean is taken",
                              shapes_graph=True)
    relation: str | None = key(None, "column of the kind of edge: one-hot edge features; of equal edges all count",
                               shapes_graph=True)
    directed_relations: bool = key(False, "a relation and its inverse, on the reverse edge, are different features",
                                   shapes_graph=True)


@dataclass
class TablesConfig(DataConfig):
    """Tables of edges and nodes (CSV, TSV, Parquet, DuckDB, SQLite), ids of any type, larger than memory if need be."""

    is_stored: ClassVar[bool] = True
    source: str = key("tables", "tables of edges and nodes: .csv, .tsv (perhaps .gz), .parquet, or a table of a DuckDB "
                      "or SQLite file", shapes_graph=True)
    folder: str | None = key(None, "what the paths of the tables are relative to; none: the current folder",
                             is_path=True, names_files=True)
    nodes: NodeColumns = field(default_factory=NodeColumns)
    edges: EdgeColumns = field(default_factory=EdgeColumns)
    to_undirected: bool = key(True, "add the missing reverse edges", shapes_graph=True)
    dangling: str = key("drop", "edges that name no node of the table, or none at all: drop them and say how many, or "
                        "error", choices=("drop", "error"), shapes_graph=True)
    empty: str = key("zero", "empty cells in columns of numbers: zero (the mean, of standardised ones), or error",
                     choices=("zero", "error"), shapes_graph=True)
    metric: str | None = key(None, "of the labels; none: acc for texts and whole numbers, rmse for other numbers, "
                             "rocauc for several columns of 0 and 1", shapes_graph=True)
    split: str | None = key(None, "column, that of nodes.split_column; random; time, the earliest for training; none: "
                            "column if there is one, else random", choices=SPLITS, shapes_graph=True)
    time_column: str | None = key(None, "of split=time: a column of the nodes, numbers or dates", shapes_graph=True)
    train_fraction: float = key(0.6, "of split=random and time: fraction of the labelled nodes for training", above=0,
                                shapes_graph=True)
    valid_fraction: float = key(0.2, "fraction for validation; the rest is for the test", minimum=0, shapes_graph=True)
    graph_seed: int = key(0, "seed of split=random", minimum=0, shapes_graph=True)
    memory_limit: str = key("4GB", "memory of DuckDB; what does not fit goes to files in cache_dir",
                            changes_numbers=False)
    threads: int = key(0, "of DuckDB; 0: as many as torch has", minimum=0, below=1024, changes_numbers=False)

    def origin(self) -> str:
        return str(self.resolve(self.edges.path))

    def resolve(self, path: str) -> Path:
        """Return where a table lies."""
        return Path(self.folder or "", path).expanduser()

    def split_kind(self) -> str:
        """Return how the nodes are divided: "column", "random" or "time"."""
        return self.split or ("column" if self.nodes.split_column is not None else "random")

    def text_columns(self) -> list[tuple[str, str]]:
        """Return the columns of text with what they hold: "words", "chars" or "tags"."""
        nodes = self.nodes
        return [*((column, "words") for column in nodes.text), *((column, "chars") for column in nodes.text_chars),
                *((column, "tags") for column in nodes.text_tags)]

    def label_columns(self) -> list[str]:
        """Return the columns of labels."""
        return [self.nodes.label] if self.nodes.label is not None else list(self.nodes.labels)

    def check(self) -> None:
        check_packages()
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ValueError(f"data.folder={self.folder} does not exist, or is no folder")
        for part, path in (("edges", self.edges.path), ("nodes", self.nodes.path)):
            if path is not None and not is_there(self.resolve(path)):
                raise ValueError(f"data.{part}.path={path} does not exist: there is no {self.resolve(path)}")
        if not MEMORY.fullmatch(self.memory_limit):
            raise ValueError(f"data.memory_limit={self.memory_limit} is no size: write 4GB, or 500MB")
        self._check_nodes()
        self._check_split()
        if self.edges.directed_relations and (self.edges.relation is None or not self.to_undirected):
            raise ValueError("data.edges.directed_relations=true tells relations from their inverses on reverse edges: "
                             "it needs data.edges.relation and data.to_undirected=true")

    def _check_nodes(self) -> None:
        nodes = self.nodes
        if nodes.path is None:
            for name in ("features", "text", "text_chars", "text_tags", "label", "labels", "split_column"):
                if value := getattr(nodes, name):
                    raise ValueError(f"data.nodes.{name}={value} is of the table of nodes: give data.nodes.path")
        if nodes.label is not None and nodes.labels:
            raise ValueError(f"data.nodes.label={nodes.label} and data.nodes.labels={nodes.labels}: give one of them")
        if wrong := set(nodes.log1p) - set(nodes.features):
            raise ValueError(f"data.nodes.log1p names {sorted(wrong)[0]}, which is not among data.nodes.features")
        if len(nodes.char_lengths) != 2 or not 1 <= nodes.char_lengths[0] <= nodes.char_lengths[1] <= 10:
            raise ValueError(f"data.nodes.char_lengths={nodes.char_lengths}: give the shortest and the longest piece, "
                             "as in [2,4], at most 10 letters")
        if nodes.text_features == "scores" and not (self.text_columns() and self.label_columns()):
            raise ValueError("data.nodes.text_features=scores are of what texts say of labels: give data.nodes.text, "
                             "text_chars or text_tags, and data.nodes.label or labels")
        if not nodes.tag_separator:
            raise ValueError("data.nodes.tag_separator is empty: give what stands between two tags")

    def _check_split(self) -> None:
        kind = self.split_kind()
        if kind == "column" and self.nodes.split_column is None:
            raise ValueError("data.split=column needs data.nodes.split_column, the column of train, valid and test")
        if kind == "time" and (self.time_column is None or self.nodes.path is None):
            raise ValueError("data.split=time needs data.time_column, a column of data.nodes.path")
        check_fractions(self.train_fraction, self.valid_fraction)


def check_packages() -> None:
    """Refuse to go on without the packages that read tables.

    Raises:
        ValueError: names the package and the extra that brings it.
    """
    for package in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"data=tables needs {package}: pip install -e .[tables]")


def is_there(path: Path) -> bool:
    """Tell whether there is a file or a folder, or a file that a pattern such as part-*.parquet means."""
    return path.exists() or any(path.parent.glob(path.name))


def check_fractions(train_fraction: float, valid_fraction: float) -> None:
    """Refuse fractions of training and validation that are more than all.

    Raises:
        ValueError: names the keys.
    """
    if not (train_fraction > 0 and valid_fraction >= 0 and train_fraction + valid_fraction <= 1):
        raise ValueError("data.train_fraction must be more than 0, data.valid_fraction at least 0, and both together "
                         f"at most 1, not {train_fraction} and {valid_fraction}")
