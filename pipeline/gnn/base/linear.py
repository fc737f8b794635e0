"""Linear models of the nodes' own columns, of their means over one to three hops, and of the terms of their texts."""

import logging
import math
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.pipeline.data.tables.text import NUM_TERMS
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.method import Method, TooLong
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Weights of the likelihood against the penalty, as scikit-learn's C; of ridge regression, 1 / alpha.
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
# Factor and constant that make a regression on 0 and 1 logits.
LOGITS = 4.0, -2.0
# The columns of a hop are divided by nothing, by one number for all of them, or by the deviation of each.
SCALINGS = ("none", "one", "each")
# Columns that numbers are predicted by one at a time.
MOST_LINES = 5
# Steps of the optimiser at most, and the logit of a class that no row has.
MOST_STEPS, ABSENT = 100, -30.0
# Columns and scalings are compared on so many training rows at most, by regressions of these strengths.
COARSE_ROWS, COARSE_STRENGTHS = 3_000, (0.01, 1.0, 100.0)
# Steps of the optimiser for each strength on these rows, and columns of all hops at most.
COARSE_STEPS, MOST_COLUMNS = 30, 2_000
# Models of terms: weights of the likelihood, weights of a model at most, and steps of the optimiser.
TERM_STRENGTHS, MOST_WEIGHTS, TERM_STEPS = (1.0, 10.0, 100.0, 1000.0), 1 << 23, 50
# Models of the terms of many rows: epochs at most, rows of a batch, and steps of the optimiser that take as long as an
# epoch; learning rate and penalty of logistic models, and of models with the squared hinge loss.
TERM_EPOCHS, BATCH, OF_EPOCH, LOGISTIC, HINGE = 3, 128, 1.7, (0.3, 1e-3), (0.1, 1e-2)
# Seconds for each logit, and for each of its columns or terms, in a step of the optimiser, and for each pair of columns
# in a regression; and fits to all rows or four folds.
OF_NUMBER, OF_CELL, OF_TERM, OF_PAIR, NUM_FITS = 2e-9, 1e-10, 1e-9, 1e-10, 7


def fit_linear(
    x: Float[Tensor, "num_rows channels"] | sp.csr_array,
    y: Float[Tensor, "num_rows columns"],
    labels: Labels,
    strength: float,
    start: Tensor | None = None,
    num_steps: int = MOST_STEPS,
) -> Float[Tensor, "channels_and_one columns"]:
    """Fit one model of all classes, or of each column of labels, with a penalty of the squared weights.

    Without steps, a regression on 0 and 1 takes the place of the logistic one; what is unknown counts as the mean.

    Args:
        x: columns, scaled, or terms [num_rows, channels].
        y: labels; NaN is unknown.
        labels: say what kind of labels they are.
        strength: weight of the likelihood, as scikit-learn's C.
        start: weights to begin at, as they are returned.
        num_steps: steps of the optimiser at most.

    Returns:
        Weights, and below them the constants; float64.
    """
    if labels.are_values:
        return _fit_ridge(x, y, strength)
    if not num_steps:
        out = LOGITS[0] * _fit_ridge(x, y.where(~y.isnan(), y.nanmean(0).nan_to_num()), strength)
        out[-1] += LOGITS[1]
        return out
    known, target = ~y.isnan(), y.nan_to_num()
    one = _with_ones(x)
    # A class, or a label of a task, that no row has takes no part.
    total, num = (target * known).sum(0), known.sum(0)
    has = total > 0 if labels.are_classes else (total > 0) & (total < num)
    out = torch.zeros(num_weights := one.shape[1], y.size(1), dtype=torch.float64)
    if labels.are_classes and int(has.sum()) == 1:
        has = torch.zeros_like(has)
    out[-1] = torch.where(total > 0, -ABSENT, ABSENT).where(num > 0, 0.0).where(~has, 0.0)
    if not bool(has.any()):
        return out
    target, known = target[:, has], known[:, has]
    if labels.are_classes:
        one, target = (
            one[known.all(1) if isinstance(x, Tensor) else known.all(1).numpy()],
            target[known.all(1)],
        )
    is_partial = not bool(known.all())
    multiply, turned = (
        (torch.mm, one.t())
        if isinstance(x, Tensor)
        else (_multiply, cast(sp.csr_array, one).T.tocsr())
    )

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(flat).view(num_weights, -1)
        logits = multiply(one, weight.float())
        if labels.are_classes:
            value, error = (
                F.cross_entropy(logits, target, reduction="sum"),
                logits.softmax(1).sub_(target),
            )
        else:
            error = F.softplus(logits).sub_(target * logits)
            value = (error * known if is_partial else error).double().sum()
            error = logits.sigmoid_().sub_(target)
            error = error.mul_(known) if is_partial else error
        gradient = strength * multiply(turned, error).double()
        gradient[:-1] += weight[:-1]
        return float(strength * value + weight[:-1].square().sum() / 2), gradient.reshape(
            -1
        ).numpy()

    begin = (
        torch.zeros(num_weights, int(has.sum()), dtype=torch.float64)
        if start is None
        else start[:, has]
    )
    found = minimize(
        loss,
        begin.reshape(-1).numpy(),
        method="L-BFGS-B",
        jac=True,
        options={
            "maxiter": num_steps,
            "maxfun": 2 * num_steps,
            "gtol": 1e-5 * strength * one.shape[0],
            "maxcor": 10 if isinstance(x, Tensor) else 5,
        },
    )
    out[:, has] = torch.from_numpy(found.x).view(num_weights, -1)
    return out


