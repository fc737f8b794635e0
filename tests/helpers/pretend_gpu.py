"""A GPU that is not there: tensors of the CPU that pretend to lie on it, so that tests see what mixes the two."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

GPU = torch.device("cuda", 0)
# What may move numbers from one device to another.
MOVES = {
    Tensor.copy_,
    Tensor.to,
    Tensor.cpu,
    Tensor.cuda,
    Tensor.__deepcopy__,
    Tensor.data.__set__,
    torch._has_compatible_shallow_copy_type,
    torch.save,
}


class PretendGPU(TorchFunctionMode):
    """Marks the tensors that are moved to, or made on, the device "cuda", and what is computed of them.

    Raises:
        RuntimeError: an operation reads tensors of both devices; a number of the CPU may go with any.
    """

    def __init__(self):
        super().__init__()
        self._kept: dict[
            int, Tensor
        ] = {}  # by the address of their numbers, which no other tensor gets meanwhile

    def holds(self, tensor: Tensor) -> bool:
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            return False
        with torch._C.DisableTorchFunction():
            return id(tensor) in self._kept or (
                tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self._kept
            )

    def _keep(self, tensor: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            if tensor.layout == torch.strided and tensor.numel():
                self._kept[tensor.untyped_storage().data_ptr()] = tensor
            else:
                self._kept[id(tensor)] = tensor
        return tensor

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, tensors = (
            {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"},
            [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)],
        )
        there = [self.holds(tensor) for tensor in tensors]
        if function == Tensor.device.__get__:
            return GPU if there[0] else torch.device("cpu")
        if function == Tensor.is_cuda.__get__:
            return there[0]
        if function is Tensor.numpy and there[0]:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        wanted = next(
            (
                leaf
                for leaf in (kwargs.get("device"), *(args[1:2] if function is Tensor.to else ()))
                if isinstance(leaf, str | torch.device)
            ),
            None,
        )
        if wanted is not None:
            kwargs.pop("device", None)
            args = args[:1] if function is Tensor.to else args
        is_there = any(there) if wanted is None else torch.device(wanted).type == "cuda"
        if function in (Tensor.cpu, Tensor.copy_):
            is_there = function is Tensor.copy_ and there[0]
        if function not in MOVES:
            sized = [where for where, tensor in zip(there, tensors, strict=True) if tensor.dim()]
            if any(sized) and not all(sized) or any(there) and wanted is not None and not is_there:
                raise RuntimeError(
                    f"{function.__name__}: expected all tensors to be on the same device"
                )
        out = function(*args, **kwargs)
        if function in (Tensor.to, Tensor.cpu) and is_there != there[0]:
            with torch._C.DisableTorchFunction():
                out = out.clone() if out.data_ptr() == tensors[0].data_ptr() else out
        if is_there and function is not torch.save:
            _pytree.tree_map_only(Tensor, self._keep, out)
        return out
