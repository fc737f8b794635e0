"""The nearest neighbours of vectors: found once, weighed and kept in the cache."""

import hashlib
import json
import logging
import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.cache import path_of
from parallel_epochs.pipeline.graph import neighbors, ranges
from parallel_epochs.pipeline.layout.config import LayoutConfig, LayoutTrainerConfig
from parallel_epochs.pipeline.run import checkpoint, pulse
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Raise it when the same keys and vectors shall give other neighbours than before.
NEIGHBORS_FORMAT = 1


def keep_neighbors(config: LayoutConfig, data: Data) -> dict:
    """Find and weigh the neighbours of vectors, or read what was found before from the cache.

    Returns:
        ``neighbors`` [num_points, num_neighbors], int32; ``weight``, float32; ``components``, the first three
        principal ones [num_points, at most 3], float32.
    """
    options, start = config.trainer, time.perf_counter()
    how = neighbors.choose_search(data.num_nodes)

    def build() -> dict:
        pulse.beat("looking for neighbours", pulse.State.LONG)
        return _find_neighbors(data.x.numpy(), options, how)

    if "content_hash" not in data:
        return build()
    shaping = [NEIGHBORS_FORMAT, options.num_neighbors, options.perplexity, options.pca_dim, how]
    digest = hashlib.blake2b(json.dumps(shaping).encode(), digest_size=6).hexdigest()
    path = path_of(config.data, config.cache_dir, data.content_hash, f"-neighbors-{digest}")

    def check(path: Path, kept: dict) -> None:
        ranges.check_numbers(path, "neighbors", kept["neighbors"], data.num_nodes, "node")

    kept = checkpoint.keep(path, build, again="looking for neighbours again", check=check)
    log.info(
        "neighbours: %d of each of %s vectors, searched in %d numbers, %s, perplexity %g: %.1f s",
        options.num_neighbors,
        f"{data.num_nodes:,}",
        kept["num_searched"],
        how,
        options.perplexity,
        time.perf_counter() - start,
    )
    return kept


def _find_neighbors(x: np.ndarray, options: LayoutTrainerConfig, how: str) -> dict:
    # Not of the seed of the run: the neighbours are those of the data.
    rng, reduces = stream("principal components"), 0 < options.pca_dim < x.shape[1]
    components = neighbors.reduce_vectors(x, options.pca_dim if reduces else 3, rng)
    searched = components if reduces else x
    near, distance = neighbors.find_neighbors(searched, options.num_neighbors, how=how)
    weight = neighbors.calibrate(distance, options.perplexity)
    return {
        "neighbors": torch.from_numpy(near.astype(np.int32)),
        "num_searched": searched.shape[1],
        "weight": torch.from_numpy(weight.astype(np.float32)),
        "components": torch.from_numpy(components[:, :3].copy()),
    }
