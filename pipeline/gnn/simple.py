"""Simple methods: the least that a trained model should be better than."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.propagation import NormalizedAdjacency, correct, propagate, smooth
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.gnn.pair_scores import PAIR_SCORES
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import PAIRS, merit
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Binary tasks or values that each get a random forest, at most.
MOST_FORESTS = 12
# Rows that a model is fitted to at most, drawn at random.
MOST_ROWS = 10_000
# Penalties of linear models, as scikit-learn's C; and how often features and labels are propagated.
STRENGTHS, HOPS, STEPS = (0.01, 0.1, 1.0), (1, 2, 3), 50
ALPHAS = (0.5, 0.8, 0.95)
# Weights of the second step of label propagation in two, and that of the mean label.
SECOND, PRIOR = (0.0, 0.5, 1.0, 3.0, 10.0, 30.0), 0.02
# Columns of edges that are tried as weights one by one, at most.
MOST_CHANNELS = 16
# Probabilities this close to 0 and 1 are as good as certain.
CERTAIN = 1e-6


def _best(name: str, metric: str, candidates: Iterator[Any],
          score: Callable[[Any], dict[str, float]]) -> tuple[Baseline, Any]:
    """Take the setting whose validation metric is the best, the first of equal ones."""
    began = time.perf_counter()
    best: tuple[dict[str, float], Any] | None = None
    for candidate in candidates:
        scores = score(candidate)
        if best is None or merit(metric, scores["valid"]) > merit(metric, best[0]["valid"]):
            best = scores, candidate
    assert best is not None
    return Baseline(name, best[0], time.perf_counter() - began), best[1]


def of_links(data: Data, task: LinkTask) -> Iterator[Baseline]:
    """Score pairs by their common neighbours and by spectral vectors."""
    alike = []
    for name, scorer in PAIR_SCORES.items():
        began = time.perf_counter()
        score = scorer(data)
        found = {key: score(task.pairs_of(key)) for key in PAIRS}
        scores = task.rank_pairs(found.__getitem__)
        if not any(bool(rows.any()) for rows in found.values()):
            alike.append(name)
        yield Baseline(name, scores, time.perf_counter() - began)
    if alike:
        log.info("baselines: %s: 0 for every pair, as the ends of no pair have a common neighbour. So it is in a "
                 "bipartite graph, whose links join its two sides", ", ".join(alike))


def of_nodes(data: Data, task: NodeTask) -> Iterator[Baseline]:
    """Score the mean label, propagated labels, and linear models of the nodes' own and of propagated features."""
    labels, adjacency = Labels(data, task), NormalizedAdjacency(data.edge_index, data.num_nodes)
    best = partial(_best_rows, task, labels)
    yield best(labels.mean_name, iter([labels.mean()]))[0]
    baseline, _ = best("label propagation", (labels.propagated(adjacency, alpha) for alpha in ALPHAS))
    yield without_train(baseline)
    yield best("label propagation in two steps", (
        columns for weight in edge_weights(data) for columns in labels.propagated_twice(data, weight)))[0]
    if not data.types.homogeneous:
        yield from _of_type(data, task, data.types)
        return
    if not data.x.size(1):
        return
    x = _standardised(data.x)
    yield best(f"{labels.linear_name} on the node's own features", (
        labels.fit(x, labels.linear(strength)) for strength in STRENGTHS))[0]
    baseline, predicted = best(f"{labels.linear_name} on propagated features (SGC)", (
        labels.fit(hopped, labels.linear(strength)) for hopped in _propagations(adjacency, x)
        for strength in STRENGTHS))
    yield baseline
    if labels.are_classes:
        y, mask = data.y[:, 0], data.train_mask
        baseline, _ = best("the same with Correct and Smooth", (
            smooth(adjacency, correct(adjacency, predicted, y, mask, first), y, mask, second)
            for first in ALPHAS for second in ALPHAS))
        yield without_train(baseline)


def _of_type(data: Data, task: NodeTask, types: GraphTypes) -> Iterator[Baseline]:
    """Score a linear model of the features of the nodes of the type with labels, fitted to these nodes alone."""
    log.info("baselines: SGC and Correct and Smooth are left out; they propagate along all edges, and the types of "
             "nodes have columns of their own")
    assert types.labelled is not None
    nodes, width = types.nodes_of(types.labelled), types.widths[types.names.index(types.labelled)]
    if not width:
        return
    own = slice(nodes.start, nodes.stop)
    labels = Labels(Data(y=data.y[own], train_mask=data.train_mask[own]), task)
    x = _standardised(data.x[own, :width])

    def among_all(rows: Tensor) -> Tensor:
        out = rows.new_zeros(data.num_nodes, rows.size(1))
        out[own] = rows
        return out

    yield _best_rows(task, labels, f"{labels.linear_name} on the node's own features", (
        among_all(labels.fit(x, labels.linear(strength))) for strength in STRENGTHS))[0]


