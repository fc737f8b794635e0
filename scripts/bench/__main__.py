"""Benchmarks. Nothing is timed before our output was compared with that of PyG.

Each measurement is one CSV row on standard output. Progress is reported on standard error.
"""

import argparse
import sys
from collections.abc import Callable

from parallel_epochs.pipeline.command.arguments import Parser, positive
from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.scripts.bench.aggregate import bench_aggregate
from parallel_epochs.scripts.bench.convs import INSTALL_DGL, bench_convs
from parallel_epochs.scripts.bench.cut import bench_cut
from parallel_epochs.scripts.bench.depth import bench_depth
from parallel_epochs.scripts.bench.disk import WAYS, bench_disk
from parallel_epochs.scripts.bench.embedding import bench_embedding
from parallel_epochs.scripts.bench.growth import bench_growth
from parallel_epochs.scripts.bench.inference import bench_inference
from parallel_epochs.scripts.bench.layer import bench_layer
from parallel_epochs.scripts.bench.layout import PEERS, bench_layout
from parallel_epochs.scripts.bench.links import bench_links
from parallel_epochs.scripts.bench.molecules import bench_graphs
from parallel_epochs.scripts.bench.partition import bench_partition
from parallel_epochs.scripts.bench.ranks import bench_memory, bench_ranks
from parallel_epochs.scripts.bench.relations import bench_relations
from parallel_epochs.scripts.bench.sampling import bench_sampling
from parallel_epochs.scripts.bench.scale import bench_mag, bench_scale
from parallel_epochs.scripts.bench.steady import bench_steady
from parallel_epochs.scripts.bench.step import bench_step
from parallel_epochs.scripts.bench.tables import bench_tables
from parallel_epochs.scripts.bench.tables_to_store import bench_ingest
from parallel_epochs.scripts.bench.triples import bench_triples
from parallel_epochs.scripts.bench.walks import bench_walks

CLUSTER = {"num_nodes": 13_253, "num_edges": 791_225}  # one of ten random clusters of ogbn-proteins
PROTEINS = {"num_nodes": 132_534, "num_edges": 79_122_504}
PRODUCTS = {"num_nodes": 2_449_029, "num_edges": 123_718_280}
# Texts of the options that are numbers.
NUMBERS = {
    "num_nodes": "number of nodes", "num_edges": "number of directed edges", "num_pairs": "number of undirected edges",
    "num_parts": "number of clusters of a partition",
    "num_micro_parts": "number of clusters of the second, finer cut", "num_batches": "number of training steps",
    "batch_size": "number of nodes of a batch", "num_seeds": "number of nodes of an epoch",
    "num_negatives": "number of negatives of a triple", "num_steps": "number of training steps of a round",
    "num_ranks": "number of ranks", "num_walks": "number of walks from each node", "length": "length of a walk",
    "layers": "number of layers", "pyg_layers": "number of layers for the comparison with PyG",
    "channels": "number of channels of a layer", "edge_channels": "number of edge features",
    "num_relations": "number of relations", "num_bases": "number of matrices of which those of relations are mixed",
    "heads": "number of heads",
    "dim": "dimension of a vector", "distance": "largest distance of the two nodes of a pair in a walk",
    "pairs_per_step": "number of training pairs of a step", "episode_size": "number of pairs of an episode",
    "epochs": "number of epochs", "steps": "number of training steps", "seeds": "number of seeds",
    "memory_gib": "memory limit in GiB", "threads": "number of threads", "repeat": "number of rounds"}


