"""Vectors by factorising: the matrix of ProNE, entry by entry, on a graph whose nodes differ in degree and weight."""

import numpy as np
import pytest
import scipy.sparse as sp

from parallel_epochs.models.embedding import spectral

# A star with a tail and a weight of its own on every edge; node 5 has none.
EDGES = {(0, 1): 1.0, (0, 2): 2.0, (0, 3): 4.0, (3, 4): 0.5, (1, 2): 3.0}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("exponent, num_negatives", [(0.75, 1.0), (0.5, 5.0)])
def test_the_factorised_matrix_is_that_of_prone(directed, exponent, num_negatives, monkeypatch):
    """An entry is log(p_ij) - log(k P_j): p_ij is a step from i to j, P_j what all steps to j come to, to a power."""
    weight = np.zeros((6, 6))
    for (a, b), value in EDGES.items():
        weight[a, b], weight[b, a] = value, value * (not directed)
    steps = [
        [weight[i, j] / weight[i].sum() if weight[i, j] else 0.0 for j in range(6)]
        for i in range(6)
    ]
    reached = [sum(steps[i][j] for i in range(6)) ** exponent for j in range(6)]
    expected = np.zeros((6, 6))
    for i, j in np.argwhere(weight):
        expected[i, j] = np.log(steps[i][j]) - np.log(num_negatives * reached[j] / sum(reached))
    seen = []

    def decompose(matrix, rank, **_):
        seen.append(matrix.toarray())
        return np.linalg.svd(seen[0])

    monkeypatch.setattr("sklearn.utils.extmath.randomized_svd", decompose)
    vectors = spectral.factorise(
        sp.csr_array(weight), 6, exponent=exponent, num_negatives=num_negatives
    )
    np.testing.assert_allclose(seen[0], expected, rtol=1e-12)
    u, s, _ = np.linalg.svd(expected)
    rows = u * np.sqrt(s)
    linked = weight.any(1)
    rows[linked] /= np.linalg.norm(rows[linked], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors[linked], rows[linked], atol=1e-6)
