"""The fused aggregation against the reference in float64: the output and every gradient, by name."""

import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch_geometric import EdgeIndex

from parallel_epochs.models.aggregate import AGGREGATIONS, aggregate, backend, cpu, ops
from parallel_epochs.models.aggregate.reduce import POWER_RANGE
from parallel_epochs.models.kernels import sorting
from tests.helpers.operators import opcheck
from tests.helpers.shapes import unchecked
from tests.helpers.tensors import same_for_any_threads

pytestmark = [
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
    pytest.mark.usefixtures("poisoned_memory"),
]

NAMES = ("x", "edge_attr", "weight", "bias", "t", "p")
LEARNS = dict.fromkeys(AGGREGATIONS, "") | {"softmax": "t", "softmax_sum": "t", "powermean": "p"}


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert cpu.LIBRARY.get() is not None, cpu.LIBRARY.missing()


def graph(
    num_src,
    num_dst,
    num_edges,
    *,
    edge_dim=8,
    channels=16,
    encoded=False,
    hub=0,
    seed=0,
    dtype=torch.int64,
):
    """Random edges between all nodes but the last, duplicates included; the first `hub` of them into node 0.

    Features are multiples of 1/32 and so are exact in sums: float32 and float64 agree on which messages are positive
    and which are equal. One of 100,000 would otherwise be decided by rounding.
    """
    g = torch.Generator().manual_seed(seed)
    edge_index = torch.stack(
        [
            torch.randint(max(num_src - 1, 1), (num_edges,), generator=g),
            torch.randint(max(num_dst - 1, 1), (num_edges,), generator=g),
        ]
    )
    edge_index[1, :hub] = 0
    inputs = dict.fromkeys(NAMES)
    inputs["x"] = torch.randn(num_src, channels, generator=g)
    if encoded:
        inputs["edge_attr"] = torch.randn(num_edges, channels, generator=g)
    elif edge_dim is not None:
        inputs["edge_attr"] = torch.rand(num_edges, edge_dim, generator=g)
        inputs["weight"] = torch.randn(channels, edge_dim, generator=g) * 0.5
        inputs["bias"] = torch.randn(channels, generator=g)
    inputs = {
        name: value if value is None else (value * 32).round() / 32
        for name, value in inputs.items()
    }
    # Positive, so that the gradients of the scalars t and p do not cancel to nothing.
    grad = torch.rand(num_dst, channels, generator=g) + 0.5
    return edge_index.to(dtype), inputs, grad


def run(edge_index, inputs, grad, *, aggr, kernel, dtype=torch.float32, learn=None, **options):
    learn = LEARNS[aggr] if learn is None else learn
    leaves = {
        name: None if value is None else torch.as_tensor(value).to(dtype, copy=True)
        for name, value in inputs.items()
    }
    for name, leaf in leaves.items():
        if leaf is not None and (len(name) > 1 or name == "x" or name in learn):
            leaf.requires_grad_()
    out = aggregate(
        leaves["x"],
        edge_index,
        leaves["edge_attr"],
        leaves["weight"],
        leaves["bias"],
        aggr=aggr,
        num_dst=grad.size(0),
        kernel=kernel,
        **options,
        **{name: leaves[name] for name in ("t", "p", "table") if leaves.get(name) is not None},
    )
    out.backward(grad.to(out.dtype))
    return {"out": out.detach()} | {
        name: leaf.grad for name, leaf in leaves.items() if leaf is not None
    }


def assert_close(ours, exact, tolerance=1e-5, grad=None, exponent=1.0):
    for name, expected in exact.items():
        actual = ours[name]
        if expected is not None and expected.numel() == 0:
            continue  # of no edges or no features: its gradient may be none
        assert (actual is None) == (expected is None), name
        if expected is None:
            continue
        assert actual.shape == expected.shape, name
        scale = expected.double().norm()
        if name in "tp" and grad is not None:
            # The terms of these sums may cancel (one message: none depends on t), but not their rounding. Those of p
            # are out * log(message) / p.
            terms = 0.1 * grad * exact["out"]
            if name == "p":
                terms = (
                    grad
                    * exact["out"]
                    * exact["out"].clamp(min=1e-7).log().abs().clamp(min=1)
                    / exponent
                )
            scale = scale.maximum(terms.abs().sum())
        error = (actual.double() - expected.double()).norm()
        assert error <= tolerance * scale, f"{name}: {error:.1e} of {scale:.1e}"


