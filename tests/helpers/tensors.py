"""What torch does while a test looks: how many threads it uses, and how large its results are."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest result of any function of torch, or of any with a kind of numbers."""

    def __init__(self, counts: Callable[[torch.Tensor], bool] = torch.is_tensor):
        super().__init__()
        self.elements, self.counts = 0, counts

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        sizes = [
            leaf.numel() for leaf in tree_leaves(out) if torch.is_tensor(leaf) and self.counts(leaf)
        ]
        self.elements = max([self.elements, *sizes])
        return out


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch compute with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_for_any_threads(
    compute: Callable[[], Any], numbers: tuple[int, ...] = (1, 2, 3, 2)
) -> Any:
    """Check that a call returns the same bits for each number of threads; returns what it returns for the first."""
    results = []
    for number in numbers:
        with threads(number):
            results.append(compute())
    first, *others = ([bits(leaf) for leaf in tree_leaves(result)] for result in results)
    assert all(other == first for other in others)
    return results[0]


def bits(leaf: Any) -> Any:
    """Return the bytes of a tensor, and another value as it is."""
    if not torch.is_tensor(leaf):
        return leaf
    return leaf.dtype, leaf.shape, leaf.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
