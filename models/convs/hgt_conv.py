"""HGTConv, the layer of the heterogeneous graph transformer, for nodes and edges of all types in one graph."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.convs.expanded_edges import RelationPairs, Relations
from parallel_epochs.models.convs.typed_linear import NodeTypes, TypedLinear
from parallel_epochs.models.messages.attention import attention


class HGTConv(torch.nn.Module):
    """Attention with keys, queries and values of node types, and a matrix of each relation for keys and values.

    It is the layer of Hu et al. (2020, https://arxiv.org/abs/2003.01332) as PyG's ``HGTConv`` computes it. The edges of
    all relations that end at a node share one softmax. Keys and values are computed once for each pair of a relation
    and a source, and the fused attention reads them from there: no tensor has a row of channels for each edge.

    Args:
        in_channels: number of channels of the input.
        out_channels: number of channels of the output, of all heads together.
        num_types: number of node types.
        num_relations: number of relations.
        heads: number of heads.
        dropout: probability that a new feature is dropped in training, in front of the share of the input.
        kernel: as for :func:`models.messages.attention.attention`.

    Attributes:
        k_rel, v_rel: matrices of keys and values [num_relations, heads, channels, channels], Glorot and Bengio's
            uniform numbers.
        p_rel: factors of the scores [num_relations, heads], 1 at first.
        skip: logits of the share of the new features in the output [num_types], 1 at first. They count where
            in_channels equals out_channels.

    Raises:
        ValueError: `out_channels` is not a multiple of `heads`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_types: int,
        num_relations: int,
        heads: int = 1,
        *,
        dropout: float = 0.0,
        kernel: str = "auto",
    ):
        super().__init__()
        if heads < 1 or out_channels % heads:
            raise ValueError(f"heads={heads} does not divide {out_channels} channels")
        self.heads, self.dropout, self.kernel, width = heads, dropout, kernel, out_channels // heads
        self.kqv_lin = TypedLinear(num_types, in_channels, 3 * out_channels)
        self.out_lin = TypedLinear(num_types, out_channels, out_channels)
        self.k_rel, self.v_rel = (
            torch.nn.Parameter(torch.empty(num_relations, heads, width, width)) for _ in range(2)
        )
        for matrices in (self.k_rel, self.v_rel):
            bound = (6 / (2 * width)) ** 0.5
            torch.nn.init.uniform_(matrices, -bound, bound)
        self.p_rel = torch.nn.Parameter(torch.ones(num_relations, heads))
        self.skip = torch.nn.Parameter(torch.ones(num_types))

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        relations: Relations,
        types: NodeTypes | None = None,
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Convolve once.

        Args:
            x: [num_nodes, in_channels]
            relations: the edges.
            types: the types of the nodes. None: all have the first type.

        Returns:
            [num_nodes, out_channels]
        """
        key, query, value = self.kqv_lin(x, types).chunk(3, dim=1)
        by_head, pairs = (-1, self.heads, query.size(1) // self.heads), relations.sources
        keys = multiply_pairs(pairs, key, self.k_rel * self.p_rel[:, :, None, None]).view(by_head)
        values = multiply_pairs(pairs, value, self.v_rel).view(by_head)
        queries = query.contiguous().view(by_head)
        del key, query, value  # views of a tensor that is large for a whole graph
        out = attention(
            values, keys, queries, relations.from_sources, score="dot", kernel=self.kernel
        )
        assert isinstance(out, Tensor)
        out = F.dropout(self.out_lin(F.gelu(out.flatten(1)), types), self.dropout, self.training)
        if out.size(1) != x.size(1):
            return out
        share = self.skip.sigmoid()
        share = share if types is None else share.index_select(0, types.types).unsqueeze(1)
        return share * out + (1 - share) * x


def multiply_pairs(
    pairs: RelationPairs,
    x: Float[Tensor, "num_nodes channels"],
    matrices: Float[Tensor, "relations heads width width"],
) -> Float[Tensor, "num_pairs channels"]:
    """Multiply the heads of each pair's node by their matrices of the pair's relation."""
    if pairs.node is not None:
        return pairs.multiply(x, join_heads(matrices))
    num_relations, heads, width, _ = matrices.shape
    side_by_side = matrices.permute(1, 2, 0, 3).reshape(heads, width, -1)
    products = torch.bmm(x.view(x.size(0), heads, width).transpose(0, 1), side_by_side)
    by_pair = products.view(heads, x.size(0), num_relations, width).permute(1, 2, 0, 3)
    return by_pair.reshape(x.size(0) * num_relations, heads * width)


def join_heads(
    matrices: Float[Tensor, "relations heads rows columns"],
) -> Float[Tensor, "relations width width"]:
    """Put the matrices of a relation's heads on the diagonal of one."""
    num_relations, heads, rows, columns = matrices.shape
    spread = torch.diag_embed(matrices.permute(0, 2, 3, 1)).permute(
        0, 3, 1, 4, 2
    )  # relation, head, row, head, column
    return spread.reshape(num_relations, heads * rows, heads * columns)
