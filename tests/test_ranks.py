"""Several ranks in real processes, and what happens when they are hurt."""

import os
import signal
import subprocess
import sys
import time

import pytest
import rank_cases
import torch
from conftest import random_graph, task_graph
from running import (
    TOY,
    alive,
    finish,
    rounds_of,
    start,
    summary_of,
    train,
    wait_for_rounds,
)

from pipeline import build, build_loader
from pipeline.data.cache import load
from pipeline.loaders.cluster import ClusterLoader
from pipeline.run import checkpoint, ranks as rank_tools
from pipeline.run.errors import EXIT_TRY_AGAIN, RankError
from pipeline.run.launch import launch
from pipeline.run.ranks import Ranks
from pipeline.run.stop import StopRequest
from scripts.strikes import ranks_of

TWO = [*TOY, "parallel.num_ranks=2", "train.epochs=8"]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The ranks' processes find the tests' modules."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of two ranks that nothing happens to, and its cache."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(TWO, folder / "run", folder / "cache")
    assert code == 0, output
    return folder / "run", folder / "cache", output


def gradients_of_one(config, data, clusters_of_steps) -> list[list[torch.Tensor]]:
    """Of a single process that adds up the clusters of a step; a cluster is (rank's partition, number)."""
    task = build.build_task(config, data)
    rng = torch.manual_seed(config.seed)
    model = build.build_model(config, data, task)
    partitioner, loader, out = build_loader.build_partitioner(config, data), ClusterLoader(data), []
    for clusters in clusters_of_steps:
        model.zero_grad()
        total = torch.zeros(())
        for rank, cluster in clusters:
            (batch,) = loader.batches_of(partitioner.draw(0, rank), [cluster])
            loss_sum, count = task.loss(model, batch, rng)
            loss_sum.backward()
            total += count
        out.append([p.grad / total.clamp(min=1) for p in model.parameters()])
    return out


@pytest.mark.parametrize("num_ranks,mode,num_parts,labelled", [
    (2, "epochs", 3, [0, 1, 2, 7, 30]), (4, "epochs", 2, [0, 1, 2, 7, 30]), (2, "split", 5, [0, 1, 2, 7, 30]),
    (4, "split", 6, [0, 1, 2, 7, 30]), (2, "split", 6, [3])])
def test_gradients_are_those_of_one_process_that_accumulates_the_clusters(num_ranks, mode, num_parts, labelled,
                                                                          configure):
    # Few labels: there are clusters without any, and at last whole steps.
    data = task_graph(labelled, num_nodes=40)
    config = configure(*TOY, f"parallel={mode}", f"parallel.num_ranks={num_ranks}", f"partition.num_parts={num_parts}",
                       "model.dropout=0")
    partition = build_loader.build_partitioner(config, data).draw(0)
    assert num_parts < 5 or any(not b.train_mask.any() for b in ClusterLoader(data).batches_of(partition))
    if mode == "epochs":
        clusters = [[(rank, step) for rank in range(num_ranks)] for step in range(num_parts)]
    else:
        clusters = [[(0, c) for c in range(first, min(first + num_ranks, num_parts))]
                    for first in range(0, num_parts, num_ranks)]
    expected = gradients_of_one(config, data, clusters)
    got = launch(rank_cases.gradients, num_ranks, 1, StopRequest(), config, data)
    assert len(got) == len(expected)
    assert [all(not b.any() for b in theirs) for theirs in expected].count(True) == (2 if labelled == [3] else 0)
    # Relative to each parameter's own largest gradient; where that is zero, so is ours.
    for ours, theirs in zip(got, expected):
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).abs().max() <= 1e-6 * b.abs().max()


class Heard(Ranks):
    """The second of two ranks, of which the first is not there; keeps what it tells."""

    def sum_(self, tensor):
        heard.append(tensor.clone())

    def gather(self, tensor):
        heard.append(tensor.clone())
        return [tensor]


heard: list[torch.Tensor] = []


def test_a_step_without_a_batch_adds_nothing_to_that_of_the_others(configure):
    config = configure(*TOY, "parallel=split", "parallel.num_ranks=2", "partition.num_parts=3", "features=embedding",
                       "features.channels=4", "features.concat=true")
    trainer = build.build_trainer(config, task_graph(list(range(30))), torch.device("cpu"), ranks=Heard(1, 2))
    (batch,) = trainer.loader.batches(0, trainer.schedule.share(0))
    for given in (batch, None, batch, None):
        heard.clear()
        trainer._step(given, 0.01)
        # Losses, labels and gradients; then of the table's rows their number, numbers and gradients.
        assert len(heard) == 5 and [bool(told.any()) for told in heard] == [given is not None] * 5


