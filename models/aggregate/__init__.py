"""The aggregation of GENConv: messages, their weights and their sum in one call."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.aggregate import cpu, fused, reference
from parallel_epochs.models.aggregate.cpu import SteepError
from parallel_epochs.models.aggregate.reference import AGGREGATIONS, replace_power_of_one
from parallel_epochs.models.aggregate.relation_table import count_exactly
from parallel_epochs.models.edge_index import check_edges
from parallel_epochs.models.kernels.choose import KERNELS, Fused

__all__ = ["AGGREGATIONS", "KERNELS", "aggregate", "backend", "check_rows"]

KERNEL = Fused("aggregation", cpu, "gpu")


def aggregate(
    x: Float[Tensor, "num_src channels"],
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_columns"] | None = None,
    weight: Float[Tensor, "channels edge_dim"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    *,
    aggr: str = "softmax",
    t: float | Tensor = 1.0,
    p: float | Tensor = 1.0,
    eps: float = 1e-7,
    num_dst: int | None = None,
    table: Float[Tensor, "num_relations channels"] | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "num_dst channels"]:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    The arguments and the result are those of :func:`models.aggregate.reference.aggregate`. An ``EdgeIndex`` that is
    sorted by row or column is used as it is. A plain `edge_index` is sorted on its first use. The sorted edges are kept
    until that tensor is freed or its values change. A checksum detects changes through ``.data`` or a NumPy array that
    shares its memory, too.

    Args:
        kernel: "fused" for the fused kernel (C++ on a CPU, Triton on a GPU; it has no tensor of edges x channels and
            computes in float32), "reference" for plain torch, or "auto" for the fused kernel where it can run and the
            reference elsewhere. If t times a message is so large that the fused kernel would round too much, the
            reference runs and a warning says so.

    Raises:
        ValueError: `aggr` or `kernel` is unknown, shapes do not match, or `kernel` is "fused" but the fused kernel
            cannot run.
        IndexError: an edge has an end that is not in the graph, or a relation that is not in the table.
    """
    reference.check_aggr(aggr)
    check_tensors(x, edge_index, edge_attr, weight, bias, table)
    options: dict[str, Any] = dict(aggr=aggr, t=t, p=p, eps=eps, num_dst=num_dst, table=table)
    why = dict(aggr=replace_power_of_one(aggr, p), scalars=(t, p), eps=eps)
    if not _why_reference(x, edge_index, edge_attr, weight, bias, table, kernel, **why):
        try:
            return fused.aggregate(x, edge_index, edge_attr, weight, bias, **options)
        except SteepError as error:
            notice.warn(
                f"aggr={aggr}, {error}: the reference aggregation runs for these messages",
                once=f"steep {aggr}",
            )
    return reference.aggregate(x, edge_index, edge_attr, weight, bias, **options)


def check_tensors(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    table: Tensor | None = None,
) -> None:
    """Raise a ValueError if shapes, dtypes or devices of the tensors do not match; it names both."""
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(
            f"x is {x.dtype} of shape {tuple(x.shape)}, but must be floating point [num_nodes, channels]"
        )
    check_edges(edge_index)
    for tensor in (edge_index, edge_attr, weight, bias, table):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(
                f"tensors are on '{x.device}' and '{tensor.device}': move them to one device"
            )
    channels = x.size(1)
    if table is not None:
        _check_table(table, edge_attr, channels)
    if edge_attr is None:
        return
    if weight is not None and (weight.dim() != 2 or weight.size(0) != channels):
        raise ValueError(f"weight has shape {tuple(weight.shape)}, but x has {channels} channels")
    if weight is not None and bias is not None and bias.shape != (channels,):
        raise ValueError(f"bias has shape {tuple(bias.shape)}, but x has {channels} channels")
    columns = weight.size(1) if weight is not None else channels if table is None else 0
    columns += table is not None
    if edge_attr.dim() != 2 or edge_attr.size(1) != columns:
        raise ValueError(
            f"edge_attr has shape {tuple(edge_attr.shape)}, but must be [num_edges, {columns}]"
        )
    check_rows(edge_index, edge_attr)


def _check_table(table: Tensor, edge_attr: Tensor | None, channels: int) -> None:
    if table.dim() != 2 or table.size(1) != channels or not table.size(0):
        raise ValueError(
            f"table has shape {tuple(table.shape)}, but must be [num_relations, {channels}], with a row "
            "for each relation"
        )
    if edge_attr is None:
        raise ValueError(
            f"a table of {table.size(0)} relations needs edge_attr, whose column 0 holds the relation of "
            "each edge; there is no edge_attr"
        )
    if not edge_attr.is_floating_point() or table.size(0) - 1 > count_exactly(edge_attr.dtype):
        raise ValueError(
            f"edge_attr is {edge_attr.dtype}, which cannot hold the numbers of {table.size(0):,} "
            "relations: make it float32"
        )


def check_rows(edge_index: Tensor, edge_attr: Tensor) -> None:
    """Raise a ValueError unless there are as many rows of edge features as edges [2, num_edges]."""
    if edge_attr.size(0) != edge_index.size(-1):
        raise ValueError(
            f"edge_attr has {edge_attr.size(0)} rows, but edge_index has {edge_index.size(-1)} edges"
        )


def backend(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-7,
    kernel: str = "auto",
) -> str:
    """Name the implementation that :func:`aggregate` chooses for these arguments, as "fused-cpu (avx512)"."""
    reason = _why_reference(x, edge_index, edge_attr, weight, bias, None, kernel, eps=eps)
    return KERNEL.describe(reason, x.device.type)


def _why_reference(x, edge_index, edge_attr, weight, bias, table, kernel, **options) -> str:
    """Return the reason why the reference runs, or an empty text if the fused kernel runs."""
    return KERNEL.why_reference(
        kernel,
        x.device.type,
        lambda: fused.why_not_fused(x, edge_index, edge_attr, weight, bias, table, **options),
    )