def fit_by_batches(
    x: sp.csr_array,
    y: Float[Tensor, "num_rows columns"],
    num_epochs: int,
    *,
    is_hinge: bool = False,
) -> Float[Tensor, "terms_and_one columns"]:
    """Fit a model of each column to many rows of terms by AdaGrad (Duchi et al., JMLR 2011): rare terms move further.

    An epoch takes about as long as one and a half steps of :func:`fit_linear`, of which fifty are not enough for as
    good a model. With few rows, those are better.

    Args:
        x, y: as for :func:`fit_linear`; no values.
        is_hinge: whether the loss is the squared hinge, as of linear support vector machines; the logistic otherwise.
    """
    rate, decay = HINGE if is_hinge else LOGISTIC
    x, known, target = (
        cast(sp.csr_array, _with_ones(x)),
        (~y.isnan()).numpy(),
        y.nan_to_num().numpy(),
    )
    weight = np.zeros((x.shape[1], y.size(1)), np.float32)
    squares = np.full_like(weight, 1e-8)
    for epoch in range(num_epochs):
        order = stream("linear models", 0, epoch).permutation(x.shape[0])
        for rows in np.split(order, range(BATCH, len(order), BATCH)):
            used, place = np.unique((batch := x[rows]).indices, return_inverse=True)
            batch = sp.csr_array((batch.data, place, batch.indptr), shape=(len(rows), len(used)))
            logits, side = batch @ weight[used], 2 * target[rows] - 1
            error = -side * (
                np.maximum(1 - side * logits, 0) if is_hinge else expit(-side * logits)
            )
            gradient = batch.T @ (error * known[rows]) + decay * weight[used]
            squares[used] += gradient**2
            weight[used] -= rate * gradient / np.sqrt(squares[used])
    return torch.from_numpy(LOGITS[0] * weight if is_hinge else weight)


def _with_ones(x: Tensor | sp.csr_array) -> Tensor:
    """Return columns, or terms, with a column of ones behind them."""
    if isinstance(x, Tensor):
        return torch.cat([x, x.new_ones(len(x), 1)], 1)
    return cast(
        Tensor, sp.csr_array(sp.hstack([x, np.ones((x.shape[0], 1), x.dtype)], format="csr"))
    )


