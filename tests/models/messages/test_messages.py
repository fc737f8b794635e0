"""The operators of messages: the reference by loops over edges, the kernels against the reference in float64."""

import itertools
import math

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.messages import (
    MESSAGES,
    REDUCTIONS,
    apply_edges,
    edge_softmax,
    update_all,
)
from tests.helpers.shapes import unchecked

SRC, DST, EDGES = 7, 6, 40
# Trailing dimensions of the left and of the right operand. Those of ``dot`` have the same last dimension.
BROADCASTS = [
    ((3, 8), (3, 8)),
    ((3, 8), (3, 1)),
    ((3, 1), (3, 8)),
    ((), (5,)),
    ((5,), ()),
    ((2, 1, 4), (3, 1)),
    ((), ()),
]
DOTS = [((3, 8), (3, 8)), ((3, 8), (8,)), ((5,), (2, 5))]
ROWS = {"u": SRC, "v": DST, "e": EDGES}


def make_edges(num_src=SRC, num_dst=DST, num_edges=EDGES, seed=0, dtype=torch.int64):
    """Random edges between all nodes but the last, duplicates included."""
    g = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            torch.randint(num_src - 1, (num_edges,), generator=g),
            torch.randint(num_dst - 1, (num_edges,), generator=g),
        ]
    ).to(dtype)


def make_operands(message, left, right, rows=ROWS, seed=0):
    """Multiples of 1/8 in [.5, 2), so that ties happen and no division is by 0."""
    g = torch.Generator().manual_seed(seed)
    trailing = dict(zip(MESSAGES[message].names, (left, right)))
    return {
        name: torch.randint(4, 16, (rows[name], *shape), generator=g, dtype=torch.float64) / 8
        for name, shape in trailing.items()
    }


def cases():
    """Every message with every pair of shapes, a copy with each shape once. One pair of each message is quick."""
    found = []
    for number, (name, message) in enumerate(MESSAGES.items()):
        shapes = DOTS if message.operation == "dot" else BROADCASTS
        for place, (left, right) in enumerate(shapes):
            if message.right or left == right:
                quick = place == number % len(shapes) or not message.right and place == 0
                found.append(
                    pytest.param(name, left, right, marks=[] if quick else pytest.mark.slow)
                )
    return found


