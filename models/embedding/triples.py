"""Scores of triples (head, relation, tail) of a knowledge graph.

Every model makes a query from two rows of a triple and compares it with the third row, by a dot product (DistMult,
ComplEx, SimplE, QuatE) or by a distance (TransE, RotatE). So a query is scored against all entities at once.

Rows are real numbers. In ComplEx and RotatE the first half of an entity's row are real parts and the second half
imaginary parts. In SimplE they are the vector as a head and the vector as a tail. A row of QuatE is four quarters: the
parts 1, i, j and k. `dim` counts the real numbers of an entity's row, as in GraphVite.

TransE: Bordes et al., NIPS 2013. DistMult: Yang et al., ICLR 2015, arXiv:1412.6575. ComplEx: Trouillon et al., ICML
2016, arXiv:1606.06357. SimplE: Kazemi and Poole, NeurIPS 2018, arXiv:1802.04868. RotatE: Sun et al., ICLR 2019,
arXiv:1902.10197. QuatE: Zhang et al., NeurIPS 2019, arXiv:1904.10281.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from parallel_epochs.models.embedding.distances import modulus, modulus_distances


@dataclass(frozen=True)
class TripleModel:
    """A scoring function.

    Attributes:
        name: name of the model.
        query_tails: function that makes queries for tails from heads [..., dim] and relations [..., relation_dim].
        query_heads: function that makes queries for heads from tails and relations.
        comparison: score of a query and an entity: "dot" is their dot product, "l1" is minus their distance,
            "modulus" is minus the sum of the moduli of their complex differences.
        parts: number of real numbers that form one number of an entity. `dim` is a multiple of it.
        relation_parts: number of real numbers of a relation for `parts` real numbers of an entity.
    """

    name: str
    query_tails: Callable[[Tensor, Tensor], Tensor]
    query_heads: Callable[[Tensor, Tensor], Tensor]
    comparison: str
    parts: int = 1
    relation_parts: int = 1

    @property
    def is_distance(self) -> bool:
        return self.comparison != "dot"

    def relation_dim(self, dim: int) -> int:
        """Count the real numbers of a relation's row."""
        return dim // self.parts * self.relation_parts

    def score(
        self,
        heads: Float[Tensor, "*batch dim"],
        relations: Float[Tensor, "*batch relation_dim"],
        tails: Float[Tensor, "*batch dim"],
    ) -> Float[Tensor, "*batch"]:
        """Score triples, row by row. A higher score is better."""
        return match(self.query_tails(heads, relations), tails, self.comparison)

    def score_tails(
        self,
        heads: Float[Tensor, "*batch n dim"],
        relations: Float[Tensor, "*batch n relation_dim"],
        entities: Float[Tensor, "*batch m dim"],
    ) -> Float[Tensor, "*batch n m"]:
        """Score every entity as the tail of every pair of head and relation."""
        return compare(self.query_tails(heads, relations), entities, self.comparison)

    def score_heads(
        self,
        tails: Float[Tensor, "*batch n dim"],
        relations: Float[Tensor, "*batch n relation_dim"],
        entities: Float[Tensor, "*batch m dim"],
    ) -> Float[Tensor, "*batch n m"]:
        """Score every entity as the head of every pair of tail and relation."""
        return compare(self.query_heads(tails, relations), entities, self.comparison)


def match(
    queries: Float[Tensor, "*batch dim"], entities: Float[Tensor, "*batch dim"], comparison: str
) -> Float[Tensor, "*batch"]:
    """Compare queries and entities row by row, see :class:`TripleModel`."""
    if comparison == "dot":
        return (queries * entities).sum(-1)
    difference = queries - entities
    if comparison == "l1":
        return -difference.abs().sum(-1)
    return -modulus(difference, 2).sum(-1)


def compare(
    queries: Float[Tensor, "*batch n dim"], entities: Float[Tensor, "*batch m dim"], comparison: str
) -> Float[Tensor, "*batch n m"]:
    """Compare every query with every entity, by a matrix product or by distances. There may be one batch dimension."""
    if comparison == "dot":
        return queries @ entities.mT
    if comparison == "l1":
        return -torch.cdist(queries, entities, p=1.0)
    if queries.dim() == 2:
        return -modulus_distances(queries.unsqueeze(0), entities.unsqueeze(0))[0]
    return -modulus_distances(queries, entities)


def _complex_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows of complex numbers."""
    (a_re, a_im), (b_re, b_im) = a.chunk(2, -1), b.chunk(2, -1)
    return torch.cat([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=-1)


def _conjugate(rows: Tensor, parts: int) -> Tensor:
    first, *others = rows.chunk(parts, -1)
    return torch.cat([first, *(-part for part in others)], dim=-1)


def _simple_tails(heads: Tensor, relations: Tensor) -> Tensor:
    """Make queries for half of <head as head, r, tail as tail> + <tail as head, inverse r, head as tail>."""
    (as_head, as_tail), (forth, back) = heads.chunk(2, -1), relations.chunk(2, -1)
    return torch.cat([back * as_tail, forth * as_head], dim=-1) / 2


def _simple_heads(tails: Tensor, relations: Tensor) -> Tensor:
    (as_head, as_tail), (forth, back) = tails.chunk(2, -1), relations.chunk(2, -1)
    return torch.cat([forth * as_tail, back * as_head], dim=-1) / 2


def _rotate(heads: Tensor, phases: Tensor) -> Tensor:
    return _complex_product(heads, torch.cat([phases.cos(), phases.sin()], dim=-1))


def _hamilton(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows of quaternions."""
    (a1, ai, aj, ak), (b1, bi, bj, bk) = a.chunk(4, -1), b.chunk(4, -1)
    return torch.cat(
        [
            a1 * b1 - ai * bi - aj * bj - ak * bk,
            a1 * bi + ai * b1 + aj * bk - ak * bj,
            a1 * bj - ai * bk + aj * b1 + ak * bi,
            a1 * bk + ai * bj - aj * bi + ak * b1,
        ],
        dim=-1,
    )