def _multiply(
    terms: sp.csr_array, columns: Float[Tensor, "num_terms columns"]
) -> Float[Tensor, "num_rows columns"]:
    return torch.from_numpy(terms @ columns.numpy())


def _fit_ridge(x: Tensor | sp.csr_array, y: Tensor, strength: float) -> Tensor:
    known, x = ~y.isnan(), x.double().numpy() if isinstance(x, Tensor) else x.astype(np.float64)
    out = torch.zeros(x.shape[1] + 1, y.size(1), dtype=torch.float64)
    alike = bool((known == known[:, :1]).all())
    for columns in (
        [slice(None)] if alike else [slice(place, place + 1) for place in range(y.size(1))]
    ):
        rows = known[:, columns][:, 0]
        if bool(rows.any()):
            model = Ridge(alpha=1 / strength).fit(
                x[rows.numpy()], y[rows][:, columns].double().numpy()
            )
            out[:-1, columns] = torch.from_numpy(np.atleast_2d(model.coef_)).t()
            out[-1, columns] = torch.from_numpy(np.atleast_1d(model.intercept_))
    return out


def scale_columns(
    mean: Float[Tensor, " channels"],
    std: Float[Tensor, " channels"],
    scaling: str,
) -> tuple[Tensor, Tensor]:
    """Return what is subtracted from the columns of a hop, and what they are divided by; float64.

    Args:
        mean, std: as of :meth:`Inputs.moments`.
        scaling: one of :data:`SCALINGS`.
    """
    std = torch.where(std <= 1e-6 * mean.abs(), 0.0, std)
    if scaling == "none":
        return mean, torch.ones_like(std)
    if scaling == "one":
        std = std.square().mean().sqrt().expand(len(std))
    return mean, torch.where(std > 0, std, 1.0)


def _columns(inputs: Inputs, fitted: dict, chosen: Tensor | slice) -> Tensor:
    """Return the scaled columns of all hops of a model for some of the rows that may have labels."""
    return torch.cat(
        [
            ((inputs.hop(hop)[chosen].double() - shift) / scale).float()
            for hop, shift, scale in zip(
                fitted["hops"], fitted["shift"], fitted["scale"], strict=True
            )
        ],
        dim=1,
    )


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict by the weights of the columns, or of the terms; the mean label for rows that are not asked for.

    Raises:
        ValueError: the model reads terms, and there are none.
    """
    chosen, labels = slice(None) if asked is None else asked[inputs.own], inputs.labels
    if "terms" in fitted:
        if inputs.terms is None:
            raise ValueError(
                "the simple method reads texts, as the tables of the training have them, and these data "
                "have none. Name tables with the same columns of text"
            )
        own = inputs.terms[chosen.numpy() if isinstance(chosen, Tensor) else chosen]
        terms = fitted["terms"].numpy()
        places = np.bincount(own.indices, minlength=NUM_TERMS)[terms].nonzero()[0]  # few for a row
        rows = (
            _multiply(own[:, terms[places]], fitted["weight"][places].float())
            + fitted["weight"][-1]
        )
    else:
        inputs.follow(fitted)
        rows = (
            _columns(inputs, fitted, chosen).double() @ fitted["weight"][:-1] + fitted["weight"][-1]
        )
    rows = rows if labels.are_values else rows.softmax(1) if labels.are_classes else rows.sigmoid()
    return inputs.among_all(rows.float(), fitted["mean"], chosen)


def methods(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of all training rows: of terms, and of columns."""
    if inputs.labels.are_values and not inputs.are_graphs and inputs.width:
        yield from _lines(inputs)
    if inputs.terms is None:
        yield from _methods_of_columns(inputs, seed)
        return
    yield from _methods_of_terms(inputs, seed)
    try:
        yield from _methods_of_columns(inputs, seed)
    except TooLong as error:
        log.info("simple methods: linear models read the texts alone: %s", error)


