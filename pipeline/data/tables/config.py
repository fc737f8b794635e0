"""The keys of data=tables: the paths of the tables of nodes and edges, and the meaning of their columns."""

import importlib.util
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml

from parallel_epochs.pipeline.data.base_config import (
    NO_FILE,
    DataConfig,
    check_folder,
    check_fractions,
    degrees,
    featureless,
    hide_labelled,
    label_type,
    reading,
    refuse_without_labels,
    reverse_relations,
)
from parallel_epochs.pipeline.data.relation import refuse_relation
from parallel_epochs.pipeline.data.tables import heads
from parallel_epochs.pipeline.data.tables.heads import ROW, is_there
from parallel_epochs.pipeline.data.tables.label_table import ROWS
from parallel_epochs.pipeline.data.tables.labelled_edges import has_labels
from parallel_epochs.pipeline.data.tables.schema import (
    TableSchema,
    check_relation,
    check_schema,
    read_schema,
    without_paths,
)
from parallel_epochs.pipeline.keys import key
from parallel_epochs.pipeline.names import LOWER_IS_BETTER
from parallel_epochs.pipeline.run.errors import install_command

# Keys of columns that become node features.
INPUTS = ("features", "dates", "categories", "text", "text_chars", "text_tags")
SPLITS = ("column", "random", "time")
MEMORY = re.compile(r"\d+(\.\d+)? ?([KMGT]i?B)", re.IGNORECASE)
# No table of people has more columns. A larger number is a mistake and would fill the disk.
MAX_CHANNELS = 1 << 16


