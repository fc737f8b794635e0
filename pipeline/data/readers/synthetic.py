"""Generates graphs like ogbn-proteins: no node features, 8 evidence channels on each edge, binary
tasks.
"""

import numpy as np
import torch

from parallel_epochs.models.edge_index import choose_dtype
from parallel_epochs.pipeline.data.config import check_synthetic_sizes
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.graph.edges import adjacency, sort_edges

NUM_CHANNELS = 8
BLOCK = 1 << 22  # pairs made at a time, so that temporary arrays stay small beside the graph


def synthetic_proteins(
    *,
    num_nodes: int,
    num_edges: int,
    num_species: int = 8,
    num_groups: int = 40,
    num_tasks: int = 16,
    graph_seed: int = 0,
) -> Graph:
    """Generate a degree-corrected planted partition whose labels depend on the neighbourhood.

    Species hold the nodes in contiguous ranges, groups are communities within a species. Nodes have log-normal
    weights; a pair is drawn by weight, two thirds of them within a group, most others within a species. Each node has
    a hidden activity in each of the 8 channels, and the evidence on an edge follows the activities of its two ends.
    A task asks whether the mean activity of a node's *neighbours*, in a random direction, is high. A node's own edges
    say little of that; its neighbours' edges do. Species are divided into train, valid and test as in ogbn-proteins.

    Args:
        num_edges: directed edges, twice the number of pairs; no duplicates, no self-loops.

    Returns:
        ``edge_index`` sorted by destination, ``edge_attr`` [num_edges, 8] in [0, 1], ``y`` [num_nodes, num_tasks] of
        0 and 1, ``species`` [num_nodes], masks; all of it a function of the arguments.

    Raises:
        ValueError: sizes that no such graph has.
    """
    check_synthetic_sizes(num_nodes, num_edges, num_species, num_groups, num_tasks)
    rng = np.random.default_rng(graph_seed)
    # Sizes between one and three shares, so that the largest species is for training as in ogbn-proteins.
    share = np.linspace(3, 1, num_species)
    species_ptr = np.round(
        np.concatenate([[0], np.cumsum(share) / share.sum()]) * num_nodes
    ).astype(np.int64)
    species = np.repeat(np.arange(num_species), np.diff(species_ptr))
    group = np.arange(num_nodes) * num_groups // num_nodes
    weight = np.maximum(1, np.round(8 * rng.lognormal(0.0, 0.8, num_nodes))).astype(np.int64)

    pairs = _draw_pairs(rng, weight, [group, species, np.zeros_like(group)], num_edges // 2)
    # Much of a node's own, little of its group's: an average over neighbours shows the group, a single node hardly.
    activity = 0.35 + 0.25 * rng.standard_normal((num_nodes, NUM_CHANNELS), dtype=np.float32)
    activity += 0.1 * rng.standard_normal((num_groups, NUM_CHANNELS), dtype=np.float32)[group]
    evidence = np.empty((len(pairs), NUM_CHANNELS), np.float32)
    for first in range(0, len(pairs), BLOCK):
        u, v = np.divmod(pairs[first : first + BLOCK], num_nodes)
        noise = rng.random((len(u), NUM_CHANNELS), dtype=np.float32)
        evidence[first : first + BLOCK] = np.clip(activity[u] + activity[v] - noise, 0, 1)

    edge_index = torch.empty(2, 2 * len(pairs), dtype=choose_dtype(num_nodes, 2 * len(pairs)))
    u, v = np.divmod(pairs, num_nodes)
    edge_index[0, 0::2] = edge_index[1, 1::2] = torch.from_numpy(u)
    edge_index[0, 1::2] = edge_index[1, 0::2] = torch.from_numpy(v)
    del u, v, pairs
    edge_index, perm = sort_edges(edge_index, num_nodes)
    # Both directions of a pair stand next to each other before the sort.
    edge_attr = torch.from_numpy(evidence).index_select(0, perm >> 1)

    matrix = adjacency(edge_index)
    matrix.data = np.ones(matrix.nnz, np.float32)
    degree = np.maximum(np.diff(matrix.indptr), 1)[:, None]
    around = (matrix @ activity) / degree
    around = (around - around.mean(0)) / np.maximum(around.std(0), 1e-6)
    direction = rng.standard_normal((NUM_CHANNELS, num_tasks)).astype(np.float32)
    score = around @ (direction / np.linalg.norm(direction, axis=0))
    score += 0.2 * rng.standard_normal(score.shape).astype(np.float32)
    prevalence = rng.uniform(0.1, 0.5, num_tasks)
    threshold = np.array(
        [np.quantile(column, 1 - q) for column, q in zip(score.T, prevalence)], np.float32
    )
    y = torch.from_numpy((score > threshold).astype(np.float32))

    split = np.repeat(
        [0, 1, 2],
        [max(1, num_species - 4), (min(4, num_species - 1) + 1) // 2, min(4, num_species - 1) // 2],
    )
    split = torch.from_numpy(
        split[species] if num_species >= 3 else rng.choice(3, num_nodes, p=[0.6, 0.2, 0.2])
    )
    return Graph(
        edge_index=edge_index,
        edge_attr=edge_attr,
        y=y,
        species=torch.from_numpy(species),
        num_nodes=num_nodes,
        train_mask=split == 0,
        valid_mask=split == 1,
        test_mask=split == 2,
        metric="rocauc",
    )


read = synthetic_proteins


def _draw_pairs(
    rng: np.random.Generator, weight: np.ndarray, blocks: list[np.ndarray], count: int
) -> np.ndarray:
    """Draw distinct pairs u < v by weight, as sorted keys ``u * num_nodes + v``.

    Args:
        weight: [num_nodes], at least 1.
        blocks: the group, the species and the world of each node; v is drawn from the block of u in one of them.
    """
    num_nodes = len(weight)
    # Node i stands weight[i] times among the stubs, so that a uniform draw among them is a draw by weight.
    stubs = np.repeat(np.arange(num_nodes, dtype=np.int32), weight)
    ends = np.concatenate([[0], np.cumsum(weight)])
    limits = []
    for block in blocks:
        last = np.flatnonzero(np.diff(block, append=block[-1] + 1))
        last = last[np.searchsorted(last, np.arange(num_nodes))]
        first = np.flatnonzero(np.diff(block, prepend=block[0] - 1))
        first = first[np.searchsorted(first, np.arange(num_nodes), side="right") - 1]
        limits.append((ends[first], ends[last + 1]))

    keys = np.empty(0, np.int64)
    while len(keys) < count:
        missing = count - len(keys)
        drawn = []
        for first in range(0, missing + missing // 4 + 64, BLOCK):
            size = min(BLOCK, missing + missing // 4 + 64 - first)
            u = stubs[rng.integers(len(stubs), size=size)]
            kind = rng.random(size, dtype=np.float32)
            start, stop = (
                np.where(
                    kind < 0.65,
                    limits[0][side][u],
                    np.where(kind < 0.95, limits[1][side][u], limits[2][side][u]),
                )
                for side in (0, 1)
            )
            v = stubs[start + (rng.random(size) * (stop - start)).astype(np.int64)]
            u, v = np.minimum(u, v).astype(np.int64), np.maximum(u, v)
            drawn.append((u * num_nodes + v)[u != v])
        new = np.sort(np.concatenate(drawn))
        new = new[np.diff(new, prepend=-1) != 0]
        if len(keys):
            nearest = np.minimum(np.searchsorted(keys, new), len(keys) - 1)
            new = new[keys[nearest] != new]
        if len(new) < missing // 2:
            # The communities are full: draw everywhere from now on.
            limits[0] = limits[1] = limits[2]
        # A stable sort merges two sorted runs in linear time.
        keys = np.sort(np.concatenate([keys, new]), kind="stable")
    if len(keys) > count:
        keys = np.delete(
            keys, rng.choice(len(keys), len(keys) - count, replace=False, shuffle=False)
        )
    return keys
