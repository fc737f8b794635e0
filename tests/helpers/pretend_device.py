"""A second device for tests on machines that have none: tensors with values, which torch takes for those of a device.

They lie in the memory of the CPU and say that their device is "meta". Every operation is computed on the CPU; one that
mixes them with tensors of the CPU fails, as on a GPU. What waits for the device is counted.
"""

import collections
import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch_geometric import EdgeIndex

DEVICE = torch.device("meta")
# Operations whose result the CPU needs before it can go on.
WAITS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::masked_select",
}
COPIES = {"aten::_to_copy", "aten::copy_"}
waited: collections.Counter = collections.Counter()


class OnDevice(torch.Tensor):
    """A tensor of the second device; its values are in ``held``."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        assert not isinstance(held, OnDevice) and held.device.type == "cpu"
        out = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            dtype=held.dtype,
            device=DEVICE,
            storage_offset=held.storage_offset(),
        )
        out.held = held
        return out

    def __repr__(self, **options):
        return f"OnDevice({self.held})"

    def tolist(self):
        waited["tolist"] += 1
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Makes tensors that are asked for on the second device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if EdgeIndex in types:  # it computes with the tensors that it holds
            with self:
                return EdgeIndex.__torch_dispatch__(func, types, args, kwargs or {})
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """Compute an operation with the values; its results are on the second device if its arguments are."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    ours = [value for value in tensors if isinstance(value, OnDevice)]
    asked = kwargs.get("device")
    name = func._schema.name
    if not ours and asked != DEVICE:
        return func(*args, **kwargs)
    if name not in COPIES:
        strangers = [value for value in tensors if not isinstance(value, OnDevice) and value.dim()]
        assert not strangers, f"{name} mixes tensors of the device and of the CPU"
    if (
        name in WAITS
        or name in COPIES
        and ours
        and (asked or getattr(args[0], "device", None)) != DEVICE
    ):
        waited[name] += 1
    if name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
        index is not None and index.dtype == torch.bool for index in args[1]
    ):
        waited["mask"] += 1
    args, kwargs = tree_map(
        lambda value: value.held if isinstance(value, OnDevice) else value, (args, kwargs)
    )
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    out = func(*args, **kwargs)
    if func._schema.is_mutable and ours:
        return ours[0] if func._schema.returns else None
    if name == "aten::_local_scalar_dense" or asked not in (None, DEVICE):
        return out
    return tree_map(
        lambda value: OnDevice(value) if isinstance(value, torch.Tensor) else value, out
    )


@contextlib.contextmanager
def pretended():
    """Let torch make tensors on the second device within a block, in this thread; count what waits."""
    waited.clear()
    with Factories():
        yield waited
