"""The scores of attention. The kernels in C++ number those that they have in this order, see attention_cpu.cpp."""

from parallel_epochs.models.messages.scores.dot import DOT
from parallel_epochs.models.messages.scores.gat import GAT
from parallel_epochs.models.messages.scores.gatv2 import GATV2
from parallel_epochs.models.messages.scores.score import AttentionScore

SCORES: dict[str, AttentionScore] = {
    "gatv2": GATV2,
    "gat": GAT,
    "dot": DOT,
}
