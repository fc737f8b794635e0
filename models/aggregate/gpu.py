"""The Triton aggregation: the CUDA kernels of the operators in ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine, and so does every rounding.
Only :func:`sort_edges` waits for the device or copies from it, once for each edge list.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from parallel_epochs.models.aggregate import (
    gpu_backward,
    gpu_forward,
    ops,
)
from parallel_epochs.models.edge_index import INT32_END, check_range
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.kernels.operator import contiguous
from parallel_epochs.models.kernels.walk import Edges, record
from parallel_epochs.models.structure import Structure

# Largest number of chunks of rows and edges that a graph is cut into, and smallest size of a chunk.
MAX_CHUNKS, MIN_CHUNK = 8192, 256
# From this number of raw edge features on, tl.dot multiplies them; fewer are multiplied one by one.
DOT_FROM = 16
PACK_ROWS = 16
_GROUP = 128
# Larger exponents (t times a message, in powers of two) are refused: float32 would round gradients by more than 0.6 %.
STEEP = 2.0**17
_plans = WeakIdKeyDictionary()


def plan(order: tuple, num_others: int, attr: Tensor | int | None, block_e: int = 1) -> Edges:
    """Cut a graph into chunks on its device. The cuts are kept until the pointers are freed or changed.

    There is a cut near each multiple of `chunk_items`: at the multiple itself if its row has more than `chunk_items`
    edges, otherwise at the beginning of that row. So a chunk has fewer than 2 * `chunk_items` items, and short rows are
    never cut.

    Args:
        order: first edge of each row [num_rows + 1], node at the other end of each edge [num_edges], and row of the
            edge features of each edge [num_edges], or none: in order.
        num_others: number of nodes at the other ends.
        attr: edge features, or their number of rows. None: as many as edges.
        block_e: number of edges that are read at a time.
    """
    ptr, other, position = order
    num_positions = attr.size(0) if isinstance(attr, Tensor) else attr
    num_positions = other.numel() if num_positions is None else num_positions
    key = (ptr._version, other.numel(), num_others, num_positions, MIN_CHUNK)
    known = None if ptr.is_inference() else _plans.get(ptr)
    if known is None or known[0] != key:
        known = key, _plan(ptr, other, num_others, position, num_positions)
        if not ptr.is_inference():
            _plans[ptr] = known
    chunk_items, cuts, rows = known[1]
    is_wide = ptr.numel() - 1 + other.numel() + chunk_items >= 2**31
    return record(
        Edges,
        ptr=ptr,
        cuts=cuts,
        rows=rows,
        other=other,
        position=position,
        chunk_items=chunk_items,
        WIDE=tl.int64 if is_wide else tl.int32,
        BLOCK_E=block_e,
    )


def _plan(ptr, other, num_others, position, num_positions) -> tuple[int, Tensor, Tensor]:
    for index, limit in ((other, num_others), (position, num_positions)):
        if index is not None and index.numel():
            torch._assert_async(
                ((index >= 0) & (index < limit)).all(),
                f"an edge has an end or a row of features that does not exist: there are {limit}",
            )
    num_rows = ptr.numel() - 1
    if num_rows >= INT32_END:
        raise ValueError(
            f"the GPU kernel counts nodes in int32, which {num_rows:,} nodes exceed: set kernel=reference"
        )
    num_items = num_rows + other.numel()
    chunk_items = max(MIN_CHUNK, -(-num_items // MAX_CHUNKS))
    begins = ptr + torch.arange(num_rows + 1, device=ptr.device)
    # `other` may go on behind the last edge that `ptr` counts. The chunks there are empty.
    cuts = torch.arange(0, num_items, chunk_items, device=ptr.device).minimum(begins[-1])
    row = torch.searchsorted(begins[1:], cuts, right=True).clamp(max=num_rows - 1)
    cuts = torch.where(begins[row + 1] - begins[row] > chunk_items, cuts, begins[row])
    cuts = torch.cat([cuts, begins[-1:]])
    rows = torch.searchsorted(
        begins[1:], torch.stack([cuts[:-1], cuts[1:] - 1]), right=True, out_int32=True
    )
    return chunk_items, cuts, rows


def _choose_sizes(channels: int, weight: Tensor | None) -> dict[str, Any]:
    """Choose the block sizes of a pass."""
    edge_dim = 0 if weight is None else weight.size(1)
    dot = edge_dim >= DOT_FROM
    return dict(
        D=channels,
        K=edge_dim,
        DOT=dot,
        # Weights and their gradients lie in registers: 128 channels of 64 features would spill.
        BLOCK_D=min(64 if dot else 128, max(16, triton.next_power_of_2(channels))),
        BLOCK_K=triton.next_power_of_2(max(edge_dim, 1)),
    )


def _describe_messages(call: ops.AggregateCall) -> dict[str, Any]:
    """Return the fields of a record that are those of :data:`gpu_encode.MESSAGES`."""
    features = "none" if call.attr is None else "encoded" if call.weight is None else "raw"
    is_raw = features == "raw"
    return dict(
        x=call.x,
        attr=call.attr,
        weight=call.weight if is_raw else None,
        bias=call.bias if is_raw else None,
        parameter=call.param,
        eps=call.eps,
        KIND=call.aggr,
        FEATURES=features,
        **_choose_sizes(call.x.size(1), call.weight),
    )


def _choose_edges(messages: dict[str, Any], elements: int) -> tuple[int, int]:
    """Return how many edges a program reads at a time, so that a warp holds `elements` = edges x channels, and how many
    warps it has.
    """
    return (16, 4) if messages["DOT"] else (min(32, elements // messages["BLOCK_D"]), 1)


def launch(kernel, grid: tuple[int, int], *args, **options) -> None:
    """Run a kernel."""
    # `enable_fp_fusion` is given explicitly because Triton 3.9 warns that its default will change.
    kernel[grid](*args, enable_fp_fusion=True, **options)


def forward(call: ops.AggregateCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`models.aggregate.ops.forward`; x and attr in float32 or 16 bits, everything else in float32."""
    out, stat, stat2 = ops.allocate_outputs(call, save)
    if out.numel() == 0:
        return out, stat, stat2
    assert call.table is None, "edges with relations are encoded beforehand"
    call = contiguous(call)
    x, messages = call.x, _describe_messages(call)
    block_e, num_warps = _choose_edges(messages, 512)
    cut = plan(Structure(*call.edges).by_destination, x.size(0), call.attr, block_e)
    num_chunks, channels = cut.rows.size(1), x.size(1)
    grid = num_chunks, triton.cdiv(channels, messages["BLOCK_D"])
    given = record(
        gpu_forward.Forward,
        **messages,
        out=out,
        stat=stat,
        partial=_allocate(x, 2 * num_chunks, 3, channels),
        SAVE=save,
    )
    with torch.cuda.device_of(x):
        launch(gpu_forward.forward, grid, cut, given, num_warps=num_warps)
        launch(gpu_forward.merge_forward, grid, cut, given, num_warps=1)
    return out, stat, stat2


