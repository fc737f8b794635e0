"""Starts real processes for the tests, and trains in this one."""

import functools
import json
import os
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from parallel_epochs.pipeline.gnn.config import GNNConfig as Config
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, Stopped
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.pipeline.training import run
from tests.helpers import disks
from tests.helpers.composing import without_base
from tests.helpers.server import Command, Server

ROOT = Path(__file__).resolve().parents[2]
TOY = [
    "data.num_nodes=240",
    "data.num_edges=4800",
    "data.num_species=4",
    "data.num_groups=8",
    "data.num_tasks=3",
    "task.base=none",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "partition.num_parts=4",
    "train.epochs=4",
    "train.patience=0",
]


def train(config: Config, folder: Path) -> dict:
    """Train in this process, which has the imports behind it."""
    folder.mkdir(exist_ok=True)
    return run(config, folder, "test")


def command(
    module: str, *arguments: str, cwd: Path, together: bool = False, **environment
) -> Command:
    """Start `python -m module` in a process of its own, from a folder that need not be the checkout.

    Args:
        together: standard error goes where standard output goes.
    """
    output = Path(tempfile.mkdtemp(prefix="command-"))
    if module == "pipeline.train" and not any(text.startswith("-") for text in arguments):
        arguments = without_base(arguments)
    return Command(
        _server(),
        module,
        list(arguments),
        cwd=str(cwd),
        output=str(output / "output"),
        errors=str(output / ("output" if together else "errors")),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
    )


def start_server() -> Server:
    """Fork the server of the commands, before any test has changed this process."""
    return _server()


@functools.cache
def _server() -> Server:
    disks.has_own_mounts()
    return Server()


def shell(module: str, *arguments: str, cwd: Path, **environment) -> subprocess.CompletedProcess:
    """Run `python -m module` to its end."""
    process = command(module, *arguments, cwd=cwd, **environment)
    output, errors = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start(overrides: list[str], folder: Path, cache: Path, **environment) -> Command:
    """Start `python -m pipeline.train`, or resume what it left."""
    target = f"resume={folder}" if (folder / "config.yaml").exists() else f"hydra.run.dir={folder}"
    return command(
        "pipeline.train",
        *overrides,
        f"cache_dir={cache}",
        target,
        cwd=ROOT,
        together=True,
        **environment,
    )


def finish(overrides: list[str], folder: Path, cache: Path, **environment) -> tuple[int, str]:
    """Run what :func:`start` starts to its end; returns its status and output."""
    process = start(overrides, folder, cache, **environment)
    output, _ = process.communicate(timeout=900)
    return process.returncode, output


def forked(function, *args) -> int:
    """Call a function in a copy of this process, which is there at once and may be killed for real; returns its number.

    It exits with 0, with EXIT_TRY_AGAIN if it was stopped, or with 1 and a traceback.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of forks beside threads: those of this process have ended or do nothing
        pid = os.fork()
    if pid == 0:
        try:
            function(*args)
            os._exit(0)
        except Stopped:
            os._exit(EXIT_TRY_AGAIN)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def status_of(pid: int) -> int:
    """How a forked process ended: its exit status, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rounds_of(folder: Path) -> list[dict]:
    """The records of the rounds of a run."""
    return [r for r in read_records(folder / "metrics.jsonl") if r["kind"] == "round"]


def kill_after_rounds(number: int, arguments: list[str], folder: Path, cache: Path) -> None:
    """Start a run, and end it by kill -9 when it has ended so many rounds; it must not have come to its end."""
    process = start(arguments, folder, cache)
    wait_for_rounds(folder, number, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert len(rounds_of(folder)) >= number and not (folder / "summary.json").exists()


def kill_and_finish(
    overrides: list[str], folder: Path, part: str, number: int
) -> tuple[dict, dict]:
    """Train twice, and kill one of both runs when a part of it has recorded so many rounds; returns the summaries.

    Args:
        folder: of both runs, ``killed`` and ``whole``.
        part: folder of the part in that of its run.
    """
    killed, cache = folder / "killed", folder / "cache"
    process = start(overrides, killed, cache)
    wait_for_rounds(killed / part, number, process)
    process.kill()
    process.communicate()
    assert not (killed / "summary.json").exists()
    for each in (killed, folder / "whole"):
        status, output = finish(overrides, each, cache)
        assert status == 0, output
    return summary_of(killed), summary_of(folder / "whole")


def wait_for_rounds(folder: Path, number: int, process: subprocess.Popen) -> None:
    """Wait until a run has recorded this many rounds, or has ended."""
    while process.poll() is None and len(rounds_of(folder)) < number:
        time.sleep(0.01)
