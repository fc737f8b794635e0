"""Linear models of the nodes' own columns, of their means over one to three hops, and of the terms of their texts."""

import logging
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits
from torch import Tensor

from parallel_epochs.pipeline.data.tables.text import NUM_TERMS
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.method import Method, TooLong
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory

log = logging.getLogger(__name__)

# Weights of the likelihood against the penalty, as scikit-learn's C; of ridge regression, 1 / alpha. Models of terms
# have others.
STRENGTHS, TERM_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), (0.1, 1.0, 10.0)
# Factor and constant that make a regression on 0 and 1 logits, and the logit of a class that no row has.
LOGITS, ABSENT = (4.0, -2.0), -30.0
# The columns of a hop are divided by nothing, by one number for all of them, or by the deviation of each.
SCALINGS = {"none": "not scaled", "one": "one scale", "each": "each column scaled"}
# Columns that numbers are predicted by one at a time, steps of a fit, columns of all hops and weights of a model of
# terms at most.
MOST_LINES, MOST_STEPS, MOST_COLUMNS, MOST_WEIGHTS = 5, 100, 20_000, 1 << 23
# A deviation so many times the median is that of a column of another unit.
UNLIKE = 10.0
# Columns and scalings are compared on so many training rows at most, by regressions of these strengths; those of few
# rows are logistic.
COARSE_ROWS, COARSE_STRENGTHS, FEW_ROWS = 3_000, (0.01, 1.0, 100.0), 1_000
# Seconds for each logit, and for each of its columns or terms, in a step of a fit, and for each pair of columns in a
# regression; and fits to all rows or four folds.
OF_NUMBER, OF_CELL, OF_TERM, OF_PAIR, NUM_FITS = 2e-9, 1e-10, 1e-9, 1e-10, 7

Model = TypeVar("Model", LinearSVC, LogisticRegression, Ridge)


def fit_linear(
    x: Float[Tensor, "num_rows channels"] | sp.csr_array,
    y: Float[Tensor, "num_rows columns"],
    labels: Labels,
    strength: float,
    *,
    is_quick: bool = False,
) -> Float[Tensor, "channels_and_one columns"]:
    """Fit one model of all classes, or of each column of labels, with a penalty of the squared weights.

    Classes have a logistic regression on columns, and a linear support vector machine on terms. Each binary task has
    a logistic regression, and values have ridge regression.

    Args:
        x: columns, scaled, or terms [num_rows, channels].
        y: labels; NaN is unknown.
        labels: say what kind of labels they are.
        strength: weight of the likelihood, as scikit-learn's C.
        is_quick: whether classes and binary tasks, as 0 and 1, have ridge regression too. There, what is unknown of a
            task counts as its mean.

    Returns:
        Weights, and below them the constants; float64.
    """
    known = ~y.isnan()
    rows = x.double().numpy() if isinstance(x, Tensor) else x.astype(np.float64)
    if isinstance(rows, sp.csr_array):  # the solver takes no wider integers
        rows.indices, rows.indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    out = torch.zeros(rows.shape[1] + 1, y.size(1), dtype=torch.float64)
    present = torch.arange(y.size(1))
    if labels.are_classes:
        rows, y = rows[known[:, 0].numpy()], y[known[:, 0]]
        present = y.any(0).nonzero().squeeze(1)
        out[-1] = ABSENT
        if len(present) < 2:
            out[-1, present] = -ABSENT
            return out
        if not is_quick:
            model, scale = LogisticRegression(C=strength, max_iter=MOST_STEPS), 1.0
            if sp.issparse(rows):
                model, scale = LinearSVC(C=strength, random_state=0), LOGITS[0]
            _fit(model, rows, y.argmax(1).numpy())
            both = torch.from_numpy(np.column_stack([model.coef_, model.intercept_])) * scale
            out[:, present[-len(both) :]] = both.t()  # of two classes, the second has all weights
            if len(both) == 1:
                out[-1, present[0]] = 0
            return out
    elif not labels.are_values and is_quick:
        y = y.where(known, y.nanmean(0).nan_to_num())
    elif not labels.are_values:
        for task in range(y.size(1)):
            out[:, task] = _fit_task(
                rows[known[:, task].numpy()], y[known[:, task], task], strength
            )
        return out
    given = ~y.isnan()
    parts = [present] if bool((given == given[:, :1]).all()) else list(present.split(1))
    for part in parts:
        chosen = given[:, part[0]]
        if bool(chosen.any()):
            target = y[chosen][:, part].double().numpy()
            model = _fit(Ridge(alpha=1 / strength), rows[chosen.numpy()], target)
            out[:-1, part] = torch.from_numpy(model.coef_).view(len(part), -1).t()
            out[-1, part] = torch.from_numpy(model.intercept_)
    if not labels.are_values:
        out[:, present] *= LOGITS[0]
        out[-1, present] += LOGITS[1]
    return out


