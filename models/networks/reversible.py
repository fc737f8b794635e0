"""RevGNN: any number of graph convolutions in the activation memory of one (https://arxiv.org/abs/2106.07476)."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from parallel_epochs.models.convs.activation import draw_mask, norm_relu_dropout
from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.encoders import (
    create_edge_encoder,
    fold,
    prepare_edges,
)
from parallel_epochs.models.networks.gen_layers import create_conv
from parallel_epochs.models.networks.graph_model import GraphModel
from parallel_epochs.models.networks.options import RevGNNOptions, takes_options
from parallel_epochs.models.residual import NORMS, fix_statistics

# Dtype of the residual stream. Backward inverts it, and its rounding must stay below that of the float32 branches.
STREAM = torch.float64
NUM_GROUPS = 2
# The folded edge encoder of a branch: weight [channels, edge_dim] and bias [channels].
EdgeMap = tuple[Tensor, Tensor]


class RevGNN(GraphModel):
    """Grouped reversible residual layers of :class:`~models.convs.gen_conv.GENConv` between two linear maps.

    The channels form two groups. A layer adds the output of a branch to each group: ``y_0 = x_0 + F_0(x_1)`` and
    ``y_1 = x_1 + F_1(y_0)``. The branch F_i is ``conv(dropout(relu(norm(.))))`` on `hidden_channels / 2` channels.
    All layers drop the same elements and edges. Backward computes a layer's input from its output, so forward keeps
    no activations and their memory does not grow with `num_layers`. Each branch runs once in forward and once more in
    backward, in addition to its gradient.

    The groups are summed in float64, while the branches read and compute float32, or 16 bits under autocast. Therefore
    backward recovers the input of a thousand layers, where sums in float32 would drift. The batch norms of a tied layer
    have one mean and variance for all depths.

    Its arguments are those of :class:`GraphModel`, and as keywords those of
    :class:`models.networks.options.RevGNNOptions`.
    """

    forward = torch.compiler.disable(
        GraphModel.forward
    )  # a compiled graph keeps all that its backward reads

    @takes_options(RevGNNOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: RevGNNOptions,
    ):
        if hidden_channels % NUM_GROUPS:
            raise ValueError(f"hidden_channels={hidden_channels} is not even: RevGNN halves it")
        super().__init__(in_channels, hidden_channels, options)
        self.num_layers, self.reversible = num_layers, options.reversible
        num_features = options.num_edge_features
        if num_features:
            self.edge_encoder = create_edge_encoder(
                num_features, hidden_channels, options.edge_tables
            )

        def create_branch() -> Branch:
            return Branch(
                NORMS[options.norm](channels),
                create_conv(options, channels, channels),
                torch.nn.Linear(hidden_channels, channels) if num_features else None,
                options.dropout,
                TableEncoder([options.num_relations], channels) if options.num_relations else None,
            )

        channels = hidden_channels // NUM_GROUPS
        self.branches = torch.nn.ModuleList()
        for _ in range(1 if options.tied else num_layers):
            branch = create_branch()
            # The layer's other branch begins as a copy, as in the paper's code.
            self.branches.extend([branch, copy.deepcopy(branch)])
        self.norm = NORMS[options.norm](hidden_channels)
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def compute(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, ptr: Tensor | None
    ) -> Tensor:
        """Compute the inputs of the head [num_nodes, channels]; see :meth:`forward`."""
        edge_attr = prepare_edges(edge_attr, getattr(self, "edge_encoder", None))
        edge_index, edge_attr = drop_edges(
            edge_index, edge_attr, dropout=self.edge_dropout, training=self.training
        )
        h = self.encode_nodes(x)
        h = self._apply_layers(
            h.to(torch.promote_types(h.dtype, torch.float32)), edge_index, edge_attr
        )
        return norm_relu_dropout(
            h, self.norm, dropout=self.dropout, training=self.training, kernel=self.kernel
        )

    def _apply_layers(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        groups = [group.contiguous() for group in h.chunk(NUM_GROUPS, dim=1)]
        branches = cast(list[Branch], list(self.branches))
        masks = [
            draw_mask(
                group, branch.norm, dropout=self.dropout, training=self.training, kernel=self.kernel
            )
            for group, branch in zip(groups, branches)
        ]
        maps = (
            []
            if edge_attr is None or not hasattr(self, "edge_encoder")
            else [fold(branch.edge_lin, self.edge_encoder) for branch in branches]
        )
        stack = Stack(branches, self.num_layers, edge_index, masks, h.dtype)
        apply = (
            stack.apply_reversibly if self.reversible and torch.is_grad_enabled() else stack.apply
        )
        groups = apply(
            [group.to(torch.promote_types(STREAM, h.dtype)) for group in groups], edge_attr, maps
        )
        return torch.cat(groups, dim=1).to(h.dtype)


class Branch(torch.nn.Module):
    """The function whose result is added to a group of channels: ``conv(dropout(relu(norm(h))))``.

    Args:
        norm: a module that keeps the shape.
        conv: a convolution with as many channels as the norm.
        edge_lin: the branch's linear map of the encoded edge features, which the caller folds. None: there are none.
        dropout: as in :class:`RevGNN`.
        relations: the branch's vectors of the relations, which column 0 of the edge features numbers, or none.
    """

    def __init__(
        self,
        norm: torch.nn.Module,
        conv: GENConv,
        edge_lin: torch.nn.Linear | None,
        dropout: float,
        relations: TableEncoder | None = None,
    ):
        super().__init__()
        self.norm, self.conv, self.dropout, self.relations = norm, conv, dropout, relations
        if edge_lin is not None:
            self.edge_lin = edge_lin

    def forward(
        self,
        h: Float[Tensor, "num_nodes channels"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Tensor | None,
        edge_map: EdgeMap | None,
        mask: Tensor | None,
    ) -> Float[Tensor, "num_nodes channels"]:
        """Compute the branch.

        Args:
            edge_map: the folded encoder of `edge_attr`. None: there are no edge features but relations.
            mask: the elements to drop, as :func:`models.convs.activation.draw_mask` returns them.
        """
        h = norm_relu_dropout(
            h,
            self.norm,
            dropout=self.dropout,
            training=self.training,
            kernel=self.conv.kernel,
            mask=mask,
        )
        if edge_attr is None:
            return self.conv(h, edge_index)
        return self.conv(
            h,
            edge_index,
            edge_attr,
            edge_encoder=edge_map,
            edge_table=None if self.relations is None else self.relations.weight,
        )


@dataclass
class Stack:
    """Layers of branches that are applied one after the other, with their common inputs.

    Attributes:
        branches: two of each layer. If they belong to one layer, it is applied `num_layers` times.
        num_layers: number of layers.
        edge_index: [2, num_edges]
        masks: the elements that the branches of each group drop.
        dtype: dtype that the branches read. The sums that they are added to are wider.
    """

    branches: list[Branch]
    num_layers: int
    edge_index: Tensor
    masks: list[Tensor | None]
    dtype: torch.dtype

    def place(self, layer: int, group: int) -> int:
        """Return the position of a branch in :attr:`branches` and in the list of edge maps."""
        return (layer * NUM_GROUPS + group) % len(self.branches)

    def call(
        self,
        place: int,
        source: Tensor,
        group: int,
        edge_attr: Tensor | None,
        maps: Sequence[EdgeMap],
    ) -> Tensor:
        """Call the branch at a position."""
        return self.branches[place](
            source, self.edge_index, edge_attr, maps[place] if maps else None, self.masks[group]
        )

    def source(self, groups: Sequence[Tensor], group: int) -> Tensor:
        """Return the input of a group's branch: the other group."""
        return groups[1 - group].to(self.dtype)

    def apply(
        self, groups: Sequence[Tensor], edge_attr: Tensor | None, maps: Sequence[EdgeMap]
    ) -> list[Tensor]:
        """Apply all layers to the groups [num_nodes, channels] each; `maps` is empty without edge features."""
        # Without gradients the sums are computed in place; _Reversible.backward says why that saves memory.
        in_place = not torch.is_grad_enabled()
        groups = [group.clone() for group in groups] if in_place else list(groups)
        for layer in range(self.num_layers):
            for group in range(NUM_GROUPS):
                out = self.call(
                    self.place(layer, group), self.source(groups, group), group, edge_attr, maps
                )
                groups[group] = groups[group].add_(out) if in_place else groups[group] + out
        return groups

    def apply_reversibly(
        self, groups: Sequence[Tensor], edge_attr: Tensor | None, maps: Sequence[EdgeMap]
    ) -> list[Tensor]:
        """Do the same as :meth:`apply`, but keep only the result for backward."""
        return list(
            _Reversible.apply(
                self,
                len(maps),
                edge_attr,
                *groups,
                *itertools.chain(*maps),
                *self.parameters(),
            )
        )

    def parameters(self) -> list[Tensor]:
        """List the trainable parameters of all branches."""
        return [p for branch in self.branches for p in branch.parameters() if p.requires_grad]


