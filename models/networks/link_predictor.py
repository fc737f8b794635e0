"""Link prediction: an encoder of nodes, and a predictor that decodes pairs of nodes."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.networks.common_neighbors import Neighborhoods

PREDICTORS = ("mlp", "residual", "bilinear")
# The first weight of the index of common neighbours in a logit, and the factor of the index in its logarithm.
FIRST_WEIGHT, INDEX_FACTOR = 3.0, 100.0


class LinkPredictor(torch.nn.Module):
    """Scores pairs of nodes by an MLP that reads the product of their embeddings, channel by channel.

    The order of the two nodes changes the score of ``kind="bilinear"`` alone, which is the inner product of a linear
    map of the first node and one of the second, plus a linear function of the second: many pairs are one product of
    matrices. With ``kind="mlp"``, this is the decoder of the link examples
    of "Open Graph Benchmark" (https://arxiv.org/abs/2005.00687). ``kind="residual"`` is that of "Reconsidering the
    Performance of GAE in Link Prediction" (https://arxiv.org/abs/2411.03845) for ogbl-collab: the product goes through
    a layer norm, and a hidden layer computes ``dropout(relu(norm(lin(h) + product)))``.

    Args:
        channels: width of an embedding and of every hidden layer.
        num_layers: number of linear layers.
        dropout: probability that a hidden activation is dropped in training, in [0, 1).
        kind: one of `PREDICTORS`.
        reads_index: whether a learned multiple of ``log(1 + 100 r)`` is added to the logit, where r is the index of
            :meth:`models.networks.common_neighbors.Neighborhoods.allocate_to_pairs`.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        channels: int,
        *,
        num_layers: int = 3,
        dropout: float = 0.0,
        kind: str = "mlp",
        reads_index: bool = False,
    ):
        if channels < 1 or num_layers < 1 or not 0 <= dropout < 1:
            raise ValueError(
                f"a link predictor needs channels >= 1, num_layers >= 1 and dropout in [0, 1), not "
                f"channels={channels}, num_layers={num_layers} and dropout={dropout}"
            )
        if kind not in PREDICTORS:
            raise ValueError(
                f"a link predictor of kind={kind} is unknown; choose one of {', '.join(PREDICTORS)}"
            )
        super().__init__()
        if kind == "bilinear":
            self.source, self.target = (
                torch.nn.Linear(channels, channels),
                torch.nn.Linear(channels, channels),
            )
            self.popularity = torch.nn.Linear(channels, 1)
        else:
            self.lins = torch.nn.ModuleList(
                torch.nn.Linear(channels, channels) for _ in range(num_layers - 1)
            )
            self.lins.append(torch.nn.Linear(channels, 1))
        if kind == "residual":
            self.norms = torch.nn.ModuleList(
                torch.nn.LayerNorm(channels) for _ in range(num_layers)
            )
        if reads_index:
            self.index_weight = torch.nn.Parameter(torch.tensor(FIRST_WEIGHT))
        self.dropout, self.kind, self.reads_index = dropout, kind, reads_index

    def forward(
        self,
        x_i: Float[Tensor, "num_pairs channels"],
        x_j: Float[Tensor, "num_pairs channels"],
        index: Float[Tensor, " num_pairs"] | None = None,
    ) -> Float[Tensor, " num_pairs"]:
        """Compute the logit of each pair.

        Args:
            x_i, x_j: embeddings of its two nodes.
            index: of their common neighbours, if the predictor reads that.
        """
        if self.kind == "bilinear":
            logits = (self.source(x_i) * self.target(x_j)).sum(1) * self.scale(
                x_i
            ) + self.popularity(x_j).squeeze(1)
            return self._with_index(logits, index)
        h = x_i * x_j
        if self.kind == "residual":
            h = start = self.norms[0](h)
            for lin, norm in zip(self.lins[:-1], self.norms[1:], strict=True):
                h = F.dropout(norm(lin(h) + start).relu(), self.dropout, self.training)
        else:
            for lin in self.lins[:-1]:
                h = F.dropout(lin(h).relu(), self.dropout, self.training)
        return self._with_index(self.lins[-1](h).squeeze(1), index)

    def score_all(
        self,
        x_i: Float[Tensor, "num_sources channels"],
        x_j: Float[Tensor, "num_targets channels"],
        index: Float[Tensor, "num_sources num_targets"] | None = None,
    ) -> Float[Tensor, "num_sources num_targets"]:
        """Compute the logits of all pairs of some sources and some targets. Arguments as of :meth:`forward`."""
        if self.kind == "bilinear":
            logits = (
                self.source(x_i) * self.scale(x_i) @ self.target(x_j).t() + self.popularity(x_j).t()
            )
            return self._with_index(logits, index)
        return (
            torch.stack(
                [
                    self(row.expand_as(x_j), x_j, None if index is None else index[place])
                    for place, row in enumerate(x_i)
                ]
            )
            if len(x_i)
            else x_j.new_empty(0, len(x_j))
        )

    @staticmethod
    def scale(x: Tensor) -> float:
        """Return the factor of an inner product that keeps its size whatever the number of channels."""
        return x.size(-1) ** -0.5

    def _with_index(self, logits: Tensor, index: Tensor | None) -> Tensor:
        return (
            logits if index is None else logits + self.index_weight * (INDEX_FACTOR * index).log1p()
        )


