"""The simple method that a run on links begins at: the best walk, or a sum of several, chosen by validation."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base.fit import SECONDS, Base
from parallel_epochs.pipeline.gnn.base.folds import halves
from parallel_epochs.pipeline.gnn.base.walks import (
    DEGREES,
    MOST_BYTES,
    POPULARITY,
    Scorer,
    Sum,
    Walk,
    find_walks,
    matrix_of,
    seconds_of_ease,
)
from parallel_epochs.pipeline.gnn.predict.ranking import (
    NUMBERS,
    Direction,
    Links,
    find_known,
    place_of,
    score_split,
    with_pairs,
)
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import (
    hits_at,
    link_metric,
    values_of_pairs,
    values_of_sources,
)
from parallel_epochs.pipeline.names import SPLITS, ranks_at
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# The part of a sum by which the popular ones of equal candidates, and of a source without links, come first.
TIE = 1e-3
# Scores with a smaller deviation are taken to be equal.
SMALLEST = 1e-6
# The matrix of EASE for more candidates is left out, since it is as large as the square of their number.
MOST_ITEMS = 20_000
# Validation sources whose candidates are compared, and candidates of each method for a source, twice K if that is more.
MOST_SOURCES, NUM_BEST = 2000, 30
# Terms of a sum that is made of one method after the other.
MOST_TERMS = 12
# Methods of a sum that its title names.
NUM_NAMED = 3


@dataclass(frozen=True)
class Trial:
    """The scores of some methods for the same pairs, links of the validation and others.

    Attributes:
        columns: scores of each method [num_rows, num_methods], float32.
        values: returns the metric of each source, or what each link adds to it, from a score for each row. The
            validation metric is their mean.
        sources: of the values; those of one source depend on each other. None: each value has its own.
    """

    columns: Float[Tensor, "num_rows num_methods"]
    values: Callable[[Tensor], Tensor]
    sources: Int[Tensor, " num_values"] | None = None


def try_out(task: LinkTask, links: Links, scorers: Sequence[Scorer]) -> Trial:
    """Score the validation links and the pairs that they are compared with by several methods.

    A metric that ranks all candidates is computed of the best ones of each method alone. In place of hits@K stands the
    mean of that of K / 2, K and 2 K.
    """
    if ranks_at(task.metric):
        return _try_sources(task.metric, links, scorers)
    pairs, negatives = task.pairs_of("valid_pairs"), task.pairs_of("valid_negatives")
    columns = torch.stack(
        [scorer.of_pairs(torch.cat([pairs, negatives])) for scorer in scorers], dim=1
    )
    each = len(negatives) // len(pairs) if task.has_own_negatives else 0

    k = hits_at(task.metric)
    # The score of the K-th negative alone is a matter of chance, which a choice would exploit.
    metrics = (
        {f"hits@{min(max(part, 1), len(negatives))}" for part in (k // 2, k, 2 * k)}
        if k
        else {task.metric}
    )

    def values(scores: Tensor) -> Tensor:
        others = scores[len(pairs) :]
        found = [
            values_of_pairs(metric, scores[: len(pairs)], others.view(-1, each) if each else others)
            for metric in sorted(metrics)
        ]
        return torch.stack(found).mean(0)

    return Trial(columns, values, pairs[:, 0])


def _try_sources(metric: str, links: Links, scorers: Sequence[Scorer]) -> Trial:
    answers, known = links.answers("valid"), links.known("valid")
    own, best = answers[:, 0].unique(), max(NUM_BEST, 2 * ranks_at(metric))
    if len(own) > MOST_SOURCES:
        chosen = stream("validation sources", 0).permutation(len(own))[:MOST_SOURCES]
        own = own[torch.from_numpy(chosen)].sort().values
    parts = []
    for direction in links.answered:
        mine = own[torch.isin(own, direction.sources)]
        for block in mine.split(
            max(1, NUMBERS // max(len(direction.candidates) * len(scorers), 1))
        ):
            parts.append(_compare(block, direction, answers, known, scorers, best))
    columns, is_link, source = (torch.cat(each) for each in zip(*parts, strict=True))
    order = source.argsort(stable=True)
    return Trial(columns[order], values_by_source(metric, is_link[order], source[order]))


def _compare(
    block: Tensor,
    direction: Direction,
    answers: Tensor,
    known: Tensor,
    scorers: Sequence[Scorer],
    best: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Score the links of some sources and the best candidates of each method."""
    scores = torch.stack([scorer(block, direction.candidates) for scorer in scorers])
    row, column = find_known(block, known[:, 0].contiguous(), known, direction)
    scores[:, row, column] = -torch.inf
    chosen, is_link = torch.zeros(2, *scores.shape[1:], dtype=torch.bool)
    for own in scores:
        chosen.scatter_(1, own.topk(min(best, own.size(1))).indices, True)
    of_block = answers[torch.isin(answers[:, 0], block)]
    is_link[
        torch.searchsorted(block, of_block[:, 0].contiguous()), place_of(direction, of_block[:, 1])
    ] = True
    row, column = ((chosen | is_link) & (scores[0] > -torch.inf)).nonzero(as_tuple=True)
    return scores[:, row, column].t(), is_link[row, column], block[row]


