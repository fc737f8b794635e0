"""The kernels of messages against the reference in float64: the results and every gradient."""

import functools
import itertools
import math
import os
import shutil

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.messages import (
    MESSAGES,
    REDUCTIONS,
    apply_edges,
    cpu,
    edge_softmax,
    fused,
    ops,
    update_all,
)
from parallel_epochs.models.messages.inputs import read_call
from tests.helpers.operators import opcheck
from tests.helpers.tensors import Largest, same_for_any_threads
from tests.models.messages.test_messages import DST, EDGES, SRC, cases, make_edges, make_operands

pytestmark = [
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
    pytest.mark.usefixtures("poisoned_memory"),
]

WALKS = (*REDUCTIONS, "edges")


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert cpu.LIBRARY.get() is not None, cpu.LIBRARY.missing()


def hub_graph(num_edges=6000, hub=4000):
    """Edges of which the first `hub` share a destination, and the last as many a source: several chunks each."""
    edge_index = make_edges(300, 40, num_edges)
    edge_index[1, :hub] = 3
    edge_index[0, -hub:] = 5
    return edge_index


def run(
    edge_index,
    message,
    reduce,
    operands,
    *,
    kernel,
    dtype=torch.float32,
    learn="uve",
    num_src=SRC,
    num_dst=DST,
):
    """Compute the result and the gradients of the operands in `learn`, by name."""
    leaves = {
        name: value.to(dtype, copy=True).requires_grad_(name in learn)
        for name, value in operands.items()
    }
    if reduce == "edges":
        out = apply_edges(edge_index, message, **leaves, kernel=kernel)
    else:
        out = update_all(
            edge_index, message, reduce, **leaves, num_src=num_src, num_dst=num_dst, kernel=kernel
        )
    g = torch.Generator().manual_seed(1)
    out.backward((torch.rand(out.shape, generator=g) + 0.5).to(out))
    return {"out": out.detach()} | {
        name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None
    }


def check(*arguments, tolerance=1e-5, **options):
    ours, exact = (
        run(*arguments, kernel="fused", **options),
        run(*arguments, kernel="reference", **options | {"dtype": torch.float64}),
    )
    assert ours.keys() == exact.keys()
    for name, expected in exact.items():
        assert ours[name].shape == expected.shape, name
        error = (ours[name].double() - expected).norm()
        assert error <= tolerance * expected.norm(), f"{name}: {error:.1e} of {expected.norm():.1e}"


ROTATED = [
    pytest.param(
        *case.values, [walk for place, walk in enumerate(WALKS) if (place - number) % 3 == 0]
    )
    for number, case in enumerate(case for case in cases() if not case.marks)
]


@pytest.mark.parametrize("message, left, right, walks", ROTATED)
def test_messages(message, left, right, walks):
    for walk in walks:
        check(make_edges(), message, walk, make_operands(message, left, right))


# Values of nodes and of edges with one, two, four, eight and more vectors of any width, and some that are not full.
SUMS = [
    ((64,), ()),
    ((256,), (1,)),
    ((37,), (37,)),
    ((4, 16), (4, 1)),
    ((200,), (200,)),
    ((3, 8), (3, 1)),
    ((5,), ()),
    ((2, 3, 16), (3, 1)),
]


@pytest.mark.parametrize("left, right", SUMS)
def test_hubs(left, right):
    check_hubs(left, right, ("u_mul_e", "copy_u", "copy_e"), ("sum",))


@pytest.mark.parametrize(
    "message, walk",
    [
        ("copy_u", "max"),
        ("v_div_u", "max"),
        ("u_sub_e", "min"),
        ("e_mul_u", "prod"),
        ("e_dot_v", "edges"),
    ],
)
def test_hubs_of_other_reductions(message, walk):
    check_hubs((5, 3), (5, 3), (message,), (walk,))