class LinkModel(torch.nn.Module):
    """An encoder and a predictor that are trained and saved as one model.

    Args:
        encoder: ``encoder(x, edge_index, edge_attr)`` returns a row for each node. If it has a linear ``head``, that is
            removed: the input of the head is the embedding.
        out_channels: number of columns of these rows, for an encoder without a head.
        options: those of :class:`LinkPredictor`.

    Attributes:
        out_channels: width of an embedding.
    """

    def __init__(
        self,
        encoder: torch.nn.Module,
        out_channels: int,
        **options: Any,
    ):
        super().__init__()
        if isinstance(head := getattr(encoder, "head", None), torch.nn.Linear):
            out_channels, encoder.head = head.in_features, torch.nn.Identity()
        self.encoder, self.out_channels = encoder, out_channels
        self.predictor = LinkPredictor(out_channels, **options)

    @property
    def takes_int32_edges(self) -> bool:
        return getattr(self.encoder, "takes_int32_edges", False)

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Compute the embedding of every node, which :meth:`decode` takes."""
        return self.encoder(x, edge_index, edge_attr)

    def find_paths(
        self, edge_index: Int[Tensor, "2 num_edges"], num_nodes: int
    ) -> Neighborhoods | None:
        """Return what :meth:`decode` finds common neighbours in, or nothing if it does not read them."""
        return Neighborhoods.of(edge_index, num_nodes) if self.predictor.reads_index else None

    def decode(
        self,
        h: Float[Tensor, "num_nodes out_channels"],
        pairs: Int[Tensor, "num_pairs 2"],
        paths: Neighborhoods | None = None,
    ) -> Float[Tensor, " num_pairs"]:
        """Compute the logits of pairs of nodes.

        Args:
            h: embedding of every node.
            pairs: [num_pairs, 2], int64.
            paths: from :meth:`find_paths`.
        """
        index = None if paths is None else paths.allocate_to_pairs(pairs)
        return self.predictor(h[pairs[:, 0]], h[pairs[:, 1]], index)

    def decode_all(
        self,
        h: Float[Tensor, "num_nodes out_channels"],
        sources: Int[Tensor, " num_sources"],
        targets: Int[Tensor, " num_targets"],
        paths: Neighborhoods | None = None,
    ) -> Float[Tensor, "num_sources num_targets"]:
        """Compute the logits of all pairs of some sources, each once, and some targets. Arguments as of :meth:`decode`."""
        index = None if paths is None else paths.allocate_to(sources, targets)
        return self.predictor.score_all(h[sources], h[targets], index)
