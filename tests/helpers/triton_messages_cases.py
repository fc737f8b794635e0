"""Cases for the Triton kernels of messages, run by test_gpu.py in a process of their own."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.messages import fused, gpu_messages, ops, update_all
from tests.helpers.operators import opcheck
from tests.helpers.triton_process import choose_device, more
from tests.models.conftest import poisoned_memory  # noqa: F401 (a fixture)
from tests.models.messages.test_fused import check, run

DEVICE = choose_device(gpu, gpu_messages)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that rows of dozens of edges lie in several chunks, and those of hundreds in more than are merged at once."""
    monkeypatch.setattr(gpu, "MIN_CHUNK", 8)


def make(message, left, right, num_edges=12, *, hub=0, num_src=5, num_dst=4, seed=0):
    """Draw edges, of which `hub` share a destination, and positive operands; the last destination has no edges."""
    g = torch.Generator().manual_seed(seed)
    edge_index = torch.stack(
        [
            torch.randint(num_src, (num_edges,), generator=g),
            torch.randint(num_dst - 1, (num_edges,), generator=g),
        ]
    )
    edge_index[1, :hub] = 1
    names = [name for name in message.split("_") if name in "uve"]
    rows = dict(u=num_src, v=num_dst, e=num_edges)
    return edge_index.to(DEVICE), {
        name: torch.rand(rows[name], *shape, generator=g).to(DEVICE) + 0.5
        for name, shape in zip(names, (left, right), strict=False)
    }


def check_case(message, reduce, left, right=(), *, num_src=5, num_dst=4, **options):
    edge_index, operands = make(message, left, right, num_src=num_src, num_dst=num_dst, **options)
    check(edge_index, message, reduce, operands, num_src=num_src, num_dst=num_dst)


@pytest.mark.parametrize(
    "message, reduce, left, right",
    [
        ("copy_u", "sum", (3, 4), ()),
        ("copy_e", "mean", (5,), ()),
        ("u_mul_e", "sum", (3, 4), (3, 1)),
        ("e_sub_u", "min", (1,), (6,)),
        ("u_div_v", "sum", (1, 4), (3, 1)),
        ("u_dot_v", "sum", (2, 3), (2, 3)),
        ("v_mul_e", "max", (140,), (1,)),
        ("copy_u", "max", (), ()),
        *more(
            ("u_mul_e", "sum", (3, 4), ()),
            ("u_add_e", "max", (6,), (6,)),
            ("v_div_e", "mean", (20,), (20,)),
            ("e_div_u", "max", (2, 3), (3,)),
            ("u_sub_v", "min", (3,), (3,)),
        ),
    ],
)
def test_messages(message, reduce, left, right):
    check_case(message, reduce, left, right)


@pytest.mark.parametrize(
    "message, reduce", [("u_mul_e", "sum"), ("u_add_e", "max"), ("copy_u", "min")]
)
@pytest.mark.parametrize("flip", [False, *more(True)])
def test_a_row_of_many_chunks(message, reduce, flip):
    """A row of either order lies in more chunks than are merged at once, and two runs agree to the bit."""
    edge_index, operands = make(message, (3, 2), (3, 1), 140, hub=90, num_src=4)
    edge_index = edge_index.flip(0).int() if flip else edge_index
    sizes = dict(num_src=4, num_dst=4)
    check(edge_index, message, reduce, operands, **sizes)
    if reduce == "sum" and not flip:
        first, second = (
            run(edge_index, message, reduce, operands, kernel="fused", **sizes) for _ in range(2)
        )
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_ties_divide_the_gradient():
    edge_index, operands = make("copy_u", (2,), (), 60, hub=40)
    operands["u"] = (operands["u"] * 2).round()
    for reduce in ("max", "min"):
        check(edge_index, "copy_u", reduce, operands, num_src=5, num_dst=4)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_nan_and_infinity_are_those_of_the_reference(reduce):
    edge_index, operands = make("copy_u", (2,), (), 40, hub=30)
    for value in (float("nan"), float("inf"), -float("inf")):
        operands["u"][2, 0] = value
        ours, theirs = (
            update_all(edge_index, "copy_u", reduce, num_dst=4, kernel=kernel, **operands)
            for kernel in ("fused", "reference")
        )
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("num_src, num_dst", [(3, 2), (3, 0), (0, 2)])
def test_graphs_without_edges(num_src, num_dst):
    for reduce in ("sum", "max"):
        operands = dict(u=torch.ones(num_src, 3, device=DEVICE), e=torch.ones(0, 1, device=DEVICE))
        check(
            torch.empty(2, 0, dtype=torch.int64, device=DEVICE),
            "u_mul_e",
            reduce,
            operands,
            num_src=num_src,
            num_dst=num_dst,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_of_edges_are_read_as_they_are(dtype):
    edge_index, operands = make("u_mul_e", (2, 3), (2, 1))
    operands["e"] = operands["e"].to(dtype).requires_grad_()
    ours = update_all(edge_index, "u_mul_e", "sum", num_dst=4, kernel="fused", **operands)
    ours.sum().backward()
    exact = update_all(
        edge_index,
        "u_mul_e",
        "sum",
        num_dst=4,
        kernel="reference",
        u=operands["u"],
        e=operands["e"].detach().float(),
    )
    torch.testing.assert_close(ours, exact)
    expected = operands["u"][edge_index[0]].sum(2, keepdim=True)
    torch.testing.assert_close(operands["e"].grad, expected.to(dtype))


def test_operators():
    edge_index, operands = make("u_mul_e", (2,), (2,), 6)
    structure = sorting.sort_edges(edge_index, 5, 4)
    leaves = [operands[name].requires_grad_() for name in "ue"]
    call = ops.MessageCall(leaves[0], None, leaves[1], structure, 5, "u_mul_e", "max")
    opcheck(ops.update_all, (call, True))


@pytest.mark.skipif(DEVICE == "cuda", reason="for machines without a GPU")
def test_tensors_on_a_gpu_choose_these_kernels(caplog):
    caplog.set_level("INFO")
    fused.KERNEL._announce.cache_clear()
    with FakeTensorMode():
        edge_index, u = (
            torch.zeros(2, 6, dtype=torch.int64, device="cuda"),
            torch.ones(5, 3, device="cuda"),
        )
        out = update_all(edge_index, "copy_u", "sum", u=u, num_dst=4, kernel="fused")
        assert out.is_cuda and out.shape == (4, 3)
        with pytest.raises(
            ValueError, match="there is no GPU kernel of copy_u with prod. Use kernel=auto"
        ):
            update_all(edge_index, "copy_u", "prod", u=u, num_dst=4, kernel="fused")
    assert caplog.messages[0].startswith("messages: fused-gpu (triton ")
