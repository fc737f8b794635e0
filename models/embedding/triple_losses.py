"""Losses of scored triples, and penalties on their rows. All are sums over triples."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from parallel_epochs.models.embedding.distances import modulus


def negative_sampling(
    positive: Float[Tensor, "*batch n"],
    negative: Float[Tensor, "*batch n m"],
    *,
    margin: float,
    temperature: float,
) -> Float[Tensor, ""]:
    """Compute the loss of triples and their negatives (Sun et al., ICLR 2019, arXiv:1902.10197).

    The loss of a triple is half of -log sigma(margin + score), plus half of the mean of -log sigma(-margin - score)
    over its negatives.

    Args:
        temperature: negatives are weighted by the softmax of score / temperature, without a gradient through the
            weights. 0: all negatives have the same weight.
    """
    apart = -logsigmoid(-margin - negative)
    if temperature:
        apart = (torch.softmax(negative.detach() / temperature, dim=-1) * apart).sum(-1)
    else:
        apart = apart.mean(-1)
    return ((apart - logsigmoid(margin + positive)) / 2).sum()


def one_vs_all(
    queries: Float[Tensor, "n dim"],
    entities: Float[Tensor, "m dim"],
    query_of: Int64[Tensor, " k"],
    answers: Int64[Tensor, " k"],
) -> Float[Tensor, ""]:
    """Compute the cross-entropy of answers against all entities, for models whose comparison is a dot product.

    Args:
        queries: rows of queries. A query may have several answers; its scores are computed once.
        query_of, answers: the query and the entity of each answer, in the order of the queries.
    """
    return _OneVsAll.apply(queries, entities, query_of, answers)


class _OneVsAll(torch.autograd.Function):
    """Computes the gradients beside the loss, so that no matrix of scores outlives its rows."""

    @staticmethod
    def forward(
        ctx, queries: Tensor, entities: Tensor, query_of: Tensor, answers: Tensor
    ) -> Tensor:
        loss, grad = _score(queries, entities, query_of, answers)
        of_queries, of_entities = multiply(grad, entities), multiply(grad.mT, queries)
        ctx.save_for_backward(of_queries, of_entities)
        return loss

    @staticmethod
    def backward(ctx, outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_queries, of_entities = ctx.saved_tensors
        return outer * of_queries, outer * of_entities, None, None


def multiply(left: Float[Tensor, "n k"], right: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """Multiply matrices. On a GPU, tensor cores round the factors to 11 bits (tf32); sums are float32."""
    if not left.is_cuda:
        return left @ right
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return left @ right
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _score(
    queries: Tensor, entities: Tensor, query_of: Tensor, answers: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss, and the gradient of the scores in their place."""
    scores = multiply(queries, entities.mT)
    found = scores[query_of, answers]
    count = torch.bincount(query_of, minlength=len(queries)).to(scores.dtype).unsqueeze(1)
    top = scores.amax(1, keepdim=True)
    odds = scores.sub_(top).exp_()
    total = odds.sum(1, keepdim=True)
    loss = (count * (top + total.log())).sum() - found.sum()
    # The expected number of answers of each entity, minus 1 for each real answer.
    grad = odds.mul_(count / total)
    grad.index_put_((query_of, answers), -torch.ones_like(found), accumulate=True)
    return loss, grad


def cubes(rows: Float[Tensor, "n dim"], parts: int) -> Float[Tensor, " n"]:
    """Sum the cubes of the moduli of each row's numbers.

    For complex numbers this is the penalty N3 (Lacroix et al., ICML 2018, arXiv:1806.07297), for real numbers it is L3,
    which GraphVite uses.
    """
    size = modulus(rows, parts)
    return (size * size * size).sum(-1)
