"""Node vectors by sparse matrix factorisation, and a spectral filter that adds information from further away.

The method is ProNE, "Fast and Scalable Network Representation Learning" (IJCAI 2019,
https://www.ijcai.org/proceedings/2019/594). The first vectors factorise the shifted logarithms of transition
probabilities. A Gaussian band-pass filter of the graph's Laplacian, expanded in Chebyshev polynomials, turns them into
the second ones.
"""

import numpy as np
import scipy.sparse as sp
from scipy.special import iv
from threadpoolctl import threadpool_limits


def factorise(
    adjacency: sp.csr_array,
    dim: int,
    *,
    seed: int = 0,
    exponent: float = 0.75,
    num_negatives: float = 1.0,
) -> np.ndarray:
    """Factorise log(p_ij) - log(num_negatives p_j) on the edges.

    p_ij is the probability that a step from i ends in j. p_j is proportional to a power of the sum of p_ij over i.

    Args:
        adjacency: weights of the edges [num_nodes, num_nodes], not negative.
        dim: number of columns of the vectors. Columns beyond the number of nodes are 0.
        exponent: the power in p_j.

    Returns:
        Rows of length 1, or of zeros for nodes without an edge [num_nodes, dim], float32.
    """
    from sklearn.utils.extmath import randomized_svd  # takes a second to import

    steps = _row_normalised(adjacency).tocoo()
    reached = np.asarray(steps.sum(0)).ravel() ** exponent
    reached /= max(reached.sum(), 1e-300)
    rows, columns = steps.coords
    keep = steps.data > 0
    rows, columns, p = rows[keep], columns[keep], steps.data[keep]
    values = np.log(p) - np.log(num_negatives * reached[columns])
    matrix = sp.csr_array((values, (rows, columns)), shape=adjacency.shape)
    rank = min(dim, adjacency.shape[0])
    if matrix.nnz == 0:
        return np.zeros((adjacency.shape[0], dim), np.float32)
    u, s, _ = randomized_svd(matrix, rank, n_oversamples=16, n_iter=5, random_state=seed)
    return unit_rows(_widened(u * np.sqrt(s), dim)).astype(np.float32)


def propagate(
    adjacency: sp.csr_array,
    vectors: np.ndarray,
    *,
    num_terms: int = 10,
    mu: float = 0.2,
    theta: float = 0.5,
) -> np.ndarray:
    """Filter vectors by the graph, so that the part that is smooth over its clusters remains.

    Args:
        adjacency: weights of the edges [num_nodes, num_nodes].
        vectors: [num_nodes, dim].
        num_terms: number of terms of the Chebyshev expansion, at least 2.
        mu: centre of the band among the eigenvalues of the Laplacian.
        theta: width of the band.

    Returns:
        Rows of length 1, or of zeros [num_nodes, dim], float32.
    """
    num_nodes, dim = vectors.shape
    looped = (adjacency + sp.eye_array(num_nodes)).tocsr().astype(np.float32)
    laplacian = sp.eye_array(num_nodes, dtype=np.float32) - _row_normalised(looped)
    shifted = (
        (laplacian - mu * sp.eye_array(num_nodes, dtype=np.float32)).tocsr().astype(np.float32)
    )
    x = vectors.astype(np.float32)
    # T_0 and T_1 of the polynomials of shifted^2 / 2 - 1, and each next one from the two before it.
    before, last = x, 0.5 * (shifted @ (shifted @ x)) - x
    filtered = iv(0, theta) * before - 2 * iv(1, theta) * last
    for term in range(2, num_terms):
        before, last = last, (shifted @ (shifted @ last) - 2 * last) - before
        filtered += (-1) ** term * 2 * iv(term, theta) * last
    mixed = looped @ (x - filtered.astype(np.float32))
    with threadpool_limits(1, "blas"):  # for the same bits whatever the number of threads
        u, s, _ = np.linalg.svd(mixed, full_matrices=False)
    return unit_rows(_widened(u * np.sqrt(s), dim)).astype(np.float32)


def diffuse(
    adjacency: sp.csr_array, dim: int, *, rng: np.random.Generator, num_steps: int = 100
) -> np.ndarray:
    """Place points by the smoothest functions on a graph, which random functions become when smoothed over its edges.

    With enough steps they approach the first eigenvectors of the normalised Laplacian after the constant one, as in
    Laplacian eigenmaps (https://doi.org/10.1162/089976603321780317).

    Args:
        adjacency: weights of the edges [num_nodes, num_nodes], symmetric.
        num_steps: number of steps of the subspace iteration.

    Returns:
        Columns of variance 1 [num_nodes, dim], float32. Columns beyond the number of other nodes are random, and so are
        the rows of nodes without an edge.
    """
    num_nodes = adjacency.shape[0]
    width = min(2 * dim + 1, num_nodes)
    root = np.sqrt(np.asarray(adjacency.sum(1)).ravel())
    scale = np.where(root > 0, 1 / np.where(root > 0, root, 1), 0)
    smooth = (sp.diags_array(scale) @ adjacency @ sp.diags_array(scale)).tocsr().astype(np.float32)
    rows = rng.standard_normal((num_nodes, width))
    with threadpool_limits(1, "blas"):
        for step in range(num_steps):
            rows[:, 0] = root  # the constant function
            rows = np.linalg.qr(rows)[0].astype(np.float32) if step % 4 == 0 else rows
            rows = 0.5 * (rows + smooth @ rows)
        basis = np.linalg.qr(np.column_stack([root, rows[:, 1:]]))[0]
        _values, turned = np.linalg.eigh(basis[:, 1:].T @ (smooth @ basis[:, 1:]))
    vectors = (basis[:, 1:] @ turned[:, ::-1][:, :dim]) * scale[:, None]
    vectors = np.where(
        root[:, None] > 0, vectors, vectors.std(0) * rng.standard_normal(vectors.shape)
    )
    spread = vectors.std(0)
    vectors = np.where(
        spread > 1e-12, (vectors - vectors.mean(0)) / np.where(spread > 1e-12, spread, 1), 0
    )
    return np.column_stack(
        [vectors, rng.standard_normal((num_nodes, dim - vectors.shape[1]))]
    ).astype(np.float32)


def _row_normalised(matrix: sp.csr_array) -> sp.csr_array:
    total = np.asarray(matrix.sum(1)).ravel()
    return (sp.diags_array(1 / np.where(total > 0, total, 1)) @ matrix).tocsr()


def _widened(vectors: np.ndarray, dim: int) -> np.ndarray:
    return np.pad(vectors, ((0, 0), (0, dim - vectors.shape[1])))


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale rows [num_rows, dim] to length 1; rows of zeros stay zeros."""
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norm > 0, norm, 1)
