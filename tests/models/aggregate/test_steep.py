"""Any t and p: the fused aggregation and the reference agree with the reference in float64, forward and backward."""

import os
import shutil

import pytest
import torch

from parallel_epochs.models import notice
from parallel_epochs.models.aggregate import AGGREGATIONS, aggregate
from tests.models.aggregate.test_fused import LEARNS, graph, run

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)
MAGNITUDES = [1e-3, 1e-2, 0.1, 1.0, 10.0, 50.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e8, 1e10, 1e12]


def compare(aggr, value, kernel):
    """The largest relative error of the output and of each gradient."""
    edge_index, inputs, grad = graph(20, 20, 80, channels=8, edge_dim=3)
    if aggr.startswith("power"):
        inputs = {name: value if value is None else value.abs() for name, value in inputs.items()}
        inputs["x"] += 0.125
        # Messages at PyG's bounds: what is left where nothing comes in is 1e-4^(1 / p), beyond float32 for small -p.
        edge_index = torch.cat([edge_index, torch.arange(20).expand(2, 20)], dim=1)
        inputs["edge_attr"] = torch.cat([inputs["edge_attr"], inputs["edge_attr"][:20]])
    inputs["p" if aggr.startswith("power") else "t"] = torch.tensor([value])
    exact, ours = (
        run(edge_index, inputs, grad, aggr=aggr, kernel=kind, dtype=dtype)
        for kind, dtype in (("reference", torch.float64), (kernel, torch.float32))
    )
    errors = {}
    for name, expected in exact.items():
        if expected is None or name in "tp":
            assert ours[name] is None or ours[name].isfinite().all(), name
            continue
        errors[name] = float(
            (ours[name].double() - expected).norm() / expected.norm().clamp(min=1e-30)
        )
    for name in "tp":
        if name in LEARNS[aggr]:
            # A sum of differences of messages or of their logarithms, which cancel for large t and p.
            scale = (grad * exact["out"]).abs().sum() / max(1.0, abs(value))
            errors[name] = float((ours[name].double() - exact[name]).abs() / scale)
            errors[name] *= (
                1e-3 if abs(value) < 0.1 and name == "p" else 1
            )  # 1 / p multiplies the rounding
    return errors


@pytest.mark.parametrize("kernel", ["fused", "reference"])
@pytest.mark.parametrize(
    "aggr", [aggr for aggr in AGGREGATIONS if "soft" in aggr or "power" in aggr]
)
def test_any_t_and_p(aggr, kernel):
    for magnitude in MAGNITUDES:
        for value in (magnitude, -magnitude):
            for name, error in compare(aggr, value, kernel).items():
                assert error < (2e-4 if magnitude < 1e-2 or magnitude >= 1e3 else 3e-5), (
                    value,
                    name,
                    error,
                )


@pytest.mark.parametrize("scale", [1e-3, 1e2, 1e6, 1e10, 1e20])
def test_messages_of_any_size(scale):
    edge_index, inputs, grad = graph(20, 20, 80, channels=8, edge_dim=None)
    inputs["x"] *= scale
    inputs["t"] = torch.tensor([1.0])
    for aggr in ("softmax", "softmax_sg"):
        exact = run(edge_index, inputs, grad, aggr=aggr, kernel="reference", dtype=torch.float64)
        for kernel in ("fused", "reference"):
            ours = run(edge_index, inputs, grad, aggr=aggr, kernel=kernel)
            for name in ("out", "x"):
                assert (ours[name].double() - exact[name]).norm() <= 1e-3 * exact[name].norm(), (
                    kernel,
                    aggr,
                    name,
                )


def test_one_warning_says_that_the_kernel_is_not_used(monkeypatch):
    lines = []
    notice._said.clear()
    monkeypatch.setattr(notice.log, "warning", lambda form, line: lines.append(line))
    edge_index, inputs, _ = graph(20, 20, 80, edge_dim=None)
    for t in (10.0, 1e9, 1e10):
        aggregate(inputs["x"].requires_grad_(), edge_index, t=t, kernel="fused")
    aggregate(inputs["x"], edge_index, aggr="powermean", p=70.0)
    with torch.no_grad():  # whose exponents need no rounding for backward
        aggregate(inputs["x"], edge_index, t=1e5, kernel="fused")
    runs = "the reference aggregation runs for these messages"
    assert lines == [
        "aggr=softmax, t=1e+09 times a message is beyond 11,357, where the kernel's float32 rounds too "
        f"much: {runs}",
        f"aggr=powermean, p=70 is beyond 64, the kernel's largest power: {runs}",
    ]
