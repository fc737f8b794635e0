"""Logistic regressions of many labels on the same rows, fitted together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit
from threadpoolctl import threadpool_limits

# Labels that are fitted at a time. The numbers depend on it, in their last bits, so that it is no key.
AT_ONCE = 32
# A label is done when the largest number of its gradient is below.
TOLERANCE = 1e-4
MOST_STEPS, MOST_HALVINGS = 50, 20
# Conjugate gradients of a step end when the residual is this part of the gradient, or after so many products.
RESIDUAL, MOST_PRODUCTS = 0.1, 50


def fit_labels(
    x: Float[np.ndarray, "num_rows dim"],
    labels: Bool[np.ndarray, "num_rows num_labels"],
    *,
    strength: float = 1.0,
    num_threads: int = 1,
    before_step: Callable[[], object] = lambda: None,
) -> Float[np.ndarray, "dim_plus_1 num_labels"]:
    """Fit each label against the rest: the minimum of ``|w|^2 / 2 + strength * sum_i log(1 + exp(-y_i w (x_i, 1)))``.

    It is what scikit-learn's ``LogisticRegression(solver="liblinear", C=strength)`` approaches; the constant is
    penalised too. Newton's method solves for all labels at once by conjugate gradients, whose products read the rows
    once for all of them (the method of LIBLINEAR for one label, Lin, Weng and Keerthi 2008,
    https://jmlr.org/papers/v9/lin08b.html). The result does not depend on the number of threads.

    Args:
        x: rows.
        labels: whether a row has a label; each occurs, and is missing, somewhere.
        before_step: called before each step.

    Returns:
        [dim + 1, num_labels], float64; the last row holds the constants.
    """
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1, dtype=np.float64)
    signs = np.where(labels, 1.0, -1.0)
    # A product's own threads would wait for each other beside these, and round in an order of their own.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(num_threads) as pool:
        # In the basis of its eigenvectors, the curvature of labels that all rows are as sure of is diagonal.
        curvature, basis = np.linalg.eigh(rows.T @ rows)
        rows = rows @ basis
        # A step need not be exact, and numbers of half the size take half the time.
        short = rows.astype(np.float32)
        parts = pool.map(
            lambda first: _fit(
                rows, short, signs[:, first : first + AT_ONCE], strength, curvature, before_step
            ),
            range(0, signs.shape[1], AT_ONCE),
        )
        return basis @ np.concatenate([np.empty((len(basis), 0)), *parts], axis=1)


def _fit(
    rows: np.ndarray,
    short: np.ndarray,
    signs: np.ndarray,
    strength: float,
    curvature: np.ndarray,
    before_step: Callable[[], object],
) -> np.ndarray:
    """Fit a few labels, in the basis of the rows; `short` holds them in float32."""
    weights = np.zeros((rows.shape[1], signs.shape[1]))
    margins, losses = np.zeros(signs.shape), np.full(signs.shape[1], np.inf)
    step = np.zeros_like(weights)
    for _ in range(MOST_STEPS):
        before_step()
        weights, margins, losses = _search(rows, signs, strength, weights, margins, losses, step)
        unsure = expit(-margins)
        gradient = weights - strength * rows.T @ (signs * unsure)
        is_open = np.abs(gradient).max(axis=0) > TOLERANCE
        if not is_open.any():
            break
        variance = strength * unsure * (1 - unsure)
        scale = 1 / (1 + curvature.clip(0)[:, None] * variance.mean(axis=0))
        step = np.where(
            is_open,
            _solve(short, *(values.astype(np.float32) for values in (variance, scale, -gradient))),
            0.0,
        )
    return weights


def _search(
    rows: np.ndarray,
    signs: np.ndarray,
    strength: float,
    weights: np.ndarray,
    margins: np.ndarray,
    losses: np.ndarray,
    step: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Go the step of each label, or half of it, a quarter, until its loss is no larger."""
    change, length = signs * (rows @ step), np.ones(signs.shape[1])
    for _ in range(MOST_HALVINGS):
        new_weights, new_margins = weights + length * step, margins + length * change
        new = (new_weights**2).sum(axis=0) / 2 + strength * np.logaddexp(0, -new_margins).sum(
            axis=0
        )
        worse = new > losses * (1 + 1e-12)
        if not worse.any():
            break
        length = np.where(worse, length / 2, length)
    return new_weights, new_margins, new


def _solve(
    rows: np.ndarray, variance: np.ndarray, scale: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Solve ``(1 + rows' variance rows) out = target`` for each label by conjugate gradients.

    Args:
        variance: weight of each row, of each label.
        scale: the diagonal of an approximate inverse.
    """
    out, residual = np.zeros_like(target), target.copy()
    scaled = scale * residual
    direction, power = scaled.copy(), (residual * scaled).sum(axis=0)
    wanted = RESIDUAL * np.sqrt((target**2).sum(axis=0))
    for _ in range(MOST_PRODUCTS):
        if (np.sqrt((residual**2).sum(axis=0)) <= wanted).all():
            break
        product = direction + rows.T @ (variance * (rows @ direction))
        length = power / np.maximum((direction * product).sum(axis=0), np.finfo(np.float32).tiny)
        out += length * direction
        residual -= length * product
        scaled = scale * residual
        power, before = (residual * scaled).sum(axis=0), power
        direction = scaled + power / np.maximum(before, np.finfo(np.float32).tiny) * direction
    return out
