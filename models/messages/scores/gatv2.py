"""The score of GATv2 (https://arxiv.org/abs/2105.14491)."""

from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.messages.scores.score import AttentionScore


def _compute(key: Tensor, query: Tensor, att: Tensor, slope: float) -> Tensor:
    return (F.leaky_relu(key + query, slope) * att).sum(2)


GATV2 = AttentionScore(_compute, reads_att=True, kernels=("cpu", "cuda"))
