"""Several reductions in one pass, against the reference and against passes of their own."""

import itertools

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.messages import cpu, reference
from parallel_epochs.models.messages.several import reduce_several
from parallel_epochs.pipeline.graph.edges import sort_edges
from tests.helpers.tensors import same_for_any_threads

NUM_SRC, NUM_DST = 90, 70
EVERY = [parts for count in range(1, 5) for parts in itertools.combinations(cpu.PARTS, count)]


def graph(num_edges: int, hub: int = 0, seed: int = 0) -> torch.Tensor:
    """Random edges, of which `hub` end at one node and as many begin at one; the last nodes have none."""
    rng = torch.Generator().manual_seed(seed)
    ends = [torch.randint(size - 5, (num_edges,), generator=rng) for size in (NUM_SRC, NUM_DST)]
    ends[1][:hub], ends[0][hub : 2 * hub] = 3, 5
    return torch.stack(ends)


def expected(edges, values, parts):
    sent = values.index_select(0, edges[0])
    return {
        name: reference.reduce_messages(
            sent * sent if name == "square" else sent,
            edges[1],
            NUM_DST,
            "sum" if name == "square" else name,
        )
        for name in parts
    }


def check(edges, values, parts, **tolerance):
    """Compare results and gradients with those of the reference, computed in float64."""
    rng = torch.Generator().manual_seed(1)
    leaf, wide = values.clone().requires_grad_(), values.double().requires_grad_()
    found, other = reduce_several(edges, leaf, NUM_DST, parts), expected(edges, wide, parts)
    assert list(found) == list(parts)
    weights = {
        name: torch.randn(part.shape, generator=rng).to(part) for name, part in found.items()
    }
    for name in parts:
        torch.testing.assert_close(found[name].double(), other[name], equal_nan=True, **tolerance)
    for of in (found, other):
        sum((of[name] * weights[name].to(of[name].dtype)).sum() for name in parts).backward()
    torch.testing.assert_close(
        leaf.grad.double(), wide.grad, equal_nan=True, rtol=1e-4, atol=tolerance["atol"]
    )


@pytest.mark.parametrize("parts", EVERY, ids=" ".join)
def test_every_choice(parts):
    values = torch.randn(NUM_SRC, 2, 11, generator=torch.Generator().manual_seed(2))
    check(graph(700), values, parts, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 4, 8, 16, 21, 64])
@pytest.mark.parametrize("num_edges, hub", [(0, 0), (1, 0), (500, 0), (20_000, 6_000)])
def test_sizes_ties_and_hubs(num_edges, hub, channels):
    # Small whole numbers have many ties.
    values = torch.randint(
        -3, 4, (NUM_SRC, channels), generator=torch.Generator().manual_seed(3)
    ).float()
    check(graph(num_edges, hub), values, cpu.PARTS, atol=5e-3, rtol=1e-5)


def test_missing_and_infinite_values():
    values = torch.randn(NUM_SRC, 9, generator=torch.Generator().manual_seed(2))
    values[4, 2], values[7, 3], values[9, 8] = torch.nan, torch.inf, -torch.inf
    # The gradient of an infinite square is that of the sum of gradients here, and the sum of infinite ones there.
    check(graph(400), values, ("sum", "max", "min"), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(
        reduce_several(graph(400), values, NUM_DST, ("square",)),
        expected(graph(400), values, ("square",)),
        equal_nan=True,
    )


def test_sorted_edges_of_either_width_and_plain_ones_give_the_same_bits():
    edges, values = (
        graph(3000),
        torch.randn(NUM_SRC, 12, generator=torch.Generator().manual_seed(2)),
    )
    wide, _ = sort_edges(edges, NUM_SRC)
    wide = EdgeIndex(wide.as_tensor(), sparse_size=(NUM_SRC, NUM_DST), sort_order="col")
    narrow = EdgeIndex(wide.as_tensor().int(), sparse_size=(NUM_SRC, NUM_DST), sort_order="col")
    for parts in (cpu.PARTS, ("square",)):
        first, *others = (
            reduce_several(kind, values, NUM_DST, parts)
            for kind in (wide.as_tensor(), wide, narrow)
        )
        assert all(torch.equal(first[name], other[name]) for other in others for name in parts)


def test_any_number_of_threads_gives_the_same_bits():
    edges, values = (
        graph(30_000, 9_000),
        torch.randn(NUM_SRC, 13, generator=torch.Generator().manual_seed(2)),
    )

    def compute():
        out = torch.stack(
            [*reduce_several(edges, values.requires_grad_(), NUM_DST, cpu.PARTS).values()]
        )
        return out, *torch.autograd.grad(out.square().sum(), values)

    same_for_any_threads(compute, (1, 4, 4))


def test_gradients_have_gradients_and_no_gradient_needs_no_order_by_source():
    edges, values = (
        graph(60),
        torch.randn(NUM_SRC, 3, generator=torch.Generator().manual_seed(2)).double(),
    )
    leaf = values.float().requires_grad_()

    def second(function):
        total = sum(part.square().sum() for part in function(leaf).values())
        (first,) = torch.autograd.grad(total, leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0]

    torch.testing.assert_close(
        second(lambda v: reduce_several(edges, v, NUM_DST, cpu.PARTS)),
        second(lambda v: expected(edges, v, cpu.PARTS)),
        rtol=1e-4,
        atol=1e-2,
    )
    with torch.no_grad():
        for name, part in reduce_several(edges, leaf, NUM_DST, cpu.PARTS).items():
            torch.testing.assert_close(part, expected(edges, leaf, (name,))[name])


def test_an_end_outside_of_the_graph_is_refused():
    edges = graph(50)
    edges[0, 7] = NUM_SRC
    with pytest.raises(IndexError):
        reduce_several(edges, torch.randn(NUM_SRC, 4), NUM_DST, cpu.PARTS)
    broken = EdgeIndex(torch.tensor([[99], [1]]), sparse_size=(NUM_SRC, NUM_DST), sort_order="col")
    with (
        torch.no_grad(),
        pytest.raises(IndexError, match="an edge has an end that is not in the graph"),
    ):
        reduce_several(broken, torch.randn(NUM_SRC, 4), NUM_DST, cpu.PARTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    edges, values = (
        graph(5000),
        torch.randn(NUM_SRC, 8, generator=torch.Generator().manual_seed(2)).to(dtype),
    )
    found = reduce_several(edges, values, NUM_DST, ("sum", "max"))
    for name, part in expected(edges, values.float(), ("sum", "max")).items():
        assert found[name].dtype == dtype
        torch.testing.assert_close(
            found[name].float(), part.to(dtype).float(), atol=0.02, rtol=0.01
        )


@pytest.mark.slow
def test_it_compiles():
    edges, values = graph(200), torch.randn(NUM_SRC, 5).requires_grad_()
    torch._dynamo.reset()

    def call(leaf):
        return torch.stack([*reduce_several(edges, leaf, NUM_DST, cpu.PARTS).values()])

    compiled = torch.compile(call, backend="aot_eager")
    torch.testing.assert_close(compiled(values), call(values))
    for function in (compiled, call):
        function(values).square().sum().backward()
