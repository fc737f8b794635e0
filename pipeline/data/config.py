"""The keys of each dataset. :mod:`pipeline.command.schema` collects them."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from parallel_epochs.pipeline.data.base_config import (
    DataConfig,
    check_files,
    check_folder,
    check_fractions,
    degrees,
    featureless,
    fraction,
    reading,
    refuse_changes,
    refuse_without_labels,
    reverse_relations,
)
from parallel_epochs.pipeline.data.columns import read_names
from parallel_epochs.pipeline.data.readers.ogb_names import (
    OGB_GRAPH_NAMES,
    OGB_HETERO_NAMES,
    OGB_LINK_NAMES,
    OGB_NODE_NAMES,
)
from parallel_epochs.pipeline.data.tables import heads
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.keys import key
from parallel_epochs.pipeline.names import SPLIT_NAMES
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.words import command_of

# The columns of a table of molecules that hold these, and perhaps train, valid or test.
SMILES_COLUMN, SPLIT_COLUMN = "smiles", "split"
# Keys of links alone.
LINK = {"task.name": ("link",)}


@dataclass
class SyntheticProteinsConfig(DataConfig):
    """A generated graph like ogbn-proteins."""

    source: str = key(
        "synthetic_proteins", "Generated graph like ogbn-proteins.", shapes_graph=True
    )
    num_nodes: int = key(8000, "Number of nodes.", shapes_graph=True)
    num_edges: int = key(
        400_000, "Number of directed edges, which is twice the number of pairs.", shapes_graph=True
    )
    num_species: int = key(
        8, "Number of species. Each one is a contiguous range of nodes.", shapes_graph=True
    )
    num_groups: int = key(100, "Number of planted communities.", shapes_graph=True)
    num_tasks: int = key(16, "Number of binary tasks.", shapes_graph=True)
    graph_seed: int = key(0, "Seed of the graph.", minimum=0, shapes_graph=True)

    def check(self) -> None:
        check_synthetic_sizes(
            self.num_nodes, self.num_edges, self.num_species, self.num_groups, self.num_tasks
        )


def check_synthetic_sizes(
    num_nodes: int, num_edges: int, num_species: int, num_groups: int, num_tasks: int
) -> None:
    """Refuse sizes that a generated graph cannot have, or that the machine cannot hold.

    Raises:
        ValueError: the sizes are impossible. The message names the keys.
    """
    if min(num_species, num_groups, num_tasks) < 1 or num_nodes < 4 * max(num_species, num_groups):
        raise ValueError(
            f"data.num_nodes={num_nodes:,} must be at least four times data.num_species={num_species} and "
            f"four times data.num_groups={num_groups}; these two and data.num_tasks={num_tasks} must be "
            "at least 1"
        )
    most = num_nodes * (num_nodes - 1) // 4
    if not 0 <= num_edges <= most:
        raise ValueError(
            f"data.num_edges={num_edges:,} must be between 0 and {most:,}, half of the directed edges "
            f"that {num_nodes:,} nodes can have"
        )


@dataclass
class DigitsConfig(DataConfig):
    """The graph of the 8 nearest neighbours of scikit-learn's 1,797 handwritten digits."""

    fixed: ClassVar[dict[str, Any]] = {"num_neighbors": 8}
    source: str = key(
        "digits",
        "Nearest-neighbour graph of scikit-learn's 1,797 handwritten digits.",
        shapes_graph=True,
    )
    train_fraction: float = fraction(0.6, "training")
    valid_fraction: float = fraction(0.2, "validation")
    graph_seed: int = key(0, "Seed of the split.", minimum=0, shapes_graph=True)

    def check(self) -> None:
        check_fractions(self.train_fraction, self.valid_fraction)