@pytest.mark.parametrize("overrides", [["evaluation=views", "evaluation.num_views=3"], ["evaluation=exact"]])
def test_shared_evaluation_is_that_of_one_process(overrides, configure):
    data = random_graph(60, 300, 0)
    config = configure(*TOY, *overrides)
    expected = rank_cases.predict(config, data, Ranks())
    got = launch(rank_cases.predictions, 2, 1, StopRequest(), config, data)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_partitions_of_ranks_differ_for_every_kind(configure):
    data = random_graph(200, 900, 0)
    for partition in ("random", "metis", "metis_random"):
        config = configure(*TOY, f"partition={partition}", "partition.num_parts=4", "parallel.num_ranks=3")
        loader = build.build_loader(config, data)
        schedules = [build.build_schedule(config, loader.num_batches, Ranks(rank, 3)) for rank in range(3)]
        draws = [loader.draw(0, schedule.share(0)) for schedule in schedules]
        clusters = [{tuple(sorted(p.nodes(i).tolist())) for i in range(4)} for p in draws]
        assert clusters[0] != clusters[1] != clusters[2] != clusters[0]


@pytest.mark.parametrize("num_ranks,epochs,rounds", [(1, 5, 5), (2, 5, 3), (8, 5, 1), (3, 9, 3)])
def test_every_epoch_is_trained_also_those_that_do_not_divide(num_ranks, epochs, rounds, configure):
    config = configure(*TOY, f"parallel.num_ranks={num_ranks}", f"train.epochs={epochs}")
    passes = 0
    for rank in range(num_ranks):
        schedule = build.build_schedule(config, 3, Ranks(rank, num_ranks))
        shares = [share for _, share in schedule.remaining(0, 0)]
        assert len(shares) == rounds == schedule.rounds_left(0) and schedule.num_steps == 3
        passes += sum(len(share.batches(3)) == 3 for share in shares)
    assert passes == epochs


def test_learning_rates(configure):
    def rate(step=9, epochs=0, *overrides):
        config = configure(*TOY, "train.epochs=10", "train.lr=0.1", "train.warmup_steps=4", *overrides)
        return build.build_schedule(config, 4, Ranks(0, config.parallel.num_ranks)).learning_rate(step, epochs)

    four = "parallel.num_ranks=4"
    assert rate() == pytest.approx(0.1) and rate(0) == pytest.approx(0.025)
    assert rate(9, 0, four) == pytest.approx(0.4) and rate(1, 0, four) == pytest.approx(0.2)
    assert rate(9, 0, four, "parallel.lr_scaling=sqrt") == pytest.approx(0.2)
    assert rate(9, 0, four, "parallel.lr_scaling=none") == pytest.approx(0.1)
    # Two passes are left for four ranks: two have nothing to do, and fewer gradients are averaged.
    assert rate(9, 8, four) == pytest.approx(0.2)
    assert rate(9, 9, four, "parallel=split") == pytest.approx(0.4)


def test_weights_that_part_stop_the_run():
    with pytest.raises(RankError, match="rank . failed: the weights of rank 2 differ from those of rank 0"):
        launch(rank_cases.drift, 4, 1, StopRequest())


@pytest.mark.slow
def test_a_failing_rank_is_named_with_its_traceback(caplog):
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'a reason'"):
        launch(rank_cases.fail, 2, 1, StopRequest())
    assert "in fail" in caplog.text and time.monotonic() - start < 60


@pytest.mark.slow
def test_two_ranks_train_and_say_so(undisturbed):
    folder, _, output = undisturbed
    summary = summary_of(folder)
    assert summary["num_ranks"] == 2 and summary["data_epochs"] == 8 and summary["num_rounds"] == 4
    assert [(e["round"], e["epochs"], e["step"]) for e in rounds_of(folder)] \
        == [(i, 2 * i + 2, 4 * i + 4) for i in range(4)]
    assert "starting 2 ranks of 1 threads" in output and "scaled (linear) 0.01" in output
    assert output.count("epoch 8/8") == 1 and "gradients" in output
    log = (folder / "train.log").read_text()
    assert log.count("epoch 8/8") == 1 and log.count("result of default") == 1


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["parallel=split"],
                                       ["model.norm=batch", "evaluation=views", "train.eval_every=15"],
                                       ["partition=metis", "train.label_input=0.5"]])
