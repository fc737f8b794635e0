"""Describes the inputs of the operators of messages: the message, its operands, and the numbers of nodes."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import check_edges
from parallel_epochs.models.messages.operations import OPERATIONS

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
# Operands by name, and what each of their rows belongs to.
ROWS = {"u": "source node", "v": "destination node", "e": "edge"}


class Message(NamedTuple):
    """A built-in message of DGL: `left` alone ("copy"), or `left` and `right` combined."""

    left: str
    operation: str
    right: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that it reads."""
        return (self.left, self.right) if self.right else (self.left,)


MESSAGES = {"copy_u": Message("u", "copy"), "copy_e": Message("e", "copy")} | {
    f"{left}_{operation}_{right}": Message(left, operation, right)
    for operation in OPERATIONS
    for left, right in itertools.permutations("uve", 2)
}


class Call(NamedTuple):
    """A checked call of an operator.

    Attributes:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
        name: what is computed on each edge, one of `MESSAGES`.
        operands: those that the message reads, by name; each is [num_rows, *trailing].
        num_src: number of source nodes. None: neither the operands nor the edges tell.
        num_dst: number of destination nodes. None: as above.
        trailing: shape of the message of one edge.
        dtype: of the result.
    """

    edge_index: Tensor
    name: str
    operands: dict[str, Tensor]
    num_src: int | None
    num_dst: int | None
    trailing: torch.Size
    dtype: torch.dtype

    @property
    def message(self) -> Message:
        """A message: the computation on each edge."""
        return MESSAGES[self.name]

    def get(self, name: str) -> Tensor | None:
        """Return an operand, or none if the message does not read it."""
        return self.operands.get(name)


def read_call(
    edge_index, message: str, *, u=None, v=None, e=None, num_src=None, num_dst=None
) -> Call:
    """Check the arguments of an operator.

    Raises:
        ValueError: `message` is unknown, an operand is missing or has wrong rows, dtype or device, the operands' shapes
            do not broadcast, or ``dot`` has operands of different widths.
    """
    if message not in MESSAGES:
        raise ValueError(
            f"message={message} is unknown; choose copy_u, copy_e or a_op_b of two different a, b of u, v "
            f"and e and an op of {', '.join(OPERATIONS)}, such as u_mul_e"
        )
    parsed = MESSAGES[message]
    check_edges(edge_index)
    sizes = edge_index.sparse_size() if isinstance(edge_index, EdgeIndex) else (None, None)
    operands = {}
    for name, operand in (("u", u), ("v", v), ("e", e)):
        if name in parsed.names:
            operands[name] = _check_operand(name, operand, message, edge_index)
        elif operand is not None:
            raise ValueError(
                f"message={message} does not read {name}: leave it out, or name it in the message"
            )
    num_src = _count("num_src", num_src, operands.get("u"), sizes[0])
    num_dst = _count("num_dst", num_dst, operands.get("v"), sizes[1])
    for name, rows in (("u", num_src), ("v", num_dst), ("e", edge_index.size(1))):
        if name in operands and operands[name].size(0) != rows:
            raise ValueError(
                f"{name} has {operands[name].size(0)} rows, but there are {rows} {ROWS[name]}s"
            )
    dtype, *others = (operand.dtype for operand in operands.values())
    for other in others:
        dtype = torch.promote_types(dtype, other)
    return Call(
        edge_index,
        message,
        operands,
        num_src,
        num_dst,
        _broadcast(message, parsed, operands),
        dtype,
    )


def check_reduction(reduce: str) -> None:
    """Raise a ValueError that lists the reductions if `reduce` is not one of them."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce} is unknown; choose one of {', '.join(REDUCTIONS)}")


def align(operand: Tensor, num_dims: int) -> Tensor:
    """Give the rows of an operand [num_rows, *trailing] `num_dims` dimensions, as broadcasting does: 1s in front."""
    trailing = operand.shape[1:]
    return operand.reshape(operand.size(0), *(1,) * (num_dims - len(trailing)), *trailing)


def _check_operand(name: str, operand: Tensor | None, message: str, edge_index: Tensor) -> Tensor:
    if operand is None:
        raise ValueError(
            f"message={message} reads {name}, which is missing: pass {name}=, one row for each "
            f"{ROWS[name]}"
        )
    if operand.dim() == 0 or not operand.is_floating_point():
        raise ValueError(
            f"{name} is {operand.dtype} of shape {tuple(operand.shape)}, but must be floating point with "
            f"one row for each {ROWS[name]}"
        )
    if operand.device != edge_index.device:
        raise ValueError(
            f"tensors are on '{operand.device}' and '{edge_index.device}': move them to one device"
        )
    return operand


def _count(name: str, given: int | None, operand: Tensor | None, known: int | None) -> int | None:
    count = given if given is not None else known if operand is None else operand.size(0)
    if count is not None and count < 0:
        raise ValueError(
            f"{name}={count} is not a number of nodes: pass a whole number of at least 0"
        )
    return count


def _broadcast(text: str, message: Message, operands: dict[str, Tensor]) -> torch.Size:
    shapes = [operands[name].shape[1:] for name in message.names]
    shown = " and ".join(f"{name} {tuple(operands[name].shape)}" for name in message.names)
    if message.operation == "dot" and (not all(shapes) or shapes[0][-1] != shapes[1][-1]):
        raise ValueError(
            f"{text} sums the products over the last dimension, but the widths differ: {shown}"
        )
    try:
        trailing = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            f"the rows of {shown} do not broadcast; trailing dimensions are aligned to the right, as in "
            f"[num_src, heads, channels] and [num_edges, heads, 1]"
        ) from None
    return torch.Size((*trailing[:-1], 1)) if message.operation == "dot" else trailing
