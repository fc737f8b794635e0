"""How well scores of triples rank what is true: filtered ranks of heads and tails among all entities."""

import signal
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.stop import StopRequest

# Scores of every entity as the answer of each query, [n, num_entities]: of anchors [n] and relations [n], and whether
# the tails of given heads are asked for, or the heads of given tails.
ScoreAll = Callable[[Tensor, Tensor, bool], Tensor]
# Scores computed at a time, and on a GPU.
BLOCK, GPU_BLOCK = 1 << 22, 1 << 27


class KnownAnswers:
    """For each query, a pair of an entity and a relation, the entities that make it a known triple.

    Args:
        anchors, relations, answers: [num_triples], int64; a triple may be there several times.
        num_relations: relations are numbered from 0.

    Attributes:
        anchors, relations: of the queries, [num_queries], in order.
        ptr: where the answers of each begin, [num_queries + 1].
        answers: in the order of the queries, [num_triples].
    """

    def __init__(self, anchors: Tensor, relations: Tensor, answers: Tensor, num_relations: int):
        keys, order = (anchors * num_relations + relations).sort(stable=True)
        self._keys, counts = keys.unique_consecutive(return_counts=True)
        self._num_relations = num_relations
        self.anchors, self.relations = self._keys // num_relations, self._keys % num_relations
        self.ptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self.answers = answers[order]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """Return the numbers of queries, each of which must have an answer."""
        return torch.searchsorted(self._keys, anchors * self._num_relations + relations)

    def has(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """Tell which queries have an answer, bool."""
        positions = self.find(anchors, relations).clamp(max=max(len(self) - 1, 0))
        return self._keys[positions] == anchors * self._num_relations + relations

    def of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the answers of some queries, one query after another.

        Args:
            queries: numbers of queries [n].

        Returns:
            For each answer the place of its query in `queries`, from 0, and the entity.
        """
        first, counts = self.ptr[queries], self.ptr[queries + 1] - self.ptr[queries]
        query_of = torch.repeat_interleave(
            torch.arange(len(queries), device=queries.device), counts
        )
        steps = (
            torch.arange(len(query_of), device=queries.device)
            - (counts.cumsum(0) - counts)[query_of]
        )
        return query_of, self.answers[first[query_of] + steps]


class Ranking:
    """Ranks triples against those that differ in the head or the tail and are not known to be true.

    Args:
        known: all triples that are true [num_known, 3]: head, relation, tail; one may be there several times. Scores
            are ranked on their device.
    """

    def __init__(self, known: Tensor, num_entities: int, num_relations: int):
        heads, relations, tails = known.unbind(1)
        distinct = (
            (heads * num_relations + relations) * num_entities + tails
        ).unique()  # one number is sorted faster
        queries, tails = distinct // num_entities, distinct % num_entities
        heads, relations = queries // num_relations, queries % num_relations
        self._num_entities, self._device = num_entities, known.device
        self._known = {
            True: KnownAnswers(heads, relations, tails, num_relations),
            False: KnownAnswers(tails, relations, heads, num_relations),
        }

    def __call__(
        self, score_all: ScoreAll, triples: Tensor, *, on_batch: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Rank the head and the tail of triples, each of them among the known ones.

        A rank is the mean of the best and the worst place among equal scores (the realistic rank); scores that are no
        numbers equal all others.

        Args:
            triples: [n, 3].
            on_batch: called after each batch of queries.

        Returns:
            Ranks from 1, of the heads and of the tails, [n, 2], float64.
        """
        triples = triples.to(self._device)
        ranks = torch.empty(len(triples), 2, dtype=torch.float64, device=self._device)
        for column, is_tail in enumerate((False, True)):
            known = self._known[is_tail]
            anchors, answers = triples[:, 0 if is_tail else 2], triples[:, 2 if is_tail else 0]
            # Triples of one query have the same scores: they are computed once.
            queries, query_of = known.find(anchors, triples[:, 1]).unique(return_inverse=True)
            order = query_of.argsort(stable=True)
            asked = torch.arange(len(queries), device=self._device)
            ends = torch.searchsorted(query_of[order], asked, right=True).tolist()
            size, last = (
                max(1, (BLOCK if self._device.type == "cpu" else GPU_BLOCK) // self._num_entities),
                0,
            )
            for first in range(0, len(queries), size):
                asked = queries[first : first + size]
                scores = score_all(known.anchors[asked], known.relations[asked], is_tail)
                rows = order[last : ends[first + len(asked) - 1]]
                ranks[rows, column] = _rank(
                    scores, known, asked, query_of[rows] - first, answers[rows]
                )
                last += len(rows)
                on_batch()
        return ranks.cpu()


def _rank(
    scores: Tensor, known: KnownAnswers, asked: Tensor, query_of: Tensor, answers: Tensor
) -> Tensor:
    """Rank answers [n] among the scores of their queries [num_queries, num_entities] without other known answers."""
    truth = scores[query_of, answers]
    better, worse = (_count_by_row if scores.device.type == "cpu" else _count_at_once)(
        scores, query_of, truth
    )
    # Known triples do not count, on either side.
    rows, entities = known.of(asked[query_of])
    beside, of_them = scores[query_of[rows], entities], truth[rows]
    better -= torch.bincount(rows[beside > of_them], minlength=len(truth))
    worse -= torch.bincount(rows[beside < of_them], minlength=len(truth))
    others = scores.size(1) - torch.bincount(rows, minlength=len(truth))
    return 1 + (better + others - worse).double() / 2


def _count_by_row(scores: Tensor, query_of: Tensor, truth: Tensor) -> Tensor:
    """Count the scores above and below each true one [2, n].

    A row at a time, it stays in a processor's cache; that is ten times as fast as a comparison of whole matrices.
    """
    table, counts = scores.numpy(), np.empty((2, len(truth)), np.int64)
    for number, (query, score) in enumerate(zip(query_of.tolist(), truth.numpy(), strict=True)):
        row = table[query]
        counts[:, number] = np.count_nonzero(row > score), np.count_nonzero(row < score)
    return torch.from_numpy(counts)


def _count_at_once(scores: Tensor, query_of: Tensor, truth: Tensor) -> Tensor:
    """Count the scores above and below each true one [2, n], for many at a time."""
    size, counts = (
        max(1, GPU_BLOCK // scores.size(1)),
        truth.new_empty(2, len(truth), dtype=torch.int64),
    )
    for first in range(0, len(truth), size):
        some = slice(first, first + size)
        rows, score = scores[query_of[some]], truth[some].unsqueeze(1)
        counts[0, some], counts[1, some] = (rows > score).sum(1), (rows < score).sum(1)
    return counts


def summarise(ranks: Tensor) -> dict[str, float]:
    """Compute the mean reciprocal rank ``mrr``, the mean rank ``mr``, and ``hits@k``, the fraction of the first k."""
    if not ranks.numel():
        return dict.fromkeys(("mrr", "mr", "hits@1", "hits@3", "hits@10"), float("nan"))
    # Half a rank below k is not among the first k.
    return {
        "mrr": float((1 / ranks).mean()),
        "mr": float(ranks.mean()),
        **{f"hits@{k}": float((ranks <= k).double().mean()) for k in (1, 3, 10)},
    }


class TripleProbe:
    """Scores tables by the filtered ranks of triples; all ranks take part.

    An evaluation ranks triples of training and validation. The test is ranked when training has ended.

    Args:
        splits: the triples of training, validation and test, each [num_triples, 3].
        sample: triples of training that are ranked, drawn once.
        device: of the scores.
        ranks: each of them ranks its share of the triples.
        stop: asks for an end after the batch in hand.
    """

    def __init__(
        self,
        splits: dict[str, Tensor],
        num_entities: int,
        num_relations: int,
        *,
        sample: int = 1000,
        seed: int = 0,
        device: torch.device = torch.device("cpu"),
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
    ):
        self._splits, self._ranks, self._stop = splits, ranks, stop or StopRequest()
        self._ranking = Ranking(
            torch.cat(list(splits.values())).to(device), num_entities, num_relations
        )
        self._num_relations = num_relations
        self._chosen = {split: splits[split] for split in ("train", "valid")}
        if sample < len(splits["train"]):
            chosen = stream("ranked train", seed).permutation(len(splits["train"]))[:sample]
            self._chosen["train"] = splits["train"][torch.from_numpy(chosen)]

    def __call__(self, score_all: ScoreAll) -> dict[str, float]:
        """Compute the filtered MRR of training and validation, and ``valid_mr`` and ``valid_hits@k``.

        Raises:
            Stopped: on all ranks, if one of them was asked to stop.
        """
        train, valid = (
            summarise(self._rank(score_all, self._chosen[split])) for split in ("train", "valid")
        )
        return {
            "train": train["mrr"],
            "valid": valid.pop("mrr"),
            **{f"valid_{name}": value for name, value in valid.items()},
        }

    def test(self, score_all: ScoreAll) -> dict[str, float]:
        """Compute the filtered MRR of the test, its ``mr``, ``hits@k``, ``mrr@heads`` and ``mrr@tails``.

        Raises:
            Stopped: on all ranks, if one of them was asked to stop.
        """
        test = self._rank(score_all, self._splits["test"])
        whole = summarise(test)
        scores = {"test": whole.pop("mrr"), **whole}
        scores |= {
            f"mrr@{side}": summarise(test[:, column])["mrr"]
            for column, side in enumerate(("heads", "tails"))
        }
        return scores

    def _rank(self, score_all: ScoreAll, triples: Tensor) -> Tensor:
        share = slice(self._ranks.rank, None, self._ranks.num_ranks)
        # The last row tells whether a rank was asked to stop.
        ranks = torch.zeros(len(triples) + 1, 2, dtype=torch.float64)
        try:
            ranks[:-1][share] = self._ranking(score_all, triples[share], on_batch=self._after_batch)
        except Stopped:
            ranks[-1] = 1
        self._ranks.sum_(ranks)
        if bool(ranks[-1].any()):
            raise Stopped(self._stop.signum or signal.SIGTERM)
        return ranks[:-1]

    def _after_batch(self) -> None:
        pulse.beat("ranking triples", pulse.State.LONG)
        if self._stop.signum:
            raise Stopped(self._stop.signum)
