"""The keys of every dataset; see :mod:`pipeline.config` for how they are collected."""

from dataclasses import dataclass

from pipeline.keys import key

OGB_NODE_NAMES = ("ogbn-proteins", "ogbn-arxiv", "ogbn-products")


@dataclass
class DataConfig:
    """Keys of every dataset."""

    source: str = key("", "the reader of the dataset", shapes_graph=True)
    components: str = key("all", "connected components to train on: all, largest, K for the K-th largest (from 1), or "
                          "separate for a model each")
    min_component_size: int = key(100, "nodes; under `separate`, smaller components get no model of their own",
                                  minimum=1)
    to_undirected: bool = key(False, "add the missing reverse edges", shapes_graph=True)
    add_self_loops: bool = key(False, "add the missing self-loops", shapes_graph=True)
    node_features: str = key("sum", "for a graph without any: the features of the incident edges summed, or log_sum, "
                             "their logarithms standardised", choices=("sum", "log_sum"), shapes_graph=True)


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


@dataclass
class DigitsConfig(DataConfig):
    """The k-nearest-neighbour graph of scikit-learn's 1,797 handwritten digits."""

    source: str = key("digits", "the nearest-neighbour graph of scikit-learn's 1,797 handwritten digits",
                      shapes_graph=True)
    num_neighbors: int = key(8, "nearest neighbours of each digit", shapes_graph=True)
    train_fraction: float = key(0.6, "fraction of the digits for training", shapes_graph=True)
    valid_fraction: float = key(0.2, "fraction for validation; the rest is for the test", shapes_graph=True)
    graph_seed: int = key(0, "seed of the split", minimum=0, shapes_graph=True)


@dataclass
class OGBConfig(DataConfig):
    """A node dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = key("ogb", "a node dataset of the Open Graph Benchmark, or a folder in its raw layout",
                      shapes_graph=True)
    name: str = key("ogbn-proteins", "of the dataset", choices=OGB_NODE_NAMES, shapes_graph=True)
    root: str = key("dataset", "folder that `prepare` downloads to", changes_numbers=False)
    folder: str | None = key(None, "folder with raw/ and split/, instead of root/name")


@dataclass
class FileConfig(DataConfig):
    """A `torch_geometric.data.Data` saved by torch.save."""

    source: str = key("file", "a torch_geometric Data saved by torch.save", shapes_graph=True)
    path: str = key(..., "the file")


# Datasets by `data.source`: the module of pipeline/data/ that reads it, and its keys. The module has
# `read(config) -> Data` and, if it reads files, `hash_content(config) -> str`.
DATASETS = {
    "synthetic_proteins": ("synthetic", SyntheticProteinsConfig),
    "digits": ("digits", DigitsConfig),
    "ogb": ("ogb_node", OGBConfig),
    "file": ("file", FileConfig),
}
DATA_SCHEMAS = {source: schema for source, (_, schema) in DATASETS.items()}
