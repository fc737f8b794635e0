"""Layers of published recipes that PyG does not have: AGDN's and GIPA's attention, and GatedGCN."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.convs.edge_dropout import draw_from_global
from parallel_epochs.models.edge_index import flip
from parallel_epochs.models.messages import apply_edges, edge_softmax, update_all
from parallel_epochs.models.messages.attention import attention

# Smallest attention weight of which AGDNConv takes the root, whose gradient at 0 is infinite.
LEAST_WEIGHT = 1e-9
# Added to the sum of a destination's gates, by which GatedGCNConv divides.
EPSILON = 1e-6


class EdgeScores(torch.nn.Module):
    """Scores of the edges for each head: ``a_src(x_j) + a_dst(x_i) + a_edge(relu(W e_ij + b))``.

    Args:
        in_channels: columns of x.
        heads: number of heads.
        edge_dim: number of edge features, or None.
        edge_channels: width of the hidden layer of the edge features.
        kernel: as for :func:`models.messages.apply_edges`.
    """

    def __init__(
        self, in_channels: int, heads: int, edge_dim: int | None, edge_channels: int, kernel: str
    ):
        super().__init__()
        self.kernel = kernel
        self.lin_src = torch.nn.Linear(in_channels, heads, bias=False)
        self.lin_dst = torch.nn.Linear(in_channels, heads, bias=False)
        self.edge_encoder = torch.nn.Linear(edge_dim, edge_channels) if edge_dim else None
        self.lin_edge = torch.nn.Linear(edge_channels, heads, bias=False) if edge_dim else None
        initialize(lin for lin in (self.lin_src, self.lin_dst, self.lin_edge) if lin is not None)

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
    ) -> Float[Tensor, "num_edges heads"]:
        """Compute the scores; edge features are left out if they are None."""
        scores = apply_edges(
            edge_index, "u_add_v", u=self.lin_src(x), v=self.lin_dst(x), kernel=self.kernel
        )
        encoded = self.encode(edge_attr)
        return scores if encoded is None else scores + self.lin_edge(encoded)

    def encode(
        self, edge_attr: Float[Tensor, "num_edges edge_dim"] | None
    ) -> Float[Tensor, "num_edges edge_channels"] | None:
        """Apply the hidden layer to the edge features; None without features."""
        return (
            None
            if edge_attr is None or self.edge_encoder is None
            else self.edge_encoder(edge_attr).relu()
        )


class AGDNConv(torch.nn.Module):
    """The layer of "Adaptive Graph Diffusion Networks" (https://arxiv.org/abs/2012.15024).

    The scores go through a LeakyReLU. The weight of an edge is the geometric mean of two softmaxes of its score: over
    the incoming edges of its destination, and over the outgoing edges of its source. Weighted sums are taken again and
    again, which gives the features of each hop. Each hop is normalised by head, multiplied by a learned number for each
    channel, and the hops are summed. A linear map of the node's own features is added.

    Args:
        in_channels: columns of x.
        out_channels: columns of each head.
        heads: number of heads, whose results are concatenated.
        edge_dim: number of edge features, or None.
        edge_channels: width of the hidden layer of the edge features.
        num_hops: number of hops, in [1, 1000).
        negative_slope: slope of the LeakyReLU.
        dropout: probability in training that a weight is zero, after the softmax.
        kernel: as for :func:`models.messages.update_all`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        edge_dim: int | None = None,
        edge_channels: int = 16,
        num_hops: int = 2,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        kernel: str = "auto",
    ):
        if not 1 <= num_hops < 1000:
            raise ValueError(f"num_hops must be in [1, 1000), not {num_hops}")
        super().__init__()
        self.heads, self.negative_slope, self.dropout, self.kernel = (
            heads,
            negative_slope,
            dropout,
            kernel,
        )
        self.scores = EdgeScores(in_channels, heads, edge_dim, edge_channels, kernel)
        self.lin = torch.nn.Linear(in_channels, heads * out_channels, bias=False)
        self.lin_root = torch.nn.Linear(in_channels, heads * out_channels)
        self.norms = torch.nn.ModuleList(HeadNorm(heads, out_channels) for _ in range(num_hops))
        self.hop_weight = torch.nn.Parameter(torch.ones(num_hops, heads, out_channels))
        initialize([self.lin, self.lin_root])

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    ) -> Float[Tensor, "num_nodes channels"]:
        """Convolve once: x [num_nodes, in_channels], edge_attr [num_edges, edge_dim] or none."""
        scores = F.leaky_relu(self.scores(x, edge_index, edge_attr), self.negative_slope)
        incoming, outgoing = (
            edge_softmax(edges, scores, x.size(0), kernel=self.kernel).clamp(min=LEAST_WEIGHT)
            for edges in (edge_index, flip(edge_index))
        )
        weight = F.dropout((incoming * outgoing).sqrt(), self.dropout, self.training)
        h = self.lin(x).view(x.size(0), self.heads, -1)
        out = self.lin_root(x).view_as(h)
        for norm, factor in zip(self.norms, self.hop_weight):
            h = update_all(
                edge_index,
                "u_mul_e",
                "sum",
                u=h,
                e=weight.unsqueeze(-1),
                num_dst=h.size(0),
                kernel=self.kernel,
            )
            out = out + norm(h) * factor
        return out.flatten(1)


