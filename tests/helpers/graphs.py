"""Small graphs that are ready for the pipeline."""

from pathlib import Path

import numpy as np
import torch

from parallel_epochs.pipeline.data.graph import Graph, write_graph
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.store import StoreWriter


def make_graph(edges, num_nodes: int, **attributes) -> Graph:
    """A graph ready for the pipeline from a list of (source, destination)."""
    raw = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
    edge_index, perm = sort_edges(raw, num_nodes)
    if "edge_attr" in attributes:
        attributes["edge_attr"] = attributes["edge_attr"][perm.long()]
    masks = dict(
        train_mask=torch.ones(num_nodes, dtype=torch.bool),
        valid_mask=torch.zeros(num_nodes, dtype=torch.bool),
        test_mask=torch.zeros(num_nodes, dtype=torch.bool),
    )
    if "y" in attributes:
        attributes["out_channels"] = attributes["y"].size(1)
    return Graph(
        **{
            **masks,
            **dict(edge_index=edge_index, num_nodes=num_nodes, num_categories=0, metric="rocauc"),
            **attributes,
        }
    )


def random_graph(
    num_nodes: int, num_pairs: int, seed: int, *, symmetric: bool = True, edge_dim: int = 3
) -> Graph:
    """A random multigraph with self-loops and, by chance, duplicates."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(num_nodes, size=(num_pairs, 2))
    attr = torch.from_numpy(rng.random((num_pairs, edge_dim), dtype=np.float32))
    if symmetric:
        pairs, attr = np.concatenate([pairs, pairs[:, ::-1]]), torch.cat([attr, attr])
    x = torch.from_numpy(rng.standard_normal((num_nodes, 5)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 2, (num_nodes, 2)).astype(np.float32))
    return make_graph(pairs.tolist(), num_nodes, edge_attr=attr, x=x, y=y)


def task_graph(train_nodes: list[int], num_nodes: int = 40) -> Graph:
    """A random graph, of which these nodes are for training and all others for validation and test."""
    data = random_graph(num_nodes, 100, 0)
    data.train_mask = torch.zeros(num_nodes, dtype=torch.bool)
    data.train_mask[train_nodes] = True
    data.valid_mask, data.test_mask = ~data.train_mask, ~data.train_mask
    return data


def class_graph(train_nodes: list[int], num_nodes: int = 40, num_classes: int = 3) -> Graph:
    """A random graph as :func:`task_graph` makes it, of which every node has a class; the higher, the rarer."""
    data = task_graph(train_nodes, num_nodes)
    share = np.random.default_rng(0).random(num_nodes)
    data.y = torch.from_numpy((num_classes * share**2).astype(np.int64)).unsqueeze(1)
    data.metric, data.out_channels = "acc", num_classes
    return data


def link_graph(num_nodes: int = 40, num_pairs: int = 90, seed: int = 0, **attributes) -> Graph:
    """A random graph of different pairs; most are for training, and edges both ways round, the others to be found."""
    rng = np.random.default_rng(seed)
    every = np.array([(u, v) for u in range(num_nodes) for v in range(u)])
    order = torch.from_numpy(every[rng.permutation(len(every))])
    train, valid, test = (
        order[: num_pairs - 20],
        order[num_pairs - 20 : num_pairs - 10],
        order[num_pairs - 10 : num_pairs],
    )
    x = torch.from_numpy(rng.standard_normal((num_nodes, 8)).astype(np.float32))
    data = make_graph(
        torch.cat([train, train.flip(1)]).tolist(),
        num_nodes,
        x=x,
        metric="hits@5",
        train_pairs=train,
        valid_pairs=valid,
        test_pairs=test,
        valid_negatives=order[-120:-60],
        test_negatives=order[-60:],
    )
    for key, value in attributes.items():
        data[key] = value
    return data


def write_species(folder: Path, num_pairs: int, **values: object) -> Graph:
    """Write a directed graph of 40 nodes, with two species and nodes without edges, into a store; return it."""
    data = random_graph(40, num_pairs, 0, symmetric=False)
    data.x[:, 3:] = torch.eye(2)[torch.arange(40) % 2]
    data.num_categories = 2
    with StoreWriter(folder) as writer:
        write_graph(writer, data, metric="rocauc", **values)
    return data
