"""GENConv's aggregation: messages, weights and sum in one call."""
# ruff: noqa: F722 (shapes are strings)

import functools
import logging
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from . import fused, reference
from .reference import AGGREGATIONS

__all__ = ["AGGREGATIONS", "KERNELS", "aggregate", "backend"]

KERNELS = ("auto", "fused", "reference")
log = logging.getLogger(__name__)


def aggregate(
    x: Float[Tensor, "num_src channels"],
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    weight: Float[Tensor, "channels edge_dim"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    *,
    aggr: str = "softmax",
    t: float | Tensor = 1.0,
    p: float | Tensor = 1.0,
    y: float | Tensor = 0.0,
    eps: float = 1e-7,
    num_dst: int | None = None,
    kernel: str = "auto",
) -> Float[Tensor, "num_dst channels"]:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    The arguments and the result are those of :func:`models.aggregate.reference.aggregate`. An ``EdgeIndex`` sorted by
    row or column is used as it is. A plain `edge_index` is sorted on its first use; the sorted edges are kept until
    that tensor is changed or freed.

    Args:
        kernel: "fused" (no tensor of edges x channels, float32 inside; C++ on a CPU, Triton on a GPU), "reference"
            (plain torch), or "auto": fused where it can run, else the reference.

    Raises:
        ValueError: unknown `aggr` or `kernel`, or `kernel` is "fused" and the fused kernel cannot run.
        IndexError: an edge points outside of the graph.
    """
    reference.check_aggr(aggr)
    options: dict[str, Any] = dict(aggr=aggr, t=t, p=p, y=y, eps=eps, num_dst=num_dst)
    if _why_reference(x, edge_index, edge_attr, weight, bias, (t, p, y), eps, kernel):
        return reference.aggregate(x, edge_index, edge_attr, weight, bias, **options)
    return fused.aggregate(x, edge_index, edge_attr, weight, bias, **options)


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
    """Name what :func:`aggregate` runs on these arguments: "fused-cpu (avx512)", "reference (why)"."""
    reason = _why_reference(x, edge_index, edge_attr, weight, bias, (), eps, kernel)
    return _describe(reason, x.device.type)


def _why_reference(x, edge_index, edge_attr, weight, bias, scalars, eps, kernel) -> str:
    """Say why the reference runs; empty if the fused kernel does."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel} is unknown; choose one of {', '.join(KERNELS)}")
    if kernel == "reference":
        return "asked for"
    reason = fused.why_not_fused(x, edge_index, edge_attr, weight, bias, scalars=scalars, eps=eps)
    if reason and kernel == "fused":
        raise ValueError(f"kernel=fused cannot run: {reason}. Use kernel=auto to fall back to the reference.")
    if not torch.compiler.is_compiling():
        _announce(reason, x.device.type)
    return reason


def _describe(reason: str, device: str) -> str:
    return f"reference ({reason})" if reason else fused.name_kernel(device)


@functools.cache
def _announce(reason: str, device: str) -> None:
    log.info("aggregation: %s", _describe(reason, device))
