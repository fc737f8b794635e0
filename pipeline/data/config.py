"""The keys of every dataset; see :mod:`pipeline.config` for how they are collected."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.data.base_config import DataConfig
from pipeline.data.tables_config import TablesConfig, check_fractions
from pipeline.keys import key
from pipeline.run.memory import format_bytes, machine_memory

OGB_NODE_NAMES = ("ogbn-proteins", "ogbn-arxiv", "ogbn-products")
OGB_GRAPH_NAMES = ("ogbg-molhiv", "ogbg-molpcba", "ogbg-ppa")
OGB_LINK_NAMES = ("ogbl-collab", "ogbl-ppa", "ogbl-ddi")


@dataclass
class SyntheticProteinsConfig(DataConfig):
    """A generated graph with the schema of ogbn-proteins."""

    source: str = key("synthetic_proteins", "a generated graph with the schema of ogbn-proteins", shapes_graph=True)
    node_features: str = key("log_sum", "how the features of incident edges become the nodes'",
                             choices=("sum", "log_sum"), shapes_graph=True)
    num_nodes: int = key(8000, "nodes", shapes_graph=True)
    num_edges: int = key(400_000, "directed edges, twice the number of pairs", shapes_graph=True)
    num_species: int = key(8, "species, in contiguous ranges of the nodes", shapes_graph=True)
    num_groups: int = key(100, "planted communities", shapes_graph=True)
    num_tasks: int = key(16, "binary tasks", shapes_graph=True)
    graph_seed: int = key(0, "seed of the graph", minimum=0, shapes_graph=True)

    def check(self) -> None:
        check_synthetic_sizes(self.num_nodes, self.num_edges, self.num_species, self.num_groups, self.num_tasks)


def check_synthetic_sizes(num_nodes: int, num_edges: int, num_species: int, num_groups: int, num_tasks: int) -> None:
    """Refuse sizes that no generated graph has, or that the machine cannot hold.

    Raises:
        ValueError: names the keys.
    """
    if min(num_species, num_groups, num_tasks) < 1 or num_nodes < 4 * max(num_species, num_groups):
        raise ValueError(f"data.num_nodes={num_nodes:,} must be at least four times data.num_species={num_species} and "
                         f"data.num_groups={num_groups}, and these and data.num_tasks={num_tasks} at least 1")
    most = num_nodes * (num_nodes - 1) // 4
    if not 0 <= num_edges <= most:
        raise ValueError(f"data.num_edges={num_edges:,} must be between 0 and {most:,} for {num_nodes:,} nodes, half "
                         "of all directed edges that they can have")
    # The graph itself: int32 edges and their 8 features; the nodes' activities, labels and their scores.
    needed, available = 40 * num_edges + (100 + 8 * num_tasks) * num_nodes, machine_memory()
    if needed > available:
        raise ValueError(f"data.num_nodes={num_nodes:,}, data.num_edges={num_edges:,} and data.num_tasks={num_tasks:,} "
                         f"take at least {format_bytes(needed)}, this machine has {format_bytes(available)}")


@dataclass
class DigitsConfig(DataConfig):
    """The k-nearest-neighbour graph of scikit-learn's 1,797 handwritten digits."""

    source: str = key("digits", "the nearest-neighbour graph of scikit-learn's 1,797 handwritten digits",
                      shapes_graph=True)
    num_neighbors: int = key(8, "nearest neighbours of each digit", shapes_graph=True)
    train_fraction: float = key(0.6, "fraction of the digits for training", shapes_graph=True)
    valid_fraction: float = key(0.2, "fraction for validation; the rest is for the test", shapes_graph=True)
    graph_seed: int = key(0, "seed of the split", minimum=0, shapes_graph=True)

    def check(self) -> None:
        if not 1 <= self.num_neighbors < 1797:
            raise ValueError(f"data.num_neighbors must be between 1 and 1796, not {self.num_neighbors}")
        if not (self.train_fraction > 0 and self.valid_fraction > 0 and self.train_fraction + self.valid_fraction < 1):
            raise ValueError("data.train_fraction and data.valid_fraction must be positive and leave something for the "
                             f"test, not {self.train_fraction} and {self.valid_fraction}")