def test_a_stopped_run_of_ranks_ends_with_the_same_bits(overrides, configure, tmp_path):
    overrides = [*TWO, "train.epochs=100", "train.eval_every=10", *overrides]
    config, folder = configure(*overrides), tmp_path / "stopped"
    whole = train(config, tmp_path / "whole")
    process = start(overrides, folder, tmp_path / "cache")
    wait_for_rounds(folder, 2, process)
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == EXIT_TRY_AGAIN, output
    assert f"stopped by SIGUSR1; continue with resume={folder}" in output
    assert not (folder / "summary.json").exists()
    epochs = checkpoint.load_last(folder / "checkpoints")["progress"]["epochs"]
    assert 0 < epochs < 100
    resumed = train(config, folder)
    assert resumed["weights_sha256"] == whole["weights_sha256"] and resumed["test"] == whole["test"]
    assert [(e["round"], e["loss"]) for e in rounds_of(folder)] \
        == [(e["round"], e["loss"]) for e in rounds_of(tmp_path / "whole")]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "parent"])
def test_kill_9_loses_nothing_and_leaves_nobody(victim, configure, tmp_path):
    overrides = [*TWO, "train.epochs=200", "train.eval_every=10"]
    config, folder = configure(*overrides), tmp_path / "killed"
    whole = train(config, tmp_path / "whole")
    process = start(overrides, folder, tmp_path / "cache")
    wait_for_rounds(folder, 3, process)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2, f"{ranks}, {process.poll()}, {len(rounds_of(folder))} epochs"
    os.kill(process.pid if victim == "parent" else ranks[int(victim[-1])], signal.SIGKILL)
    killed = time.monotonic()
    output = process.communicate(timeout=300)[0]
    while any(map(alive, ranks)):
        time.sleep(0.05)
        assert time.monotonic() - killed < 10
    if victim == "parent":
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 1 and f"error: {victim} failed: Signal 9 (SIGKILL)" in output
    assert train(config, folder)["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.slow
def test_a_nan_on_one_rank_stops_all_before_the_optimizer_moves(undisturbed, configure, tmp_path):
    whole, cache, _ = undisturbed
    config = configure(*TWO, f"cache_dir={cache}")
    (tmp_path / "run").mkdir()
    subprocess.run(["cp", whole / "config.yaml", tmp_path / "run"], check=True)
    content_hash = load(config.data, cache).content_hash
    with pytest.raises(RankError, match="rank . failed: loss is nan in round 2, step 2, of rank 1; "
                                        "the weights have not moved"):
        launch(rank_cases.poisoned, 2, 1, StopRequest(), config, tmp_path / "run", content_hash)
    assert len(rounds_of(tmp_path / "run")) == 1
    assert checkpoint.load_last(tmp_path / "run" / "checkpoints")["progress"]["epochs"] == 2
    assert train(config, tmp_path / "run")["weights_sha256"] == summary_of(whole)["weights_sha256"]


@pytest.mark.slow
def test_another_number_of_ranks_is_refused_or_said(undisturbed, tmp_path):
    folder, cache, _ = undisturbed
    three = [*TWO, "parallel.num_ranks=3", "train.epochs=11"]
    code, output = finish(three, folder, cache)
    assert code == 1 and "parallel.num_ranks: 2 -> 3" in output and "resume_allow_rescale=true" in output
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder, copy], check=True)
    code, output = finish([*three, "resume_allow_rescale=true"], copy, cache)
    assert code == 0 and "3 ranks, parallel=epochs: learning rate 0.005, scaled (linear) 0.015" in output
    assert summary_of(copy)["data_epochs"] == 11 and rounds_of(copy)[-1]["step"] == 4 * 4 + 4


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    arguments = [*TOY, f"cache_dir={tmp_path / 'cache'}", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           "-m", "pipeline.train", *arguments], capture_output=True, text=True, timeout=900,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(tmp_path / "run")["num_ranks"] == 2 and summary_of(tmp_path / "run")["data_epochs"] == 4
    assert done.stdout.count("epoch 4/4") == 1


def test_tasks_of_slurm_get_the_names_of_torchrun(monkeypatch):
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name in ("MASTER_ADDR", *torchrun):
        monkeypatch.delenv(name, raising=False)
    for name, value in dict(PROCID=5, NTASKS=8, LOCALID=1, NNODES=2).items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert rank_tools.from_environment() is None
    monkeypatch.setenv("MASTER_ADDR", "n1")
    assert rank_tools.from_environment() == Ranks(5, 8, 1, 4)
    assert [os.environ.pop(name) for name in torchrun] == ["5", "8", "1", "4"]
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert rank_tools.from_environment() is None


@pytest.mark.slow
def test_a_damaged_checkpoint_of_ranks_falls_back(undisturbed, configure, tmp_path):
    folder, cache, _ = undisturbed
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder, copy], check=True)
    last = copy / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    assert checkpoint.load_last(last.parent)["progress"]["epochs"] == 6
    assert train(configure(*TWO, f"cache_dir={cache}"), copy)["weights_sha256"] == summary_of(folder)["weights_sha256"]
    assert checkpoint.load(last)["progress"]["epochs"] == 8
