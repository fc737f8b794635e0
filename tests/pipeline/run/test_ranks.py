"""Several ranks in real processes, and what happens when they are hurt."""

import functools
import os
import subprocess
import time
from multiprocessing import forkserver

import pytest
import torch
import torch.distributed as dist

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, schema as configuration
from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.run import checkpoint, ranks as rank_tools
from parallel_epochs.pipeline.run.errors import RankError
from parallel_epochs.pipeline.run.launch import launch, start_rank_server
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers import building as build, rank_cases
from tests.helpers.files import write_links
from tests.helpers.graph_toys import write_graphs
from tests.helpers.graphs import class_graph, random_graph, task_graph
from tests.helpers.running import TOY, finish, rounds_of, summary_of, train
from tests.helpers.typed_graphs import write_hetero

pytestmark = pytest.mark.usefixtures("importable")
TWO = [*TOY, "parallel.num_ranks=2", "train.epochs=8"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of two ranks that nothing happens to, and its cache."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(TWO, folder / "run", folder / "cache")
    assert code == 0, output
    return folder / "run", folder / "cache", output


TABLE = {"features.name": "embedding", "features.channels": 6, "features.concat": True}
NEIGHBOR = {"loader.name": "neighbor", "loader.num_neighbors": [4, 3], "loader.batch_size": 4}
EPOCHS, SPLIT = {"parallel.name": "epochs"}, {"parallel.name": "split"}
BY_NEIGHBORS = {"evaluation.method": "neighbor"}

# Sums of few of these weights are below 1.
WEIGHTED = {
    "task.class_weights": [0.01, 0.5, 0.09],
    "train.label_input": 0.3,
}


def parts(number: int) -> dict:
    return {"partition.num_parts": number}


def views(number: int) -> dict:
    return {"evaluation.method": "views", "evaluation.num_views": number}


# Few labels: there are clusters without any, and at last whole steps. By split a rank has nothing in the last step.
FEW, NINE, TEN, ONE = [0, 1, 2, 7, 30], [0, 1, 2, 7, 8, 9, 30, 31, 32], list(range(10)), [3]
# Of each case the labelled nodes, or which toy it is of, and what is not as in most.
GRADIENTS = {
    "clusters, epochs": (FEW, EPOCHS | parts(3)),
    "clusters, split": (FEW, SPLIT | parts(5)),
    "clusters without labels": (ONE, SPLIT | parts(6)),
    "neighbours, epochs": (TEN, EPOCHS | NEIGHBOR),
    "neighbours, split": (TEN, SPLIT | NEIGHBOR),
    "neighbours by relation, split": (
        "typed",
        SPLIT | NEIGHBOR | {"loader.num_neighbors": {"buys": [3, 2], "default": [1, 2]}},
    ),
    "one batch of neighbours": (TEN, SPLIT | NEIGHBOR | {"loader.batch_size": 30}),
    "table, epochs": (NINE, EPOCHS | TABLE | parts(3)),
    "table, split": (NINE, SPLIT | TABLE | parts(5)),
    "table, neighbours, split": (NINE, SPLIT | TABLE | NEIGHBOR),
    "links, epochs": ("links", EPOCHS | parts(2)),
    "links, split": ("links", SPLIT | parts(3)),
    "links, many parts": ("links", SPLIT | parts(40)),
    "typed links, split": ("typed links", SPLIT | parts(3)),
    "weighted classes, epochs": ("classes", EPOCHS | WEIGHTED | parts(3)),
    "weighted classes, split": ("classes", SPLIT | WEIGHTED | parts(5)),
    "graphs, epochs": ("graphs", EPOCHS),
    "graphs, split": ("graphs", SPLIT),
}
WITHOUT_LABELS = {
    "clusters without labels": 2,
    "weighted classes, split": 1,
    "links, many parts": 38,
}
PREDICTIONS = {
    "views": ("nodes", views(3)),
    "exact": ("nodes", {"evaluation.method": "exact"}),
    "all neighbours": ("nodes", NEIGHBOR | BY_NEIGHBORS | {"evaluation.num_neighbors": [-1, -1]}),
    "sampled": ("nodes", NEIGHBOR | BY_NEIGHBORS | {"evaluation.num_views": 2}),
    "links": ("links", views(3) | {"task.valid_edges": True}),
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Let ranks compute all cases at one start; returns of each case its configuration, data and what they return."""
    folder = tmp_path_factory.mktemp("computed")

    @functools.cache
    def base(toy: str) -> configuration.RunConfig:
        overrides = [*TOY, "parallel=epochs"]
        if toy == "links":
            overrides = [
                "data=ogb_link",
                "task=link",
                "partition=random",
                "model.num_layers=2",
                "task.hide_pairs=true",
                "model.hidden_channels=8",
                "task.pairs_per_step=60",
                f"data.folder={write_links(folder / toy)}",
            ]
        elif toy.startswith("typed"):
            folder.joinpath(toy).mkdir()
            overrides = [
                *write_hetero(folder / toy),
                "partition=random",
                "model.num_layers=2",
                "model.hidden_channels=8",
                *(["task=link", "task.relation=buys"] if "links" in toy else []),
            ]
        elif toy == "graphs":
            overrides = [
                "+experiment=ogbg_molpcba",
                "model.num_layers=3",
                "model.hidden_channels=16",
                "model.norm=layer",
                "loader.batch_size=7",
                f"data.folder={write_graphs(folder / toy, 'ogbg-molpcba')}",
            ]
        return cli.compose_config([*overrides, f"cache_dir={folder / 'cache'}"])

    def open_case(toy: str | list[int], changes: dict):
        config = keys.replaced(
            base(toy if isinstance(toy, str) else "nodes"),
            {"model.dropout": 0.0, "parallel.num_ranks": 2, **changes},
        )
        if toy == "typed links":
            return config, load_links(config.data, config.cache_dir, relation=config.task.relation)
        if toy in ("links", "graphs", "typed"):
            return config, load(config.data, config.cache_dir)
        if toy == "classes":
            return config, class_graph(FEW)
        return config, random_graph(60, 300, 0) if toy == "nodes" else task_graph(toy)

    of_kinds = {"gradients": GRADIENTS, "predictions": PREDICTIONS}
    cases = {kind: [open_case(*case) for case in of.values()] for kind, of in of_kinds.items()}
    found = launch(rank_cases.compute, 2, 1, StopRequest(), *cases.values())
    return {
        (kind, name): (*case, got)
        for (kind, of), of_kind in zip(of_kinds.items(), found, strict=True)
        for name, case, got in zip(of, cases[kind], of_kind, strict=True)
    }


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_one_process_that_accumulates_the_batches(name, computed):
    (config, data, got), num_ranks = computed["gradients", name], 2
    task, model, table = rank_cases.learn(config, data)
    loader = build.build_loader(config, data)
    # What every rank has in every step, written down: a batch is (draw, number).
    num_batches, draws = (
        loader.num_batches,
        [list(loader.batches(0, Share(draw=draw))) for draw in range(num_ranks)],
    )
    if config.parallel.name == "epochs":
        steps = [[(rank, step) for rank in range(num_ranks)] for step in range(num_batches)]
    else:
        steps = [
            [(0, number) for number in range(first, min(first + num_ranks, num_batches))]
            for first in range(0, num_batches, num_ranks)
        ]
    assert len(got) == len(steps) and num_batches == len(draws[0])
    without_labels = 0
    for ours, step in zip(got, steps, strict=True):
        parameters, total, touched = rank_cases.parameters_of(model, table), 0, set()
        for parameter in parameters:
            parameter.grad = None
        for draw, number in step:
            loss_sum, count = rank_cases.loss_of(task, model, table, draws[draw][number])
            loss_sum.backward()
            total, touched = total + float(count), touched | set(draws[draw][number].n_id.tolist())
        without_labels += total == 0
        # Relative to each parameter's own largest gradient; where that is zero, so is ours.
        for a, parameter in zip(ours, parameters, strict=True):
            b = parameter.grad.to_dense() / (total or 1)
            assert (a - b).abs().max() <= (
                1e-5 if config.task.name == "graph" else 1e-6
            ) * b.abs().max()
            assert total or not b.any()
        if table is not None:
            assert set(ours[-1].any(1).nonzero().squeeze(1).tolist()) <= touched
    assert without_labels == WITHOUT_LABELS.get(name, 0)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_shared_evaluation_is_that_of_one_process(name, computed):
    config, data, got = computed["predictions", name]
    torch.testing.assert_close(got, rank_cases.predict(config, data, Ranks()), rtol=1e-6, atol=1e-6)


class Heard(Ranks):
    """The second of two ranks, of which the first is not there; keeps what it tells."""

    def sum_(self, tensor):
        heard.append(tensor.clone())

    def gather(self, tensor):
        heard.append(tensor.clone())
        return [tensor]


heard: list[torch.Tensor] = []


def test_a_step_without_a_batch_adds_nothing_to_that_of_the_others(configure):
    config = configure(
        *TOY,
        "parallel=split",
        "parallel.num_ranks=2",
        "partition.num_parts=3",
        "features=embedding",
        "features.channels=4",
        "features.concat=true",
    )
    trainer = build.build_trainer(
        config, task_graph(list(range(30))), torch.device("cpu"), ranks=Heard(1, 2)
    )
    (batch,) = trainer.loader.batches(0, trainer.schedule.share(0))
    for given in (batch, None, batch, None):
        heard.clear()
        trainer._step([given], 0.01)
        # Losses, labels and gradients; then of the table's rows their number, numbers and gradients.
        assert len(heard) == 5 and [bool(told.any()) for told in heard] == [given is not None] * 5


def test_partitions_of_ranks_differ_for_every_kind(configure):
    data = random_graph(200, 900, 0)
    for partition in ("random", "metis", "metis_random"):
        config = configure(
            *TOY, f"partition={partition}", "partition.num_parts=4", "parallel.num_ranks=3"
        )
        loader = build.build_loader(config, data)
        schedules = [
            build.build_schedule(config, loader.num_batches, Ranks(rank, 3)) for rank in range(3)
        ]
        draws = [loader.draw(0, schedule.share(0)) for schedule in schedules]
        clusters = [{tuple(sorted(p.nodes(i).tolist())) for i in range(4)} for p in draws]
        assert clusters[0] != clusters[1] != clusters[2] != clusters[0]


@pytest.mark.slow
def test_a_failing_rank_is_named_with_its_traceback(caplog):
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'a reason'"):
        launch(rank_cases.fail, 2, 1, StopRequest())
    assert "in fail" in caplog.text and time.monotonic() - start < 60


@pytest.mark.parametrize(
    "error, kind", [("AF_UNIX path too long", ValueError), ("Too many open files", OSError)]
)
def test_a_folder_for_temporary_files_with_too_long_a_path_is_named(error, kind, monkeypatch):
    def fail():
        raise OSError(error)

    monkeypatch.setattr(forkserver, "ensure_running", fail)
    with pytest.raises(
        kind,
        match="TMPDIR=.* is too long for the path of a socket" if kind is ValueError else error,
    ):
        start_rank_server()


@pytest.mark.slow
def test_a_nan_on_one_rank_stops_all_before_the_optimizer_moves(undisturbed, configure, tmp_path):
    whole, cache, _ = undisturbed
    config = configure(*TWO, f"cache_dir={cache}")
    (tmp_path / "run").mkdir()
    subprocess.run(["cp", whole / "config.yaml", tmp_path / "run"], check=True)
    content_hash = load(config.data, cache).content_hash
    with pytest.raises(
        RankError,
        match="rank . failed: loss is nan in round 2, step 2, of rank 1; "
        "the weights have not moved",
    ):
        launch(rank_cases.poisoned, 2, 1, StopRequest(), config, tmp_path / "run", content_hash)
    assert len(rounds_of(tmp_path / "run")) == 1
    assert checkpoint.load_last(tmp_path / "run" / "checkpoints")["progress"]["epochs"] == 2
    assert train(config, tmp_path / "run")["weights_sha256"] == summary_of(whole)["weights_sha256"]


@pytest.mark.slow
def test_another_number_of_ranks_is_refused_or_said(undisturbed, tmp_path):
    folder, cache, _ = undisturbed
    three = [*TWO, "parallel.num_ranks=3", "train.epochs=11"]
    code, output = finish(three, folder, cache)
    assert (
        code == 1
        and "parallel.num_ranks: 2 -> 3" in output
        and "resume_allow_rescale=true" in output
    )
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder, copy], check=True)
    code, output = finish([*three, "resume_allow_rescale=true"], copy, cache)
    assert (
        code == 0
        and "3 ranks, parallel=epochs: learning rate 0.005, scaled (linear) 0.015" in output
    )
    assert summary_of(copy)["data_epochs"] == 11 and rounds_of(copy)[-1]["step"] == 4 * 4 + 4


def test_torchrun_continues_only_the_runs_of_its_job(monkeypatch, tmp_path):
    store = dist.HashStore()
    monkeypatch.setattr(rank_tools, "_store_of_job", lambda: store)
    rank_tools.note_run(tmp_path / "of Slurm")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert not rank_tools.was_restarted(tmp_path / "run")
    rank_tools.note_run(tmp_path / "run")
    assert rank_tools.was_restarted(tmp_path / "run") and not rank_tools.was_restarted(
        tmp_path / "old"
    )
    assert not rank_tools.was_restarted(tmp_path / "of Slurm")


class OneOfTwo(Ranks):
    """A rank of two on two machines, of which the other one answers as it is told."""

    def __init__(self, rank: int, told: tuple, seen: list[bool]):
        super().__init__(rank=rank, num_ranks=2, num_local=1)
        object.__setattr__(self, "answers", (told, seen))

    def broadcast(self, value):
        return value if self.is_first else self.answers[0]

    def gather(self, tensor):
        return (
            [tensor, *map(torch.tensor, self.answers[1])]
            if self.is_first
            else [torch.tensor([True]), tensor]
        )

    def wait(self):
        pass


def test_a_rank_alone_on_its_machine_has_a_place_on_its_board():
    board = rank_tools.share_board(Ranks(rank=2, num_ranks=4, local_rank=2, num_local=1))
    try:
        assert len(board.signs()) == 3
    finally:
        board.remove()


def test_machines_must_share_the_run_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_tools, "SECONDS_TO_SEE", 0)
    message = r"do not share the run directory .*: rank 1 did not find what rank 0 wrote there on .* hydra.run.dir=DIR"
    with pytest.raises(ValueError, match=message):
        rank_tools.check_shared(tmp_path, OneOfTwo(0, None, [[False]]))
    with pytest.raises(ValueError, match=message):
        rank_tools.check_shared(tmp_path, OneOfTwo(1, ("host", ".shared-x"), []))
    rank_tools.check_shared(tmp_path, OneOfTwo(0, None, [[True]]))
    assert not [*tmp_path.iterdir()]
    (tmp_path / ".shared-x").touch()
    rank_tools.check_shared(tmp_path, OneOfTwo(1, ("host", ".shared-x"), []))
    rank_tools.check_shared(tmp_path / "gone", Ranks(num_ranks=2, num_local=2))


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
    for machines, tasks, node, local, fits in (
        ("", 3, 0, 1, 2),
        ("4,1", 5, 0, 3, 4),
        ("4,1(x2)", 6, 2, 0, 1),
    ):
        for name, value in dict(
            PROCID=tasks - 1, NTASKS=tasks, LOCALID=local, NODEID=node, STEP_TASKS_PER_NODE=machines
        ).items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))
        assert (
            rank_tools.from_environment()
            == rank_tools.from_environment()
            == Ranks(tasks - 1, tasks, local, fits)
        )
        for name in torchrun:
            del os.environ[name]
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert rank_tools.from_environment() is None
    for name, value in dict(RANK=1, WORLD_SIZE=2, LOCAL_RANK=1).items():
        monkeypatch.setenv(name, str(value))
    assert rank_tools.from_environment() == Ranks(1, 2, 1, 1)  # LOCAL_WORLD_SIZE may be missing


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    "name, num_local, local_rank, expected",
    [
        ("cpu", 2, 1, "cpu"),
        ("auto", 1, 0, "cuda:0"),
        ("cuda", 1, 0, "cuda:0"),
        ("cuda:1", 1, 0, "cuda:1"),
        ("auto", 2, 1, "cuda:1"),
    ],
)
def test_a_gpu_is_named_by_its_number(name, num_local, local_rank, expected, two_gpus):
    """torch.cuda.set_device takes nothing else."""
    ranks = Ranks(rank=local_rank, num_ranks=num_local, local_rank=local_rank, num_local=num_local)
    assert str(rank_tools.choose_device(name, ranks)) == expected


@pytest.mark.parametrize(
    "name, num_local, message",
    [
        ("cuda:2", 1, "device=cuda:2 does not exist: this machine has 2 GPUs"),
        ("auto", 3, "every rank needs one of its own"),
        ("cuda:0", 2, "every rank needs one of its own"),
    ],
)
def test_gpus_that_are_not_there_are_refused(name, num_local, message, two_gpus):
    with pytest.raises(ValueError, match=message):
        rank_tools.choose_device(name, Ranks(num_ranks=num_local, num_local=num_local))
