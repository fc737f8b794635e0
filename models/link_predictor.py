"""Link prediction: an encoder of nodes, and a predictor that decodes pairs of nodes."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LinkPredictor(torch.nn.Module):
    """Scores pairs of nodes by an MLP that reads the product of their embeddings, channel by channel.

    This is the decoder of the link examples of "Open Graph Benchmark" (https://arxiv.org/abs/2005.00687). The order of
    the two nodes does not change the score.

    Args:
        channels: width of an embedding and of every hidden layer.
        num_layers: number of linear layers, with a ReLU between each two.
        dropout: probability that a hidden activation is dropped in training, in [0, 1).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, channels: int, *, num_layers: int = 3, dropout: float = 0.0):
        if channels < 1 or num_layers < 1 or not 0 <= dropout < 1:
            raise ValueError(f"a link predictor needs channels >= 1, num_layers >= 1 and dropout in [0, 1), not "
                             f"channels={channels}, num_layers={num_layers} and dropout={dropout}")
        super().__init__()
        self.lins = torch.nn.ModuleList(torch.nn.Linear(channels, channels) for _ in range(num_layers - 1))
        self.lins.append(torch.nn.Linear(channels, 1))
        self.dropout = dropout

    def forward(self, x_i: Float[Tensor, "num_pairs channels"],
                x_j: Float[Tensor, "num_pairs channels"]) -> Float[Tensor, " num_pairs"]:
        """Compute the logit of each pair from the embeddings of its two nodes."""
        h = x_i * x_j
        for lin in self.lins[:-1]:
            h = torch.nn.functional.dropout(lin(h).relu(), self.dropout, self.training)
        return self.lins[-1](h).squeeze(1)


class LinkModel(torch.nn.Module):
    """An encoder and a predictor that are trained and saved as one model.

    Args:
        encoder: ``encoder(x, edge_index, edge_attr)`` returns a row for each node. If it has a linear ``head``, that is
            removed: the input of the head is the embedding.
        out_channels: number of columns of these rows, for an encoder without a head.
        num_layers, dropout: options of :class:`LinkPredictor`.

    Attributes:
        out_channels: width of an embedding.
    """

    def __init__(self, encoder: torch.nn.Module, out_channels: int, *, num_layers: int = 3, dropout: float = 0.0):
        super().__init__()
        if isinstance(head := getattr(encoder, "head", None), torch.nn.Linear):
            out_channels, encoder.head = head.in_features, torch.nn.Identity()
        self.encoder, self.out_channels = encoder, out_channels
        self.predictor = LinkPredictor(out_channels, num_layers=num_layers, dropout=dropout)

    @property
    def takes_int32_edges(self) -> bool:
        return getattr(self.encoder, "takes_int32_edges", False)

    def forward(self, x: Float[Tensor, "num_nodes in_channels"], edge_index: Int[Tensor, "2 num_edges"],
                edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None
                ) -> Float[Tensor, "num_nodes out_channels"]:
        """Compute the embedding of every node, which :meth:`decode` takes."""
        return self.encoder(x, edge_index, edge_attr)

    def decode(self, h: Float[Tensor, "num_nodes out_channels"],
               pairs: Int[Tensor, "num_pairs 2"]) -> Float[Tensor, " num_pairs"]:
        """Compute the logits of pairs of nodes, given the embedding of every node."""
        return self.predictor(h[pairs[:, 0]], h[pairs[:, 1]])