def of_graphs(data: Data, task: NodeTask) -> Iterator[Baseline]:
    """Score the mean label, a linear model and a random forest of what each graph holds, without its structure."""
    labels, counts = Labels(data, task), count_contents(data)
    best = partial(_best_rows, task, labels)
    yield best(labels.mean_name, iter([labels.mean()]))[0]
    x = _standardised(counts)
    yield best(f"{labels.linear_name} on sums over nodes and edges", (
        labels.fit(x, labels.linear(strength)) for strength in STRENGTHS))[0]
    if task.out_channels <= MOST_FORESTS or labels.are_classes:
        yield best("random forest on sums over nodes and edges", iter([labels.fit(counts, labels.forest())]))[0]


def without_train(baseline: Baseline) -> Baseline:
    """Return a method that has seen the training labels of the nodes it predicts: their score says nothing."""
    return replace(baseline, scores=baseline.scores | {"train": math.nan})


def count_contents(data: Data) -> Float[Tensor, "num_graphs columns"]:
    """Sum the features of each graph's nodes, and of its edges; of categories, count each."""
    graph = torch.arange(len(data.ptr) - 1).repeat_interleave(data.ptr.diff())
    ends = graph[data.edge_index.as_tensor()[1].long()]
    parts = [torch.bincount(graph, minlength=len(data.ptr) - 1).float().unsqueeze(1)]
    for of, values, sizes in ((graph, data.x, data.get("x_tables")), (ends, data.edge_attr, data.get("edge_tables"))):
        if values is None or not values.size(1):
            continue
        for column in range(values.size(1)):
            if sizes is None:
                found = torch.zeros(len(parts[0])).index_add_(0, of, values[:, column].float()).unsqueeze(1)
            else:
                found = torch.bincount(of * sizes[column] + values[:, column].long(),
                                       minlength=len(parts[0]) * sizes[column]).view(-1, sizes[column]).float()
            parts.append(found)
    return torch.cat(parts, dim=1)


def _best_rows(task: NodeTask, labels: "Labels", name: str, candidates: Iterator[Tensor]) -> tuple[Baseline, Tensor]:
    return _best(name, task.metric, candidates, lambda columns: task.scores(None, labels.rows(columns)))


def _standardised(x: Tensor) -> Float[Tensor, "num_nodes channels"]:
    x = x.float()
    return (x - x.mean(0)) / x.std(0).nan_to_num().clamp(min=CERTAIN)


def edge_weights(data: Data) -> Iterator[Float[Tensor, " num_edges"]]:
    """Yield weights of the edges: equal ones; the sum of their features, and each feature, unless one is negative.

    A self-loop weighs nothing, since it would give a node its own label.
    """
    src, dst = data.edge_index.as_tensor()
    is_no_loop = (src != dst).float()
    yield is_no_loop
    features = data.get("edge_attr") if data.types.homogeneous else None
    if features is None or not features.size(1) or bool((features < 0).any()):
        return
    yield features.float().sum(1) * is_no_loop
    if 1 < features.size(1) <= MOST_CHANNELS:
        for column in features.float().unbind(1):
            yield column * is_no_loop


def _propagations(adjacency: NormalizedAdjacency, x: Tensor) -> Iterator[Tensor]:
    """Yield the features after one, two, three steps along the edges (SGC, https://arxiv.org/abs/1902.07153)."""
    for _ in HOPS:
        x = adjacency @ x
        yield _standardised(x)


