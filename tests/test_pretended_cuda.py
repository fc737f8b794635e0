"""Whole programs run on a CUDA device that is not there: no operation mixes devices, and what can be replayed is."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import numpy
import pytest

from tests.helpers.pretended_cuda import build
from tests.helpers.resume_cases import WRITE
from tests.helpers.running import ROOT, TOY
from tests.helpers.triton_process import needs_triton

pytestmark = [
    pytest.mark.exhaustive,
    needs_triton,
    pytest.mark.skipif(
        not importlib.metadata.version("torch").startswith("2.13."),
        reason="the device is written for torch 2.13",
    ),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
]
KNOWLEDGE = [
    "trainer=knowledge",
    "data=math",
    "data.num_entities=60",
    "data.num_train=1400",
    "trainer.dim=16",
]
EDGES = ["data=edges", "data.path={folder}/edges.npy"]
PROGRAMS = {
    "clusters": [*TOY, "data.device=auto", "train.precision=bf16", "train.ema=0.9"],
    "clusters of the CPU": [*TOY, "model=pyg", "model.conv=GATv2Conv"],
    "neighbors": [*TOY, "data.device=cuda", "loader=neighbor", "loader.batch_size=60"],
    "links": [
        *EDGES,
        "data.device=cuda",
        "task=link",
        "task.base=none",
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=2",
    ],
    "graphs": ["model.virtual_node=add", "task.base=none", "train.epochs=2"],
    "knowledge": [*KNOWLEDGE, "train.epochs=2"],
    "knowledge in parts": [
        *KNOWLEDGE,
        "trainer.loss=negatives",
        "trainer.num_parts=4",
        "trainer.batch_size=200",
        "train.epochs=2",
    ],
    "layout": ["trainer=layout", "data=vectors", "data.path={folder}/points.npy", "train.epochs=2"],
}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pretended_cuda"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_on_the_device(name, library, tmp_path):
    overrides = [text.format(folder=tmp_path) for text in PROGRAMS[name]]
    rng = numpy.random.default_rng(0)
    numpy.save(tmp_path / "edges.npy", rng.integers(0, 200, (1000, 2)))
    numpy.save(tmp_path / "points.npy", rng.standard_normal((300, 5), numpy.float32))
    if name == "graphs":
        overrides = [*WRITE["graph"](tmp_path), *overrides]
    command = [
        sys.executable,
        "-m",
        "tests.helpers.pretended_cuda",
        str(library),
        "pipeline.train",
        *overrides,
        "device=cuda",
        f"cache_dir={tmp_path}/cache",
        f"hydra.run.dir={tmp_path}/run",
    ]
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stderr.splitlines()[-1])
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert counts["waits"] and summary["weights_sha256"]
    assert counts.get("kernels") or name.startswith(("knowledge", "layout"))
