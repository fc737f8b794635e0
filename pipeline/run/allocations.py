"""Bytes that torch holds for new tensors while a block runs, on any device."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make while it is used in a ``with`` statement.

    What a kernel takes for itself and gives back before it returns is not seen.

    Attributes:
        now: bytes of those that are still held.
        peak: the most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        known = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if storage._cdata not in known:
                known.add(storage._cdata)
                self._hold(storage.nbytes())
                weakref.finalize(storage, self._hold, -storage.nbytes())
        return made

    def _hold(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if type(leaf) in (Tensor, torch.nn.Parameter) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()
        elif isinstance(leaf, Tensor) and leaf.layout == torch.sparse_coo:
            yield from (leaf._indices().untyped_storage(), leaf._values().untyped_storage())
