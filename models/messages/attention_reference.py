"""The reference of attention in plain torch, for any device. It builds tensors of edges x channels."""

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


def attention(
    message: Tensor,
    source: Tensor | None,
    target: Tensor | None,
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    *,
    num_dst: int,
    num_loops: int | None,
    **options,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`models.messages.attention.attention` and always its weights."""
    num_edges, removed = edge_index.size(1) + (num_loops or 0), num_dst
    if num_loops is not None:
        edge_index = append_loops(edge_index, num_dst, num_loops)
    src, dst = plain_edges(edge_index)
    position = torch.arange(num_edges, device=message.device)
    if num_loops is not None:
        position = (dst != removed).nonzero().squeeze(1)
        src, dst = src[position], dst[position]
    return attend(
        src,
        dst,
        position,
        message,
        source,
        target,
        edge_attr,
        loop_attr,
        weight,
        att,
        seed,
        num_dst=num_dst,
        num_positions=num_edges,
        **options,
    )


def attend(
    src: Int[Tensor, " num_kept"],
    dst: Int[Tensor, " num_kept"],
    position: Int[Tensor, " num_kept"],
    message: Float[Tensor, "num_src heads channels"],
    source: Tensor | None,
    target: Tensor | None,
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
    loop_attr: Float[Tensor, "num_loops edge_dim"] | None,
    weight: Float[Tensor, "rows edge_dim"] | None,
    att: Float[Tensor, "heads channels"] | None,
    seed: Tensor,
    *,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_dst: int,
    num_positions: int,
) -> tuple[Float[Tensor, "num_dst heads channels"], Float[Tensor, "num_positions heads"]]:
    """Attend along listed edges; `position` is the number of each in the caller's order."""
    kind, heads, dtype = SCORES[score], message.size(1), message.dtype
    if edge_dropout:
        lane = torch.full((1,), ALL_HEADS, device=src.device)
        kept = (
            draw_factors(seed, position.long(), lane, edge_dropout).squeeze(1).nonzero().squeeze(1)
        )
        src, dst, position = src[kept], dst[kept], position[kept]
    encoded = None
    if edge_attr is not None:
        table = edge_attr if loop_attr is None else torch.cat([edge_attr, loop_attr])
        encoded = F.linear(table.index_select(0, position), weight)
        encoded = encoded if kind.by_head else encoded.view(encoded.size(0), *message.shape[1:])
    values = message.index_select(0, src)
    key = values if source is None else source.index_select(0, src)
    query = None if target is None else target.index_select(0, dst)
    weights = softmax(
        kind.compute(key if encoded is None else key + encoded, query, att, slope), dst, num_dst
    )
    factor = 1.0
    if dropout:
        factor = draw_factors(
            seed, position.long(), torch.arange(heads, device=src.device), dropout
        ).to(dtype)
    if kind.encodes_messages and encoded is not None:
        values = values + encoded
    out = values.new_zeros((num_dst, *message.shape[1:]))
    out = out.index_add(0, dst, values * (weights * factor).unsqueeze(2))
    shown = weights if kind.encodes_messages else weights * factor
    return out, weights.new_zeros((num_positions, heads)).index_copy(0, position, shown)
