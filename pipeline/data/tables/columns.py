"""The keys of one table: the meaning of the columns of nodes, of edges and of a label table."""

import re
from dataclasses import dataclass, field
from typing import Any

from parallel_epochs.pipeline.data.base_config import (
    DataConfig,
    degrees,
    featureless,
    fraction,
    reading,
    reverse_relations,
)
from parallel_epochs.pipeline.keys import key

# No table of people has more columns. A larger number is a mistake and would fill the disk.
MAX_CHANNELS = 1 << 16
# The column of the numbers of the rows, from 1, which are the ids of edges with labels. No file has it.
ROW = "#row"
# The type of the rows, the relation from a row to its entity, named as that from a labelled edge to its source, and the
# columns of the name and the time of a row.
TYPE, RELATION, ROWS, TIME = "label", "label_source", "#label", "#time"
# Seconds of the units of spans of time. A span without a unit is a number, as times are.
SECONDS = {"": 1, "s": 1, "h": 3_600, "d": 86_400, "w": 604_800}
# Events of an entity are summarised over so many spans before a row, and so many of the latest ones.
SPANS, LATEST = (1, 4, 16), (3, 10)
# The name of a column, or a list of them; OmegaConf knows no union of both.
Label = Any
# A column and the key that names it.
Named = tuple[str, str]


def _csv_key() -> dict:
    return key(
        {},
        "How a file of text is written, by options of DuckDB's read_csv: delim, encoding, "
        "decimal_separator, thousands and dateformat.",
        shapes_graph=True,
        hashed_if_given=True,
        before={},
    )


