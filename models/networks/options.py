"""The options that several models have in common, and the checks of a constructor's arguments."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from parallel_epochs.models.aggregate import KERNELS
from parallel_epochs.models.aggregate.reference import AGGREGATIONS
from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.heads import POOLS
from parallel_epochs.models.networks.virtual import VIRTUAL_NODES
from parallel_epochs.models.residual import BLOCKS, NORMS

# Four tables that pipeline/keys.py reads from the source, so that a wrong value is refused before torch is imported.
LEAST = {"in_channels": 1, "hidden_channels": 1, "out_channels": 1, "num_layers": 1, "num_mlp_layers": 1,
         "edge_dim": 0, "num_categories": 0, "num_relations": 0, "num_groups": 2, "knn": 0, "knn_dilation": 1}
CHOICES = {"block": tuple(BLOCKS), "aggr": AGGREGATIONS, "norm": tuple(NORMS), "kernel": KERNELS,
           "virtual_node": VIRTUAL_NODES, "pool": POOLS}
FRACTIONS = ("dropout", "input_dropout", "edge_dropout")  # in [0, 1)
POSITIVE = ("tolerance",)
_TABLES = {"node_tables": "in_channels", "edge_tables": "edge_dim"}
_NUMBERS = ("t", "p", "y", *FRACTIONS, "tolerance", "knn_epsilon")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that DeeperGCN, RevGNN and EquilibriumGNN have in common.

    Attributes:
        edge_dim: Number of edge features, or None.
        num_categories: Number of the last columns of `x` that hold a one-hot category, such as a protein's species.
            The category has a linear encoder of its own, in front of the node encoder. 0: no category.
        node_tables: Number of categories in each column of `x`, if it holds categories. None: it holds numbers.
        edge_tables: Number of categories in each column of `edge_attr`, if it holds categories. None: it holds numbers.
        num_relations: Number of relations R. Column 0 of `edge_attr` is then the number of the edge's relation, 0 to
            R - 1, and each convolution has a learned vector for each relation, which is added to the encoded features
            of the other columns. 0: edges have no relations.
        type_columns: For each category of the nodes the ranges [first, end) of the columns of `x` that its nodes have,
            see :class:`models.networks.encoders.TypeEncoder`. None: all nodes have all columns.
        pool: How the nodes of each graph become one row in front of the head: mean, sum or max. none: every node keeps
            its row.
        aggr: Aggregation of the messages: softmax, softmax_sg, softmax_sum, power, power_sum, powermean, mean, max or
            add.
        t: Initial inverse temperature (softmax, softmax_sg and softmax_sum).
        learn_t: Whether each convolution learns its own t (softmax and softmax_sum; softmax_sg has no gradient for t).
        p: Initial exponent, not 0 (power, power_sum and powermean).
        learn_p: Whether each convolution learns its own p (power, power_sum and powermean).
        y: Initial y of the factor degree^sigmoid(y) (softmax_sum and power_sum).
        learn_y: Whether each convolution learns its own y (softmax_sum and power_sum).
        msg_norm: Whether each convolution scales its aggregated messages to the norm of the node's own features.
        learn_msg_scale: Whether each convolution learns a factor of this scaling (msg_norm=true).
        norm: Norm of each layer and of the MLP in each convolution: layer or batch.
        num_mlp_layers: Number of linear layers in the MLP of each convolution. Its hidden layers, if it has any, are
            twice as wide as its input.
        dropout: Probability, in [0, 1), that an activation is dropped in training.
        input_dropout: Probability, in [0, 1), that a channel of the encoded node features is dropped in training.
        edge_dropout: Probability, in [0, 1), that an edge is removed in training, before the aggregation.
        kernel: Implementation of aggregation and norm: auto, fused or reference. See
            :func:`models.aggregate.aggregate` and :func:`models.convs.activation.norm_relu_dropout`.
    """

    edge_dim: int | None = None
    num_categories: int = 0
    node_tables: list[int] | None = None
    edge_tables: list[int] | None = None
    num_relations: int = 0
    type_columns: Sequence[Sequence[tuple[int, int]]] | None = None
    pool: str = "none"
    aggr: str = "max"
    t: float = 1.0
    learn_t: bool = False
    p: float = 1.0
    learn_p: bool = False
    y: float = 0.0
    learn_y: bool = False
    msg_norm: bool = False
    learn_msg_scale: bool = False
    norm: str = "layer"
    num_mlp_layers: int = 2
    dropout: float = 0.1
    input_dropout: float = 0.0
    edge_dropout: float = 0.0
    kernel: str = "auto"

    @property
    def num_edge_features(self) -> int:
        """Number of columns of `edge_attr` without the one of the relations."""
        return (self.edge_dim or 0) - (self.num_relations > 0)

    def node_columns(self) -> dict[str, Any]:
        """Return what :func:`models.networks.encoders.create_node_encoders` has to know of the columns of `x`."""
        types = {} if self.type_columns is None else {"type_columns": self.type_columns}
        return {"tables": self.node_tables, **types}

    def create_relation_table(self, channels: int) -> TableEncoder:
        """Create the vectors of the relations, as ``weight`` [num_relations, channels]."""
        return TableEncoder([self.num_relations], channels)

    def create_conv(self, in_channels: int, out_channels: int) -> GENConv:
        """Create a convolution with these options."""
        return GENConv(in_channels, out_channels, self.aggr, t=self.t, learn_t=self.learn_t, p=self.p,
                       learn_p=self.learn_p, y=self.y, learn_y=self.learn_y, msg_norm=self.msg_norm,
                       learn_msg_scale=self.learn_msg_scale, norm=self.norm, num_layers=self.num_mlp_layers, bias=True,
                       kernel=self.kernel)


