"""Models that others wrote: their arguments are found by inspection, and a call on a tiny graph tests them."""

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.models.edge_index import from_csc

NUM_NODES, NUM_EDGES = 11, 1009
PROGRAM = Path(__file__).parents[2]
KEEPS_STATE = ("cached",)  # options of PyG's layers that reuse the edges of the first call


class ForeignError(ValueError):
    """A model that others wrote fails, or returns something else than predictions. The message names it."""


# Errors that foreign code may raise. sys.exit() would otherwise end the program with the status that the code chose.
FAILURES = (Exception, SystemExit)


def one_line(error: BaseException) -> str:
    """Describe an error of foreign code in one line."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def construct(
    make: Callable[..., Any], name: str, given: dict[str, Any], known: dict[str, Any]
) -> Any:
    """Call a constructor with the user's arguments, and with those known ones that it has.

    Args:
        name: name of the constructor in messages.
        given: arguments of the user (`kwargs`).
        known: arguments that are passed if the constructor has them and the user gives none.

    Raises:
        ValueError: an argument is unknown or missing, or the constructor fails; the message begins with "kwargs".
    """
    parameters = inspect.signature(make).parameters
    named = [
        key
        for key, parameter in parameters.items()
        if parameter.kind
        in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    takes_any = any(
        parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    if unknown := [key for key in given if key not in named and not takes_any]:
        raise ValueError(
            f"kwargs: {name} takes no {', '.join(unknown)}; it takes {', '.join(named) or 'nothing'}"
        )
    if kept := [key for key in KEEPS_STATE if given.get(key)]:
        raise ValueError(
            f"kwargs: {kept[0]}=true keeps the edges of the first batch, but every batch has "
            "other edges: leave it out"
        )
    for key, value in given.items():
        if key in parameters and parameters[key].annotation is bool and not isinstance(value, bool):
            raise ValueError(f"kwargs: {key} of {name} must be true or false, not {value!r}")
    arguments = {key: value for key, value in known.items() if key in named} | given
    required = [key for key in named if parameters[key].default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in arguments]:
        raise ValueError(f"kwargs lacks {', '.join(missing)}, which {name} needs")
    try:
        tensors = {
            key: torch.tensor(value, device="cpu")
            for key, value in given.items()
            if isinstance(value, list)
            and key in parameters
            and parameters[key].annotation is Tensor
        }
        return make(**arguments | tensors)
    except FAILURES as error:
        raise ValueError(f"kwargs: {name} refuses them: {one_line(error)}") from error


def choose_edge_argument(
    parameters: Collection[str], edge_dim: int | None, *, attr: bool = True, weight: bool = True
) -> str:
    """Choose the argument of a forward that gets the edge features.

    Args:
        parameters: names of the forward's arguments.
        edge_dim: number of edge features, or None.
        attr: whether the forward uses ``edge_attr``.
        weight: whether the forward uses ``edge_weight``, one number for each edge.

    Returns:
        "edge_attr", "edge_weight", or "" if the features are not used.
    """
    if edge_dim and attr and "edge_attr" in parameters:
        return "edge_attr"
    return "edge_weight" if edge_dim == 1 and weight and "edge_weight" in parameters else ""


def name_edges(argument: str, edge_attr: Tensor | None) -> dict[str, Tensor]:
    """Return edge features as a keyword for the argument that :func:`choose_edge_argument` chose."""
    if edge_attr is None or not argument:
        return {}
    return {argument: edge_attr.reshape(-1) if argument == "edge_weight" else edge_attr}


def tiny_graph(edge_dim: int | None) -> tuple[Tensor, Tensor | None]:
    """Make a small random graph, the same in every call: edges sorted by destination, and their features."""
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(NUM_NODES, (NUM_EDGES,), generator=rng).sort().values
    source = (
        target + torch.randint(1, NUM_NODES, (NUM_EDGES,), generator=rng)
    ) % NUM_NODES  # no self-loops
    edge_index = torch.stack([source, target])
    indptr = torch.searchsorted(target, torch.arange(NUM_NODES + 1))
    return from_csc(edge_index, indptr), torch.rand(
        NUM_EDGES, edge_dim, generator=rng
    ) if edge_dim else None


def tiny_typed_graph(
    ends: Sequence[tuple[int, int]], num_types: int, num_columns: int, edge_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Make a small random typed graph with nodes of each type and edges of each relation, the same in every call.

    Args:
        ends: number of the type of the source and of the destination of each relation.
        num_types: number of types.
        num_columns: number of columns of `x`, the one-hot type included.
        edge_dim: number of columns of the edge features, that of the relation included.

    Returns:
        ``x``, ``edge_index`` and ``edge_attr``, the edges sorted by destination.
    """
    rng = torch.Generator().manual_seed(0)
    num_nodes = max(NUM_NODES, 2 * num_types)
    types = torch.arange(num_nodes) % num_types
    x = torch.rand(num_nodes, num_columns, generator=rng)
    x[:, num_columns - num_types :] = torch.nn.functional.one_hot(types, num_types)
    of_relation = max(NUM_EDGES // max(len(ends), 1), 2)
    kinds = torch.tensor(ends, dtype=torch.int64).view(-1, 2).repeat_interleave(of_relation, 0).t()
    counts = (num_nodes - 1 - kinds) // num_types + 1
    edge_index = (torch.rand(kinds.shape, generator=rng) * counts).long() * num_types + kinds
    edge_attr = torch.rand(edge_index.size(1), edge_dim, generator=rng)
    edge_attr[:, 0] = torch.arange(len(ends)).repeat_interleave(of_relation)
    order = edge_index[1].argsort(stable=True)
    return x, edge_index[:, order].contiguous(), edge_attr[order]


@contextlib.contextmanager
def naming_failures(
    name: str, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None
) -> Iterator[None]:
    """Turn what a foreign forward raises into one line. A lack of memory and errors of this program stay as they are.

    Raises:
        ForeignError: names the model and the shapes that it was called with.
    """
    try:
        yield
    except FAILURES as error:
        if (
            type(error).__module__.startswith("parallel_epochs.")
            or isinstance(error, MemoryError)
            or isinstance(error, RuntimeError)
            and re.search("(allocate|out of) memory", str(error))
        ):
            raise
        features = "none" if edge_attr is None else list(edge_attr.shape)
        raise ForeignError(
            f"{name} fails on x {list(x.shape)}, edge_index {list(edge_index.shape)} and edge_attr "
            f"{features}: {one_line(error)}{_where(error)}"
        ) from error


def _where(error: BaseException) -> str:
    """Name the last line that is neither of this program nor of an installed package."""
    lines = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not Path(frame.filename).is_relative_to(PROGRAM)
    ]
    return lines[-1] if lines else ""