@dataclass
class NodeColumns:
    """The table of nodes. The nodes have the order of its rows."""

    path: str | None = key(
        None,
        "Path of the table of nodes. Default: no table; the nodes are the ids that the edges name.",
        names_files=True,
    )
    csv: dict[str, str] = _csv_key()
    id: str = key("id", "Column of the nodes' ids, of any type.", shapes_graph=True)
    features: list[str] = key(
        [], "Columns of numbers that become node features.", shapes_graph=True
    )
    log1p: list[str] = key(
        [], "Columns of data.nodes.features that are replaced by log(1 + x).", shapes_graph=True
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
    text: list[str] = key(
        [], "Columns of prose. They become TF-IDF features of their words.", shapes_graph=True
    )
    text_chars: list[str] = key(
        [],
        "Columns of names. They become TF-IDF features of the character n-grams within "
        "their words.",
        shapes_graph=True,
    )
    text_tags: list[str] = key(
        [],
        "Columns of tags such as role::program|use::text. They become TF-IDF features of "
        "each tag, and of its part before ::.",
        shapes_graph=True,
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
    label: Label = key(
        None,
        "Column of the labels: texts and whole numbers are classes, other numbers real values. Or a "
        "list of columns, which are binary tasks (0 and 1) or real values.",
        shapes_graph=True,
    )
    split_column: str | None = key(
        None, "Column that holds train, valid (or val) or test.", shapes_graph=True
    )

    def text_columns(self) -> list[Named]:
        """Return the columns of text, each with its kind: "words", "chars" or "tags"."""
        kinds = (("words", self.text), ("chars", self.text_chars), ("tags", self.text_tags))
        return [(column, kind) for kind, columns in kinds for column in columns]

    def value_columns(self) -> list[Named]:
        """Return the key and the column of every number, and behind them of every date."""
        return _named(features=self.features, dates=self.dates)

    def label_columns(self) -> list[Named]:
        """Return the key and the column of all labels."""
        names = self.label if isinstance(self.label, list) else [self.label]
        return [("label", str(name)) for name in names if name is not None]


@dataclass
class EdgeColumns:
    """The table of edges."""

    path: str | None = key(None, "Path of the table of edges.", names_files=True)
    csv: dict[str, str] = _csv_key()
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
    id: str | None = key(
        None,
        "Column of the ids of edges with labels, by which predictions name them (task=edge). "
        "Default: the numbers of the rows, from 1.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    label: Label = key(
        None,
        "Column of the labels of edges, or a list of columns, as data.nodes.label (task=edge). Each "
        "row is an edge of its own.",
        shapes_graph=True,
        hashed_if_given=True,
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

    def value_columns(self) -> list[Named]:
        """Return the key and the column of the weight, every number, and behind them every date."""
        weight = [] if self.weight is None else [self.weight]
        return _named(weight=weight, features=self.features, dates=self.dates)

    @property
    def has_labels(self) -> bool:
        """Tell whether the edges have labels."""
        return bool(self.label)


@dataclass
class RowColumns:
    """The nodes that the label table (data.label_table) asks about, and its span of time."""

    type: str | None = key(
        None,
        "Type of the nodes that rows ask about. Default: the only one.",
        shapes_graph=True,
        hashed_if_given=True,
    )
    within: str | None = key(
        None,
        "Span of time after which the label of a row is known, such as 30d. Events are "
        "summarised over this span, 4 and 16 of it, and all time. Default: all time alone.",
        shapes_graph=True,
        hashed_if_given=True,
    )


@dataclass
class TableKeys(DataConfig):
    """The keys of data=tables."""

    # False for tables that a trained model predicts, whose labels are not read.
    reads_labels = True
    source: str = key(
        "tables",
        "Tables of edges and nodes: files that end in .csv, .tsv (perhaps with .gz) or .parquet.",
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
        "Table of labels with a time for each: its columns are id, of a node, time, and label, "
        "which this node has then. A row is predicted from what is earlier.",
        names_files=True,
    )
    rows: RowColumns = field(default_factory=RowColumns)
    reverse_relations: bool = reverse_relations()
    featureless: str = featureless()
    label_type: str | None = None  # task.type sets it
    hide_labelled: bool | None = None  # true for task=edge
    to_undirected: bool = key(True, "Add the missing reverse edges.", shapes_graph=True)
    degrees: bool = degrees(True)
    duplicates: str = key(
        "error",
        "What to do with an id that several rows of the table of nodes have. error: refuse "
        "the table. first: keep the first of these rows and log how many are left out.",
        choices=("error", "first"),
        shapes_graph=True,
        hashed_if_given=True,
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
        "Metric of the labels. Default: rocauc for several columns of 0 and 1, and for one where less than "
        "a quarter are 0, or 1; acc for texts and other whole numbers, rmse for other numbers.",
        shapes_graph=True,
    )
    split: str | None = key(
        None,
        "How labelled nodes, or the links of task=link, are split. column: by "
        "data.nodes.split_column, or data.edges.split_column. random: at random. time: the "
        "earliest are for training. Default: column if that column is given, otherwise random.",
        choices=("column", "random", "time"),
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
    train_fraction: float = fraction(0.6, "training")
    valid_fraction: float = fraction(0.2, "validation")
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
    reading: int = reading()


def _named(**columns: list[str]) -> list[Named]:
    return [(option, column) for option, names in columns.items() for column in names]


@dataclass(frozen=True)
class Events:
    """A table of edges with times, whose edges at an entity are summarised.

    Attributes:
        table: name of the table.
        end: of the entity, "source" or "target".
        name: in the names of columns.
        numbers: columns of numbers, each with the key that names it.
    """

    table: str
    end: str
    name: str
    numbers: list[tuple[str, str]] = field(default_factory=list)

    def columns(self, span: str | None) -> list[str]:
        """Return the names of the columns of its summaries, in the order in which they are computed."""
        within = ["", *(f" in {times} x {span}" for times in SPANS if span is not None)]
        found = [f"{self.name}: count{each}" for each in within]
        found += [f"{self.name}: time since {which}" for which in ("last", "first")]
        found += [f"{self.name}: count in each {span}"] * (span is not None)
        within += [f" of the last {number}" for number in LATEST]
        for _, column in self.numbers:
            found += [f"{self.name}: last {column}"]
            found += [
                f"{self.name}: {what} {column}{each}" for each in within for what in ("sum", "mean")
            ]
        return found


@dataclass(frozen=True)
class RowTable:
    """The label table of a schema.

    Attributes:
        entity: type of the nodes that rows ask about.
        events: what is summarised for each row.
        span: of time after which labels are known, as it is given; none if it is not known.
        length: its seconds, or its number; 0 without one.
    """

    entity: str
    events: list[Events]
    span: str | None
    length: float

    def columns(self) -> list[str]:
        """Return the names of all summaries."""
        return [name for events in self.events for name in events.columns(self.span)]

    def logarithms(self) -> list[str]:
        """Return the names of those of which the logarithm is read: counts and times."""
        return [
            name for name in self.columns() if name.partition(": ")[2].startswith(("count", "time"))
        ]

    def check_span(self, are_dates: bool) -> None:
        """Refuse a span with a unit where times are numbers, and one without where they are dates."""
        if self.span is not None and self.span[-1].isalpha() != are_dates:
            kind, mend = ("dates", "a unit, as in 30d") if are_dates else ("numbers", "no unit")
            raise ValueError(
                f"data.rows.within={self.span} does not fit times that are {kind}. Give {mend}"
            )


def length_of(span: str) -> float:
    """Return the seconds of a span of time, or its number where it has no unit.

    Raises:
        ValueError: it is none, or 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([shdw]?)", span)
    if not found or not float(found[1]):
        raise ValueError(
            f"data.rows.within={span} is no span of time. Write it as 30d, 12h or 4w, or as a number where times are "
            "numbers"
        )
    return float(found[1]) * SECONDS[found[2]]
