"""Nearest neighbours of vectors, and weights for them of which each point's have the same perplexity.

As in LargeVis (https://arxiv.org/abs/1602.00370), whose weights are those of t-SNE. Every bit is the same for any
number of threads.
"""

import importlib.util
import logging

import numpy as np
import scipy.sparse as sp
import torch
from threadpoolctl import threadpool_limits

from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.threads import in_chunks

log = logging.getLogger(__name__)

# Points up to which all pairs are compared: beyond it takes minutes.
MANY_POINTS = 50_000
# Vectors up to so many numbers are searched by a tree.
TREE_DIM = 10
# Distances that are in memory at a time, for each thread.
MAX_DISTANCES = 2**24
# Rows worked on at a time, and neighbours found beyond those that are asked for: rounding may change the order.
CHUNK, SPARE = 1024, 4
# Links of a point in the graph of neighbours (HNSW) of the approximate search, and candidates when it is built.
LINKS, CANDIDATES = 24, 100
# Random directions beyond those asked for, and times that they are multiplied by the vectors.
OVERSAMPLE, POWER_STEPS = 14, 3


def choose_search(num_points: int) -> str:
    """Choose how neighbours are found: "exact" or "approximate".

    Raises:
        ValueError: there are many points, and the package that searches among these is not installed.
    """
    if num_points <= MANY_POINTS:
        return "exact"
    if importlib.util.find_spec("faiss") is None:
        raise ValueError(
            f"the nearest of {num_points:,} points are found by faiss, which is not installed: "
            f"{install_command('layout')}"
        )
    return "approximate"