def check(edge_index, inputs, grad, **options):
    ours = run(edge_index, inputs, grad, kernel="fused", **options)
    exact = run(edge_index, inputs, grad, kernel="reference", dtype=torch.float64, **options)
    assert_close(ours, exact, grad=grad, exponent=inputs["p"])


def off_the_bounds(edge_index, inputs, grad):
    """No gradient for what is at a bound of a power mean, where rounding decides the side."""
    low, high = POWER_RANGE
    x, attr, weight, bias, p = (
        inputs[name] if inputs[name] is None else inputs[name].double()
        for name in (*NAMES[:4], "p")
    )
    message = x[edge_index[0]]
    if attr is not None:
        message = message + (
            attr if weight is None else torch.nn.functional.linear(attr, weight, bias)
        )
    powers = (message.relu() + 1e-7).clamp(low, high) ** p
    mean = torch.zeros(grad.shape, dtype=torch.float64).index_add(0, edge_index[1], powers)
    mean /= edge_index[1].bincount(minlength=grad.size(0)).clamp(min=1).unsqueeze(1)
    return grad * ((mean / low - 1).abs() > 1e-5) * ((mean / high - 1).abs() > 1e-5)


@pytest.mark.parametrize("p", [-2.0, 0.5, 1.0, 3.0, 5.0])
def test_power_clamps_messages_and_mean(p):
    """Messages lie on both sides of both clamps, in rows of few edges or none."""
    edge_index, inputs, grad = graph(30, 40, 100)
    inputs["x"] *= torch.tensor([1 / 16, 1.0, 128.0])[torch.arange(30) % 3, None]
    inputs["p"] = torch.tensor([p])
    message = inputs["x"][edge_index[0]] + torch.nn.functional.linear(
        *(inputs[name] for name in NAMES[1:4])
    )
    assert (message < 1e-4).any() and (message > 100).any()
    grad = off_the_bounds(edge_index, inputs, grad)
    leaves = {name: inputs[name].double().requires_grad_() for name in (*NAMES[:4], "p")}
    x, attr, weight, bias, exponent = leaves.values()
    message = (x[edge_index[0]] + torch.nn.functional.linear(attr, weight, bias)).relu() + 1e-7
    degree = edge_index[1].bincount(minlength=40).unsqueeze(1)
    powers = torch.zeros(grad.shape, dtype=torch.float64).index_add(
        0, edge_index[1], message.clamp(1e-4, 100) ** exponent
    )
    mean = powers / degree.clamp(min=1)
    assert abs(p) <= 1 or ((mean > 100) & (degree > 0)).any()
    out = mean.clamp(1e-4, 100) ** (1 / exponent)
    out.backward(grad.double())
    exact = {"out": out.detach()} | {name: leaf.grad for name, leaf in leaves.items()}
    for kernel, dtype in (("fused", torch.float32), ("reference", torch.float64)):
        ours = run(edge_index, inputs, grad, aggr="powermean", kernel=kernel, dtype=dtype)
        torch.testing.assert_close(ours["out"].double(), exact["out"], rtol=1e-5, atol=0)
        assert_close(ours, exact, grad=grad, exponent=abs(p))


@pytest.mark.parametrize(
    "p, x, message", [(1.0, 200.0, 100.0), (-2.0, 200.0, 100.0), (1.0, 0.0, 1e-4)]
)
def test_a_mean_at_its_bound_is_inside(p, x, message):
    inputs = dict.fromkeys(NAMES) | {"x": torch.tensor([[x]]), "p": torch.tensor([p])}
    dst = torch.arange(400).repeat_interleave(torch.arange(1, 401))
    ours = run(
        torch.stack([torch.zeros_like(dst), dst]),
        inputs,
        torch.ones(400, 1),
        aggr="powermean",
        kernel="fused",
    )
    # Where all messages are the same, so is their power mean whatever p is, but its bound depends on p.
    torch.testing.assert_close(ours["out"], torch.full((400, 1), message), rtol=1e-5, atol=0)
    torch.testing.assert_close(ours["p"], torch.zeros(1), rtol=0, atol=0.01 * message)
    assert ours["x"].item() == 0


given_any_graph = given(
    aggr=st.sampled_from(AGGREGATIONS),
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    num_edges=st.one_of(st.integers(0, 40), st.integers(0, 3000), st.just(10_000)),
    channels=st.integers(1, 130),
    features=st.one_of(st.none(), st.integers(0, 9), st.just("encoded")),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    t=st.floats(-5, 5),
    p=st.one_of(st.floats(-3, -0.3), st.floats(0.3, 6)),
    seed=st.integers(0, 99),
)


