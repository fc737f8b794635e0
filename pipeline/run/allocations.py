"""Counts the bytes that torch allocates for new tensors while a block of code runs, on any device."""

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operators return inside a ``with`` statement.

    It does not see memory that a kernel allocates and frees before it returns.

    Attributes:
        now: bytes of the tensors that still exist.
        peak: the largest value of `now` so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
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


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    """Go through the storages of the tensors in what an operator takes or returns."""
    if isinstance(value, Tensor):
        if type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            yield value.untyped_storage()
        elif value.layout == torch.sparse_coo:
            yield from (value._indices().untyped_storage(), value._values().untyped_storage())
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _storages(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _storages(item)
