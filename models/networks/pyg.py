"""A stack of layers of any convolution of PyG, chosen by its name."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch_geometric.nn as pyg
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.models.basic_gnn import BasicGNN

from parallel_epochs.models.convs import attention_convs, sum_convs
from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.convs.fused_conv import FusedConv
from parallel_epochs.models.convs.gated_conv import ResGatedGraphConv
from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.convs.recipe_convs import AGDNConv, GatedGCNConv, GIPAConv
from parallel_epochs.models.convs.relation_conv import RGCNConv
from parallel_epochs.models.edge_index import for_pyg, plain_edges
from parallel_epochs.models.networks.categories import OneHot, RelationColumns
from parallel_epochs.models.networks.encoders import (
    NodeEncoder,
    create_edge_encoder,
    create_node_encoders,
    encode_nodes,
)
from parallel_epochs.models.networks.foreign import (
    NUM_NODES,
    choose_edge_argument,
    construct,
    name_edges,
    tiny_graph,
)
from parallel_epochs.models.networks.heads import pool_graphs
from parallel_epochs.models.networks.options import PyGOptions, check_multiple, takes_options
from parallel_epochs.models.residual import NORMS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "none": lambda h: h,
}
# Arguments that the stack gives to a convolution, and names under which it may take the number of edge features.
OURS = ("in_channels", "out_channels", "channels", "nn")
EDGE_DIMS = ("edge_dim", "dim", "in_edge_channels")
# Layers of PyG's with a fused class that has the same arguments, inputs and parameters.
FUSED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    getattr(pyg, kind.__name__): kind
    for kind in (
        GENConv,
        sum_convs.GCNConv,
        sum_convs.SAGEConv,
        sum_convs.GraphConv,
        sum_convs.GINConv,
        sum_convs.GINEConv,
        ResGatedGraphConv,
        RGCNConv,
        attention_convs.GATConv,
        attention_convs.GATv2Conv,
        attention_convs.TransformerConv,
    )
}
# Convolutions of published recipes that PyG does not have.
RECIPES: dict[str, type[torch.nn.Module]] = {
    kind.__name__: kind for kind in (AGDNConv, GIPAConv, GatedGCNConv)
}
# Norm, activation, dropout and feed-forward block of a layer that is a convolution alone.
BARE = ("none", "none", 0.0, False)


class PyGModel(torch.nn.Module):
    """Layers of a convolution of :mod:`torch_geometric.nn` between a linear encoder and a linear head.

    A layer computes ``dropout(activation(norm(conv(h))))`` and adds `h` if `residual`. With `root_weight`, a linear map
    of `h` is added to ``conv(h)``. With `feed_forward`, a :class:`FeedForward` follows. The convolution has
    `hidden_channels` inputs and outputs, all heads together, and reads the edge features if it can.

    Args:
        in_channels: Number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: Width of every layer.
        out_channels: Number of classes or tasks.
        num_layers: Number of convolutions.
        options: See :class:`models.networks.options.PyGOptions`, given as keywords.

    Raises:
        ValueError: a name is unknown, a size is impossible, or the convolution does not take an argument. The message
            begins with the argument's name.
    """

    @takes_options(PyGOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: PyGOptions,
    ):
        super().__init__()
        kernel, columns = options.kernel, (options.node_tables, options.type_columns)
        kind, given = choose_class(find(options.conv), kernel), dict(options.kwargs or {})
        self.title = f"{num_layers} layers of {options.conv} x {hidden_channels} channels"
        self.category_encoder: torch.nn.Linear | None = None
        self.node_encoder: NodeEncoder | None = None
        if options.encode_x:
            self.category_encoder, self.node_encoder = create_node_encoders(
                in_channels, options.num_categories, hidden_channels, *columns
            )
        self.updates_edges, self.edges_alike = (
            getattr(kind, "updates_edges", False),
            options.edge_dim is None,
        )
        self.edge_columns, edge_dim = create_edge_columns(
            options.edge_dim,
            options.edge_tables,
            options.num_relations,
            encoded=hidden_channels if self.updates_edges else 0,
        )
        convs = [create_conv(kind, hidden_channels, edge_dim, given, kernel=kernel)]
        self.layers = torch.nn.ModuleList()
        for number in range(num_layers):
            if number == 1 or number and not options.tied:
                convs.append(create_conv(kind, hidden_channels, edge_dim, given, kernel=kernel))
            is_last = number == num_layers - 1
            norm_name, act, rate, has_block = (
                BARE
                if is_last and not options.norm_last
                else (options.norm, options.activation, options.dropout, options.feed_forward)
            )
            self.layers.append(
                Layer(
                    convs[-1],
                    create_norm(norm_name, hidden_channels),
                    choose_edges(kind, edge_dim, given),
                    activation=act,
                    root=torch.nn.Linear(hidden_channels, hidden_channels)
                    if options.root_weight
                    else None,
                    residual=options.residual,
                    after=FeedForward(hidden_channels, norm_name, activation=act, dropout=rate)
                    if has_block
                    else None,
                    dropout=rate,
                    edge_dropout=options.edge_dropout,
                    edge_norm=create_norm(norm_name, hidden_channels)
                    if self.updates_edges and not is_last
                    else None,
                )
            )
        self.head = torch.nn.Linear(hidden_channels, out_channels)
        self.edge_argument = self.layers[0].edge_argument
        self.takes_int32_edges = kind in FUSED.values() or kind in RECIPES.values()
        self.hidden_channels, self._edge_dim, self.input_dropout = (
            hidden_channels,
            edge_dim,
            options.input_dropout,
        )
        self.pool = options.pool

    def forward(
        self,
        x: Num[Tensor, "num_nodes in_channels_and_categories"],
        edge_index: Tensor,
        edge_attr: Num[Tensor, "num_edges edge_columns"] | None = None,
        ptr: Int[Tensor, " num_graphs_plus_1"] | None = None,
    ) -> Float[Tensor, "num_rows out"]:
        """Predict logits.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
            edge_attr: [num_edges, edge_dim] or none.
            ptr: index of each graph's first node [num_graphs + 1], for `pool`. None: one graph.

        Returns:
            [num_nodes, out_channels]; with `pool` [num_graphs, out_channels]
        """
        if self.updates_edges and self.edges_alike:
            edge_attr = edge_index.new_zeros(edge_index.size(1), 1)
        edge_attr = (
            edge_attr
            if edge_attr is None or self.edge_columns is None
            else self.edge_columns(edge_attr)
        )
        h = (
            x
            if self.node_encoder is None
            else encode_nodes(x, self.node_encoder, self.category_encoder)
        )
        h = start = F.dropout(h, self.input_dropout, self.training)
        edge_index = edge_index if self.takes_int32_edges else for_pyg(edge_index)
        for layer in self.layers:
            h, edge_attr = layer(h, start, edge_index, edge_attr)
        return self.head(pool_graphs(h, ptr, self.pool))

    @functools.cached_property
    def splits(self) -> bool:
        """Tell whether a node's output depends only on the edges that enter it.

        The output of GCNConv, for example, also depends on the degrees of its neighbours. A try on a tiny graph tells.
        """
        layer, was_training = self.layers[0], self.training
        device = next(self.parameters()).device  # the head may have been taken away
        rng = torch.Generator().manual_seed(2)
        h = torch.randn(NUM_NODES, self.hidden_channels, generator=rng).to(device)
        edges, edge_attr = tiny_graph(self._edge_dim)
        edges = plain_edges(edges).to(device)
        entering = edges[1] < NUM_NODES // 2
        self.eval()
        with torch.no_grad():
            whole, part = (
                layer(
                    h,
                    h.cos(),
                    edges[:, kept],
                    None if edge_attr is None else edge_attr.to(device)[kept],
                )[0][: NUM_NODES // 2]
                for kept in (torch.ones_like(entering), entering)
            )
        self.train(was_training)
        return torch.allclose(whole, part, rtol=1e-4, atol=1e-5)

    def why_pygs_own(self) -> str:
        """Return the reason why PyG's own code runs, known after a first call, or an empty text: fused classes run."""
        conv = self.layers[0].conv
        if isinstance(conv, FusedConv):
            return conv.pygs_reason
        if type(conv) in RECIPES.values():
            return ""
        return "kernel=pyg" if type(conv) in FUSED else "no fused class stands in for it"

    def describe_code(self) -> str:
        """Say whose code runs, known after a first call."""
        if type(self.layers[0].conv) in RECIPES.values():
            return "a layer of this program, which PyG does not have"
        reason = self.why_pygs_own()
        return f"PyG's own code runs ({reason})" if reason else "a fused class stands in for PyG's"


