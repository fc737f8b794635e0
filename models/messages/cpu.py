"""Calls of the compiled C++ operators. The operators in ops.py document what each function computes."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.messages.inputs import Message
from parallel_epochs.models.messages.operations import KERNELS

# In the order of problem.h.
PLACES = ("nowhere", "row", "other", "edge")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("sum", "max", "min", "prod", "none")


_HERE = Path(__file__).parent
Operand = read_structure(_HERE / "problem.h", "Operand")
MessageProblem = read_structure(_HERE / "problem.h", "MessageProblem", types={"Operand": Operand})
LIBRARY = NativeLibrary(
    "fused messages", _HERE / "messages_cpu.cpp", otherwise="the reference runs instead"
)


def check_status(status: int, problem: ctypes.Structure) -> None:
    """Raise the error that the status of a call names.

    Raises:
        MemoryError: there was not enough memory.
        IndexError: an edge has an end that is not in the graph.
    """
    rows, others = f"{problem.num_rows:,}", f"{problem.num_others:,}"
    if status == 2:
        raise MemoryError(
            f"messages from {others} to {rows} nodes with {problem.channels:,} channels do not fit into "
            "memory"
        )
    if status:
        raise IndexError(
            f"an edge has an end that is not in the graph, which has {others} and {rows} nodes and "
            f"{problem.num_edges:,} edges"
        )


class EdgeWalk:
    """A pass over edges that are sorted by row, or over edges in any order.

    Args:
        names: of the operands whose rows are those of the walk's rows and of the nodes at the other ends.
        sizes: numbers of these nodes.
        order: first edge of each row [num_rows + 1] or none; node at the other end of each edge [num_edges]; and row of
            each edge in arrays of edges [num_edges], or none if they are in order. Without the first tensor, the last
            one has the node of each edge's row.
        message: what is computed on each edge; ``dot`` is a product here, and ``exp`` that of a difference.
        operands: those of the message by name, of any dtype in `DTYPES`; "g" is a second operand of the edges.
        shape: of the full message of an edge, before ``dot`` sums its last dimension.
    """

    def __init__(
        self,
        names: tuple[str, str],
        sizes: tuple[int, int],
        order: tuple,
        message: Message,
        operands: dict[str, Tensor],
        shape: torch.Size,
    ):
        self._places = {names[0]: "row", names[1]: "other", "e": "edge", "g": "edge"}
        self._shape = shape
        self._kept: list[Tensor] = []  # whose addresses the problem has
        operation = "mul" if message.operation == "dot" else message.operation
        self._problem = fill(
            MessageProblem,
            dict(zip(("ptr", "other", "position"), order, strict=True)),
            num_rows=sizes[0],
            num_others=sizes[1],
            num_edges=order[1].numel(),
            channels=shape.numel(),
            operation=KERNELS.index(operation),
        )
        for field, name in zip(("left", "right"), message.names):
            setattr(self._problem, field, self._operand(operands[name], name))

    def forward(
        self,
        reduce: str,
        *,
        out: Tensor | None = None,
        stat: Tensor | None = None,
        stat2: Tensor | None = None,
        edge_out: Tensor | None = None,
        second: Tensor | None = None,
    ) -> None:
        """Write the results of the rows and what backward needs of them, or the messages of the edges.

        `second` has a row for each destination. It is a factor of ``exp``, and what a product subtracts from its right
        operand.
        """
        self._problem.reduction = REDUCTIONS.index(reduce)
        for name, tensor in (("out", out), ("stat", stat), ("stat2", stat2)):
            if tensor is not None and tensor.numel():
                setattr(self._problem, name, self._keep(tensor))
        if edge_out is not None:
            self._problem.edge_out = self._operand(edge_out, "e")
        if second is not None:
            self._problem.second = self._operand(second, "v")
        self._run()

    def backward(
        self,
        reduce: str,
        gradient: Tensor,
        second: Tensor | None,
        *,
        of: str,
        row_side: int = 0,
        out: Tensor | None = None,
        edge_side: int = 0,
        edge_out: Tensor | None = None,
    ) -> None:
        """Write the gradient of the operand of the rows, summed over their edges, and that of the edges.

        Args:
            gradient: gradient of the results of rows or of the messages of edges, see `of`.
            second: for max and min the results, for prod the gradient of a message of 0.
            of: name whose rows `gradient` and `second` have: "u", "v" or "e".
            row_side: whether the operand of the rows is the left (1) or the right one (2).
            out: its gradient [num_rows, *shape].
            edge_side: the same of the edges.
            edge_out: their gradient, [num_edges, ...] of a shape that broadcasts.
        """
        self._problem.backward, self._problem.reduction = 1, REDUCTIONS.index(reduce)
        self._problem.gradient = self._operand(gradient, of)
        if second is not None:
            self._problem.second = self._operand(second, of)
        self._problem.row_side, self._problem.edge_side = row_side, edge_side
        if out is not None:
            self._problem.out = self._keep(out)
        if edge_out is not None:
            self._problem.edge_out = self._operand(edge_out, "e")
        self._run()

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _operand(self, tensor: Tensor, name: str) -> ctypes.Structure:
        trailing = tensor.shape[1:]
        columns = (
            torch.arange(trailing.numel(), dtype=torch.int32).view(trailing).expand(self._shape)
        )
        return Operand(
            data=self._keep(tensor),
            map=None if trailing.numel() == self._shape.numel() else self._keep(columns),
            width=trailing.numel(),
            place=PLACES.index(self._places[name]),
            dtype=DTYPES.index(tensor.dtype),
        )

    def _run(self) -> None:
        if self._problem.channels == 0:
            return
        status = LIBRARY.get().messages_run(ctypes.byref(self._problem))
        check_status(status, self._problem)