def check_hubs(left, right, messages, walks):
    edge_index = hub_graph()
    for message, walk in itertools.product(messages, walks):
        rows = {"u": 300, "v": 40, "e": edge_index.size(1)}
        operands = make_operands(message, left, right, rows)
        if (
            walk == "prod"
        ):  # of thousands of messages is within the range of float32 only if they are close to 1
            at = 0 if MESSAGES[message].operation in ("add", "sub") else 1
            operands = {
                name: (1 if name == MESSAGES[message].left else at) + value / 1024
                for name, value in operands.items()
            }
        for learn in ("uve", "u"):
            if learn == "uve" or "u" in MESSAGES[message].names:
                check(
                    edge_index,
                    message,
                    walk,
                    operands,
                    learn=learn,
                    num_src=300,
                    num_dst=40,
                    tolerance=3e-4 if walk == "prod" else 1e-5,
                )


@pytest.mark.parametrize(
    "message, walk",
    [("u_mul_e", "sum"), ("u_mul_e", "edges"), ("v_add_u", "max"), ("e_div_u", "prod")],
)
def test_sorted_edges_are_used_as_they_are(message, walk):
    edge_index, operands = make_edges(dtype=torch.int32), make_operands(message, (3, 8), (3, 1))
    for order in ("col", "row", None):
        edges = EdgeIndex(edge_index, sparse_size=(SRC, DST))
        check(edges.sort_by(order).values if order else edges, message, walk, operands)


def test_threads_do_not_change_a_bit():
    rows = {"u": 300, "v": 40, "e": 6000}
    for message, walk in (
        ("u_mul_e", "sum"),
        ("copy_u", "mean"),
        ("u_sub_v", "max"),
        ("e_div_u", "prod"),
        ("u_dot_v", "edges"),
    ):
        call = functools.partial(
            run,
            hub_graph(),
            message,
            walk,
            make_operands(message, (4, 16), (4, 16), rows),
            kernel="fused",
            num_src=300,
            num_dst=40,
        )
        same_for_any_threads(call, (1, 2, 3))


def test_ties_divide_the_gradient():
    edge_index = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 0]])
    for reduce, values in (
        ("max", [0.0, 0.0, -1.0]),
        ("min", [0.0, 0.0, 1.0]),
    ):  # nodes 0 (twice) and 1 tie
        for kernel in ("fused", "reference"):
            u = torch.tensor(values).unsqueeze(1).requires_grad_()
            update_all(edge_index, "copy_u", reduce, u=u, num_dst=1, kernel=kernel).backward(
                torch.tensor([[6.0]])
            )
            torch.testing.assert_close(u.grad, torch.tensor([[4.0], [2.0], [0.0]]))