class _Reversible(torch.autograd.Function):
    """A stack whose backward goes from output to input and computes each branch's input before its gradient.

    The folded edge maps are arguments, so that autograd passes their gradients on to the edge encoders.
    """

    @staticmethod
    def forward(
        ctx: Any,
        stack: Stack,
        num_maps: int,
        edge_attr: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        groups, others = tensors[:NUM_GROUPS], tensors[NUM_GROUPS:]
        device = groups[0].device.type
        ctx.stack, ctx.num_maps = stack, num_maps
        # Backward computes under the same autocast as forward. Without a cache, as casts of all weights would add up.
        ctx.autocast = dict(
            device_type=device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
            cache_enabled=False,
        )
        out = tuple(stack.apply(groups, edge_attr, _pairs(others[: 2 * num_maps])))
        ctx.save_for_backward(edge_attr, *out, *others)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stack = ctx.stack
        edge_attr, *groups_and_others = ctx.saved_tensors
        others = groups_and_others[NUM_GROUPS:]
        # Tensors that outlive a branch are allocated before the first one and changed in place. Allocated between the
        # large tensors of the branches they would fragment the memory, more with every layer.
        groups, flow = (
            [tensor.clone() for tensor in each] for each in (groups_and_others[:NUM_GROUPS], grads)
        )
        # Parameters are leaves already; they were saved so that autograd notices changes. The rest becomes leaves here.
        edge_attr = (
            None
            if edge_attr is None
            else edge_attr.detach().requires_grad_(ctx.needs_input_grad[2])
        )
        flat = [tensor.detach().requires_grad_() for tensor in others[: 2 * ctx.num_maps]]
        leaves = [edge_attr, *flat, *stack.parameters()]
        maps, sums = _pairs(flat), _Sums(leaves)
        norms = torch.nn.ModuleList(stack.branches)
        with fix_statistics(norms), torch.enable_grad(), torch.autocast(**ctx.autocast):
            for layer, group in itertools.product(
                reversed(range(stack.num_layers)), reversed(range(NUM_GROUPS))
            ):
                place = stack.place(layer, group)
                source = stack.source(groups, group).detach().requires_grad_()
                out = stack.call(place, source, group, edge_attr, maps)
                groups[group].sub_(out.detach())
                owned = [
                    *stack.branches[place].parameters(),
                    *(maps[place] if maps else ()),
                    edge_attr,
                ]
                grad = sums.add(out, flow[group].to(out.dtype), source, owned)
                del source, out  # before the next branch allocates its own
                flow[1 - group].add_(grad)
        grad_attr, *grad_others = map(sums.of, leaves)
        return None, None, grad_attr, *flow, *grad_others


class _Sums:
    """Gradients of leaves, summed over the branches that read them. Room for all is allocated at once."""

    def __init__(self, leaves: Sequence[Tensor | None]) -> None:
        needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        self._sums = {id(leaf): torch.zeros_like(leaf) for leaf in needed}
        self._filled: set[int] = set()

    def add(
        self, out: Tensor, grad: Tensor, source: Tensor, leaves: Sequence[Tensor | None]
    ) -> Tensor:
        """Add the gradients of those leaves that need one, and return the gradient of the source."""
        needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        first, *others = torch.autograd.grad(out, [source, *needed], grad, allow_unused=True)
        for leaf, each in zip(needed, others, strict=True):
            if each is not None:
                self._sums[id(leaf)].add_(each)
                self._filled.add(id(leaf))
        return first

    def of(self, leaf: Tensor | None) -> Tensor | None:
        return self._sums[id(leaf)] if id(leaf) in self._filled else None


def _pairs(tensors: Sequence[Tensor]) -> list[EdgeMap]:
    return list(zip(tensors[::2], tensors[1::2]))
