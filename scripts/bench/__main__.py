"""Benchmarks. Outputs are compared with PyG's before anything is timed.

Each measurement is one CSV row on standard output; what happens meanwhile goes to standard error.
"""

import argparse
import sys
from collections.abc import Callable

from pipeline.arguments import Parser, positive
from pipeline.run.errors import one_line
from scripts.bench.aggregate import bench_aggregate
from scripts.bench.cut import bench_cut
from scripts.bench.depth import bench_depth
from scripts.bench.disk import WAYS, bench_disk
from scripts.bench.embedding import bench_embedding
from scripts.bench.inference import bench_inference
from scripts.bench.layer import bench_layer
from scripts.bench.layout import PEERS, bench_layout
from scripts.bench.links import bench_links
from scripts.bench.molecules import bench_graphs
from scripts.bench.partition import bench_partition
from scripts.bench.ranks import bench_memory, bench_ranks
from scripts.bench.sampling import bench_sampling
from scripts.bench.scale import bench_scale
from scripts.bench.steady import bench_steady
from scripts.bench.step import bench_step
from scripts.bench.tables import bench_tables
from scripts.bench.tables_to_store import bench_ingest
from scripts.bench.triples import bench_triples
from scripts.bench.walks import bench_walks

CLUSTER = {"num_nodes": 13_253, "num_edges": 791_225}  # what a random cluster out of 10 keeps of ogbn-proteins
PROTEINS = {"num_nodes": 132_534, "num_edges": 79_122_504}
PRODUCTS = {"num_nodes": 2_449_029, "num_edges": 123_718_280}