@dataclass
class NodeColumns:
    """The table of nodes. The nodes have the order of its rows."""

    path: str | None = key(
        None,
        "Path of the table of nodes. Default: no table; the nodes are the ids that the edges name.",
        names_files=True,
    )
    table: str | None = key(
        None, "Name of the table in the file (DuckDB and SQLite).", shapes_graph=True
    )
    id: str = key("id", "Column of the nodes' ids, of any type.", shapes_graph=True)
    features: list[str] = key(
        [], "Columns of numbers that become node features.", shapes_graph=True
    )
    log1p: list[str] = key(
        [], "Columns of data.nodes.features that are replaced by log(1 + x).", shapes_graph=True
    )
    quantiles: list[str] = key(
        [],
        "Columns of data.nodes.features that become normally distributed: each value is "
        "replaced by the normal quantile of its rank.",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    standardize: bool = key(
        False,
        "Scale every column of data.nodes.features to mean 0 and variance "
        "1, and the age in days of every column of data.nodes.dates.",
        shapes_graph=True,
    )
    dates: list[str] = key(
        [],
        "Columns of dates or times, which become five node features each: the days until the "
        "latest one of the training, and sine and cosine of the day of the week and of the month, "
        "in UTC.",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    categories: list[str] = key(
        [],
        "Categorical columns: texts or whole numbers with few different values. They "
        "become one-hot node features.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    max_categories: int = key(
        256,
        "Largest number of different values that a categorical column may have "
        "(data.nodes.categories).",
        minimum=1,
        below=MAX_CHANNELS,
        changes_numbers=False,
    )
    text: list[str] = key(
        [], "Columns of prose. They become TF-IDF features of their words.", shapes_graph=True
    )
    text_words: int = key(
        1,
        "Largest number of successive words that form a term (data.nodes.text).",
        minimum=1,
        below=6,
        shapes_graph=True,
    )
    text_chars: list[str] = key(
        [],
        "Columns of names. They become TF-IDF features of the character n-grams within "
        "their words.",
        shapes_graph=True,
    )
    char_lengths: list[int] = key(
        [2, 4],
        "Smallest and largest n of the character n-grams (data.nodes.text_chars).",
        shapes_graph=True,
    )
    text_tags: list[str] = key(
        [],
        "Columns of tags such as role::program|use::text. They become TF-IDF features of "
        "each tag, and of its part before ::.",
        shapes_graph=True,
    )
    tag_separator: str = key(
        "|", "Separator of two tags (data.nodes.text_tags).", shapes_graph=True
    )
    text_neighbors: bool = key(
        False,
        "Make texts of the ids of neighbours, a column of text for either end of each "
        "table of edges. They become TF-IDF features of the ids.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    text_features: str = key(
        "svd",
        "Node features that are made from columns of text. svd: a truncated singular value "
        "decomposition of TF-IDF of each column. hashed: hashed TF-IDF of each column. scores: "
        "for each class, the score of a linear model of all columns. Training nodes are scored by "
        "models that were fitted without them. With data.schema, the value of tables that have "
        "none.",
        choices=("svd", "hashed", "scores"),
        shapes_graph=True,
    )
    text_channels: int = key(
        256,
        "Largest number of node features for each column of text "
        "(data.nodes.text_features=svd or hashed).",
        minimum=1,
        below=MAX_CHANNELS,
        shapes_graph=True,
    )
    label: str | None = key(
        None,
        "Column of the labels. Texts and whole numbers are classes, other numbers are real values.",
        shapes_graph=True,
    )
    labels: list[str] = key(
        [],
        "Several columns of labels, instead of data.nodes.label. They are binary tasks (0 and "
        "1) or real values.",
        shapes_graph=True,
    )
    log_label: bool = key(
        False,
        "Learn log(1 + label) of real values that are not negative. Predictions and metrics "
        "are in the unit of the labels.",
        shapes_graph=True,
        hashed_if_given=True,
        before=False,
    )
    split_column: str | None = key(
        None, "Column that holds train, valid (or val) or test.", shapes_graph=True
    )


@dataclass
class EdgeColumns:
    """The table of edges."""

    path: str | None = key(None, "Path of the table of edges.", names_files=True)
    table: str | None = key(
        None, "Name of the table in the file (DuckDB and SQLite).", shapes_graph=True
    )
    source: str = key("source", "Column of the ids of the source nodes.", shapes_graph=True)
    target: str = key("target", "Column of the ids of the target nodes.", shapes_graph=True)
    bipartite: bool = key(
        False,
        "Sources and targets are different things, such as users and items: the same id in "
        "both columns means two nodes. They become two types of nodes, called as the columns.",
        shapes_graph=True,
        hashed_if_given=True,
        before=False,
    )
    weight: str | None = key(
        None,
        "Column of weights, which become the first edge feature. Weights of duplicate edges "
        "are added.",
        shapes_graph=True,
    )
    features: list[str] = key(
        [],
        "Columns of numbers that become edge features. Duplicate edges get the mean.",
        shapes_graph=True,
    )
    log1p: list[str] = key(
        [],
        "Columns of data.edges.features that are replaced by log(1 + x).",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    standardize: bool = key(
        False,
        "Scale every column of data.edges.features to mean 0 and variance 1, and the age in "
        "days of every column of data.edges.dates.",
        shapes_graph=True,
        hashed_if_given=True,
        before=False,
    )
    dates: list[str] = key(
        [],
        "Columns of dates or times, which become five edge features each, as those of "
        "data.nodes.dates.",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    relation: str | None = key(
        None,
        "Column of relations, which become one-hot edge features. Duplicate edges get all "
        "their relations.",
        shapes_graph=True,
    )
    directed_relations: bool = key(
        False,
        "Give a relation another one-hot feature on reverse edges (data.edges.relation).",
        shapes_graph=True,
    )
    time: str | None = key(
        None,
        "Column of times, as numbers or dates (task=link with data.split=time). Duplicate "
        "edges get their earliest time.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    split_column: str | None = key(
        None,
        "Column that holds train, valid (or val) or test (task=link and edge). "
        "Duplicate edges are in the first of their splits, and an edge with an empty cell "
        "is in none.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    label: str | None = key(
        None,
        "Column of the labels of edges (task=edge). Texts and whole numbers are classes, "
        "other numbers are real values. Each row is an edge of its own.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    labels: list[str] = key(
        [],
        "Several columns of labels, instead of data.edges.label. They are binary tasks (0 and "
        "1) or real values (task=edge).",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    categories: list[str] = key(
        [],
        "Categorical columns of edges with labels, which become one-hot features of these "
        "edges (task=edge).",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )
    text: list[str] = key(
        [],
        "Columns of prose of edges with labels, which become singular vectors of TF-IDF "
        "(task=edge).",
        shapes_graph=True,
        hashed_if_given=True,
        before=[],
    )


@dataclass
class RowColumns:
    """The columns of the label table (data.label_table)."""

    table: str | None = key(
        None,
        "Name of the label table in the file (DuckDB and SQLite).",
        shapes_graph=True,
        hashed_if_given=True,
    )
    id: str = key(
        "id",
        "Column of the ids of the nodes that rows ask about.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    time: str = key(
        "time",
        "Column of the times at which they ask, as numbers or dates.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    label: str = key(
        "label",
        "Column of the labels. Texts and whole numbers are classes, other numbers are real values.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    type: str | None = key(
        None,
        "Type of the nodes that rows ask about. Default: the only one, or that of data.events.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    within: str | None = key(
        None,
        "Span of time after which the label of a row is known, such as 30d. Events are "
        "summarised over this span, three of it, and all time. Default: that of data.events, or "
        "all time alone.",
        shapes_graph=True,
        hashed_if_given=True,
    )


@dataclass
class EventColumns:
    """The label table that is made of a table of edges."""

    count: str | None = key(
        None,
        "Table of edges with times. The label of a node at a time is the number of its edges "
        "there within data.events.within.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    any: str | None = key(
        None,
        "Table of edges with times, in place of data.events.count. The label is 1 if there is "
        "such an edge, and 0 otherwise.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    within: str | None = key(
        None,
        "Span of time that labels look ahead, such as 30d, or a number where times are numbers.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    of: str = key(
        "source",
        "End of the edges whose nodes are asked about.",
        choices=("source", "target"),
        shapes_graph=True,
        hashed_if_given=True,
    )

    @property
    def table(self) -> str | None:
        """The table of edges; none if no labels are made."""
        return self.count if self.count is not None else self.any


@dataclass
class TablesConfig(DataConfig):
    """Tables of edges and nodes: CSV, TSV, Parquet, DuckDB or SQLite, with ids of any type. They may exceed memory."""

    is_stored: ClassVar[bool] = True
    other_keys: ClassVar[tuple[str, ...]] = (
        "nodes.path",
        "edges.path",
        "nodes.table",
        "edges.table",
        "folder",
        "schema",
        "label_table",
    )
    # False for tables that a trained model predicts, whose labels are not read.
    reads_labels = True
    links: ClassVar[str] = "edges"
    source: str = key(
        "tables",
        "Tables of edges and nodes: files that end in .csv, .tsv (perhaps with .gz) or "
        ".parquet, or tables in a DuckDB or SQLite file.",
        shapes_graph=True,
    )
    folder: str | None = key(
        None,
        "Folder to which the paths of the tables are relative. Default: the current folder.",
        is_path=True,
        names_files=True,
    )
    label: str | None = key(
        None,
        "Column of the labels, as TABLE.COLUMN. A schema of the tables in data.folder is "
        "guessed, in place of data.schema. `parallel-epochs init` writes it to a file.",
    )
    nodes: NodeColumns = field(default_factory=NodeColumns)
    edges: EdgeColumns = field(default_factory=EdgeColumns)
    schema: Any = key(
        None,
        "Schema of several tables of nodes and edges, in place of data.nodes and data.edges: a "
        "file in YAML, or its content. nodes has the keys of data.nodes for each type of nodes; edges "
        "has those of data.edges for each table of edges, and the types of its ends, as in {type: user, "
        "column: user_id}.",
    )
    label_table: str | None = key(
        None,
        "Table of labels with a time for each: rows of the id of a node, a time and "
        "the label that this node has then. A row is predicted from what is earlier.",
        names_files=True,
    )
    rows: RowColumns = field(default_factory=RowColumns)
    events: EventColumns = field(default_factory=EventColumns)
    snapshots: int = key(
        0,
        "Number of graphs of past edges from which the rows of a label table are predicted. Rows "
        "of successive times share one, which has the edges from before the earliest of these times. "
        "0: one for each time, 16 at most.",
        minimum=0,
        below=4096,
        shapes_graph=True,
        hashed_if_given=True,
    )
    reverse_relations: bool = reverse_relations()
    featureless: str = featureless()
    label_type: str | None = label_type()
    hide_labelled: bool | None = hide_labelled()
    to_undirected: bool = key(True, "Add the missing reverse edges.", shapes_graph=True)
    degrees: bool = degrees(True)
    dangling: str = key(
        "drop",
        "What to do with edges that have an empty id, or an id that no node has. drop: leave "
        "them out and log how many. error: refuse the table.",
        choices=("drop", "error"),
        shapes_graph=True,
    )
    duplicates: str = key(
        "error",
        "What to do with an id that several rows of the table of nodes have. error: refuse "
        "the table. first: keep the first of these rows and log how many are left out.",
        choices=("error", "first"),
        shapes_graph=True,
        hashed_if_given=True,
    )
    empty: str = key(
        "zero",
        "What to do with empty cells in columns of numbers. zero: read them as 0, or as the mean "
        "in standardised columns. flag: do that, and add a feature that is 1 for such cells. error: "
        "refuse the table.",
        choices=("zero", "flag", "error"),
        shapes_graph=True,
    )
    unknown: str = key(
        "error",
        "What predict does with categories and relations of other tables that the training did "
        "not see. error: refuse the table. empty: take the cell for empty and log how many.",
        choices=("error", "empty"),
        changes_numbers=False,
    )
    metric: str | None = key(
        None,
        "Metric of the labels. Default: acc for texts and whole numbers, rmse for other "
        "numbers, rocauc for several columns of 0 and 1.",
        shapes_graph=True,
    )
    split: str | None = key(
        None,
        "How labelled nodes, or the links of task=link, are split. column: by "
        "data.nodes.split_column, or data.edges.split_column. random: at random. time: the "
        "earliest are for training. Default: column if that column is given, otherwise random.",
        choices=SPLITS,
        shapes_graph=True,
    )
    split_by: str | None = key(
        None,
        "Column of groups, whose rows stay in one split: of the table of nodes where it "
        "has labels, otherwise of the table of edges (data.split=random).",
        shapes_graph=True,
        hashed_if_given=True,
    )
    time_column: str | None = key(
        None,
        "Column of the table of nodes that holds times, as numbers or dates (data.split=time).",
        shapes_graph=True,
    )
    train_fraction: float = key(
        0.6,
        "Fraction of the labelled nodes, or of the links, for training "
        "(data.split=random and time).",
        above=0,
        shapes_graph=True,
    )
    valid_fraction: float = key(
        0.2,
        "Fraction of the labelled nodes, or of the links, for validation. The rest is for "
        "the test (data.split=random and time).",
        minimum=0,
        shapes_graph=True,
    )
    train_until: str | None = key(
        None,
        "Last time of training, a number or a date as in the column of times. It needs "
        "data.valid_until, and both replace the fractions (data.split=time).",
        shapes_graph=True,
        hashed_if_given=True,
    )
    valid_until: str | None = key(
        None,
        "Last time of validation; what is later is for the test (data.split=time).",
        shapes_graph=True,
        hashed_if_given=True,
    )
    graph_seed: int = key(0, "Seed of the split (data.split=random).", minimum=0, shapes_graph=True)
    score_folds: str = key(
        "groups",
        "Folds of the models that score training nodes (text_features=scores). groups: "
        "nodes with many edges among themselves share a fold, so that few scores come from a model "
        "that saw the label of a neighbour. rows: at random, as in runs of earlier versions.",
        choices=("groups", "rows"),
        before="rows",
    )
    reading: int = reading()
    memory_limit: str = key(
        "4GB",
        "Memory that DuckDB may use. It writes what does not fit to files in cache_dir.",
        changes_numbers=False,
    )
    threads: int = key(
        0,
        "Number of threads of DuckDB. 0: as many as PyTorch uses.",
        minimum=0,
        below=1024,
        changes_numbers=False,
    )

    def check_others(self, given: dict[str, str | None], run: Path) -> None:
        if self.schema is None and "data.schema" in given:
            raise ValueError(
                f"data.schema={given['data.schema']}: {run} was trained on one type of nodes. Name other "
                "tables by data.nodes.path and data.edges.path"
            )
        single = [name for name in given if name.startswith(("data.nodes.", "data.edges."))]
        if self.schema is not None and single:
            raise ValueError(
                f"{single[0]}={given[single[0]]}: {run} was trained on several types of nodes. Name other "
                "tables by data.schema, or by data.folder if they have the names of those of the "
                "training"
            )
        if "data.label_table" in given and not self.has_rows:
            raise ValueError(
                f"data.label_table={given['data.label_table']}: {run} was trained without a label table. "
                "Leave it out"
            )
        if "data.nodes.path" in given and self.nodes.path is None:
            raise ValueError(
                f"data.nodes.path={given['data.nodes.path']}: {run} was trained without a table of nodes. "
                "Leave it out"
            )
        for part, path in (("nodes", self.nodes.path), ("edges", self.edges.path)):
            if f"data.{part}.path" in given:  # of a file that may have no tables of several names
                given.setdefault(f"data.{part}.table", None)
            elif "data.folder" in given and path is not None and Path(path).is_absolute():
                raise ValueError(
                    f"data.folder={given['data.folder']}: {run} was trained on {path}, which is in no "
                    f"folder. Name another table by data.{part}.path"
                )

    @property
    def has_rows(self) -> bool:
        """Tell whether labels have times of their own: those of a label table, or made of events."""
        return self.label_table is not None or self.events.table is not None

    @property
    def counts_degrees(self) -> bool:
        """Tell whether degrees join the features. Those of a label table would count edges of the future."""
        return super().counts_degrees and not self.has_rows

    def missing_others(self, given: Collection[str]) -> list[str]:
        return [
            name
            for name, value in self.without_files().items()
            if value is not None and name not in given
        ]

    def without_files(self) -> dict[str, Any]:
        if self.schema is not None:
            return {
                "data.schema": without_paths(self.schema, NO_FILE),
                "data.folder": None,
            } | self._without_rows()
        return {
            "data.edges.path": NO_FILE,
            "data.nodes.path": None if self.nodes.path is None else NO_FILE,
            "data.folder": None,
        } | self._without_rows()

    def _without_rows(self) -> dict[str, Any]:
        return {} if not self.has_rows else {"data.label_table": NO_FILE}

    def find_marks(self, fitted: object) -> tuple:
        from parallel_epochs.pipeline.data.tables.to_store import find_marks

        return ((), ()) if fitted is None else find_marks(self, cast(Any, fitted))

    def leave_labels(self) -> None:
        self.reads_labels = False

    def origin(self) -> str:
        if self.schema is not None:
            return f"data.schema={self.schema}" if isinstance(self.schema, str) else "data.schema"
        return "data=tables" if self.edges.path is None else str(self.resolve(self.edges.path))

    def sources(self) -> list[tuple[str, Path]]:
        paths = [("data.edges.path", self.tables[0]), ("data.nodes.path", self.tables[1])]
        if self.schema is not None:
            own = [Path(self.schema)] if isinstance(self.schema, str) else []
            paths = [("data.schema", path) for path in (*own, *self.all_tables())]
        return [
            (name, path / "*" if path.is_dir() else path)
            for name, path in paths
            if path is not None
        ]

    def all_tables(self) -> list[Path]:
        """Return the paths of all tables."""
        if not self.is_typed:
            return [path for path in self.tables if path is not None]
        return [path for table in read_schema(self).tables() for path in table.all_tables()]

    @property
    def is_typed(self) -> bool:
        """Tell whether the graph has several types of nodes: those of a schema, or nodes and what has labels."""
        return (
            self.schema is not None
            or has_labels(self.edges)
            or self.has_rows
            or self.edges.bipartite
        )

    @property
    def typed_tables(self) -> TableSchema | None:
        """The tables of a graph with several types of nodes."""
        return read_schema(self) if self.is_typed else None

    @property
    def labels_edges(self) -> bool:
        """Tell whether the labels that are learned are of edges."""
        typed = self.typed_tables
        return (
            typed is not None
            and typed.labelled is not None
            and typed.nodes[typed.labelled].nodes.id == ROW
        )

    def resolve(self, path: str) -> Path:
        """Return the path of a table: in data.folder, or beside a file with the schema."""
        return Path(self.folder or "", path).expanduser()

    def split_kind(self) -> str:
        """Return how the labelled nodes are divided: "column", "random" or "time"."""
        if self.has_rows:
            return "time"
        return self.split or ("column" if self.nodes.split_column is not None else "random")

    def link_split(self) -> str:
        kind = self.split or ("column" if self._divides_edges() else "random")
        return "group" if kind == "random" and self.split_by is not None else kind

    def _divides_edges(self) -> bool:
        """Tell whether a table of edges has a column of splits."""
        typed = self.typed_tables
        return self.edges.split_column is not None if typed is None else bool(typed.divided)

    def place_of_links(self) -> tuple[str, str] | None:
        """Return the kind of the column of edges that divides links, "time", "column" or "group", and its name."""
        edges, by = self.edges, None if self.label_columns() else self.split_by
        found = [("time", edges.time), ("column", edges.split_column), ("group", by)]
        return next(((kind, column) for kind, column in found if column is not None), None)

    @property
    def until(self) -> tuple[float, float] | None:
        """The last time of training and that of validation, as a column of times is read; none: fractions count.

        Raises:
            ValueError: one of them is no time, or is missing.
        """
        given = {"data.train_until": self.train_until, "data.valid_until": self.valid_until}
        if not any(value is not None for value in given.values()):
            return None
        first, last = (_read_time(name, value) for name, value in given.items())
        return first, last

    @property
    def has_features(self) -> bool:
        """Tell whether features of nodes are made of columns, and not of edges."""
        return bool(
            self.nodes.features
            or self.nodes.dates
            or self.text_columns()
            or self.nodes.categories
            or self.nodes.text_neighbors
        )

    @property
    def folds_of_scores(self) -> str | None:
        return (
            self.score_folds
            if any(nodes.text_features == "scores" for nodes in self._all_nodes())
            else None
        )

    def _all_nodes(self) -> list[NodeColumns]:
        """Return the columns of every table of nodes."""
        typed = self.typed_tables
        return [self.nodes] if typed is None else [own.nodes for own in typed.nodes.values()]

    def text_columns(self) -> list[tuple[str, str]]:
        """Return the columns of text, each with its kind: "words", "chars" or "tags"."""
        nodes = self.nodes
        return [
            *((column, "words") for column in nodes.text),
            *((column, "chars") for column in nodes.text_chars),
            *((column, "tags") for column in nodes.text_tags),
        ]

    def label_columns(self) -> list[tuple[str, str]]:
        """Return the columns of labels, each with the key that names it."""
        nodes = self.nodes
        if not self.reads_labels:
            return []
        return (
            [("label", nodes.label)]
            if nodes.label is not None
            else [("labels", column) for column in nodes.labels]
        )

    def value_columns(self, what: str) -> list[tuple[str, str]]:
        """Return the columns of numbers and dates of the "nodes" or "edges", each with the key that names it. A weight
        is first, and dates are last.
        """
        keys, weight = getattr(self, what), self.edges.weight
        return [
            *([("weight", weight)] if what == "edges" and weight is not None else []),
            *(
                (option, column)
                for option in ("features", "dates")
                for column in getattr(keys, option)
            ),
        ]

    def edge_columns(self) -> list[tuple[str, str]]:
        """Return every column of the edges that a key names, each with that key."""
        edges = self.edges
        by = (
            [("data.split_by", self.split_by)]
            if self.split_by is not None and not self.label_columns()
            else []
        )
        return [
            *(
                (f"data.edges.{name}", column)
                for name in ("source", "target", "relation", "time", "split_column")
                if (column := getattr(edges, name)) not in (None, ROW)
            ),
            *by,
            *((f"data.edges.{name}", column) for name, column in self.value_columns("edges")),
        ]

    def node_columns(self) -> list[tuple[str, str]]:
        """Return every column of the nodes that is read, each with the key that names it."""
        nodes, kind, labels = self.nodes, self.split_kind(), self.label_columns()
        part = self.nodes_part
        return [
            *([] if nodes.id == ROW else [("data.nodes.id", nodes.id)]),
            *((f"{part}.{name}", column) for name in INPUTS for column in getattr(nodes, name)),
            *((f"{part}.{name}", column) for name, column in labels),
            *(
                [(f"{part}.split_column", str(nodes.split_column))]
                if kind == "column" and labels
                else []
            ),
            *([("data.split_by", self.split_by)] if self.split_by is not None and labels else []),
            *(
                [
                    (
                        "data.time_column" if part == "data.nodes" else f"{part}.time",
                        str(self.time_column),
                    )
                ]
                if kind == "time" and labels
                else []
            ),
        ]

    @property
    def nodes_part(self) -> str:
        """The part of the configuration that names the columns of the table of nodes: of labelled edges their own."""
        return "data.edges" if self.nodes.id == ROW else "data.nodes"

    @property
    def tables(self) -> tuple[Path | None, Path | None]:
        """The paths of the table of edges and of the table of nodes. One is None if there is no such table."""
        edges, nodes = (
            None if path is None else self.resolve(path)
            for path in (self.edges.path, self.nodes.path)
        )
        return edges, nodes

    def completed(self) -> "TablesConfig":
        """Return the configuration with a guessed schema in place of data.label.

        Raises:
            ValueError: no folder is given, or something else names tables, too.
        """
        if self.label is None:
            return self
        check_packages()
        other = next(
            (
                name
                for name, value in (
                    ("data.schema", self.schema),
                    ("data.nodes.path", self.nodes.path),
                    ("data.edges.path", self.edges.path),
                )
                if value is not None
            ),
            None if self.folder else "no data.folder",
        )
        if other is not None:
            raise ValueError(
                f"data.label={self.label} guesses a schema of the tables in data.folder, and this run has "
                f"{other}"
            )
        from parallel_epochs.pipeline.data.tables.guess import guess  # imports torch

        found = guess(cast(str, self.folder), self.label)
        return replace(
            self,
            label=None,
            schema=yaml.safe_load(found.schema),
            metric=self.metric or found.keys.get("data.metric"),
            duplicates=found.keys.get("data.duplicates", self.duplicates),
        )

    def check(self) -> None:
        check_packages()
        if self.folder is not None:
            check_folder(self.folder)
        if not MEMORY.fullmatch(self.memory_limit):
            raise ValueError(
                f"data.memory_limit={self.memory_limit} is not a size. Write it as 4GB or 500MB"
            )
        check_fractions(self.train_fraction, self.valid_fraction)
        if self.until is not None and (
            self.split_kind() != "time" or self.until[0] > self.until[1]
        ):
            raise ValueError(
                f"data.train_until={self.train_until} and data.valid_until={self.valid_until} need "
                f"data.split=time, and the first must not be later; this run has data.split={self.split}"
            )
        if self.has_rows:
            self._check_rows()
        if self.schema is not None:
            self._check_schema()
            return
        if self.edges.path is None:
            raise ValueError("no value for data.edges.path: give it on the command line")
        for part, path in (("edges", self.edges.path), ("nodes", self.nodes.path)):
            if path is not None and not is_there(self.resolve(path)):
                raise ValueError(
                    f"data.{part}.path={path} does not exist; its full path is "
                    f"{self.resolve(path).absolute()}"
                )
        if self.is_typed:
            if has_labels(self.edges) and not self.has_rows:
                self._check_edges()
            if self.edges.bipartite:
                self._check_bipartite()
            check_schema(self)
            return
        if (
            self.reverse_relations is not True
            or self.featureless != "mean"
            or self.label_type is not None
        ):
            raise ValueError(
                "data.reverse_relations, data.featureless and task.type are for graphs with several types "
                "of nodes (data.schema=FILE), and this one has one. Leave them out"
            )
        self.check_columns()

    def _check_schema(self) -> None:
        for name, value in (("nodes.path", self.nodes.path), ("edges.path", self.edges.path)):
            if value is not None:
                raise ValueError(
                    f"data.{name}={value} and data.schema exclude each other: the schema names all tables"
                )
        if not self.to_undirected:
            raise ValueError(
                "data.to_undirected=false is for graphs with one type of nodes. "
                "Set data.reverse_relations=false"
            )
        if self.add_self_loops or self.propagate:
            name = "add_self_loops=true" if self.add_self_loops else f"propagate={self.propagate}"
            raise ValueError(
                f"data.{name} is for graphs with one type of nodes, and data.schema has several. Leave it "
                "out"
            )
        if self.split_by is not None and not self.labels_edges:
            raise ValueError(
                f"data.split_by={self.split_by} is for graphs with one type of nodes. Leave it out"
            )
        check_schema(self)

    def _check_rows(self) -> None:
        """Refuse a label table that is not there, and keys that do not fit one."""
        key = (
            f"data.label_table={self.label_table}"
            if self.label_table is not None
            else "data.events"
        )
        wrong = [
            f"data.{name}={str(value).lower()}"
            for name, value, usual in (
                ("split", self.split, (None, "time")),
                ("split_by", self.split_by, (None,)),
                ("summaries", self.summaries, (0,)),
                ("propagate", self.propagate, (0,)),
                ("add_self_loops", self.add_self_loops, (False,)),
                ("on_disk", self.on_disk, (False,)),
                ("components", self.components, ("all",)),
                ("reverse_relations", self.reverse_relations, (True,)),
                ("to_undirected", self.to_undirected, (True,)),
            )
            if value not in usual
        ]
        wrong += [f"task.type={self.label_type}"] * (self.label_type is not None)
        wrong += [f"data.events.any={self.events.any}"] * (
            self.events.any is not None and self.events.count is not None
        )
        if wrong:
            raise ValueError(
                f"{key} does not work with {wrong[0]}. Leave it out: rows are divided by their times, and "
                "the graph of a row has the edges from before it"
            )
        if self.label_table is None and self.events.within is None:
            raise ValueError(
                "data.events needs within, the span of time that its labels look ahead, as in "
                "data.events={count: orders, within: 30d}"
            )
        if self.label_table is None:
            return
        path = self.resolve(self.label_table)
        if not is_there(path):
            raise ValueError(f"{key} does not exist; its full path is {path.absolute()}")
        names = ("id", "time", *["label"] * self.reads_labels)
        heads.check(
            "data.rows",
            path,
            self.rows.table,
            [(f"data.rows.{name}", getattr(self.rows, name)) for name in names],
        )

    def _check_edges(self) -> None:
        """Refuse keys that do not fit labels of edges."""
        edges = self.edges
        key = (
            f"data.edges.label={edges.label}"
            if edges.label is not None
            else f"data.edges.labels={edges.labels}"
        )
        if edges.label is not None and edges.labels:
            raise ValueError(
                f"{key} and data.edges.labels={edges.labels} exclude each other: give one of them"
            )
        other = next(
            (
                name
                for name, given in (
                    ("data.nodes.label", self.nodes.label is not None),
                    ("data.nodes.labels", bool(self.nodes.labels)),
                    ("data.edges.directed_relations", edges.directed_relations),
                    ("data.propagate", bool(self.propagate)),
                    ("data.add_self_loops", self.add_self_loops),
                    ("task.type", self.label_type is not None),
                    ("data.nodes.split_column", self.nodes.split_column is not None),
                    ("data.time_column", self.time_column is not None),
                    ("data.to_undirected=false", not self.to_undirected),
                )
                if given
            ),
            None,
        )
        if other is not None:
            raise ValueError(
                f"{key} learns labels of edges, and {other} does not fit them. Leave one of them out"
            )
        if not self.reverse_relations:
            raise ValueError(
                f"{key} needs data.reverse_relations=true, by which edges know the nodes at their ends"
            )

    def _check_bipartite(self) -> None:
        """Refuse keys that do not fit two types of nodes."""
        other = next(
            (
                name
                for name, given in (
                    ("data.nodes.path", self.nodes.path is not None),
                    ("data.propagate", bool(self.propagate)),
                    ("data.edges.directed_relations", self.edges.directed_relations),
                    ("data.add_self_loops=true", self.add_self_loops),
                    ("data.to_undirected=false", not self.to_undirected),
                    ("the same column for both ends", self.edges.source == self.edges.target),
                )
                if given
            ),
            None,
        )
        if other is not None:
            raise ValueError(
                f"data.edges.bipartite=true has nodes of two types, and {other} does not fit them. "
                "data.schema=FILE names tables of several types"
            )

    def check_columns(self) -> None:
        """Refuse columns that the tables do not have, and keys of columns that do not fit each other.

        Raises:
            ValueError: names the key.
        """
        if ROWS in (self.nodes.id, self.edges.source):  # whose columns are made
            return
        self._check_nodes()
        for name in ("features", "dates"):
            _refuse_twice(f"data.edges.{name}", getattr(self.edges, name))
        _check_scaled("data.edges", self.edges)
        self._check_split()
        if self.edges.directed_relations and (
            self.edges.relation is None or not self.to_undirected
        ):
            raise ValueError(
                "data.edges.directed_relations=true needs data.edges.relation and "
                "data.to_undirected=true, to distinguish a relation from its inverse on the reverse edge"
            )
        edges, nodes = self.tables
        if edges is not None:
            heads.check("data.edges", edges, self.edges.table, self.edge_columns())
        if nodes is not None:
            heads.check(self.nodes_part, nodes, self.nodes.table, self.node_columns())

    def _check_nodes(self) -> None:
        nodes = self.nodes
        if nodes.path is None:
            for name in (*INPUTS, "label", "labels", "split_column"):
                if value := getattr(nodes, name):
                    raise ValueError(
                        f"data.nodes.{name}={value} needs a table of nodes: give data.nodes.path"
                    )
        for name in (*INPUTS, "labels"):
            _refuse_twice(f"data.nodes.{name}", getattr(nodes, name))
        for name in INPUTS:
            if known := sorted(
                {column for _, column in self.label_columns()} & set(getattr(nodes, name))
            ):
                raise ValueError(
                    f"data.nodes.{name} names {known[0]}, which is the label: the model would read what "
                    "it is to predict. Leave it out"
                )
        if nodes.label is not None and nodes.labels:
            raise ValueError(
                f"data.nodes.label={nodes.label} and data.nodes.labels={nodes.labels} exclude each other: "
                "give one of them"
            )
        _check_scaled("data.nodes", nodes)
        if nodes.log_label and not (nodes.label or nodes.labels):
            raise ValueError(
                "data.nodes.log_label=true needs labels: name their column by data.nodes.label"
            )
        if nodes.log_label and self.metric not in (None, *LOWER_IS_BETTER):
            raise ValueError(
                f"data.nodes.log_label=true learns the logarithm of real values, and data.metric="
                f"{self.metric} measures others. Set data.metric to {' or '.join(LOWER_IS_BETTER)}"
            )
        if (
            len(nodes.char_lengths) != 2
            or not 1 <= nodes.char_lengths[0] <= nodes.char_lengths[1] <= 10
        ):
            raise ValueError(
                f"data.nodes.char_lengths={nodes.char_lengths} must be two numbers from 1 to 10, the "
                "smallest and the largest number of letters, as in [2,4]"
            )
        has_text = bool(self.text_columns()) or nodes.text_neighbors
        if nodes.text_features == "scores" and not (has_text and (nodes.label or nodes.labels)):
            raise ValueError(
                "data.nodes.text_features=scores predicts labels from texts. It needs data.nodes.text, "
                "text_chars, text_tags or text_neighbors, and data.nodes.label or labels"
            )
        if not nodes.tag_separator:
            raise ValueError(
                "data.nodes.tag_separator is empty. Give the text that separates two tags"
            )

    def _check_split(self) -> None:
        kind = self.split_kind()
        if (
            kind == "column"
            and self.nodes.split_column is None
            and (self.edges.split_column is None or self.label_columns())
        ):
            raise ValueError(
                "data.split=column needs data.nodes.split_column, which holds train, valid or test, or "
                "for task=link data.edges.split_column, without labels of nodes"
            )
        if self.split_by is not None and (kind != "random" or self.link_split() != "group"):
            raise ValueError(
                f"data.split_by={self.split_by} needs data.split=random without a column of splits; this "
                f"run has data.split={kind if kind != 'random' else self.link_split()}"
            )
        given = [
            f"{name}={value}"
            for name, value in (
                ("data.edges.time", self.edges.time),
                ("data.edges.split_column", self.edges.split_column),
                ("data.split_by", None if self.label_columns() else self.split_by),
            )
            if value is not None
        ]
        if (
            len(given) > 1
            or self.edges.time is None
            and given
            and (self.add_self_loops or self.summaries)
        ):
            other = (
                given[1]
                if len(given) > 1
                else "data.add_self_loops=true"
                if self.add_self_loops
                else (f"data.summaries={self.summaries}")
            )
            raise ValueError(f"{given[0]} and {other} exclude each other: leave one of them out")
        if (
            kind == "time"
            and self.edges.time is None
            and (self.time_column is None or self.nodes.path is None)
        ):
            raise ValueError(
                "data.split=time needs data.time_column, a column of data.nodes.path, or for task=link "
                "data.edges.time, a column of data.edges.path"
            )
        if self.edges.time is not None and self.add_self_loops:
            raise ValueError(
                f"data.edges.time={self.edges.time} does not work with data.add_self_loops=true: an added "
                "edge has no time. Leave one of them out"
            )

    def labelled(self) -> "TablesConfig | None":
        """Return the configuration of the table whose labels are learned; None without labels."""
        if not self.is_typed:
            return self if self.label_columns() else None
        found = read_schema(self)
        return None if found.labelled is None else found.nodes[found.labelled]

    def check_edges(self) -> None:
        if self.has_rows:
            raise ValueError(
                "task=edge learns labels of edges, and a label table is given (data.label_table or "
                "data.events). Set task=node, or leave it out"
            )
        typed = self.typed_tables
        if typed is not None and typed.unread and self.reads_labels:
            raise ValueError(
                f"data.schema has labels of several tables of edges, {' and '.join(typed.unread)}. Choose "
                f"those to learn by task.type={typed.unread[0]}"
            )
        if not self.labels_edges:
            raise ValueError(
                f"task=edge needs labels of edges, and {self.origin()} has none: name their column by "
                + ("data.edges.label" if self.schema is None else "label, in its table of edges")
            )
        if not self.reverse_relations:
            raise ValueError(
                "task=edge needs data.reverse_relations=true, by which edges know the nodes at their ends"
            )

    def check_labels(self) -> None:
        if not self.reads_labels or self.has_rows:
            return
        if self.labels_edges:
            raise ValueError(
                f"{self.origin()} has labels of edges: set task=edge, or choose labels of nodes by "
                "task.type (data.schema)"
            )
        if (typed := self.typed_tables) is not None and typed.unread:
            raise ValueError(
                f"data.schema has labels of several types of nodes, {' and '.join(typed.unread)}. Choose "
                f"those to learn by task.type={typed.unread[0]}"
            )
        if self._divides_edges():
            key = "data.edges" if typed is None else f"data.schema: edges.{typed.divided[0]}"
            raise ValueError(
                f"{key}.split_column divides links (task=link), and labels of nodes are learned. Leave it "
                "out, or name a split_column of the nodes"
            )
        if self.split_kind() == "time" and self.time_column is None:
            raise ValueError(
                "data.split=time needs data.time_column, a column of the table of nodes"
            )
        if self.labelled() is None:
            refuse_without_labels(
                self.nodes.path or self.origin(),
                "name their column by "
                + (
                    "data.nodes.label or data.label"
                    if self.schema is None
                    else "label, below its type of nodes"
                ),
            )

    def check_links(self, relation: object = None) -> None:
        super().check_links(relation)
        if self.has_rows:
            raise ValueError(
                "task=link learns links, and a label table is given (data.label_table or data.events). "
                "Set task=node, or leave it out"
            )
        if has_labels(self.edges) and self.schema is None:
            raise ValueError(
                "task=link reads no labels of edges: leave data.edges.label out, or set task=edge"
            )
        if self.is_typed:
            check_relation(self, relation)
        else:
            refuse_relation(relation, self.origin())
        if any(nodes.text_neighbors for nodes in self._all_nodes()):
            raise ValueError(
                "text_neighbors=true tells a node by its links, and task=link is to predict these. Leave "
                "it out"
            )
        if self.link_split() == "column" and not self._divides_edges():
            raise ValueError(
                "data.split=column divides nodes; task=link divides links. Set data.split=random, "
                "data.split=time with data.edges.time, or data.split=column with data.edges.split_column"
            )
        if (
            self.schema is None
            and self.link_split() in ("column", "group")
            and self.label_columns()
        ):
            raise ValueError(
                f"task=link reads no labels: leave data.nodes.{self.label_columns()[0][0]} out"
            )
        if self.split == "time" and self.edges.time is None and self.schema is None:
            raise ValueError(
                "task=link with data.split=time needs data.edges.time, the column of the edges that holds "
                "numbers or dates"
            )
        if self.split == "time" and self.label_columns() and self.time_column is None:
            raise ValueError(
                "data.split=time divides the labelled nodes too, and needs data.time_column for them. "
                f"task=link reads no labels: leave data.nodes.{self.label_columns()[0][0]} out"
            )


def _read_time(key: str, text: str | None) -> float:
    """Return a number, or of a date the seconds since 1970, in UTC where it has no zone."""
    try:
        number = float(str(text))
    except ValueError:
        pass
    else:
        if not math.isfinite(number):
            raise ValueError(f"{key}={text} is no finite time")
        return number
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(
            f"{key}={'null' if text is None else text} is no time. Give a number or a date such as "
            "2024-05-31, for both data.train_until and data.valid_until"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check_scaled(key: str, columns: NodeColumns | EdgeColumns) -> None:
    """Refuse to scale columns that are not there, and a column that is both a number and a date."""
    for name in ("log1p", "quantiles"):
        scaled = getattr(columns, name, [])
        if wrong := set(scaled) - set(columns.features):
            raise ValueError(
                f"{key}.{name} names {sorted(wrong)[0]}, which is not in {key}.features"
            )
        _refuse_twice(f"{key}.{name}", scaled)
    if both := [column for column in getattr(columns, "quantiles", []) if column in columns.log1p]:
        raise ValueError(
            f"{key}.log1p and {key}.quantiles both name {both[0]}, and a logarithm changes no rank. Leave "
            f"it out of {key}.log1p"
        )
    if both := [column for column in columns.dates if column in columns.features]:
        raise ValueError(
            f"{key}.features and {key}.dates both name {both[0]}: it holds either numbers or dates"
        )
    if (
        isinstance(columns, EdgeColumns)
        and columns.standardize
        and not columns.features
        and not columns.dates
    ):
        raise ValueError(
            f"{key}.standardize=true scales {key}.features and {key}.dates, and there are none. Weights "
            "are not scaled"
        )


def _refuse_twice(key: str, columns: list[str]) -> None:
    """Refuse a list of columns that names one twice."""
    if twice := [column for place, column in enumerate(columns) if column in columns[:place]]:
        raise ValueError(f"{key} names {twice[0]} twice. Name it once")


def check_packages() -> None:
    """Refuse to go on without the packages that read tables.

    Raises:
        ValueError: a package is not installed. The message says how to install it.
    """
    for package in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"data=tables needs {package}: {install_command('tables')}")
