"""The fused aggregation as torch custom operators: forward, backward and the sort of a plain edge list.

Their CPU implementations call the compiled kernels; gpu.py adds those for CUDA, with the same results' shapes, dtypes
and derivatives.
"""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from models.native import NativeLibrary

LIBRARY = NativeLibrary(
    "fused aggregation", Path(__file__).with_name("fused_cpu.cpp"),
    ("forward.h", "backward.h", "norm.h", "problem.h", "kinds.h", "encode.h", "tiles.h", "simd.h"),
    otherwise="the reference aggregation runs instead")

# What the kernels compute themselves; mean and the degree-scaled ones are made of these.
KINDS = ("softmax", "softmax_sg", "power", "add", "max")
_NUM_STATS = {"softmax": 1, "softmax_sg": 1, "power": 2, "add": 0, "max": 1}


def simd() -> str:
    """Width of the compiled kernels: "avx512", "avx2" or "portable"."""
    function = LIBRARY.get().fused_simd
    function.restype = ctypes.c_char_p
    return function().decode()


class Problem(ctypes.Structure):
    """Arguments of one call, field by field as in problem.h."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in (
            "num_rows", "num_others", "num_edges", "num_positions", "channels", "edge_dim",
            "aggregation", "features", "num_threads", "ptr_wide", "other_wide", "position_wide")]
        + [(name, ctypes.c_void_p) for name in ("ptr", "other", "position", "x", "attr", "weight", "bias")]
        + [(name, ctypes.c_float) for name in ("param", "eps", "low", "high")]
        + [(name, ctypes.c_void_p) for name in (
            "out", "stat", "stat2", "gradient", "grad_x", "grad_attr", "grad_weight", "grad_bias", "grad_param")]
    )


def _call(function, num_others, x, ptr, other, position, attr, weight, bias, param, aggr, eps, low, high, **arrays):
    tensors = dict(ptr=ptr, other=other, position=position, x=x, attr=attr, weight=weight, bias=bias, **arrays)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    problem = Problem(
        num_rows=ptr.numel() - 1, num_others=num_others, num_edges=other.numel(),
        num_positions=other.numel() if attr is None else attr.size(0), channels=x.size(1),
        edge_dim=0 if attr is None else attr.size(1), aggregation=KINDS.index(aggr),
        features=0 if attr is None else 1 if weight is not None else 2, num_threads=torch.get_num_threads(),
        ptr_wide=ptr.dtype == torch.int64, other_wide=other.dtype == torch.int64,
        position_wide=position is not None and position.dtype == torch.int64,
        param=float(param), eps=eps, low=low, high=high,
        **{name: tensor.data_ptr() for name, tensor in tensors.items()})
    status = function(ctypes.byref(problem))
    if status == 2:
        raise MemoryError(f"no memory for {problem.num_rows} and {num_others} nodes of {problem.channels} channels")
    if status:
        raise IndexError(f"an edge points outside of the graph: {problem.num_rows} and {num_others} nodes, "
                         f"{problem.num_edges} edges, {problem.num_positions} rows of edge features")


@torch.library.custom_op("deepgcn::aggregate", mutates_args=(), device_types="cpu")
def forward(
    x: Tensor, indptr: Tensor, src: Tensor, position: Tensor | None,
    rowptr: Tensor | None, dst: Tensor | None, position_by_src: Tensor | None,
    attr: Tensor | None, weight: Tensor | None, bias: Tensor | None, param: Tensor, aggr: str, eps: float,
    low: float, high: float, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Aggregate messages by destination.

    Args:
        x: [num_src, channels], float32 (on CUDA also 16 bits, as attr).
        indptr, src, position: edges sorted by destination: where each destination's begin [num_dst + 1], their
            sources and their rows in `attr` [num_edges], int32 or int64; no `position` means that order itself.
        rowptr, dst, position_by_src: the same edges sorted by source, only read by backward.
        attr, weight, bias: as in :func:`models.aggregate.aggregate`, float32.
        param: t or p, one element.
        low, high: what power clamps messages to; the others do not read them.
        save: whether backward will follow.

    Returns:
        out [num_dst, channels], and what backward needs beside it, or tensors without elements: log2 of the sum of
        exponentials (softmax) or powers (power, with the derivative by p), number of ties (max).
    """
    out, *stats = outputs(x, indptr, aggr, save)
    given = {name: stat for name, stat in zip(("stat", "stat2"), stats) if stat.numel()}
    _call(LIBRARY.get().fused_forward, x.size(0), x, indptr, src, position, attr, weight, bias, param, aggr, eps,
          low, high, out=out, **given)
    return out, *stats


def outputs(x, indptr, aggr, save):
    shape = (indptr.size(0) - 1, x.size(1))
    num_stats = _NUM_STATS[aggr] if save else 0
    shapes = (shape, *(shape if i < num_stats else (0,) for i in range(2)))
    return tuple(x.new_empty(shape, dtype=torch.float32) for shape in shapes)


