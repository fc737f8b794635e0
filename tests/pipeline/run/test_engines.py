"""Runs whose engine starts them again: two agents of torchrun, each as if on a machine of its own."""

import os
import random
import signal
import time

import pytest
import torch.distributed as dist

from tests.helpers.kill_runs import children, free_port, is_alive, start_agent, wait_for_saves
from tests.helpers.running import TOY, finish, rounds_of, summary_of, train

pytestmark = pytest.mark.slow
RUN = [*TOY, "train.epochs=60", "train.eval_every=2"]


def strike(folder, what, *overrides, nodes="2") -> tuple[int, str]:
    """Start a run by two agents, kill a rank or an agent, and wait for the end; returns its status and output.

    Args:
        what: "a rank"; "an agent", which starts again; or "an agent for good".
    """
    port, log = free_port(), folder.with_suffix(".log")
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True
    )
    arguments = (
        f"--nnodes={nodes}",
        "--rdzv-conf=last_call_timeout=15,join_timeout=900",
        *("-m", "pipeline.train", *RUN, *overrides),
        *(f"cache_dir={folder.parent / 'cache'}", f"hydra.run.dir={folder}", "resume=auto"),
    )
    agents = [start_agent(port, log, *arguments) for _ in range(2)]

    class Both:
        def poll(self):
            return agents[0].poll()

    try:
        assert wait_for_saves(Both(), folder, 3), log.read_text()
        victim = random.choice(agents)
        ranks = children(victim.pid)
        os.kill(ranks[0] if what == "a rank" else victim.pid, signal.SIGKILL)
        if what != "a rank":
            victim.wait()
            while any(map(is_alive, ranks)):  # without their agent they end by themselves
                time.sleep(0.01)
            agents.remove(victim)
        if what == "an agent":
            agents.append(start_agent(port, log, *arguments))
        return max(agent.wait(900) for agent in agents), log.read_text()
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGTERM)
        del store


def test_a_killed_rank_and_a_killed_agent_lose_nothing(configure, tmp_path):
    expected = train(configure(*RUN, "parallel.num_ranks=2"), tmp_path / "whole")["weights_sha256"]
    for what in ("a rank", "an agent"):
        status, output = strike(tmp_path / what, what)
        assert status == 0 and "resumed after " in output, output
        assert summary_of(tmp_path / what)["weights_sha256"] == expected
        assert [record["round"] for record in rounds_of(tmp_path / what)] == [*range(30)]


def test_without_an_agent_the_other_goes_on_alone_if_it_may(tmp_path):
    overrides = ["resume_allow_rescale=true"]
    status, output = strike(tmp_path / "run", "an agent for good", *overrides, nodes="1:2")
    assert status == 0 and "1 rank continues what 2 ranks began" in output, output
    assert summary_of(tmp_path / "run")["num_ranks"] == 1
    code, output = finish(["train.epochs=62"], tmp_path / "run", tmp_path / "cache")
    assert code == 0, output


def test_machines_share_the_run_directory_and_need_not_share_the_cache(tmp_path):
    def train_on_two_machines(run: str) -> list[tuple[int, str]]:
        port, agents = free_port(), []
        for number in range(2):
            (machine := tmp_path / f"machine {number}").mkdir(exist_ok=True)
            agents.append(
                start_agent(
                    port,
                    log := machine / "log",
                    *("--nnodes=2", "--max-restarts=0", "-m", "parallel_epochs.pipeline.train"),
                    *(*RUN, "cache_dir=cache", f"hydra.run.dir={run}"),
                    cwd=machine,
                )
            )
        return [
            (agent.wait(900), (tmp_path / f"machine {number}" / log.name).read_text())
            for number, agent in enumerate(agents)
        ]

    for status, output in train_on_two_machines("run"):
        assert status == 1 and "error: the machines do not share the run directory" in output
    assert not list(tmp_path.glob("*/run/checkpoints"))
    for status, output in train_on_two_machines(str(tmp_path / "shared")):
        assert status == 0, output
    assert len(list(tmp_path.glob("machine */cache/graphs/*.store"))) == 2
