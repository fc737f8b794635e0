"""Linear models of links: a score is a linear function of the targets that a source has, or of columns of nodes."""

import hashlib

import numpy as np
import scipy.sparse
from jaxtyping import Float
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.predict.ranking import Direction

# Penalty of the linear maps of columns for each source, and numbers of columns that one may read.
COLUMN_PENALTY, MOST_NUMBERS = 0.05, 1 << 25
# Factor of the columns of targets in EASE.
OF_TARGETS = 3.0
# Bytes of the matrices of EASE that are kept, so that a run inverts each one once.
MOST_BYTES = 1 << 31
_kept: dict[tuple[str, float], np.ndarray] = {}


def ease_weights(
    links: scipy.sparse.csr_array, penalty: float
) -> Float[np.ndarray, "num_targets num_targets"]:
    """Fit "Embarrassingly Shallow Autoencoders" (https://arxiv.org/abs/1905.03375): each column of a matrix is
    predicted from the others, by ridge regression with a closed form.

    Args:
        links: a row for each source, a column for each target.
    """
    links = links.tocsr()
    links.sort_indices()
    digest = hashlib.sha256(str(links.shape).encode())
    for array in (links.indptr, links.indices, links.data):
        digest.update(array.tobytes())
    name = digest.hexdigest(), penalty
    if (weights := _kept.pop(name, None)) is None:
        weights = _invert(links.astype(np.float64), penalty)
    _kept[name] = weights  # the last one that is thrown away
    while len(_kept) > 1 and sum(matrix.nbytes for matrix in _kept.values()) > MOST_BYTES:
        del _kept[next(iter(_kept))]
    return weights


def _invert(links: scipy.sparse.csr_array, penalty: float) -> np.ndarray:
    from scipy.linalg import lapack

    matrix = (links.T @ links).toarray(order="F")
    matrix[np.diag_indices_from(matrix)] += penalty
    # In place, the lower triangle alone: a third of the time of a general inverse, and half of its memory.
    factor, failed = lapack.dpotrf(matrix, lower=1, overwrite_a=1, clean=0)
    inverse, fails = lapack.dpotri(factor, lower=1, overwrite_c=1)
    if failed or fails:
        raise np.linalg.LinAlgError(
            f"the matrix of EASE with penalty {penalty:g} cannot be inverted"
        )
    weights, diagonal = inverse.astype(np.float32), np.diag(inverse).astype(np.float32)
    del matrix, factor, inverse
    for row in range(len(weights)):
        weights[row, row + 1 :] = weights[row + 1 :, row]
        weights[row, row] = 0
    weights /= -diagonal
    return weights


def columns_of(data: Data, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of the sources and those of the candidates, float32; none of them where nodes have none, or
    where there are too many numbers.
    """
    found = []
    for nodes in (direction.sources, direction.candidates):
        types, width = data.types, 0
        if types.homogeneous:
            width = data.x.size(1) - data.num_categories if data.get("x_source") == "data" else 0
        elif len(nodes):
            name = next(name for name in types.names if int(nodes[0]) in types.nodes_of(name))
            width = 0 if name in types.averaged else types.widths[types.names.index(name)]
        found.append(data.x[nodes, :width].float().numpy())
    if len(direction.sources) * sum(columns.shape[1] for columns in found) > MOST_NUMBERS:
        return found[0][:, :0], found[1][:, :0]
    return found[0], found[1]


def join_columns(
    links: scipy.sparse.csr_array,
    direction: Direction,
    of_sources: np.ndarray,
    of_targets: np.ndarray,
) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """Return the columns of the sources to the right of their links, and rows of the columns of the targets for below.

    Args:
        links: a row for each node, a column for each candidate.
    """
    columns = _spread(of_sources, direction, links.shape[0])
    more = np.hstack(
        [OF_TARGETS * of_targets.T, np.zeros((of_targets.shape[1], of_sources.shape[1]))]
    )
    return scipy.sparse.hstack([links, columns]).tocsr(), scipy.sparse.csr_array(
        more.astype(np.float32)
    )


def fit_columns(
    links: scipy.sparse.csr_array,
    direction: Direction,
    of_sources: np.ndarray,
    of_targets: np.ndarray,
) -> tuple[scipy.sparse.csr_array, Float[np.ndarray, "num_columns num_targets"]]:
    """Fit linear maps of columns to links, by ridge regression: those of a source, and the sums of those of its targets
    divided by the root of their number.

    The weights of a candidate are orthogonal to its own columns: as in EASE, a link does not explain itself.

    Returns:
        The columns of all nodes (those that are no sources have zeros), and the weights of each candidate.
    """
    own = links[direction.sources.numpy()][:, direction.candidates.numpy()].astype(np.float64)
    num_links = np.maximum(np.asarray(own.sum(1)).reshape(-1, 1), 1)
    summed = own @ of_targets.astype(np.float64) / np.sqrt(num_links)
    columns = np.hstack([np.ones((len(of_sources), 1)), of_sources, summed])
    inverse = np.linalg.inv(
        columns.T @ columns + COLUMN_PENALTY * len(columns) * np.eye(columns.shape[1])
    )
    weights = inverse @ (own.T @ columns).T
    if of_targets.shape[1]:
        mapped = inverse[:, 1 + of_sources.shape[1] :] @ of_targets.T
        shown, norm = (
            (of_targets.T * rows[1 + of_sources.shape[1] :]).sum(0) for rows in (weights, mapped)
        )
        weights -= mapped * (shown / np.where(norm > 0, norm, 1))
    return _spread(columns, direction, links.shape[0]), weights.astype(np.float32)


def _spread(columns: np.ndarray, direction: Direction, num_nodes: int) -> scipy.sparse.csr_array:
    """Return columns of all nodes, given those of the sources; the others have zeros."""
    own = scipy.sparse.coo_array(columns.astype(np.float32))
    place = direction.sources.numpy()[own.coords[0]], own.coords[1]
    return scipy.sparse.coo_array((own.data, place), (num_nodes, columns.shape[1])).tocsr()