@dataclass
class OGBConfig(DataConfig):
    """A node dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = key(
        "ogb",
        "Node dataset of the Open Graph Benchmark, or a folder in its raw layout.",
        shapes_graph=True,
    )
    name: str = key(
        "ogbn-proteins", "Name of the dataset.", choices=OGB_NODE_NAMES, shapes_graph=True
    )
    root: str = key(
        "dataset",
        "Folder to which `python -m pipeline.prepare` downloads.",
        changes_numbers=False,
        is_path=True,
    )
    folder: str | None = key(
        None,
        "Folder that holds raw/ and split/. Default: the folder of the dataset in data.root.",
        is_path=True,
        names_files=True,
    )

    @property
    def downloads(self) -> bool:
        return self.folder is None

    def origin(self) -> str:
        return str(self.directory)

    @property
    def directory(self) -> Path:
        """The folder that holds raw/ and split/."""
        return (
            Path(self.folder)
            if self.folder is not None
            else Path(self.root) / self.name.replace("-", "_")
        )

    def sources(self) -> list[tuple[str, Path]]:
        return [("data.folder" if self.folder is not None else "data.root", self.directory)]

    def check(self) -> None:
        if self.directory.is_dir():
            return
        if self.folder is not None:
            check_folder(self.folder)
        raise ValueError(
            f"{self.name} is not in data.root={self.root}. Run `{command_of('prepare')} "
            f"+experiment={self.name.replace('-', '_')}` on a machine with a network, or set data.folder"
        )


@dataclass
class OGBHeteroConfig(OGBConfig):
    """A node dataset of the Open Graph Benchmark with several types of nodes, or a folder in its raw CSV layout."""

    source: str = key(
        "ogb_hetero",
        "Node dataset of the Open Graph Benchmark with several types of nodes, or a folder "
        "in its raw layout.",
        shapes_graph=True,
    )
    name: str = key("ogbn-mag", "Name of the dataset.", choices=OGB_HETERO_NAMES, shapes_graph=True)
    reverse_relations: bool = reverse_relations()
    featureless: str = featureless()
    label_type: str | None = None  # task.type sets it


@dataclass
class EncodedGraphsConfig(DataConfig):
    """Many graphs, whose nodes may get columns that say where they stand in their graph."""

    holds: ClassVar[str] = "graphs"
    random_walk: int | None = key(
        None,
        "Number K of steps of a random walk: the model also reads the probabilities that a walk from the "
        "node is back after 1 to K steps.",
        minimum=1,
        below=256,
        shapes_graph=True,
        hashed_if_given=True,
    )

    @property
    def num_last(self) -> int:
        return self.random_walk or 0


@dataclass
class OGBGraphConfig(OGBConfig, EncodedGraphsConfig):
    """A graph dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = key(
        "ogb_graph",
        "Graph dataset of the Open Graph Benchmark, or a folder in its raw layout.",
        shapes_graph=True,
    )
    name: str = key(
        "ogbg-molhiv", "Name of the dataset.", choices=OGB_GRAPH_NAMES, shapes_graph=True
    )

    def check(self) -> None:
        refuse_changes(self, "many graphs")
        super().check()


