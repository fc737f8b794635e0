"""Cases for the Triton kernels of attention, run by test_gpu.py in a process of their own."""

import importlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from parallel_epochs.models import structure
from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.messages import attention_ops, gpu_attention
from parallel_epochs.models.messages.attention import SCORES, attention
from parallel_epochs.models.messages.attention_reference import AttentionCall
from tests.helpers.operators import opcheck
from tests.helpers.triton_process import choose_device, more
from tests.models.conftest import poisoned_memory  # noqa: F401 (a fixture)
from tests.models.messages.test_attention import assert_close, problem, run

DEVICE = choose_device(gpu, gpu_attention)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that rows of dozens of edges lie in several chunks, and those of hundreds in more than are merged at once."""
    monkeypatch.setattr(gpu, "MIN_CHUNK", 8)


def compute(tensors, edge_index, dtype=torch.float32, **options):
    """Return outputs, weights and gradients by name, of the Triton kernels."""
    place = {name: None if value is None else value.to(DEVICE) for name, value in tensors.items()}
    options = {
        name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    results = run(place, edge_index.to(DEVICE), dtype, kernel="fused", **options)
    return {name: value.cpu() for name, value in results.items()}


def check(tensors, edge_index, **options):
    options = dict(seed=torch.tensor([7])) | options
    ours = compute(tensors, edge_index, **options)
    assert_close(ours, run(tensors, edge_index, torch.float64, **options), 4e-5)
    return ours


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    "edge_dim, options",
    [
        (3, dict(edge_dropout=0.4, dropout=0.2, negative_slope=-0.5)),
        (17, dict(num_loops=8, edge_dropout=0.3)),
        *more(
            (0, {}),
            (2, dict(num_loops=5)),
            (0, dict(dropout=1.0, num_loops=3)),
            (2, dict(edge_dropout=1.0)),
        ),
    ],
)
def test_the_kernel_gives_the_references_numbers(score, edge_dim, options):
    tensors, edge_index = problem(
        score,
        num_src=9,
        num_dst=8,
        num_edges=20,
        edge_dim=edge_dim,
        num_loops=options.get("num_loops"),
    )
    ours = check(tensors, edge_index, score=score, **options)
    assert not ours["out"][-1].any() or options.get("num_loops") == 8


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("flip", [False, *more(True)])
def test_a_row_of_many_chunks(score, flip):
    """A row of either order lies in more chunks than are merged at once, and two runs agree to the bit."""
    tensors, edge_index = problem(
        score, 1, num_src=4, num_dst=4, num_edges=150, hub=True, edge_dim=2, num_loops=4
    )
    options = dict(score=score, num_loops=4, dropout=0.2, seed=torch.tensor([7]))
    edge_index = edge_index.flip(0).int() if flip else edge_index
    first = check(tensors, edge_index, **options)
    if not flip:
        again = compute(tensors, edge_index, **options)
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_self_loops_that_are_removed_fill_chunks_of_their_own():
    """By destination, they lie behind the last edge that counts."""
    tensors, edge_index = problem("gatv2", 1, 2, num_src=3, num_dst=3, num_edges=60, num_loops=2)
    edge_index[:, :36] = torch.arange(36) % 3
    edge_index[:, 36:] = torch.tensor([[0], [2]])
    check(tensors, edge_index, score="gatv2", num_loops=2)


@pytest.mark.parametrize(
    "score, heads, channels", [("gatv2", 3, 20), ("gat", 5, 130), ("dot", 2, 130), ("dot", 1, 1)]
)
def test_sizes_of_every_kind(score, heads, channels):
    check(
        *problem(score, heads, channels, num_src=5, num_dst=4, num_edges=12, edge_dim=1),
        score=score,
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("num_src, num_dst", [(3, 2), *more((3, 0), (0, 2))])
def test_graphs_without_edges(score, num_src, num_dst):
    tensors, edge_index = problem(score, num_src=3, num_dst=num_dst, num_edges=0)
    for name in ("message", "source"):
        tensors[name] = None if tensors[name] is None else tensors[name][:num_src]
    check(tensors, edge_index, score=score)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *more(torch.float16)])
def test_16_bits_are_read_as_they_are(score, dtype):
    """Gradients have the dtype of their tensors, and sums are those of float32."""
    tensors, edge_index = problem(score, num_src=5, num_dst=4, num_edges=12, edge_dim=2)
    order = structure.find_structure(edge_index.to(DEVICE), 5, 4, by_source=True)
    results = []
    for kind in (dtype, torch.float32):
        message, source, target, attr, _, weight, att = (
            None
            if value is None
            else value.to(DEVICE, dtype).to(torch.float32 if name in ("weight", "att") else kind)
            for name, value in tensors.items()
        )
        seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        nodes, edges = (message, source, target, order), (attr, None, weight, att, seed)
        call = AttentionCall(*nodes, *edges, score, 0.2, 0.0, 0.0, 12)
        out, lse, _ = attention_ops.forward(call, False)
        grads = attention_ops.backward(out.cos(), out, lse, call, True)
        assert (
            grads[0].dtype == grads[3].dtype == kind
            and out.dtype == grads[5].dtype == torch.float32
        )
        results.append([out, *grads])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(
            ours, theirs.to(ours.dtype), rtol=2 * torch.finfo(ours.dtype).eps, atol=1e-6
        )


def test_operators():
    tensors, edge_index = problem("gat", 1, num_src=5, num_dst=4, num_edges=8, edge_dim=1)
    given = [
        None if value is None else value.to(DEVICE).requires_grad_() for value in tensors.values()
    ]
    order = structure.find_structure(edge_index.to(DEVICE), 5, 4, by_source=True)
    seed = torch.tensor([3], device=DEVICE)
    call = AttentionCall(*given[:3], order, *given[3:], seed, "gat", 0.2, 0.1, 0.1, 8)
    opcheck(attention_ops.forward, (call, False))


@pytest.mark.skipif(DEVICE == "cuda", reason="for machines without a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_on_a_gpu_choose_these_kernels(dtype, monkeypatch):
    """They are read as they are, and backward will need both orders of the edges."""
    module = importlib.import_module("parallel_epochs.models.messages.attention")
    fused, seen = module.attend_fused, []
    monkeypatch.setattr(
        module,
        "attend_fused",
        lambda call, *args: (seen.append(call.message.dtype), fused(call, *args))[1],
    )
    with FakeTensorMode():
        tensors = dict(
            message=torch.ones(5, 2, 3, device="cuda", dtype=dtype),
            source=None,
            target=torch.ones(4, 2, 3, device="cuda", dtype=dtype),
            att=torch.ones(2, 3, device="cuda", dtype=dtype),
        )
        edge_index = torch.zeros(2, 6, dtype=torch.int64, device="cuda")
        out = attention(**tensors, edge_index=edge_index, score="gatv2", kernel="fused")
        assert seen == [dtype] and attention_ops.needs_sources("gatv2", tensors["message"], None)
        assert out.is_cuda and out.dtype == dtype and out.shape == (4, 2, 3)
