import os
import shutil

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from parallel_epochs.models.convs.activation import norm_relu_dropout
from parallel_epochs.models.kernels.norm import LIBRARY, NormCall, backward, forward
from tests.helpers.operators import opcheck
from tests.helpers.tensors import same_for_any_threads

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert LIBRARY.get() is not None, LIBRARY.missing()


def layer_norm(channels: int, generator: torch.Generator) -> torch.nn.LayerNorm:
    norm = torch.nn.LayerNorm(channels)
    for parameter in norm.parameters():
        parameter.data = torch.randn(channels, generator=generator)
    return norm


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 300), st.integers(1, 140), st.integers(0, 10**6))
@example(107, 2, 121)
@example(262, 2, 27200)
@example(
    4096, 3, 0
)  # 64 chunks of 64 rows, the most that the gradients of the weights are summed in
@example(5000, 3, 0)  # 64 chunks of 79 rows, the last one short
def test_output_and_gradients_are_the_references(num_rows, channels, seed):
    g = torch.Generator().manual_seed(seed)
    norm = layer_norm(channels, g)
    x = (torch.randn(num_rows, channels, generator=g) * 3 + 1).requires_grad_()
    gradient = torch.randn(num_rows, channels, generator=g)
    out = norm_relu_dropout(x, norm)
    if num_rows == 0 or channels == 1:
        assert out.shape == x.shape and torch.isfinite(out).all()
        return
    reference = layer_norm(channels, g).double()
    reference.load_state_dict(norm.state_dict())
    wide = x.detach().double().requires_grad_()
    expected = norm_relu_dropout(wide, reference, kernel="reference")
    # A relu decided by rounding: the two may disagree on elements this close to 0.
    gradient = gradient.where(reference(wide).abs().float() > 1e-4, 0.0)
    names = ("out", "x", "weight", "bias")
    ours = (out, *torch.autograd.grad(out, [x, *norm.parameters()], gradient))
    theirs = (
        expected,
        *torch.autograd.grad(expected, [wide, *reference.parameters()], gradient.double()),
    )
    # A row whose values nearly coincide magnifies the rounding of its mean by one over their deviation.
    deviation = (wide.detach().var(1, correction=0, keepdim=True) + norm.eps).sqrt()
    tolerance = 2e-5 * max(1, 0.1 / deviation.min())
    # The terms of x's gradient may cancel (those of two channels always do), but not their rounding.
    terms = {"x": (gradient * norm.weight / deviation).norm()}
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert (a - b).norm() <= tolerance * terms.get(name, b.norm()), name


def test_dropout_drops_its_share_and_backward_the_same_elements():
    norm = torch.nn.LayerNorm(64)
    norm.bias.data += 10  # no relu in the way
    x = torch.randn(4000, 64, requires_grad=True)
    torch.manual_seed(0)
    out = norm_relu_dropout(x, norm, dropout=0.3, training=True)
    dropped = out == 0
    assert abs(dropped.float().mean() - 0.3) < 0.003
    # Independent: shares of rows and columns scatter as those of coins do.
    assert dropped.float().mean(0).std() == pytest.approx((0.21 / 4000) ** 0.5, rel=0.35)
    assert dropped.float().mean(1).std() == pytest.approx((0.21 / 64) ** 0.5, rel=0.1)
    torch.testing.assert_close(out[~dropped], (norm(x) / 0.7)[~dropped])
    (grad_bias,) = torch.autograd.grad(out.sum(), norm.bias)
    torch.testing.assert_close(grad_bias, (~dropped).sum(0) / 0.7)
    torch.manual_seed(0)
    assert torch.equal(norm_relu_dropout(x, norm, dropout=0.3, training=True), out)
    assert not torch.equal(norm_relu_dropout(x, norm, dropout=0.3, training=True), out)


def test_any_number_of_threads_gives_the_same_bits():
    g = torch.Generator().manual_seed(0)
    norm, x = layer_norm(40, g), torch.randn(3000, 40, generator=g).requires_grad_()
    gradient = torch.randn(3000, 40, generator=g)

    def compute():
        torch.manual_seed(0)
        out = norm_relu_dropout(x, norm, dropout=0.1, training=True)
        return out, *torch.autograd.grad(out, [x, *norm.parameters()], gradient)

    same_for_any_threads(compute, (1, 2, 3))


def test_what_cannot_be_fused_runs_as_torchs_own():
    x = torch.randn(50, 8)
    for norm in (
        torch.nn.BatchNorm1d(8),
        torch.nn.LayerNorm(8, bias=False),
        torch.nn.LayerNorm(8).double(),
    ):
        arguments = x.to(next(norm.parameters()).dtype)
        assert torch.equal(norm_relu_dropout(arguments, norm), norm(arguments).relu())


@pytest.mark.slow
def test_registered_operators():
    g = torch.Generator().manual_seed(0)
    norm, x, seed = (
        layer_norm(20, g),
        torch.randn(30, 20, generator=g).requires_grad_(),
        torch.tensor([7]),
    )
    call = NormCall(x, norm.weight, norm.bias, seed, 1e-5, 0.2)
    opcheck(forward, (call,))
    with torch.no_grad():
        _, mean, scale = forward(call)
        opcheck(backward, (torch.ones(30, 20), mean, scale, call))