def takes_options(**defaults) -> Callable[[Callable], Callable]:
    """Let a constructor take the fields of :class:`ModelOptions` as keywords, and hand them to it as `options`.

    The signature lists the constructor's own arguments, then the fields. All arguments are checked before the
    constructor runs.

    Args:
        defaults: the fields that have another default in this model.
    """
    def decorate(init: Callable) -> Callable:
        own = inspect.signature(init)
        shared = [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type,
                                    default=defaults.get(field.name, field.default)) for field in fields(ModelOptions)]
        kept = [parameter for name, parameter in own.parameters.items() if name != "options"]
        signature = own.replace(parameters=kept + shared)

        @functools.wraps(init)
        def construct(*args, **keywords) -> None:
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            options = ModelOptions(**{parameter.name: bound.arguments.pop(parameter.name) for parameter in shared})
            check_options(bound.arguments, options)
            init(**bound.arguments, options=options)

        construct.__signature__ = signature  # type: ignore[attr-defined]
        return construct

    return decorate


def check_options(own: dict[str, Any], shared: ModelOptions) -> None:
    """Refuse arguments of a model that have another type or are out of range.

    Args:
        own: the constructor's own arguments by name. Those that this file does not list are booleans.
        shared: the options that it has in common with other models.

    Raises:
        ValueError: the message begins with the name of the argument.
    """
    options = {**own, **vars(shared)}
    for name, value in options.items():
        if name == "self":
            continue
        if name in LEAST:
            _check_integer(name, 0 if name == "edge_dim" and value is None else value, LEAST[name])
        elif name in CHOICES:
            if value not in CHOICES[name]:
                raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(CHOICES[name])}")
        elif name in _TABLES:
            _check_tables(name, value, _TABLES[name], options[_TABLES[name]])
        elif name == "type_columns":
            _check_type_columns(value, options)
        elif name in _NUMBERS:
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value!r}")
        elif not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
    _check_edges(options)
    if options.get("virtual_node", "none") != "none" and options["block"] == "dense":
        raise ValueError(f"virtual_node={options['virtual_node']} needs layers of one width, but block=dense has wider "
                         "and wider ones: choose block=res+, res or plain")
    columns = options["in_channels"] + options["num_categories"]
    if not options.get("encode_x", True) and columns != options["hidden_channels"]:
        raise ValueError(f"encode_x=false needs an x of hidden_channels={options['hidden_channels']} columns, but x "
                         f"has {columns}")
    for name in FRACTIONS:
        if not 0 <= options[name] < 1:
            raise ValueError(f"{name} must be in [0, 1), not {options[name]}")
    if not 0 <= options.get("knn_epsilon", 0) <= 1:
        raise ValueError(f"knn_epsilon must be in [0, 1], not {options['knn_epsilon']}")
    for name in POSITIVE:
        if options.get(name, 1) <= 0:
            raise ValueError(f"{name} must be more than 0, not {options[name]}")
    if options["p"] == 0:
        raise ValueError("p must not be 0: the power mean divides by it")
    if options["aggr"] == "softmax_sg" and options["learn_t"]:
        raise ValueError("aggr=softmax_sg has no gradient for t: set learn_t=false")