def main() -> None:
    parser = Parser(prog="python -m scripts.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True)

    def add(function, about: str, sizes: dict, **numbers: int) -> argparse.ArgumentParser:
        bench = benches.add_parser(function.__name__.removeprefix("bench_"), help=about, description=about)
        for name, default in {**sizes, **numbers}.items():
            bench.add_argument(f"--{name.replace('_', '-')}", type=positive, default=default,
                               help=f"{default:,} if not given")
        bench.set_defaults(function=function)
        return bench

    add(bench_partition, "all batches of a random partition, beside PyG's RandomNodeLoader",
        {**PROTEINS, "num_edges": 30_000_000}, num_parts=10, repeat=5)
    add(bench_cut, "METIS and KaMinPar on the same graph: seconds, memory, edges cut",
        {"num_nodes": 400_000, "num_edges": 6_000_000}, num_parts=10, num_micro_parts=200)
    sampling = add(bench_sampling, "all batches of an epoch by neighbour sampling, beside PyG's NeighborLoader",
                   {**PROTEINS, "num_edges": 6_000_000}, batch_size=1024, num_seeds=5_120, repeat=3)
    sampling.add_argument("--num-neighbors", type=int, nargs="+", default=[15, 10, 5], help="15 10 5 if not given")
    graphs = add(bench_graphs, "batches of ogbg-molhiv and training steps on them, beside PyG's DataLoader over a list "
                 "and the same model of its modules", {"num_batches": 50, "batch_size": 32}, layers=7, channels=256,
                 repeat=3)
    graphs.add_argument("--folder", default="dataset/ogbg_molhiv", help="in OGB's raw layout; %(default)s if not given")
    add(bench_scale, "a graph of ogbn-proteins' size through all that comes before training", PROTEINS, num_parts=10)
    add(bench_aggregate, "one aggregation forward and backward, beside PyG's; the distance to the machine's limit",
        CLUSTER, repeat=3)
    layer = add(bench_layer, "one layer with its norm, activation and dropout, forward and backward, beside PyG's",
                CLUSTER, channels=64, repeat=3)
    layer.add_argument("--full", action="store_true", help="ogbn-proteins' whole graph, where PyG would need 74 GB")
    add(bench_step, "a whole training step of DyResGEN-112, beside the same model of PyG's modules",
        CLUSTER, pyg_layers=14, layers=112, repeat=3)
    depth = add(bench_depth, "parameters, memory and time of a step of models of 7 to 1001 layers, beside PyG's "
                "GroupAddRev", CLUSTER, channels=64, repeat=3)
    depth.add_argument("--layers", type=int, nargs="+", default=[7, 28, 112, 448, 1001])
    depth.add_argument("--models", nargs="+", default=[""], help="parts of their names; all if not given")
    _add_vectors(add)
    _add_disk(add)
    add(bench_inference, "exact inference on a whole graph of ogbn-products' size", PRODUCTS, layers=14, channels=128)
    links = add(bench_links, "Hits@50 of the ogbl-collab recipe, beside common neighbours and PyG's modules", {},
                epochs=1, num_parts=64, pairs_per_step=4096, seeds=3)
    links.add_argument("--folder", required=True, help="of a link dataset in OGB's raw layout")
    links.add_argument("--cache-dir", default=".cache", help=".cache if not given")
    add(bench_ranks, "training steps of several ranks of one thread beside those of one rank; the share of "
        "communication", CLUSTER, layers=112, num_ranks=2, steps=3)
    add(bench_memory, "memory of a training run of several ranks that share a graph, beside that of one", PROTEINS,
        num_parts=10, layers=3, num_ranks=4)
    steady = add(bench_steady, "memory, open files and threads of a long training run, ten epochs after ten epochs", {},
                 epochs=200, num_ranks=1)
    steady.add_argument("overrides", nargs="*", help="what else follows python -m pipeline.train")
    options = vars(parser.parse_args())
    del options["bench"]
    if options.pop("full", False):
        options |= PROTEINS | {"full": True}
    try:
        options.pop("function")(**options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


def _add_disk(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of graphs on disk."""
    disk = add(bench_disk, "epochs of random clusters from a graph on disk, beside the bare read of its files, the "
               "graph in memory, and PyG's RandomNodeLoader", {}, edge_channels=8, channels=8, num_parts=10, repeat=3)
    for name, default in PROTEINS.items():
        disk.add_argument(f"--{name.replace('_', '-')}", type=positive, nargs="+", default=[default],
                          help=f"of each graph; {default:,} if not given")
    disk.add_argument("--folder", default=".cache", help="for the files, perhaps tens of GB; %(default)s if not given")
    disk.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="all if not given")
    disk.add_argument("--keep", action="store_true", help="leave the files there for another time")
    disk.add_argument("--figure", help="a file to draw seconds and memory in, against edges: .svg or .png")
    ingest = add(bench_ingest, "Parquet files of pairs of names with two features to a store, under a memory limit", {},
                 num_nodes=132_534, num_pairs=39_600_000, memory_gib=4, threads=2)
    ingest.add_argument("--folder", default=".cache", help="for some GB; %(default)s if not given")


def _add_vectors(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the benchmarks of trainers of vectors."""
    embedding = add(bench_embedding, "DeepWalk's vectors of a graph with labels, beside gensim's", {}, dim=128,
                    distance=2, repeat=3)
    embedding.add_argument("--path", required=True, help="of a table of edges, or a .mat with network and group")
    tables = add(bench_tables, "memory of an epoch of DeepWalk on a large generated graph, its tables on the disk",
                 {"num_nodes": 10_000_000, "num_edges": 100_000_000}, dim=64, episode_size=20_000_000, num_parts=8,
                 memory_gib=8)
    tables.add_argument("--folder", default=".cache", help="for tens of GB; %(default)s if not given")
    walks = add(bench_walks, "steps a second of node2vec's walks, beside PecanPy's", {}, length=40, num_walks=10,
                repeat=3)
    walks.add_argument("--path", required=True, help="of a table of edges, or a .mat with network")
    for name, default in (("p", 0.25), ("q", 4.0)):
        walks.add_argument(f"--{name}", type=float, default=default, help="%(default)s if not given")
    triples = add(bench_triples, "scored triples a second of RotatE's training, beside PyKEEN's", {}, dim=100,
                  batch_size=1024, num_negatives=512, num_steps=8, repeat=3)
    triples.add_argument("--folder", required=True, help="of a knowledge graph's train, valid and test")
    layouts = add(bench_layout, "layouts of vectors with labels, beside PaCMAP's, UMAP's and openTSNE's", {}, repeat=1)
    layouts.add_argument("--path", required=True, help="of vectors, or a folder of images and labels as MNIST's")
    layouts.add_argument("--labels", help="of their labels, if not among them")
    layouts.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="all if not given")


if __name__ == "__main__":
    main()
