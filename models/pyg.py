"""A stack of PyG's own convolutions, of any kind that one name tells."""
# ruff: noqa: F722 (shapes are strings)

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.models.basic_gnn import BasicGNN

from .blocks import NORMS
from .edges import from_csc
from .encoders import create_node_encoders, encode_nodes
from .foreign import NUM_NODES, choose_edge_argument, construct, name_edges, tiny_graph

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "leaky_relu": F.leaky_relu, "elu": F.elu, "gelu": F.gelu, "silu": F.silu,
    "tanh": torch.tanh}
# What the stack gives a convolution; edge_dim, dim and in_edge_channels are numbers of edge features.
OURS = ("in_channels", "out_channels", "channels", "nn")
EDGE_DIMS = ("edge_dim", "dim", "in_edge_channels")
# Elements of a tensor of edges x channels that inference may build.
ELEMENTS_AT_ONCE = 2**25


class PyGModel(torch.nn.Module):
    """Layers of a convolution of :mod:`torch_geometric.nn` between a linear encoder and a linear head.

    A layer computes ``dropout(activation(norm(conv(h))))``, and adds `h` if `residual`. The convolution gets
    `hidden_channels` in and out, of several heads together, and the edge features if it takes any.

    Args:
        in_channels: number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: width of every layer.
        out_channels: number of classes or tasks.
        num_layers: number of convolutions.
        edge_dim: number of edge features, or none.
        num_categories: number of the last columns of `x` that hold a one-hot category.
        kernel: not used.
        conv: a convolution of torch_geometric.nn, such as GATv2Conv, SAGEConv, GCNConv, GINEConv or TransformerConv
        kwargs: what else its constructor is given, as in 'model.kwargs={heads:4}'
        norm: norm of each layer, layer, batch or none
        activation: relu, leaky_relu, elu, gelu, silu or tanh
        residual: whether a layer's input is added to its output
        dropout: probability that an activation is dropped in training, in [0, 1)

    Raises:
        ValueError: an unknown name, an impossible size, or arguments that the convolution does not take; the message
            begins with the argument's name.
    """

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, *,
                 edge_dim: int | None = None, num_categories: int = 0, kernel: str = "auto", conv: str = "GATv2Conv",
                 kwargs: dict | None = None, norm: str = "layer", activation: str = "relu", residual: bool = True,
                 dropout: float = 0.1):
        super().__init__()
        for name, value, choices in (("norm", norm, [*NORMS, "none"]), ("activation", activation, [*ACTIVATIONS])):
            if value not in choices:
                raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(choices)}")
        for name, size in (("hidden_channels", hidden_channels), ("num_layers", num_layers)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {dropout}")
        kind, given = find(conv), dict(kwargs or {})
        self.title = f"{num_layers} layers of {conv} x {hidden_channels} channels"
        self.category_encoder, self.node_encoder = create_node_encoders(in_channels, num_categories, hidden_channels)
        self.layers = torch.nn.ModuleList(
            Layer(create_conv(kind, hidden_channels, edge_dim, given),
                  torch.nn.Identity() if norm == "none" else NORMS[norm](hidden_channels),
                  choose_edges(kind, edge_dim, given), activation=activation, residual=residual, dropout=dropout)
            for _ in range(num_layers))
        self.head = torch.nn.Linear(hidden_channels, out_channels)
        self.edge_argument = self.layers[0].edge_argument
        self.hidden_channels, self._edge_dim = hidden_channels, edge_dim
        self._splits: bool | None = None

    def forward(self, x: Float[Tensor, "num_nodes in_channels_and_categories"], edge_index: Tensor,
                edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None) -> Float[Tensor, "num_nodes out"]:
        """Predict logits; without gradients, large graphs in blocks of destinations where :meth:`splits`.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
            edge_attr: [num_edges, edge_dim] or none.
        """
        h = start = encode_nodes(x, self.node_encoder, self.category_encoder)
        most, blocks = max(ELEMENTS_AT_ONCE // self.hidden_channels, 1), None
        is_large = edge_index.size(1) > most and not self.training and not torch.is_grad_enabled()
        if is_large and hasattr(edge_index, "get_csc") and self.splits():
            blocks = cut(edge_index, most)
        for layer in self.layers:
            h = layer(h, start, edge_index, edge_attr, blocks)
        return self.head(h)

    def splits(self) -> bool:
        """Tell whether a node's output depends on its own edges alone, so that blocks give what the whole graph does.

        GCNConv's, say, also depends on the degrees of the neighbours. It is tried on a tiny graph, once.
        """
        if self._splits is None:
            layer, was_training = self.layers[0], self.training
            edge_index, edge_attr = tiny_graph(self._edge_dim)
            device = next(self.parameters()).device  # the head may have been taken away
            h = torch.randn(NUM_NODES, self.hidden_channels, generator=torch.Generator().manual_seed(2))
            h, edge_attr = h.to(device), None if edge_attr is None else edge_attr.to(device)
            self.eval()
            with torch.no_grad():
                whole, parts = (layer(h, h.cos(), edge_index.to(device), edge_attr, blocks)
                                for blocks in (None, cut(edge_index.to(device), 20)))
            self.train(was_training)
            self._splits = torch.allclose(whole, parts, rtol=1e-4, atol=1e-5)
        return self._splits


class Layer(torch.nn.Module):
    """A convolution with its norm, activation, dropout and residual connection."""

    def __init__(self, conv: torch.nn.Module, norm: torch.nn.Module, edge_argument: str, *, activation: str,
                 residual: bool, dropout: float):
        super().__init__()
        self.conv, self.norm, self.residual, self.dropout = conv, norm, residual, dropout
        self._activate, self.edge_argument = ACTIVATIONS[activation], edge_argument
        self._takes_start = "x_0" in inspect.signature(conv.forward).parameters

    def forward(self, h: Tensor, start: Tensor, edge_index: Tensor, edge_attr: Tensor | None,
                blocks: "list[Block] | None" = None) -> Tensor:
        """Apply the layer.

        Args:
            h: [num_nodes, channels]
            start: what the first layer got, for convolutions that go back to it.
            blocks: nodes whose output is computed at a time; none for all at once.
        """
        if blocks is None:
            out = self._convolve(h, start, edge_index, edge_attr)
        else:
            parts = []
            for block in blocks:
                features = None if edge_attr is None else edge_attr[block.first_edge:block.end_edge]
                part = self._convolve(h[block.nodes], start[block.nodes], block.edge_index, features)
                parts.append(part[:block.num_outputs])
            out = torch.cat(parts)
        out = F.dropout(self._activate(self.norm(out)), self.dropout, self.training)
        return h + out if self.residual else out

    def _convolve(self, h: Tensor, start: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        more = {"x_0": start} if self._takes_start else {}
        return self.conv(x=h, edge_index=edge_index, **more, **name_edges(self.edge_argument, edge_attr))


@dataclass(frozen=True)
class Block:
    """Consecutive destinations, with their edges and the sources of these.

    Attributes:
        nodes: the destinations, then the other sources.
        num_outputs: number of destinations.
        edge_index: the edges among `nodes`, sorted by destination.
        first_edge, end_edge: where the edges lie among all.
    """

    nodes: Tensor
    num_outputs: int
    edge_index: Tensor
    first_edge: int
    end_edge: int


def cut(edge_index: Any, most: int) -> list[Block]:
    """Cut a graph into blocks of destinations with at most as many edges, or a single destination.

    Args:
        edge_index: an ``EdgeIndex`` sorted by destination.
    """
    (indptr, source), _ = edge_index.get_csc()
    indptr, source = indptr.long(), source.long()
    num_nodes, blocks, first = indptr.numel() - 1, [], 0
    local = torch.empty(num_nodes, dtype=torch.int64, device=source.device)
    while first < num_nodes:
        end = int(torch.searchsorted(indptr, indptr[first] + most, right=True)) - 1
        end = min(max(end, first + 1), num_nodes)
        begin, stop = int(indptr[first]), int(indptr[end])
        found = source[begin:stop]
        others = found.unique()
        nodes = torch.cat([torch.arange(first, end, device=source.device),
                           others[(others < first) | (others >= end)]])
        local[nodes] = torch.arange(len(nodes), device=source.device)
        ptr = torch.cat([indptr[first:end + 1] - begin, indptr.new_full((len(nodes) - (end - first),), stop - begin)])
        target = torch.repeat_interleave(torch.arange(end - first, device=source.device), ptr[:end - first + 1].diff())
        blocks.append(Block(nodes, end - first, from_csc(torch.stack([local[found], target]), ptr), begin, stop))
        first = end
    return blocks


def find(name: str) -> type[torch.nn.Module]:
    """Look a convolution up in :mod:`torch_geometric.nn`.

    Raises:
        ValueError: there is none, or it does not go from nodes and edges to nodes; the message begins with "conv".
    """
    kind = getattr(pyg, name, None)
    if isinstance(kind, type) and issubclass(kind, BasicGNN):
        raise ValueError(f"conv={name} is a whole model: set model=custom model.path=torch_geometric.nn.{name}")
    if not isinstance(kind, type) or not issubclass(kind, pyg.MessagePassing):
        known = {other.lower(): other for other in dir(pyg) if other.endswith("Conv")}
        near = difflib.get_close_matches(name.lower(), known, n=1)
        raise ValueError(f"conv={name} is no convolution of torch_geometric.nn"
                         f"{f'; did you mean {known[near[0]]}?' if near else ''}")
    parameters = inspect.signature(getattr(kind, "forward")).parameters  # noqa: B009
    needed = [key for key, parameter in list(parameters.items())[1:]
              if parameter.default is inspect.Parameter.empty]
    if not {"x", "edge_index"} <= set(needed) or set(needed) - {"x", "edge_index", "x_0", "edge_attr", "edge_weight"}:
        raise ValueError(f"conv={name} is called with {', '.join(needed)}; a layer has x and edge_index, x_0 (what the "
                         "first layer got), edge_attr and edge_weight")
    return kind


def create_conv(kind: type[torch.nn.Module], channels: int, edge_dim: int | None, given: dict) -> torch.nn.Module:
    """Create a convolution from as many channels to as many.

    Args:
        given: arguments of its constructor by the user.

    Raises:
        ValueError: see :func:`models.foreign.construct`; or several heads do not divide the channels.
    """
    if ours := [key for key in OURS if key in given]:
        raise ValueError(f"kwargs must not hold {ours[0]}, which hidden_channels sets")
    parameters, heads = inspect.signature(kind).parameters, given.get("heads", 1)
    joined = given.get("concat", True) and "heads" in parameters
    if joined and (not isinstance(heads, int) or heads < 1 or channels % heads):
        raise ValueError(f"hidden_channels={channels} cannot be shared out among heads={heads}")
    known: dict[str, Any] = dict(in_channels=channels, out_channels=channels // heads if joined else channels,
                                 channels=channels, hidden_channels=channels, edge_dim=edge_dim, dim=edge_dim or 0,
                                 in_edge_channels=edge_dim)
    if kind is pyg.NNConv:  # a matrix for each edge
        known["nn"] = torch.nn.Linear(edge_dim or 1, channels * channels)
    elif "nn" in parameters:
        width = 2 * channels if kind is pyg.EdgeConv else channels  # it reads both ends of an edge
        known["nn"] = torch.nn.Sequential(torch.nn.Linear(width, channels), torch.nn.ReLU(),
                                          torch.nn.Linear(channels, channels))
    return construct(kind, kind.__name__, given, known)


def choose_edges(kind: type[torch.nn.Module], edge_dim: int | None, given: dict) -> str:
    """Choose what edge features are given to a convolution as; see :func:`models.foreign.choose_edge_argument`."""
    dims = [name for name in EDGE_DIMS if name in inspect.signature(kind).parameters]
    # Without their number it ignores them, whatever it is called with.
    reads = not dims or any(given.get(name, edge_dim) for name in dims)
    return choose_edge_argument(inspect.signature(getattr(kind, "forward")).parameters, edge_dim, attr=reads)  # noqa: B009