def slow_message(message, operands, edge, src, dst):
    """Compute the message of one edge."""
    at = {"u": src, "v": dst, "e": edge}
    values = [operands[name][at[name]] for name in MESSAGES[message].names]
    if len(values) == 1:
        return values[0]
    a, b = values
    if MESSAGES[message].operation == "dot":
        return (a * b).sum(-1, keepdim=True)
    return {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[MESSAGES[message].operation]


@pytest.mark.parametrize("message, left, right", cases())
def test_reference_is_a_loop_over_edges(message, left, right):
    edge_index, operands = make_edges(), make_operands(message, left, right)
    ends = enumerate(edge_index.t().tolist())
    messages = torch.stack([slow_message(message, operands, edge, *nodes) for edge, nodes in ends])
    torch.testing.assert_close(
        apply_edges(edge_index, message, **operands, kernel="reference"), messages
    )
    for reduce in REDUCTIONS:
        out = update_all(edge_index, message, reduce, **operands, num_dst=DST, kernel="reference")
        assert out.shape == (DST, *messages.shape[1:])
        for dst in range(DST):
            of_node = messages[edge_index[1] == dst]
            if not len(of_node):
                assert (out[dst] == (reduce == "prod")).all()
                continue
            expected = {"max": of_node.amax, "min": of_node.amin, "prod": of_node.prod}.get(
                reduce, getattr(of_node, reduce, None)
            )(0)
            torch.testing.assert_close(out[dst], expected)


def test_softmax_of_the_reference():
    edge_index, scores = make_edges(), torch.randn(EDGES, 4, dtype=torch.float64)
    out = edge_softmax(edge_index, scores, DST, kernel="reference")
    for dst in range(DST - 1):
        chosen = edge_index[1] == dst
        torch.testing.assert_close(out[chosen], scores[chosen].softmax(0))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients_of_the_reference(reduce):
    edge_index = make_edges(4, 3, 9)
    u, e = (
        torch.rand(4, 2, 3, dtype=torch.float64) + 0.5,
        torch.rand(9, 2, 1, dtype=torch.float64) + 0.5,
    )

    def f(u, e):
        return update_all(edge_index, "u_mul_e", reduce, u=u, e=e, num_dst=3, kernel="reference")

    assert torch.autograd.gradcheck(f, (u.requires_grad_(), e.requires_grad_()))
    assert torch.autograd.gradgradcheck(f, (u, e))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_edges_of_every_kind():
    plain = make_edges().flip(0).unique(dim=1).flip(0).contiguous()  # sorted by destination
    u, e = torch.randn(SRC, 4), torch.randn(plain.size(1), 4)
    expected = update_all(plain, "u_mul_e", "sum", u=u, e=e, num_dst=DST)
    coo = torch.sparse_coo_tensor(
        plain.flip(0),
        torch.ones(plain.size(1)),
        (DST, SRC),
        is_coalesced=True,
        check_invariants=False,
    )
    for edges in (
        EdgeIndex(plain, sparse_size=(SRC, DST)),
        EdgeIndex(plain, sparse_size=(SRC, DST), sort_order="col"),
        coo,
        coo.to_sparse_csr(),
        plain.int(),
    ):
        num_dst = DST if type(edges) is torch.Tensor and edges.layout == torch.strided else None
        torch.testing.assert_close(
            update_all(edges, "u_mul_e", "sum", u=u, e=e, num_dst=num_dst), expected
        )
        torch.testing.assert_close(apply_edges(edges, "copy_u", u=u), u[plain[0]])


WRONG = [
    (dict(message="u_pow_e"), "message=u_pow_e is unknown; choose copy_u, copy_e or a_op_b"),
    (dict(message="u_add_u"), "message=u_add_u is unknown"),
    (dict(reduce="median"), "reduce=median is unknown; choose one of sum, mean, max, min, prod"),
    (dict(kernel="fast"), "kernel=fast is unknown; choose one of auto, fused, reference"),
    (dict(e=None), "message=u_mul_e reads e, which is missing: pass e="),
    (dict(v=torch.ones(DST)), "message=u_mul_e does not read v: leave it out"),
    (dict(e=torch.ones(EDGES, 3)), r"the rows of u \(7, 2, 4\) and e \(40, 3\) do not broadcast"),
    (dict(e=torch.ones(EDGES - 1)), "e has 39 rows, but there are 40 edges"),
    (dict(num_src=8), "u has 7 rows, but there are 8 source nodes"),
    (
        dict(e=torch.ones(EDGES, dtype=torch.int64)),
        r"e is torch.int64 of shape \(40,\), but must be floating point",
    ),
    (dict(u=torch.tensor(1.0)), r"u is torch.float32 of shape \(\), but must be floating point"),
    (
        dict(e=torch.ones(EDGES, device="meta")),
        "tensors are on 'meta' and 'cpu': move them to one device",
    ),
    (
        dict(message="u_dot_e", e=torch.ones(EDGES, 2, 3)),
        r"u_dot_e sums .* the widths differ: u \(7, 2, 4\) and e",
    ),
    (dict(message="u_dot_e", e=torch.ones(EDGES)), "u_dot_e sums .* the widths differ"),
    (
        dict(edge_index=torch.zeros(3, 5, dtype=torch.int64)),
        r"edge_index is torch.int64 of shape \(3, 5\)",
    ),
    (dict(edge_index=torch.zeros(2, EDGES)), "edge_index is torch.float32"),
    (
        dict(message="copy_e", u=None, num_dst=None),
        "message=copy_e does not tell how many destination nodes",
    ),
    (dict(num_dst=-1), "num_dst=-1 is not a number of nodes: pass a whole number of at least 0"),
]


@pytest.mark.parametrize("change, text", WRONG)
def test_wrong_arguments(change, text):
    arguments = (
        dict(
            edge_index=make_edges(),
            message="u_mul_e",
            reduce="sum",
            u=torch.ones(SRC, 2, 4),
            e=torch.ones(EDGES, 2, 1),
            num_dst=DST,
        )
        | change
    )
    with pytest.raises(ValueError, match=f"^{text}"), unchecked():
        update_all(
            arguments.pop("edge_index"),
            arguments.pop("message"),
            arguments.pop("reduce"),
            **arguments,
        )


@pytest.mark.parametrize("row, value", list(itertools.product((0, 1), (-1, SRC, 2**31 - 1))))
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_edges_out_of_range(row, value, kernel):
    edge_index = make_edges()
    edge_index[row, 3] = value
    u, v, e = torch.ones(SRC), torch.ones(DST), torch.ones(EDGES)
    with pytest.raises(IndexError, match=rf"edge_index\[{row}\] has values from .* such nodes"):
        update_all(edge_index, "u_mul_v", "sum", u=u, v=v, kernel=kernel)
    with pytest.raises(IndexError, match=rf"edge_index\[{row}\] has values from .* such nodes"):
        apply_edges(edge_index, "u_add_v", u=u, v=v, kernel=kernel)
    if row:
        with pytest.raises(IndexError, match=r"edge_index\[1\] has values"):
            edge_softmax(edge_index, e, DST, kernel=kernel)


def test_nothing_to_pass():
    none = torch.empty(2, 0, dtype=torch.int64)
    for reduce in REDUCTIONS:
        u = torch.ones(2, 3, requires_grad=True)
        out = update_all(none, "copy_u", reduce, u=u, num_dst=4)
        assert torch.equal(out, torch.full((4, 3), float(reduce == "prod")))
        out.sum().backward()
        assert torch.equal(u.grad, torch.zeros(2, 3))
        assert update_all(none, "copy_u", reduce, u=torch.ones(0, 3), num_dst=0).shape == (0, 3)
        assert update_all(
            make_edges(), "copy_u", reduce, u=torch.ones(SRC, 0), num_dst=DST
        ).shape == (DST, 0)
    assert apply_edges(none, "copy_u", u=torch.ones(2, 3)).shape == (0, 3)
    assert edge_softmax(none, torch.ones(0, 2), 4).shape == (0, 2)


def test_softmax_of_infinite_scores():
    edge_index = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 2, 2]])
    scores = torch.tensor([-math.inf, 1.0, math.nan, 1e30, -1e30])
    out = edge_softmax(edge_index, scores, 3)
    torch.testing.assert_close(out, torch.tensor([0.0, 1.0, math.nan, 1.0, 0.0]), equal_nan=True)