def check_any_graph(aggr, sizes, num_edges, channels, features, dtype, t, p, seed):
    edge_index, inputs, grad = graph(
        *sizes,
        num_edges,
        channels=channels,
        seed=seed,
        dtype=dtype,
        encoded=features == "encoded",
        edge_dim=features if isinstance(features, int) else None,
    )
    if aggr.startswith("power"):
        # Where p < 1 the slope m^(p - 1) is steepest at m = 0: the rounding of messages close to it is all one sees.
        inputs = {name: value if value is None else value.abs() for name, value in inputs.items()}
        inputs["x"] += 0.125
    inputs |= dict(t=torch.tensor([t]), p=torch.tensor([p]))
    if aggr.startswith("power"):
        grad = off_the_bounds(edge_index, inputs, grad)
    check(edge_index, inputs, grad, aggr=aggr)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given_any_graph
def test_any_graph(**case):
    check_any_graph(**case)


# Every aggregation has two kinds of features, and every kind half of them.
HUBS = [
    (aggr, features)
    for number, aggr in enumerate(AGGREGATIONS)
    for features in ((8, "encoded"), (20, None))[number % 2]
]


@pytest.mark.parametrize("aggr, features", HUBS)
def test_hub_of_10_000_edges(aggr, features):
    edge_index, inputs, grad = graph(
        300,
        40,
        15_000,
        channels=33,
        hub=10_000,
        encoded=features == "encoded",
        edge_dim=features if isinstance(features, int) else None,
    )
    inputs |= dict(t=torch.tensor([1.3]), p=torch.tensor([1.7]))
    check(edge_index, inputs, grad, aggr=aggr)
    check(
        edge_index.flip(0),
        inputs | {"x": inputs["x"][:40].repeat(1, 1)},
        grad.repeat(8, 1)[:300],
        aggr=aggr,
    )


@pytest.mark.parametrize("aggr", AGGREGATIONS)
def test_edge_index_is_used_as_it_is(aggr):
    edge_index, inputs, grad = graph(50, 50, 900, dtype=torch.int32)
    plain = run(edge_index, inputs, grad, aggr=aggr, kernel="fused")
    for order in ("col", "row"):
        sorted_index, perm = EdgeIndex(edge_index, sparse_size=(50, 50)).sort_by(order)
        permuted = inputs | {"edge_attr": inputs["edge_attr"][perm]}
        ours = run(sorted_index, permuted, grad, aggr=aggr, kernel="fused")
        ours["edge_attr"] = torch.empty_like(ours["edge_attr"]).index_copy_(
            0, perm, ours["edge_attr"]
        )
        assert_close(ours, plain, 1e-6)


def test_max_divides_the_gradient_among_ties():
    edge_index = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 0]])  # nodes 0 (twice) and 1 tie
    x = torch.tensor([[3.0], [3.0], [1.0]], requires_grad=True)
    aggregate(x, edge_index, aggr="max", num_dst=1, kernel="fused").backward(torch.tensor([[6.0]]))
    torch.testing.assert_close(x.grad, torch.tensor([[4.0], [2.0], [0.0]]))


@pytest.mark.parametrize("aggr", AGGREGATIONS)
def test_threads_do_not_change_a_bit(aggr):
    edge_index, inputs, grad = graph(500, 400, 30_000, channels=40, edge_dim=9, hub=9_000)
    inputs |= dict(t=torch.tensor([0.7]), p=torch.tensor([2.0]))
    same_for_any_threads(lambda: run(edge_index, inputs, grad, aggr=aggr, kernel="fused"))


@pytest.mark.parametrize("aggr", AGGREGATIONS)
def test_nan_reaches_its_destinations_and_only_these(aggr):
    edge_index, inputs, _ = graph(30, 30, 200)
    inputs["x"][3, 5] = float("nan")
    out = aggregate(
        inputs["x"],
        edge_index,
        inputs["edge_attr"],
        inputs["weight"],
        inputs["bias"],
        aggr=aggr,
        p=2.0,
        kernel="fused",
    )
    expected = torch.zeros(30, 16, dtype=torch.bool)
    expected[edge_index[1, edge_index[0] == 3], 5] = True
    assert torch.equal(out.isnan(), expected) and expected.any()


