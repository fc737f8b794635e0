"""Operators go straight to their kernels, unless something watches or replaces tensors."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_epochs.models.kernels.operator import operator


def _double(x: Tensor, unused: Tensor | None, factor: float) -> Tensor:
    assert type(x) in (Tensor, torch.nn.Parameter), "a kernel reads memory"
    return torch.from_numpy(x.detach().numpy() * factor)


@pytest.fixture(scope="module")
def double():
    made = operator("test_double", lambda x: torch.empty_like(x))(_double)

    def differentiate(needed, gradients, kept, x, unused, factor):
        return {"x": gradients[0] * factor}

    made.register_autograd(differentiate, lambda output, *_: ((), ()))
    return made


@pytest.fixture
def dispatched(double, monkeypatch):
    """The calls that went through torch's dispatcher."""
    calls, definition = [], double.definition
    monkeypatch.setattr(double, "definition", lambda *args: calls.append(1) or definition(*args))
    return calls


def test_eager_calls_go_straight_to_the_kernel(double, dispatched):
    x = torch.ones(3, requires_grad=True)
    out = double(x, None, 2.0)
    assert out.requires_grad and out.tolist() == [2, 2, 2]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [2, 2, 2]
    with torch.no_grad():
        assert not double(x, None, 3.0).requires_grad
    assert not double(
        torch.nn.Parameter(torch.ones(1), requires_grad=False), None, 3.0
    ).requires_grad
    assert not dispatched


def test_modes_see_the_operator(double, dispatched):
    class Watch(TorchDispatchMode):
        names: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        assert double(torch.ones(2), None, 2.0).tolist() == [2, 2]
    assert any("test_double" in name for name in Watch.names) and dispatched


def test_tensors_without_memory_take_the_fake(double, dispatched):
    with FakeTensorMode() as mode:
        fake = torch.ones(4, requires_grad=True)
        assert double(fake, None, 2.0).shape == (4,)
    assert double(mode.from_tensor(torch.ones(5)), None, 2.0).shape == (5,)
    assert double(torch.ones(6, device="meta"), None, 2.0).shape == (6,)
    assert len(dispatched) == 3