@dataclass
class OGBLinkConfig(OGBConfig):
    """A link dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    links: ClassVar[str] = "given"
    source: str = key(
        "ogb_link",
        "Link dataset of the Open Graph Benchmark, or a folder in its raw layout.",
        shapes_graph=True,
    )
    name: str = key(
        "ogbl-collab", "Name of the dataset.", choices=OGB_LINK_NAMES, shapes_graph=True
    )

    @property
    def allows_valid_edges(self) -> bool:
        return self.name == "ogbl-collab"

    def check_labels(self) -> None:
        refuse_without_labels("data=ogb_link", "choose data=ogb for labels of nodes")


@dataclass
class FileConfig(DataConfig):
    """A `torch_geometric.data.Data`, a dict of tensors or an `InMemoryDataset` of one graph, saved by torch.save."""

    links: ClassVar[str] = "edges"
    other_keys: ClassVar[tuple[str, ...]] = ("path",)
    fixed: ClassVar[dict[str, Any]] = {"time_column": None}
    source: str = key(
        "file", "File with a torch_geometric Data that torch.save wrote.", shapes_graph=True
    )
    path: str = key(..., "Path of the file.", is_path=True, names_files=True)
    degrees: bool = degrees(True)
    mask_column: int | None = key(
        None,
        "Column of the masks to use, counted from 0, if they have several.",
        minimum=0,
        shapes_graph=True,
    )
    split: str | None = key(
        None,
        "How labelled nodes or edges, or the links of task=link, are split. random: at random. "
        "time: the earliest edges are for training. Default: the masks of the file, and random for "
        "links.",
        choices=("random", "time"),
        shapes_graph=True,
    )
    edge_time: str | None = key(
        None,
        "Attribute that holds a time for each edge (data.split=time).",
        shapes_graph=True,
        hashed_if_given=True,
    )
    train_fraction: float = fraction(0.6, "training")
    valid_fraction: float = fraction(0.2, "validation")
    graph_seed: int = key(0, "Seed of the split (data.split=random).", minimum=0, shapes_graph=True)
    reverse_relations: bool = reverse_relations()
    featureless: str = featureless()
    label_type: str | None = None  # task.type sets it
    hide_labelled: bool | None = None  # true for task=edge

    def check_edges(self) -> None:
        if self.split == "time" and self.edge_time is None:
            raise ValueError(
                "data.split=time needs data.edge_time, the attribute with a time for each edge"
            )

    def check(self) -> None:
        check_fractions(self.train_fraction, self.valid_fraction)
        if self.split != "time" and self.edge_time is not None:
            raise ValueError(
                f"data.edge_time={self.edge_time} needs data.split=time; this run has "
                f"data.split={self.split or 'null'}"
            )
        check_files(path=self.path)

    def check_labels(self) -> None:
        if self.split == "time":
            raise ValueError(
                "data.split=time divides edges: for labels of nodes, save masks of the times of the nodes"
            )

    def check_links(self, relation: object = None) -> None:
        super().check_links(relation)
        self.check_edges()


@dataclass
class StoreConfig(DataConfig):
    """A graph in a store, a folder of arrays on disk."""

    links: ClassVar[str] = "edges"
    source: str = key(
        "store", "Graph in a store: a folder of arrays and a manifest.", shapes_graph=True
    )
    path: str = key(..., "Path of the folder.", is_path=True, names_files=True)
    on_disk: bool = key(
        True,
        "Read the graph once per epoch, block by block. false: read the rows of each cluster by "
        "random access.",
        changes_numbers=False,
    )
    train_fraction: float = key(0.6, "Fraction of the links for training.", above=0, when=LINK)
    valid_fraction: float = key(
        0.2, "Fraction of the links for validation. The rest is for the test.", minimum=0, when=LINK
    )
    graph_seed: int = key(0, "Seed of the split.", minimum=0, when=LINK)

    @property
    def may_have_text_scores(self) -> bool:
        return True

    def check(self) -> None:
        check_fractions(self.train_fraction, self.valid_fraction)
        if not files.is_there(Path(self.path) / "manifest.json"):
            raise ValueError(f"data.path={self.path} is not a store: it has no manifest.json")
        for name in ("to_undirected", "add_self_loops"):
            if getattr(self, name):
                raise ValueError(
                    f"data.{name}=true does not work with data=store, whose edges are used as they are. "
                    "Leave it out, or write another store"
                )


@dataclass
class ManyGraphsConfig(EncodedGraphsConfig):
    """Many graphs of the user, read by several processes."""

    metric: str | None = key(
        None,
        "Metric of the labels. Default: rocauc for labels of 0, 1 and NaN, acc for other "
        "whole numbers in one column, rmse for all others.",
        shapes_graph=True,
    )
    train_fraction: float = fraction(0.8, "training")
    valid_fraction: float = fraction(0.1, "validation")
    graph_seed: int = key(
        0, "Seed of the split (datasets without splits).", minimum=0, shapes_graph=True
    )

    def check(self) -> None:
        refuse_changes(self, "many graphs")
        check_fractions(self.train_fraction, self.valid_fraction)


@dataclass
class GraphFilesConfig(ManyGraphsConfig):
    """A folder of files, each a `torch_geometric.data.Data` of one graph with a label, saved by torch.save."""

    other_keys: ClassVar[tuple[str, ...]] = ("folder",)
    source: str = key(
        "graph_files",
        "Folder of files. Each holds a torch_geometric Data of one graph that torch.save wrote.",
        shapes_graph=True,
    )
    folder: str = key(
        ...,
        "Path of the folder. It holds *.pt, or train/, valid/ and test/ with such files.",
        is_path=True,
        names_files=True,
    )
    reading: int = reading()
    degrees: bool = degrees(True)

    def sources(self) -> list[tuple[str, Path]]:
        return [
            ("data.folder", Path(self.folder, split, f"*{suffix}"))
            for split in ("", *SPLIT_NAMES)
            for suffix in (".pt", ".pth")
        ]

    def check(self) -> None:
        super().check()
        check_folder(self.folder)


@dataclass
class SmilesConfig(ManyGraphsConfig):
    """A table of molecules as SMILES, with labels in columns, which become graphs with OGB's features."""

    other_keys: ClassVar[tuple[str, ...]] = ("path",)
    source: str = key(
        "smiles",
        "Table (CSV) of molecules as SMILES, with labels in its columns, and perhaps train, valid or test in "
        "the column split.",
        shapes_graph=True,
    )
    path: str = key(
        ...,
        "Path of the table, .csv or .csv.gz. Its first line names the columns.",
        is_path=True,
        names_files=True,
    )
    label_columns: list[str] | None = key(
        None, "Columns of the labels. Default: all other columns of numbers.", shapes_graph=True
    )

    @property
    def fixed(self) -> dict[str, Any]:  # type: ignore[override]
        """The keys of earlier versions, and the name of the column of the user's split, if there is one."""
        own = SPLIT_COLUMN if SPLIT_COLUMN in read_names(Path(self.path)) else None
        return {"smiles_column": SMILES_COLUMN, "skip_invalid": False, "split_column": own}

    def check(self) -> None:
        super().check()
        check_files(path=self.path)
        if importlib.util.find_spec("rdkit") is None:
            raise ValueError(f"data=smiles needs RDKit: {install_command('molecules')}")
        names = read_names(Path(self.path))
        if SMILES_COLUMN not in names:
            raise ValueError(
                f"{self.path} has no column {SMILES_COLUMN}, which holds the molecules; there are "
                f"{', '.join(names)}"
            )
        for column in self.label_columns or []:
            heads.require("data.label_columns", column, self.path, names)


