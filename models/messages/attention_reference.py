"""The reference of attention in plain torch, for any device. It builds tensors of edges x channels."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.kernels.hash import draw_factors
from parallel_epochs.models.messages.reference import softmax
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import append_loops

# The column of the hash that decides on whole edges. Heads have the columns from 0 on.
ALL_HEADS = 2**32 - 1
# The tensors of a call that may have gradients.
DIFFERENTIABLE = ("message", "source", "target", "attr", "loop_attr", "weight", "att")


class AttentionCall(NamedTuple):
    """A call of :func:`models.messages.attention.attention`, and the arguments of its operators.

    Attributes:
        message: [num_src, heads, channels].
        source: [num_src, heads, channels] for "dot", [num_src, heads] for "gat".
        target: [num_dst, heads, channels], for "gat" [num_dst, heads] or none.
        edges: the fields of a :class:`models.structure.Structure`, which the reference does not read.
        attr: edge features of the first positions [num_edges, edge_dim].
        loop_attr: edge features of the others [num_loops, edge_dim].
        weight: linear encoder of the edge features [heads * channels, edge_dim], for "gat" [heads, edge_dim].
        att: [heads, channels], for "gatv2".
        seed: one int64.
        score: one of `SCORES`.
        slope: negative slope of the leaky ReLU.
        dropout: probability in [0, 1].
        edge_dropout: probability in [0, 1].
        num_positions: number of edges in the caller's order.
    """

    message: Tensor
    source: Tensor | None
    target: Tensor | None
    edges: Sequence[Tensor | None]
    attr: Tensor | None
    loop_attr: Tensor | None
    weight: Tensor | None
    att: Tensor | None
    seed: Tensor
    score: str
    slope: float
    dropout: float
    edge_dropout: float
    num_positions: int

    def change(self, change: Callable[[Tensor], Tensor]) -> "AttentionCall":
        """Replace those tensors that may have gradients."""
        given = {name: getattr(self, name) for name in DIFFERENTIABLE}
        changed = {name: change(value) for name, value in given.items() if value is not None}
        return self._replace(**changed)  # type: ignore[arg-type]


def attention(
    call: AttentionCall, edge_index: Int[Tensor, "2 num_edges"], num_dst: int, num_loops: int | None
) -> tuple[Tensor, Tensor]:
    """Compute :func:`models.messages.attention.attention` and always its weights."""
    if num_loops is not None:
        edge_index = append_loops(edge_index, num_dst, num_loops)
    src, dst = plain_edges(edge_index)
    position = torch.arange(call.num_positions, device=src.device)
    if num_loops is not None:  # `num_dst` stands for the end of those that were replaced
        position = (dst != num_dst).nonzero().squeeze(1)
        src, dst = src[position], dst[position]
    return attend(call, src, dst, position, num_dst)


def attend(
    call: AttentionCall,
    src: Int[Tensor, " num_kept"],
    dst: Int[Tensor, " num_kept"],
    position: Int[Tensor, " num_kept"],
    num_dst: int,
) -> tuple[Float[Tensor, "num_dst heads channels"], Float[Tensor, "num_positions heads"]]:
    """Attend along listed edges; `position` is the number of each in the caller's order."""
    message, kind = call.message, SCORES[call.score]
    heads = message.size(1)
    if call.edge_dropout:
        lane = torch.full((1,), ALL_HEADS, device=src.device)
        factors = draw_factors(call.seed, position.long(), lane, call.edge_dropout)
        kept = factors.squeeze(1).nonzero().squeeze(1)
        src, dst, position = src[kept], dst[kept], position[kept]
    encoded = None
    if call.attr is not None:
        table = call.attr if call.loop_attr is None else torch.cat([call.attr, call.loop_attr])
        encoded = F.linear(table.index_select(0, position), call.weight)
        encoded = encoded if kind.by_head else encoded.view(encoded.size(0), *message.shape[1:])
    values = message.index_select(0, src)
    key = values if call.source is None else call.source.index_select(0, src)
    key = key if encoded is None else key + encoded
    query = None if call.target is None else call.target.index_select(0, dst)
    weights = softmax(kind.compute(key, query, call.att, call.slope), dst, num_dst)
    factor = 1.0
    if call.dropout:
        lanes = torch.arange(heads, device=src.device)
        factor = draw_factors(call.seed, position.long(), lanes, call.dropout).to(message.dtype)
    if kind.encodes_messages and encoded is not None:
        values = values + encoded
    out = values.new_zeros((num_dst, *message.shape[1:]))
    out = out.index_add(0, dst, values * (weights * factor).unsqueeze(2))
    shown = weights if kind.encodes_messages else weights * factor
    return out, weights.new_zeros((call.num_positions, heads)).index_copy(0, position, shown)
