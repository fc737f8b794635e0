"""scikit-learn's handwritten digits as a nearest-neighbour graph: real data with no network."""

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pipeline.data.config import DigitsConfig
from pipeline.names import MASKS


def read(config: DigitsConfig) -> Data:
    """Build the graph; see :func:`nearest_neighbor_digits`."""
    return nearest_neighbor_digits(config.num_neighbors, config.train_fraction, config.valid_fraction,
                                   config.graph_seed)


def nearest_neighbor_digits(num_neighbors: int, train_fraction: float, valid_fraction: float, seed: int) -> Data:
    """Link each of scikit-learn's 1,797 digits of 8 x 8 pixels with its nearest ones, in both directions.

    Raises:
        ValueError: a fraction or a number of neighbours out of range.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    x, y = load_digits(return_X_y=True)
    if not 1 <= num_neighbors < len(x):
        raise ValueError(f"data.num_neighbors must be between 1 and {len(x) - 1}, not {num_neighbors}")
    if not (train_fraction > 0 and valid_fraction > 0 and train_fraction + valid_fraction < 1):
        raise ValueError("data.train_fraction and data.valid_fraction must be positive and leave something for the "
                         f"test, not {train_fraction} and {valid_fraction}")
    nearest = NearestNeighbors(n_neighbors=num_neighbors).fit(x).kneighbors(return_distance=False)
    dst = np.repeat(np.arange(len(x)), num_neighbors)
    edge_index = to_undirected(torch.from_numpy(np.stack([nearest.reshape(-1), dst])))
    order = np.random.default_rng(seed).permutation(len(x))
    train, valid = int(train_fraction * len(x)), int((train_fraction + valid_fraction) * len(x))
    masks = torch.zeros(3, len(x), dtype=torch.bool)
    for mask, nodes in zip(masks, np.split(order, [train, valid]), strict=True):
        mask[torch.from_numpy(nodes)] = True
    return Data(x=torch.from_numpy(x / 16).float(), edge_index=edge_index, y=torch.from_numpy(y).unsqueeze(1),
                num_nodes=len(x), metric="acc", **dict(zip(MASKS, masks, strict=True)))