@dataclass
class EdgesConfig(DataConfig):
    """A table of edges with ids of any kind and, if there is one, a table of labels; or a MATLAB file with both."""

    links: ClassVar[str] = "edges"
    source: str = key(
        "edges",
        "Table of edges. It may be a text file with two ids and optionally a weight per line, a "
        ".mat file with network and group, or a .npy array of pairs of node numbers.",
        shapes_graph=True,
    )
    path: str = key(
        ...,
        "Path of the table. A text file may be compressed (.gz, .bz2, .xz).",
        is_path=True,
        names_files=True,
    )
    labels: str | None = key(
        None,
        "Path of the table of labels, with an id and its labels in each line. An id may "
        "have several lines.",
        is_path=True,
        names_files=True,
    )
    to_undirected: bool = key(True, "Add the missing reverse edges.", shapes_graph=True)
    degrees: bool = degrees(True)
    train_fraction: float = fraction(0.5, "training")
    valid_fraction: float = fraction(0.1, "validation")
    graph_seed: int = key(0, "Seed of the split.", minimum=0, shapes_graph=True)
    reading: int = reading()

    def check(self) -> None:
        check_files(path=self.path, labels=self.labels)
        if self.labels is not None and self.path.endswith((".npy", ".mat")):
            raise ValueError(
                f"data.labels={self.labels} needs a text file of edges with ids, not {self.path}: leave it out"
            )
        check_fractions(self.train_fraction, self.valid_fraction)

    def check_labels(self) -> None:
        if self.labels is None and not self.path.endswith(".mat"):
            refuse_without_labels(self.path, "give them as data.labels")


@dataclass
class TriplesConfig(DataConfig):
    """A knowledge graph: three tables of triples of a head, a relation and a tail."""

    holds: ClassVar[str] = "triples"
    source: str = key(
        "triples",
        "Knowledge graph: tables of head, relation and tail for training, validation and test.",
        shapes_graph=True,
    )
    folder: str = key(
        ...,
        "Folder with train.txt, valid.txt and test.txt, or a .tar.gz of them. The files may also "
        "end in .tsv, .del or .csv, and be compressed (.gz).",
        is_path=True,
        names_files=True,
    )
    reading: int = reading()

    def check(self) -> None:
        refuse_changes(self, "triples")
        if not Path(self.folder).is_dir() and not files.is_there(Path(self.folder)):
            raise ValueError(
                f"data.folder={self.folder} does not exist. Give a folder with train.txt, valid.txt and "
                "test.txt, or a .tar.gz of them"
            )