def check_output(
    out: Any,
    name: str,
    x: Tensor,
    out_channels: int,
    *,
    is_trained: bool,
    num_rows: int | None = None,
) -> Tensor:
    """Check what a foreign forward returns; float64 becomes float32.

    Args:
        x: what it was called with.
        is_trained: whether its gradient is needed.
        num_rows: rows that it must have. None: one for each node.

    Raises:
        ForeignError: it is no floating point tensor [num_nodes, out_channels] on the device of `x`, or without a
            gradient although that is needed.
    """
    in_which = " in training" if is_trained else ""
    if not isinstance(out, Tensor):
        raise ForeignError(
            f"{name} returns a {type(out).__name__}{in_which}; it must return a tensor [num_nodes, "
            f"{out_channels}]"
        )
    if (
        list(out.shape) != [x.size(0) if num_rows is None else num_rows, out_channels]
        or not out.is_floating_point()
    ):
        raise ForeignError(
            f"{name} returns {out.dtype} of shape {list(out.shape)} for {x.size(0)} nodes{in_which}; it "
            f"must return floats of shape [{'num_nodes' if num_rows is None else num_rows}, "
            f"{out_channels}], a column for each class or task"
        )
    if out.device != x.device:
        raise ForeignError(
            f"{name} returns a tensor on {out.device}{in_which}; it must be on {x.device}, where x is"
        )
    if is_trained and not out.requires_grad:
        raise ForeignError(
            f"{name} returns a tensor without a gradient in training: its parameters cannot learn. "
            "Leave out detach() and no_grad()"
        )
    return out.float() if out.dtype == torch.float64 else out


