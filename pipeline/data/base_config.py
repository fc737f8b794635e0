"""The keys that every dataset has, and checks that several datasets share."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from parallel_epochs.pipeline.keys import entries, key
from parallel_epochs.pipeline.run import files

# Raise it when the readers that have the key data.reading shall read the same files in another way than before.
READING = 6
# Path of a table in the file of a model that is shared without its data.
NO_FILE = "not in this file"


def degrees(default: bool) -> Any:
    """Declare the key that says whether nodes get columns of degrees."""
    return key(
        default,
        "Add columns to the node features: log(1 + degree), standardised; in and out where they "
        "differ, and by relation in graphs with several types of nodes.",
        before=False,
        when={"trainer.name": ("gnn",)},
    )


@dataclass
class DataConfig:
    """Keys of every dataset.

    Attributes:
        holds: what the dataset is: "graph", one graph; "graphs", many graphs, each with its own labels; "triples", a
            knowledge graph; "vectors", points without edges. Each trainer names those that it can train on.
        other_keys: keys below `data` that name other data for a trained model; empty if it takes no others.
        is_stored: whether its reader writes the prepared graph as a store, see :mod:`pipeline.graph.store`, without
            holding it in memory, and keeps there what was learned of it.
        links: where the pairs of task=link come from: "none"; "given", the dataset has them; "edges", its edges are
            divided, by the keys ``train_fraction``, ``valid_fraction``, ``graph_seed`` and, if there is one, ``split``.
        fixed: keys of earlier versions that shaped a graph, with the values that are fixed now, which a hash counts.
        may_have_text_scores: whether some features may be scores of texts.
    """

    holds: ClassVar[str] = "graph"
    is_stored: ClassVar[bool] = False
    links: ClassVar[str] = "none"
    other_keys: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[dict[str, Any]] = {}
    source: str = key("", "Reader of the dataset.", shapes_graph=True)
    components: str = key(
        "all",
        "Connected components to train on: all, largest, K for the K-th largest (from 1), or "
        "separate for one model per component.",
    )
    to_undirected: bool = key(False, "Add the missing reverse edges.", shapes_graph=True)
    add_self_loops: bool = key(False, "Add the missing self-loops.", shapes_graph=True)
    node_features: str = key(
        "log_sum",
        "How a graph without node features gets them. sum: the sum of the features of "
        "a node's edges. log_sum: the logarithm of this sum, standardised.",
        choices=("sum", "log_sum"),
        shapes_graph=True,
    )
    degrees: bool = degrees(False)
    on_disk: bool = key(
        False,
        "Leave the graph in files and read it once per epoch, block by block (for graphs larger "
        "than memory).",
        changes_numbers=False,
    )

    def link_split(self) -> str:
        """Return how the links of task=link are divided: "random", "time", "column" or "group"."""
        return "time" if getattr(self, "split", None) == "time" else "random"

    @property
    def allows_valid_edges(self) -> bool:
        """Tell whether the rules of the dataset allow validation links as edges of the graph of the test."""
        return False

    @property
    def counts_degrees(self) -> bool:
        """Tell whether degrees join the features."""
        return self.degrees

    @property
    def num_last(self) -> int:
        """The number of the last columns of ``x`` that say where a node stands in its graph."""
        return 0

    @property
    def has_rows(self) -> bool:
        """Tell whether labels have times of their own."""
        return False

    @property
    def until(self) -> tuple[float, float] | None:
        """The last time of training and that of validation, if times divide the data and not fractions."""
        return None

    @property
    def downloads(self) -> bool:
        """Tell whether `python -m pipeline.prepare` downloads it."""
        return False

    @property
    def may_have_text_scores(self) -> bool:
        return False

    def origin(self) -> str:
        """Return where the graph comes from, for messages: the first of its files, if it has some."""
        return next(
            (entry.value for entry in entries(self) if entry.meaning.names_files and entry.value),
            f"data={self.source}",
        )

    def completed(self) -> Self:
        """Return the configuration with other keys in the place of those that stand for several."""
        return self

    def check(self) -> None:
        """Refuse a dataset whose files are missing or whose sizes are impossible.

        Raises:
            ValueError: a file is missing or a size is impossible. The message names the key and says what to do.
        """

    def sources(self) -> list[tuple[str, Path]]:
        """List the files, folders and patterns of files that are read, each with the key that names it."""
        return [
            (f"data.{entry.name}", Path(entry.value))
            for entry in entries(self)
            if entry.meaning.names_files and entry.value
        ]

    def check_others(self, given: dict[str, str | None], run: Path) -> None:
        """Refuse keys that name other data for a trained model in a way that does not fit these.

        Args:
            given: keys, which may be completed, and their values.
            run: directory of the run, for messages.

        Raises:
            ValueError: names the key.
        """

    def missing_others(self, given: Collection[str]) -> list[str]:
        """List the keys of other data that a model without data of its own needs and that are not given."""
        return [] if given else [f"data.{name}" for name in self.other_keys]

    def without_files(self) -> dict[str, Any]:
        """Return the keys of files, with what stands for them in a model without data of its own."""
        return {f"data.{name}": NO_FILE for name in self.other_keys}

    def leave_labels(self) -> None:
        """Read no labels from now on, where they could be left out."""

    def check_labels(self) -> None:
        """Refuse to learn labels of nodes, if the keys say that there are none.

        Raises:
            ValueError: says which key gives labels.
        """

    def check_edges(self) -> None:
        """Refuse to learn labels of edges, if the keys say that there are none.

        Raises:
            ValueError: says which key gives labels.
        """
        raise ValueError(
            f"task=edge needs labels of edges, and data={self.source} has none. Choose data=tables with "
            "data.edges.label=COLUMN, or data=file with edge_label"
        )

    def check_links(self, relation: object = None) -> None:
        """Refuse to learn links, if the keys say that it cannot work.

        Args:
            relation: whose links are learned, as task.relation names it.

        Raises:
            ValueError: names the key.
        """
        if self.links == "none":
            raise ValueError(
                f"task=link cannot divide the links of data={self.source}. Choose data=edges, file, store "
                "or tables for links of your own, or data=ogb_link"
            )
        if self.links == "edges" and self.on_disk:
            raise ValueError(
                f"task=link divides the edges of data={self.source} in memory, but data.on_disk=true "
                "leaves them on the disk. Set data.on_disk=false"
            )


def reverse_relations() -> Any:
    """Declare the key of graphs with several types of nodes that says whether relations get reverse ones."""
    return key(
        True,
        "Add a reverse relation, named rev_NAME, to each relation NAME (graphs with several types of "
        "nodes).",
        shapes_graph=True,
        hashed_if_given=True,
    )


def featureless() -> Any:
    """Declare the key of graphs with several types of nodes that says how types without features get them."""
    return key(
        "mean",
        "Features of the nodes of types that have none (graphs with several types of nodes). mean: the "
        "means of those of their neighbours, over as many hops as are needed. none: only a learned vector of "
        "the type.",
        choices=("mean", "none"),
        shapes_graph=True,
        hashed_if_given=True,
    )


def fraction(usual: float, split: str) -> Any:
    """Declare the key that says which part of the data is for training or for validation."""
    return key(
        usual,
        f"Fraction of the labelled rows, or of the links of task=link, for {split}, where the data have no "
        "split. What neither has is for the test.",
        shapes_graph=True,
    )


def reading() -> Any:
    """Declare the key of readers that have read the same files in another way before."""
    return key(
        READING,
        "Version of the reader. What another version has read into the cache is not used. 1: that of "
        "runs of earlier versions, which find the graphs that they were trained on.",
        minimum=1,
        below=READING + 1,
        before=1,
    )


def check_files(**paths: str | None) -> None:
    """Refuse files that do not exist, and what is no file.

    Args:
        paths: the files, by the names of their keys. None: the key was not given.

    Raises:
        ValueError: a file does not exist. The message names the key.
        FileError: it is a directory, a pipe or a device.
    """
    for name, path in paths.items():
        if path is not None and not files.is_there(Path(path)):
            raise ValueError(f"data.{name}={path} does not exist")


def check_folder(folder: str) -> None:
    """Refuse a folder that does not exist.

    Raises:
        ValueError: it does not exist, or it is a file.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"data.folder={folder} does not exist or is not a folder")


