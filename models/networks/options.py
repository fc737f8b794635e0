"""The options of every model: name, type, default, meaning and bounds, each written once. Nothing here imports torch.

A constructor gets its options as one object, and takes them as keywords (:func:`takes_options`). The pipeline makes a
key of each option that does not depend on the graph.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

AGGREGATIONS = ("softmax", "softmax_sg", "softmax_sum", "mean", "max", "add")
NORMS = ("layer", "batch")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "none")
FRACTION: dict[str, Any] = {"minimum": 0, "below": 1}
SOFTMAX = ("softmax", "softmax_sg", "softmax_sum")


def option(default: object, text: str, *, is_key: bool = True, **allowed: Any) -> Any:
    """Declare an option of a model.

    Args:
        text: what the value is.
        is_key: whether it is a key of a run. Otherwise it depends on the graph, or has a key elsewhere.
        allowed: `choices`; `minimum`, the least value; `below`, a bound that is not allowed itself;
            `when`, the values of other options with which this one has an effect.
    """
    return field(default=default, metadata={"text": text, "is_key": is_key, "allowed": allowed})


def _with_default(kind: type, name: str, default: object) -> Any:
    """Declare an option that another dataclass has as well, perhaps with another default."""
    (other,) = (field for field in fields(kind) if field.name == name)
    return field(default=default, metadata=other.metadata)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The options of every model: its size, and what depends on the graph."""

    num_layers: int = option(4, "Number of convolutions.", minimum=1)
    hidden_channels: int = option(64, "Width of every layer.", minimum=1)
    edge_dim: int | None = option(
        None, "Number of edge features, or None.", is_key=False, minimum=0
    )
    num_categories: int = option(
        0,
        "Number of the last columns of `x` that hold a one-hot category, such as a "
        "protein's species. The category has a linear encoder of its own, in front of the "
        "node encoder. 0: no category.",
        is_key=False,
        minimum=0,
    )
    node_tables: Sequence[int] | None = option(
        None,
        "Number of categories in each column of `x`, if it holds "
        "categories. None: it holds numbers.",
        is_key=False,
    )
    edge_tables: Sequence[int] | None = option(
        None,
        "Number of categories in each column of `edge_attr`, if it holds "
        "categories. None: it holds numbers.",
        is_key=False,
    )
    num_relations: int = option(
        0,
        "Number of relations R. Column 0 of `edge_attr` is then the number of the edge's "
        "relation, 0 to R - 1. 0: edges have no relations.",
        is_key=False,
        minimum=0,
    )
    type_columns: Sequence[Sequence[tuple[int, int]]] | None = option(
        None,
        "For each category of the nodes the ranges [first, end) of the columns of `x` that its nodes have, see "
        "models.networks.encoders.TypeEncoder. None: all nodes have all columns.",
        is_key=False,
    )
    pool: str = option(
        "none",
        "How the nodes of each graph become one row in front of the head. none: every node "
        "keeps its row.",
        is_key=False,
        choices=("none", "mean", "sum", "max"),
    )
    kernel: str = option(
        "auto",
        "Implementation of the aggregation, the norm and the attention: auto, fused, "
        "reference, or pyg for PyG's own layers (PyGModel).",
        is_key=False,
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(GraphOptions):
    """The options that DeeperGCN and RevGNN have in common."""

    kernel: str = option(
        "auto",
        "Implementation of aggregation and norm. See models.aggregate.aggregate and "
        "models.convs.activation.norm_relu_dropout.",
        is_key=False,
        choices=("auto", "fused", "reference"),
    )
    aggr: str = option(
        "max",
        "Aggregation of the messages: softmax, softmax_sg, softmax_sum, mean, max or add.",
        choices=AGGREGATIONS,
    )
    t: float = option(
        1.0,
        "Initial inverse temperature of softmax, softmax_sg and softmax_sum. Each convolution learns "
        "its own, except with softmax_sg, which has no gradient for it.",
        when={"aggr": SOFTMAX},
    )
    norm: str = option(
        "layer",
        "Norm of each layer and of the MLP in each convolution: layer or batch.",
        choices=NORMS,
    )
    num_mlp_layers: int = option(
        2,
        "Number of linear layers in the MLP of each convolution. Its hidden layers, if it "
        "has any, are twice as wide as its input.",
        minimum=1,
    )
    dropout: float = option(
        0.1, "Probability, in [0, 1), that an activation is dropped in training.", **FRACTION
    )
    input_dropout: float = option(
        0.0,
        "Probability, in [0, 1), that a channel of the encoded node features is dropped "
        "in training.",
        **FRACTION,
    )
    edge_dropout: float = option(
        0.0,
        "Probability, in [0, 1), that an edge is removed in training, before the aggregation.",
        **FRACTION,
    )

    @property
    def num_edge_features(self) -> int:
        """Number of columns of `edge_attr` without the one of the relations."""
        return (self.edge_dim or 0) - (self.num_relations > 0)


@dataclass(frozen=True, kw_only=True)
class DeeperGCNOptions(ModelOptions):
    """The options of DeeperGCN."""

    aggr: str = _with_default(ModelOptions, "aggr", "softmax")
    virtual_node: str = option(
        "none",
        "Virtual node that reads all nodes of a graph: none, add (their sum) or mean "
        "(independent of the cluster's size).",
        choices=("none", "add", "mean"),
    )
    gradient_checkpointing: bool = option(
        False,
        "Whether backward computes the activations of each layer again, so "
        "that forward need not keep them.",
    )
    encode_x: bool = option(
        True,
        "Whether a linear encoder reads x. Without it the first layer reads x, which must "
        "then have hidden_channels columns.",
    )


@dataclass(frozen=True, kw_only=True)
class RevGNNOptions(ModelOptions):
    """The options of RevGNN."""

    num_layers: int = option(4, "Number of reversible layers, each of two convolutions.", minimum=1)
    hidden_channels: int = option(64, "Width of every layer, both groups together.", minimum=1)
    tied: bool = option(False, "Whether all layers share the weights of one layer.")
    reversible: bool = option(
        True,
        "Whether backward computes each layer's input from its output. Otherwise autograd "
        "keeps all activations.",
        is_key=False,
    )


@dataclass(frozen=True, kw_only=True)
class LayerOptions(GraphOptions):
    """The options that PyGModel, RGCN and HGT have in common."""

    norm: str = option(
        "layer", "Norm of each layer: layer, batch or none.", choices=(*NORMS, "none")
    )
    dropout: float = _with_default(ModelOptions, "dropout", 0.1)
    input_dropout: float = _with_default(ModelOptions, "input_dropout", 0.0)
    edge_dropout: float = option(
        0.0,
        "Probability, in [0, 1), that an edge is removed in a training step, from all layers.",
        **FRACTION,
    )


@dataclass(frozen=True, kw_only=True)
class RGCNOptions(LayerOptions):
    """The options of RGCN."""

    num_layers: int = option(4, "Number of layers.", minimum=1)
    num_bases: int = option(
        0,
        "Number of matrices of which a layer mixes those of its relations. 0: each relation has "
        "a matrix of its own.",
        minimum=0,
    )
    activation: str = option(
        "relu",
        "Activation of each layer: relu, leaky_relu, elu, gelu, silu, tanh or none.",
        choices=ACTIVATIONS,
    )
    residual: bool = option(True, "Whether a layer's input is added to its output.")


@dataclass(frozen=True, kw_only=True)
class HGTOptions(LayerOptions):
    """The options of HGT."""

    num_layers: int = option(4, "Number of layers.", minimum=1)
    hidden_channels: int = option(64, "Width of every layer, all heads together.", minimum=1)
    heads: int = option(4, "Number of attention heads, which share the channels.", minimum=1)


@dataclass(frozen=True, kw_only=True)
class PyGOptions(LayerOptions):
    """The options of PyGModel."""

    conv: str = option(
        "GATv2Conv",
        "Convolution of torch_geometric.nn, such as GATv2Conv, SAGEConv, GCNConv, GINEConv "
        "or TransformerConv; or AGDNConv, GIPAConv or GatedGCNConv, which updates the features of the "
        "edges too.",
    )
    kwargs: dict | None = option(
        None, "Further arguments of its constructor, as in 'model.kwargs={heads:4}'."
    )
    activation: str = _with_default(RGCNOptions, "activation", "relu")
    residual: bool = _with_default(RGCNOptions, "residual", True)
    root_weight: bool = option(
        False,
        "Whether a linear map of a layer's input is added to the output of its "
        "convolution, in front of the norm.",
    )
    feed_forward: bool = option(
        False,
        "Whether a feed-forward block follows each layer, as in transformers and GNN+: "
        "two linear maps, twice as wide between them, whose output is added to their input and "
        "normalised.",
    )
    tied: bool = option(
        False,
        "Whether all layers but the first share one convolution. Each layer keeps its own norm.",
    )
    norm_last: bool = option(
        True, "Whether norm, activation and dropout follow the last convolution too."
    )
    encode_x: bool = _with_default(DeeperGCNOptions, "encode_x", True)
    edge_dropout: float = option(
        0.0,
        "Probability, in [0, 1), that an edge is removed from a layer in training, "
        "before the aggregation and its softmax.",
        **FRACTION,
    )


@dataclass(frozen=True, kw_only=True)
class CustomOptions:
    """The options of CustomModel. Those that the class's constructor does not name are not passed to it."""

    num_layers: int = option(
        4, "Number of layers, passed to the constructor if that has an argument num_layers."
    )
    hidden_channels: int = option(
        64,
        "Width of the layers, passed to the constructor if that has an argument hidden_channels.",
    )
    edge_dim: int | None = _with_default(GraphOptions, "edge_dim", None)
    num_categories: int = _with_default(GraphOptions, "num_categories", 0)
    num_relations: int = _with_default(GraphOptions, "num_relations", 0)
    type_columns: Sequence[Sequence[tuple[int, int]]] | None = _with_default(
        GraphOptions, "type_columns", None
    )
    schema: Mapping[str, Any] | None = option(
        None,
        "Names of a typed graph, `types`, `relations` and `labelled`; see "
        "models.networks.hetero.GraphSchema.",
        is_key=False,
    )
    kernel: str = option("auto", "Not used.", is_key=False)
    path: str = option("", "The class, as package.module.Class.")
    kwargs: dict | None = option(
        None, "Further arguments of its constructor, as in 'model.kwargs={width:64}'."
    )


def takes_options(kind: type) -> Callable[[Callable], Callable]:
    """Let a constructor take the fields of a dataclass as keywords, and hand them to it as `options`.

    The signature lists the constructor's own arguments, then the fields. All arguments are checked before the
    constructor runs.
    """

    def decorate(init: Callable) -> Callable:
        own = inspect.signature(init)
        kept = [parameter for name, parameter in own.parameters.items() if name != "options"]
        names = [parameter.name for parameter in kept]
        signature = own.replace(
            parameters=[
                *kept,
                *(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        annotation=field.type,
                        default=field.default,
                    )
                    for field in fields(kind)
                    if field.name not in names
                ),
            ]
        )

        @functools.wraps(init)
        def construct(*args: Any, **keywords: Any) -> None:
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            given = bound.arguments
            options = kind(**{field.name: given[field.name] for field in fields(kind)})
            check_options(options, given)
            init(**{name: given[name] for name in names}, options=options)

        construct.__signature__ = signature  # type: ignore[attr-defined]
        return construct

    return decorate


