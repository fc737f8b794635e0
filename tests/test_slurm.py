"""Training under a real Slurm of two nodes: the sbatch script and Hydra's launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.running import ROOT, TOY
from tests.helpers.slurm_cluster import slurm, slurm_cluster, wait_for

pytestmark = pytest.mark.slurm
SCRIPT = str(ROOT / "scripts" / "train.sbatch")
LONG = [*(o for o in TOY if not o.startswith("train.epochs")), "train.epochs=120"]
LAUNCHER = ["-m", "hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.sweep.dir=sweep"]


@pytest.fixture(scope="module")
def environ():
    with slurm_cluster() as environ:
        yield {
            **environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }


def train(*arguments: str, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.train", *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
    )


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(environ, tmp_path_factory) -> str:
    """The weights' checksum of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = train(*LONG, "hydra.run.dir=run", cwd=folder, environ=environ)
    assert done.returncode == 0, done.stderr
    return summary_of(folder / "run")["weights_sha256"]


def submit(*arguments: str, cwd: Path, environ: dict[str, str]) -> str:
    """The job's id."""
    done = subprocess.run(
        ["sbatch", "--parsable", "--cpus-per-task=1", *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def interrupt(run: Path, logs: Path, *command: str, environ: dict[str, str]) -> None:
    """Run a command that sends the job back into the queue, in the middle of training, and wait until it trains
    again.
    """

    def lines() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    metrics = run / "metrics.jsonl"
    seen = lines()
    wait_for(lambda: lines() > seen + 5, "epochs", logs)
    slurm(environ, *command)
    resumed = log_of(run).count("resumed after")
    wait_for(
        lambda: log_of(run).count("resumed after") > resumed,
        f"the job to resume after {command}",
        logs,
    )


def log_of(run: Path) -> str:
    return (run / "train.log").read_text() if (run / "train.log").exists() else ""


def ended(job: str, environ: dict[str, str]) -> bool:
    return job not in slurm(environ, "squeue", "--noheader", "--format=%A").split()


def test_the_script_starts_a_rank_on_each_of_two_nodes(environ, tmp_path):
    job = submit("--nodes=2", "--output=job.log", SCRIPT, *TOY, cwd=tmp_path, environ=environ)
    same = train(
        *TOY,
        "parallel.num_ranks=2",
        "parallel.threads_per_rank=1",
        "hydra.run.dir=same",
        cwd=tmp_path,
        environ=environ,
    )
    assert same.returncode == 0, same.stderr
    wait_for(lambda: ended(job, environ), "the job", tmp_path)
    summary = summary_of(tmp_path / "outputs" / f"slurm-{job}")
    assert summary["num_ranks"] == 2
    assert summary["weights_sha256"] == summary_of(tmp_path / "same")["weights_sha256"]


def test_a_job_of_the_script_resumes_after_time_out_requeue_and_preemption(
    environ, tmp_path, undisturbed
):
    job = submit("--output=job.log", SCRIPT, *LONG, cwd=tmp_path, environ=environ)
    run = tmp_path / "outputs" / f"slurm-{job}"
    # What --signal sends before the time is up.
    interrupt(run, tmp_path, "scancel", "--signal=USR1", job, environ=environ)
    interrupt(run, tmp_path, "scontrol", "requeue", job, environ=environ)
    interrupt(
        run,
        tmp_path,
        "srun",
        "--partition=urgent",
        "--nodes=2",
        "--exclusive",
        "true",
        environ=environ,
    )
    wait_for(lambda: ended(job, environ), "the job", tmp_path)
    assert summary_of(run)["weights_sha256"] == undisturbed


def test_a_cancelled_job_saves_and_stays_cancelled(environ, tmp_path):
    job = submit("--output=job.log", SCRIPT, *LONG, cwd=tmp_path, environ=environ)
    run = tmp_path / "outputs" / f"slurm-{job}"
    wait_for((run / "checkpoints" / "last.pt").exists, "a checkpoint", tmp_path)
    slurm(environ, "scancel", job)
    wait_for(lambda: ended(job, environ), "the job", tmp_path)
    assert "stopped by SIGTERM" in log_of(run) and not (run / "summary.json").exists()


def test_a_job_of_the_launcher_resumes_after_time_out_and_requeue(environ, tmp_path, undisturbed):
    waiting = subprocess.Popen(
        [sys.executable, "-m", "pipeline.train", *LAUNCHER, *LONG],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = tmp_path / "sweep" / "0"
    wait_for((run / "metrics.jsonl").exists, "the job", tmp_path)
    job = slurm(environ, "squeue", "--noheader", "--format=%A").strip()
    interrupt(run, run, "scancel", "--signal=USR2", job, environ=environ)
    interrupt(run, run, "scontrol", "requeue", job, environ=environ)
    output, _ = waiting.communicate(timeout=900)
    assert waiting.returncode == 0, output
    assert summary_of(run)["weights_sha256"] == undisturbed


def test_the_launcher_runs_a_sweep_of_four(environ, tmp_path):
    swept = train(*LAUNCHER, *TOY, "seed=0,1,2,3", cwd=tmp_path, environ=environ)
    assert swept.returncode == 0, swept.stderr
    summaries = [summary_of(tmp_path / "sweep" / str(i)) for i in range(4)]
    assert [s["seed"] for s in summaries] == [0, 1, 2, 3] and len(
        {s["weights_sha256"] for s in summaries}
    ) == 4
    assert summaries[3]["command"].endswith(f"{TOY[-1]} seed=3")
    assert "sweep output dir : sweep" in swept.stdout


def test_the_launcher_starts_a_rank_on_each_of_two_nodes(environ, tmp_path):
    trained = train(*LAUNCHER, *TOY, "hydra.launcher.nodes=2", cwd=tmp_path, environ=environ)
    assert trained.returncode == 0, trained.stderr
    assert summary_of(tmp_path / "sweep" / "0")["num_ranks"] == 2


def test_a_failing_job_is_reported(environ, tmp_path):
    job = submit(
        "--output=job.log", SCRIPT, *TOY, "data.components=9", cwd=tmp_path, environ=environ
    )
    swept = train(*LAUNCHER, *TOY, "data.components=all,9", cwd=tmp_path, environ=environ)
    message = (
        "error: data.components=9 does not exist: the graph's components are numbered from 1 to 1"
    )
    assert swept.returncode == 1 and (tmp_path / "sweep" / "0" / "summary.json").exists()
    last = swept.stderr.splitlines()[-1]
    log = tmp_path / "sweep" / "1" / "train.log"
    assert last.startswith(message) and last.endswith(f"(log: {log})")
    assert message in log.read_text() and "Traceback" not in swept.stderr
    wait_for(lambda: ended(job, environ), "the job", tmp_path)
    assert message in (tmp_path / "job.log").read_text()
    assert "ExitCode=1:0" in slurm(environ, "scontrol", "show", "job", job)


def test_what_slurm_refuses_is_one_line(environ, tmp_path):
    refused = train(*LAUNCHER, *TOY, "hydra.launcher.partition=none", cwd=tmp_path, environ=environ)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "invalid partition specified: none" in refused.stderr.splitlines()[-1]
