"""Label propagation, and Correct and Smooth: predictions of classes that neighbours and known labels make better.

See "Combining Label Propagation and Simple Models Out-performs Graph Neural Networks"
(https://arxiv.org/abs/2010.13993). The numbers are those of :class:`torch_geometric.nn.LabelPropagation` and
:class:`torch_geometric.nn.CorrectAndSmooth` with ``autoscale=True``, without a tensor of edges x classes.
"""

from collections.abc import Iterator, Sequence

import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.messages import update_all
from parallel_epochs.models.structure import find_degrees

# Larger factors of corrections are taken for 1, as by the authors.
LARGEST_SCALE = 1000.0


class NormalizedAdjacency:
    """The matrix ``S = D^-1/2 A D^-1/2`` of a graph, where D holds the number of edges that end at each node.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, whose self-loops and duplicates count.
        num_nodes: number of nodes.
        weight: weights of the edges, not negative, of which A and D hold the sums. None: 1 each.
        degree: what D holds, [num_nodes], where the graph is a part of another one. Where only some of the edges are
            here that end at a node, their sum is scaled to all of them. None: the sums of these edges.
        kernel: as for :func:`models.messages.update_all`.

    Raises:
        IndexError: an edge has an end that is not in the graph.
    """

    def __init__(
        self,
        edge_index: Int[Tensor, "2 num_edges"],
        num_nodes: int,
        *,
        weight: Float[Tensor, " num_edges"] | None = None,
        degree: Float[Tensor, " num_nodes"] | None = None,
        kernel: str = "auto",
    ):
        self._edges, self._kernel, self.num_nodes = edge_index, kernel, num_nodes
        self._weight = None if weight is None else weight.unsqueeze(1)
        own = (
            find_degrees(edge_index, num_nodes).in_degree.float()
            if weight is None
            else self._sum(torch.ones(num_nodes, 1)).squeeze(1)
        )
        degree = own if degree is None else degree
        self._scale = degree.masked_fill(degree == 0, torch.inf).rsqrt().unsqueeze(1)
        self._scale_dst = self._scale * (degree / own).nan_to_num_(0.0, posinf=0.0).unsqueeze(1)

    def __matmul__(
        self, x: Float[Tensor, "num_nodes channels"]
    ) -> Float[Tensor, "num_nodes channels"]:
        """Return ``S x``."""
        return self._sum(x * self._scale).mul_(self._scale_dst)

    def square_diagonal(self) -> Float[Tensor, "num_nodes one"]:
        """Return the diagonal of ``S S``: what comes back to a node in two steps."""
        src, dst = plain_edges(self._edges)
        weight = torch.ones(len(src)) if self._weight is None else self._weight.squeeze(1)
        matrix = sp.coo_array(
            (weight.numpy(), (dst.numpy(), src.numpy())), shape=(self.num_nodes,) * 2
        ).tocsr()
        square = self._scale * self._scale_dst
        return torch.from_numpy(matrix.multiply(matrix.T) @ square.numpy()).mul_(square)

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sums over incoming edges, times their weights."""
        message, e = ("copy_u", None) if self._weight is None else ("u_mul_e", self._weight)
        return update_all(
            self._edges,
            message,
            "sum",
            u=x,
            e=e,
            num_src=self.num_nodes,
            num_dst=self.num_nodes,
            kernel=self._kernel,
        )


@torch.no_grad()
def propagate(
    adjacency: NormalizedAdjacency,
    x: Float[Tensor, "num_nodes channels"],
    alpha: float,
    num_steps: int,
    *,
    low: float = 0.0,
    high: float = 1.0,
) -> Float[Tensor, "num_nodes channels"]:
    """Repeat ``z = alpha S z + (1 - alpha) x`` from z = x, each time bounded: label propagation where x holds labels.

    Args:
        alpha: in [0, 1]; 0 leaves `x` as it is.
        num_steps: number of repetitions.
        low, high: bounds of every number.
    """
    out = x
    for _ in range(num_steps if alpha else 0):
        out = (adjacency @ out).mul_(alpha).add_(x, alpha=1 - alpha).clamp_(low, high)
    return out


@torch.no_grad()
def correct(
    adjacency: NormalizedAdjacency,
    probabilities: Float[Tensor, "num_nodes num_classes"],
    y: Int[Tensor, " num_nodes"],
    mask: Bool[Tensor, " num_nodes"],
    alpha: float,
    num_steps: int = 50,
) -> Float[Tensor, "num_nodes num_classes"]:
    """Add to predictions what their errors at nodes with known labels let expect at the others.

    The errors are propagated, and those of each node are scaled to the mean size of a known error.

    Args:
        probabilities: of the classes.
        y: classes.
        mask: nodes whose labels are known.
        alpha, num_steps: as for :func:`propagate`.
    """
    known = mask.nonzero().squeeze(1)
    error = torch.where(mask.unsqueeze(1), -probabilities, 0.0)
    error[known, y[known]] += 1
    size = error.abs().sum() / known.numel()
    error = propagate(adjacency, error, alpha, num_steps, low=-1.0, high=1.0)
    scale = size / error.abs().sum(1, keepdim=True)
    return error.mul_(scale.where(scale <= LARGEST_SCALE, 1.0)).add_(probabilities)


@torch.no_grad()
def smooth(
    adjacency: NormalizedAdjacency,
    probabilities: Float[Tensor, "num_nodes num_classes"],
    y: Int[Tensor, " num_nodes"],
    mask: Bool[Tensor, " num_nodes"],
    alpha: float,
    num_steps: int = 50,
) -> Float[Tensor, "num_nodes num_classes"]:
    """Propagate known labels where there are some, and predictions elsewhere.

    Args: as of :func:`correct`.
    """
    known, start = mask.nonzero().squeeze(1), probabilities.masked_fill(mask.unsqueeze(1), 0.0)
    start[known, y[known]] = 1.0
    return propagate(adjacency, start, alpha, num_steps)


def correct_and_smooth(
    adjacency: NormalizedAdjacency,
    probabilities: Float[Tensor, "num_nodes num_classes"],
    y: Int[Tensor, " num_nodes"],
    mask: Bool[Tensor, " num_nodes"],
    corrections: Sequence[float | None],
    alphas: Sequence[float],
    num_steps: int,
) -> Iterator[tuple[float | None, float, Float[Tensor, "num_nodes num_classes"]]]:
    """Correct predictions with each of some alphas, and smooth what comes of it with each of others.

    Args:
        probabilities, y, mask, num_steps: as for :func:`correct`.
        corrections: alphas of the correction; None leaves the predictions as they are.
        alphas: of the smoothing.

    Yields:
        Both alphas, and the predictions.
    """
    for correction in corrections:
        begun = (
            probabilities
            if correction is None
            else correct(adjacency, probabilities, y, mask, correction, num_steps)
        )
        for alpha in alphas:
            yield (
                correction,
                alpha,
                smooth(adjacency, begun, y, mask, alpha, num_steps),
            )