def check_options(options: Any, given: Mapping[str, Any]) -> None:
    """Refuse arguments of a model that have another type or are out of range.

    Args:
        options: a dataclass of this file.
        given: all arguments of the constructor by name.

    Raises:
        ValueError: the message begins with the name of the argument.
    """
    if isinstance(options, ModelOptions):
        for name in ("in_channels", "out_channels"):
            _check_integer(name, given[name], 1)
    for declared in fields(options):
        _check_value(declared, given[declared.name])
    if given.get("num_relations"):
        _check_relations(given)
    if not given.get("encode_x", True):
        columns = given["in_channels"] + given["num_categories"]
        if given["node_tables"] is not None or given["type_columns"] is not None:
            raise ValueError("encode_x=false needs an x of numbers, and nodes of one type")
        if columns != given["hidden_channels"]:
            raise ValueError(
                f"encode_x=false needs an x of hidden_channels={given['hidden_channels']} columns, but x "
                f"has {columns}"
            )


def _check_value(declared: Field, value: Any) -> None:
    name, kind, allowed = declared.name, declared.type, declared.metadata["allowed"]
    if choices := allowed.get("choices"):
        if value not in choices:
            raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(choices)}")
    elif kind is int or kind == int | None and value is not None:
        _check_integer(name, value, allowed.get("minimum", -math.inf))
    elif kind is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    elif kind is float:
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not math.isfinite(value)
        ):
            raise ValueError(f"{name} must be a finite number, not {value!r}")
        if "below" in allowed and not allowed["minimum"] <= value < allowed["below"]:
            raise ValueError(
                f"{name} must be in [{allowed['minimum']}, {allowed['below']}), not {value}"
            )


def check_multiple(hidden_channels: int, name: str, number: int) -> None:
    """Refuse a number of channels that cannot be shared out evenly.

    Raises:
        ValueError: names the option that has the number of shares.
    """
    if hidden_channels % number:
        raise ValueError(f"hidden_channels={hidden_channels} is not a multiple of {name}={number}")


def _check_relations(options: Mapping[str, Any]) -> None:
    relations = f"num_relations={options['num_relations']}"
    if not options["edge_dim"]:
        raise ValueError(
            f"{relations} needs edge_attr, whose column 0 holds the relation of each edge, but edge_dim="
            f"{options['edge_dim']}"
        )
    if options.get("edge_tables") is not None:
        raise ValueError(
            f"{relations} cannot be combined with edge_tables={options['edge_tables']}: the columns "
            "behind the relation must hold numbers"
        )


def _check_integer(name: str, value: Any, least: float) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