class GIPAConv(torch.nn.Module):
    """The wide layer of "GIPA: A General Information Propagation Algorithm for Graph Learning"
    (https://arxiv.org/abs/2301.08209).

    The scores go into the softmax over the incoming edges as they are, without a LeakyReLU. The weighted sum is
    normalised by head and goes through a linear map. A linear map of the node's own features is added.

    Args:
        in_channels, out_channels, heads, edge_dim, edge_channels, dropout, kernel: as for :class:`AGDNConv`.

    Attributes:
        edge_dropout: probability, in training, that an edge is removed before the softmax.
    """

    edge_dropout = 0.0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        edge_dim: int | None = None,
        edge_channels: int = 16,
        dropout: float = 0.0,
        kernel: str = "auto",
    ):
        super().__init__()
        channels, self.heads, self.dropout, self.kernel = (
            heads * out_channels,
            heads,
            dropout,
            kernel,
        )
        self.scores = EdgeScores(in_channels, heads, edge_dim, edge_channels, kernel)
        self.lin = torch.nn.Linear(in_channels, channels, bias=False)
        self.norm = HeadNorm(heads, out_channels)
        self.lin_out, self.lin_root = (
            torch.nn.Linear(channels, channels),
            torch.nn.Linear(in_channels, channels),
        )
        initialize([self.lin, self.lin_out, self.lin_root])

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    ) -> Float[Tensor, "num_nodes channels"]:
        """Convolve once: x [num_nodes, in_channels], edge_attr [num_edges, edge_dim] or none."""
        part, encoded = self.scores, self.scores.encode(edge_attr)
        h = attention(
            self.lin(x).view(x.size(0), self.heads, -1),
            part.lin_src(x),
            part.lin_dst(x),
            edge_index,
            encoded,
            None if encoded is None else part.lin_edge.weight,
            score="gat",
            negative_slope=1.0,
            dropout=self.dropout if self.training else 0.0,
            edge_dropout=self.edge_dropout if self.training else 0.0,
            kernel=self.kernel,
        )
        return self.lin_out(self.norm(h).flatten(1)) + self.lin_root(x)


class GatedGCNConv(torch.nn.Module):
    """The layer of "Residual Gated Graph ConvNets" (https://arxiv.org/abs/1711.07553) with features of edges that it
    updates, as in "Benchmarking Graph Neural Networks" (https://arxiv.org/abs/2003.00982).

    The new features of an edge are ``e_ij = W_src x_j + W_dst x_i + W_edge e_ij``, and their sigmoids are the gates of
    its message: ``W_root x_i + sum_j gate_ij * W x_j / (sum_j gate_ij + 1e-6)``. Each linear map has a bias. Norm,
    activation and residual connection, of nodes and of edges, are those of the stack. Every layer keeps tensors of
    edges x channels, which the features of its edges are.

    Args:
        in_channels: columns of x.
        out_channels: columns of the result and of the new features of edges.
        edge_dim: columns of the features of edges.
        kernel: as for :func:`models.messages.update_all`.

    Attributes:
        edge_dropout: probability, in training, that an edge gives no message. Its features are updated all the same.
    """

    updates_edges = True
    edge_dropout = 0.0

    def __init__(self, in_channels: int, out_channels: int, *, edge_dim: int, kernel: str = "auto"):
        super().__init__()
        self.kernel = kernel
        self.lin, self.lin_root, self.lin_src, self.lin_dst = (
            torch.nn.Linear(in_channels, out_channels) for _ in range(4)
        )
        self.lin_edge = torch.nn.Linear(edge_dim, out_channels)

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_dim"],
    ) -> tuple[Float[Tensor, "num_nodes channels"], Float[Tensor, "num_edges channels"]]:
        """Convolve once: x [num_nodes, in_channels], edge_attr [num_edges, edge_dim].

        Returns:
            The features of the nodes [num_nodes, out_channels] and the new ones of the edges [num_edges, out_channels].
        """
        edges = self.lin_edge(edge_attr) + apply_edges(
            edge_index, "u_add_v", u=self.lin_src(x), v=self.lin_dst(x), kernel=self.kernel
        )
        gates = edges.sigmoid()
        if self.training and self.edge_dropout:
            gates = gates * draw_from_global(gates.size(0), self.edge_dropout, x.device).unsqueeze(
                1
            )
        summed, total = (
            update_all(
                edge_index, message, "sum", u=u, e=gates, num_dst=x.size(0), kernel=self.kernel
            )
            for message, u in (("u_mul_e", self.lin(x)), ("copy_e", None))
        )
        return self.lin_root(x) + summed / (total + EPSILON), edges


class HeadNorm(torch.nn.Module):
    """A LayerNorm over the channels of each head, with a scale and an offset for each channel of each head."""

    def __init__(self, heads: int, channels: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(heads, channels))
        self.bias = torch.nn.Parameter(torch.zeros(heads, channels))

    def forward(
        self, h: Float[Tensor, "num_nodes heads channels"]
    ) -> Float[Tensor, "num_nodes heads channels"]:
        """Normalise features [num_nodes, heads, channels]."""
        return F.layer_norm(h, h.shape[-1:]) * self.weight + self.bias


def initialize(lins: Iterable[torch.nn.Linear]) -> None:
    """Draw the weights as the authors of both layers do: Xavier's normal distribution with the gain of a ReLU."""
    for lin in lins:
        torch.nn.init.xavier_normal_(lin.weight, gain=math.sqrt(2))
