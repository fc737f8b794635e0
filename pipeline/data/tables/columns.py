"""The keys of one table: the meaning of the columns of nodes, of edges, of a label table and of events."""

from dataclasses import dataclass

from parallel_epochs.pipeline.keys import key

# No table of people has more columns. A larger number is a mistake and would fill the disk.
MAX_CHANNELS = 1 << 16
# The column of the numbers of the rows, from 1, which are the ids of edges with labels. No file has it.
ROW = "#row"
# A column and the key that names it.
Named = tuple[str, str]


@dataclass
class NodeColumns:
    """The table of nodes. The nodes have the order of its rows."""

    path: str | None = key(
        None,
        "Path of the table of nodes. Default: no table; the nodes are the ids that the edges name.",
        names_files=True,
    )
    table: str | None = key(None, "Name of the table in a DuckDB file.", shapes_graph=True)
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
        if self.label is not None:
            return [("label", self.label)]
        return [("labels", column) for column in self.labels]


@dataclass
class EdgeColumns:
    """The table of edges."""

    path: str | None = key(None, "Path of the table of edges.", names_files=True)
    table: str | None = key(None, "Name of the table in a DuckDB file.", shapes_graph=True)
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

    def value_columns(self) -> list[Named]:
        """Return the key and the column of the weight, every number, and behind them every date."""
        weight = [] if self.weight is None else [self.weight]
        return _named(weight=weight, features=self.features, dates=self.dates)

    @property
    def has_labels(self) -> bool:
        """Tell whether the edges have labels."""
        return self.label is not None or bool(self.labels)


@dataclass
class RowColumns:
    """The columns of the label table (data.label_table)."""

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


def _named(**columns: list[str]) -> list[Named]:
    return [(option, column) for option, names in columns.items() for column in names]
