"""The fused attention beside its reference in float64: outputs, weights, gradients, dropout and bad input."""

import functools
import os
import shutil

import pytest
import torch

from parallel_epochs.models import structure
from parallel_epochs.models.kernels.hash import draw_factors
from parallel_epochs.models.messages import attention_ops
from parallel_epochs.models.messages.attention import SCORES, attention
from parallel_epochs.models.messages.attention_reference import AttentionCall
from tests.helpers.operators import opcheck
from tests.helpers.tensors import same_for_any_threads

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)
NAMES = "message", "source", "target", "edge_attr", "loop_attr", "weight", "att"


def problem(
    score,
    heads=2,
    channels=5,
    *,
    num_src=23,
    num_dst=17,
    num_edges=90,
    edge_dim=3,
    num_loops=None,
    hub=False,
    seed=0,
):
    """Draw the tensors of a call by name; the last destination and the last source have no edges."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=rng)  # noqa: E731
    vector = (heads,) if score == "gat" else (heads, channels)
    rows = heads if score == "gat" else heads * channels
    dst = torch.randint(max(num_dst - 1, 1), (num_edges,), generator=rng)
    if hub:
        dst[: num_edges // 2] = 3
    tensors = dict(
        message=draw(num_src, heads, channels),
        source=None if score == "gatv2" else draw(num_src, *vector),
        target=draw(num_dst, *vector),
        edge_attr=draw(num_edges, edge_dim) if edge_dim else None,
        loop_attr=draw(num_loops, edge_dim) if num_loops and edge_dim else None,
        weight=draw(rows, edge_dim) if edge_dim else None,
        att=draw(heads, channels) if score == "gatv2" else None,
    )
    return tensors, torch.stack(
        [torch.randint(max(num_src - 1, 1), (num_edges,), generator=rng), dst]
    )


def run(tensors, edge_index, dtype=torch.float32, *, weights=False, **options):
    """Return the output, the weights if asked for, and the gradients of all tensors by name."""
    leaves = {
        name: None if value is None else value.detach().to(dtype).requires_grad_()
        for name, value in tensors.items()
    }
    given = {name: value for name, value in leaves.items() if name != "loop_attr"}
    out = attention(
        given["message"],
        given["source"],
        given["target"],
        edge_index,
        given["edge_attr"],
        given["weight"],
        given["att"],
        loop_attr=leaves["loop_attr"],
        return_weights=True,
        **options,
    )
    total = (
        out[0] * torch.arange(out[0].numel(), device=out[0].device).view_as(out[0]).cos()
    ).sum()
    if weights:
        total = (
            total
            + (
                out[1] * torch.arange(out[1].numel(), device=out[1].device).view_as(out[1]).sin()
            ).sum()
        )
    total.backward()
    return {"out": out[0].detach(), "weights": out[1].detach()} | {
        name: leaf.grad for name, leaf in leaves.items() if leaf is not None
    }


def assert_close(ours, theirs, tolerance=2e-5):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].shape == value.shape
        if value.numel():
            error = float(
                (ours[name].double() - value.double()).abs().max()
                / (value.double().abs().max() + 1)
            )
            assert error < tolerance, (name, error)


def test_the_reference_is_the_formula():
    tensors, edge_index = problem("dot", num_loops=4)
    out = run(tensors, edge_index, torch.float64, score="dot", num_loops=4)
    x, k, q, attr, loops, weight = (tensors[name].double() for name in NAMES[:6])
    expected, src_of, features = torch.zeros_like(q), [[] for _ in q], [[] for _ in q]
    for (src, dst), row in zip(edge_index.T.tolist(), attr, strict=True):
        if src != dst:
            src_of[dst].append(src), features[dst].append(row)
    for node in range(4):
        src_of[node].append(node), features[node].append(loops[node])
    for i, (sources, rows) in enumerate(zip(src_of, features, strict=True)):
        if sources:
            z = (torch.stack(rows) @ weight.T).view(-1, *q.shape[1:])
            alpha = ((q[i] * (k[sources] + z)).sum(2) / 5**0.5).softmax(0)
            expected[i] = (alpha.unsqueeze(2) * (x[sources] + z)).sum(0)
    torch.testing.assert_close(out["out"], expected)


# Without features of edges, the gradients of "dot" are summed by source.
@pytest.mark.parametrize("score, edge_dim", [*((score, 3) for score in SCORES), ("dot", 0)])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(dropout=0.4),
        dict(edge_dropout=0.4, dropout=0.2),
        dict(num_loops=9),
        dict(negative_slope=-0.5),
        dict(num_loops=17, dropout=0.3),
    ],
)
def test_the_kernel_gives_the_references_numbers(score, edge_dim, options, poisoned_memory):
    tensors, edge_index = problem(score, edge_dim=edge_dim, num_loops=options.get("num_loops"))
    options = dict(score=score, seed=torch.tensor([7])) | options
    expected = run(tensors, edge_index, torch.float64, weights=True, **options)
    assert_close(
        run(tensors, edge_index, **options), run(tensors, edge_index, torch.float64, **options)
    )
    assert_close(run(tensors, edge_index, weights=True, **options), expected)
    assert_close(run(tensors, edge_index, weights=True, kernel="reference", **options), expected)
    assert not expected["out"][-1].any() or "num_loops" in options


def test_dropout_factors_are_drawn_evenly():
    factors = draw_factors(torch.tensor([5]), torch.arange(4000), torch.arange(4), 0.3)
    assert set(factors.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs(float(factors.mean()) - 1) < 0.02
    assert float(torch.corrcoef(factors.T).fill_diagonal_(0).abs().max()) < 0.05
    assert not draw_factors(torch.tensor([5]), torch.arange(4000), torch.arange(4), 1.0).any()


def test_edges_with_loops_are_kept_until_they_change():
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]])
    found = structure.find_structure_with_loops(edge_index, 3, 3, 2)
    assert found.indptr.tolist() == [0, 2, 5, 5]
    assert found.position[:5].tolist() == [2, 4, 0, 3, 5]
    assert structure.find_structure_with_loops(edge_index, 3, 3, 2) is found
    edge_index[0, 0] = 2
    assert structure.find_structure_with_loops(edge_index, 3, 3, 2) is not found
    edge_index[1, 0] = 3
    with pytest.raises(IndexError, match="values up to 3, but there are 3"):
        structure.find_structure_with_loops(edge_index, 3, 3, 2)


@pytest.mark.parametrize(
    "heads, channels",
    [(3, 5), (9, 17), (4, 8)],
)
@pytest.mark.parametrize("score", SCORES)
def test_hubs_and_sizes_of_every_kind(score, heads, channels):
    """Rows lie in several chunks, and threads change no bit."""
    for edge_dim, options in (
        (0, {}),
        (8, dict(dropout=0.3)),
        (5, dict(num_loops=40, edge_dropout=0.3)),
    ):
        tensors, edge_index = problem(
            score,
            heads,
            channels,
            num_src=50,
            num_dst=60,
            num_edges=2500,
            hub=True,
            edge_dim=edge_dim,
            num_loops=options.get("num_loops"),
        )
        options = dict(score=score, seed=torch.tensor([2]), kernel="fused") | options
        ours = same_for_any_threads(functools.partial(run, tensors, edge_index, **options), (1, 2))
        assert_close(
            ours, run(tensors, edge_index, torch.float64, **options | {"kernel": "auto"}), 4e-5
        )


@pytest.mark.parametrize(
    "sizes",
    [
        dict(num_edges=0),
        dict(num_edges=1, num_dst=1),
        dict(channels=0),
        dict(num_dst=0, num_edges=0),
    ],
)
def test_graphs_of_almost_nothing(sizes):
    for score in list(SCORES)[
        : 2 if "channels" in sizes else 3
    ]:  # a dot product is divided by the root of the channels
        tensors, edge_index = problem(score, **sizes)
        assert_close(
            run(tensors, edge_index, score=score),
            run(tensors, edge_index, torch.float64, score=score),
        )


def test_gradients_of_gradients_and_of_dependent_inputs():
    """An input that was computed from another gets its gradient once."""
    tensors, edge_index = problem("gatv2", num_src=9, num_dst=9)
    results = []
    for dtype in (torch.float32, torch.float64):
        message = tensors["message"].to(dtype).requires_grad_()
        out = attention(
            message, None, 2 * message, edge_index, att=tensors["att"].to(dtype), score="gatv2"
        )
        (first,) = torch.autograd.grad(out.square().sum(), message, create_graph=True)
        results.append((first, *torch.autograd.grad(first.square().sum(), message)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_operators_and_compile(score):
    tensors, edge_index = problem(score)
    leaves = {
        name: None if value is None else value.requires_grad_() for name, value in tensors.items()
    }
    orders = structure.find_structure(edge_index, 23, 17, by_source=True)
    nodes = (leaves["message"], leaves["source"], leaves["target"], orders)
    edges = (leaves["edge_attr"], None, leaves["weight"], leaves["att"], torch.tensor([3]))
    given = AttentionCall(*nodes, *edges, score, 0.2, 0.1, 0.1, edge_index.size(1))
    opcheck(attention_ops.forward, (given, False))

    def call(leaves):
        return attention(
            leaves["message"],
            leaves["source"],
            leaves["target"],
            edge_index,
            leaves["edge_attr"],
            leaves["weight"],
            leaves["att"],
            loop_attr=leaves["loop_attr"],
            score=score,
            num_loops=5,
        )

    leaves["loop_attr"] = torch.ones(5, 3)
    torch._dynamo.reset()
    torch.testing.assert_close(
        torch.compile(call, fullgraph=True, backend="aot_eager")(leaves), call(leaves)
    )