def values_by_source(
    metric: str, is_link: Bool[Tensor, " num_rows"], source: Int[Tensor, " num_rows"]
) -> Callable[[Tensor], Tensor]:
    """Build a function from the scores of rows to the metric of each source, which ranks its links among its rows.

    Among equal scores, a rank is the mean of the best and the worst that it could be.

    Args:
        source: in ascending order.
    """
    links, (_, counts) = is_link.nonzero().squeeze(1), source.unique(return_counts=True)
    first, place = counts.cumsum(0) - counts, source.unique(return_inverse=True)[1][links]
    # Each link is compared with each row of its source.
    link = torch.arange(len(links)).repeat_interleave(counts[place])
    start = counts[place].cumsum(0) - counts[place]
    row = torch.arange(len(link)) - start[link] + first[place][link]

    def values(scores: Tensor) -> Tensor:
        others, own = scores[row], scores[links][link]
        counted = (others > own).double() + 0.5 * (others == own).double()
        ranks = torch.zeros(len(links), dtype=torch.float64).index_add_(0, link, counted) + 0.5
        return values_of_sources(metric, ranks, source[links])

    return values


def add_up(trial: Trial, picked: Bool[Tensor, " num_values"]) -> Float[Tensor, " num_methods"]:
    """Add up methods, one after the other, each time the one with the best metric of some values; return the best sum.

    A method may be added again, so that weights are whole numbers; a worse sum may lead to a better one
    (Caruana et al., "Ensemble Selection from Libraries of Models", ICML 2004).
    """
    weights = torch.zeros(trial.columns.size(1))
    best, chosen = -torch.inf, weights
    for _ in range(MOST_TERMS):
        total = trial.columns @ weights
        found = torch.stack(
            [trial.values(total + column)[picked].mean() for column in trial.columns.t()]
        )
        weights = weights.clone()
        weights[found.argmax()] += 1
        if float(found.max()) > best:
            best, chosen = float(found.max()), weights
    return chosen