@dataclass
class OGBConfig(DataConfig):
    """A node dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = key("ogb", "a node dataset of the Open Graph Benchmark, or a folder in its raw layout",
                      shapes_graph=True)
    name: str = key("ogbn-proteins", "of the dataset", choices=OGB_NODE_NAMES, shapes_graph=True)
    root: str = key("dataset", "folder that `prepare` downloads to", changes_numbers=False, is_path=True)
    folder: str | None = key(None, "folder with raw/ and split/, instead of root/name", is_path=True,
                             names_files=True)

    def origin(self) -> str:
        return str(self.directory())

    def directory(self) -> Path:
        """Return the folder that holds raw/ and split/."""
        return Path(self.folder) if self.folder is not None else Path(self.root) / self.name.replace("-", "_")

    def check(self) -> None:
        if self.directory().is_dir():
            return
        if self.folder is not None:
            raise ValueError(f"data.folder={self.folder} does not exist, or is no folder")
        raise ValueError(f"{self.name} is not in {self.root}: run `python -m pipeline.prepare "
                         f"+experiment={self.name.replace('-', '_')}` on a machine with a network, or set data.folder")


def check_taken_as_they_are(config: DataConfig, what: str) -> None:
    """Refuse what would change the nodes and edges of a graph, where there are none or many.

    Args:
        what: the dataset holds.

    Raises:
        ValueError: names the key.
    """
    for name, usual in (("components", "all"), ("to_undirected", False), ("add_self_loops", False)):
        if (value := getattr(config, name)) != usual:
            raise ValueError(f"data.{name}={value}: {what} are taken as they are; leave it out")


@dataclass
class OGBGraphConfig(OGBConfig):
    """A graph dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    holds: ClassVar[str] = "graphs"
    source: str = key("ogb_graph", "a graph dataset of the Open Graph Benchmark, or a folder in its raw layout",
                      shapes_graph=True)
    name: str = key("ogbg-molhiv", "of the dataset", choices=OGB_GRAPH_NAMES, shapes_graph=True)

    def check(self) -> None:
        check_taken_as_they_are(self, "many graphs")
        super().check()


@dataclass
class OGBLinkConfig(OGBConfig):
    """A link dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = key("ogb_link", "a link dataset of the Open Graph Benchmark, or a folder in its raw layout",
                      shapes_graph=True)
    name: str = key("ogbl-collab", "of the dataset", choices=OGB_LINK_NAMES, shapes_graph=True)


@dataclass
class FileConfig(DataConfig):
    """A `torch_geometric.data.Data`, a dict of tensors or an `InMemoryDataset` of one graph, saved by torch.save."""

    source: str = key("file", "a torch_geometric Data saved by torch.save", shapes_graph=True)
    path: str = key(..., "the file", is_path=True, names_files=True)
    mask_column: int | None = key(None, "for masks with a column for each of several splits: the column, from 0",
                                  minimum=0, shapes_graph=True)
    split: str | None = key(None, "in place of the file's masks: random; time, the earliest for training",
                            choices=("random", "time"), shapes_graph=True)
    time_column: str | None = key(None, "of split=time: the attribute with a time for each node", shapes_graph=True)
    train_fraction: float = key(0.6, "of split: fraction of the labelled nodes for training", above=0,
                                shapes_graph=True)
    valid_fraction: float = key(0.2, "fraction for validation; the rest is for the test", minimum=0, shapes_graph=True)
    graph_seed: int = key(0, "seed of split=random", minimum=0, shapes_graph=True)

    def origin(self) -> str:
        return self.path

    def check(self) -> None:
        check_fractions(self.train_fraction, self.valid_fraction)
        if (self.split == "time") != (self.time_column is not None):
            raise ValueError("data.split=time needs data.time_column, and nothing else does")
        path = Path(self.path)
        if path.is_file():
            return
        if re.match(r"\w+:/", self.path):
            problem = "is an address: download the file, and give its path"
        elif path.is_dir():
            inside = next(iter(sorted(path.glob("**/data.pt"))), "FILE")
            problem = f"is a directory: give the file in it, as data.path={inside}"
        elif path.exists():
            problem = "is a pipe or a device: copy its content into a file"
        else:
            where = "" if path.is_absolute() else f" in {Path.cwd()}"
            problem = f"does not exist{where}; save a torch_geometric Data there with torch.save"
        raise ValueError(f"data.path={self.path} {problem}")


@dataclass
class StoreConfig(DataConfig):
    """A graph in a store, as :mod:`pipeline.graph.store` writes it."""

    source: str = key("store", "a graph in a store: a folder of arrays and a manifest", shapes_graph=True)
    path: str = key(..., "the folder", is_path=True, names_files=True)
    on_disk: bool = key(True, "read it once an epoch, block by block, and not where the rows of a cluster lie",
                        changes_numbers=False)

    def origin(self) -> str:
        return self.path

    def check(self) -> None:
        if not (Path(self.path) / "manifest.json").is_file():
            raise ValueError(f"data.path={self.path} holds no store: there is no manifest.json in it")
        for name in ("to_undirected", "add_self_loops"):
            if getattr(self, name):
                raise ValueError(f"data.{name}=true: a store is taken as it is; leave it out, or write another")


@dataclass
class ManyGraphsConfig(DataConfig):
    """Many graphs of the user's own, read by several processes."""

    holds: ClassVar[str] = "graphs"
    metric: str | None = key(None, "of the labels; none: rocauc for 0, 1 and NaN, acc for other whole numbers in one "
                             "column, else rmse", shapes_graph=True)
    train_fraction: float = key(0.8, "fraction of the graphs for training, where the dataset has no splits",
                                shapes_graph=True)
    valid_fraction: float = key(0.1, "fraction for validation, where it has none; the rest is for the test",
                                shapes_graph=True)
    graph_seed: int = key(0, "seed of the split", minimum=0, shapes_graph=True)
    num_workers: int | None = key(None, "processes that read; none: one for each processor", minimum=1,
                                  changes_numbers=False)

    def check(self) -> None:
        check_taken_as_they_are(self, "many graphs")
        check_fractions(self.train_fraction, self.valid_fraction)