def backward(
    results: ops.AggregateResults, call: ops.AggregateCall, needed: ops.Needed
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`models.aggregate.ops.backward`."""
    grads = ops.allocate_gradients(call, needed)
    if call.x.numel() == 0 or results.grad.numel() == 0:
        return tuple(tensor.zero_() for tensor in grads)
    grad_x, grad_attr, grad_weight, grad_bias, _, grad_param = grads
    results, call = contiguous(results), contiguous(call)
    x, attr, aggr = call.x, call.attr, call.aggr
    need_attr, need_weight, _ = needed
    messages, order = _describe_messages(call), Structure(*call.edges).by_source
    block_e, num_warps = _choose_edges(messages, 256)
    cut = plan(order, results.grad.size(0), attr, block_e)
    channels, edge_dim = x.size(1), call.weight.size(1) if need_weight else 0
    num_chunks, block_d = cut.rows.size(1), messages["BLOCK_D"]

    with torch.cuda.device_of(x):
        pairs = _pack(results, aggr, block_d)

        # With raw features, each block of channels has its own part of the gradient.
        attr_parts = grad_attr
        if need_attr and call.weight is not None and channels > block_d:
            attr_parts = _allocate(x, triton.cdiv(channels, block_d), *attr.shape)
        if need_attr and attr.size(0) != order[1].numel():
            attr_parts.zero_()
        num_sums = (edge_dim + 1) * need_weight + (aggr == "softmax")
        partial = _allocate(x, 2 * num_chunks, channels)
        sums = _allocate(x, num_chunks, num_sums * channels)
        given = record(
            gpu_backward.Backward,
            **messages,
            pairs=pairs,
            grad=grad_x,
            partial=partial,
            grad_attr=attr_parts,
            sums=sums,
            num_edges=attr.size(0) if need_attr else 0,
            NEED_ATTR=need_attr,
            NEED_WEIGHT=need_weight,
        )
        launch(
            gpu_backward.backward,
            (num_chunks, triton.cdiv(channels, block_d)),
            cut,
            given,
            num_warps=num_warps,
        )
        merge_sums(cut, grad_x, partial, block_d)
        if attr_parts is not grad_attr:
            grad_attr.copy_(sum_rows(attr_parts.flatten(1)).view_as(grad_attr))
        total = sum_rows(sums).view(num_sums, channels)
        if need_weight:
            grad_weight.copy_(total[:edge_dim].t())
            grad_bias.copy_(total[edge_dim])
        if aggr == "softmax":
            grad_param.copy_(total[-1].sum())
        else:  # max and add have none
            grad_param.zero_()
    return tuple(grads)


def merge_sums(cut: Edges, written: Tensor, partial: Tensor, block_d: int | None = None) -> None:
    """Add up the sums [2 * num_chunks, channels] of rows that several chunks share.

    Args:
        block_d: channels of a program, a power of two.
    """
    channels = partial.size(1)
    block_d = block_d or max(16, min(128, triton.next_power_of_2(channels)))
    launch(
        gpu_backward.merge_backward,
        (cut.rows.size(1), triton.cdiv(channels, block_d)),
        cut,
        record(gpu_backward.Sum, grad=written, partial=partial, D=channels, BLOCK_D=block_d),
        num_warps=1,
    )


def _allocate(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=torch.float32)


def _pack(results: ops.AggregateResults, aggr: str, block_d: int) -> Tensor:
    """Return the tensor that the edges read at their destinations."""
    grad = results.grad
    if aggr == "add":
        return grad
    num_dst, channels = grad.shape
    num_packs, num_blocks = triton.cdiv(num_dst, PACK_ROWS), triton.cdiv(channels, block_d)
    pairs = _allocate(grad, num_dst, 2, channels)
    is_gentle = grad.new_ones(1, dtype=torch.bool)
    launch(
        gpu_backward.pack,
        (num_packs, num_blocks),
        *results[:3],
        pairs,
        is_gentle,
        num_dst,
        KIND=aggr,
        STEEP=STEEP,
        D=channels,
        BLOCK_N=PACK_ROWS,
        BLOCK_D=block_d,
        num_warps=4,
    )
    if aggr.startswith("softmax"):
        torch._assert_async(
            is_gentle,
            "t times a message is too large for the GPU kernel's float32: set kernel=reference",
        )
    return pairs


def sum_rows(values: Tensor) -> Tensor:
    """Sum the rows of [num_rows, num_columns] in an order that is the same on every machine."""
    while values.size(0) > 1 and values.size(1):
        sums = values.new_empty((triton.cdiv(values.size(0), _GROUP), values.size(1)))
        launch(
            gpu_backward.sum_rows,
            (triton.cdiv(values.size(1), 64), sums.size(0)),
            values,
            sums,
            *values.shape,
            GROUP=_GROUP,
            BLOCK_R=16,
            BLOCK_C=64,
            num_warps=1,
        )
        values = sums
    return values.reshape(values.size(1)) if values.size(0) else values.new_zeros(values.size(1))


def sort_edges(edge_index: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    """Compute :func:`models.kernels.sorting.sort_edges`. It waits for the device once, to check the edges."""
    tensors = []
    for key, num_keys in ((1, num_dst), (0, num_src)):
        keys, position = edge_index[key].sort(stable=True)
        if keys.numel():
            check_range(key, *keys[[0, -1]].tolist(), num_keys)
        nodes = torch.arange(num_keys + 1, dtype=keys.dtype, device=keys.device)
        indptr = torch.searchsorted(keys, nodes).to(keys.dtype)
        tensors += [indptr, edge_index[1 - key][position], position.to(keys.dtype)]
    return tensors


def register_sorting(device_type: str = "cuda") -> None:
    """Register what sorts edges on a type of device. All kernels need it."""
    sorting.sort_edges.register_kernel(device_type, sort_edges)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    register_sorting(device_type)
    ops.forward.register_kernel(device_type, forward)
    ops.backward.register_kernel(device_type, backward)
