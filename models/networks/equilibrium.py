"""An equilibrium GNN: the fixed point of one block, which is the limit of applying it again and again.

"Training Graph Neural Networks with 1000 Layers" (https://arxiv.org/abs/2106.07476) describes it without code. The
method is that of "Deep Equilibrium Models" (https://arxiv.org/abs/1909.01377).
"""

import logging
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from parallel_epochs.models.convs.activation import draw_mask, norm_relu_dropout
from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.encoders import (
    create_edge_encoder,
    fold,
    prepare_edges,
)
from parallel_epochs.models.networks.gen_layers import create_conv
from parallel_epochs.models.networks.graph_model import GraphModel
from parallel_epochs.models.networks.options import EquilibriumOptions, takes_options
from parallel_epochs.models.residual import NORMS, fix_statistics

log = logging.getLogger(__name__)


class EquilibriumGNN(GraphModel):
    """The fixed point of ``z = norm_2(relu(c + conv_2(dropout(relu(norm_1(c + u))))))`` with ``c = conv_1(z)``.

    `u` are the encoded nodes. Anderson acceleration searches the fixed point, beginning at zeros. Backward solves the
    linear equation of the implicit function theorem in the same way, so that the memory is that of one block, however
    often it is applied. All applications drop the same elements and edges. If a search does not reach its tolerance,
    the step goes on with the best state that it found; the first time, a log line says so.

    Its arguments are those of :class:`GraphModel`, and as keywords those of
    :class:`models.networks.options.EquilibriumOptions`.

    Attributes:
        residual: relative distance at the end of the last search in forward, comparable with `tolerance`.

    Raises:
        ValueError: an argument has another type or is out of its range; the message begins with its name.
    """

    forward = torch.compiler.disable(
        GraphModel.forward
    )  # how often the block is applied depends on numbers

    @takes_options(EquilibriumOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: EquilibriumOptions,
    ):
        super().__init__(in_channels, hidden_channels, options)
        self.max_applications, self.tolerance = num_layers, options.tolerance
        self.residual = 0.0
        self._has_said = False
        if num_features := options.num_edge_features:
            self.edge_encoder = create_edge_encoder(
                num_features, hidden_channels, options.edge_tables
            )
            self.edge_lins = torch.nn.ModuleList(
                torch.nn.Linear(hidden_channels, hidden_channels) for _ in range(2)
            )
        if options.num_relations:
            tables = (TableEncoder([options.num_relations], hidden_channels) for _ in range(2))
            self.relations = torch.nn.ModuleList(tables)
        self.convs = torch.nn.ModuleList(
            create_conv(options, hidden_channels, hidden_channels) for _ in range(2)
        )
        self.norms = torch.nn.ModuleList(NORMS[options.norm](hidden_channels) for _ in range(2))
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def compute(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, ptr: Tensor | None
    ) -> Tensor:
        """Compute the inputs of the head [num_nodes, channels]; see :meth:`forward`."""
        edge_attr = prepare_edges(edge_attr, getattr(self, "edge_encoder", None))
        edge_index, edge_attr = drop_edges(
            edge_index, edge_attr, dropout=self.edge_dropout, training=self.training
        )
        u = self.encode_nodes(x)
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        mask = draw_mask(
            u, self.norms[0], dropout=self.dropout, training=self.training, kernel=self.kernel
        )
        maps = (
            [None, None]
            if edge_attr is None or not hasattr(self, "edge_lins")
            else [fold(cast(torch.nn.Linear, lin), self.edge_encoder) for lin in self.edge_lins]
        )
        tables = [table.weight for table in self.relations] if self.num_relations else [None, None]

        def block(z: Tensor) -> Tensor:
            c = self.convs[0](z, edge_index, edge_attr, edge_encoder=maps[0], edge_table=tables[0])
            h = norm_relu_dropout(
                c + u,
                self.norms[0],
                dropout=self.dropout,
                training=self.training,
                kernel=self.kernel,
                mask=mask,
            )
            h = self.convs[1](h, edge_index, edge_attr, edge_encoder=maps[1], edge_table=tables[1])
            return self.norms[1]((c + h).relu()).to(u.dtype)

        return self._find_equilibrium(block, torch.zeros_like(u))

    def _find_equilibrium(self, block: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        with torch.no_grad(), fix_statistics(self):
            z, self.residual = solve(
                block, z, tolerance=self.tolerance, max_applications=self.max_applications
            )
        self._say("forward", self.residual)
        out = block(
            z
        )  # the only application that updates batch norms and gives the parameters their gradients
        if not out.requires_grad:
            return out
        with fix_statistics(self):
            start = z.detach().requires_grad_()
            result = block(start)

        def solve_backward(grad: Tensor) -> Tensor:
            def apply(g: Tensor) -> Tensor:
                return torch.autograd.grad(result, start, g, retain_graph=True)[0] + grad

            g, residual = solve(
                apply, grad, tolerance=self.tolerance, max_applications=self.max_applications
            )
            self._say("backward", residual)
            return g

        out.register_hook(solve_backward)
        return out

    def _say(self, where: str, residual: float) -> None:
        # NaN too.
        if not residual <= self.tolerance and not self._has_said:
            self._has_said = True
            log.warning(
                "equilibrium: no fixed point in %s after %d applications: the relative distance is %.1e, above "
                "model.tolerance=%g. Raise model.num_layers or model.tolerance. (Logged only once.)",
                where,
                self.max_applications,
                residual,
                self.tolerance,
            )


@torch.no_grad()
def solve(
    function: Callable[[Tensor], Tensor],
    z: Tensor,
    *,
    tolerance: float,
    max_applications: int,
    window: int = 5,
) -> tuple[Tensor, float]:
    """Search a fixed point of a function by Anderson acceleration.

    Args:
        function: a function that keeps the shape of its argument.
        z: the first argument.
        tolerance: distance between argument and result, relative to the result, at which the search ends.
        max_applications: largest number of calls of the function.
        window: number of results that are mixed to the next argument.

    Returns:
        The argument that was nearest to its result, and their relative distance.
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
        # Find the weights, of sum 1, whose mixture of residuals is smallest: by normal equations in float64.
        gram = torch.stack([torch.stack([a.dot(b) for b in residuals]) for a in residuals]).double()
        gram = gram / gram.diagonal().max() + 1e-10 * torch.eye(
            len(gram), dtype=gram.dtype, device=gram.device
        )
        weights = torch.linalg.solve(gram, torch.ones_like(gram[0]))
        weights = (weights / weights.sum()).to(z.dtype)
        z = sum((w * r for w, r in zip(weights[1:], results[1:])), start=weights[0] * results[0])
    return best, least