@dataclass
class GraphFilesConfig(ManyGraphsConfig):
    """A folder of files, each a `torch_geometric.data.Data` of one graph with a label, saved by torch.save."""

    source: str = key("graph_files", "a folder of files, each a torch_geometric Data of one graph, saved by torch.save",
                      shapes_graph=True)
    folder: str = key(..., "the folder: *.pt, or train/, valid/ and test/ with such", is_path=True, names_files=True)

    def origin(self) -> str:
        return self.folder

    def check(self) -> None:
        super().check()
        if not Path(self.folder).is_dir():
            raise ValueError(f"data.folder={self.folder} does not exist, or is no folder")


@dataclass
class SmilesConfig(ManyGraphsConfig):
    """A table of molecules as SMILES, with labels in columns, which become graphs with OGB's features."""

    source: str = key("smiles", "a table (CSV) of molecules as SMILES, with labels in its columns", shapes_graph=True)
    path: str = key(..., "the table: .csv or .csv.gz with a head", is_path=True, names_files=True)
    smiles_column: str = key("smiles", "the column of the molecules", shapes_graph=True)
    label_columns: list[str] | None = key(None, "the columns of the labels; none: all other columns of numbers",
                                          shapes_graph=True)
    split_column: str | None = key(None, "a column of train, valid and test; none: a random split", shapes_graph=True)
    skip_invalid: bool = key(False, "leave out what RDKit cannot read, and say how many; otherwise it is an error",
                             shapes_graph=True)

    def origin(self) -> str:
        return self.path

    def check(self) -> None:
        super().check()
        if not Path(self.path).is_file():
            raise ValueError(f"data.path={self.path} does not exist, or is no file")
        if importlib.util.find_spec("rdkit") is None:
            raise ValueError("data=smiles needs RDKit: pip install -e .[molecules]")


@dataclass
class EdgesConfig(DataConfig):
    """A table of edges with ids of any kind, and perhaps one of labels; or a MATLAB file with both."""

    source: str = key("edges", "a table of edges (text, perhaps .gz): two ids and perhaps a weight a line; or a .mat "
                      "with network and group, or a .npy of pairs of numbers of nodes", shapes_graph=True)
    path: str = key(..., "the table", is_path=True, names_files=True)
    labels: str | None = key(None, "a table of labels: an id and its labels a line; an id may have several lines",
                             is_path=True, names_files=True)
    to_undirected: bool = key(True, "add the missing reverse edges", shapes_graph=True)
    train_fraction: float = key(0.5, "fraction of the labelled nodes for training", above=0, shapes_graph=True)
    valid_fraction: float = key(0.1, "fraction for validation; the rest is for the test", minimum=0,
                                shapes_graph=True)
    graph_seed: int = key(0, "seed of the split", minimum=0, shapes_graph=True)

    def origin(self) -> str:
        return self.path

    def check(self) -> None:
        for name, path in (("path", self.path), ("labels", self.labels)):
            if path is not None and not Path(path).is_file():
                raise ValueError(f"data.{name}={path} does not exist, or is no file")
        if self.path.endswith(".npy") and self.labels is not None:
            raise ValueError(f"data.labels={self.labels}: labels belong to ids, and {self.path} has numbers; write the "
                             "edges as a table of text")
        if self.path.endswith(".mat") and self.labels is not None:
            raise ValueError(f"data.labels={self.labels}: {self.path} holds its own labels, `group`; leave it out")
        if self.train_fraction + self.valid_fraction > 1:
            raise ValueError("data.train_fraction and data.valid_fraction must be at most 1 together, not "
                             f"{self.train_fraction} and {self.valid_fraction}")


