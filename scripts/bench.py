"""Benchmarks: `python -m scripts.bench partition | scale`. Outputs are compared before anything is timed.

partition: all batches of a random partition, beside PyG's RandomNodeLoader on the same graph in the same process.
scale: a generated graph of ogbn-proteins' size through prepare, components, partition and one epoch of batches.
Each measurement is one CSV row on standard output; what happens meanwhile goes to standard error.
"""

import argparse
import csv
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader

from pipeline import graph
from pipeline.config import SyntheticProteinsConfig
from pipeline.data import load, prepare
from pipeline.loader import ClusterLoader
from pipeline.partition import describe, random_partition, stream
from pipeline.synthetic import synthetic_proteins


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def write_row(writer: csv.DictWriter | None, row: dict) -> csv.DictWriter:
    """Print a measurement with where it comes from; the first one prints the header too."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    row = {**row, "threads": torch.get_num_threads(), "machine": f"{platform.machine()} {_processor()}",
           "torch": torch.__version__, "pyg": torch_geometric.__version__, "commit": commit or "unknown"}
    if writer is None:
        writer = csv.DictWriter(sys.stdout, row)
        writer.writeheader()
    writer.writerow(row)
    sys.stdout.flush()
    return writer


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return f"{models[0] if models else 'unknown'} x{len(models)}"


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def assert_same_subgraph(batch: Data, other: Data) -> None:
    """Compare a batch with PyG's induced subgraph of the same nodes, whatever the order of nodes and edges."""
    def canonical(n_id: torch.Tensor, part: Data) -> tuple[torch.Tensor, torch.Tensor]:
        index = part.edge_index.as_tensor() if hasattr(part.edge_index, "as_tensor") else part.edge_index
        key = n_id[index[1]] * (int(n_id.max()) + 1) + n_id[index[0]]
        order = key.argsort()
        return key[order], part.edge_attr[order]

    for a, b in zip(canonical(batch.n_id, batch), canonical(other.n_id, other)):
        if not torch.equal(a, b):
            raise SystemExit("the batches differ from PyG's subgraphs: nothing is timed")


def bench_partition(num_nodes: int, num_edges: int, num_parts: int, repeat: int) -> None:
    say(f"generating {num_edges:,} directed edges")
    generated = synthetic_proteins(num_nodes=num_nodes, num_edges=num_edges, num_tasks=8)
    data = prepare(generated, SyntheticProteinsConfig())
    plain = Data(edge_index=data.edge_index.as_tensor().long(), edge_attr=data.edge_attr, x=data.x, y=data.y,
                 n_id=torch.arange(num_nodes), num_nodes=num_nodes)
    loader = ClusterLoader(data)
    pyg = RandomNodeLoader(plain, num_parts, shuffle=True)

    partition = random_partition(num_nodes, num_parts, stream("bench", 0))
    for batch in loader.batches(partition):
        assert_same_subgraph(batch, plain.subgraph(batch.n_id))
    say("outputs compared: every batch equals PyG's subgraph of its nodes")

    ours, theirs = [], []
    for round_ in range(repeat):
        theirs.append(seconds_of(lambda: [None for _ in pyg]))
        ours.append(seconds_of(lambda: [None for _ in loader.batches(
            random_partition(num_nodes, num_parts, stream("bench", 1, round_)))]))
        say(f"round {round_ + 1}: RandomNodeLoader {theirs[-1]:.2f} s, ours {ours[-1]:.2f} s, ratio {theirs[-1] / ours[-1]:.1f}")
    ratios = sorted(a / b for a, b in zip(theirs, ours))
    write_row(None, {
        "bench": "partition", "num_nodes": num_nodes, "num_edges": data.edge_index.size(1), "num_parts": num_parts,
        "pyg_median_s": round(statistics.median(theirs), 3), "ours_median_s": round(statistics.median(ours), 3),
        "ratio_median": round(statistics.median(ratios), 2), "ratio_min": round(ratios[0], 2),
        "ratio_max": round(ratios[-1], 2)})


def bench_scale(num_nodes: int, num_edges: int, num_parts: int) -> None:
    writer = None

    def step(name: str, function: Callable[[], object]):
        nonlocal writer
        start = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - start
        writer = write_row(writer, {"bench": "scale", "step": name, "num_nodes": num_nodes, "num_edges": num_edges,
                                    "seconds": round(seconds, 2), "peak_gib": round(peak_gib(), 2)})
        return result

    with tempfile.TemporaryDirectory() as cache:
        config = SyntheticProteinsConfig(num_nodes=num_nodes, num_edges=num_edges, num_tasks=112)
        step("prepare", lambda: load(config, cache))
        data = step("read the prepared graph", lambda: load(config, cache))
        say(str(step("structure", lambda: graph.structure(data.edge_index))))
        say(str(step("components", lambda: graph.connected_components(data))))
        partition = step("partition", lambda: random_partition(num_nodes, num_parts, stream("bench", 0)))
        say(str(step("describe the partition", lambda: describe(data.edge_index, partition, 0.0))))
        loader = step("loader", lambda: ClusterLoader(data))
        step("one epoch of batches", lambda: [None for _ in loader.batches(partition)])
        step("another epoch of batches", lambda: [None for _ in loader.batches(partition)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True)
    for name, edges in (("partition", 30_000_000), ("scale", 79_122_504)):
        bench = benches.add_parser(name)
        bench.add_argument("--num-nodes", type=int, default=132_534)
        bench.add_argument("--num-edges", type=int, default=edges, help="directed")
        bench.add_argument("--num-parts", type=int, default=10)
        if name == "partition":
            bench.add_argument("--repeat", type=int, default=5)
    options = vars(parser.parse_args())
    {"partition": bench_partition, "scale": bench_scale}[options.pop("bench")](**options)


if __name__ == "__main__":
    main()
