"""A generated graph of ogbn-proteins' size through prepare, components, partition and one epoch of batches."""

import tempfile
import time
from collections.abc import Callable

from pipeline import graph
from pipeline.config import SyntheticProteinsConfig
from pipeline.data import load
from pipeline.loader import ClusterLoader
from pipeline.partition import describe, random_partition, stream
from scripts.bench.measure import peak_gib, say, write_row


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