def _unit(relations: Tensor) -> Tensor:
    return relations / modulus(relations, 4).repeat(*[1] * (relations.dim() - 1), 4)


# Models by name.
MODELS = {
    model.name: model
    for model in (
        TripleModel("transe", operator.add, operator.sub, "l1"),
        TripleModel("distmult", operator.mul, operator.mul, "dot"),
        # Re(h r conj(t)) = Re(h conj(conj(r) t))
        TripleModel(
            "complex",
            _complex_product,
            lambda t, r: _complex_product(t, _conjugate(r, 2)),
            "dot",
            2,
            2,
        ),
        TripleModel("simple", _simple_tails, _simple_heads, "dot", 2, 2),
        TripleModel("rotate", _rotate, lambda t, phases: _rotate(t, -phases), "modulus", 2, 1),
        # <h r, t> = <h, t conj(r)>
        TripleModel(
            "quate",
            lambda h, r: _hamilton(h, _unit(r)),
            lambda t, r: _hamilton(t, _conjugate(_unit(r), 4)),
            "dot",
            4,
            4,
        ),
    )
}


def first_rows(
    model: TripleModel,
    num_entities: int,
    num_relations: int,
    dim: int,
    *,
    margin: float,
    scale: float,
    rng: torch.Generator,
) -> tuple[Float[Tensor, "num_entities dim"], Float[Tensor, "num_relations relation_dim"]]:
    """Draw the initial values of entities and relations.

    Those of TransE and RotatE are uniform in +-(margin + 2) / numbers of a row, and RotatE's phases are uniform in
    +-pi, as in RotatE's paper. Those of QuatE are quaternions with a random axis and angle, as in its paper. All others
    are normal.

    Args:
        margin: margin of the loss.
        scale: standard deviation of the normal ones.
    """

    def even(rows: int, columns: int, bound: float) -> Tensor:
        return (2 * torch.rand(rows, columns, generator=rng) - 1) * bound

    if model.is_distance:
        bound = (margin + 2) / (dim // model.parts)
        entities = even(num_entities, dim, bound)
        return entities, even(
            num_relations, model.relation_dim(dim), math.pi if model.parts == 2 else bound
        )
    if model.parts == 4:
        return _quaternions(num_entities, dim // 4, rng), _quaternions(num_relations, dim // 4, rng)
    return (
        scale * torch.randn(num_entities, dim, generator=rng),
        scale * torch.randn(num_relations, model.relation_dim(dim), generator=rng),
    )


def _quaternions(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """Draw quaternions with uniform size in +-1 / sqrt(2 columns), random axis, uniform angle [rows, 4 columns]."""
    size = (2 * torch.rand(rows, columns, generator=rng) - 1) / math.sqrt(2 * columns)
    angle = (2 * torch.rand(rows, columns, generator=rng) - 1) * math.pi
    axis = torch.nn.functional.normalize(torch.rand(3, rows, columns, generator=rng), dim=0)
    return torch.cat([size * angle.cos(), *(size * angle.sin() * axis)], dim=1)


class TripleTables(torch.nn.Module):
    """The rows of entities and relations from which a model scores triples.

    Args:
        entities: initial values [num_entities, dim].
        relations: initial values [num_relations, relation_dim]. With `reciprocal` there are twice as many rows, and
            the second half belongs to the relations from tail to head.
        reciprocal: whether heads are scored as tails of these inverse relations.
    """

    def __init__(
        self, model: TripleModel, entities: Tensor, relations: Tensor, *, reciprocal: bool = False
    ):
        super().__init__()
        self.model, self.reciprocal = model, reciprocal
        self.entities, self.relations = torch.nn.Parameter(entities), torch.nn.Parameter(relations)

    @torch.no_grad()
    def score_all(
        self, anchors: Int64[Tensor, " n"], relations: Int64[Tensor, " n"], is_tail: bool
    ) -> Float[Tensor, "n num_entities"]:
        """Score all entities as the tails of given heads, or as the heads of given tails (`is_tail` false)."""
        if self.reciprocal and not is_tail:
            relations = relations + len(self.relations) // 2
        score = self.model.score_tails if is_tail or self.reciprocal else self.model.score_heads
        return score(self.entities[anchors], self.relations[relations], self.entities)

    @torch.no_grad()
    def score(
        self, heads: Int64[Tensor, " n"], relations: Int64[Tensor, " n"], tails: Int64[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Score triples, row by row: what :meth:`score_all` gives their tails."""
        return self.model.score(
            self.entities[heads], self.relations[relations], self.entities[tails]
        )
