"""The fused aggregation, which computes what the reference does: it finds the sorted edges and calls the kernels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.aggregate import ops, relation_table
from parallel_epochs.models.aggregate.reduce import root
from parallel_epochs.models.aggregate.reference import replace_power_of_one
from parallel_epochs.models.structure import find_structure

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Largest number of edge features that the GPU kernel encodes itself.
_MAX_EDGE_DIM = 64
# Beyond this, even t times a small message is rounded too much.
_MAX_GPU_T = 1e5


def why_not_fused(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    table: Tensor | None = None,
    *,
    aggr: str = "",
    scalars: tuple = (),
    eps: float = 1e-7,
) -> str:
    """Return the reason why the kernels cannot compute a call, or an empty text; `scalars` are t and p."""
    for tensor in scalars:
        if isinstance(tensor, Tensor) and tensor.device != x.device:
            return f"tensors are on '{x.device}' and '{tensor.device}', but the kernel needs one device"
    for tensor in (x, edge_attr, weight, bias, table):
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"a tensor has dtype {tensor.dtype}, but the kernel computes in float32"
    if any(isinstance(scalar, Tensor) and scalar.numel() != 1 for scalar in scalars):
        return "t or p has more than one element"
    if x.is_cuda and aggr == "powermean":
        return "a GPU has no kernel of the power mean"
    if (
        x.is_cuda
        and scalars
        and not isinstance(scalars[0], Tensor)
        and abs(scalars[0]) > _MAX_GPU_T
    ):
        return f"t={scalars[0]} is too large for the GPU kernel's float32"
    return f"eps is {eps}, but the kernel needs messages that are not negative" if eps < 0 else ""


def aggregate(
    x: Float[Tensor, "num_src channels"],
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_columns"] | None,
    weight: Float[Tensor, "channels edge_dim"] | None,
    bias: Float[Tensor, " channels"] | None,
    *,
    aggr: str,
    t: float | Tensor,
    p: float | Tensor,
    eps: float,
    num_dst: int | None,
    table: Float[Tensor, "num_relations channels"] | None = None,
) -> Float[Tensor, "num_dst channels"]:
    """Compute :func:`models.aggregate.reference.aggregate` without a tensor of edges x channels."""
    num_dst = x.size(0) if num_dst is None else num_dst
    aggr = replace_power_of_one(aggr, p)
    attr = edge_attr
    if attr is None or weight is None:
        weight = bias = None
    if table is not None:
        weight, bias, table = relation_table.drop_features(weight, bias, table)
    if attr is not None and attr.size(1) == 0:
        # Without features the encoder returns its bias, the same for all edges.
        attr, weight, bias, x = None, None, None, x if bias is None else x + bias
    if x.is_cuda and table is not None:
        attr = relation_table.encode_edges(attr, weight, bias, table.to(attr.dtype))
        weight = bias = table = None
    if x.is_cuda and weight is not None and weight.size(1) > _MAX_EDGE_DIM:
        notice.warn(
            f"edge_attr has {weight.size(1)} features, and the GPU kernel encodes up to {_MAX_EDGE_DIM}: "
            f"every layer builds a tensor of edges x channels"
        )
        attr = torch.nn.functional.linear(attr.to(weight.dtype), weight, bias)
        weight = bias = None
    dtype = x.dtype
    weight, bias, table = _convert_to_float32(weight, bias, table)
    if not x.is_cuda:  # whose kernel reads 16 bits as they are
        x, attr = _convert_to_float32(x, attr)
    kind = "add" if aggr == "mean" else aggr.removesuffix("_sum")
    param = {"powermean": p, "add": 1.0, "max": 1.0}.get(kind, t)
    if not isinstance(param, Tensor):
        param = torch.full((), param, dtype=torch.float32, device=x.device)

    encoder = attr, weight, bias, table, param
    save = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, *encoder)
    )
    structure = find_structure(edge_index, x.size(0), num_dst, by_source=save)
    out, _, _ = ops.forward(ops.AggregateCall(x, structure, *encoder, kind, eps), save)
    if aggr in ("mean", "softmax_sum"):
        degree = structure[0].diff().clamp(min=1).unsqueeze(1).to(out.dtype)
        out = out / degree if aggr == "mean" else out * root(degree)
    return out.to(dtype)


def _convert_to_float32(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.float() for tensor in tensors]
