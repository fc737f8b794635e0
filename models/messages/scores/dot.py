"""The scaled dot product of the Transformer (https://arxiv.org/abs/1706.03762)."""

import math

from torch import Tensor

from parallel_epochs.models.messages.scores.score import AttentionScore


def _compute(key: Tensor, query: Tensor, _: Tensor | None, slope: float) -> Tensor:
    return (query * key).sum(2) / math.sqrt(key.size(2))


DOT = AttentionScore(
    _compute,
    reads_source=True,
    encodes_messages=True,
    kernels=("cpu", "cuda"),
    by_source=(True, False),
)
