"""Ranks all candidates of a source: which node is linked to it next."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.links import (
    find_links,
    find_sides,
    link_relation_of,
)
from parallel_epochs.pipeline.metrics import ranking_metric
from parallel_epochs.pipeline.names import FIRST_SOURCE, PAIR_TIMES, SPLITS

# Scores that are held at a time.
NUMBERS = 1 << 24

# Returns the scores of all pairs of some sources and some candidates [num_sources, num_candidates], more is better.
BlockScorer = Callable[
    [Int[Tensor, " num_sources"], Int[Tensor, " num_candidates"]],
    Float[Tensor, "num_sources num_candidates"],
]


@dataclass(frozen=True)
class Direction:
    """The sources of a kind of links, and the nodes that are ranked for each of them.

    Attributes:
        sources, candidates: numbers of nodes in ascending order, int64.
    """

    sources: Int[Tensor, " num_sources"]
    candidates: Int[Tensor, " num_candidates"]


@dataclass(frozen=True)
class Best:
    """The best candidates of sources, those of a source one behind the other, the best first.

    Attributes:
        sources, targets: numbers of nodes [n], int64.
        ranks: from 1 [n], int64.
        scores: [n], float32.
    """

    sources: Int[Tensor, " n"]
    targets: Int[Tensor, " n"]
    ranks: Int[Tensor, " n"]
    scores: Float[Tensor, " n"]

    def in_order_of(self, sources: Int[Tensor, " num_sources"]) -> "Best":
        """Return the same in the order of some sources, each of which is named once."""
        ascending, place = sources.sort()
        order = place[torch.searchsorted(ascending, self.sources)].argsort(stable=True)
        return Best(*(getattr(self, one.name)[order] for one in fields(self)))


class Links:
    """The links of a graph with pairs, as answers to the question which node comes next.

    A link of a relation is an answer for its source. A link of a graph without relations has no direction, and is an
    answer for both of its ends; of a bipartite graph it is an answer for the end on the side of the sources, where it
    is known which that is (:data:`pipeline.names.FIRST_SOURCE`). A node with itself is never a candidate, and neither
    is a node that is linked to the source already, in either direction.

    Args:
        data: a graph with the pairs of :data:`pipeline.names.PAIRS`.

    Attributes:
        directions: of a bipartite graph there is one for each side, that of the sources first if it is known.
        is_two_way: whether both ends of a link are sources.
        relation: of the links; none in a graph of one kind of edges.
    """

    def __init__(self, data: Data):
        self.num_nodes, self._pairs = (
            data.num_nodes,
            {split: data[f"{split}_pairs"].long() for split in SPLITS},
        )
        self.relation, self._side = (own := link_relation_of(data)), None
        self._times: Tensor | None = data.get(PAIR_TIMES)
        self.is_two_way, every = own is None, torch.arange(data.num_nodes)
        if own is not None:
            self.directions = [
                Direction(*(every[nodes.start : nodes.stop] for nodes in (own.source, own.target)))
            ]
            return
        links = torch.cat(list(self._pairs.values()))
        if (side := find_sides(links, data.num_nodes)) is None:
            self.directions = [Direction(every, every)]
            return
        sides = [every[side == number] for number in (0, 1)]
        node = data.get(FIRST_SOURCE, -1)
        if 0 <= node < data.num_nodes and side[node] >= 0:
            first = int(side[node])
            self.is_two_way, sides, self._side = (
                False,
                [sides[first], sides[1 - first]],
                side == first,
            )
            self._pairs = {split: self.direct(pairs) for split, pairs in self._pairs.items()}
        self.directions = [Direction(*sides), Direction(*sides[::-1])]

    @property
    def answered(self) -> list[Direction]:
        """The directions of the answers: of a bipartite graph both, unless it is known on which side the sources are."""
        return self.directions if self.is_two_way else self.directions[:1]

    def direct(self, pairs: Int[Tensor, "num_pairs 2"]) -> Int[Tensor, "num_pairs 2"]:
        """Return pairs with the node on the side of the sources first, where it is known which that is."""
        return (
            pairs
            if self._side is None
            else torch.where(self._side[pairs[:, :1]], pairs, pairs.flip(1))
        )

    def answers(self, split: str) -> Int[Tensor, "num_answers 2"]:
        """Return a source and a target for each answer of a split, sorted by source."""
        pairs = self._pairs[split]
        return self._sort(torch.cat([pairs, pairs.flip(1)]) if self.is_two_way else pairs)

    def timed(self) -> tuple[Int[Tensor, "num_answers 2"], Float[Tensor, " num_answers"]] | None:
        """Return the answers of training and validation, and their times; none without times."""
        if self._times is None:
            return None
        pairs = torch.cat([self._pairs[split] for split in SPLITS[:2]])
        return (
            (torch.cat([pairs, pairs.flip(1)]), self._times.repeat(2))
            if self.is_two_way
            else (pairs, self._times)
        )

    def known(self, split: str) -> Int[Tensor, "num_known 2"]:
        """Return the pairs that are linked before a split, both ways round, sorted by source."""
        return self._both_ways(SPLITS[: SPLITS.index(split)])

    @cached_property
    def everything(self) -> Int[Tensor, "num_known 2"]:
        """All links, both ways round, sorted by source."""
        return self._both_ways(SPLITS)

    def _both_ways(self, splits: Sequence[str]) -> Tensor:
        pairs = torch.cat([self._pairs["train"][:0], *(self._pairs[name] for name in splits)])
        return self._sort(torch.cat([pairs, pairs.flip(1)]))

    def _sort(self, pairs: Tensor) -> Tensor:
        keys = (pairs[:, 0] * self.num_nodes + pairs[:, 1]).unique()
        return torch.stack([keys // self.num_nodes, keys % self.num_nodes], dim=1)


def with_pairs(data: Data) -> Data:
    """Return a graph whose training pairs are its edges, if it has no pairs."""
    if any(len(data[f"{split}_pairs"]) for split in SPLITS):
        return data
    own, edges, out = link_relation_of(data), data.edge_index.as_tensor().long(), data.clone()
    relations = edges.new_empty(0) if own is None else data.edge_attr[:, 0]
    out.train_pairs = find_links(edges, data.num_nodes, own, relations)[0]
    return out


def rank(
    score: BlockScorer,
    answers: Int[Tensor, "num_answers 2"],
    known: Int[Tensor, "num_known 2"],
    directions: list[Direction],
) -> Float[Tensor, " num_answers"]:
    """Rank the target of each answer among all candidates of its source.

    A rank counts from 1. Among equal scores, it is the mean of the best and the worst that it could be, so that a
    method which scores all candidates alike gets nothing.

    Args:
        answers, known: sorted by source; a target that is known is left out, unless it is an answer.

    Returns:
        The rank of each answer, float64.
    """
    ranks = torch.zeros(len(answers), dtype=torch.float64)
    for direction in directions:
        chosen = torch.isin(answers[:, 0], direction.sources).nonzero().squeeze(1)
        own_answers = answers[chosen]
        if not len(own_answers):
            continue
        for sources, scores in _blocks(score, own_answers[:, 0].unique(), known, direction):
            first, stop = torch.searchsorted(
                own_answers[:, 0].contiguous(), sources[[0, -1]] + torch.tensor([0, 1])
            )
            part = own_answers[first:stop]
            row, column = (
                torch.searchsorted(sources, part[:, 0].contiguous()),
                place_of(direction, part[:, 1]),
            )
            for places in torch.arange(len(part)).split(max(1, NUMBERS // max(scores.size(1), 1))):
                rows = scores[row[places]]
                own = rows.gather(1, column[places, None])
                better, equal = (rows > own).sum(1), (rows == own).sum(1)
                ranks[chosen[first + places]] = better + 0.5 * (equal + 1).double()
    return ranks


def score_split(links: Links, score: BlockScorer, metric: str, split: str) -> float:
    """Compute a metric of a split, see :func:`pipeline.metrics.ranking_metric`.

    The training split has none: its links are known, and show in their own scores.
    """
    if split == "train":
        return math.nan
    answers = links.answers(split)
    ranks = rank(score, answers, links.known(split), links.answered)
    return ranking_metric(metric, ranks, answers[:, 0])


def find_best(
    score: BlockScorer,
    sources: Int[Tensor, " num_sources"],
    top: int,
    known: Int[Tensor, "num_known 2"],
    direction: Direction,
) -> Best:
    """Find the best candidates of each source; equal ones in the order of their numbers.

    Args:
        sources: of the direction, each once, in any order; the result keeps it.
        top: candidates of a source, at most.
        known: pairs that are left out, sorted by source.
    """
    parts = []
    for block, scores in _blocks(score, sources.sort().values, known, direction):
        values, columns = choose_top(scores, top)
        is_there = values > -torch.inf
        row, place = is_there.nonzero(as_tuple=True)
        parts.append(
            (
                block[row],
                direction.candidates[columns[is_there]],
                place + 1,
                values[is_there].float(),
            )
        )
    if not parts:
        empty = torch.empty(0, dtype=torch.int64)
        return Best(empty, empty, empty, torch.empty(0))
    return Best(*(torch.cat(columns) for columns in zip(*parts, strict=True))).in_order_of(sources)


def choose_top(
    scores: Float[Tensor, "num_rows num_columns"], top: int
) -> tuple[Float[Tensor, "num_rows top"], Int[Tensor, "num_rows top"]]:
    """Find the largest numbers of each row and their columns, the largest first, equal ones in the order of columns.

    ``torch.topk`` says nothing of the order of equal numbers. The rows whose last one has equals are sorted again.
    """
    top = min(top, scores.size(1))
    if not top:
        return scores[:, :0], torch.empty(len(scores), 0, dtype=torch.int64)
    values, columns = scores.topk(min(top + 1, scores.size(1)))
    is_tied = (
        values[:, -1] == values[:, top - 1]
        if values.size(1) > top
        else values.new_zeros(len(scores)).bool()
    )
    columns = columns[:, :top].sort(1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    for row in is_tied.nonzero().squeeze(1).tolist():
        chosen = (scores[row] >= values[row, -1]).nonzero().squeeze(1)
        columns[row] = chosen[scores[row, chosen].argsort(descending=True, stable=True)][:top]
    return values, columns


def _blocks(
    score: BlockScorer, sources: Tensor, known: Tensor, direction: Direction
) -> Iterator[tuple[Tensor, Tensor]]:
    """Score all candidates of some sources at a time; known ones and a source itself get minus infinity.

    Yields:
        Sources, and scores [num_sources, num_candidates].
    """
    own = known[:, 0].contiguous()
    if not len(direction.candidates):
        return
    for block in sources.split(max(1, NUMBERS // max(len(direction.candidates), 1))):
        scores = score(block, direction.candidates)
        scores[find_known(block, own, known, direction)] = -torch.inf
        yield block, scores


def find_known(
    block: Int[Tensor, " num_sources"],
    own: Int[Tensor, " num_known"],
    known: Int[Tensor, "num_known 2"],
    direction: Direction,
) -> tuple[Tensor, Tensor]:
    """Return row and column of each candidate that is known or is the source itself, in a matrix of sources.

    Args:
        own: the sources of the known pairs, contiguous.
    """
    first, stop = torch.searchsorted(own, block), torch.searchsorted(own, block, right=True)
    row = torch.arange(len(block)).repeat_interleave(stop - first)
    start = (stop - first).cumsum(0) - (stop - first)
    pairs = torch.arange(len(row)) - start[row] + first[row]
    row, targets = torch.cat([row, torch.arange(len(block))]), torch.cat([known[pairs, 1], block])
    column = place_of(direction, targets)
    is_candidate = direction.candidates[column] == targets
    return row[is_candidate], column[is_candidate]


def place_of(direction: Direction, targets: Tensor) -> Tensor:
    """Return the places of nodes among the candidates; those of other nodes mean nothing."""
    return torch.searchsorted(direction.candidates, targets.contiguous()).clamp(
        max=len(direction.candidates) - 1
    )
