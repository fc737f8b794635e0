"""Inference of a DeeperGCN on a whole graph: layer by layer, one block of nodes at a time, activations in files."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import cut_into_blocks, from_csc
from parallel_epochs.models.networks.deepgcn import DeeperGCN

# Allocates a float32 tensor of zeros, in memory or in a memory-mapped file.
Allocate = Callable[[int, int], Tensor]


def why_not(model: torch.nn.Module) -> str:
    """Return the reason why :class:`InBlocks` cannot run a model, or an empty text if it can."""
    if not isinstance(model, DeeperGCN):
        return f"{type(model).__name__} has layers that read all nodes at once"
    if model.virtual is not None:
        return "a virtual node reads all nodes"
    if model.pool != "none":
        return "model.pool reads all nodes of a graph"
    return ""


class InBlocks(torch.nn.Module):
    """Computes what a model in evaluation mode predicts; other block sizes only round otherwise.

    At most three tensors of nodes x channels exist at a time, all made by `allocate`. The rest is as large as a block.

    Args:
        model: a model that :func:`why_not` has no reason against.
        num_rows: largest number of nodes in a block.
        num_edges: largest number of edges in a block. A node with more edges is a block of its own.
        allocate: makes a tensor of zeros [rows, columns].
        before_block: function that is called before each block.
    """

    def __init__(
        self,
        model: DeeperGCN,
        *,
        num_rows: int,
        num_edges: int,
        allocate: Allocate = torch.zeros,
        before_block: Callable[[], object] = lambda: None,
    ):
        super().__init__()
        self.model, self._num_rows, self._num_edges = model, num_rows, num_edges
        self._allocate, self._before_block = allocate, before_block

    @torch.no_grad()
    def forward(
        self,
        x: Num[Tensor, "num_nodes in_channels_and_categories"],
        edge_index: EdgeIndex,
        edge_attr: Num[Tensor, "num_edges edge_dim"] | None = None,
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Predict logits.

        Args:
            edge_index: sorted by destination, with its CSC filled; it may lie in a file, as may `x` and `edge_attr`.

        Returns:
            [num_nodes, out_channels]
        """
        model = self.model
        assert not model.training and not why_not(model)
        blocks = [
            slice(*rows)
            for rows in cut_into_blocks(edge_index.get_csc()[0][0], self._num_edges, self._num_rows)
        ]

        def fill(columns: int, compute: Callable[[slice], Tensor]) -> Tensor:
            out = self._allocate(x.size(0), columns)
            for rows in blocks:
                self._before_block()
                out[rows] = compute(rows)
            return out

        width, last = model.head.in_features, model.norms[-1]

        def activate(norm: torch.nn.Module, rows: slice) -> Tensor:
            return model._activate(norm, h[rows])

        h = fill(width, lambda rows: model.encode_nodes(x[rows]))
        for layer, norm in enumerate([None, *model.norms[:-1]]):
            source = h if norm is None else fill(width, partial(activate, norm))
            h = fill(width, partial(_apply, model, layer, h, source, edge_index, edge_attr))
        return fill(model.head.out_features, lambda rows: model.head(activate(last, rows)))


def _apply(
    model: DeeperGCN,
    layer: int,
    h: Tensor,
    source: Tensor,
    edge_index: EdgeIndex,
    edge_attr: Tensor | None,
    rows: slice,
) -> Tensor:
    """Apply a layer to some rows of nodes `h`, whose edges read `source`."""
    (indptr, _), _ = edge_index.get_csc()
    edges = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
    own = edge_index.as_tensor()[:, edges].clone()
    own[1] -= rows.start
    own = from_csc(
        own, indptr[rows.start : rows.stop + 1] - indptr[rows.start], num_src=source.size(0)
    )
    edge_attr = None if edge_attr is None else model.encode_edges(edge_attr[edges])
    out = model._convolve(layer, (source, source[rows]), edge_index=own, edge_attr=edge_attr)
    return h[rows] + out if layer else out
