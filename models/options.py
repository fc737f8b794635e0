"""What the constructors of the models refuse, checked before anything is created."""

import math
from typing import Any

from torch import Tensor

from .aggregate import AGGREGATIONS, KERNELS
from .blocks import BLOCKS, NORMS
from .heads import POOLS
from .virtual import VIRTUAL_NODES

_LEAST = {"in_channels": 1, "hidden_channels": 1, "out_channels": 1, "num_layers": 1, "num_mlp_layers": 1,
          "edge_dim": 0, "num_categories": 0, "num_groups": 2, "knn": 0, "knn_dilation": 1}
_CHOICES = {"block": tuple(BLOCKS), "aggr": AGGREGATIONS, "norm": tuple(NORMS), "kernel": KERNELS,
            "virtual_node": VIRTUAL_NODES, "pool": POOLS}
_TABLES = {"node_tables": "in_channels", "edge_tables": "edge_dim"}
_NUMBERS = ("t", "p", "y", "dropout", "tolerance", "knn_epsilon")


def check_options(options: dict) -> None:
    """Refuse options of a model that have another type or are out of range; those not named here are booleans.

    Raises:
        ValueError: the message begins with the name of the option.
    """
    for name, value in options.items():
        if name in _LEAST:
            _check_integer(name, 0 if name == "edge_dim" and value is None else value, _LEAST[name])
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(_CHOICES[name])}")
        elif name in _TABLES:
            _check_tables(name, value, _TABLES[name], options[_TABLES[name]])
        elif name in _NUMBERS:
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value!r}")
        elif not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
    if options.get("virtual_node", "none") != "none" and options["block"] == "dense":
        raise ValueError(f"virtual_node={options['virtual_node']} needs layers of one width: not block=dense")
    columns = options["in_channels"] + options["num_categories"]
    if not options.get("encode_x", True) and columns != options["hidden_channels"]:
        raise ValueError("encode_x=false needs as many columns of x as "
                         f"hidden_channels={options['hidden_channels']}, not {columns}")
    if not 0 <= options["dropout"] < 1:
        raise ValueError(f"dropout must be in [0, 1), not {options['dropout']}")
    if options.get("knn") and options["edge_dim"]:
        raise ValueError(f"knn={options['knn']} links nodes by edges of its own, without the edge_dim="
                         f"{options['edge_dim']} features of the given ones: leave one of them out")
    if not 0 <= options.get("knn_epsilon", 0) <= 1:
        raise ValueError(f"knn_epsilon must be in [0, 1], not {options['knn_epsilon']}")
    if options.get("tolerance", 1) <= 0:
        raise ValueError(f"tolerance must be more than 0, not {options['tolerance']}")
    if options["p"] == 0:
        raise ValueError("p must not be 0: the power mean divides by it")
    if options["aggr"] == "softmax_sg" and options["learn_t"]:
        raise ValueError("aggr=softmax_sg has no gradient for t: set learn_t=false")


def check_inputs(model: Any, x: Tensor, edge_attr: Tensor | None) -> None:
    """Refuse features of other widths than a model was made for.

    Args:
        model: a module with the number of columns of its `x` as ``num_columns``, and of its `edge_attr`, perhaps 0, as
            ``num_edge_columns``.

    Raises:
        ValueError: names both widths.
    """
    if x.dim() != 2 or x.size(1) != model.num_columns:
        raise ValueError(f"x has shape {tuple(x.shape)}, but the model was made for {model.num_columns} columns "
                         f"(in_channels + num_categories)")
    if edge_attr is not None and not model.num_edge_columns:
        raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was made without edge_dim")
    if edge_attr is not None and (edge_attr.dim() != 2 or edge_attr.size(1) != model.num_edge_columns):
        raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was made for "
                         f"edge_dim={model.num_edge_columns}")


def _check_tables(name: str, sizes: list[int] | None, columns: str, num_columns: int | None) -> None:
    if sizes is None:
        return
    if len(sizes) != num_columns:
        raise ValueError(f"{name} has {len(sizes)} sizes for {columns}={num_columns}")
    for size in sizes:
        _check_integer(f"{name}: each", size, 1)


def _check_integer(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
