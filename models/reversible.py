"""RevGNN: graph convolutions as deep as one likes in the memory of one layer (https://arxiv.org/abs/2106.07476)."""
# ruff: noqa: F722 (shapes are strings)

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.autograd.function import once_differentiable

from .activation import draw_mask, norm_relu_dropout
from .blocks import NORMS, fix_statistics
from .conv import GENConv
from .encoders import create_edge_encoder, create_node_encoders, encode_nodes, fold, prepare_edges
from .heads import pool_graphs
from .options import check_inputs, check_options

# The residual stream: its inverse then rounds below what the branches, which read float32, can see.
STREAM = torch.float64
# The folded encoder of a branch's edge features: weight [channels, edge_dim] and bias [channels].
EdgeMap = tuple[Tensor, Tensor]


class RevGNN(torch.nn.Module):
    """Grouped reversible residual layers of :class:`~models.conv.GENConv` between a linear encoder and a linear head.

    The channels come in g groups. A layer adds to each group what a branch makes of the group before it, the first of
    the sum of all but the first: ``y_0 = x_0 + F_0(x_1 + ... + x_{g-1})``, ``y_i = x_i + F_i(y_{i-1})``. The branch
    F_i is ``conv(dropout(relu(norm(.))))`` of `hidden_channels / g` channels. All layers drop the same elements. As a
    layer's input follows from its output, backward computes it again and forward keeps none: the memory of activations
    does not grow with `num_layers`. Each branch runs once in forward and once in backward, beside its gradient.

    The groups are summed up in float64 while the branches read and compute float32, or 16 bits under autocast. What
    backward takes off again then leaves, of a thousand layers too, the input that forward had, where sums in float32
    would drift. A tied layer's batch norms have one mean and variance for all depths.

    Args:
        in_channels: number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: width of every layer, all groups together.
        out_channels: number of classes or tasks.
        num_layers: number of reversible layers, of `num_groups` convolutions each.
        edge_dim: number of edge features, or none.
        num_categories: number of the last columns of `x` that hold a one-hot category (a protein's species), which
            has a linear encoder of its own before the node encoder; 0 means no category.
        node_tables: for an `x` of categories, their number in each column; none if it holds numbers.
        edge_tables: the same of `edge_attr`.
        pool: what makes one row of each graph's nodes in front of the head, "mean", "sum" or "max"; "none" for a row
            of each node.
        num_groups: groups of channels; it divides `hidden_channels`.
        tied: whether all layers share the weights of one.
        reversible: whether backward computes each layer's input from its output; otherwise autograd keeps it all.
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
        norm: norm in front of the convolutions and in their MLPs: "layer" or "batch".
        num_mlp_layers: number of linear layers in each convolution's MLP; beyond one, hidden ones have twice the
            channels of a group.
        dropout: probability that an activation in front of a convolution is dropped in training, in [0, 1); the same
            activations in every layer.
        kernel: what aggregates and normalises, "auto", "fused" or "reference": see
            :func:`models.aggregate.aggregate` and :func:`models.activation.norm_relu_dropout`.

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
        num_groups: int = 2,
        tied: bool = False,
        reversible: bool = True,
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
        if hidden_channels % num_groups:
            raise ValueError(f"hidden_channels={hidden_channels} is not a multiple of num_groups={num_groups}")
        super().__init__()
        self.num_layers, self.num_groups, self.reversible = num_layers, num_groups, reversible
        self.dropout, self.kernel, self.pool = dropout, kernel, pool
        self.num_columns, self.num_edge_columns = in_channels + num_categories, edge_dim or 0

        self.category_encoder, self.node_encoder = create_node_encoders(
            in_channels, num_categories, hidden_channels, node_tables)
        if edge_dim:
            self.edge_encoder = create_edge_encoder(edge_dim, hidden_channels, edge_tables)

        def create_branch() -> Branch:
            conv = GENConv(channels, channels, aggr, t=t, learn_t=learn_t, p=p, learn_p=learn_p, y=y, learn_y=learn_y,
                           msg_norm=msg_norm, learn_msg_scale=learn_msg_scale, norm=norm, num_layers=num_mlp_layers,
                           bias=True, kernel=kernel)
            return Branch(NORMS[norm](channels), conv,
                          torch.nn.Linear(hidden_channels, channels) if edge_dim else None, dropout)

        channels = hidden_channels // num_groups
        self.branches = torch.nn.ModuleList()
        for _ in range(1 if tied else num_layers):
            branch = create_branch()  # the others of the layer begin as its copies, as in the paper's code
            self.branches.extend([branch, *(copy.deepcopy(branch) for _ in range(num_groups - 1))])
        self.norm = NORMS[norm](hidden_channels)
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    @torch.compiler.disable  # a compiled graph keeps all that its backward reads
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
        h = encode_nodes(x, self.node_encoder, self.category_encoder)
        h = self._apply_layers(h.to(torch.promote_types(h.dtype, torch.float32)), edge_index, edge_attr)
        h = norm_relu_dropout(h, self.norm, dropout=self.dropout, training=self.training, kernel=self.kernel)
        return self.head(pool_graphs(h, ptr, self.pool))

    def _apply_layers(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        groups = [group.contiguous() for group in h.chunk(self.num_groups, dim=1)]
        branches = cast(list[Branch], list(self.branches))
        masks = [draw_mask(group, branch.norm, dropout=self.dropout, training=self.training, kernel=self.kernel)
                 for group, branch in zip(groups, branches)]
        maps = [] if edge_attr is None else [fold(branch.edge_lin, self.edge_encoder) for branch in branches]
        stack = Stack(branches, self.num_layers, edge_index, masks, h.dtype)
        apply = stack.apply_reversibly if self.reversible and torch.is_grad_enabled() else stack.apply
        groups = apply([group.to(torch.promote_types(STREAM, h.dtype)) for group in groups], edge_attr, maps)
        return torch.cat(groups, dim=1).to(h.dtype)


class Branch(torch.nn.Module):
    """What a group of channels adds to the next: ``conv(dropout(relu(norm(h))))``.

    Args:
        norm: a module that keeps the shape.
        conv: a convolution of as many channels as the norm.
        edge_lin: the branch's linear map of the encoded edge features, which its caller folds; none without such.
        dropout: as for :class:`RevGNN`.
    """

    def __init__(self, norm: torch.nn.Module, conv: GENConv, edge_lin: torch.nn.Linear | None, dropout: float):
        super().__init__()
        self.norm, self.conv, self.dropout = norm, conv, dropout
        if edge_lin is not None:
            self.edge_lin = edge_lin

    def forward(self, h: Float[Tensor, "num_nodes channels"], edge_index: Int[Tensor, "2 num_edges"],
                edge_attr: Tensor | None, edge_map: EdgeMap | None,
                mask: Tensor | None) -> Float[Tensor, "num_nodes channels"]:
        """Compute what is added.

        Args:
            edge_map: the folded encoder of `edge_attr`; none without such.
            mask: which elements are dropped, as :func:`models.activation.draw_mask` returns it.
        """
        h = norm_relu_dropout(h, self.norm, dropout=self.dropout, training=self.training, kernel=self.conv.kernel,
                              mask=mask)
        if edge_attr is None:
            return self.conv(h, edge_index)
        return self.conv(h, edge_index, edge_attr, edge_encoder=edge_map)


@dataclass
class Stack:
    """Layers of branches that are applied in turn, with what all of them read.

    Attributes:
        branches: of each layer one for each group; those of the only layer are applied `num_layers` times.
        num_layers: number of layers.
        edge_index: [2, num_edges]
        masks: what each group's branches drop.
        dtype: of what the branches read; they add it to sums of a wider one.
    """

    branches: list[Branch]
    num_layers: int
    edge_index: Tensor
    masks: list[Tensor | None]
    dtype: torch.dtype

    def place(self, layer: int, group: int) -> int:
        """Return the number of a branch in :attr:`branches` and in the list of the edge maps."""
        return (layer * len(self.masks) + group) % len(self.branches)

    def call(self, place: int, source: Tensor, group: int, edge_attr: Tensor | None,
             maps: Sequence[EdgeMap]) -> Tensor:
        """Call a branch."""
        return self.branches[place](source, self.edge_index, edge_attr, maps[place] if maps else None,
                                    self.masks[group])

    def source(self, groups: Sequence[Tensor], group: int) -> Tensor:
        """Return what the branch of a group reads: the group before it, or the sum of all but the first."""
        return (groups[group - 1] if group else sum(groups[2:], start=groups[1])).to(self.dtype)

    def apply(self, groups: Sequence[Tensor], edge_attr: Tensor | None, maps: Sequence[EdgeMap]) -> list[Tensor]:
        """Apply all layers to the groups, tensors [num_nodes, channels]; `maps` is empty without edge features."""
        # Without a record for backward the sums are made in place, between no other tensors: see _Reversible.backward.
        in_place = not torch.is_grad_enabled()
        groups = [group.clone() for group in groups] if in_place else list(groups)
        for layer in range(self.num_layers):
            for group in range(len(groups)):
                out = self.call(self.place(layer, group), self.source(groups, group), group, edge_attr, maps)
                groups[group] = groups[group].add_(out) if in_place else groups[group] + out
        return groups

    def apply_reversibly(self, groups: Sequence[Tensor], edge_attr: Tensor | None,
                         maps: Sequence[EdgeMap]) -> list[Tensor]:
        """Do as :meth:`apply`, and keep the result alone for backward."""
        return list(_Reversible.apply(self, len(groups), len(maps), edge_attr, *groups, *itertools.chain(*maps),
                                      *self.parameters()))

    def parameters(self) -> list[Tensor]:
        """List the parameters of all branches that are trained."""
        return [p for branch in self.branches for p in branch.parameters() if p.requires_grad]


class _Reversible(torch.autograd.Function):
    """A stack whose backward goes from output to input: each branch's input is computed, and its gradient.

    The folded edge maps are arguments, and autograd takes their gradients on to the edge encoders.
    """

    @staticmethod
    def forward(ctx, stack: Stack, num_groups: int, num_maps: int, edge_attr: Tensor | None,
                *tensors: Tensor) -> tuple[Tensor, ...]:
        groups, others = tensors[:num_groups], tensors[num_groups:]
        device = groups[0].device.type
        ctx.stack, ctx.num_maps = stack, num_maps
        # Backward computes as forward did, wherever it is called; cached casts of all weights would add up there.
        ctx.autocast = dict(device_type=device, dtype=torch.get_autocast_dtype(device),
                            enabled=torch.is_autocast_enabled(device), cache_enabled=False)
        out = tuple(stack.apply(groups, edge_attr, _pairs(others[:2 * num_maps])))
        ctx.save_for_backward(edge_attr, *out, *others)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stack, num_groups = ctx.stack, len(grads)
        edge_attr, *groups_and_others = ctx.saved_tensors
        others = groups_and_others[num_groups:]
        # What lives from branch to branch is there before the first and changed in place: between the large tensors
        # of each branch it would leave holes in the process's memory, more with every layer.
        groups, flow = ([tensor.clone() for tensor in each] for each in (groups_and_others[:num_groups], grads))
        # Parameters are leaves, and were saved to see that nobody has changed them; the rest is made into leaves.
        edge_attr = None if edge_attr is None else edge_attr.detach().requires_grad_(ctx.needs_input_grad[3])
        flat = [tensor.detach().requires_grad_() for tensor in others[:2 * ctx.num_maps]]
        leaves = [edge_attr, *flat, *stack.parameters()]
        maps, sums = _pairs(flat), _Sums(leaves)
        norms = torch.nn.ModuleList(stack.branches)
        with fix_statistics(norms), torch.enable_grad(), torch.autocast(**ctx.autocast):
            for layer, group in itertools.product(reversed(range(stack.num_layers)), reversed(range(num_groups))):
                place = stack.place(layer, group)
                source = stack.source(groups, group).detach().requires_grad_()
                out = stack.call(place, source, group, edge_attr, maps)
                groups[group].sub_(out.detach())
                owned = [*stack.branches[place].parameters(), *(maps[place] if maps else ()), edge_attr]
                grad = sums.add(out, flow[group].to(out.dtype), source, owned)
                del source, out  # before the next branch allocates its own
                for other in ([group - 1] if group else range(1, num_groups)):
                    flow[other].add_(grad)
        grad_attr, *grad_others = map(sums.of, leaves)
        return None, None, None, grad_attr, *flow, *grad_others


class _Sums:
    """Gradients of leaves, summed over the branches that read them: views of one tensor."""

    def __init__(self, leaves: Sequence[Tensor | None]) -> None:
        needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        self._sums: dict[int, Tensor] = {}
        for dtype in {leaf.dtype for leaf in needed}:
            alike = [leaf for leaf in needed if leaf.dtype == dtype]
            flat = alike[0].new_empty(sum(leaf.numel() for leaf in alike))
            parts = flat.split([leaf.numel() for leaf in alike])
            self._sums |= {id(leaf): part.view(leaf.shape) for leaf, part in zip(alike, parts, strict=True)}
        self._filled: set[int] = set()

    def add(self, out: Tensor, grad: Tensor, source: Tensor, leaves: Sequence[Tensor | None]) -> Tensor:
        """Add the gradients of the leaves that have one, and return that of the source."""
        needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        first, *others = torch.autograd.grad(out, [source, *needed], grad, allow_unused=True)
        for leaf, each in zip(needed, others, strict=True):
            if each is not None and id(leaf) in self._filled:
                self._sums[id(leaf)].add_(each)
            elif each is not None:
                self._sums[id(leaf)].copy_(each)
                self._filled.add(id(leaf))
        return first

    def of(self, leaf: Tensor | None) -> Tensor | None:
        return self._sums[id(leaf)] if id(leaf) in self._filled else None


def _pairs(tensors: Sequence[Tensor]) -> list[EdgeMap]:
    return list(zip(tensors[::2], tensors[1::2]))