def check_inputs(model: Any, x: Tensor, edge_attr: Tensor | None) -> None:
    """Refuse features whose width is not the one that a model was built for.

    Args:
        model: a module with the attributes ``num_columns`` (columns of `x`) and ``num_edge_columns`` (columns of
            `edge_attr`, or 0), and possibly ``num_relations``.

    Raises:
        ValueError: names both widths.
    """
    if x.dim() != 2 or x.size(1) != model.num_columns:
        raise ValueError(f"x has shape {tuple(x.shape)}, but the model was built for {model.num_columns} columns "
                         f"(in_channels + num_categories)")
    if edge_attr is None and getattr(model, "num_relations", None):
        raise ValueError(f"the model was built for num_relations={model.num_relations}, but there is no edge_attr, "
                         "whose column 0 holds the relation of each edge")
    if edge_attr is not None and not model.num_edge_columns:
        raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was built without edge_dim")
    if edge_attr is not None and (edge_attr.dim() != 2 or edge_attr.size(1) != model.num_edge_columns):
        raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was built for "
                         f"edge_dim={model.num_edge_columns}")


def _check_tables(name: str, sizes: list[int] | None, columns: str, num_columns: int | None) -> None:
    if sizes is None:
        return
    if len(sizes) != num_columns:
        raise ValueError(f"{name} has {len(sizes)} sizes, but {columns}={num_columns}: give one size for each column")
    for size in sizes:
        _check_integer(f"{name}: each", size, 1)


def _check_edges(options: dict[str, Any]) -> None:
    relations = f"num_relations={options['num_relations']}" if options["num_relations"] else ""
    if relations and not options["edge_dim"]:
        raise ValueError(f"{relations} needs edge_attr, whose column 0 holds the relation of each edge, but edge_dim="
                         f"{options['edge_dim']}")
    if relations and options["edge_tables"] is not None:
        raise ValueError(f"{relations} cannot be combined with edge_tables={options['edge_tables']}: the columns "
                         "behind the relation must hold numbers")
    if options.get("knn") and options["edge_dim"]:
        what, given = ("relations", relations) if relations else ("features", f"edge_dim={options['edge_dim']}")
        raise ValueError(f"knn={options['knn']} builds its own edges, which have no {what}, but {given}: leave one of "
                         "the two out")


def _check_type_columns(types: Sequence[Sequence[tuple[int, int]]] | None, options: dict[str, Any]) -> None:
    if types is None:
        return
    if len(types) != options["num_categories"]:
        raise ValueError(f"type_columns has {len(types)} types, but num_categories={options['num_categories']}: give "
                         "the columns of each type")
    if options["node_tables"] is not None or not options.get("encode_x", True):
        raise ValueError("type_columns needs an encoder of x of its own: set encode_x=true, and leave node_tables out")
    for first, end in (columns for ranges in types for columns in ranges):
        if not 0 <= first < end <= options["in_channels"]:
            raise ValueError(f"type_columns has the range [{first}, {end}), but x has the columns 0 to "
                             f"{options['in_channels'] - 1}")


def _check_integer(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