def _lines(inputs: Inputs) -> Iterator[Method]:
    """Yield straight lines of single columns, those that the labels follow best: the value of today, of tomorrow's."""
    chosen = inputs.labels.train[inputs.own]
    x, y = inputs.hop(0)[chosen].double(), inputs.labels.y[inputs.own][chosen].double()
    x, y = x - x.mean(0), (y - y.nanmean(0)).nan_to_num()
    likeness = (x.t() @ y).square().sum(1) / x.square().sum(0)
    for column in likeness.nan_to_num().topk(min(MOST_LINES, len(likeness))).indices.tolist():
        yield Method(
            "linear",
            f"a straight line of column {column}",
            partial(_fit_line, inputs, column),
            predict,
        )


def _fit_line(inputs: Inputs, column: int, known: Bool[Tensor, " num_rows"]) -> dict:
    """Fit a straight line of one of the nodes' own columns; its weights are those of a model of all of them."""
    fitted, rows = _scales(inputs, known, (0,), "none"), known[inputs.own]
    own = _columns(inputs, fitted, rows)[:, [column]]
    line = _fit_ridge(own, inputs.labels.y[inputs.own][rows], 1e6)
    weight = torch.zeros(inputs.width + 1, line.size(1), dtype=torch.float64)
    weight[[column, -1]] = line
    return {**fitted, "weight": weight}


