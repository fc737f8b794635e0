"""Time and memory of preparing, analysing, partitioning and batching a generated graph of ogbn-proteins' size."""

import tempfile
import time
from collections.abc import Callable

from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.data.config import SyntheticProteinsConfig
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.components import find_components
from parallel_epochs.pipeline.graph.partition import measure_partition, random_partition
from parallel_epochs.pipeline.graph.structure import inspect
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.scripts.bench.measure import peak_gib, say, write_row


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
        config = SyntheticProteinsConfig(node_features="sum", num_nodes=num_nodes, num_edges=num_edges, num_tasks=112)
        step("prepare", lambda: load(config, cache))
        data = step("read the prepared graph", lambda: load(config, cache))
        say(str(step("structure", lambda: inspect(data.edge_index))))
        say(str(step("components", lambda: find_components(data))))
        partition = step("partition", lambda: random_partition(num_nodes, num_parts, stream("bench", 0)))
        say(str(step("describe the partition", lambda: measure_partition(data.edge_index, partition, 0.0))))
        loader = step("loader", lambda: ClusterLoader(data))
        step("one epoch of batches", lambda: [None for _ in loader.batches_of(partition)])
        step("another epoch of batches", lambda: [None for _ in loader.batches_of(partition)])
