"""Labels that spread along the edges of a graph, and predictions that are corrected by them."""

from collections.abc import Iterator
from functools import partial
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.propagation import NormalizedAdjacency, propagate
from parallel_epochs.pipeline.data.tables.scores import NUM_FOLDS
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import CERTAIN, Labels
from parallel_epochs.pipeline.gnn.base.method import Method, TooLong
from parallel_epochs.pipeline.names import WHOLE_DEGREE

# How often labels are propagated in many steps, and the weights of what the neighbours say.
STEPS, ALPHAS = 50, (0.5, 0.8, 0.95)
# The same of Correct and Smooth: more steps change nothing.
SMOOTHING_STEPS, SMOOTHING_ALPHAS = 10, (0.3, 0.5, 0.8, 0.95)
# Seconds for each number that is sent along an edge, an estimate.
OF_MESSAGE = 5e-10
# Weights of the second step of label propagation in two, and that of the mean label.
SECOND, PRIOR = (0.0, 0.5, 1.0, 3.0, 10.0, 30.0), 0.02
# Columns of edges that are tried as weights one by one, at most.
MOST_CHANNELS = 16
# One step and two of the labels, and of the marks that they are known.
Steps = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def both_steps(data: Data, labels: Labels, weight: Tensor, known: Tensor) -> Steps:
    """Propagate labels and marks that they are known by one step and by two, without what comes back to a node."""
    adjacency = NormalizedAdjacency(
        data.edge_index, data.num_nodes, weight=weight, degree=data.get(WHOLE_DEGREE)
    )
    is_known, own = _marks(labels, known), adjacency.square_diagonal()

    def both(values: Tensor) -> tuple[Tensor, Tensor]:
        first = adjacency @ values
        return first, adjacency @ first - own * values

    return both(labels.y.nan_to_num() * is_known), both(is_known)


def _marks(labels: Labels, known: Tensor) -> Tensor:
    """Return 1 for each known label of some rows; one column where those of all columns are the same."""
    marks = labels.known(known).float()
    return marks[:, :1] if bool((marks == marks[:, :1]).all()) else marks


def mean_label(steps: Steps, share: float, mean: Tensor) -> Float[Tensor, "num_nodes columns"]:
    """Return the mean of the labels one and two steps away, without the node's own, and a little of the mean label.

    Args:
        steps: of :func:`both_steps`.
        share: weight of the second step.
        mean: of all labels.
    """
    (first, second), (among, among_second) = steps
    return (first + share * second + PRIOR * mean) / (among + share * among_second + PRIOR)


def two_steps(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield label propagation in two steps, with each weight of the edges and of the second step."""
    for number, _ in enumerate(edge_weights(inputs.data)):
        for share in SECOND:  # one after the other, as the two steps are kept
            title = f"label propagation in two steps ({name_weight(number)}, second step {share:g})"
            yield Method(
                "propagation",
                title,
                partial(_settings, inputs.labels, weight=number, second=share),
                predict_two_steps,
                leaves_out=True,
                reads_labels=True,
            )


def _settings(labels: Labels, known: Tensor, **settings: float) -> dict:
    return {**settings, "mean": labels.mean(known)}


def name_weight(number: int) -> str:
    """Name the weights of edges that :func:`edge_weights` yields."""
    return (
        ("all edges alike", "edges by the sum of their columns")[number]
        if number < 2
        else f"edges by column {number - 2}"
    )


def predict_two_steps(
    inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None
) -> Tensor:
    """Predict by the labels one and two steps away, the own one left out.

    Raises:
        ValueError: the graph has no such weights of edges.
    """
    number = fitted["weight"]
    if inputs.kept is None or inputs.kept[0] != number or not torch.equal(inputs.kept[1], known):
        weight = nth_weights(inputs.data, number)
        if weight is None:
            raise ValueError(
                f"{name_weight(number)}: the graph of the training had such columns, none of them "
                "negative, and this one has not"
            )
        inputs.kept = number, known, both_steps(inputs.data, inputs.labels, weight, known)
    return mean_label(inputs.kept[2], fitted["second"], fitted["mean"])


def many_steps(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield label propagation in many steps, with each weight of what the neighbours say."""
    refuse_long(inputs, (len(ALPHAS) + NUM_FOLDS) * STEPS)
    for alpha in ALPHAS:
        yield Method(
            "diffusion",
            f"label propagation in {STEPS} steps (alpha {alpha:g})",
            partial(_settings, inputs.labels, alpha=alpha),
            predict_many_steps,
            reads_labels=True,
        )


def refuse_long(inputs: Inputs, num_steps: int) -> None:
    """Refuse a graph on which so many steps of all labels would take longer than a method may take.

    Raises:
        TooLong: says how long.
    """
    seconds = OF_MESSAGE * num_steps * inputs.data.num_edges * inputs.task.out_channels
    if seconds > inputs.seconds:
        raise TooLong(
            f"it would take some {seconds:.2g} s, and may take {inputs.seconds:.3g} s", seconds
        )


def predict_many_steps(
    inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None
) -> Tensor:
    """Predict the mean of the labels around a node, of which near ones count more; the overall mean where none is.

    Each label and each mark that it is known takes `STEPS` steps ``z = alpha S z + (1 - alpha) x``.
    """
    labels, adjacency, alpha = inputs.labels, inputs.adjacency, fitted["alpha"]
    is_known = _marks(labels, known)
    values = propagate(
        adjacency, labels.y.nan_to_num() * is_known, alpha, STEPS, low=-torch.inf, high=torch.inf
    )
    weight = propagate(adjacency, is_known, alpha, STEPS)
    return torch.where(weight > CERTAIN, values / weight, fitted["mean"])


def nth_weights(data: Data, number: int) -> Float[Tensor, " num_edges"] | None:
    """Return one of the weights that :func:`edge_weights` yields, numbered from 0; none if there are fewer."""
    return next(islice(edge_weights(data), number, None), None)


def edge_weights(data: Data) -> Iterator[Float[Tensor, " num_edges"]]:
    """Yield weights of the edges: equal ones; the sum of their features, and each feature, unless one is negative.

    A self-loop weighs nothing, since it would give a node its own label.
    """
    src, dst = plain_edges(data.edge_index)
    is_no_loop = (src != dst).float()
    yield is_no_loop
    features = data.get("edge_attr") if data.types.homogeneous else None
    if features is None or not features.size(1) or bool((features < 0).any()):
        return
    yield features.float().sum(1) * is_no_loop
    if 1 < features.size(1) <= MOST_CHANNELS:
        for column in features.float().unbind(1):
            yield column * is_no_loop


def weights_of_labels(data: Data) -> Iterator[Float[Tensor, " num_edges"]]:
    """Yield equal weights of the edges and, where it is not negative, the sum of their columns; labels take the last."""
    return islice(edge_weights(data), 2)
