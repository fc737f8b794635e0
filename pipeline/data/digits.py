"""scikit-learn's handwritten digits as a nearest-neighbour graph: real data with no network."""

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pipeline.data.config import DigitsConfig
from pipeline.data.splits import divide
from pipeline.names import MASKS


def read(config: DigitsConfig) -> Data:
    """Build the graph; see :func:`nearest_neighbor_digits`."""
    config.check()
    return nearest_neighbor_digits(config.num_neighbors, config.train_fraction, config.valid_fraction,
                                   config.graph_seed)


def nearest_neighbor_digits(num_neighbors: int, train_fraction: float, valid_fraction: float, seed: int) -> Data:
    """Link each of scikit-learn's 1,797 digits of 8 x 8 pixels with its nearest ones, in both directions."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    x, y = load_digits(return_X_y=True)
    nearest = NearestNeighbors(n_neighbors=num_neighbors).fit(x).kneighbors(return_distance=False)
    dst = np.repeat(np.arange(len(x)), num_neighbors)
    edge_index = to_undirected(torch.from_numpy(np.stack([nearest.reshape(-1), dst])))
    order = np.random.default_rng(seed).permutation(len(x))
    masks = divide(order, len(x), train_fraction, valid_fraction)
    return Data(x=torch.from_numpy(x / 16).float(), edge_index=edge_index, y=torch.from_numpy(y).unsqueeze(1),
                num_nodes=len(x), metric="acc", **dict(zip(MASKS, masks, strict=True)))