@dataclass
class TriplesConfig(DataConfig):
    """A knowledge graph: three tables of triples of a head, a relation and a tail."""

    holds: ClassVar[str] = "triples"
    source: str = key("triples", "a knowledge graph: tables of head, relation and tail, for training, validation and "
                      "test", shapes_graph=True)
    folder: str = key(..., "the folder of train.txt, valid.txt and test.txt (or .tsv, .del, .csv, perhaps with .gz), "
                      "or a .tar.gz of them", is_path=True, names_files=True)

    def origin(self) -> str:
        return self.folder

    def check(self) -> None:
        check_taken_as_they_are(self, "triples")
        if not Path(self.folder).exists():
            raise ValueError(f"data.folder={self.folder} does not exist: give a folder with train.txt, valid.txt and "
                             "test.txt, or a .tar.gz of them")


@dataclass
class MathConfig(DataConfig):
    """A generated knowledge graph of arithmetic modulo the number of entities."""

    holds: ClassVar[str] = "triples"
    source: str = key("math", "a generated knowledge graph of arithmetic: numbers, linked by + - * / % with an operand",
                      shapes_graph=True)
    num_entities: int = key(1000, "numbers, from 0", minimum=2, below=10_000_000, shapes_graph=True)
    num_operands: int = key(30, "operands of each of the five operators, from 1", minimum=1, below=10_000,
                            shapes_graph=True)
    num_train: int = key(20_000, "training triples", minimum=1, shapes_graph=True)
    num_valid: int = key(1000, "validation triples", minimum=1, shapes_graph=True)
    num_test: int = key(1000, "test triples", minimum=1, shapes_graph=True)
    graph_seed: int = key(0, "seed of the triples", minimum=0, shapes_graph=True)

    def check(self) -> None:
        check_taken_as_they_are(self, "triples")
        asked, there = self.num_train + self.num_valid + self.num_test, 5 * self.num_operands * self.num_entities
        if asked > there:
            raise ValueError(f"data.num_train, data.num_valid and data.num_test are {asked:,} triples, and "
                             f"data.num_entities={self.num_entities:,} with data.num_operands={self.num_operands:,} "
                             f"make {there:,}: lower the former or raise the latter")
        needed = 40 * there
        if needed > machine_memory():
            raise ValueError(f"data.num_entities={self.num_entities:,} with data.num_operands={self.num_operands:,} "
                             f"make {there:,} triples to draw from, which take {format_bytes(needed)}; this machine "
                             f"has {format_bytes(machine_memory())}")


@dataclass
class VectorsConfig(DataConfig):
    """Vectors of any kind, a row each, and perhaps labels."""

    holds: ClassVar[str] = "vectors"
    source: str = key("vectors", "vectors: a table or tensor with a row each, images as MNIST's, or what `predict` "
                      "saved", shapes_graph=True)
    path: str = key(..., "a file .npy, .npz, .csv, .tsv, .txt (word2vec's), .parquet or .pt, one of images in IDX, "
                    "perhaps with .gz, or a folder of such images and labels", is_path=True, names_files=True)
    labels: str | None = key(None, "their labels, a line each, or an id and a label; or .npy, or IDX", is_path=True,
                             names_files=True)

    def origin(self) -> str:
        return self.path

    def check(self) -> None:
        check_taken_as_they_are(self, "vectors")
        for name, path in (("path", self.path), ("labels", self.labels)):
            if path is not None and not (Path(path).is_file() or name == "path" and Path(path).is_dir()):
                raise ValueError(f"data.{name}={path} does not exist, or is no file")


# Datasets by `data.source`: the module of pipeline/data/ that reads it, and its keys. The module has
# `read(config) -> Data` and, if it reads files, `hash_content(config) -> str`. One that has
# `write_store(config, writer, on_stage)` in place of `read` writes the prepared graph as a store.
DATASETS = {
    "synthetic_proteins": ("synthetic", SyntheticProteinsConfig),
    "digits": ("digits", DigitsConfig),
    "ogb": ("ogb_node", OGBConfig),
    "ogb_graph": ("ogb_graph", OGBGraphConfig),
    "ogb_link": ("ogb_link", OGBLinkConfig),
    "file": ("file", FileConfig),
    "store": ("store", StoreConfig),
    "graph_files": ("graph_files", GraphFilesConfig),
    "smiles": ("smiles", SmilesConfig),
    "edges": ("edges", EdgesConfig),
    "tables": ("tables", TablesConfig),
    "triples": ("triples", TriplesConfig),
    "math": ("arithmetic", MathConfig),
    "vectors": ("vectors", VectorsConfig),
}
DATA_SCHEMAS = {source: schema for source, (_, schema) in DATASETS.items()}