def _fit_task(
    rows: np.ndarray | sp.csr_array, y: Float[Tensor, " num_rows"], strength: float
) -> Float[Tensor, " channels_and_one"]:
    """Fit a logistic regression of a binary task; where no label, or one value, is known, a constant."""
    out = torch.zeros(rows.shape[1] + 1, dtype=torch.float64)
    if len(values := y.unique()) < 2:
        out[-1] = 0.0 if not len(values) else -ABSENT if values[0] else ABSENT
        return out
    model = _fit(LogisticRegression(C=strength, max_iter=MOST_STEPS), rows, y.numpy())
    out[:-1], out[-1] = torch.from_numpy(model.coef_[0]), float(model.intercept_[0])
    return out


def _fit(model: Model, x: np.ndarray | sp.csr_array, y: np.ndarray) -> Model:
    """Fit a model without its warnings of steps that were not enough, and of columns of too different sizes."""
    with warnings.catch_warnings(), threadpool_limits(1, "blas"):  # the bits of any machine
        warnings.simplefilter("ignore")
        return model.fit(x, y)


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
        weight = fitted["weight"][places].float().numpy()
        rows = torch.from_numpy(own[:, terms[places]] @ weight) + fitted["weight"][-1]
    else:
        inputs.follow(fitted)
        weight = fitted["weight"]
        rows = _columns(inputs, fitted, chosen).double() @ weight[:-1] + weight[-1]
    if labels.are_classes:
        rows = rows.softmax(1)
    elif not labels.are_values:
        rows = rows.sigmoid()
    return inputs.among_all(rows.float(), fitted["mean"], chosen)