def test_a_gradient_of_zero_gives_exactly_zero():
    edge_index, inputs, grad = graph(30, 30, 200)
    for name, value in run(edge_index, inputs, grad * 0, aggr="softmax", kernel="fused").items():
        assert name == "out" or value is None or (value == 0).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_features(dtype):
    edge_index, inputs, grad = graph(40, 40, 500)
    rounded = {
        name: value if value is None else value.to(dtype).float() for name, value in inputs.items()
    }
    exact = run(
        edge_index, rounded, grad.to(dtype), aggr="softmax", kernel="reference", dtype=torch.float64
    )
    ours = run(edge_index, inputs, grad, aggr="softmax", kernel="fused", dtype=dtype)
    assert ours["out"].dtype == dtype
    assert_close(ours, exact, 1e-2)


# With symbols for sizes, the last one takes a hundred times as long as the others.
@pytest.mark.parametrize(
    "tests",
    [
        ("test_schema", "test_autograd_registration", "test_faketensor"),
        pytest.param("test_aot_dispatch_dynamic", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "aggr, encoded, related",
    [
        *((aggr, encoded, False) for aggr in ops.KINDS for encoded in (False, True)),
        ("softmax", False, True),
    ],
)
def test_operators(aggr, encoded, related, tests):
    edge_index, inputs, grad = graph(12, 12, 40, encoded=encoded)
    structure = sorting.sort_edges(edge_index, 12, 12)
    x, attr, weight, bias = (
        None if value is None else value.requires_grad_() for value in list(inputs.values())[:4]
    )
    table = None
    if related:
        attr = torch.cat(
            [torch.arange(40.0).remainder(3).unsqueeze(1), attr.detach()], dim=1
        ).requires_grad_()
        table = torch.randn(3, 16, requires_grad=True)
    t = torch.tensor([1.5], requires_grad=aggr not in ("add", "max", "softmax_sg"))
    call = ops.AggregateCall(x, structure, attr, weight, bias, table, t, aggr, 1e-7)
    opcheck(ops.forward, (call, True), test_utils=tests)
    opcheck(sorting.sort_edges, (edge_index, 12, 12), test_utils=tests)
    with torch.no_grad():
        results = ops.AggregateResults(grad, *ops.forward(call, True))
        given = {name: getattr(call, name) for name in ops.DIFFERENTIABLE}
        call = call._replace(
            **{name: None if value is None else value.detach() for name, value in given.items()}
        )
    needed = ops.Needed(True, weight is not None, related)
    opcheck(ops.backward, (results, call, needed), test_utils=tests)


def test_nothing_to_aggregate():
    none = torch.empty(2, 0, dtype=torch.int64)
    for aggr in AGGREGATIONS:
        assert torch.equal(
            aggregate(torch.ones(0, 3), none, aggr=aggr, num_dst=4, kernel="fused"),
            torch.zeros(4, 3),
        )
        x = torch.ones(2, 3, requires_grad=True)
        aggregate(x, none, aggr=aggr, num_dst=0, kernel="fused").sum().backward()
        assert torch.equal(x.grad, torch.zeros(2, 3))


def test_what_runs_and_why():
    edge_index, inputs, _ = graph(10, 10, 20)
    x = inputs["x"]
    assert backend(x, edge_index) == f"fused-cpu ({cpu.LIBRARY.find_simd()})"
    assert "float64" in backend(x.double(), edge_index)
    assert "eps is -1e-07" in backend(x, edge_index, eps=-1e-7)
    with pytest.raises(ValueError, match="t or p has more than one element"), unchecked():
        aggregate(x, edge_index, t=torch.ones(2), kernel="fused")
    assert backend(x, edge_index, kernel="reference") == "reference (kernel=reference)"
    with pytest.raises(ValueError, match="float64.*kernel=auto"):
        aggregate(x.double(), edge_index, kernel="fused")
    with pytest.raises(ValueError, match="kernel=fast is unknown"):
        aggregate(x, edge_index, kernel="fast")
    with pytest.raises(ValueError, match="aggr=median is unknown"):
        aggregate(x, edge_index, aggr="median")
    with pytest.raises(IndexError, match="but there are 10 such nodes"):
        aggregate(x, edge_index + 100, kernel="fused")
    with pytest.raises(ValueError, match="weight has shape"), unchecked():
        aggregate(x, edge_index, inputs["edge_attr"], inputs["weight"][:5], kernel="fused")
    with pytest.raises(ValueError, match="sparse_size"):
        aggregate(
            x, EdgeIndex(edge_index, sparse_size=(12, 12)).sort_by("col").values, kernel="fused"
        )
