"""The program of KaMinPar's process. It does not import torch, to leave that memory to the graph."""

import importlib
import os
import sys

import numpy as np

from parallel_epochs.pipeline.run.stop import end_with

# KaMinPar's preset for little memory, which compresses the graph. Its cuts are those of the default preset.
PRESET = "terapart"


def main() -> None:
    """Cut a graph. The arguments are the file descriptors of graph and result, num_parts, the seed, and the parent."""
    graph_file, parts_file, num_parts, seed, parent = map(int, sys.argv[1:])
    end_with(parent)
    kaminpar = importlib.import_module("kaminpar")
    partitioner = kaminpar.KaMinPar(1, kaminpar.context_by_name(PRESET))
    kaminpar.reseed(seed)
    graph = kaminpar.load_graph(f"/dev/fd/{graph_file}", kaminpar.GraphFileFormat.PARHIP, True)
    part = np.array(partitioner.compute_partition(graph, num_parts), np.int32)
    with os.fdopen(parts_file, "wb") as file:
        file.write(part.data)
