"""Runs whose engine starts them again: two agents of torchrun, each as if on a machine of its own."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.helpers.running import ROOT, TOY, finish, rounds_of, summary_of, train
from tools import restarts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]
RUN = [*TOY, "train.epochs=60", "train.eval_every=2"]


def strike(
    folder, cache, strike=restarts.Torchrun.kill_rank, *, overrides=(), **options
) -> tuple[int, str]:
    """Start a run by two agents, strike it once, and wait for its end; returns its status and output."""
    engine = restarts.Torchrun(folder, *RUN, f"cache_dir={cache}", *overrides, **options)
    try:
        assert restarts.wait_for_saves(engine, folder, 3), engine.log.read_text()
        assert yaml.safe_load((folder / "config.yaml").read_text())["parallel"]["num_ranks"] == 2
        strike(engine)
        while (status := engine.poll()) is None:
            restarts.time.sleep(0.05)
        return status, engine.log.read_text()
    finally:
        engine.close()


def test_a_killed_rank_and_a_killed_agent_lose_nothing(configure, tmp_path):
    expected = train(configure(*RUN, "parallel.num_ranks=2"), tmp_path / "whole")["weights_sha256"]
    for name, how in (
        ("rank", restarts.Torchrun.kill_rank),
        ("agent", restarts.Torchrun.kill_agent),
    ):
        status, output = strike(tmp_path / name, tmp_path / "cache", how)
        assert status == 0 and "resumed after " in output, output
        assert summary_of(tmp_path / name)["weights_sha256"] == expected
        assert [record["round"] for record in rounds_of(tmp_path / name)] == [*range(30)]


def test_without_an_agent_the_other_goes_on_alone_if_it_may(tmp_path):
    status, output = strike(
        tmp_path / "run",
        tmp_path / "cache",
        lambda engine: engine.kill_agent(returns=False),
        overrides=["resume_allow_rescale=true"],
        nodes="1:2",
        seconds_to_join=15,
    )
    assert status == 0, output
    assert (
        "1 rank continues what 2 ranks began: from here on, the partitions and the learning rate"
        in output
    )
    summary = summary_of(tmp_path / "run")
    assert summary["num_ranks"] == 1 and summary["data_epochs"] == 60
    # What is missing without the key: the message names it.
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "pipeline.train",
            *RUN,
            f"cache_dir={tmp_path / 'cache'}",
            f"hydra.run.dir={tmp_path / 'copy'}",
            "resume=auto",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        done.returncode == 1 and len(errors) == 1 and "parallel.num_ranks: 1 -> 2" in errors[0]
    ), done.stderr
    assert "resume_allow_rescale=true allows it" in errors[0]
    code, output = finish(
        ["parallel.num_ranks=1", "train.epochs=62"], tmp_path / "copy", tmp_path / "cache"
    )
    assert code == 0, output


def test_machines_share_the_run_directory_and_need_not_share_the_cache(configure, tmp_path):
    def train_on_two_machines(*overrides: str) -> list[tuple[int, str]]:
        """Each of two agents in a folder of its own; returns their statuses and what they say in errors."""
        port, agents = restarts.free_port(), []
        for number in range(2):
            (machine := tmp_path / f"machine {number}").mkdir(exist_ok=True)
            agents.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "torch.distributed.run",
                        "--nnodes=2",
                        "--nproc-per-node=1",
                        "--node-rank",
                        str(number),
                        "--master-addr=127.0.0.1",
                        f"--master-port={port}",
                        "-m",
                        "pipeline.train",
                        *RUN,
                        "cache_dir=cache",
                        *overrides,
                    ],
                    cwd=machine,
                    text=True,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )
        return [(agent.communicate(timeout=900)[1], agent.returncode)[::-1] for agent in agents]

    for status, output in train_on_two_machines("hydra.run.dir=run"):
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        assert status == 1 and len(errors) == 1, output
        assert (
            "the machines do not share the run directory" in errors[0]
            and "hydra.run.dir=DIR" in errors[0]
        )
    assert not list(tmp_path.glob("*/run/checkpoints")) and not list(
        tmp_path.glob("*/run/.shared*")
    )
    for status, output in train_on_two_machines(f"hydra.run.dir={tmp_path / 'shared'}"):
        assert status == 0, output
    assert len(list(tmp_path.glob("machine */cache/graphs/*.store"))) == 2
    expected = train(configure(*RUN, "parallel.num_ranks=2"), tmp_path / "whole")["weights_sha256"]
    assert summary_of(tmp_path / "shared")["weights_sha256"] == expected
