"""The score of GAT (https://arxiv.org/abs/1710.10903): numbers of both ends, and of the edge, are added."""

from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.messages.scores.score import AttentionScore


def _compute(key: Tensor, query: Tensor | None, _: Tensor | None, slope: float) -> Tensor:
    return F.leaky_relu(key if query is None else key + query, slope)


GAT = AttentionScore(
    _compute,
    by_head=True,
    reads_source=True,
    needs_target=False,
    kernels=("cpu", "cuda"),
    by_source=(True, True),
)
