"""PNAConv, which reduces the messages in several ways, without a tensor of edges x channels."""

import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr import MultiAggregation
from torch_geometric.typing import Adj, OptTensor  # noqa: F401 (PyG looks for them here)

from parallel_epochs.models.aggregate import check_rows
from parallel_epochs.models.aggregate.reference_in_blocks import Rows, compute_in_blocks
from parallel_epochs.models.convs.fused_conv import FusedConv, read_edges, read_nodes
from parallel_epochs.models.edge_index import for_pyg
from parallel_epochs.models.messages.fused import KERNEL, why_not_fused
from parallel_epochs.models.messages.inputs import read_call
from parallel_epochs.models.messages.reference import reduce_messages
from parallel_epochs.models.messages.several import reduce_several
from parallel_epochs.models.plain import has_hooks, is_plain
from parallel_epochs.models.structure import find_degrees

_REDUCTIONS = {
    pyg.SumAggregation: "sum",
    pyg.MeanAggregation: "mean",
    pyg.MinAggregation: "min",
    pyg.MaxAggregation: "max",
    pyg.VarAggregation: "var",
    pyg.StdAggregation: "std",
}
# PyG's bound of a variance, below which its root is 0.
_LEAST_VARIANCE = 1e-5


class PNAConv(FusedConv, pyg.PNAConv):
    """Principal neighbourhood aggregation with the arguments of :class:`torch_geometric.nn.PNAConv`.

    With one pre-layer, a message is ``W1 x_i + W2 x_j + W3 e_ij``. The products with `x` are made for the nodes, and
    ``W1 x_i`` is added to the reductions of the rest. Without edge features, a kernel makes all reductions in one pass
    over the edges. With edge features, and where the kernel cannot run, plain torch makes all reductions in one pass
    over blocks of destinations, and again in backward.
    """

    def forward(self, x: Tensor, edge_index: Adj, edge_attr: OptTensor = None) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        edges, value = read_edges(edge_index)
        edge_attr = (
            value if edge_attr is None and value is not None and value.dim() > 1 else edge_attr
        )
        if self._runs_pygs_own(x, self._why_special(edge_attr)):
            # PyG writes the code of propagate from this: propagate_type: (x: Tensor, edge_attr: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_attr)
        num_nodes = read_nodes(x, edges)[2]
        x = (
            x.view(-1, self.towers, self.F_in)
            if self.divide_input
            else x.view(-1, 1, self.F_in).expand(-1, self.towers, -1)
        )
        weight = torch.stack([nn[0].weight for nn in self.pre_nns])
        of_dst, of_src, *of_edge = weight.split(self.F_in, dim=2)
        bias = torch.stack([nn[0].bias for nn in self.pre_nns])
        of_attr = None
        if edge_attr is not None:
            check_rows(edges, edge_attr)
            of_attr = of_edge[0] @ self.edge_encoder.weight
            bias = bias + of_edge[0] @ self.edge_encoder.bias
        degree = find_degrees(edges, num_nodes).in_degree.to(x.dtype).view(-1, 1, 1)
        parts = self._reduce_parts(edges, _multiply(x, of_src), edge_attr, of_attr, degree)
        out = self._scale(self._combine(parts, _multiply(x, of_dst) + bias, degree), degree)
        out = torch.cat([x, out], dim=-1)
        return self.lin(torch.cat([nn(out[:, i]) for i, nn in enumerate(self.post_nns)], dim=1))

    def _kinds(self) -> list[str]:
        """Name the reductions in their order; an empty name stands for one that only PyG's code has."""
        aggr = self.aggr_module.aggr
        aggrs = aggr.aggrs if isinstance(aggr, MultiAggregation) else [aggr]
        return [
            ""
            if not is_plain(aggr, *_REDUCTIONS)
            or getattr(getattr(aggr, "var_aggr", aggr), "semi_grad", False)
            else _REDUCTIONS[type(aggr)]
            for aggr in aggrs
        ]

    def _primitives(self) -> list[str]:
        """Name what one pass over the messages collects."""
        kinds = set(self._kinds())
        wanted = {
            "sum": {"sum"},
            "mean": {"mean", "var", "std"},
            "square": {"var", "std"},
            "min": {"min"},
            "max": {"max"},
        }
        return [name for name, readers in wanted.items() if readers & kinds]

    def _reduce_parts(
        self, edges: Tensor, sent: Tensor, attr: OptTensor, of_attr: OptTensor, degree: Tensor
    ) -> dict[str, Tensor]:
        """Reduce what the sources send [num_nodes, towers, F_in], and the edges add, in each way that is needed."""
        names, num_nodes = self._primitives(), degree.size(0)
        if KERNEL.why_reference(
            self.kernel,
            sent.device.type,
            lambda: (
                "there is no kernel with edge features"
                if attr is not None
                else why_not_fused(read_call(edges, "copy_u", u=sent, num_dst=num_nodes))
            ),
        ):
            rows = Rows(
                [sent], [], [] if attr is None else [attr], [] if of_attr is None else [of_attr]
            )
            reduced = compute_in_blocks(self._reduce, edges, rows, num_dst=num_nodes)
            return dict(zip(names, reduced.split(self.F_in, dim=2), strict=True))
        sums = {"mean": "sum", "square": "square"}  # of which the means are taken here
        found = reduce_several(
            edges, sent, num_nodes, tuple({sums.get(name, name): None for name in names})
        )
        return {
            name: found[sums[name]] / degree.clamp(min=1) if name in sums else found[name]
            for name in names
        }

    def _reduce(self, rows: Rows, dst: Tensor, num_dst: int) -> Tensor:
        """Reduce the messages without their destinations' part, [num_dst, towers, primitives x F_in]."""
        (message,) = rows.sources
        if rows.edges:
            message = message + torch.einsum("ed,tfd->etf", rows.edges[0], rows.shared[0])
        return torch.cat(
            [
                reduce_messages(message * message, dst, num_dst, "mean")
                if name == "square"
                else reduce_messages(message, dst, num_dst, name)
                for name in self._primitives()
            ],
            dim=2,
        )

    def _combine(self, parts: dict[str, Tensor], own: Tensor, degree: Tensor) -> Tensor:
        """Add the part of the destinations to the reductions, [num_nodes, towers, reductions x F_in]."""
        own = own * (degree > 0)
        out = []
        for kind in self._kinds():
            if kind == "sum":
                out.append(parts["sum"] + degree * own)
            elif kind in parts:
                out.append(parts[kind] + own)
            else:  # a variance does not depend on what all messages have in common
                variance = parts["square"] - parts["mean"] * parts["mean"]
                root = variance.clamp(min=_LEAST_VARIANCE).sqrt()
                out.append(
                    variance
                    if kind == "var"
                    else root.masked_fill(root <= _LEAST_VARIANCE**0.5, 0.0)
                )
        return torch.cat(out, dim=-1)

    def _scale(self, out: Tensor, degree: Tensor) -> Tensor:
        """Multiply the reductions by the factors of the degree, one after the other in the last dimension."""
        module, positive = self.aggr_module, degree.clamp(min=1)
        log, log_positive = (degree + 1).log(), (positive + 1).log()
        factors = {
            "identity": lambda: 1,
            "amplification": lambda: log / module.avg_deg_log,
            "attenuation": lambda: module.avg_deg_log / log_positive,
            "linear": lambda: degree / module.avg_deg_lin,
            "inverse_linear": lambda: module.avg_deg_lin / positive,
        }
        return torch.cat([out * factors[name]() for name in module.scaler], dim=-1)

    def _why_special(self, edge_attr: OptTensor) -> str:
        modules = [
            nn
            for nn in self.pre_nns
            if len(nn) != 1 or not is_plain(nn[0], pyg.Linear) or has_hooks(nn)
        ]
        if modules:
            return "pre_nns have several layers, were replaced or have hooks"
        if (edge_attr is None) != (self.edge_dim is None):
            return f"edge_dim={self.edge_dim}, {'without' if edge_attr is None else 'with'} edge features"
        if edge_attr is not None and not is_plain(self.edge_encoder, pyg.Linear):
            return "edge_encoder was replaced or has hooks"
        aggr = self.aggr_module.aggr
        if not all(self._kinds()) or getattr(aggr, "mode", "cat") != "cat" or has_hooks(aggr):
            return f"aggr={aggr}"
        unknown = set(self.aggr_module.scaler) - {
            "identity",
            "amplification",
            "attenuation",
            "linear",
            "inverse_linear",
        }
        return f"scalers={sorted(unknown)}" if unknown else ""


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply each tower's columns [num_nodes, towers, F_in] by its weight [towers, F_out, F_in]."""
    return torch.einsum("nti,toi->nto", x, weight)