@pytest.mark.parametrize("number_of_zeros", [0, 1, 2])
def test_gradients_of_products_with_zeros(number_of_zeros):
    operands = make_operands("copy_u", (5,), (5,))
    operands["u"][:number_of_zeros] = 0
    edge_index = torch.tensor([[0, 1, 2, 3, 0], [0, 0, 0, 0, 1]])
    check(edge_index, "copy_u", "prod", operands)
    u = operands["u"].requires_grad_()
    expected = torch.autograd.grad(torch.stack([u[:4].prod(0), u[0]]).sum(), u)[0]
    out = update_all(edge_index, "copy_u", "prod", u=u.float(), num_dst=2, kernel="fused")
    torch.testing.assert_close(torch.autograd.grad(out.sum(), u)[0], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("message", ["copy_u", "u_mul_e", "u_sub_v", "v_div_u"])
def test_nan_and_infinity_are_those_of_the_reference(message, value):
    for walk in WALKS:
        operands = make_operands(message, (3, 8), (3, 8))
        operands["u"][2, 1, 3], operands["u"][4, 0, 0] = value, 0
        ours, expected = (
            run(make_edges(), message, walk, operands, kernel=kernel)
            for kernel in ("fused", "reference")
        )
        for name, tensor in expected.items():
            torch.testing.assert_close(
                ours[name], tensor, equal_nan=True, rtol=1e-5, atol=1e-6, msg=f"{walk} {name}"
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_rounded_as_torch_rounds(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).unsqueeze(1)
    edges = torch.zeros(2, 2**15, dtype=torch.int64)
    wide = torch.cat([every.float(), every.float() * (1 + 2**-9), every.float() * (1 + 2**-12)])
    zero = torch.zeros(1, dtype=dtype)
    for values in wide.split(2**15):
        e = torch.zeros(2**15, 1, dtype=dtype, requires_grad=True)
        update_all(edges, "e_mul_u", "sum", e=e, u=torch.ones(1), num_dst=1, kernel="fused")
        call = ops.MessageCall(None, None, values, (None,) * 6, 1, "copy_e", "none")
        out = ops.apply_edges(call, edges, 1, dtype)
        torch.testing.assert_close(out, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    wide = torch.cat(
        [
            apply_edges(edges, "e_add_u", e=part, u=zero.float(), kernel="fused")
            for part in every.split(2**15)
        ]
    )
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("heads", [(), (4,), (2, 8), (33,)])
def test_softmax(heads):
    edge_index, g = hub_graph(), torch.Generator().manual_seed(0)
    scores, grad = torch.randn(2, 6000, *heads, generator=g) * torch.tensor([5.0, 1.0]).view(
        2, 1, *(1,) * len(heads)
    )
    results = []
    for kernel, dtype in (("fused", torch.float32), ("reference", torch.float64)):
        leaf = scores.to(dtype, copy=True).requires_grad_()
        out = edge_softmax(edge_index, leaf, 40, kernel=kernel)
        first = torch.autograd.grad(out, leaf, grad.to(dtype), create_graph=True)[0]
        results.append(
            [
                out,
                *torch.autograd.grad(out, leaf, grad.to(dtype), retain_graph=True),
                first,
                *torch.autograd.grad(first.square().sum(), leaf),
            ]
        )
    for ours, exact in zip(*results):
        assert (ours - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize(
    "message, right",
    [("copy_u", (4, 16)), ("u_mul_e", (4, 1)), ("u_add_v", (4, 16)), ("u_dot_v", (4, 16))],
)
def test_nothing_of_edges_x_channels(message, right):
    rows = {"u": 40, "v": 40, "e": 6000}
    operands = make_operands(message, (4, 16), right, rows)
    for walk in WALKS:
        if walk == "edges" and message != "u_dot_v":
            continue
        largest = []
        for kernel in ("fused", "reference"):
            with Largest() as mode:
                run(
                    hub_graph() % 40, message, walk, operands, kernel=kernel, num_src=40, num_dst=40
                )
            largest.append(mode.elements)
        assert largest[0] <= 4 * 6000 and largest[1] >= 64 * 6000, walk


def test_gradients_of_gradients():
    edge_index, g = make_edges(4, 3, 9), torch.Generator().manual_seed(0)
    u, e = torch.rand(4, 2, 3, generator=g) + 0.5, torch.rand(9, 2, 1, generator=g) + 0.5

    def penalty(kernel, dtype, walk):
        leaves = [value.to(dtype, copy=True).requires_grad_() for value in (u, e)]
        if walk == "edges":
            out = apply_edges(edge_index, "u_mul_e", u=leaves[0], e=leaves[1], kernel=kernel)
        else:
            out = update_all(
                edge_index, "u_mul_e", walk, u=leaves[0], e=leaves[1], num_dst=3, kernel=kernel
            )
        grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves)

    for walk in WALKS:
        for ours, exact in zip(
            penalty("fused", torch.float32, walk), penalty("reference", torch.float64, walk)
        ):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "tests, reductions",
    [
        (("test_schema", "test_autograd_registration", "test_faketensor"), ("sum", "max", "prod")),
        pytest.param("test_aot_dispatch_dynamic", ("sum", "prod"), marks=pytest.mark.slow),
    ],
)
def test_operators(tests, reductions):
    edge_index, operands = make_edges(), make_operands("u_mul_e", (3, 8), (3, 1))
    u, e = (operands[name].float().requires_grad_() for name in "ue")
    structure, num_src = fused._find_structure(
        read_call(edge_index, "u_mul_e", u=u, e=e, num_dst=DST)
    )
    for reduce in reductions:
        call = ops.MessageCall(u, None, e, structure, num_src, "u_mul_e", reduce)
        opcheck(ops.update_all, (call, True), test_utils=tests)
        with torch.no_grad():
            results = ops.MessageResults(torch.ones(DST, 3, 8), *ops.update_all(call, True))
        call = call._replace(u=u.detach(), e=e.detach())
        opcheck(ops.backward, (results, call, "ue"), test_utils=tests)
    scores = torch.randn(edge_index.size(1), 4, requires_grad=True)
    opcheck(ops.edge_softmax, (scores, edge_index, structure, num_src), test_utils=tests)
    opcheck(
        ops.edge_softmax_backward,
        (scores.detach(), scores.detach(), edge_index, structure, num_src),
        test_utils=tests,
    )
    call = ops.MessageCall(u, None, e, structure, num_src, "u_mul_e", "none")
    opcheck(ops.apply_edges, (call, edge_index, DST, torch.float32), test_utils=tests)


def test_an_edge_index_with_wrong_numbers_is_refused():
    edges = torch.tensor([[0, 9, 1], [0, 1, 1]])
    for order in ("col", None):
        index = EdgeIndex(edges, sparse_size=(3, 2), sort_order=order)
        with pytest.raises(IndexError, match="not in the graph|such nodes"):
            update_all(index, "copy_u", "sum", u=torch.ones(3, 16), kernel="fused")
        with pytest.raises(IndexError, match="not in the graph|such nodes"):
            update_all(index, "copy_u", "max", u=torch.ones(3, 16), kernel="fused")


@pytest.mark.parametrize(
    "ptr, other, position",
    [
        ([0, 2, 1, 3], [0, 1, 2], [0, 1, 2]),
        ([1, 2, 3, 3], [0, 1, 2], [0, 1, 2]),
        ([0, 1, 2, 2], [0, 1, 2], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 3, 2], [0, 1, 2]),
        ([0, 1, 2, 3], [0, -1, 2], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 1, 2], [0, 3, 2]),
        ([0, 1, 2, 3], [0, 1, 2], [0, -1, 2]),
    ],
)
@pytest.mark.parametrize("width", [1, 16])
def test_a_walk_over_broken_indices_is_refused(ptr, other, position, width):
    ptr, other, position = map(torch.tensor, (ptr, other, position))
    operands = {"u": torch.ones(3, width), "e": torch.ones(3, 17 - width)}
    walk = cpu.EdgeWalk(
        ("v", "u"), (3, 3), (ptr, other, position), MESSAGES["u_mul_e"], operands, torch.Size([16])
    )
    with pytest.raises(IndexError, match="not in the graph"):
        walk.forward("sum", out=torch.empty(3, 16))


