"""An equilibrium GNN: the fixed point of one block, as if it were applied without end.

Described, without code, in "Training Graph Neural Networks with 1000 Layers" (https://arxiv.org/abs/2106.07476); the
method is that of "Deep Equilibrium Models" (https://arxiv.org/abs/1909.01377).
"""
# ruff: noqa: F722 (shapes are strings)

import logging
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from .activation import draw_mask, norm_relu_dropout
from .blocks import NORMS, fix_statistics
from .conv import GENConv
from .encoders import create_edge_encoder, create_node_encoders, encode_nodes, fold, prepare_edges
from .heads import pool_graphs
from .options import check_inputs, check_options

log = logging.getLogger(__name__)


class EquilibriumGNN(torch.nn.Module):
    """The fixed point of ``z = norm_2(relu(c + conv_2(dropout(relu(norm_1(c + u))))))`` with ``c = conv_1(z)``.

    `u` are the encoded nodes. The fixed point is sought from zeros by Anderson acceleration. Backward solves the linear
    equation of the implicit function theorem in the same way, so that the memory is that of one block however often it
    is applied. The same elements are dropped in every application. A log line says when the first search ends short of
    its tolerance; the step goes on with the best that was found.

    Args:
        in_channels: number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: width of the block.
        out_channels: number of classes or tasks.
        num_layers: most applications of the block in each of the two searches, forward and backward.
        edge_dim: number of edge features, or none.
        num_categories: number of the last columns of `x` that hold a one-hot category (a protein's species), which
            has a linear encoder of its own before the node encoder; 0 means no category.
        node_tables: for an `x` of categories, their number in each column; none if it holds numbers.
        edge_tables: the same of `edge_attr`.
        pool: what makes one row of each graph's nodes in front of the head, "mean", "sum" or "max"; "none" for a row
            of each node.
        tolerance: distance between a state and the block's result, relative to the result, at which a search ends.
        aggr: aggregation of the messages: "softmax", "softmax_sg", "softmax_sum", "power", "power_sum", "powermean",
            "mean", "max" or "add".
        t: initial inverse temperature of the softmax aggregations.
        learn_t: whether each convolution learns its `t`; softmax_sg has no gradient for it.
        p: initial exponent of the power aggregations, not 0.
        learn_p: whether each convolution learns its `p`.
        y: initial logit of the degree's exponent in softmax_sum and power_sum.
        learn_y: whether each convolution learns its `y`.
        msg_norm: whether each convolution scales its aggregated messages to the norm of the node's own features.
        learn_msg_scale: whether each convolution learns the factor of `msg_norm`.
        norm: norm in the block and in the convolutions' MLPs: "layer" or "batch".
        num_mlp_layers: number of linear layers in each convolution's MLP; beyond one, hidden ones have
            `2 * hidden_channels` channels.
        dropout: probability that an activation is dropped in training, in [0, 1).
        kernel: what aggregates and normalises, "auto", "fused" or "reference": see
            :func:`models.aggregate.aggregate` and :func:`models.activation.norm_relu_dropout`.

    Attributes:
        residual: what the last search in forward ended with, relative as `tolerance` is.

    Raises:
        ValueError: an argument has another type or is out of its range; the message begins with its name.
    """

    takes_int32_edges = True  # not every layer of PyG's does

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        edge_dim: int | None = None,
        num_categories: int = 0,
        node_tables: list[int] | None = None,
        edge_tables: list[int] | None = None,
        pool: str = "none",
        tolerance: float = 0.001,
        aggr: str = "max",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        y: float = 0.0,
        learn_y: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str = "layer",
        num_mlp_layers: int = 2,
        dropout: float = 0.1,
        kernel: str = "auto",
    ):
        check_options({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        super().__init__()
        self.num_columns, self.num_edge_columns, self.pool = in_channels + num_categories, edge_dim or 0, pool
        self.max_applications, self.tolerance, self.dropout, self.kernel = num_layers, tolerance, dropout, kernel
        self.residual = 0.0
        self._has_said = False
        self.category_encoder, self.node_encoder = create_node_encoders(
            in_channels, num_categories, hidden_channels, node_tables)
        if edge_dim:
            self.edge_encoder = create_edge_encoder(edge_dim, hidden_channels, edge_tables)
            self.edge_lins = torch.nn.ModuleList(torch.nn.Linear(hidden_channels, hidden_channels) for _ in range(2))
        self.convs = torch.nn.ModuleList(
            GENConv(hidden_channels, hidden_channels, aggr, t=t, learn_t=learn_t, p=p, learn_p=learn_p, y=y,
                    learn_y=learn_y, msg_norm=msg_norm, learn_msg_scale=learn_msg_scale, norm=norm,
                    num_layers=num_mlp_layers, bias=True, kernel=kernel)
            for _ in range(2))
        self.norms = torch.nn.ModuleList(NORMS[norm](hidden_channels) for _ in range(2))
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    @torch.compiler.disable  # how often the block is applied depends on numbers
    def forward(
        self,
        x: Num[Tensor, "num_nodes in_channels_and_categories"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Num[Tensor, "num_edges edge_dim"] | None = None,
        ptr: Int[Tensor, " num_graphs_plus_1"] | None = None,
    ) -> Float[Tensor, "num_rows out_channels"]:
        """Predict logits.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
            edge_attr: [num_edges, edge_dim] or none.
            ptr: where each graph's nodes begin [num_graphs + 1], for `pool`; none: one graph.

        Returns:
            [num_nodes, out_channels]; with `pool` [num_graphs, out_channels]
        """
        check_inputs(self, x, edge_attr)
        edge_attr = prepare_edges(edge_attr, getattr(self, "edge_encoder", None))
        u = encode_nodes(x, self.node_encoder, self.category_encoder)
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        mask = draw_mask(u, self.norms[0], dropout=self.dropout, training=self.training, kernel=self.kernel)
        maps = [None, None] if edge_attr is None else [
            fold(cast(torch.nn.Linear, lin), self.edge_encoder) for lin in self.edge_lins]

        def block(z: Tensor) -> Tensor:
            c = self.convs[0](z, edge_index, edge_attr, edge_encoder=maps[0])
            h = norm_relu_dropout(c + u, self.norms[0], dropout=self.dropout, training=self.training,
                                  kernel=self.kernel, mask=mask)
            h = self.convs[1](h, edge_index, edge_attr, edge_encoder=maps[1])
            return self.norms[1]((c + h).relu()).to(u.dtype)

        return self.head(pool_graphs(self._find_equilibrium(block, torch.zeros_like(u)), ptr, self.pool))

    def _find_equilibrium(self, block: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        with torch.no_grad(), fix_statistics(self):
            z, self.residual = solve(block, z, tolerance=self.tolerance, max_applications=self.max_applications)
        self._say("forward", self.residual)
        out = block(z)  # the one application that batch norms count, and that parameters get their gradients by
        if not out.requires_grad:
            return out
        with fix_statistics(self):
            start = z.detach().requires_grad_()
            result = block(start)

        def solve_backward(grad: Tensor) -> Tensor:
            def apply(g: Tensor) -> Tensor:
                return torch.autograd.grad(result, start, g, retain_graph=True)[0] + grad

            g, residual = solve(apply, grad, tolerance=self.tolerance, max_applications=self.max_applications)
            self._say("backward", residual)
            return g

        out.register_hook(solve_backward)
        return out

    def _say(self, where: str, residual: float) -> None:
        # NaN too.
        if not residual <= self.tolerance and not self._has_said:
            self._has_said = True
            log.warning("equilibrium: no fixed point in %s after %d applications, residual %.1e; more model.num_layers "
                        "or model.tolerance may help. Said once.", where, self.max_applications, residual)


@torch.no_grad()
def solve(function: Callable[[Tensor], Tensor], z: Tensor, *, tolerance: float, max_applications: int,
          window: int = 5) -> tuple[Tensor, float]:
    """Seek a fixed point by Anderson acceleration.

    Args:
        function: keeps the shape of its argument.
        z: where to begin.
        tolerance: distance of the argument and the result, relative to the result, that is small enough.
        max_applications: of the function.
        window: number of results that the next argument is mixed of.

    Returns:
        The argument whose result was nearest to it, and their relative distance.
    """
    best, least = z, float("inf")
    results: list[Tensor] = []
    residuals: list[Tensor] = []
    for _ in range(max_applications):
        result = function(z)
        residual = (result - z).flatten()
        distance = float(residual.norm() / result.norm().clamp(min=torch.finfo(result.dtype).tiny))
        if distance < least:
            best, least = z, distance
        if distance <= tolerance or distance != distance:
            break
        results, residuals = [*results, result][-window:], [*residuals, residual][-window:]
        # The mixture, of weights that sum up to 1, whose residuals nearly cancel: by normal equations in float64.
        gram = torch.stack([torch.stack([a.dot(b) for b in residuals]) for a in residuals]).double()
        gram = gram / gram.diagonal().max() + 1e-10 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        weights = torch.linalg.solve(gram, torch.ones_like(gram[0]))
        weights = (weights / weights.sum()).to(z.dtype)
        z = sum((w * r for w, r in zip(weights[1:], results[1:])), start=weights[0] * results[0])
    return best, least
