"""Connected components, and the parts of a graph that get a model each."""

import logging
from dataclasses import asdict, dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse import csgraph
from torch import Tensor
from torch_geometric.data import Data

from pipeline.graph.subgraph import induced_subgraph

log = logging.getLogger(__name__)


@dataclass
class Component:
    num_nodes: int
    num_edges: int
    num_train: int
    num_labelled: int


@dataclass
class Components:
    """Connected components, the largest first.

    Attributes:
        index: component of each node, [num_nodes], int64.
        components: one entry for each.
    """

    index: Tensor
    components: list[Component]

    def __str__(self) -> str:
        sizes = [c.num_nodes for c in self.components]
        single = sum(size == 1 for size in sizes)
        lines = [f"components: {len(sizes):,}, of which {single:,} are single nodes"]
        for rank, c in enumerate(self.components[:5], start=1):
            if c.num_nodes == 1 and rank > 1:
                break
            lines.append(f"  {rank}: {c.num_nodes:,} nodes, {c.num_edges:,} edges, {c.num_labelled:,} labelled nodes, "
                         f"{c.num_train:,} of them for training")
        rest = sizes[len(lines) - 1:]
        if rest:
            lines.append(f"  and {len(rest):,} more of {min(rest):,} to {max(rest):,} nodes")
        return "\n".join(lines)

    def record(self) -> dict:
        """For components.json: the hundred largest and the number of all."""
        return {"num_components": len(self.components), "largest": [asdict(c) for c in self.components[:100]],
                "num_single_nodes": sum(c.num_nodes == 1 for c in self.components)}


def find_components(data: Data) -> Components:
    """Find the (weakly) connected components of a graph with ``train_mask``, ``valid_mask`` and ``test_mask``."""
    (indptr, src), _ = data.edge_index.get_csc()
    num_nodes = indptr.numel() - 1
    # csgraph wants float64 values; ones as a matrix of their own leave the graph's arrays alone.
    matrix = sp.csr_array((np.ones(src.numel(), np.float64), src.numpy(), indptr.numpy()), shape=(num_nodes, num_nodes))
    count, label = csgraph.connected_components(matrix, directed=False)
    sizes = np.bincount(label, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    index = rank[label]
    labelled = (data.train_mask | data.valid_mask | data.test_mask).numpy()

    def count_by_component(weights: np.ndarray) -> list[int]:
        return np.bincount(index, weights=weights, minlength=count).astype(np.int64).tolist()

    columns = (sizes[order].tolist(), count_by_component(np.diff(indptr.numpy())),
               count_by_component(data.train_mask.numpy()), count_by_component(labelled))
    return Components(torch.from_numpy(index), [Component(*row) for row in zip(*columns)])


def select_component(data: Data, components: Components, which: str) -> Data:
    """The part of a graph to train on: "all", "largest", or the K-th largest component.

    Raises:
        ValueError: there are fewer than K components, or the K-th holds no training node.
    """
    if which == "all" or len(components.components) == 1 and which in ("largest", "1"):
        return data
    number = 1 if which == "largest" else int(which)
    if number > len(components.components):
        raise ValueError(f"data.components={which}: the graph has {len(components.components):,} components")
    component = components.components[number - 1]
    if component.num_train == 0:
        raise ValueError(f"data.components={which}: its {component.num_nodes:,} nodes hold none of the train split")
    left_out = sum(c.num_labelled for c in components.components) - component.num_labelled
    log.info("component %d: %s nodes; the others hold %s labelled nodes, which are left out", number,
             f"{component.num_nodes:,}", f"{left_out:,}")
    return induced_subgraph(data, (components.index == number - 1).nonzero().squeeze(1))


def split_components(data: Data, components: Components, which: str, min_size: int) -> list[tuple[str | None, Data]]:
    """The graphs to train a model on each, with the number of its component where there are several.

    Args:
        which: "separate" for the largest component and every further one with `min_size` nodes and a training node;
            else as for :func:`select_component`.
    """
    if which != "separate":
        return [(None, select_component(data, components, which))]
    chosen = [str(number) for number, component in enumerate(components.components, start=1)
              if number == 1 or component.num_nodes >= min_size and component.num_train]
    return [(number, select_component(data, components, number)) for number in chosen]