def check_fractions(train_fraction: float, valid_fraction: float) -> None:
    """Refuse fractions for training and validation that are out of range.

    Raises:
        ValueError: the training fraction is not positive, the other one is negative, or their sum exceeds 1.
    """
    if not (train_fraction > 0 and valid_fraction >= 0 and train_fraction + valid_fraction <= 1):
        raise ValueError(
            f"data.train_fraction={train_fraction} must be more than 0, "
            f"data.valid_fraction={valid_fraction} must be at least 0, and their sum must be at most 1"
        )


def refuse_without_labels(origin: str, mend: str) -> None:
    """Refuse to learn labels of nodes from a dataset without any.

    Args:
        origin: where the dataset comes from.
        mend: how to give it labels.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        f"{origin} has no labels to learn: {mend}, predict its links by task=link, or learn vectors of "
        "its nodes by trainer=node_embedding"
    )


def refuse_changes(config: DataConfig, what: str) -> None:
    """Refuse keys that change the nodes and edges of a graph, for a dataset that is not one graph.

    Args:
        what: what the dataset holds.

    Raises:
        ValueError: such a key was given. The message names it.
    """
    for name, usual in (
        ("components", "all"),
        ("to_undirected", False),
        ("add_self_loops", False),
        *((("degrees", False),) if config.holds != "graphs" else ()),
    ):
        if (value := getattr(config, name)) != usual:
            raise ValueError(
                f"data.{name}={str(value).lower()} needs one graph, but data={config.source} holds "
                f"{what}. Leave it out"
            )