def fit_link_base(data: Data, task: LinkTask, seconds: float) -> Base:
    """Choose the best walk, or the best sum of several, by the validation metric.

    A sum is chosen if it is better than each walk on validation links that did not choose its weights: each half of
    them is scored by the sum that is chosen by the other half. The walks know the training links alone.

    Args:
        seconds: that all walks may take, by an estimate that does not depend on the machine.
    """
    began, of_pairs = time.perf_counter(), not ranks_at(task.metric)
    links = Links(data)
    walks = _affordable(links, data, seconds, of_pairs=of_pairs)
    raw = try_out(task, links, [Sum([(1.0, walk)], links.direct) for walk in walks.values()])
    columns, tie = raw.columns.clamp(min=0), DEGREES if of_pairs else POPULARITY
    units = {
        name: float(column[column > 0].median()) if bool((column > 0).any()) else 1.0
        for name, column in zip(walks, columns.unbind(1), strict=True)
    }
    columns = (columns / torch.tensor(list(units.values()))).log1p()
    scale = dict(zip(walks, columns.std(0, correction=0).tolist(), strict=True))
    differs = [scale[name] > SMALLEST or name == tie for name in walks]
    names = [name for name, is_kept in zip(walks, differs, strict=True) if is_kept]
    scale[tie] = scale[tie] if scale[tie] > SMALLEST else 1.0
    columns = columns[:, differs] / torch.tensor([scale[name] for name in names])
    columns += TIE * columns[:, [names.index(tie)]].clone()
    trial = Trial(columns, raw.values)
    alone = torch.stack([trial.values(column) for column in columns.t()], dim=1)
    best = int(alone.mean(0).argmax())
    parts = [
        float(trial.values(columns @ add_up(trial, ~half))[half].sum())
        for half in halves(len(alone))
    ]
    across, of_best = sum(parts) / len(alone), float(alone.mean(0)[best])
    weights = torch.zeros(len(names)).index_fill_(0, torch.tensor(best), 1)
    if across > of_best:
        weights = add_up(trial, torch.ones(len(alone), dtype=torch.bool))
    title = _title(names, weights.tolist())
    log.info(
        "task.base=auto: %s; valid %.4f on links that chose no weights, best single method %s %.4f",
        title,
        across,
        names[best],
        of_best,
    )
    is_sum = int((weights > 0).sum()) > 1
    weights[names.index(tie)] += TIE * float(weights.sum())
    fitted = {
        "weights": {
            name: float(weight) / scale[name]
            for name, weight in zip(names, weights, strict=True)
            if weight > 0
        },
        "units": units,
    }
    own = Base("sum" if is_sum else "walk", title, None, {}, False, 0.0, fitted)
    scores = {
        split: score_by(scorer_of(own, data, task, of_test=split == "test"), task, split)
        for split in SPLITS[1:]
    }
    return replace(own, scores={"train": math.nan, **scores}, seconds=time.perf_counter() - began)


def scorer_of(base: Base, data: Data, task: LinkTask, *, of_test: bool) -> Sum:
    """Build what scores pairs of a graph by its training links.

    Args:
        data: without pairs, all of its edges are links that are known.
        of_test: whether validation links are known too, where they are edges of the graph that the test is predicted
            from.

    Raises:
        ValueError: the graph has other relations than that of the training.
    """
    links, weights = Links(with_pairs(data)), base.fitted["weights"]
    known = [
        links.answers("train"),
        *[links.answers("valid")] * (of_test and task.test_data is not None),
    ]
    found = find_walks(
        links,
        matrix_of(torch.cat(known), links.num_nodes),
        data,
        of_pairs=not ranks_at(task.metric),
        asked=weights,
    )
    if unknown := [name for name in weights if name not in found]:
        raise ValueError(
            f"the simple method of the run reads {unknown[0]}, which these data or this version do not "
            "have. Train with task.base=none, or use the version that summary.json names"
        )
    num_items = _count_items(links)
    if num_items > MOST_ITEMS and any(name.startswith("EASE") for name in weights):
        raise ValueError(
            f"the simple method of the run is EASE, which inverts a matrix of all targets, and these data "
            f"have {num_items:,}; {MOST_ITEMS:,} are the most. Train with task.base=none"
        )
    return Sum(
        [
            (weight, found[name]().in_logarithms(base.fitted["units"][name]))
            for name, weight in weights.items()
        ],
        links.direct,
    )


def score_by(score: Sum, task: LinkTask, split: str) -> float:
    """Compute the metric of a simple method on validation or test, NaN without pairs."""
    if not task.is_defined(split):
        return math.nan
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


def score_each(data: Data, task: LinkTask, seconds: float = SECONDS) -> Iterator[Baseline]:
    """Score each walk that there is time for; they know the training links alone.

    Args:
        seconds: that all of them may take, by an estimate that does not depend on the machine.
    """
    links = Links(data)
    walks = _affordable(links, data, seconds, of_pairs=not ranks_at(task.metric))
    for name, walk in walks.items():
        began, score = time.perf_counter(), Sum([(1.0, walk)], links.direct)
        scores = {split: score_by(score, task, split) for split in SPLITS[1:]}
        yield Baseline(name, {"train": math.nan, **scores}, time.perf_counter() - began)