def try_forward(
    model: torch.nn.Module,
    name: str,
    *,
    num_columns: int,
    out_channels: int,
    edge_dim: int | None,
    node_tables: Sequence[int] | None = None,
    edge_tables: Sequence[int] | None = None,
    num_categories: int = 0,
    num_relations: int = 0,
    ends: Sequence[tuple[int, int]] | None = None,
    num_rows: int | None = None,
    trains: bool = False,
) -> None:
    """Call a model on a tiny graph. The call also gives lazy parameters their shapes.

    Args:
        name: name of the model in messages.
        num_columns: number of columns of `x`.
        node_tables, edge_tables: number of categories in each column of nodes and of edges. None: they hold numbers.
        num_categories: number of the last columns of `x` that hold a one-hot category.
        num_relations: number of relations, of which the first column of the edge features holds one. 0: it does not.
        ends: of a typed graph, the type of the source and of the destination of each relation.
        num_rows: number of rows that it must return: one for a model that pools. None: one for each node.
        trains: call it in training too, backward included. That changes its gradients and its running statistics.

    Raises:
        ForeignError: the model fails, returns no finite floating point tensor [num_nodes, out_channels], or has no
            parameters.
    """
    if ends is None:
        x, edge_index, edge_attr = _tiny_inputs(
            num_columns, edge_dim, node_tables, edge_tables, num_categories, num_relations
        )
    else:
        x, edge_index, edge_attr = tiny_typed_graph(
            ends, num_categories, num_columns, edge_dim or 1
        )
    was_training = model.training

    def call() -> Tensor:
        with naming_failures(name, x, edge_index, edge_attr):
            out = model(x, edge_index, edge_attr)
        out = check_output(out, name, x, out_channels, is_trained=model.training, num_rows=num_rows)
        if not out.isfinite().all():
            raise ForeignError(
                f"{name} returns {float(out[~out.isfinite()][0])} for x in [0, 1]"
                f"{' in training' if model.training else ''}; it must return finite numbers"
            )
        return out

    try:
        model.eval()
        with torch.no_grad():
            call()
        if not any(p.requires_grad for p in model.parameters()):
            raise ForeignError(f"{name} has no parameters: there is nothing to train")
        if trains:
            model.train()
            with naming_failures(name, x, edge_index, edge_attr):
                call().sum().backward()
    finally:
        model.train(was_training)


def _tiny_inputs(
    num_columns: int,
    edge_dim: int | None,
    node_tables: Sequence[int] | None,
    edge_tables: Sequence[int] | None,
    num_categories: int,
    num_relations: int,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Make the arguments of a forward on a tiny graph; see :func:`try_forward`."""
    edge_index, edge_attr = tiny_graph(edge_dim)
    rng = torch.Generator().manual_seed(1)
    x = (
        torch.rand(NUM_NODES, num_columns, generator=rng)
        if node_tables is None
        else _draw(NUM_NODES, node_tables, rng)
    )
    if num_categories:
        drawn = torch.randint(num_categories, (NUM_NODES,), generator=rng)
        x[:, num_columns - num_categories :] = torch.nn.functional.one_hot(drawn, num_categories)
    edge_attr = edge_attr if edge_tables is None else _draw(NUM_EDGES, edge_tables, rng)
    if edge_attr is not None and num_relations:
        edge_attr[:, :1] = _draw(NUM_EDGES, [num_relations], rng)
    return x, edge_index, edge_attr


def _draw(num_rows: int, sizes: Sequence[int], rng: torch.Generator) -> Tensor:
    return torch.stack([torch.randint(int(size), (num_rows,), generator=rng) for size in sizes], 1)
