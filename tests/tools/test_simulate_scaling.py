
import pytest

from tests.helpers.running import ROOT, shell
from tools.simulate_scaling import (
    Network,
    all_reduce_seconds,
    ring_seconds,
    simulate,
    slowest_seconds,
    table,
)

GRADIENT = 4 * 2_374_568
RUN = dict(step_seconds=0.1, spread=0.03, num_bytes=GRADIENT, network=Network(), epochs=1000, steps_per_epoch=10)


def test_one_rank_is_the_run_itself():
    row = simulate(1, **RUN)
    assert row["all_reduce"] == 0 and row["step"] == 0.1 and row["efficiency"] == row["speed_up"] == 1
    assert row["steps"] == 10_000 and row["training"] == pytest.approx(1000)


def test_the_ring():
    assert ring_seconds(1, 1e9, 1e9, 1) == 0
    assert ring_seconds(2, 1e9, 1e9, 0) == 1  # half of the bytes there, half of the sums back
    assert ring_seconds(2, 1e9, 1e9, 1) == 3
    assert ring_seconds(10**9, 1e9, 1e9, 0) == pytest.approx(2)  # never more than twice the bytes


def test_within_a_node_the_network_does_not_matter():
    slow = Network(network_bandwidth=1.0, network_latency=1.0)
    assert all_reduce_seconds(8, GRADIENT, slow) == all_reduce_seconds(8, GRADIENT, Network())
    assert all_reduce_seconds(9, GRADIENT, slow) > 1
    # One rank a node is a flat ring.
    flat = Network(ranks_per_node=1, start=0)
    assert all_reduce_seconds(64, GRADIENT, flat) \
        == ring_seconds(64, GRADIENT, flat.network_bandwidth, flat.network_latency)


def test_more_ranks_cost_more_and_finish_sooner():
    rows = [simulate(2**i, **RUN) for i in range(10)]
    for before, after in zip(rows, rows[1:]):
        assert after["all_reduce"] > before["all_reduce"] and after["step"] > before["step"]
        assert after["efficiency"] < before["efficiency"] and after["training"] < before["training"]
    assert rows[-1]["rounds"] == 2 and rows[-1]["steps"] == 20


def test_without_spread_nobody_waits():
    assert slowest_seconds(512, 0.1, 0.0) == 0.1
    # The mean of the larger of two standard normals is 1 / sqrt(pi).
    assert slowest_seconds(2, 1.0, 0.1) == pytest.approx(1 + 0.1 / 3.141592653589793**0.5, abs=0.005)


def test_the_document_shows_what_the_script_prints():
    printed = shell("tools.simulate_scaling", cwd=ROOT)
    expected = table([simulate(2**i, **RUN) for i in range(10)])
    assert expected in printed.stdout and expected in (ROOT / "docs" / "scaling.md").read_text()