def main() -> None:
    parser = Parser(prog="python -m scripts.bench", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True)

    def add(function, about: str, sizes: dict, texts: dict[str, str] | None = None,
            **numbers: int) -> argparse.ArgumentParser:
        bench = benches.add_parser(function.__name__.removeprefix("bench_"), help=about, description=about)
        texts = NUMBERS | (texts or {})
        for name, default in {**sizes, **numbers}.items():
            bench.add_argument(f"--{name.replace('_', '-')}", type=positive, default=default,
                               help=f"{texts[name]} (default: {default:,})")
        bench.set_defaults(function=function)
        return bench

    add(bench_partition, "time of all batches of a random partition, compared with PyG's RandomNodeLoader",
        {**PROTEINS, "num_edges": 30_000_000}, num_parts=10, repeat=5)
    add(bench_cut, "time, memory and edge cut of METIS and KaMinPar on the same graph",
        {"num_nodes": 400_000, "num_edges": 6_000_000}, num_parts=10, num_micro_parts=200)
    sampling = add(bench_sampling, "time of an epoch of sampled batches, compared with PyG's NeighborLoader",
                   {**PROTEINS, "num_edges": 6_000_000}, batch_size=1024, num_seeds=5_120, repeat=3)
    sampling.add_argument("--num-neighbors", type=int, nargs="+", default=[15, 10, 5],
                          help="neighbours per hop (default: 15 10 5)")
    graphs = add(bench_graphs, "time of batches and training steps on ogbg-molhiv, compared with PyG's DataLoader and "
                 "the same model of PyG's modules", {"num_batches": 50, "batch_size": 32},
                 texts={"batch_size": "number of graphs of a batch"}, layers=7, channels=256, repeat=3)
    graphs.add_argument("--folder", default="dataset/ogbg_molhiv",
                        help="dataset in OGB's raw layout (default: %(default)s)")
    add(bench_scale, "time and memory of every step before training, for a graph of ogbn-proteins' size", PROTEINS,
        num_parts=10)
    for add_more in (_add_models, _add_vectors, _add_disk, _add_runs):
        add_more(add)
    options = vars(parser.parse_args())
    del options["bench"]
    if options.pop("full", False):
        options |= PROTEINS | {"full": True}
    try:
        options.pop("function")(**options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


def _add_figure(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--figure", help="draw the measurements into this .svg or .png")
    bench.add_argument("--overwrite", action="store_true", help="replace an existing file of --figure that is no such "
                       "figure")


def _add_runs(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of whole runs."""
    links = add(bench_links, "Hits@50 of the ogbl-collab recipe, compared with common neighbours and PyG's modules", {},
                epochs=1, num_parts=64, pairs_per_step=4096, seeds=3)
    links.add_argument("--folder", required=True, help="link dataset in OGB's raw layout")
    links.add_argument("--cache-dir", default=".cache", help="folder of prepared graphs (default: .cache)")
    add(bench_ranks, "training speed of several ranks with one thread each, compared with one rank; the share "
        "of communication", CLUSTER, layers=112, num_ranks=2, steps=3)
    add(bench_memory, "memory of a training run of several ranks that share a graph, compared with one rank", PROTEINS,
        num_parts=10, layers=3, num_ranks=4)
    mag = add(bench_mag, "an epoch of clusters and an exact evaluation on a generated graph of ogbn-mag's size", {},
              layers=2, channels=64, num_parts=20)
    mag.add_argument("--share", type=float, default=1.0, help="share of ogbn-mag's nodes and edges (default: 1)")
    mag.add_argument("--model", default="rgcn", help="rgcn, hgt or deepergcn (default: %(default)s)")
    steady = add(bench_steady, "memory, open files and threads of a long training run, for every ten epochs", {},
                 epochs=200, num_ranks=1)
    steady.add_argument("overrides", nargs="*", help="further overrides of python -m pipeline.train")


def _add_models(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of aggregations, layers and models."""
    aggregate = add(bench_aggregate, "time and memory of one aggregation, compared with PyG's, plain and compiled by "
                    "torch.compile, and with the limit of the machine", CLUSTER, repeat=3)
    aggregate.add_argument("--eager", action="store_true", help="leave out torch.compile, which takes a minute a row")
    convs = add(bench_convs, "time and memory of the layers that run fused, compared with PyG's and DGL's", CLUSTER,
                channels=64, repeat=3)
    convs.add_argument("--cases", nargs="+", help="layers whose name contains one of these texts (default: all)")
    growth = add(bench_growth, "training steps of GCN and GAT against nodes, density and hidden size, compared with "
                 "DGL's and PyG's", {}, memory_gib=8, repeat=3)
    _add_figure(growth)
    relations = add(bench_relations, "time and memory of R-GCN and HGT layers with one node type and with thin "
                    "relations, compared with PyG's and DGL's", {**CLUSTER, "num_edges": 791_224}, num_relations=8,
                    channels=64, heads=8, num_bases=8, repeat=3)
    for bench in (convs, growth, relations):
        bench.add_argument("--dgl", default="", metavar="FOLDER", help=f"folder of DGL, from {INSTALL_DGL}")
    layer = add(bench_layer, "time and memory of one layer with norm, activation and dropout, compared with PyG's",
                CLUSTER, channels=64, repeat=3)
    layer.add_argument("--full", action="store_true",
                       help="use a graph of ogbn-proteins' size, without PyG, which would need 74 GB")
    layer.add_argument("--relations", type=positive, help="compare a layer that reads this number of relations from a "
                       "table with the same layer on one-hot columns instead")
    step = add(bench_step, "time and memory of a training step of DyResGEN-112, compared with the same model of PyG's "
               "modules", CLUSTER, pyg_layers=14, layers=112, repeat=3)
    depth = add(bench_depth, "parameters, memory and time of a training step of models with 7 to 1001 layers, compared "
                "with PyG's GroupAddRev", CLUSTER, channels=64, repeat=3)
    depth.add_argument("--layers", type=int, nargs="+", default=[7, 28, 112, 448, 1001],
                       help="numbers of layers (default: 7 28 112 448 1001)")
    depth.add_argument("--models", nargs="+", default=[""],
                       help="models whose name contains one of these texts (default: all)")
    inference = add(bench_inference, "time and memory of exact inference on a graph of ogbn-products' size", PRODUCTS,
                    layers=14, channels=128)
    for bench in (aggregate, convs, layer, step, depth, inference):
        bench.add_argument("--device", default="cpu", help="cpu, cuda or auto (default: %(default)s)")


def _add_disk(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of graphs on disk."""
    disk = add(bench_disk, "time and memory of epochs of random clusters from a graph on disk, compared with reading "
               "its files, with the graph in memory, and with PyG's RandomNodeLoader", {},
               texts={"channels": "number of node features"}, edge_channels=8, channels=8, num_parts=10, repeat=3)
    for name, default in PROTEINS.items():
        disk.add_argument(f"--{name.replace('_', '-')}", type=positive, nargs="+", default=[default],
                          help=f"{NUMBERS[name]} of each graph (default: {default:,})")
    disk.add_argument("--folder", default=".cache",
                      help="folder for the files, up to tens of GB (default: %(default)s)")
    disk.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS),
                      help="ways to measure (default: all)")
    disk.add_argument("--keep", action="store_true", help="keep the files for another run")
    _add_figure(disk)
    ingest = add(bench_ingest, "time and memory of importing Parquet files of edges, under a memory limit", {},
                 num_nodes=132_534, num_pairs=39_600_000, memory_gib=4, threads=2)
    ingest.add_argument("--folder", default=".cache", help="folder for some GB of files (default: %(default)s)")


def _add_vectors(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of node vectors, knowledge graphs and layouts."""
    embedding = add(bench_embedding, "speed and quality of DeepWalk on a graph with labels, compared with gensim", {},
                    dim=128, distance=2, repeat=3)
    embedding.add_argument("--path", required=True, help="table of edges, or a .mat file with network and group")
    tables = add(bench_tables, "memory of an epoch of DeepWalk on a large generated graph, with its tables on disk",
                 {"num_nodes": 10_000_000, "num_edges": 100_000_000},
                 texts={"num_parts": "number of partitions of the nodes"}, dim=64, episode_size=20_000_000,
                 num_parts=8, memory_gib=8)
    tables.add_argument("--folder", default=".cache", help="folder for tens of GB of files (default: %(default)s)")
    walks = add(bench_walks, "speed of node2vec's walks in steps per second, compared with PecanPy", {}, length=40,
                num_walks=10, repeat=3)
    walks.add_argument("--path", required=True, help="table of edges, or a .mat file with network")
    for name, default in (("p", 0.25), ("q", 4.0)):
        walks.add_argument(f"--{name}", type=float, default=default,
                           help="parameter of node2vec (default: %(default)s)")
    triples = add(bench_triples, "speed of RotatE's training in scored triples per second, compared with PyKEEN", {},
                  texts={"batch_size": "number of triples of a batch"}, dim=100, batch_size=1024, num_negatives=512,
                  num_steps=8, repeat=3)
    triples.add_argument("--folder", required=True, help="folder of a knowledge graph with train, valid and test")
    layouts = add(bench_layout, "time and quality of layouts of vectors, compared with PaCMAP, UMAP and openTSNE", {},
                  repeat=1)
    layouts.add_argument("--path", required=True, help="file of vectors, or a folder of images and labels like MNIST")
    layouts.add_argument("--labels", help="file of the labels, if they are not in the file of the vectors")
    layouts.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS),
                         help="packages to compare with (default: all)")


if __name__ == "__main__":
    main()
