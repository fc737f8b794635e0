import csv
import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from parallel_epochs.scripts.bench import gpu
from parallel_epochs.scripts.bench.convs import CASES, bench_convs
from parallel_epochs.scripts.bench.measure import assert_close
from tests.helpers.running import ROOT
from tests.helpers.triton_process import needs_triton

SIZES = ("--num-nodes", "500", "--num-edges", "10000")


def measure(*arguments: str) -> list[dict[str, str]]:
    """Run a benchmark in a process of its own, and return its rows."""
    result = subprocess.run(
        [sys.executable, "-m", "scripts.bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")
@pytest.mark.parametrize("bench, rows", [(["aggregate", "--eager"], 5), (["convs"], len(CASES))])
def test_benchmarks_beside_pyg(bench, rows):
    table = measure(*bench, "--repeat", "1", *SIZES)
    assert len(table) == rows and all(row["bench"] == bench[0] for row in table)


@pytest.mark.slow
def test_a_service_is_asked_beside_a_bare_one():
    table = measure(
        "serve",
        "--num-nodes",
        "300",
        "--num-edges",
        "2000",
        "--num-targets",
        "200",
        "--classes",
        "3",
        "--requests",
        "20",
        "--soak",
        "0.5",
    )
    assert [row["what"] for row in table] == [
        *["bare", "known", "new"] * 3,
        "new x1000",
        "soak",
        *["top 10 of 200"] * 3,
    ]
    assert all(float(row["p50_ms"]) > 0 and int(row["resident_mib"]) > 0 for row in table)


def test_no_case_is_an_error_before_a_graph_is_made():
    with pytest.raises(
        ValueError, match="--cases GTAConv b: no layer has such a name; there are GCNConv"
    ):
        bench_convs(500, 10_000, 64, 1, cases=("GTAConv", "b"))


@pytest.mark.system
def test_neighbour_sampling_beside_pyg():
    (row,) = measure(
        "sampling", *SIZES, "--num-seeds", "100", "--batch-size", "40", "--repeat", "1"
    )
    assert float(row["ratio_median"]) > 0 and int(row["num_seeds"]) == 100


def test_nothing_is_timed_where_outputs_differ():
    assert_close({"out": torch.ones(3)}, {"out": torch.ones(3)}, tolerance=1e-6)
    for other in (torch.tensor([1.0, 1.0, 1.1]), torch.tensor([1.0, 1.0, torch.nan])):
        with pytest.raises(SystemExit, match="out differs .* nothing is timed"):
            assert_close({"out": other}, {"out": torch.ones(3)}, tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")
@needs_triton
def test_every_row_of_the_gpu_runs_in_miniature_without_one(tmp_path):
    command = [
        sys.executable,
        "-m",
        "scripts.bench",
        "gpu",
        "--device",
        "cpu",
        "--small",
        "--seconds",
        "1000",
        "--out",
        str(tmp_path),
        "--group",
        *gpu.GROUPS,
    ]
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1000,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["row"] for row in found} == {row.name for row in gpu.ROWS}
    assert all("passed" in row["tests"] for row in found if row["row"].startswith("kernels")), found


def test_a_row_that_fails_says_why_and_the_next_one_runs(tmp_path, monkeypatch):
    rows = (
        gpu.Row(
            "slow",
            "step",
            1,
            "timeit -n 1 -s 'print(\"a PASSED\")' -s 'import time' 'time.sleep(60)'",
            "",
        ),
        gpu.Row("broken", "knowledge", 60, "json.tool {out}/none.json", ""),
        gpu.Row(
            "good",
            "knowledge",
            60,
            "timeit -n 1 -r 1 -s 'print(\"bench,valid,test\")' -s 'print(\"step,1,2\")'",
            "",
        ),
    )
    monkeypatch.setattr(gpu, "ROWS", rows)
    with pytest.raises(ValueError, match=r"2 of 3 rows failed: slow, broken; see .*rows\.jsonl"):
        gpu.bench_gpu(str(tmp_path / "all"), device="cpu")
    slow, broken, good = map(json.loads, (tmp_path / "all/rows.jsonl").read_text().splitlines())
    assert slow["failed"].startswith("it took longer than 1 s") and slow["tests"] == "1 passed"
    assert "exit status 2" in broken["failed"] and "No such file or directory" in broken["failed"]
    assert good["valid"] == "1" and "failed" not in good
    gpu.bench_gpu(str(tmp_path / "part"), ("knowledge",), ("good",), device="cpu")
    assert "slow" not in (tmp_path / "part/rows.jsonl").read_text()
    for options, message in (
        ({"group": ("9",)}, "--group 9 is unknown"),
        ({"rows": ("none",)}, "no row has such"),
        ({"out": str(tmp_path / "part")}, "is not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            gpu.bench_gpu(**{"out": str(tmp_path / "new"), "device": "cpu", **options})
