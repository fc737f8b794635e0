"""A generated typed graph of ogbn-mag's size: an epoch of clusters and an exact evaluation."""

import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.join_types import Relation, with_reverse
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.scripts.bench.measure import say, write_row
from parallel_epochs.scripts.bench.processes import peak_of

# Nodes and edges of ogbn-mag, from its table of numbers.
NODES = {"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389}
EDGES: dict[Relation, int] = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "has_topic", "field_of_study"): 7_505_078,
}
NUM_CLASSES, CHANNELS = 349, 128
# Rows that are drawn at a time.
DRAWN = 1 << 16


def bench_mag(
    share: float = 1.0,
    layers: int = 2,
    channels: int = 64,
    num_parts: int = 20,
    model: str = "rgcn",
) -> None:
    """Measure an epoch of clusters and an exact evaluation on a generated graph of ogbn-mag's size.

    Args:
        share: share of ogbn-mag's nodes and edges.
        model: rgcn, hgt or deepergcn.
    """
    with tempfile.TemporaryDirectory() as root:
        path, run = Path(root, "graph.store"), Path(root, "run")
        types, num_edges = write_mag(path, share)
        say(f"{types}, {num_edges:,} edges")
        largest, _ = peak_of(
            [
                sys.executable,
                "-m",
                "pipeline.train",
                "data=store",
                f"data.path={path}",
                "data.on_disk=false",
                "task.base=none",
                f"model={model}",
                f"model.num_layers={layers}",
                f"model.hidden_channels={channels}",
                "partition=random",
                f"partition.num_parts={num_parts}",
                "evaluation=exact",
                "train.epochs=2",
                "train.patience=0",
                "train.eval_every=1",
                f"cache_dir={root}/cache",
                f"hydra.run.dir={run}",
            ],
            every=0.2,
        )
        rounds = [
            record for record in read_records(run / "metrics.jsonl") if record["kind"] == "round"
        ]
        for record in rounds:
            write_row(
                {
                    "bench": "mag",
                    "model": model,
                    "num_nodes": sum(types.counts),
                    "num_edges": num_edges,
                    "epoch": record["epochs"],
                    "train_s": round(record["seconds"], 1),
                    "evaluation_s": round(record["evaluation_seconds"], 1),
                    "peak_gib": round(largest / 2**20, 2),
                }
            )


def write_mag(path: Path, share: float) -> tuple[GraphTypes, int]:
    """Write a store with random edges and features that depend on labels; returns its types and number of edges."""
    rng = stream("mag", 0)
    counts = {name: max(math.ceil(count * share), 20) for name, count in NODES.items()}
    relations = with_reverse(list(EDGES))
    types = GraphTypes(
        list(counts),
        list(counts.values()),
        [CHANNELS if name == "paper" else 0 for name in counts],
        relations,
        "paper",
    )
    key, kind = _draw_edges(types, share, rng)
    num_nodes, width = sum(types.counts), CHANNELS + len(counts)
    papers, labels = types.nodes_of("paper"), rng.integers(NUM_CLASSES, size=counts["paper"])
    centres = rng.standard_normal((NUM_CLASSES, CHANNELS), dtype=np.float32)
    with store.StoreWriter(path) as writer:
        writer.put(
            "edges", torch.from_numpy(np.stack([key & 0x7FFFFFFF, key >> 32]).astype(np.int32))
        )
        writer.put("edge_attr", torch.from_numpy(kind).unsqueeze(1))
        writer.put(
            "indptr",
            torch.from_numpy(np.searchsorted(key >> 32, np.arange(num_nodes + 1)).astype(np.int32)),
        )
        with writer.write(x=((num_nodes, width), torch.float32)) as opened:
            for place, name in enumerate(counts):
                nodes = types.nodes_of(name)
                for first in range(0, len(nodes), DRAWN):
                    rows = np.zeros((min(DRAWN, len(nodes) - first), width), np.float32)
                    rows[:, CHANNELS + place] = 1
                    if name == "paper":
                        own = labels[first : first + len(rows)]
                        rows[:, :CHANNELS] = centres[own] / 2 + rng.standard_normal(
                            (len(own), CHANNELS), np.float32
                        )
                    opened["x"].write((nodes.start + first) * width, rows)
        y, split = (
            torch.zeros(num_nodes, 1, dtype=torch.int64),
            rng.choice(3, size=len(papers), p=[0.85, 0.09, 0.06]),
        )
        y[papers.start : papers.stop, 0] = torch.from_numpy(labels)
        writer.put("y", y)
        for number, mask in enumerate(MASKS):
            whole = torch.zeros(num_nodes, dtype=torch.bool)
            whole[papers.start : papers.stop] = torch.from_numpy(split == number)
            writer.put(mask, whole)
        writer.finish(
            {
                "metric": "acc",
                "out_channels": NUM_CLASSES,
                "num_categories": len(counts),
                "x_source": "data",
                SCHEMA: types.to_value(),
            }
        )
    return types, len(key)


def _draw_edges(
    types: GraphTypes, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw edges, sorted: destination and source in one number [num_edges], and relations, float32 [num_edges]."""
    keys, kinds = [], []
    for number, ((source, _, target), count) in enumerate(EDGES.items()):
        size = math.ceil(count * share)
        ends = [
            rng.integers(nodes.start, nodes.stop, size=size)
            for nodes in map(types.nodes_of, (source, target))
        ]
        for place, (start, end) in enumerate((ends, ends[::-1])):
            keys.append(end << 32 | start)
            kinds.append(np.full(size, number + place * len(EDGES), np.float32))
    key, kind = np.concatenate(keys), np.concatenate(kinds)
    order = key.argsort(kind="stable")
    return key[order], kind[order]
