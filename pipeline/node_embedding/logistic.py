"""Logistic regressions of many labels on the same rows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Bool, Float
from threadpoolctl import threadpool_limits


def fit_labels(
    x: Float[np.ndarray, "num_rows dim"],
    labels: Bool[np.ndarray, "num_rows num_labels"],
    *,
    strength: float = 1.0,
    num_threads: int = 1,
    before_label: Callable[[], object] = lambda: None,
) -> Float[np.ndarray, "dim_plus_1 num_labels"]:
    """Fit each label against the rest: the minimum of ``|w|^2 / 2 + strength * sum_i log(1 + exp(-y_i w (x_i, 1)))``.

    The constant is penalised too, as liblinear has it. The result does not depend on the number of threads.

    Args:
        x: rows.
        labels: whether a row has a label; each occurs, and is missing, somewhere.
        before_label: called before each label.

    Returns:
        [dim + 1, num_labels]; the last row holds the constants.
    """
    # Scikit-learn is imported where it is used: it takes seconds, and no other run shall wait for it.
    from sklearn.linear_model import LogisticRegression

    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1, dtype=np.float64)

    def fit(label: np.ndarray) -> np.ndarray:
        before_label()
        model = LogisticRegression(C=strength, fit_intercept=False, tol=1e-6, max_iter=10_000)
        return model.fit(rows, label).coef_[0]

    # A product's own threads would wait for each other beside these, and round in an order of their own.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(num_threads) as pool:
        weights = [np.empty((0, rows.shape[1])), *(own[None] for own in pool.map(fit, labels.T))]
    return np.concatenate(weights).T