def _methods_of_columns(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of the columns and with the scaling that are the best on some training rows.

    Regressions on all classes at once choose columns and scaling.
    """
    hops = range(inputs.num_hops + 1)
    # With one hop alone, unscaled columns are those of one scale with another C.
    choices: list[tuple[tuple[int, ...], str]] = [
        ((hop,), scaling) for hop in hops for scaling in SCALINGS[1:]
    ]
    choices += [(tuple(range(last + 1)), scaling) for last in hops[1:] for scaling in SCALINGS]
    refuse_much(inputs)
    choices = [
        choice
        for choice in choices
        if sum(inputs.hop(hop).size(1) for hop in choice[0]) <= MOST_COLUMNS
    ]
    rows = inputs.draw(inputs.labels.train, COARSE_ROWS, seed)
    best: tuple[float, tuple[int, ...], str] | None = None
    seconds = 0.0
    for of_hops, scaling in choices:
        seconds += OF_PAIR * COARSE_ROWS * sum(inputs.hop(hop).size(1) for hop in of_hops) ** 2
        if best is not None and seconds > inputs.seconds / 4:
            break
        score = max(
            (inputs.valid(found) for found in _regress(inputs, rows, of_hops, scaling)),
            default=-math.inf,
        )
        if best is None or score > best[0]:
            best = score, of_hops, scaling
    if best is None:
        raise TooLong(
            f"a linear model takes at most {MOST_COLUMNS:,} columns, and there are "
            f"{inputs.hop(0).size(1):,}"
        )
    _, of_hops, scaling = best
    scores, start, (num_steps, most) = [], None, _effort(inputs, of_hops)
    strengths = STRENGTHS if num_steps else COARSE_STRENGTHS
    for strength in strengths:
        fitted = fit_hops(
            inputs, rows, of_hops, scaling, strength, start, min(num_steps, COARSE_STEPS)
        )
        start = fitted["weight"]
        scores.append(inputs.valid(predict(inputs, fitted, rows, inputs.data.valid_mask)))
    place = scores.index(max(scores))
    for strength in strengths[
        max(place - 1, 0) : place + 1
    ]:  # of more rows, the penalty weighs less
        yield Method(
            "linear",
            _title(inputs, of_hops, scaling, strength, num_steps),
            partial(
                fit_hops,
                inputs,
                hops=of_hops,
                scaling=scaling,
                strength=strength,
                num_steps=num_steps,
                most=most,
            ),
            predict,
        )


def refuse_much(inputs: Inputs) -> None:
    """Refuse columns of hops that would take much of the memory, before any is computed.

    Raises:
        TooLong: says how much.
    """
    # Those of all hops, and three copies of them in float64, of the scaled ones and of what is predicted.
    size = len(inputs.labels.y) * inputs.width * (inputs.num_hops + 1) * (4 + 3 * 8)
    if size > machine_memory() // 4:
        raise TooLong(
            f"a linear model of {inputs.width:,} columns would take about {format_bytes(size)}"
        )


def _effort(inputs: Inputs, hops: tuple[int, ...]) -> tuple[int, int]:
    """Return the steps of a fit, none for a regression, and the training rows that it reads, in the time that there is."""
    num, width = int(inputs.labels.train.sum()), sum(inputs.hop(hop).size(1) for hop in hops)
    of_step = NUM_FITS * inputs.task.out_channels * (OF_NUMBER + OF_CELL * width)
    for num_steps in (MOST_STEPS, COARSE_STEPS):
        if num * num_steps * of_step <= inputs.seconds:
            return num_steps, num
    return 0, _most_rows(inputs, NUM_FITS * OF_PAIR * width**2)


def _most_rows(inputs: Inputs, seconds: float) -> int:
    """Return how many training rows all fits may read in the time that there is.

    Args:
        seconds: what a row takes in all of them.
    """
    num, most = (
        int(inputs.labels.train.sum()),
        max(int(min(inputs.seconds / seconds, 1e15)), COARSE_ROWS),
    )
    if most < num:
        log.info(
            "simple methods: linear models are fitted to %s of %s training rows, drawn at random",
            f"{most:,}",
            f"{num:,}",
        )
    return most


def _methods_of_terms(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of TF-IDF of all texts: for many rows those that are fitted by batches; and where there is
    time, those with the two penalties that are the best on some training rows.
    """
    labels, terms, num = inputs.labels, inputs.terms, int(inputs.labels.train.sum())
    assert terms is not None
    of_row = inputs.task.out_channels * (OF_NUMBER + OF_TERM * terms.nnz / terms.shape[0])
    of_step, title = NUM_FITS * num * of_row, f"{labels.linear_name} on TF-IDF of the texts"
    if num > COARSE_ROWS and not labels.are_values:
        num_epochs = int(min(max(inputs.seconds / (OF_EPOCH * of_step), 1), TERM_EPOCHS))
        for is_hinge in (False, True) if labels.are_classes else (False,):
            name = "linear support vector machine" if is_hinge else labels.linear_name
            yield Method(
                "linear",
                f"{name} on TF-IDF of the texts ({num_epochs} epoch{'s' * (num_epochs > 1)})",
                partial(_fit_terms, inputs, num_epochs=num_epochs, is_hinge=is_hinge),
                predict,
            )
        if TERM_STEPS * of_step > inputs.seconds:
            return
    rows, scores, start = inputs.draw(labels.train, COARSE_ROWS, seed), [], None
    for strength in TERM_STRENGTHS:
        fitted = _fit_terms(inputs, rows, strength, start, COARSE_STEPS)
        start = fitted["weight"].double()
        scores.append(inputs.valid(predict(inputs, fitted, rows, inputs.data.valid_mask)))
    place, most = scores.index(max(scores)), _most_rows(inputs, NUM_FITS * TERM_STEPS * of_row)
    for strength in TERM_STRENGTHS[max(place - 1, 0) : place + 1]:
        yield Method(
            "linear",
            f"{title} (C {strength:g})",
            partial(_fit_terms, inputs, strength=strength, most=most),
            predict,
        )


def _fit_terms(
    inputs: Inputs,
    known: Bool[Tensor, " num_rows"],
    strength: float = 1.0,
    start: Tensor | None = None,
    num_steps: int = TERM_STEPS,
    most: int = 2**62,
    num_epochs: int = 0,
    is_hinge: bool = False,
) -> dict:
    """Fit a linear model of the most frequent terms of some rows, by batches if there is a number of epochs; arguments
    as of :func:`fit_linear` and :func:`fit_by_batches`. Weights are kept as float16, but for values.
    """
    assert inputs.terms is not None
    rows = inputs.draw(known, most, 0)[inputs.own]
    own, y = inputs.terms[rows.numpy()], inputs.labels.y[inputs.own][rows]
    frequency = np.bincount(own.indices, minlength=own.shape[1])
    terms = np.argsort(-frequency, kind="stable")[
        : max(MOST_WEIGHTS // inputs.task.out_channels, 1)
    ]
    terms = np.sort(terms[frequency[terms] > 0])
    weight = (
        fit_by_batches(own[:, terms], y, num_epochs, is_hinge=is_hinge)
        if num_epochs
        else fit_linear(own[:, terms], y, inputs.labels, strength, start, num_steps)
    )
    return {
        "terms": torch.from_numpy(terms),
        "mean": inputs.labels.mean(known),
        "weight": weight.float() if inputs.labels.are_values else weight.half(),
    }


def _regress(inputs: Inputs, rows: Tensor, hops: tuple[int, ...], scaling: str) -> Iterator[Tensor]:
    """Predict by ridge regression on the labels, with each of some penalties; what is unknown counts as the mean."""
    labels, fitted, asked = (
        inputs.labels,
        _scales(inputs, rows, hops, scaling),
        inputs.data.valid_mask[inputs.own],
    )
    own, x = (_columns(inputs, fitted, chosen).double() for chosen in (rows[inputs.own], asked))
    y = labels.y[rows].double()
    center, mean = own.mean(0), y.nanmean(0).nan_to_num()
    products, target = (
        (own - center).t() @ (own - center),
        (own - center).t() @ (y - mean).nan_to_num(),
    )
    for strength in COARSE_STRENGTHS:  # no other row is looked at
        factor, failed = torch.linalg.cholesky_ex(
            products + torch.eye(len(products)).double() / strength
        )
        if failed:
            continue  # columns of too different sizes
        found = mean + (x - center) @ torch.cholesky_solve(target, factor)
        found = found if labels.are_values else (LOGITS[0] * found + LOGITS[1]).sigmoid()
        yield inputs.among_all(found.float(), fitted["mean"], asked)


def _scales(inputs: Inputs, known: Tensor, hops: tuple[int, ...], scaling: str) -> dict:
    scales = [scale_columns(*inputs.moments(hop), scaling) for hop in hops]
    return {
        "hops": list(hops),
        "shift": [shift for shift, _ in scales],
        "scale": [scale for _, scale in scales],
        "mean": inputs.labels.mean(known),
    }


def fit_hops(
    inputs: Inputs,
    known: Bool[Tensor, " num_rows"],
    hops: tuple[int, ...],
    scaling: str,
    strength: float,
    start: Tensor | None = None,
    num_steps: int = MOST_STEPS,
    most: int = 2**62,
) -> dict:
    """Fit a linear model of the columns of some hops to some rows; arguments as of :func:`fit_linear`."""
    labels, rows = inputs.labels, inputs.draw(known, most, 0)[inputs.own]
    fitted = _scales(inputs, known, hops, scaling)
    weight = fit_linear(
        _columns(inputs, fitted, rows),
        labels.y[inputs.own][rows],
        labels,
        strength,
        start,
        num_steps,
    )
    return {**fitted, "weight": weight, "plan": inputs.kept_plan}


def _title(
    inputs: Inputs, hops: tuple[int, ...], scaling: str, strength: float, num_steps: int
) -> str:
    of = (
        "sums over nodes and edges"
        if inputs.are_graphs
        else "the node's own columns"
        if hops == (0,)
        else f"columns of hop {hops[0]}"
        if len(hops) == 1
        else f"columns of hops 0 to {hops[-1]}"
    )
    scale = {"none": "not scaled", "one": "one scale", "each": "each column scaled"}[scaling]
    name = inputs.labels.linear_name if num_steps else "ridge regression"
    return f"{name} on {of} ({scale}, C {strength:g})"