class Labels:
    """The labels of a graph's nodes as columns of numbers: of each class, of each binary task, or values.

    Args:
        data: the graph.
        task: what is learned.

    Attributes:
        are_classes, are_values: what they are; binary tasks otherwise.
        mean_name, linear_name: what to call the mean of such labels, and a linear model of them.
    """

    def __init__(self, data: Data, task: NodeTask):
        self.are_classes, self.are_values = task.kind == "classes", task.kind == "real values"
        self._mask: Bool[Tensor, " num_nodes"] = data.train_mask
        self._y = torch.nn.functional.one_hot(data.y[:, 0], task.out_channels).float() \
            if self.are_classes else data.y.float()
        self.mean_name = "mean label" if self.are_values else "most frequent label"
        self.linear_name = "ridge regression" if self.are_values else "logistic regression"
        self._known = ~self._y.isnan() & self._mask.unsqueeze(1)
        self._has_said = False

    def rows(self, columns: Tensor) -> Tensor:
        """Turn probabilities of binary tasks into logits, which the metrics take."""
        return columns if self.are_classes or self.are_values else columns.clamp(CERTAIN, 1 - CERTAIN).logit()

    def mean(self) -> Float[Tensor, "num_nodes columns"]:
        """Predict the mean label of the training nodes."""
        return self._mean().expand(len(self._y), -1)

    def propagated(self, adjacency: NormalizedAdjacency, alpha: float) -> Float[Tensor, "num_nodes columns"]:
        """Predict the mean of the labels around a node, of which near ones count more; the overall mean where none is.

        Each label and each mark that it is known takes `STEPS` steps ``z = alpha S z + (1 - alpha) x``.
        """
        known = self._known.float()
        labels = propagate(adjacency, self._y.nan_to_num() * known, alpha, STEPS, low=-torch.inf, high=torch.inf)
        weight = propagate(adjacency, known, alpha, STEPS)
        return torch.where(weight > CERTAIN, labels / weight, self._mean())

    def propagated_twice(self, data: Data, weight: Tensor) -> Iterator[Float[Tensor, "num_nodes columns"]]:
        """Predict the mean of the labels one and two steps away, without the node's own, once for each weight of the
        second step.
        """
        adjacency = NormalizedAdjacency(data.edge_index, data.num_nodes, weight=weight)
        known, own = self._known.float(), adjacency.square_diagonal()
        if bool((known == known[:, :1]).all()):
            known = known[:, :1]
        labels = self._y.nan_to_num() * known
        first, among = adjacency @ labels, adjacency @ known
        second, among_second = adjacency @ first - own * labels, adjacency @ among - own * known
        prior = PRIOR * self._mean()
        for share in SECOND:
            yield (first + share * second + prior) / (among + share * among_second + PRIOR)

    def linear(self, strength: float) -> Callable[[], Any]:
        """Return what makes a linear model of scikit-learn's; `strength` is its C, or 1 / alpha."""
        if self.are_values:
            from sklearn.linear_model import Ridge
            return partial(Ridge, alpha=1 / strength)
        from sklearn.linear_model import LogisticRegression
        return partial(LogisticRegression, C=strength, max_iter=100)

    def forest(self) -> Callable[[], Any]:
        """Return what makes a random forest of scikit-learn's."""
        from sklearn import ensemble
        return partial(ensemble.RandomForestRegressor if self.are_values else ensemble.RandomForestClassifier,
                       n_estimators=100, random_state=0)

    def fit(self, x: Float[Tensor, "num_rows channels"],
            make: Callable[[], Any]) -> Float[Tensor, "num_rows columns"]:
        """Predict by a model of scikit-learn's that is fitted to some of the training rows.

        Args:
            make: makes a model.
        """
        chosen = self._mask.nonzero().squeeze(1)
        if len(chosen) > MOST_ROWS:
            if not self._has_said:
                self._has_said = True
                log.info("baselines: linear models and forests are fitted to %s of %s training rows, drawn at random",
                         f"{MOST_ROWS:,}", f"{len(chosen):,}")
            picked = stream("baselines", 0).choice(len(chosen), MOST_ROWS, replace=False)
            chosen = chosen[torch.from_numpy(np.sort(picked))]
        if self.are_classes:
            return _probabilities(make, x, chosen, self._y[chosen].argmax(1).numpy(), self._y.size(1))
        columns = [self._fit_column(make, x, chosen[self._known[chosen, column]], column)
                   for column in range(self._y.size(1))]
        return torch.stack(columns, dim=1)

    def _mean(self) -> Float[Tensor, " columns"]:
        return (self._y.nan_to_num() * self._known).sum(0) / self._known.sum(0).clamp(min=1)

    def _fit_column(self, make: Callable[[], Any], x: Tensor, chosen: Tensor, column: int) -> Tensor:
        y = self._y[chosen, column].numpy()
        if not len(y) or (y == y[0]).all():
            return self._mean()[column].expand(len(x))
        if not self.are_values:
            return _probabilities(make, x, chosen, y.astype(np.int64), 2)[:, 1]
        return torch.from_numpy(make().fit(x[chosen].numpy(), y).predict(x.numpy())).float()


def _probabilities(make: Callable[[], Any], x: Tensor, chosen: Tensor, y: np.ndarray, num_classes: int) -> Tensor:
    out = torch.zeros(len(x), num_classes)
    if (y == y[0]).all():
        out[:, y[0]] = 1
        return out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that do not suffice: near enough
        model = make().fit(x[chosen].numpy(), y)
    out[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_proba(x.numpy())).float()
    return out