@forward.register_fake
def _(x, indptr, src, position, rowptr, dst, position_by_src, attr, weight, bias, param, aggr, eps, low, high, save):
    return outputs(x, indptr, aggr, save)


@torch.library.custom_op("deepgcn::aggregate_backward", mutates_args=(), device_types="cpu")
def backward(
    grad: Tensor, out: Tensor | None, stat: Tensor, stat2: Tensor, x: Tensor,
    rowptr: Tensor, dst: Tensor, position: Tensor | None,
    attr: Tensor | None, weight: Tensor | None, bias: Tensor | None, param: Tensor, aggr: str, eps: float,
    low: float, high: float, need_attr: bool, need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of :func:`forward` for x, attr, weight, bias and param; without elements where there is none."""
    grads = gradients(x, attr, weight, param, need_attr, need_weight)
    names = ("grad_x", "grad_attr", "grad_weight", "grad_bias", "grad_param")
    given = {name: tensor for name, tensor in zip(names, grads) if tensor.numel()}
    given |= {name: stat for name, stat in zip(("out", "stat", "stat2"), (out, stat, stat2))
              if stat is not None and stat.numel()}
    _call(LIBRARY.get().fused_backward, grad.size(0), x, rowptr, dst, position, attr, weight, bias, param, aggr, eps,
          low, high, gradient=grad, **given)
    return tuple(grads)


def gradients(x, attr, weight, param, need_attr, need_weight):
    nothing = x.new_empty((0,))
    return [
        x.new_empty(x.shape),
        attr.new_empty(attr.shape) if need_attr else nothing,
        weight.new_empty(weight.shape) if need_weight else nothing.clone(),
        weight.new_empty((weight.size(0),)) if need_weight else nothing.clone(),
        x.new_empty(param.shape, dtype=torch.float32),
    ]


@backward.register_fake
def _(grad, out, stat, stat2, x, rowptr, dst, position, attr, weight, bias, param, aggr, eps, low, high, need_attr,
      need_weight):
    return tuple(gradients(x, attr, weight, param, need_attr, need_weight))


def _setup_context(ctx, inputs, output):
    x, _, _, _, rowptr, dst, position, attr, weight, bias, param, ctx.aggr, *ctx.numbers, save = inputs
    assert save and rowptr is not None, "backward needs the edges sorted by source and what forward saves for it"
    out, stat, stat2 = output
    ctx.mark_non_differentiable(stat, stat2)
    ctx.set_materialize_grads(False)
    kept = out if ctx.aggr in ("softmax", "power", "max") else None
    ctx.save_for_backward(kept, stat, stat2, x, rowptr, dst, position, attr, weight, bias, param)


def _backward(ctx, grad, _, __):
    if grad is None:
        return (None,) * 16
    needs = ctx.needs_input_grad
    need_attr, need_weight, need_bias, need_param = needs[7:11]
    grads = backward(grad, *ctx.saved_tensors, ctx.aggr, *ctx.numbers, need_attr, need_weight or need_bias)
    grad_x, grad_attr, grad_weight, grad_bias, grad_param = grads
    return (grad_x if needs[0] else None, None, None, None, None, None, None,
            grad_attr if need_attr else None, grad_weight if need_weight else None, grad_bias if need_bias else None,
            grad_param if need_param and ctx.aggr != "softmax_sg" else None, *(None,) * 5)


forward.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op("deepgcn::sort_edges", mutates_args=(), device_types="cpu")
def sort_edges(edge_index: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    """Sort edges by destination and by source.

    Args:
        edge_index: [2, num_edges], int32 or int64.

    Returns:
        indptr, src, position, rowptr, dst, position_by_src as :func:`forward` takes them, in `edge_index`'s dtype.

    Raises:
        IndexError: a node of `edge_index` is out of range.
    """
    edge_index = edge_index.contiguous()
    tensors = _sorted_edges(edge_index, num_src, num_dst)
    for key, num_keys, arrays in ((1, num_dst, tensors[:3]), (0, num_src, tensors[3:])):
        broken = LIBRARY.get().fused_sort(
            *(ctypes.c_void_p(edge_index[i].data_ptr()) for i in (key, 1 - key)), ctypes.c_int64(edge_index.size(1)),
            ctypes.c_int64(num_keys), ctypes.c_int(edge_index.dtype == torch.int64),
            *(ctypes.c_void_p(array.data_ptr()) for array in arrays))
        if broken:
            raise IndexError(f"edge_index[{key}] has values from {int(edge_index[key].min())} to "
                             f"{int(edge_index[key].max())}, but there are {num_keys} such nodes")
    return tensors


def _sorted_edges(edge_index, num_src, num_dst):
    num_edges = edge_index.size(1)
    sizes = (num_dst + 1, num_edges, num_edges, num_src + 1, num_edges, num_edges)
    return [edge_index.new_empty((size,)) for size in sizes]


@sort_edges.register_fake
def _(edge_index, num_src, num_dst):
    return _sorted_edges(edge_index, num_src, num_dst)
