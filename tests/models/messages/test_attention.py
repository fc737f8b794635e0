"""The fused attention beside its reference in float64: outputs, weights, gradients, dropout and bad input."""

import pytest
import torch

from parallel_epochs.models import structure
from parallel_epochs.models.kernels.hash import draw_factors
from parallel_epochs.models.messages.attention import SCORES, attention
from tests.helpers.shapes import unchecked

NAMES = "message", "source", "target", "edge_attr", "loop_attr", "weight", "att"


def problem(score, heads=2, channels=5, *, num_src=23, num_dst=17, num_edges=90, edge_dim=3, num_loops=None, hub=False,
            seed=0):
    """Draw the tensors of a call by name; the last destination has no edges."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=rng)  # noqa: E731
    vector = (heads,) if score == "gat" else (heads, channels)
    rows = heads if score == "gat" else heads * channels
    dst = torch.randint(max(num_dst - 1, 1), (num_edges,), generator=rng)
    if hub:
        dst[:num_edges // 2] = 3
    tensors = dict(
        message=draw(num_src, heads, channels), source=None if score == "gatv2" else draw(num_src, *vector),
        target=draw(num_dst, *vector), edge_attr=draw(num_edges, edge_dim) if edge_dim else None,
        loop_attr=draw(num_loops, edge_dim) if num_loops and edge_dim else None,
        weight=draw(rows, edge_dim) if edge_dim else None, att=draw(heads, channels) if score == "gatv2" else None)
    return tensors, torch.stack([torch.randint(num_src, (num_edges,), generator=rng), dst])


def run(tensors, edge_index, dtype=torch.float32, *, weights=False, **options):
    """Return the output, the weights if asked for, and the gradients of all tensors by name."""
    leaves = {name: None if value is None else value.detach().to(dtype).requires_grad_()
              for name, value in tensors.items()}
    given = {name: value for name, value in leaves.items() if name != "loop_attr"}
    out = attention(given["message"], given["source"], given["target"], edge_index, given["edge_attr"],
                    given["weight"], given["att"], loop_attr=leaves["loop_attr"], return_weights=True, **options)
    total = (out[0] * torch.arange(out[0].numel()).view_as(out[0]).cos()).sum()
    if weights:
        total = total + (out[1] * torch.arange(out[1].numel()).view_as(out[1]).sin()).sum()
    total.backward()
    return {"out": out[0].detach(), "weights": out[1].detach()} | {
        name: leaf.grad for name, leaf in leaves.items() if leaf is not None}


def assert_close(ours, theirs, tolerance=2e-5):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        scale = float(value.double().abs().max()) + 1
        error = float((ours[name].double() - value.double()).abs().max()) / scale if value.numel() else 0
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


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("options", [
    dict(), dict(dropout=0.4), dict(edge_dropout=0.4, dropout=0.2), dict(num_loops=9), dict(negative_slope=-0.5),
    dict(num_loops=17, dropout=0.3)])
def test_the_kernel_gives_the_references_numbers(score, options):
    tensors, edge_index = problem(score, num_loops=options.get("num_loops"))
    options = dict(score=score, seed=torch.tensor([7])) | options
    expected = run(tensors, edge_index, torch.float64, weights=True, **options)
    assert_close(run(tensors, edge_index, **options), run(tensors, edge_index, torch.float64, **options))
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


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize("change, message", [
    (dict(score="sum"), "score=sum is unknown; choose one of gatv2, gat, dot"),
    (dict(kernel="fast"), "kernel=fast is unknown"), (dict(dropout=1.5), r"dropout must be in \[0, 1\], not 1.5"),
    (dict(target=None), "target is missing, but must be"), (dict(source=torch.ones(3)), "source has shape"),
    (dict(att=torch.ones(2, 4)), r"att has shape \(2, 4\), but must be \[2, 5\]"),
    (dict(weight=torch.ones(9, 3)), "weight has shape"), (dict(edge_attr=torch.ones(4, 3)), "edge_attr has shape"),
    (dict(num_loops=3), "loop_attr is missing"), (dict(message=torch.ones(4, 5)), "must be floating point")])
def test_what_does_not_fit_is_refused(kernel, change, message):
    tensors, edge_index = problem("gatv2")
    given = dict(tensors, edge_index=edge_index, score="gatv2", kernel=kernel) | change
    with pytest.raises(ValueError, match=message), unchecked():
        attention(**given)
