"""Cases for the Triton kernels, run by test_gpu.py in a process of their own: on a GPU, or interpreted on a CPU."""

import functools
from itertools import pairwise

import pytest
import torch

from parallel_epochs.models.aggregate import fused, gpu, ops, reference
from parallel_epochs.models.kernels import sorting
from tests.helpers.operators import opcheck
from tests.helpers.triton_process import choose_device, more
from tests.models.aggregate.test_fused import assert_close, graph, run
from tests.models.aggregate.test_relation_table import related_graph
from tests.models.conftest import poisoned_memory  # noqa: F401 (a fixture)

DEVICE = choose_device(gpu)
# The power mean has no kernel.
KINDS = [aggr for aggr in ops.KINDS if aggr != "powermean"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that rows of dozens of edges lie in several chunks, and those of hundreds in more than are merged at once."""
    monkeypatch.setattr(gpu, "MIN_CHUNK", 24)


def compute(edge_index, inputs, grad, *, aggr, dtype=torch.float32, exact=False):
    """The output and every gradient by name: of the Triton kernels, or of the reference in float64."""

    def aggregate(*args, kernel, **options):
        options = dict(t=1.0, p=1.0, eps=1e-7) | options
        return (reference if exact else fused).aggregate(*args, **options)

    device = "cpu" if exact else DEVICE
    place = {name: None if value is None else value.to(device) for name, value in inputs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.models.aggregate.test_fused.aggregate", aggregate)
        results = run(
            edge_index.to(device),
            place,
            grad.to(device),
            aggr=aggr,
            kernel="",
            dtype=torch.float64 if exact else dtype,
        )
    return {name: None if value is None else value.cpu() for name, value in results.items()}


def problem(aggr, features, channels, num_relations=None, *, num_edges=60, **options):
    draw = (
        graph
        if num_relations is None
        else functools.partial(related_graph, num_relations=num_relations)
    )
    edge_index, inputs, grad = draw(
        12,
        9,
        num_edges,
        channels=channels,
        encoded=features == "encoded",
        edge_dim=features if isinstance(features, int) else None,
        **options,
    )
    return edge_index, inputs | dict(t=torch.tensor([-1.3])), grad


def check(aggr, features, channels, **options):
    edge_index, inputs, grad = problem(aggr, features, channels, **options)
    ours = compute(edge_index, inputs, grad, aggr=aggr)
    assert (ours["out"][-1] == 0).all() and (ours["x"][-1] == 0).all()  # nodes without edges
    assert_close(ours, compute(edge_index, inputs, grad, aggr=aggr, exact=True), grad=grad)


@pytest.mark.parametrize(
    "aggr", ["softmax", "max", *more("softmax_sg", "softmax_sum", "mean", "add")]
)
@pytest.mark.parametrize(
    "features, channels, dtype",
    [
        (None, 5, torch.int64),
        (3, 20, torch.int32),
        ("encoded", 17, torch.int32),
        (17, 12, torch.int64),
    ],
)
def test_against_the_reference(aggr, features, channels, dtype):
    check(aggr, features, channels, dtype=dtype)


@pytest.mark.parametrize("edge_dim", [0, 1, 3, 8, 9, 65, *more(2, 4, 5, 6, 7, 15, 16, 33, 64)])
def test_any_edge_dim(edge_dim):
    check("softmax", edge_dim, 8, num_edges=20)


@pytest.mark.parametrize(
    "features, channels",
    [
        (None, 1),
        (2, 130),
        (18, 16),
        ("encoded", 130),
        *more((2, 1), (2, 64), (18, 130), ("encoded", 64)),
    ],
)
def test_any_number_of_channels(features, channels):
    check("softmax", features, channels, num_edges=30)


@pytest.mark.parametrize(
    "aggr, features",
    [
        ("softmax", 2),
        ("max", 2),
        ("add", 2),
        *more(
            *((aggr, 2) for aggr in KINDS if aggr not in ("softmax", "max", "add")),
            ("softmax", 16),
            ("max", 16),
        ),
    ],
)
def test_a_row_of_many_chunks(aggr, features):
    check(aggr, features, 8, num_edges=320, hub=300)
    edge_index, inputs, grad = problem(aggr, features, 8, num_edges=320, hub=300)
    first, second = (compute(edge_index, inputs, grad, aggr=aggr) for _ in range(2))
    assert all(value is None or torch.equal(value, second[name]) for name, value in first.items())
    edge_index = edge_index.flip(0)
    inputs["x"], grad = inputs["x"][:9], grad.repeat(2, 1)[:12]
    assert_close(
        compute(edge_index, inputs, grad, aggr=aggr),
        compute(edge_index, inputs, grad, aggr=aggr, exact=True),
        grad=grad,
    )


def test_offsets_of_64_bits(monkeypatch):
    plan = gpu.plan
    wide = gpu.tl.constexpr(gpu.tl.int64)
    monkeypatch.setattr(gpu, "plan", lambda *args: plan(*args)._replace(WIDE=wide))
    check("softmax", 2, 8, num_edges=80, hub=60)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "aggr, features", [("softmax", 3), ("max", "encoded"), *more(("softmax", 16), ("add", None))]
)
def test_16_bits(aggr, features, dtype):
    edge_index, inputs, grad = problem(aggr, features, 20)
    # Small enough numbers that 16 bits hold them exactly.
    inputs = {
        name: value
        if value is None or len(name) == 1 and name != "x"
        else (value * 8).round().clamp(-16, 16) / 8
        for name, value in inputs.items()
    }
    grad = (grad * 32).round() / 32
    ours = compute(edge_index, inputs, grad, aggr=aggr, dtype=dtype)
    assert ours["out"].dtype == ours["x"].dtype == dtype
    exact = compute(edge_index, inputs | {"t": inputs["t"].to(dtype)}, grad, aggr=aggr, exact=True)
    assert_close(ours, exact, 2e-3 if dtype == torch.float16 else 1e-2, grad=grad)


def test_max_finds_ties_in_all_chunks_of_a_row():
    edge_index, inputs, grad = problem("max", None, 8, num_edges=320, hub=300)
    inputs["x"] = inputs["x"].sign().relu()
    assert_close(
        compute(edge_index, inputs, grad, aggr="max"),
        compute(edge_index, inputs, grad, aggr="max", exact=True),
    )


@pytest.mark.parametrize("aggr", KINDS)
def test_nan_reaches_its_destinations_and_only_these(aggr):
    edge_index, inputs, grad = problem(aggr, 2, 8)
    inputs["x"][3, 5] = float("nan")
    expected = torch.zeros(9, 8, dtype=torch.bool)
    expected[edge_index[1, edge_index[0] == 3], 5] = True
    assert (
        torch.equal(compute(edge_index, inputs, grad, aggr=aggr)["out"].isnan(), expected)
        and expected.any()
    )


def test_nothing_to_aggregate():
    none = torch.empty(2, 0, dtype=torch.int64)
    for aggr in KINDS:
        for num_src, num_dst in ((0, 4), (2, 3), (2, 0)):
            inputs = dict.fromkeys(("edge_attr", "weight", "bias", "p")) | {
                "x": torch.ones(num_src, 3),
                "t": torch.ones(1),
            }
            ours = compute(none, inputs, torch.ones(num_dst, 3), aggr=aggr)
            assert torch.equal(ours["out"], torch.zeros(num_dst, 3))
            assert torch.equal(ours["x"], torch.zeros(num_src, 3))


def test_edges_outside_of_the_graph():
    edge_index, inputs, grad = problem("add", None, 4)
    with pytest.raises(IndexError, match="but there are 9 such nodes"):
        compute(edge_index + 9, inputs, grad, aggr="add")
    if (
        DEVICE == "cpu"
    ):  # on a GPU this is an assertion of the device, after which nothing else runs
        structure = sorting.sort_edges(edge_index, 12, 9)
        with pytest.raises(
            RuntimeError, match="an edge has an end or a row of features that does not exist"
        ):
            nothing = (None,) * 4
            x, param = inputs["x"][:5], torch.ones(1)
            call = ops.AggregateCall(x, structure, *nothing, param, "add", 1e-7)
            ops.forward(call, False)


@pytest.mark.parametrize(
    "aggr, features, dtype",
    [
        ("softmax", 2, torch.bfloat16),
        ("softmax_sg", "encoded", torch.float32),
        ("max", None, torch.float16),
    ],
)
def test_operators(aggr, features, dtype):
    edge_index, inputs, grad = problem(aggr, features, 4, num_edges=20)
    dtypes = dict(x=dtype, edge_attr=dtype, weight=torch.float32, bias=torch.float32)
    x, attr, weight, bias = (
        None if inputs[name] is None else inputs[name].to(DEVICE, kind).requires_grad_()
        for name, kind in dtypes.items()
    )
    structure = sorting.sort_edges(edge_index.to(DEVICE), 12, 9)
    param = torch.tensor([1.5], device=DEVICE, requires_grad=aggr == "softmax")
    call = ops.AggregateCall(x, structure, attr, weight, bias, None, param, aggr, 1e-7)
    opcheck(ops.forward, (call, True))
    opcheck(sorting.sort_edges, (edge_index.to(DEVICE), 12, 9))
    with torch.no_grad():
        results = ops.AggregateResults(grad.to(DEVICE), *ops.forward(call, True))
    given = {name: getattr(call, name) for name in ops.DIFFERENTIABLE}
    call = call._replace(
        **{name: None if value is None else value.detach() for name, value in given.items()}
    )
    needed = ops.Needed(attr is not None, weight is not None, False)
    opcheck(ops.backward, (results, call, needed))


@pytest.mark.parametrize(
    "degrees", [[0], [5], [0, 0, 0], [100], [3, 0, 200, 0, 1, 24, 23, 25], [1] * 99 + [0] * 99]
)
def test_chunks_cover_every_row_and_edge_once(degrees):
    ptr = torch.tensor([0, *degrees]).cumsum(0)
    other = torch.zeros(int(ptr[-1]), dtype=torch.int64)
    cut = gpu.plan((ptr, other, None), 1, 0)
    row_of = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees) + 1)  # of each item
    cuts = cut.cuts.tolist()
    assert cuts[0] == 0 and cuts[-1] == row_of.numel()
    for chunk, (begin, end) in enumerate(pairwise(cuts)):
        assert begin < end < begin + 2 * cut.chunk_items
        assert cut.rows[:, chunk].tolist() == [row_of[begin], row_of[end - 1]]
    for row, degree in enumerate(degrees):
        inside = [item for item in cuts[1:-1] if row_of[item] == row == row_of[item - 1]]
        assert not inside or degree + 1 > cut.chunk_items == gpu.MIN_CHUNK
    assert gpu.plan((ptr, other, None), 1, 0).cuts is cut.cuts


@pytest.mark.parametrize("t", [1e6, 1e10, -1e12])
def test_steep_weights_are_right_forward_and_refused_backward(t):
    edge_index, inputs, _grad = problem("softmax", None, 8, hub=40)
    x = inputs["x"].to(DEVICE)
    options = dict(aggr="softmax", t=torch.tensor([t], device=DEVICE), p=1.0, eps=1e-7, num_dst=9)
    ours = fused.aggregate(x, edge_index.to(DEVICE), None, None, None, **options)
    exact = reference.aggregate(x.double(), edge_index.to(DEVICE), **options)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    if (
        DEVICE == "cpu"
    ):  # on a GPU this is an assertion of the device, after which nothing else runs
        out = fused.aggregate(x.requires_grad_(), edge_index, None, None, None, **options)
        with pytest.raises(RuntimeError, match="t times a message is too large"):
            out.sum().backward()