@dataclass
class MathConfig(DataConfig):
    """A generated knowledge graph of arithmetic modulo the number of entities."""

    holds: ClassVar[str] = "triples"
    source: str = key(
        "math",
        "Generated knowledge graph of arithmetic. Its entities are numbers. Its relations are + "
        "- * / and % with an operand.",
        shapes_graph=True,
    )
    num_entities: int = key(
        1000,
        "Number of entities: the numbers 0, 1, 2 and so on.",
        minimum=2,
        below=10_000_000,
        shapes_graph=True,
    )
    num_operands: int = key(
        30,
        "Number of operands of each of the five operators: the numbers 1, 2, 3 and so on.",
        minimum=1,
        below=10_000,
        shapes_graph=True,
    )
    num_train: int = key(20_000, "Number of training triples.", minimum=1, shapes_graph=True)
    num_valid: int = key(1000, "Number of validation triples.", minimum=1, shapes_graph=True)
    num_test: int = key(1000, "Number of test triples.", minimum=1, shapes_graph=True)
    graph_seed: int = key(0, "Seed of the triples.", minimum=0, shapes_graph=True)

    def check(self) -> None:
        refuse_changes(self, "triples")
        asked = self.num_train + self.num_valid + self.num_test
        if asked > (there := 5 * self.num_operands * self.num_entities):
            raise ValueError(
                f"data.num_train, data.num_valid and data.num_test ask for {asked:,} triples, but "
                f"data.num_entities={self.num_entities:,} with data.num_operands={self.num_operands:,} "
                f"make only {there:,}. Lower the former or raise the latter"
            )


@dataclass
class VectorsConfig(DataConfig):
    """Vectors of any kind, one per row, with or without labels."""

    holds: ClassVar[str] = "vectors"
    source: str = key(
        "vectors",
        "Vectors: a table or array with a vector per row, images in the format of MNIST, or "
        "vectors that `predict` saved.",
        shapes_graph=True,
    )
    path: str = key(
        ...,
        "Path of a file that ends in .npy, .csv, .tsv, .txt (word2vec's format) or .parquet, of a file of "
        "images in IDX format (it may be compressed by .gz), or of a folder of such images and their labels.",
        is_path=True,
        names_files=True,
    )
    labels: str | None = key(
        None,
        "Path of the labels: a text file with a label, or a name and a label, in each line; "
        "a .npy array; or a file in IDX format.",
        is_path=True,
        names_files=True,
    )

    def check(self) -> None:
        refuse_changes(self, "vectors")
        check_files(path=None if Path(self.path).is_dir() else self.path, labels=self.labels)


# Datasets by `data.source`: the module of pipeline/data/ that reads it, and its keys. The module has a function `read`,
# which returns a `Data`; if it reads files, `hash_content`, which returns a text; and if the dataset is on the web,
# `download`. They are called with the keys that their parameters are named after. One that has
# `write_store(config, writer, on_stage)` in place of `read` writes the prepared graph as a store.
DATASETS: dict[str, tuple[str, type[DataConfig]]] = {
    "synthetic_proteins": ("readers.synthetic", SyntheticProteinsConfig),
    "digits": ("readers.digits", DigitsConfig),
    "ogb": ("readers.ogb_node", OGBConfig),
    "ogb_graph": ("readers.ogb_graph", OGBGraphConfig),
    "ogb_link": ("readers.ogb_link", OGBLinkConfig),
    "ogb_hetero": ("readers.ogb_hetero", OGBHeteroConfig),
    "file": ("readers.saved_graph", FileConfig),
    "store": ("readers.given_store", StoreConfig),
    "graph_files": ("readers.graph_files", GraphFilesConfig),
    "smiles": ("readers.smiles", SmilesConfig),
    "edges": ("readers.edge_table", EdgesConfig),
    "tables": ("tables.to_store", TablesConfig),
    "triples": ("readers.triples", TriplesConfig),
    "math": ("readers.arithmetic", MathConfig),
    "vectors": ("readers.vectors", VectorsConfig),
}
DATA_SCHEMAS: dict[str, type[DataConfig]] = {
    source: schema for source, (_, schema) in DATASETS.items()
}
