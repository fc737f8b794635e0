"""The operators of messages: the reference by loops over edges, the kernels against the reference in float64."""

import itertools

import pytest
import torch

from parallel_epochs.models.messages import (
    MESSAGES,
    REDUCTIONS,
    apply_edges,
    edge_softmax,
    update_all,
)

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
