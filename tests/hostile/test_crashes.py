"""Inputs at which commands crashed, hung, or ended without a result."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.names import MASKS
from tests.helpers.hostile import Case, check

pytestmark = pytest.mark.slow

EMBED = (
    "pipeline.train trainer=node_embedding data=edges data.path=edges.txt trainer.dim=8 trainer.num_parts=2 "
    "train.epochs=2"
)
LAYOUT = "pipeline.train trainer=layout data=edges data.path=edges.txt train.epochs=2"


def edges(weight: str, num_nodes: int = 40):
    """Write a ring with chords, all edges with one weight."""

    def write(folder: Path) -> None:
        (folder / "edges.txt").write_text(
            "".join(
                f"n{i} n{(i + d) % num_nodes} {weight}\n"
                for i in range(num_nodes)
                for d in (1, 2, 5)
            )
        )

    return write


def tiny_graph(num_nodes: int, edge_index: list[list[int]]):
    """Write a graph of a few nodes."""

    def write(folder: Path) -> None:
        node = torch.arange(num_nodes)
        masks = {mask: node % 3 == number for number, mask in enumerate(MASKS)}
        torch.save(
            Data(
                x=torch.randn(num_nodes, 4),
                edge_index=torch.tensor(edge_index, dtype=torch.int64),
                y=node[:, None] % 2,
                metric="acc",
                num_nodes=num_nodes,
                **masks,
            ),
            folder / "graph.pt",
        )

    return write


ZERO = (
    "edges.txt: the largest weight of an edge is 0, and float32 adds up 240 weights if the largest is between "
    "1e-30 and 1e+36: scale all weights, or leave them out"
)
ROUNDED = "edges.txt: edge 1 has the weight '1e-300', which float32 rounds to 0: scale all weights"
TINY = (
    "edges.txt: the largest weight of an edge is 1.00053e-42, and float32 adds up 240 weights if the largest is "
    "between 1e-30 and 1e+36: scale all weights, or leave them out"
)
HUGE = (
    "edges.txt: the largest weight of an edge is 3e+38, and float32 adds up 240 weights if the largest is between "
    "1e-30 and 1e+36: scale all weights, or leave them out"
)
CASES = [
    *(
        Case(f"{name} weights, {model}", f"{EMBED} trainer.model={model}", message, edges(weight))
        for name, weight, message in (
            ("zero", "0", ZERO),
            ("tiny", "1e-300", ROUNDED),
            ("denormal", "1e-42", TINY),
            ("huge", "3e38", HUGE),
        )
        for model in ("deepwalk", "line")
    ),
    *(
        Case(f"{name} weights, layout", LAYOUT, message, edges(weight))
        for name, weight, message in (
            ("zero", "0", ZERO),
            ("huge", "3e38", HUGE),
        )
    ),
    *(
        Case(
            name,
            "pipeline.train data=file data.path=graph.pt partition.num_parts=1 train.epochs=2 cache_dir=cache",
            None,
            tiny_graph(num_nodes, edge_index),
        )
        for name, num_nodes, edge_index in (
            ("a graph of one node", 1, [[], []]),
            ("a graph of two nodes without edges", 2, [[], []]),
            ("a graph without edges", 5, [[], []]),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)
