"""Logistic regressions of many labels together: the numbers of scikit-learn's, one label after the other."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from parallel_epochs.pipeline.node_embedding.logistic import fit_labels


def example(
    num_rows: int, dim: int, num_labels: int, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and labels from common to rare."""
    rng = np.random.default_rng(0)
    labels = rng.random((num_rows, num_labels)) < 1 / (2 + np.arange(num_labels))
    labels[:2] = [[True], [False]]
    return scale * (
        rng.standard_normal((num_rows, dim)) + labels @ rng.standard_normal((num_labels, dim))
    ), labels


@pytest.mark.parametrize(
    "num_rows, dim, num_labels, scale, strength",
    [
        (300, 6, 40, 1.0, 1.0),  # many labels
        (5, 12, 3, 1.0, 1.0),  # fewer rows than columns
        (300, 6, 3, 0.01, 50.0),
        (4, 2, 0, 1.0, 1.0),
    ],
)
def test_weights_are_those_of_scikit_learn(num_rows, dim, num_labels, scale, strength):
    x, labels = example(num_rows, dim, num_labels, scale)
    weights = fit_labels(x.astype(np.float32), labels, strength=strength)
    assert weights.shape == (dim + 1, num_labels)
    for label in range(num_labels):
        with warnings.catch_warnings(action="ignore"):
            known = LogisticRegression(
                solver="liblinear", C=strength, tol=1e-10, max_iter=10_000
            ).fit(x.astype(np.float32), labels[:, label])
        expected = np.append(known.coef_, known.intercept_)
        np.testing.assert_allclose(
            weights[:, label], expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max()
        )


def test_the_number_of_threads_changes_nothing():
    x, labels = example(200, 5, 70)
    assert np.array_equal(fit_labels(x, labels), fit_labels(x, labels, num_threads=3))
