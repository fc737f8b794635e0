"""Modules that others wrote: what their constructors and forwards take, and a first call on a tiny graph."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .edges import from_csc

NUM_NODES, NUM_EDGES = 11, 1009
KEEPS_STATE = ("cached",)  # options of PyG's that reuse the edges of the first call


def one_line(error: BaseException) -> str:
    """Describe an error of somebody else's code in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def construct(make: Callable[..., Any], name: str, given: dict[str, Any], known: dict[str, Any]) -> Any:
    """Call a constructor with what the user gives, and what else it asks for by name.

    Args:
        name: of the constructor, for messages.
        given: by the user, as `kwargs`.
        known: arguments that are passed if the constructor names them and the user does not.

    Raises:
        ValueError: an argument is unknown or missing, or the constructor fails; the message begins with "kwargs".
    """
    parameters = inspect.signature(make).parameters
    named = [key for key, parameter in parameters.items() if parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)]
    takes_any = any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if unknown := [key for key in given if key not in named and not takes_any]:
        raise ValueError(f"kwargs: {name} takes no {', '.join(unknown)}; it takes {', '.join(named) or 'nothing'}")
    if kept := [key for key in KEEPS_STATE if given.get(key)]:
        raise ValueError(f"kwargs: {kept[0]}=true keeps the edges of the first batch, and every batch has others")
    arguments = {key: value for key, value in known.items() if key in named} | given
    required = [key for key in named if parameters[key].default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in arguments]:
        raise ValueError(f"kwargs lacks {', '.join(missing)}, without which there is no {name}")
    try:
        return make(**arguments)
    except Exception as error:
        raise ValueError(f"kwargs: {name} refuses them: {one_line(error)}") from error


def choose_edge_argument(parameters: Collection[str], edge_dim: int | None, *, attr: bool = True,
                         weight: bool = True) -> str:
    """Choose what edge features are given to a forward as.

    Args:
        parameters: names of the forward's arguments.
        edge_dim: number of edge features, or none.
        attr: whether it does something with ``edge_attr``.
        weight: whether it does something with ``edge_weight``, a number for each edge.

    Returns:
        "edge_attr", "edge_weight", or "" if they are not used.
    """
    if edge_dim and attr and "edge_attr" in parameters:
        return "edge_attr"
    return "edge_weight" if edge_dim == 1 and weight and "edge_weight" in parameters else ""


def name_edges(argument: str, edge_attr: Tensor | None) -> dict[str, Tensor]:
    """Return edge features as the argument of a forward that :func:`choose_edge_argument` has chosen."""
    if edge_attr is None or not argument:
        return {}
    return {argument: edge_attr.reshape(-1) if argument == "edge_weight" else edge_attr}


def tiny_graph(edge_dim: int | None) -> tuple[Tensor, Tensor | None]:
    """Draw the same few edges always, sorted by destination, and their features."""
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(NUM_NODES, (NUM_EDGES,), generator=rng).sort().values
    source = (target + torch.randint(1, NUM_NODES, (NUM_EDGES,), generator=rng)) % NUM_NODES  # no self-loops
    edge_index = torch.stack([source, target])
    indptr = torch.searchsorted(target, torch.arange(NUM_NODES + 1))
    return from_csc(edge_index, indptr), torch.rand(NUM_EDGES, edge_dim, generator=rng) if edge_dim else None


@dataclass(frozen=True)
class Tried:
    """What a first call showed.

    Attributes:
        bytes_per_edge: of the largest tensor with a row for each edge; 0 if there is none.
    """

    bytes_per_edge: int


@torch.no_grad()
def try_forward(model: torch.nn.Module, name: str, *, num_columns: int, out_channels: int,
                edge_dim: int | None) -> Tried:
    """Call a model on a tiny graph, which also gives lazy parameters their shapes.

    Args:
        name: of the model, for messages.
        num_columns: of its `x`.

    Raises:
        ValueError: it fails, returns no tensor [num_nodes, out_channels] of floats, or has nothing to train.
    """
    edge_index, edge_attr = tiny_graph(edge_dim)
    x = torch.rand(NUM_NODES, num_columns, generator=torch.Generator().manual_seed(1))
    was_training, largest = model.training, _LargestOfEdges()
    model.eval()
    try:
        with largest:
            out = model(x, edge_index, edge_attr)
    except Exception as error:
        raise ValueError(f"{name} fails on x [{NUM_NODES}, {num_columns}], edge_index [2, {NUM_EDGES}] and edge_attr "
                         f"{'none' if edge_attr is None else list(edge_attr.shape)}: {one_line(error)}") from error
    finally:
        model.train(was_training)
    if not isinstance(out, Tensor):
        raise ValueError(f"{name} returns a {type(out).__name__}; it must return a tensor [num_nodes, {out_channels}]")
    if list(out.shape) != [NUM_NODES, out_channels] or not out.is_floating_point():
        raise ValueError(f"{name} returns {out.dtype} of shape {list(out.shape)} for {NUM_NODES} nodes; it must return "
                         f"floats of shape [num_nodes, {out_channels}], a column for each class or task")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{name} has no parameters: there is nothing to train")
    return Tried(largest.bytes // NUM_EDGES)


class _LargestOfEdges(TorchDispatchMode):
    """Remembers the largest tensor of floats that has a row for each edge, and perhaps one for each node: a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.is_floating_point() \
                    and NUM_EDGES <= leaf.size(0) <= NUM_EDGES + NUM_NODES:
                self.bytes = max(self.bytes, leaf.numel() * leaf.element_size())
        return out
