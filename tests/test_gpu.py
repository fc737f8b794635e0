"""What only a GPU shows; `make test-gpu` runs it. All other tests hide the GPUs of their machine, see conftest.py."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from parallel_epochs.scripts.bench.convs import CASES
from tests.helpers.running import ROOT, TOY
from tests.helpers.triton_process import run_cases

pytestmark = pytest.mark.gpu
EPOCHS = ["train.epochs=100", "train.eval_every=10"]


@pytest.fixture(scope="module", autouse=True)
def needs_gpu():
    if not torch.cuda.is_available():
        pytest.fail("torch sees no GPU on this machine")


def start(*command, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


def run(*command) -> str:
    process = start(*command)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def summary(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    output = run("pipeline.train", *TOY, *EPOCHS, f"hydra.run.dir={folder}")
    assert "fused-gpu" in output
    return folder


@pytest.mark.parametrize(
    "file",
    [
        "triton_cases.py",
        "triton_attention_cases.py",
        "triton_messages_cases.py",
    ],
)
def test_cases(file):
    run_cases(file, "not exhaustive")


def test_layers_are_those_of_pyg():
    """The benchmark compares outputs and gradients in float64 before it times anything."""
    output = run(
        "scripts.bench",
        "convs",
        "--device",
        "cuda",
        "--num-nodes",
        "600",
        "--num-edges",
        "9000",
        "--repeat",
        "1",
    )
    assert torch.cuda.get_device_name() in output and output.count("\nconvs,") == len(CASES)


def test_a_stopped_run_ends_with_the_bits_of_an_undisturbed_one(trained, tmp_path):
    folder = tmp_path / "run"
    process = start("pipeline.train", *TOY, *EPOCHS, f"hydra.run.dir={folder}")
    deadline = time.monotonic() + 200
    while not re.search(
        "epoch +10/", "".join(path.read_text() for path in folder.glob("train.log"))
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert not (folder / "summary.json").exists(), output
    run("pipeline.train", f"resume={folder}")
    assert summary(folder)["weights_sha256"] == summary(trained)["weights_sha256"]


def test_predictions_on_the_cpu_are_close(trained, tmp_path):
    logits = []
    for device in ("cuda", "cpu"):
        path = tmp_path / f"{device}.pt"
        run("pipeline.predict", f"run={trained}", f"predictions={path}", f"device={device}")
        logits.append(torch.load(path)["logits"])
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


def test_torchrun_starts_a_rank_on_its_gpu(trained, tmp_path):
    folder = tmp_path / "run"
    run(
        "torch.distributed.run",
        "--nproc-per-node=1",
        "-m",
        "pipeline.train",
        *TOY,
        *EPOCHS,
        f"hydra.run.dir={folder}",
    )
    assert summary(folder)["weights_sha256"] == summary(trained)["weights_sha256"]


@pytest.mark.parametrize(
    "trainer, data", [("node_embedding", "digits"), ("layout", "digits"), ("knowledge", "math")]
)
def test_two_runs_of_vectors_have_the_same_bits(trainer, data, tmp_path):
    for name in ("a", "b"):
        run(
            "pipeline.train",
            f"trainer={trainer}",
            f"data={data}",
            "train.epochs=3",
            "device=cuda",
            f"hydra.run.dir={tmp_path / name}",
        )
    assert summary(tmp_path / "a")["weights_sha256"] == summary(tmp_path / "b")["weights_sha256"]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["device=cuda:99"], "device=cuda:99 does not exist: this machine has"),
        (["parallel.num_ranks=99"], "every rank needs one of its own"),
    ],
)
def test_gpus_that_are_not_there_are_refused(overrides, message, tmp_path):
    process = start("pipeline.train", *TOY, *overrides, f"hydra.run.dir={tmp_path / 'run'}")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1 and message in output and "Traceback" not in output
    assert not (tmp_path / "run").exists()