class Layer(torch.nn.Module):
    """A convolution with its norm, activation, dropout and residual connection.

    With an `edge_norm`, the new features of edges, which the convolution returns, get the same.
    """

    def __init__(
        self,
        conv: torch.nn.Module,
        norm: torch.nn.Module,
        edge_argument: str,
        *,
        activation: str,
        residual: bool,
        root: torch.nn.Module | None,
        after: "FeedForward | None",
        dropout: float,
        edge_dropout: float,
        edge_norm: torch.nn.Module | None = None,
    ):
        super().__init__()
        self.conv, self.norm, self.residual, self.root, self.after = (
            conv,
            norm,
            residual,
            root,
            after,
        )
        self.edge_norm = edge_norm
        self.dropout, self.edge_dropout = dropout, edge_dropout
        if hasattr(
            conv, "edge_dropout"
        ):  # the kernel leaves edges out, which costs less than a shorter list of them
            setattr(conv, "edge_dropout", edge_dropout)  # noqa: B010
            self.edge_dropout = 0.0
        self._activate, self.edge_argument = ACTIVATIONS[activation], edge_argument
        self._takes_start = "x_0" in inspect.signature(conv.forward).parameters

    def forward(
        self,
        h: Tensor,
        start: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply the layer.

        Args:
            h: [num_nodes, channels]
            start: input of the first layer, which some convolutions read again.

        Returns:
            The features of nodes [num_nodes, channels], and of edges for the next layer.
        """
        kept, features = drop_edges(
            edge_index, edge_attr, dropout=self.edge_dropout, training=self.training
        )
        more = {"x_0": start} if self._takes_start else {}
        named = name_edges(self.edge_argument, features)
        out, new = self.conv(x=h, edge_index=kept, **more, **named), None
        if isinstance(out, tuple):
            out, new = out
        if self.edge_norm is not None:
            edge_attr = self._finish(self.edge_norm(new), cast(Tensor, edge_attr))
        if self.root is not None:
            out = out + self.root(h)
        out = self._finish(self.norm(out), h)
        return out if self.after is None else self.after(out), edge_attr

    def _finish(self, new: Tensor, old: Tensor) -> Tensor:
        new = F.dropout(self._activate(new), self.dropout, self.training)
        return old + new if self.residual else new


class FeedForward(torch.nn.Module):
    """Computes ``norm(h + dropout(lin2(dropout(activation(lin1(h))))))``, twice as wide in between.

    It is the block of Vaswani et al. (2017, https://arxiv.org/abs/1706.03762), as GNN+ puts it behind each convolution
    (Luo, Shi and Wu 2025, https://arxiv.org/abs/2502.09263).
    """

    def __init__(self, channels: int, norm: str, *, activation: str, dropout: float):
        super().__init__()
        self.lin1, self.lin2 = (
            torch.nn.Linear(channels, 2 * channels),
            torch.nn.Linear(2 * channels, channels),
        )
        self.norm, self.dropout, self._activate = (
            create_norm(norm, channels),
            dropout,
            ACTIVATIONS[activation],
        )

    def forward(
        self, h: Float[Tensor, "num_nodes channels"]
    ) -> Float[Tensor, "num_nodes channels"]:
        wide = F.dropout(self._activate(self.lin1(h)), self.dropout, self.training)
        return self.norm(h + F.dropout(self.lin2(wide), self.dropout, self.training))


def create_edge_columns(
    edge_dim: int | None, tables: Sequence[int] | None, num_relations: int = 0, *, encoded: int = 0
) -> tuple[torch.nn.Module | None, int | None]:
    """Create what makes the columns that convolutions read of the features of edges, and return their number too.

    Args:
        edge_dim: number of features of an edge, or None.
        tables: numbers of their categories, or None.
        num_relations: number of relations, whose number is the first feature. 0: there is no such feature.
        encoded: width of an encoder, for convolutions that update these features. Without features all edges have one
            category. 0: no encoder, only one-hot columns of categories.
    """
    if num_relations:
        assert edge_dim is not None
        columns, width = RelationColumns(num_relations), num_relations + edge_dim - 1
        if encoded:
            return torch.nn.Sequential(columns, create_edge_encoder(width, encoded)), encoded
        return columns, width
    if encoded:
        return create_edge_encoder(edge_dim or 1, encoded, tables if edge_dim else [1]), encoded
    return (None, edge_dim) if tables is None else (OneHot(tables), sum(tables))


def create_norm(name: str, channels: int) -> torch.nn.Module:
    """Build a norm of `NORMS`, or nothing for "none"."""
    return torch.nn.Identity() if name == "none" else NORMS[name](channels)


def find(name: str) -> type[torch.nn.Module]:
    """Find a convolution of :mod:`torch_geometric.nn`, or of :mod:`models.convs.recipe_convs`, by its name.

    Raises:
        ValueError: there is none, or it does not map nodes and edges to nodes. The message begins with "conv".
    """
    if name in RECIPES:
        return RECIPES[name]
    kind = getattr(pyg, name, None)
    if isinstance(kind, type) and issubclass(kind, BasicGNN):
        raise ValueError(
            f"conv={name} is a whole model: set model=custom model.path=torch_geometric.nn.{name}"
        )
    if not isinstance(kind, type) or not issubclass(kind, pyg.MessagePassing):
        raise ValueError(
            f"conv={name} is not a convolution of torch_geometric.nn: choose one such as GATv2Conv"
        )
    parameters = inspect.signature(getattr(kind, "forward")).parameters  # noqa: B009
    needed = [
        key
        for key, parameter in list(parameters.items())[1:]
        if parameter.default is inspect.Parameter.empty
    ]
    if not {"x", "edge_index"} <= set(needed) or set(needed) - {
        "x",
        "edge_index",
        "x_0",
        "edge_attr",
        "edge_weight",
    }:
        raise ValueError(
            f"conv={name} needs {', '.join(needed)}; a layer of model=pyg has only x, edge_index, x_0 "
            "(the first layer's input), edge_attr and edge_weight"
        )
    return kind


def choose_class(kind: type[torch.nn.Module], kernel: str) -> type[torch.nn.Module]:
    """Return the fused class that stands in for a convolution of PyG, or that itself.

    Raises:
        ValueError: there is none, and ``kernel="fused"``; or PyG has no such class, and ``kernel="pyg"``. The message
            begins with "kernel".
    """
    if kernel == "pyg" and kind in RECIPES.values():
        raise ValueError(
            f"kernel=pyg cannot run {kind.__name__}, which PyG does not have. Set kernel=auto"
        )
    if kernel == "fused" and kind not in FUSED and kind not in RECIPES.values():
        raise ValueError(
            f"kernel=fused cannot run {kind.__name__}, which has no fused class. Set kernel=auto, or "
            f"choose one of {', '.join(sorted(fused.__name__ for fused in FUSED))}"
        )
    return kind if kernel == "pyg" else FUSED.get(kind, kind)


def create_conv(
    kind: type[torch.nn.Module],
    channels: int,
    edge_dim: int | None,
    given: dict,
    *,
    kernel: str = "auto",
) -> torch.nn.Module:
    """Create a convolution with `channels` inputs and outputs.

    Args:
        given: arguments of the user for its constructor.
        kernel: of a fused class.

    Raises:
        ValueError: see :func:`models.networks.foreign.construct`, or the number of heads does not divide the channels.
    """
    if ours := [key for key in OURS if key in given]:
        raise ValueError(f"kwargs must not hold {ours[0]}: it follows from model.hidden_channels")
    parameters, heads = inspect.signature(kind).parameters, given.get("heads", 1)
    joined = given.get("concat", True) and "heads" in parameters
    if "heads" in parameters and (type(heads) is not int or heads < 1):
        raise ValueError(
            f"kwargs: heads of {kind.__name__} must be a whole number of at least 1, not {heads!r}"
        )
    if joined:
        check_multiple(channels, "heads", heads)
    known: dict[str, Any] = dict(
        in_channels=channels,
        out_channels=channels // heads if joined else channels,
        channels=channels,
        hidden_channels=channels,
        edge_dim=edge_dim,
        dim=edge_dim or 0,
        in_edge_channels=edge_dim,
        kernel=kernel,
    )
    if kind is pyg.NNConv:  # a matrix for each edge
        known["nn"] = torch.nn.Linear(edge_dim or 1, channels * channels)
    elif "nn" in parameters:
        width = 2 * channels if kind is pyg.EdgeConv else channels  # it reads both ends of an edge
        known["nn"] = torch.nn.Sequential(
            torch.nn.Linear(width, channels), torch.nn.ReLU(), torch.nn.Linear(channels, channels)
        )
    return construct(kind, kind.__name__, given, known)


def choose_edges(kind: type[torch.nn.Module], edge_dim: int | None, given: dict) -> str:
    """Choose the argument of a convolution that gets the edge features, as :func:`choose_edge_argument` does."""
    dims = [name for name in EDGE_DIMS if name in inspect.signature(kind).parameters]
    # A convolution that was not told their number ignores edge features.
    reads = not dims or any(given.get(name, edge_dim) for name in dims)
    parameters = inspect.signature(getattr(kind, "forward")).parameters  # noqa: B009
    return choose_edge_argument(parameters, edge_dim, attr=reads)
