"""GENConv's aggregation: messages, weights and sum in one call."""

import functools
import logging

import torch
from torch import Tensor

from models.aggregate import fused, reference
from models.aggregate.reference import AGGREGATIONS

__all__ = ["AGGREGATIONS", "KERNELS", "aggregate", "backend"]

KERNELS = ("auto", "fused", "reference")
log = logging.getLogger(__name__)


def aggregate(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    aggr: str = "softmax",
    t: float | Tensor = 1.0,
    p: float | Tensor = 1.0,
    y: float | Tensor = 0.0,
    eps: float = 1e-7,
    num_dst: int | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    The arguments and the result are those of :func:`models.aggregate.reference.aggregate`. Edges given as an
    ``EdgeIndex`` sorted by row or column are used as they are; a plain `edge_index` is sorted on its first use and
    the result kept while that tensor lives and is not changed.

    Args:
        kernel: "fused" (no tensor of edges x channels, float32 inside; C++ on a CPU, Triton on a GPU), "reference"
            (plain torch), or "auto": fused where it can be.

    Raises:
        ValueError: unknown `aggr` or `kernel`, or the fused kernel was asked for and cannot run.
        IndexError: an edge points outside of the graph.
    """
    if aggr not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation '{aggr}'; choose one of {', '.join(AGGREGATIONS)}")
    options = dict(aggr=aggr, t=t, p=p, y=y, eps=eps, num_dst=num_dst)
    obstacle = _obstacle(x, edge_index, edge_attr, weight, bias, (t, p, y), eps, kernel)
    if obstacle:
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
    """What :func:`aggregate` runs on these arguments: "fused-cpu (avx512)", "reference (why)"."""
    obstacle = _obstacle(x, edge_index, edge_attr, weight, bias, (), eps, kernel)
    return _name(obstacle, x.device.type)


def _obstacle(x, edge_index, edge_attr, weight, bias, scalars, eps, kernel) -> str:
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel '{kernel}'; choose one of {', '.join(KERNELS)}")
    if kernel == "reference":
        return "asked for"
    obstacle = fused.obstacle(x, edge_index, edge_attr, weight, bias, scalars=scalars, eps=eps)
    if obstacle and kernel == "fused":
        raise ValueError(f"kernel='fused' cannot run: {obstacle}. Use kernel='auto' to fall back to the reference.")
    if not torch.compiler.is_compiling():
        _announce(obstacle, x.device.type)
    return obstacle


def _name(obstacle: str, device: str) -> str:
    return f"reference ({obstacle})" if obstacle else fused.name(device)


@functools.cache
def _announce(obstacle: str, device: str) -> None:
    log.info("aggregation: %s", _name(obstacle, device))