@pytest.mark.parametrize(
    "message, function, reduce, edge, reason",
    [
        ("u_mul_e", "update_all", "sum", (3, 1), ""),
        ("u_mul_e", "update_all", "max", (), ""),
        ("copy_e", "update_all", "mean", (3, 8), ""),
        ("u_dot_e", "update_all", "sum", (3, 8), ""),
        ("u_add_e", "update_all", "prod", (3, 8), "there is no GPU kernel of u_add_e with prod"),
        ("u_dot_e", "update_all", "max", (3, 8), "there is no GPU kernel of u_dot_e with max"),
        ("u_sub_e", "apply_edges", "", (3, 8), "there is no GPU kernel of apply_edges"),
        (
            "u_mul_e",
            "update_all",
            "sum",
            (1, 8),
            f"there is no GPU kernel for the gradient of edge values [{EDGES}, 1, 8] in messages of [3, 8]",
        ),
    ],
)
def test_what_a_gpu_has_no_kernel_for(message, function, reduce, edge, reason):
    operands = make_operands(message, edge if message == "copy_e" else (3, 8), edge)
    operands["e"] = operands["e"].float().requires_grad_()
    call = read_call(make_edges(), message, **operands)
    assert fused.why_no_gpu_kernel(call, function, reduce) == reason


def test_what_runs_and_why(caplog):
    edge_index, u = make_edges(), torch.ones(SRC, 3)
    with pytest.raises(
        ValueError, match="^kernel=fused cannot run: u has dtype torch.float64, .*Use kernel=auto"
    ):
        update_all(edge_index, "copy_u", "sum", u=u.double(), kernel="fused")
    caplog.set_level("INFO")
    fused.KERNEL._announce.cache_clear()
    for kernel in ("auto", "auto"):
        update_all(edge_index, "copy_u", "sum", u=u.double(), num_dst=DST, kernel=kernel)
        update_all(edge_index, "copy_u", "sum", u=u, num_dst=DST, kernel=kernel)
    assert caplog.messages == [
        "messages: reference (u has dtype torch.float64, but the kernel computes in float32)",
        f"messages: fused-cpu ({cpu.LIBRARY.find_simd()})",
    ]