def methods(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of all training rows: of terms, and of columns."""
    if inputs.labels.are_values and not inputs.are_graphs and inputs.width:
        yield from _lines(inputs)
    if inputs.terms is not None:
        yield from _methods_of_terms(inputs, seed)
    try:
        yield from _methods_of_columns(inputs, seed)
    except TooLong as error:
        if inputs.terms is None:
            raise
        log.info("simple methods: linear models read the texts alone: %s", error)


def _lines(inputs: Inputs) -> Iterator[Method]:
    """Yield straight lines of single columns, those that the labels follow best: the value of today, of tomorrow's."""
    chosen = inputs.labels.train[inputs.own]
    x, y = inputs.hop(0)[chosen].double(), inputs.labels.y[inputs.own][chosen].double()
    x, y = x - x.mean(0), (y - y.nanmean(0)).nan_to_num()
    likeness = (x.t() @ y).square().sum(1) / x.square().sum(0)
    for column in likeness.nan_to_num().topk(min(MOST_LINES, len(likeness))).indices.tolist():
        fit = partial(fit_hops, inputs, hops=(0,), scaling="none", strength=1e6, column=column)
        yield Method("linear", f"a straight line of column {column}", fit, predict)


def _methods_of_columns(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of the columns and with the scaling that are the best on some training rows.

    Where there are many training rows, ridge regressions on all classes at once choose columns and scaling.
    """
    refuse_much(inputs)
    num_train = int(inputs.labels.train.sum())
    num_rows = min(num_train, COARSE_ROWS)

    def is_long(width: int) -> bool:
        of_step = NUM_FITS * inputs.task.out_channels * (OF_NUMBER + OF_CELL * width)
        return inputs.labels.are_values or num_train * MOST_STEPS * of_step > inputs.seconds

    hops, widths = range(inputs.num_hops + 1), dict[tuple[int, ...], int]()
    # With one hop alone, unscaled columns are those of one scale with another C.
    choices: list[tuple[tuple[int, ...], str]] = [
        ((hop,), scaling) for hop in hops for scaling in ("one", "each")
    ]
    choices += [(tuple(range(last + 1)), scaling) for last in hops[1:] for scaling in SCALINGS]
    rows, best, seconds = inputs.draw(inputs.labels.train, COARSE_ROWS, seed), None, 0.0
    for of_hops, scaling in choices:
        widths[of_hops] = width = sum(inputs.hop(hop).size(1) for hop in of_hops)
        seconds += OF_PAIR * num_rows * width * min(width, num_rows)
        if width > MOST_COLUMNS or best is not None and seconds > inputs.seconds / 4:
            continue
        is_quick = num_train > FEW_ROWS or is_long(width)
        scores = _scores(inputs, rows, of_hops, scaling, COARSE_STRENGTHS, is_quick=is_quick)
        if best is None or max(scores) > best[0]:
            best = max(scores), of_hops, scaling
    if best is None:
        raise TooLong(
            f"a linear model takes at most {MOST_COLUMNS:,} columns, and there are "
            f"{inputs.hop(0).size(1):,}"
        )
    _, of_hops, scaling = best
    kinds = {is_long(widths[of_hops])}
    if not inputs.labels.are_classes:
        kinds.add(True)  # on some data, ridge regression of a binary task is better
    found = {
        is_quick: _scores(inputs, rows, of_hops, scaling, STRENGTHS, is_quick=is_quick)
        for is_quick in kinds
    }
    is_quick, scores = max(found.items(), key=lambda each: max(each[1]))
    most = _most_rows(inputs, NUM_FITS * OF_PAIR * widths[of_hops] ** 2 if is_quick else 0.0)
    place = scores.index(max(scores))
    for strength in STRENGTHS[max(place - 1, 0) : place + 1]:
        # The penalty weighs less with more rows.
        keys: dict[str, Any] = {"hops": of_hops, "scaling": scaling, "strength": strength}
        yield Method(
            "linear",
            _title(inputs, of_hops, scaling, strength, is_quick=is_quick),
            partial(fit_hops, inputs, **keys, is_quick=is_quick, most=most),
            predict,
        )


def _scores(
    inputs: Inputs,
    rows: Tensor,
    hops: tuple[int, ...],
    scaling: str,
    strengths: tuple[float, ...],
    *,
    is_quick: bool,
) -> list[float]:
    """Score models of some training rows by validation, one for each strength."""
    fits = (
        fit_hops(inputs, rows, hops, scaling, strength, is_quick=is_quick) for strength in strengths
    )
    return [inputs.valid(predict(inputs, fit, rows, inputs.data.valid_mask)) for fit in fits]


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


def _most_rows(inputs: Inputs, seconds: float) -> int:
    """Return how many training rows all fits may read in the time that there is.

    Args:
        seconds: what a row takes in all of them.
    """
    num = int(inputs.labels.train.sum())
    most = max(int(min(inputs.seconds / max(seconds, 1e-12), num)), min(COARSE_ROWS, num))
    if most < num:
        log.info(
            "simple methods: linear models are fitted to %s of %s training rows, drawn at random",
            f"{most:,}",
            f"{num:,}",
        )
    return most


def _methods_of_terms(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield linear models of TF-IDF of all texts, with the two penalties that are the best on some training rows."""
    labels, terms = inputs.labels, inputs.terms
    assert terms is not None
    of_row = inputs.task.out_channels * (OF_NUMBER + OF_TERM * terms.nnz / terms.shape[0])
    rows, scores = inputs.draw(labels.train, COARSE_ROWS, seed), list[float]()
    for strength in TERM_STRENGTHS:
        fitted = _fit_terms(inputs, rows, strength)
        scores.append(inputs.valid(predict(inputs, fitted, rows, inputs.data.valid_mask)))
    place, most = scores.index(max(scores)), _most_rows(inputs, NUM_FITS * MOST_STEPS * of_row)
    name = "linear support vector machine" if labels.are_classes else "ridge regression"
    for strength in TERM_STRENGTHS[max(place - 1, 0) : place + 1]:
        yield Method(
            "linear",
            f"{name} on TF-IDF of the texts (C {strength:g})",
            partial(_fit_terms, inputs, strength=strength, most=most),
            predict,
        )


def _fit_terms(
    inputs: Inputs, known: Bool[Tensor, " num_rows"], strength: float = 1.0, most: int = 2**62
) -> dict:
    """Fit a linear model of the most frequent terms of some rows. Weights are kept as float16, but for values."""
    assert inputs.terms is not None
    rows = inputs.draw(known, most, 0)[inputs.own]
    own, y = inputs.terms[rows.numpy()], inputs.labels.y[inputs.own][rows]
    frequency = np.bincount(own.indices, minlength=own.shape[1])
    terms = np.argsort(-frequency, kind="stable")[
        : max(MOST_WEIGHTS // inputs.task.out_channels, 1)
    ]
    terms = np.sort(terms[frequency[terms] > 0])
    quick = not inputs.labels.are_classes
    weight = fit_linear(own[:, terms], y, inputs.labels, strength, is_quick=quick)
    return {
        "terms": torch.from_numpy(terms),
        "mean": inputs.labels.mean(known),
        "weight": weight.float() if inputs.labels.are_values else weight.half(),
    }


def fit_hops(
    inputs: Inputs,
    known: Bool[Tensor, " num_rows"],
    hops: tuple[int, ...],
    scaling: str,
    strength: float,
    *,
    is_quick: bool = False,
    most: int = 2**62,
    column: int | None = None,
) -> dict:
    """Fit a linear model of the columns of some hops to some rows.

    Args:
        strength, is_quick: as of :func:`fit_linear`.
        most: of the rows that are read, drawn at random.
        column: the only one that is read. None: all are.
    """
    rows, scales = inputs.draw(known, most, 0)[inputs.own], []
    for hop in hops:
        mean, std = inputs.moments(hop)
        std = torch.where(std <= 1e-6 * mean.abs(), 0.0, std)
        if scaling == "one":
            # Columns of another unit than most, such as a degree beside shares of words, keep a scale of their own.
            alike = std <= UNLIKE * std[std > 0].quantile(0.5, interpolation="nearest")
            std = std.where(~alike, std[alike].square().mean().sqrt())
        scales.append(torch.where(std > 0, std, 1.0) if scaling != "none" else torch.ones_like(std))
    fitted = {
        "hops": list(hops),
        "shift": [inputs.moments(hop)[0] for hop in hops],
        "scale": scales,
        "mean": inputs.labels.mean(known),
    }
    x, y = _columns(inputs, fitted, rows), inputs.labels.y[inputs.own][rows]
    own = slice(None) if column is None else [column]
    found = fit_linear(x[:, own], y, inputs.labels, strength, is_quick=is_quick)
    weight = torch.zeros(x.size(1) + 1, y.size(1), dtype=torch.float64)
    weight[:-1][own], weight[-1] = found[:-1], found[-1]
    return {**fitted, "weight": weight, "plan": inputs.kept_plan, "loops": True}


def _columns(inputs: Inputs, fitted: dict, chosen: Tensor | slice) -> Tensor:
    """Return the scaled columns of all hops of a model for some of the rows that may have labels."""
    parts = zip(fitted["hops"], fitted["shift"], fitted["scale"], strict=True)
    return torch.cat(
        [
            ((inputs.hop(hop)[chosen].double() - shift) / scale).float()
            for hop, shift, scale in parts
        ],
        dim=1,
    )


def _title(
    inputs: Inputs, hops: tuple[int, ...], scaling: str, strength: float, *, is_quick: bool
) -> str:
    of = f"columns of hops 0 to {hops[-1]}"
    if inputs.are_graphs:
        of = "sums over nodes and edges"
    elif len(hops) == 1:
        of = f"columns of hop {hops[0]}" if hops[0] else "the node's own columns"
    name = "ridge regression" if is_quick else "logistic regression"
    return f"{name} on {of} ({SCALINGS[scaling]}, C {strength:g})"
