"""The simple method that a run on links begins at: the best walk, or a sum of several, chosen by validation."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base.folds import halves
from parallel_epochs.pipeline.gnn.base.linear_links import MOST_BYTES
from parallel_epochs.pipeline.gnn.base.link_trial import Trial, add_up, try_out
from parallel_epochs.pipeline.gnn.base.walks import (
    DEGREES,
    POPULARITY,
    Sum,
    Walk,
    find_walks,
    matrix_of,
    seconds_of_ease,
)
from parallel_epochs.pipeline.gnn.predict.ranking import Links, score_split, with_pairs
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import link_metric
from parallel_epochs.pipeline.names import SPLITS, ranks_at

log = logging.getLogger(__name__)

# The part of a sum by which the popular ones of equal candidates, and of a source without links, come first.
TIE = 1e-3
# Scores with a smaller deviation are taken to be equal.
SMALLEST = 1e-6
# The matrix of EASE for more candidates is left out, since it is as large as the square of their number.
MOST_ITEMS = 20_000
# Methods of a sum that its title names.
NUM_NAMED = 3


@dataclass(frozen=True)
class LinkBase:
    """A sum of log(1 + x / unit) of walks, each times a weight.

    Attributes:
        name: "walk" for a single one, "sum" for several.
        title: for people.
        weights, units: of each walk, by its name.
        scores: the metric of validation and test.
        seconds: what all methods together took.
    """

    name: str
    title: str
    weights: dict[str, float]
    units: dict[str, float]
    scores: dict[str, float]
    seconds: float


def fit_link_base(data: Data, task: LinkTask, seconds: float) -> LinkBase:
    """Choose the best walk, or the best sum of several, by the validation metric.

    The weights of a sum are whole numbers, or those of a conditional logit. A sum is chosen if it is better than each
    walk on validation links that did not choose its weights: each half of them is scored by the sum that is chosen by
    the other half. The walks know the training links alone.

    Args:
        seconds: that all walks may take, by an estimate that does not depend on the machine.
    """
    began, of_pairs = time.perf_counter(), not ranks_at(task.metric)
    links = Links(data)
    walks = _affordable(links, data, seconds, of_pairs=of_pairs)
    raw = try_out(task, links, [Sum([(1.0, walk)], links.direct) for walk in walks.values()])
    units = torch.stack(
        [
            column[column > 0].median() if bool((column > 0).any()) else torch.tensor(1.0)
            for column in raw.columns.t()
        ]
    )
    raw.columns.clamp_(min=0).div_(units).log1p_()
    scale, tie = (
        raw.columns.std(0, correction=0),
        list(walks).index(DEGREES if of_pairs else POPULARITY),
    )
    differs = scale > SMALLEST
    scale[~differs], differs[tie] = 1.0, True
    names, tie = (
        [name for name, is_kept in zip(walks, differs, strict=True) if is_kept],
        int(differs[:tie].sum()),
    )
    raw, units, scale = (
        Trial(raw.columns[:, differs], raw.values, raw.fit),
        units[differs],
        scale[differs],
    )
    raw.columns.div_(scale).add_(TIE * raw.columns[:, [tie]].clone())
    alone = torch.stack([raw.values(column) for column in raw.columns.t()], dim=1)
    best = int(alone.mean(0).argmax())
    rules: list[Callable[[Tensor], Tensor]] = [partial(add_up, raw)]
    if raw.fit is not None:
        rules.append(partial(raw.fit, raw.columns))
    found = [
        sum(float(raw.values(raw.columns @ rule(~half))[half].sum()) for half in halves(len(alone)))
        / len(alone)
        for rule in rules
    ]
    across = max(found)
    if across > float(alone.mean(0)[best]):
        weights = rules[found.index(across)](torch.ones(len(alone), dtype=torch.bool))
    else:
        weights = torch.zeros(len(names)).index_fill_(0, torch.tensor(best), 1)
    title, name = _title(names, weights.tolist()), "sum" if int((weights > 0).sum()) > 1 else "walk"
    log.info(
        "task.base=auto: %s; valid %.4f on links that chose no weights, best single method %s %.4f",
        title,
        across,
        names[best],
        float(alone.mean(0)[best]),
    )
    weights[tie] += TIE * float(weights.sum())
    chosen = {
        name: float(weights[place] / scale[place])
        for place, name in enumerate(names)
        if weights[place] > 0
    }
    own = LinkBase(
        name, title, chosen, {name: float(units[names.index(name)]) for name in chosen}, {}, 0.0
    )
    scores = {split: score_simple(own, data, task, split) for split in SPLITS[1:]}
    return LinkBase(
        own.name,
        title,
        chosen,
        own.units,
        {"train": math.nan, **scores},
        time.perf_counter() - began,
    )


def scorer_of(base: LinkBase, data: Data, task: LinkTask, *, of_test: bool) -> Sum:
    """Build what scores pairs of a graph by its training links.

    Args:
        data: without pairs, all of its edges are links that are known.
        of_test: whether validation links are known too, where they are edges of the graph that the test is predicted
            from.

    Raises:
        ValueError: the graph has other relations than that of the training.
    """
    links = Links(with_pairs(data))
    known = [
        links.answers("train"),
        *[links.answers("valid")] * (of_test and task.test_data is not None),
    ]
    found = find_walks(
        links,
        matrix_of(torch.cat(known), links.num_nodes),
        data,
        of_pairs=not ranks_at(task.metric),
        asked=base.weights,
    )
    if unknown := [name for name in base.weights if name not in found]:
        raise ValueError(
            f"the simple method of the run reads {unknown[0]}, which these data do not have. Train with "
            "task.base=none"
        )
    num_items = _count_items(links)
    if num_items > MOST_ITEMS and any(name.startswith("EASE") for name in base.weights):
        raise ValueError(
            f"the simple method of the run is EASE, which inverts a matrix of all targets, and these data "
            f"have {num_items:,}; {MOST_ITEMS:,} are the most. Train with task.base=none"
        )
    return Sum(
        [
            (weight, found[name]().in_logarithms(base.units[name]))
            for name, weight in base.weights.items()
        ],
        links.direct,
    )


def score_simple(base: LinkBase, data: Data, task: LinkTask, split: str) -> float:
    """Compute the metric of a simple method on validation or test, NaN without pairs."""
    if not task.is_defined(split):
        return math.nan
    score = scorer_of(base, data, task, of_test=split == "test")
    if task.links is not None:
        return score_split(task.links, score, task.metric, split)
    pairs, negatives = (
        score.of_pairs(task.pairs_of(f"{split}_{kind}")) for kind in ("pairs", "negatives")
    )
    return link_metric(
        task.metric, pairs, negatives.view(len(pairs), -1) if task.has_own_negatives else negatives
    )


def _affordable(links: Links, data: Data, seconds: float, *, of_pairs: bool) -> dict[str, Walk]:
    """Build the walks that there is time for."""
    matrix, walks, left_out = (
        matrix_of(links.answers("train"), links.num_nodes),
        dict[str, Walk](),
        [],
    )
    num_sources = sum(len(links.answers(split)[:, 0].unique()) for split in SPLITS[1:])
    num_pairs = sum(
        len(data[f"{split}_{kind}"]) for split in SPLITS[1:] for kind in ("pairs", "negatives")
    )
    num_items, left, room = _count_items(links), seconds, MOST_BYTES
    for name, build in find_walks(links, matrix, data, of_pairs=of_pairs).items():
        is_ease = name.startswith("EASE")
        room -= is_ease * 4 * num_items**2
        if is_ease and (num_items > MOST_ITEMS or room < 0 or seconds_of_ease(links) > left):
            left_out.append(name)
            continue
        walk = build()
        cost = walk.seconds(
            num_sources, num_pairs if of_pairs else None
        ) + is_ease * seconds_of_ease(links)
        if cost > left and walks:
            left_out.append(name)
            continue
        left -= cost
        walks[name] = walk
    if left_out:
        log.info(
            "task.base=auto: %s left out, since they would take more than task.base_seconds=%g or too much memory",
            ", ".join(left_out),
            seconds,
        )
    return walks


def _count_items(links: Links) -> int:
    """Count the nodes that may be the target of a link."""
    return len(torch.cat([one.candidates for one in links.answered]).unique())


def _title(names: Sequence[str], weights: Sequence[float]) -> str:
    found = sorted(
        ((weight, name) for weight, name in zip(weights, names, strict=True) if weight > 0),
        key=lambda each: -each[0],
    )
    if len(found) == 1:
        return found[0][1]
    shown = ", ".join(f"{weight:g} x {name}" for weight, name in found[:NUM_NAMED])
    return f"a sum of {len(found)} methods ({shown}{', ...' * (len(found) > NUM_NAMED)})"
