"""Validation links that methods and mixtures of methods are compared on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from parallel_epochs.pipeline.gnn.base.walks import Scorer
from parallel_epochs.pipeline.gnn.predict.ranking import (
    NUMBERS,
    Direction,
    Links,
    find_known,
    place_of,
)
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import hits_at, values_of_pairs, values_of_sources
from parallel_epochs.pipeline.names import ranks_at
from parallel_epochs.pipeline.run.seeds import stream

# Validation sources whose candidates are compared, and candidates of each method for a source, twice K if that is more.
MOST_SOURCES, NUM_BEST = 2000, 30
# Terms of a sum that is made of one method after the other.
MOST_TERMS = 12
# Penalty of the squares of the weights of a conditional logit, and steps of its fit.
SHRINKAGE, NUM_STEPS = 1e-3, 80
# A method with a smaller part of the largest weight is left out.
SMALLEST_SHARE = 0.01


@dataclass(frozen=True)
class Trial:
    """The scores of some methods for the same pairs, links of the validation and others.

    Attributes:
        columns: scores of each method [num_rows, num_methods], float32.
        values: returns the metric of each source, or what each link adds to it, from a score for each row. The
            validation metric is their mean, and they are as good as independent of each other.
        fit: returns weights of columns from some of these values, see :func:`fit_logit`; none for metrics of pairs.
    """

    columns: Float[Tensor, "num_rows num_methods"]
    values: Callable[[Tensor], Tensor]
    fit: Callable[[Tensor, Tensor], Tensor] | None = None


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

    return Trial(columns, values)


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
    columns, is_link, is_best, source = (torch.cat(each) for each in zip(*parts, strict=True))
    order = source.argsort(stable=True)
    columns, is_link, is_best, source = (
        columns[order],
        is_link[order],
        is_best[order],
        source[order],
    )
    return Trial(
        columns,
        values_by_source(metric, is_link, source),
        partial(
            fit_logit, is_link=is_link, is_best=is_best, place=source.unique(return_inverse=True)[1]
        ),
    )


def _compare(
    block: Tensor,
    direction: Direction,
    answers: Tensor,
    known: Tensor,
    scorers: Sequence[Scorer],
    best: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    return scores[:, row, column].t(), is_link[row, column], chosen[row, column], block[row]


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


def fit_logit(
    columns: Float[Tensor, "num_rows num_methods"],
    picked: Bool[Tensor, " num_sources"],
    *,
    is_link: Bool[Tensor, " num_rows"],
    is_best: Bool[Tensor, " num_rows"],
    place: Int[Tensor, " num_rows"],
) -> Float[Tensor, " num_methods"]:
    """Fit a conditional logit: weights from 0 that make the links of some sources likely among all rows of a source.

    A link that is among the best of no method is left out. The other rows are there because some method ranks them
    high, so such links would be told from them by low scores.

    Args:
        picked: whether a source counts.
        is_best: whether a row is among the best of any method.
        place: number of the source of each row.
    """
    rows = (picked[place] & is_best).nonzero().squeeze(1)
    own, source, link = columns[rows].double(), place[rows], is_link[rows]
    roots = torch.full(
        (columns.size(1),), columns.size(1) ** -0.5, dtype=torch.float64, requires_grad=True
    )
    optimizer = torch.optim.LBFGS([roots], max_iter=NUM_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        score = own @ roots.square()
        most = torch.zeros(len(picked), dtype=score.dtype).scatter_reduce(
            0, source, score.detach(), "amax"
        )
        total = torch.zeros_like(most).index_add(0, source, (score - most[source]).exp())
        found = (most[source] + total.clamp(min=1e-300).log()[source] - score)[link].sum() / max(
            int(link.sum()), 1
        )
        found = found + SHRINKAGE * roots.square().square().sum()
        found.backward()
        return found

    optimizer.step(loss)
    weights = roots.detach().square().float()
    return weights * (weights > SMALLEST_SHARE * weights.max())
