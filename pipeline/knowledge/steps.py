"""Steps of training on triples: the batch, the loss, and the gradients of the rows that a step touches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_epochs.models.embedding.triple_losses import cubes, negative_sampling, one_vs_all
from parallel_epochs.models.embedding.triples import TripleTables, match
from parallel_epochs.pipeline.knowledge.ranking import KnownAnswers
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import stream


@dataclass(frozen=True)
class Penalty:
    """A penalty that is added to the loss of a triple for the size of its rows.

    Attributes:
        n3: weight of the cubes of the moduli of their numbers, complex ones or quaternions.
        l3: weight of the cubes of their real numbers.
    """

    n3: float = 0.0
    l3: float = 0.0

    def __call__(self, rows: Tensor, parts: int) -> Tensor:
        """Compute it for each row, [n]."""
        total = rows.new_zeros(len(rows))
        for weight, size in ((self.n3, parts), (self.l3, 1)):
            if weight:
                total = total + weight * cubes(rows, size)
        return total


class NegativeSteps:
    """Steps on triples beside others whose head or tail was drawn at random.

    A batch is dealt out in chunks; the triples of a chunk share the entities drawn for it, so that their scores are
    matrix products or blocks of distances. Any rank draws the same numbers and trains its chunks. Gradients are sparse.

    Args:
        triples: [num_triples, 3].
        batch_size: triples of a step, of all ranks together.
        chunk_size: triples that share what is drawn.
        num_negatives: entities drawn for a chunk in place of the heads, and as many in place of the tails. That one of
            them makes a true triple is not excluded.
        margin, temperature: see :func:`models.embedding.triple_losses.negative_sampling`.
    """

    is_sparse = True

    def __init__(
        self,
        triples: Tensor,
        num_entities: int,
        *,
        batch_size: int,
        chunk_size: int,
        num_negatives: int,
        margin: float,
        temperature: float,
        penalty: Penalty = Penalty(),
        seed: int = 0,
    ):
        self._triples, self._num_entities, self._batch_size = triples, num_entities, batch_size
        self._chunk_size, self._num_negatives, self._seed = chunk_size, num_negatives, seed
        self._margin, self._temperature, self._penalty = margin, temperature, penalty
        self.num_steps = -(-len(triples) // batch_size)

    def order(self, round_: int) -> Tensor:
        """Draw the order of the triples in a round."""
        return torch.from_numpy(
            stream("triples", self._seed, round_).permutation(len(self._triples))
        )

    def backward(
        self, tables: TripleTables, order: Tensor, round_: int, step: int, ranks: Ranks
    ) -> tuple[float, int]:
        """Compute this rank's part of the gradient of the mean loss of a step.

        Returns:
            The loss, summed over this rank's triples, and their number; without any, the tables have no gradient.
        """
        first = step * self._batch_size
        batch = self._triples[order[first : first + self._batch_size].to(self._triples.device)]
        num_chunks = -(-len(batch) // self._chunk_size)
        shape = num_chunks, 2, self._num_negatives
        rng = stream("negatives", self._seed, round_, step)
        drawn = torch.from_numpy(rng.integers(self._num_entities, size=shape))
        chunks = torch.arange(num_chunks)[ranks.rank :: ranks.num_ranks]
        if not len(chunks):
            return 0.0, 0
        rows = (chunks.unsqueeze(1) * self._chunk_size + torch.arange(self._chunk_size)).flatten()
        there = tables.entities.device
        triples = batch[rows[rows < len(batch)].to(batch.device)].to(there)
        negatives = drawn[chunks].to(there)
        entity_ids, places = torch.cat([triples[:, [0, 2]].flatten(), negatives.flatten()]).unique(
            return_inverse=True
        )
        relation_ids, kinds = triples[:, 1].unique(return_inverse=True)
        entities = tables.entities.detach()[entity_ids].requires_grad_()
        relations = tables.relations.detach()[relation_ids].requires_grad_()
        ends, drawn = (
            places[: 2 * len(triples)].view(-1, 2),
            places[2 * len(triples) :].view(negatives.shape),
        )
        loss = self._loss(
            tables, entities[ends[:, 0]], relations[kinds], entities[ends[:, 1]], entities[drawn]
        )
        (loss / len(batch)).backward()
        assert entities.grad is not None and relations.grad is not None
        tables.entities.grad = _sparse(entity_ids, entities.grad, tables.entities)
        tables.relations.grad = _sparse(relation_ids, relations.grad, tables.relations)
        return float(loss.detach()), len(triples)

    def _loss(
        self,
        tables: TripleTables,
        heads: Tensor,
        relations: Tensor,
        tails: Tensor,
        negatives: Tensor,
    ) -> Tensor:
        """Sum the loss of the triples of several chunks, of which only the last may be short.

        Args:
            heads, relations, tails: rows [num_triples, ...].
            negatives: rows in place of the heads and of the tails [num_chunks, 2, num_negatives, dim].
        """
        model, size = tables.model, self._chunk_size
        whole, end = len(heads) // size * size, len(heads) // size
        parts = (slice(0, whole), slice(0, end)), (slice(whole, None), slice(end, None))
        total = sum(self._penalty(rows, model.parts).sum() for rows in (heads, tails))
        total = total + self._penalty(relations, model.relation_parts).sum()
        for query, score, anchors, answers, side in (
            (model.query_heads, model.score_heads, tails, heads, 0),
            (model.query_tails, model.score_tails, heads, tails, 1),
        ):
            positive = match(query(anchors, relations), answers, model.comparison)
            for part, chunks in parts:
                drawn = negatives[chunks, side]
                if len(drawn):
                    shape = len(drawn), -1
                    scores = score(
                        anchors[part].view(*shape, anchors.size(1)),
                        relations[part].view(*shape, relations.size(1)),
                        drawn,
                    )
                    total = (
                        total
                        + negative_sampling(
                            positive[part].view(shape),
                            scores,
                            margin=self._margin,
                            temperature=self._temperature,
                        )
                        / 2
                    )
        return total


class OneVsAllSteps:
    """Steps on queries of all entities: the tails of a head and a relation, and the heads as tails of the reciprocal
    relation, by cross-entropy (Lacroix et al., ICML 2018, arXiv:1806.07297). A second cross-entropy asks for the
    relation of each head and tail among all relations (Chen et al., AKBC 2021, arXiv:2110.02834).

    A batch is a set of queries with all their training answers: a query's scores are computed once, whether it has one
    answer or a hundred. A loss is weighted by answers, so its mean over a round is that of single triples. Gradients
    are dense.

    Args:
        triples: [num_triples, 3], on the device of the tables.
        batch_size: answers of a step, on average, of all ranks together; each triple makes two.
    """

    is_sparse = False

    def __init__(
        self,
        triples: Tensor,
        num_relations: int,
        *,
        batch_size: int,
        penalty: Penalty = Penalty(),
        seed: int = 0,
    ):
        heads, relations, tails = triples.unbind(1)
        self._answers = KnownAnswers(
            torch.cat([heads, tails]),
            torch.cat([relations, relations + num_relations]),
            torch.cat([tails, heads]),
            2 * num_relations,
        )
        self.num_steps = min(-(-2 * len(triples) // batch_size), len(self._answers))
        self._mean_size = 2 * len(triples) / self.num_steps
        self._penalty, self._seed = penalty, seed

    def order(self, round_: int) -> Tensor:
        """Draw the order of the queries in a round."""
        return torch.from_numpy(
            stream("triples", self._seed, round_).permutation(len(self._answers))
        )

    def backward(
        self, tables: TripleTables, order: Tensor, round_: int, step: int, ranks: Ranks
    ) -> tuple[float, int]:
        """Compute this rank's part of the gradient of a step; see :meth:`NegativeSteps.backward`."""
        first, end = (len(order) * place // self.num_steps for place in (step, step + 1))
        queries = order[first:end][ranks.rank :: ranks.num_ranks].to(self._answers.ptr.device)
        if not len(queries):
            return 0.0, 0
        query_of, answers = self._answers.of(queries)
        model, anchors, kinds = (
            tables.model,
            self._answers.anchors[queries],
            self._answers.relations[queries],
        )
        rows = tables.entities[torch.cat([anchors, answers])]
        heads, relations, tails = (
            rows[: len(queries)],
            tables.relations[kinds],
            rows[len(queries) :],
        )
        loss = one_vs_all(model.query_tails(heads, relations), tables.entities, query_of, answers)
        count = torch.bincount(query_of, minlength=len(queries))
        asked = self._penalty(heads, model.parts) + self._penalty(relations, model.relation_parts)
        loss = loss + self._penalty(tails, model.parts).sum() + (count * asked).sum()
        # Not of this step's answers: a query with thousands would weigh no more than one with few.
        (loss / self._mean_size).backward()
        return float(loss.detach()), len(answers)


def _sparse(numbers: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), rows, table.shape, is_coalesced=True, check_invariants=False
    )
