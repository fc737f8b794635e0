"""Training on a Ray cluster: what the command refuses, and real raylets of which one is killed."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from parallel_epochs.scripts import ray_train
from parallel_epochs.scripts.ray_train import Options, count_room, find_room, parse
from tests.helpers.running import ROOT, TOY, summary_of, train
from tools import restarts

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


def command(*arguments: str) -> tuple[int, str]:
    """Run the command on the cluster; returns its status and output."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scripts.ray_train",
            *RUN,
            *arguments,
            f"ray.address={restarts.ray_cluster().address}",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.returncode, done.stdout


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_killed_raylet_loses_nothing(configure, tmp_path, monkeypatch):
    pytest.importorskip("ray.train.torch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("TMPDIR")  # the paths of Ray's sockets must be short
    expected = train(configure(*RUN, "parallel.num_ranks=2"), tmp_path / "whole")["weights_sha256"]
    try:
        for name in ("kill_worker", "kill_raylet"):
            engine = restarts.Ray(tmp_path / name, *RUN, f"cache_dir={tmp_path / 'cache'}")
            assert restarts.wait_for_saves(engine, tmp_path / name, 3), engine.log.read_text()
            getattr(engine, name)()
            while engine.poll() is None:
                restarts.time.sleep(0.1)
            assert engine.poll() == 0 and "resumed after " in engine.log.read_text(), (
                engine.log.read_text()
            )
            assert summary_of(tmp_path / name)["weights_sha256"] == expected
        finished = f"hydra.run.dir={tmp_path / 'kill_raylet'}"
        for arguments, status, message in (
            ((finished, "ray.num_workers=2", "resume=auto"), 0, "has been trained already"),
            ((finished, "ray.num_workers=2"), 1, "already holds a run"),
            (
                (f"hydra.run.dir={tmp_path / 'few'}", "ray.num_workers=3"),
                1,
                "room for 2 workers of 1 CPU each",
            ),
            (
                (f"hydra.run.dir={tmp_path / 'bad'}", "ray.num_workers=2", "train.lr=1e30"),
                1,
                "loss",
            ),
        ):
            code, output = command(f"cache_dir={tmp_path / 'cache'}", *arguments)
            errors = [line for line in output.splitlines() if line.startswith("error: ")]
            assert code == status and message in (errors or [output])[-1], output
            assert len(errors) == status, output
    finally:
        restarts.ray_cluster().shutdown()
        restarts.ray_cluster.cache_clear()
