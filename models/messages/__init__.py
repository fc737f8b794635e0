"""Message passing with DGL's built-in functions: messages of edges, their reduction at the destinations, softmax.

Each operator is a plain function of tensors. `edge_index` is [2, num_edges] of int32 or int64 or an ``EdgeIndex``.
Sorted edges are kept and used again as :func:`models.structure.find_structure` says.
"""

from torch import Tensor

from parallel_epochs.models.kernels.choose import KERNELS
from parallel_epochs.models.messages import fused, reference
from parallel_epochs.models.messages.inputs import (
    MESSAGES,
    REDUCTIONS,
    Call,
    check_reduction,
    read_call,
)

__all__ = ["KERNELS", "MESSAGES", "REDUCTIONS", "apply_edges", "edge_softmax", "update_all"]


def update_all(
    edge_index: Tensor,
    message: str,
    reduce: str,
    *,
    u: Tensor | None = None,
    v: Tensor | None = None,
    e: Tensor | None = None,
    num_src: int | None = None,
    num_dst: int | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Compute a message on every edge and reduce the messages at every destination.

    It is DGL's ``update_all(fn.message(...), fn.reduce(...))``.

    Args:
        edge_index: source and destination of each edge, see above.
        message: "copy_u", "copy_e" or "a_op_b", where a and b are two of u (source), v (destination) and e (edge), and
            op is add, sub, mul, div or dot, such as "u_mul_e".
        reduce: "sum", "mean", "max", "min" or "prod". Ties of max and min divide the gradient evenly.
        u: values of the source nodes [num_src, *trailing], floating point.
        v: values of the destination nodes [num_dst, *trailing].
        e: values of the edges [num_edges, *trailing], in the order of `edge_index`. Trailing dimensions broadcast as in
            torch, aligned to the right. ``dot`` sums the products over the last dimension and keeps it as 1.
        num_src: number of source nodes. None: the rows of `u`, or what `edge_index` knows.
        num_dst: number of destination nodes. None: the rows of `v`, or what `edge_index` knows, or `num_src`.
        kernel: "fused" for the kernels, in C++ on a CPU and in Triton on a GPU, which compute in float32; "reference"
            for plain torch, which builds the message of every edge; "auto" for the kernels where they can run. They
            cast 16-bit values of nodes to float32, and read those of edges as they are.

    Returns:
        [num_dst, *trailing], in the operands' common dtype; sums are in float32 at least. A destination without edges
        gets 0, or 1 for prod.

    Raises:
        ValueError: an unknown `message`, `reduce` or `kernel`, a missing or superfluous operand, wrong rows, shapes
            that do not broadcast, or ``dot`` of different widths.
        IndexError: an edge has an end that is not in the graph.
    """
    check_reduction(reduce)
    call = read_call(edge_index, message, u=u, v=v, e=e, num_src=num_src, num_dst=num_dst)
    if call.num_dst is None:
        if call.num_src is None:
            raise ValueError(
                f"message={message} does not tell how many destination nodes there are: pass num_dst"
            )
        call = call._replace(num_dst=call.num_src)
    return (reference if _why_reference(call, kernel, "update_all", reduce) else fused).update_all(
        call, reduce
    )


def apply_edges(
    edge_index: Tensor,
    message: str,
    *,
    u: Tensor | None = None,
    v: Tensor | None = None,
    e: Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Compute a message on every edge. It is DGL's ``apply_edges(fn.message(...))``.

    Args:
        edge_index: source and destination of each edge, see above.
        message: as for :func:`update_all`, like `u`, `v`, `e` and `kernel`.

    Returns:
        [num_edges, *trailing], in the order of `edge_index` and the operands' common dtype.

    Raises:
        ValueError, IndexError: as :func:`update_all`.
    """
    call = read_call(edge_index, message, u=u, v=v, e=e)
    return (reference if _why_reference(call, kernel, "apply_edges") else fused).apply_edges(call)


def edge_softmax(
    edge_index: Tensor,
    scores: Tensor,
    num_dst: int | None = None,
    *,
    kernel: str = "auto",
) -> Tensor:
    """Compute the softmax of scores over the incoming edges of each destination. It is DGL's ``edge_softmax``.

    Args:
        edge_index: source and destination of each edge, see above.
        scores: [num_edges, *heads], floating point, in the order of `edge_index`.
        num_dst: number of destination nodes. None: what `edge_index` knows.
        kernel: as for :func:`update_all`.

    Returns:
        [num_edges, *heads], with the dtype of `scores`.

    Raises:
        ValueError, IndexError: as :func:`update_all`.
    """
    call = read_call(edge_index, "copy_e", e=scores, num_dst=num_dst)
    if call.num_dst is None:
        raise ValueError(
            "edge_index does not tell how many destination nodes there are: pass num_dst"
        )
    return (reference if _why_reference(call, kernel, "edge_softmax") else fused).edge_softmax(call)


def _why_reference(call: Call, kernel: str, function: str, reduce: str = "") -> str:
    """Return the reason why the reference runs, or an empty text if the kernel runs."""
    return fused.KERNEL.why_reference(
        kernel, call.edge_index.device.type, lambda: fused.why_not_fused(call, function, reduce)
    )
