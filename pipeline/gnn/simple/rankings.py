"""Simple methods that rank all candidates of a source: by how many links they have, and by paths of links."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from parallel_epochs.pipeline.gnn.ranking import BlockScorer, Direction, Links, score_split
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run.baseline_file import Baseline

# A product is made of dense rows from this share of entries that are not 0.
DENSE = 0.05
# Penalties of EASE; the first one where there is time for one only.
PENALTIES = (300.0, 30.0, 100.0, 1000.0)
# Multiplications and additions a second that one core is taken to make in the inverse of a matrix.
FLOPS = 2e10


def rank_by_all(links: Links, seconds: float) -> Iterator[tuple[str, Callable[[scipy.sparse.csr_array], BlockScorer]]]:
    """Name the methods that fit a graph, and how each is made of a matrix of links.

    Args:
        seconds: that a method may take, by an estimate that does not depend on the machine.
    """
    direction, candidates = links.directions[0], torch.cat([one.candidates for one in links.answered]).sort().values
    yield "popularity", by_popularity
    yield "item cosine", by_cosine
    if len(np.intersect1d(direction.sources, direction.candidates)):
        yield "resource allocation over two hops", allocate_in_two_hops
    yield "resource allocation over three hops", allocate_in_three_hops
    direction, cost = replace(direction, candidates=candidates), 3 * len(candidates)**3 / FLOPS
    for penalty in PENALTIES[:max(0, int(min(seconds // max(cost, 1e-9), len(PENALTIES))))]:
        yield f"EASE (penalty {penalty:g})", partial(ease, direction=direction, penalty=penalty)


def of_rankings(links: Links, metric: str, seconds: float) -> Iterator[Baseline]:
    """Rank by each simple method, and score it; the methods know the training links alone."""
    matrix = matrix_of(links.answers("train"), links.num_nodes)
    for name, build in rank_by_all(links, seconds):
        began = time.perf_counter()
        score = build(matrix)
        scores = {split: score_split(links, score, metric, split) for split in SPLITS}
        yield Baseline(name, scores, time.perf_counter() - began)


def matrix_of(answers: Tensor, num_nodes: int) -> scipy.sparse.csr_array:
    """Return a matrix [num_nodes, num_nodes] with 1 for each source and target."""
    source, target = answers.numpy().T
    return scipy.sparse.coo_array((np.ones(len(answers), np.float32), (source, target)), (num_nodes,) * 2).tocsr()


def by_popularity(links: scipy.sparse.csr_array) -> BlockScorer:
    """Score a candidate by its number of links."""
    number = torch.from_numpy(np.asarray(links.sum(0), np.float32))
    return lambda sources, candidates: number[candidates].repeat(len(sources), 1)


def by_cosine(links: scipy.sparse.csr_array) -> BlockScorer:
    """Score a candidate by its similarities to the targets of a source: the cosines of the sets of their sources."""
    scale = _inverse(links.sum(0), 0.5)
    return _walk(links, links * scale, links.T.tocsr(), links * scale)


def allocate_in_two_hops(links: scipy.sparse.csr_array) -> BlockScorer:
    """Score a candidate by the nodes between it and a source: the sum of 1 / degree, links taken both ways round."""
    both = ((links + links.T) > 0).astype(np.float32).tocsr()
    return _walk(both, both * _inverse(both.sum(0)), both)


def allocate_in_three_hops(links: scipy.sparse.csr_array) -> BlockScorer:
    """Score a candidate by the sources that share a target with a source: the sum of 1 / (degree of that target times
    degree of the other source), over all such paths of links to the candidate.

    This is the second step of the diffusion of Zhou et al. (https://arxiv.org/abs/0707.0540).
    """
    return _walk(links, links * _inverse(links.sum(0)), (links.T * _inverse(links.sum(1))).tocsr(), links)


def ease(links: scipy.sparse.csr_array, direction: Direction, penalty: float) -> BlockScorer:
    """Score candidates by the linear model of "Embarrassingly Shallow Autoencoders" (https://arxiv.org/abs/1905.03375):
    each column of the matrix is predicted from the others, by ridge regression with a closed form.
    """
    columns = direction.candidates.numpy()
    own = links[:, columns].astype(np.float64)
    inverse = np.linalg.inv((own.T @ own).toarray() + penalty * np.eye(len(columns)))
    weights = (-inverse / np.diag(inverse)).astype(np.float32)
    np.fill_diagonal(weights, 0)
    own = own.astype(np.float32).tocsr()

    def score(sources: Tensor, candidates: Tensor) -> Tensor:
        rows = torch.from_numpy(own[sources.numpy()] @ weights)
        return rows if len(candidates) == len(columns) else rows[:, np.searchsorted(columns, candidates.numpy())]

    return score


def _inverse(degree: np.ndarray, power: float = 1.0) -> np.ndarray:
    """Return 1 / degree^power, in float32; 0 where the degree is 0."""
    degree = np.asarray(degree, np.float64)
    return np.where(degree > 0, np.maximum(degree, 1)**-power, 0).astype(np.float32)


def _walk(start: scipy.sparse.csr_array, *steps: scipy.sparse.csr_array) -> BlockScorer:
    """Score by the product of matrices, of which the rows of the sources are taken.

    Args:
        start: has the pattern of the first step; a source without a link there has no score but 0.
    """
    first, middle, last = steps[0].tocsr(), steps[1:-1], steps[-1].tocsc()

    def score(sources: Tensor, candidates: Tensor) -> Tensor:
        rows = first[sources.numpy()]
        for step in middle:
            rows = rows @ step
        found = _multiply(rows, last[:, candidates.numpy()])
        return torch.from_numpy(np.ascontiguousarray(found, np.float32))

    return score


def _multiply(rows: scipy.sparse.csr_array, last: scipy.sparse.csc_array) -> np.ndarray:
    """Multiply two sparse matrices into a dense one."""
    if rows.nnz > DENSE * rows.shape[0] * rows.shape[1]:
        return rows.toarray() @ last
    return (rows @ last).toarray()
