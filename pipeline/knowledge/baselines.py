"""Scores simple methods on a knowledge graph, which trained vectors should beat."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from parallel_epochs.models.edge_index import cut_into_blocks
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.graph.union import expand
from parallel_epochs.pipeline.knowledge.build import build_probe, split_triples
from parallel_epochs.pipeline.knowledge.ranking import ScoreAll
from parallel_epochs.pipeline.run.baseline_file import Baseline

# Weight of a frequency against the confidence of a rule: it decides between entities of equal confidence.
SLIGHTLY = 1e-6
# Triples that are looked at at a time.
TRIPLES = 1 << 20


def find_baselines(part: Part) -> Iterator[Baseline]:
    """Score each simple method on each split; yields one after the other, as they end."""
    data = part.data
    train, probe = split_triples(data)["train"].unique(dim=0), build_probe(part.config, data)
    frequencies = Frequencies(train, data.num_nodes, data.num_relations)
    methods: tuple[tuple[str, Callable[[], ScoreAll]], ...] = (
        ("the relation's most frequent entity", lambda: frequencies),
        ("same and inverse relations", lambda: Rules(train, frequencies)),
    )
    for name, method in methods:
        began = time.perf_counter()
        score_all = method()
        scores = probe(score_all) | probe.test(score_all)
        yield Baseline(
            name,
            {split: scores[split] for split in ("train", "valid", "test")},
            time.perf_counter() - began,
        )


class Frequencies:
    """Scores an entity by the number of training triples of a relation of which it is the tail, or the head.

    Args:
        train: distinct training triples [num_triples, 3].
    """

    def __init__(
        self, train: Int64[Tensor, "num_triples 3"], num_entities: int, num_relations: int
    ):
        self.shape = num_relations, num_entities
        relations, ones = train[:, 1].numpy(), np.ones(len(train))
        self._counts = {
            is_tail: sp.csr_array((ones, (relations, train[:, column].numpy())), self.shape)
            for is_tail, column in ((True, 2), (False, 0))
        }

    def __call__(
        self, anchors: Int64[Tensor, " n"], relations: Int64[Tensor, " n"], is_tail: bool
    ) -> Float[Tensor, "n num_entities"]:
        """Score all entities as the answers of queries, float64, whatever their anchors."""
        return torch.from_numpy(self._counts[is_tail][relations.numpy()].toarray())


class Rules:
    """Scores an entity by the best rule that predicts it: "r holds where r' does", or "where r' holds the other way".

    The confidence of a rule is the fraction of the training pairs of r' that r holds for as well. Nothing is fitted.
    The rules of inverse relations alone are a baseline of Dettmers et al. (https://arxiv.org/abs/1707.01476).

    Args:
        train: distinct training triples [num_triples, 3].
        frequencies: decide where no rule does.
    """

    def __init__(self, train: Int64[Tensor, "num_triples 3"], frequencies: Frequencies):
        num_relations, num_entities = frequencies.shape
        heads, relations, tails = train.numpy().T
        keys = np.concatenate([heads * num_entities + tails, tails * num_entities + heads])
        pairs, place = np.unique(keys, return_inverse=True)
        ones, shape = np.ones(len(train)), (len(pairs), num_relations)
        forth, back = (
            sp.csr_array((ones, (rows, relations)), shape) for rows in np.split(place.ravel(), 2)
        )
        part_of = sp.diags_array(1 / np.maximum(forth.sum(0), 1))
        # [r', r]. A relation says nothing of itself, but for its other direction.
        same = part_of @ (forth.T @ forth)
        self._confidence = {
            "same": sp.csr_array(same - sp.diags_array(same.diagonal())),
            "inverse": sp.csr_array(part_of @ (back.T @ forth)),
        }
        # The triples of each entity, as a head and as a tail: the relation and the entity at the other end.
        self._known = {}
        for name, ends, others in (("head", heads, tails), ("tail", tails, heads)):
            order = np.argsort(ends, kind="stable")
            ptr = np.searchsorted(ends[order], np.arange(num_entities + 1))
            self._known[name] = ptr, relations[order], others[order]
        self._frequencies = frequencies

    def __call__(
        self, anchors: Int64[Tensor, " n"], relations: Int64[Tensor, " n"], is_tail: bool
    ) -> Float[Tensor, "n num_entities"]:
        """Score all entities as the tails of given heads, or as the heads of given tails, float64."""
        scores = self._frequencies(anchors, relations, is_tail).numpy()
        scores *= SLIGHTLY / np.maximum(scores.max(1, keepdims=True, initial=0), 1)
        best = np.zeros_like(scores)
        for rule, end in (
            ("same", "head" if is_tail else "tail"),
            ("inverse", "tail" if is_tail else "head"),
        ):
            ptr, known_relations, others = self._known[end]
            first, last = ptr[anchors.numpy()], ptr[anchors.numpy() + 1]
            ends = np.concatenate([[0], np.cumsum(last - first)])
            for begin, stop in cut_into_blocks(torch.from_numpy(ends), TRIPLES):
                triple, places = expand(first[begin:stop], last[begin:stop])
                if not len(triple):
                    continue
                query = begin + np.repeat(np.arange(stop - begin), np.diff(places))
                confidence = self._confidence[rule][
                    known_relations[triple], relations.numpy()[query]
                ]
                np.maximum.at(best, (query, others[triple]), np.asarray(confidence).ravel())
        return torch.from_numpy(best + scores)
