"""Link prediction: which pairs of nodes are linked, from embeddings of the nodes."""

import copy
import math
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from parallel_epochs.models.networks.link_predictor import LinkModel
from parallel_epochs.pipeline.data.links import link_relation_of
from parallel_epochs.pipeline.gnn.predict.ranking import BlockScorer, Links, score_split
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.metrics import (
    check_finite,
    count_by_score,
    hits_at,
    link_metric,
    link_ranking,
)
from parallel_epochs.pipeline.names import PAIRS, SPLITS, ranks_at

# Pairs decoded at a time.
BLOCK = 1 << 16
# A report has no further scores of more pairs, since they are decoded for it once more.
MAX_DESCRIBED = 10**7


class Mixture(Protocol):
    """Mixes the scores of a network with those of a simple method, see :class:`pipeline.gnn.base.link_fusion.Mixture`."""

    share: float

    def answer(
        self, network: Callable[[], Tensor], simple: Callable[[Any], Tensor], *, of_test: bool
    ) -> Tensor: ...


class LinkTask:
    """Predicts links: rows are embeddings of nodes, and :meth:`scores` decodes pairs of them.

    The loss is the binary cross-entropy of the training pairs of a batch and of as many others, as in the link
    examples of "Open Graph Benchmark" (https://arxiv.org/abs/2005.00687). Each split has its positive pairs and the
    negative ones that they are ranked among; those of training are ranked among the negatives of validation. With
    "mrr" and a graph that has ``negatives_per_pair``, each pair is ranked among its own, and the first training pairs
    among those of the validation pairs in the same order. "recall@K", "ndcg@K", "hit@K" and "mrr@K" rank all candidates
    of a source, see :class:`pipeline.gnn.predict.ranking.Links`, and need no negatives.

    Args:
        data: a graph as :func:`pipeline.data.cache.load` returns it, with the pairs of ``PAIRS``.
        hidden_channels: width of the embeddings that a model is asked for.
        metric: of links, as :func:`pipeline.metrics.hits_at` lists them; that of the graph if none is given.
        valid_edges: whether the validation pairs are edges of the graph from which the test pairs are predicted.

    Attributes:
        metric: name of the metric, of which more is better.
        in_channels: columns of what the model gets, without one-hot categories.
        out_channels: columns that the model is asked for.
        num_rows: number of nodes.
        kind: what is learned.
        test_data: the graph to predict the test pairs from, where that is another one.
        own: the relation of the pairs, of a graph with several types of nodes; none for others.
        links: the links that are ranked; none where the metric ranks no candidates.
        mixture: what the scores of a network are mixed with; none for the network alone.

    Raises:
        ValueError: the graph has no pairs, the metric is unknown, or there are too few negatives for it.
    """

    kind = "links"
    label_moments: Tensor | None = None

    def __init__(
        self,
        data: Data,
        *,
        hidden_channels: int,
        metric: str | None = None,
        valid_edges: bool = False,
    ):
        self.metric: str = metric or data.metric
        self.in_channels = data.x.size(1) - data.num_categories
        self.out_channels, self.num_rows = hidden_channels, data.num_nodes
        self._data, self.own = data, link_relation_of(data)
        self._each = data.get("negatives_per_pair") if self.metric == "mrr" else None
        k, self.links = hits_at(self.metric), Links(data) if ranks_at(self.metric) else None
        for split in SPLITS[1:]:
            found = len(data[f"{split}_negatives"])
            if len(data[f"{split}_pairs"]) and found < max(k, 1) and self.links is None:
                raise ValueError(
                    f"{self.metric} of the {split} split: {found:,} negative pairs are fewer than "
                    f"{max(k, 1):,}, so that any model would have a perfect score. Set task.metric=mrr or "
                    "hits@K with a lower K, or give more negatives"
                )
        self.test_data = self._with_valid_edges() if valid_edges else None
        self.mixture: Mixture | None = None

    def predict(
        self, model: torch.nn.Module, batch: Data
    ) -> tuple[Int[Tensor, " num_targets"], Float[Tensor, "num_targets out_channels"]]:
        """Compute the embeddings of the targets of a batch.

        Returns:
            The numbers of these nodes in the graph, and their embeddings.
        """
        return batch.n_id[batch.target], model(batch.x, batch.edge_index, batch.edge_attr)[
            batch.target
        ]

    def loss(
        self, model: torch.nn.Module, batch: Data, rng: torch.Generator
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Compute the loss of a batch, summed over its training pairs, and their number.

        Each training pair brings its own loss and the mean of those of the pairs that were drawn for it.

        Args:
            batch: with ``pairs`` and ``negatives``, see :class:`pipeline.gnn.loaders.pairs.PairLoader`.
            rng: not needed; the loader has drawn the negatives.
        """
        h = model(batch.x, batch.edge_index, batch.edge_attr)
        decoder = cast(LinkModel, model)
        paths = decoder.find_paths(batch.edge_index, batch.num_nodes)
        positive, negative = (
            decoder.decode(h, pairs, paths).float() for pairs in (batch.pairs, batch.negatives)
        )
        each = len(positive) / max(len(negative), 1)
        total = F.softplus(-positive).sum() + each * F.softplus(negative).sum()
        return total, torch.tensor(len(positive), device=total.device)

    def scores(
        self,
        model: torch.nn.Module | None,
        rows: Float[Tensor, "num_rows columns"],
    ) -> dict[str, float]:
        """Compute the metric of each split; NaN for a split without pairs.

        Args:
            model: decodes the pairs.
            rows: embeddings of every node; with `test_data`, those from it behind them.

        Raises:
            FloatingPointError: an embedding or a score is not finite.
        """
        if self.links is not None:
            return {
                split: score_split(
                    self.links,
                    self.score_by(model, rows, of_test=split == "test"),
                    self.metric,
                    split,
                )
                for split in SPLITS
            }

        def decode(key: str) -> Tensor:
            return self.decode(model, rows, self.pairs_of(key), of_test=key.startswith("test"))

        return self.rank_pairs(decode)

    @property
    def has_own_negatives(self) -> bool:
        """Tell whether each validation and test pair is ranked among negatives of its own."""
        return bool(self._each)

    def pairs_of(self, key: str) -> Int[Tensor, "num_pairs 2"]:
        """Return the pairs of one of ``PAIRS`` that are ranked: where pairs have negatives of their own, as many
        training pairs as validation pairs.
        """
        pairs = self._data[key]
        return (
            pairs[: len(self._data.valid_negatives) // self._each]
            if self._each and key == "train_pairs"
            else pairs
        )

    def rank_pairs(self, score: Callable[[str], Tensor]) -> dict[str, float]:
        """Compute the metric of each split from scores of its pairs, by whatever method; see :meth:`scores`.

        Args:
            score: called with each of ``PAIRS``, a name in the graph; returns a number for each pair of
                :meth:`pairs_of`.
        """
        scored = {key: score(key) for key in PAIRS}
        return {
            split: self._score(
                scored[f"{split}_pairs"],
                scored[f"{'valid' if split == 'train' else split}_negatives"],
            )
            for split in SPLITS
        }

    def describe(
        self, model: torch.nn.Module, rows: Float[Tensor, "num_rows columns"], split: str
    ) -> dict[str, Any]:
        """Score the pairs of validation or test for the report: ``ranking`` and ``curve``, as :mod:`pipeline.metrics`
        makes them. Without pairs of both kinds, or with more than MAX_DESCRIBED, there is nothing.
        """
        keys = [f"{split}_pairs", f"{split}_negatives"]
        if not self.is_defined(split) or sum(len(self._data[key]) for key in keys) > MAX_DESCRIBED:
            return {}
        positive, negative = (
            self.decode(model, rows, self._data[key], of_test=split == "test") for key in keys
        )
        truth = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
        return {
            "ranking": link_ranking(
                positive, negative.view(-1, self._each) if self._each else negative
            ),
            "each": self._each,
            "curve": count_by_score(truth, torch.cat([positive, negative])),
        }

    def is_defined(self, split: str) -> bool:
        """Tell whether the metric of the validation or the test split is a number: it needs pairs, and negatives unless
        all candidates are ranked.
        """
        return bool(
            len(self._data[f"{split}_pairs"])
            and (self.links or len(self._data[f"{split}_negatives"]))
        )

    @torch.no_grad()
    def decode(
        self,
        model: torch.nn.Module | None,
        rows: Float[Tensor, "num_rows columns"],
        pairs: Int[Tensor, "num_pairs 2"],
        *,
        of_test: bool = False,
    ) -> Float[Tensor, " num_pairs"]:
        """Compute the logits of pairs of nodes, some at a time, on the model's device, and mix them with those of a
        simple method, where the run answers with a mixture.

        Args:
            of_test: decode the embeddings for the test, and count common neighbours in its graph.

        Raises:
            FloatingPointError: one is not finite.
        """

        def network() -> Tensor:
            decoder, own, paths = self._prepare(model, rows, of_test)
            blocks = [
                decoder.decode(own, block.to(own.device), paths).cpu()
                for block in pairs.split(BLOCK)
            ]
            logits = torch.cat(blocks) if blocks else torch.empty(0)
            check_finite(logits)
            return logits

        return (
            network()
            if self.mixture is None
            else self.mixture.answer(
                network, lambda simple: simple.of_pairs(pairs), of_test=of_test
            )
        )

    def score_by(
        self,
        model: torch.nn.Module | None,
        rows: Float[Tensor, "num_rows columns"],
        *,
        of_test: bool = False,
    ) -> BlockScorer:
        """Return what computes the logits of all pairs of some sources and candidates; see :meth:`decode`.

        Args:
            of_test: as of :meth:`decode`.
        """
        decoder, rows, paths = self._prepare(model, rows, of_test)

        @torch.no_grad()
        def network(sources: Tensor, candidates: Tensor) -> Tensor:
            logits = (
                decoder.decode_all(rows, sources.to(rows.device), candidates.to(rows.device), paths)
                .float()
                .cpu()
            )
            check_finite(logits)
            return logits

        if (mixture := self.mixture) is None:
            return network
        return lambda sources, candidates: mixture.answer(
            lambda: network(sources, candidates),
            lambda simple: simple(sources, candidates),
            of_test=of_test,
        )

    def _prepare(
        self, model: torch.nn.Module | None, rows: Tensor, of_test: bool
    ) -> tuple[LinkModel, Tensor, Any]:
        """Return a decoder, the embeddings that it decodes, and the paths that it reads."""
        decoder = cast(LinkModel, model).eval()
        device, width = next(decoder.parameters()).device, decoder.out_channels
        rows = (rows[:, -width:] if of_test else rows[:, :width]).to(device)
        data = self.test_data if of_test and self.test_data is not None else self._data
        return (
            decoder,
            rows,
            decoder.find_paths(data.edge_index.to(device), data.num_nodes),
        )

    def _score(self, positive: Tensor, negative: Tensor) -> float:
        if not len(positive) or not len(negative):
            return math.nan
        if self._each:
            negative = negative.view(-1, self._each)[: len(positive)]
        return link_metric(self.metric, positive, negative)

    def _with_valid_edges(self) -> Data:
        """Add an edge for each validation pair, both ways round; of a relation, an edge of it and of its reverse."""
        data, own = self._data, self.own
        pairs, out = data.valid_pairs.t(), copy.copy(data)
        added = [pairs] if own is not None and own.reverse is None else [pairs, pairs.flip(0)]
        if data.edge_attr is not None:
            if own is None or bool(
                (data.edge_attr[own.edges_of(data.edge_attr[:, 0]), 1:] != 0).any()
            ):
                which, num = (
                    ("the graph's edges", data.edge_attr.size(1))
                    if own is None
                    else (f"the edges of {own.name}", data.edge_attr.size(1) - 1)
                )
                raise ValueError(
                    f"task.valid_edges=true adds the validation pairs as edges, but {which} have {num} "
                    "features and the pairs have none. Set task.valid_edges=false"
                )
            rows = data.edge_attr.new_zeros(len(added), pairs.size(1), data.edge_attr.size(1))
            rows[:, :, 0] = torch.tensor([own.number, own.reverse or 0][: len(added)])[:, None]
        edges = torch.cat([data.edge_index.as_tensor().long(), *added], dim=1)
        out.edge_index, order = sort_edges(edges, data.num_nodes)
        if data.edge_attr is not None:
            out.edge_attr = torch.cat([data.edge_attr, rows.flatten(0, 1)]).index_select(0, order)
        return out
