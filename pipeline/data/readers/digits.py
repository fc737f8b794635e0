"""scikit-learn's handwritten digits as a nearest-neighbour graph: real data with no network."""

import numpy as np
import torch
from torch_geometric.utils import to_undirected

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.splits import divide, shuffle_all
from parallel_epochs.pipeline.names import MASKS

# Nearest neighbours that each digit is linked with.
NUM_NEIGHBORS = 8


def read(train_fraction: float, valid_fraction: float, graph_seed: int) -> Graph:
    """Link each of scikit-learn's 1,797 digits of 8 x 8 pixels with its nearest ones, in both directions."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    x, y = load_digits(return_X_y=True)
    nearest = NearestNeighbors(n_neighbors=NUM_NEIGHBORS).fit(x).kneighbors(return_distance=False)
    dst = np.repeat(np.arange(len(x)), NUM_NEIGHBORS)
    edge_index = to_undirected(torch.from_numpy(np.stack([nearest.reshape(-1), dst])))
    masks = divide(shuffle_all(len(x), graph_seed), len(x), train_fraction, valid_fraction)
    return Graph(
        x=torch.from_numpy(x / 16).float(),
        edge_index=edge_index,
        y=torch.from_numpy(y).unsqueeze(1),
        num_nodes=len(x),
        metric="acc",
        **dict(zip(MASKS, masks, strict=True)),
    )