def reduce_vectors(x: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Project vectors on their first principal components, by a randomised search for these.

    After Halko, Martinsson and Tropp (https://arxiv.org/abs/0909.4061).

    Args:
        x: [num_points, channels], float32.
        dim: components; no more than there are numbers in a vector.

    Returns:
        [num_points, at most dim], float32; the sign of each column is such that its largest number is positive.
    """
    num_points, dim = len(x), min(dim, *x.shape)
    totals = in_chunks(lambda rows: x[rows].sum(0, dtype=np.float64), num_points, CHUNK)
    shift = (np.stack(totals).sum(0) / num_points).astype(np.float32)

    def products(directions: np.ndarray) -> np.ndarray:
        return np.concatenate(
            in_chunks(lambda rows: (x[rows] - shift) @ directions, num_points, CHUNK)
        )

    def pull_back(columns: np.ndarray) -> np.ndarray:
        parts = in_chunks(lambda rows: (x[rows] - shift).T @ columns[rows], num_points, CHUNK)
        return np.stack(parts).sum(0, dtype=np.float64)

    directions = rng.standard_normal((x.shape[1], min(dim + OVERSAMPLE, *x.shape)))
    for _ in range(POWER_STEPS):
        directions = _orthogonal(pull_back(products(_orthogonal(directions).astype(np.float32))))
    projected = products(directions.astype(np.float32))
    with threadpool_limits(1, "blas"):
        parts = in_chunks(
            lambda rows: projected[rows].T.astype(np.float64) @ projected[rows], num_points, CHUNK
        )
        gram = np.stack(parts).sum(0)
        _, turned = np.linalg.eigh(gram)
    chosen = turned[:, ::-1][:, :dim].astype(np.float32)
    components = np.concatenate(in_chunks(lambda rows: projected[rows] @ chosen, num_points, CHUNK))
    largest = components[np.abs(components).argmax(0), np.arange(dim)]
    return components * np.where(largest < 0, -1, 1).astype(np.float32)


def _orthogonal(columns: np.ndarray) -> np.ndarray:
    with threadpool_limits(1, "blas"):
        return np.linalg.qr(columns)[0]


def find_neighbors(x: np.ndarray, k: int, *, how: str = "exact") -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest other points of each, by Euclidean distance.

    Args:
        x: [num_points, channels], float32.
        k: neighbours, fewer than points.
        how: "exact" or "approximate", see :func:`choose_search`.

    Returns:
        Their numbers, the nearest first [num_points, k], int64, and the squared distances, float64.
    """
    x = np.ascontiguousarray(x - x.mean(0, dtype=np.float64).astype(np.float32))
    count = min(k + 1 + SPARE, len(x))
    candidates = (_exact if how == "exact" else _approximate)(x, count)
    chunks = in_chunks(lambda rows: _nearest(x, candidates, k, rows), len(x), CHUNK)
    return np.concatenate([part[0] for part in chunks]), np.concatenate(
        [part[1] for part in chunks]
    )


def _exact(x: np.ndarray, count: int) -> np.ndarray:
    if x.shape[1] <= TREE_DIM:
        from scipy.spatial import cKDTree

        return cKDTree(x).query(x, count, workers=torch.get_num_threads())[1].reshape(len(x), count)
    squares, turned = np.einsum("ij,ij->i", x, x), np.ascontiguousarray(x.T)

    def nearest(rows: slice) -> np.ndarray:
        # Without the points' own squares: the same order.
        distance = (-2 * x[rows]) @ turned
        distance += squares
        return torch.from_numpy(distance).topk(count, largest=False, sorted=False).indices.numpy()

    size = max(1, min(CHUNK // 4, MAX_DISTANCES // len(x)))
    return np.concatenate(in_chunks(nearest, len(x), size))


def _approximate(x: np.ndarray, count: int) -> np.ndarray:
    import faiss

    num_threads = faiss.omp_get_max_threads()
    index = faiss.IndexHNSWFlat(x.shape[1], LINKS)
    index.hnsw.efConstruction, index.hnsw.efSearch = CANDIDATES, max(CANDIDATES, 2 * count)
    try:
        faiss.omp_set_num_threads(1)  # the order of the points that are added changes what is found
        index.add(x)
        faiss.omp_set_num_threads(torch.get_num_threads())
        near = index.search(x, count)[1]
    finally:
        faiss.omp_set_num_threads(num_threads)
    return near


def _nearest(
    x: np.ndarray, candidates: np.ndarray, k: int, rows: slice
) -> tuple[np.ndarray, np.ndarray]:
    """Choose from candidates, some of which may be -1 or the point itself, by distances computed anew."""
    itself, near = np.arange(rows.start, rows.stop)[:, None], candidates[rows].astype(np.int64)
    missing = (near < 0) | (near == itself)
    apart = x[np.where(missing, itself, near)].astype(np.float64) - x[rows][:, None]
    distance = np.einsum("ijk,ijk->ij", apart, apart)
    distance[missing] = np.inf
    order = np.lexsort((near, distance))[:, :k]
    near, distance = np.take_along_axis(near, order, 1), np.take_along_axis(distance, order, 1)
    # Where a search by HNSW finds too few, the furthest that it found counts several times.
    last = np.isfinite(distance).sum(1, keepdims=True) - 1
    column = np.minimum(np.arange(k)[None], np.maximum(last, 0))
    return np.take_along_axis(near, column, 1), np.take_along_axis(distance, column, 1)


def calibrate(distance: np.ndarray, perplexity: float) -> np.ndarray:
    """Weigh the neighbours of each point by a Gaussian kernel, whose width gives all points the same perplexity.

    Args:
        distance: squared, the nearest first [num_points, k], float64.
        perplexity: 2 to the entropy of the weights in bits: as many neighbours count, in a way; less than k.

    Returns:
        Weights that sum up to 1 in each row [num_points, k]; where all are equally far, equal ones.
    """
    target = np.log(perplexity)

    def weigh(rows: slice) -> np.ndarray:
        beyond = distance[rows] - distance[rows][:, :1]
        mean = beyond.mean(1, keepdims=True)
        beyond = beyond / np.where(mean > 0, mean, 1)
        low, high = np.zeros((len(beyond), 1)), np.full((len(beyond), 1), np.inf)
        sharpness = np.ones((len(beyond), 1))
        for _ in range(40):
            weight = np.exp(-sharpness * beyond)
            total = weight.sum(1, keepdims=True)
            entropy = np.log(total) + sharpness * (weight * beyond).sum(1, keepdims=True) / total
            flat = entropy > target
            low, high = np.where(flat, sharpness, low), np.where(flat, high, sharpness)
            sharpness = np.where(
                np.isinf(high), 2 * sharpness, (low + np.where(np.isinf(high), 0, high)) / 2
            )
        weight = np.exp(-sharpness * beyond)
        return weight / weight.sum(1, keepdims=True)

    return np.concatenate(in_chunks(weigh, len(distance), CHUNK))


def link_both_ways(neighbors: np.ndarray, weight: np.ndarray) -> sp.csr_array:
    """Make a symmetric matrix of the weights of neighbours [num_points, k]: the means of both ways round."""
    num_points, k = neighbors.shape
    rows = np.repeat(np.arange(num_points), k)
    return symmetrise(
        sp.csr_array((weight.ravel(), (rows, neighbors.ravel())), shape=(num_points, num_points))
    )


def symmetrise(matrix: sp.csr_array) -> sp.csr_array:
    """Return the mean of a matrix of weights and its transpose, without what it has on its diagonal, and without 0."""
    out = ((matrix + matrix.T) / 2).tocoo()
    keep = (out.coords[0] != out.coords[1]) & (out.data > 0)
    return sp.csr_array(
        (out.data[keep], (out.coords[0][keep], out.coords[1][keep])), shape=matrix.shape
    )
