"""Products of heads with the matrices of relations, beside torch's."""

import pytest
import torch

from parallel_epochs.models.kernels import head_products
from parallel_epochs.models.kernels.head_products import multiply_heads


def draw(
    num_rows: int, num_relations: int, heads: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw rows that lie apart from each other, matrices, and the gradient of the products."""
    torch.manual_seed(0)
    x = torch.randn(num_rows, 3 * heads * width)[:, heads * width : 2 * heads * width]
    return (
        x.requires_grad_(),
        torch.randn(num_relations, heads, width, width, requires_grad=True),
        torch.randn(num_rows * num_relations, heads * width),
    )


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("num_rows", "num_relations", "heads", "width"),
    [(0, 2, 2, 4), (3, 1, 1, 1), (70, 3, 2, 5), (1_201, 2, 2, 8), (130, 2, 3, 19)],
)
def test_products_and_gradients_are_those_of_torch(num_rows, num_relations, heads, width):
    x, weight, gradient = draw(num_rows, num_relations, heads, width)
    assert head_products.can_multiply(x, weight)
    found = multiply_heads(x, weight)
    expected = torch.einsum(
        "nhk,rhkj->nrhj", x.double().view(num_rows, heads, width), weight.double()
    ).reshape(found.shape)
    both = [
        (out, *torch.autograd.grad(out, [x, weight], gradient.to(out.dtype)))
        for out in (found, expected)
    ]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-5, atol=1e-5)


def test_gradients_have_gradients():
    x, weight, gradient = draw(5, 2, 2, 3)
    first = torch.autograd.grad(multiply_heads(x, weight), [x, weight], gradient, create_graph=True)
    found = torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, weight])
    product = torch.einsum("nhk,rhkj->nrhj", x.view(5, 2, 3), weight).reshape(10, 6)
    first = torch.autograd.grad(product, [x, weight], gradient, create_graph=True)
    expected = torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, weight])
    torch.testing.assert_close(found, expected)


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    x, weight, gradient = draw(301, 3, 2, 8)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        out = multiply_heads(x, weight)
        found.append([out.detach(), *torch.autograd.grad(out, [x, weight], gradient)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
