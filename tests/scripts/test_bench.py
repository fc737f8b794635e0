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
