"""Training on a Ray cluster: what the command refuses, and real raylets of which one is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallel_epochs.scripts import ray_train
from parallel_epochs.scripts.ray_train import Options, count_room, find_room, parse
from tests.helpers.kill_runs import children, wait_for_saves
from tests.helpers.running import ROOT, TOY, summary_of, train

RUN = [*TOY, "train.epochs=60", "train.eval_every=2"]


def test_arguments_of_ray_and_of_the_run_are_told_apart():
    options, others = parse(
        ["ray.num_workers=4", "+experiment=digits", "ray.address=10.0.0.1:6379", "ray.gpus=-1"]
    )
    assert options == Options(address="10.0.0.1:6379", num_workers=4) and others == [
        "+experiment=digits"
    ]
    for wrong, message in (
        (
            "ray.workers=2",
            "ray.workers is no key of this command, whose keys are ray.address, ray.",
        ),
        ("ray.num_workers=0", "ray.num_workers must be a whole number of at least 1, not 0"),
        ("ray.cpus=two", "ray.cpus must be a whole number of at least 1, not two"),
        ("ray.cpus", "not $"),
        ("-m", "-m: this command trains one run"),
    ):
        with pytest.raises(ValueError, match=message):
            parse([wrong])


def node(alive: bool = True, **resources: float) -> dict:
    return {"Alive": alive, "Resources": resources}


def test_workers_fit_on_machines_and_not_on_their_sum():
    nodes = [node(CPU=3.0), node(CPU=3.0, GPU=1.0), node(alive=False, CPU=64.0), node()]
    assert [count_room(nodes, cpus, gpus) for cpus, gpus in ((1, 0), (2, 0), (4, 0), (1, 1))] == [
        6,
        2,
        0,
        1,
    ]


def test_too_small_a_cluster_is_refused(monkeypatch):
    run = SimpleNamespace(device_name="auto")
    ray = SimpleNamespace(nodes=lambda: [node(CPU=2.0)], cluster_resources=lambda: {"CPU": 2.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    find_room(options := Options(num_workers=2), run)
    assert options.gpus == 0
    with pytest.raises(
        ValueError,
        match="room for 2 workers of 1 CPU each, and ray.num_workers=3. Lower it, let more",
    ):
        find_room(Options(num_workers=3), run)
    ray.cluster_resources = lambda: {"GPU": 1.0}
    with pytest.raises(ValueError, match="room for 0 workers of 1 CPU and 1 GPU each"):
        find_room(Options(), run)
    find_room(Options(), SimpleNamespace(device_name="cpu"))
    added = iter([[], [node(CPU=2.0)]])
    ray.nodes = lambda: next(added)
    monkeypatch.setattr(ray_train.time, "sleep", lambda seconds: None)
    find_room(Options(gpus=0, wait=60), run)


def test_without_ray_the_extra_is_named(monkeypatch):
    for module in ("ray", "ray.train", "ray.train.torch"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "argv", ["ray_train", "ray.num_workers=2"])
    with pytest.raises(
        SystemExit, match=r"^error: this command needs Ray .*: pip install .*\[ray\]'$"
    ):
        ray_train.main()
    monkeypatch.setattr(sys, "argv", ["ray_train", "ray.num_worker=2"])
    with pytest.raises(SystemExit, match="^error: ray.num_worker is no key"):
        ray_train.main()


RAYLET = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


def workers_of(raylet) -> list[int]:
    """Return the processes of Ray Train's workers that a raylet has started."""
    pids = [
        pid for process in raylet.all_processes["raylet"] for pid in children(process.process.pid)
    ]
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
    ]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_killed_raylet_loses_nothing(configure, tmp_path, monkeypatch):
    """A head without processors, and two raylets that take a worker each; Ray starts again what is killed."""
    pytest.importorskip("ray.train.torch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("TMPDIR")  # the paths of Ray's sockets must be short
    for name, value in (
        (
            "RAY_raylet_start_wait_time_s",
            "600",
        ),  # on a busy machine; Ray reads it when it is imported
        ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5"),
        ("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600"),
    ):
        monkeypatch.setenv(name, value)
    expected = train(configure(*RUN, "parallel.num_ranks=2"), tmp_path / "whole")["weights_sha256"]
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **RAYLET})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **RAYLET)

    def begin(folder: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "scripts.ray_train",
                    *RUN,
                    f"ray.address={cluster.address}",
                ),
                *(f"cache_dir={tmp_path / 'cache'}", f"hydra.run.dir={tmp_path / folder}"),
                *arguments,
            ],
            cwd=ROOT,
            stdout=(tmp_path / f"{folder}.log").open("a"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill_worker() -> None:
        os.kill(sum(map(workers_of, cluster.worker_nodes), [])[0], signal.SIGKILL)

    def kill_raylet() -> None:
        victim = next(raylet for raylet in cluster.worker_nodes if workers_of(raylet))
        cluster.remove_node(victim, allow_graceful=False)
        cluster.add_node(num_cpus=1, **RAYLET)

    try:
        for folder, strike in (("worker", kill_worker), ("raylet", kill_raylet)):
            log = tmp_path / f"{folder}.log"
            process = begin(folder, "ray.num_workers=2")
            assert wait_for_saves(process, tmp_path / folder, 3), log.read_text()
            strike()
            assert process.wait(900) == 0 and "resumed after " in log.read_text(), log.read_text()
            assert summary_of(tmp_path / folder)["weights_sha256"] == expected
        for folder, arguments, status, message in (
            ("raylet", ["ray.num_workers=2", "resume=auto"], 0, "has been trained already"),
            ("worker", ["ray.num_workers=2"], 1, "already holds a run"),
            ("few", ["ray.num_workers=3"], 1, "room for 2 workers of 1 CPU each"),
            ("bad", ["ray.num_workers=2", "train.lr=1e30"], 1, "loss"),
        ):
            assert begin(folder, *arguments).wait(900) == status
            output = (tmp_path / f"{folder}.log").read_text()
            errors = [line for line in output.splitlines() if line.startswith("error: ")]
            assert message in (errors or [output])[-1] and len(errors) == status, output
    finally:
        cluster.shutdown()
