"""Every kind of run, interrupted in every kind of way, ends with the bits of the run that nothing happens to.

A row is a run: see ROWS. The cheap sign is in this process and needs no second training: the state after a step,
loaded into a fresh trainer, goes on with the same bits. The slow part of the matrix stops and kills real processes.
"""

import functools
import io
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.command import cli, schema as configuration
from parallel_epochs.pipeline.names import SCORES
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.contract import Step
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, RankError, Stopped
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers import building as build, resume_cases
from tests.helpers.composing import without_base
from tests.helpers.resume_cases import ROWS, WRITE, product
from tests.helpers.running import (
    finish,
    forked,
    kill_after_rounds,
    rounds_of,
    status_of,
    summary_of,
    train,
)

pytestmark = pytest.mark.usefixtures("importable")
CPU = torch.device("cpu")
# Two rounds, with an evaluation after the first. An episode of a node embedding is a part of an epoch.
SHORT = {"node embedding": ["train.epochs=8", "train.eval_every=1"]}
# So many looks at a request to stop are before the one that sees it. The evaluation of a layout is short and looks at
# none, that of somebody's model once.
OF_THE_PROCESS = ("hidden", "num_triples")
LOOKS = {"layout": None, "layout of a graph": None, "custom": 0}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    return Matrix(tmp_path_factory.mktemp("matrix"))


class Matrix:
    """The data, configurations and undisturbed runs of the rows, each made once."""

    def __init__(self, folder: Path):
        self.folder, self.cache = folder, folder / "cache"
        self._data, self.config, self.whole = map(
            functools.cache, (self._write, self._compose, self._train)
        )

    def _write(self, name: str) -> list[str]:
        (self.folder / name).mkdir()
        return WRITE[name](self.folder / name)

    def overrides(self, row: str, *more: str) -> list[str]:
        data = self._data(product(row)) if product(row) in WRITE else []
        return [*data, *ROWS[row], *more]

    def _compose(self, row: str, *more: str) -> configuration.RunConfig:
        return cli.compose_config(
            list(without_base([f"cache_dir={self.cache}", *self.overrides(row, *more)]))
        )

    def _train(self, row: str, *more: str) -> Path:
        """Train without an interruption; returns the folder."""
        folder = self.folder / f"whole-{len(list(self.folder.iterdir()))}"
        train(self.config(row, *more), folder)
        return folder


class Asks(StopRequest):
    """A request to stop that comes at one of the next looks at it, if at all."""

    looks: int | None = None

    @property
    def signum(self) -> int:
        if self.looks is None:
            return 0
        self.looks -= 1
        return signal.SIGTERM if self.looks < 0 else 0


def saved(trainer) -> bytes:
    """The state as a checkpoint keeps it."""
    file = io.BytesIO()
    torch.save(trainer.state(), file)
    return file.getvalue()


def digest_of(trainer) -> str:
    return checkpoint.digest(trainer.state())


def walk(trainer) -> Iterator[tuple[str | None, Step | None]]:
    """Train to the end as :func:`pipeline.loop.fit` does; yields each step, and of the evaluation that was before it
    the digest of its scores.
    """
    scores = None
    while trainer.progress.round < trainer.num_rounds:
        for step in trainer.steps():
            yield scores and checkpoint.digest(scores), step
            scores = None
        scores = trainer.evaluate()
    yield scores and checkpoint.digest(scores), None


def take_step(steps: Iterator, trainer) -> tuple[str | None, str]:
    """Take the next step; returns digests of the scores before it and of the state after it."""
    scores, step = next(steps)
    if step is not None:
        progress = trainer.progress
        assert step == Step(progress.step, progress.step_in_round == trainer.about.num_steps, False)
    return scores, digest_of(trainer)


@dataclass
class Course:
    """A run of two rounds: the state after each step, and what the step after it leads to."""

    states: list[bytes]
    next: list[tuple[str | None, str]]
    num_steps: int


def follow(new: Callable[[], Any]) -> Course:
    """Train two rounds and keep every state."""
    with new() as trainer:
        # What a session writes there.
        trainer.progress.best_epoch, trainer.progress.best_scores, trainer.progress.num_worse = (
            7,
            {"valid": 0.5},
            3,
        )
        course, steps = Course([], [], trainer.about.num_steps), walk(trainer)
        take_step(steps, trainer)
        while len(course.states) < 2 * trainer.about.num_steps:
            course.states.append(saved(trainer))
            course.next.append(take_step(steps, trainer))
    return course


def leave_an_evaluation(trainer, stop: Asks, looks: int) -> str:
    """Ask a run to stop in the middle of an evaluation: nothing has moved; returns the digest of the scores of the
    next try.
    """
    before = digest_of(trainer)
    stop.looks = None
    assert list(trainer.steps()) == []
    stop.looks = looks
    with pytest.raises(Stopped):
        trainer.evaluate()
    stop.looks = None
    assert digest_of(trainer) == before
    return checkpoint.digest(trainer.evaluate())


# What keeps a state of its own; the others are made of the same parts.
QUICK_ROWS = {
    "cluster: AdamW, warm-up, plateau and clipping",
    "cluster: batch norm",
    "neighbor",
    "table",
    "link",
    "graph",
    "rows",
    "node embedding",
    "knowledge: sparse Adam",
    "layout",
}


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if row in QUICK_ROWS else pytest.mark.slow) for row in ROWS],
)
def test_the_state_after_every_step_is_whole(row, matrix):
    """A fresh trainer that loads it takes the next step with the same bits, and so on from step to step."""
    config = matrix.config(row, *SHORT.get(product(row), ["train.epochs=2"]))
    data = build.open_graph(config).parts[0].data
    new = functools.partial(build.open_trainer, config, data, CPU)
    course = follow(new)
    last, end = course.num_steps - 1, len(course.states) - 1
    assert len({state for _, state in course.next}) == end + 1
    evaluated = next(place for place, (scores, _) in enumerate(course.next) if scores is not None)
    looks = LOOKS.get(product(row), 1)
    for place in sorted({0, last, evaluated} if row in QUICK_ROWS else {0, last, evaluated, end}):
        state, stop = torch.load(io.BytesIO(course.states[place]), weights_only=True), Asks()
        before = checkpoint.digest(state)
        with new(stop=stop) as trainer:
            trainer.load(state)
            assert digest_of(trainer) == before
            if place == evaluated and looks is not None:
                assert leave_an_evaluation(trainer, stop, looks) == course.next[place][0]
                continue
            steps = walk(trainer)
            assert take_step(steps, trainer) == course.next[place], f"after step {place + 1}"
            assert checkpoint.digest(state) == before, "what was loaded has not moved"
            if place == 0 and last > 1:
                stop.looks = 0
                assert next(steps)[1].stop, "a request to stop is seen in the next step"


def train_changed(change: Callable[[], object], config, folder: Path) -> None:
    change()
    train(config, folder)


def records_of(folder: Path) -> list[dict]:
    """The records of the rounds without what a clock told, or the process that took the last steps counted."""
    return [
        {
            key: value
            for key, value in record.items()
            if "seconds" not in key and key not in OF_THE_PROCESS
        }
        for record in rounds_of(folder)
    ]


def learned_by(folder: Path) -> list:
    """What a run leaves, without what a clock told."""
    summary, last = summary_of(folder), checkpoint.load(folder / "checkpoints" / "last.pt")
    scores = folder / SCORES
    last["progress"].pop("wall_seconds")
    return [
        {
            key: summary.get(key)
            for key in (
                "weights_sha256",
                "train",
                "test",
                "best_valid",
                "best_epoch",
                "scores",
                "data_epochs",
                "num_rounds",
                "components",
            )
        },
        records_of(folder),
        checkpoint.digest(last),
        checkpoint.digest(checkpoint.load(folder / "checkpoints" / "best.pt")),
        scores.read_text() if scores.exists() else None,
    ]


def assert_same(folder: Path, whole: Path) -> None:
    for ours, theirs in zip(learned_by(folder), learned_by(whole), strict=True):
        assert ours == theirs
    assert not list(folder.rglob("*.tmp"))


# What interrupts a run of three rounds or more: given the steps of a round and of the run, the change of the process,
# and the step that the last checkpoint is of.
HOWS: dict[str, Callable[[int, int], tuple[Callable[[], object], int]]] = {
    "stopped in a round": lambda num_steps, total: (
        # It is seen in the next step of the round, if there is one.
        lambda: resume_cases.after_step(num_steps + 1, resume_cases.ask_to_stop),
        num_steps + min(num_steps, 2),
    ),
    "stopped in an evaluation": lambda num_steps, total: (
        lambda: resume_cases.after_step(total, resume_cases.ask_to_stop),
        total,
    ),
    "killed in a round": lambda num_steps, total: (
        lambda: resume_cases.after_step(num_steps + 2, resume_cases.kill_this_process),
        max(num_steps, 2),
    ),
    "killed before a checkpoint": lambda num_steps, total: (
        lambda: resume_cases.die_before_a_checkpoint(2),
        num_steps,
    ),
}
# The quick ones; with the state after every step, these are a sign for all others.
QUICK = {
    ("cluster", "stopped in a round"),
    ("cluster", "killed before a checkpoint"),
    ("node embedding", "killed in a round"),
}
# Each way to interrupt a product; another row of it is stopped or killed, in turns, in the exhaustive suite: the state
# after every step of it is tested too.
STOPPED_OR_KILLED = ("stopped in a round", "killed in a round")
IN_TURNS = {row: STOPPED_OR_KILLED[number % 2] for number, row in enumerate(ROWS)}
LONGER = {
    "node embedding": ["train.epochs=12", "train.eval_every=1"],
    **dict.fromkeys(("layout", "layout of a graph"), ["train.epochs=3", "train.eval_every=1"]),
}


@pytest.mark.parametrize(
    "row, how",
    [
        pytest.param(
            row,
            how,
            marks=[]
            if (row, how) in QUICK
            else pytest.mark.slow
            if row == product(row)
            else pytest.mark.exhaustive,
        )
        for row in ROWS
        for how in HOWS
        if (row == product(row) or how == IN_TURNS[row])
        and not (LOOKS.get(product(row), 1) is None and how == "stopped in an evaluation")
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(row, how, matrix, tmp_path):
    more = LONGER.get(product(row), ["train.epochs=3"])
    whole, config, folder = matrix.whole(row, *more), matrix.config(row, *more), tmp_path / "run"
    rounds = rounds_of(whole)
    change, step = HOWS[how](rounds[0]["step"], rounds[-1]["step"])
    status = EXIT_TRY_AGAIN if how.startswith("stopped") else -signal.SIGKILL
    assert status_of(forked(train_changed, change, config, folder)) == status
    assert not (folder / "summary.json").exists()
    left = checkpoint.load_last(folder / "checkpoints")
    if "test" in rounds[0]:  # not only every other round is evaluated
        assert left["progress"]["step"] == step
    train(config, folder)
    assert_same(folder, whole)


# Two ranks, of which one has nothing to do at the end of the run: a pass or a batch is too few. The rank that is
# interrupted is the second. Of each loader and product the first is slow, the others are exhaustive.
UNEVEN = ["parallel.num_ranks=2", "train.epochs=3"]
SPLIT = [*UNEVEN, "parallel=split"]
FIVE = [*SPLIT, "partition.num_parts=5"]
RANKS = [
    ("cluster", UNEVEN, "killed"),
    ("cluster: batch norm", [*UNEVEN, "evaluation=views"], "stopped"),
    ("cluster: on disk", SPLIT, "killed"),
    ("neighbor", SPLIT, "stopped"),
    ("link", UNEVEN, "killed"),
    ("tables: terms, thresholds", UNEVEN, "killed"),
    ("graph", UNEVEN, "killed"),
    ("node embedding", [*LONGER["node embedding"], "parallel.num_ranks=2"], "killed"),
    ("layout", [*UNEVEN, "train.eval_every=1"], "stopped"),
]
FEW = len(RANKS)
RANKS += [
    ("cluster", FIVE, "stopped"),
    ("cluster: METIS", [*UNEVEN, "train.label_input=0.5"], "stopped"),
    ("cluster: AdamW, warm-up, plateau and clipping", FIVE, "killed"),
    ("cluster: softmax_sum, checkpointing", [*UNEVEN, "evaluation=views"], "killed"),
    ("cluster: on disk", [*UNEVEN, "partition=metis_random"], "killed"),
    ("revgnn", [*UNEVEN, "model.norm=batch", "evaluation=exact"], "stopped"),
    ("custom", [*UNEVEN, "evaluation=views"], "stopped"),
    ("pyg", [*UNEVEN, "model.norm=batch", "evaluation=views"], "stopped"),
    ("tables: weighted classes", FIVE, "killed"),
    ("tables: logits at the scores", FIVE, "stopped"),
    ("neighbor: label inputs, sampled evaluation", UNEVEN, "killed"),
    ("table: neighbor", SPLIT, "killed"),
    ("link: GCN autoencoder with common neighbours", SPLIT, "killed"),
    ("links of edges", [*SPLIT, "task.pairs_per_step=50"], "stopped"),
    ("graph", [*SPLIT, "loader.batch_size=9"], "killed"),
    ("node embedding: on disk", [*LONGER["node embedding"], "parallel.num_ranks=2"], "killed"),
    ("knowledge: sparse Adam", UNEVEN, "killed"),
]


@pytest.mark.parametrize(
    "row, more, how",
    [
        pytest.param(
            row,
            more,
            how,
            id=f"{row} {' '.join(more)} {how}",
            marks=pytest.mark.slow if number < FEW else pytest.mark.exhaustive,
        )
        for number, (row, more, how) in enumerate(RANKS)
    ],
)
def test_ranks_that_are_interrupted_end_with_the_same_bits(
    row, more, how, matrix, tmp_path, monkeypatch
):
    whole, config, folder = matrix.whole(row, *more), matrix.config(row, *more), tmp_path / "run"
    last = rounds_of(whole)[-1]["step"]
    if LOOKS.get(product(row), 1) is None and how == "stopped":
        last -= 1  # a request in the last step but one would be seen by nothing that comes after
    with monkeypatch.context() as patch, pytest.raises(Stopped if how == "stopped" else RankError):
        patch.setattr(
            training,
            "_train_launched",
            functools.partial(resume_cases.train_interrupted, 1, last - 1, how),
        )
        train(config, folder)
    left = checkpoint.load_last(folder / "checkpoints")["progress"]
    assert (
        left["step"] == last
        if how == "stopped"
        else left["step_in_round"] == 0 < left["step"] < last
    )
    train(config, folder)
    assert_same(folder, whole)
    counts = [
        value
        for name, value in checkpoint.load(folder / "checkpoints" / "last.pt")
        .get("model", {})
        .items()
        if name.endswith("num_batches_tracked")
    ]
    has_batch_norm = (
        row == "custom" or getattr(getattr(config, "model", None), "norm", None) == "batch"
    )
    assert all(count == last for count in counts) and bool(counts) == has_batch_norm


# Rounds until a run is killed from outside, wherever it happens to be, and the overrides that leave some to do.
KILLED = [
    ("cluster", ["train.epochs=60"], [5, 23]),
    ("link", ["train.epochs=24", "partition.num_parts=3", "task.pairs_per_step=20"], [3, 8]),
    ("node embedding: AdaGrad", ["train.epochs=400", "train.eval_every=40"], [12]),
    ("knowledge: sparse Adam", ["train.epochs=40"], [5]),
    ("layout", ["train.epochs=300", "train.eval_every=10"], [25]),
]


@pytest.mark.slow
@pytest.mark.parametrize("row, more, rounds", KILLED, ids=[row for row, *_ in KILLED])
def test_kill_9_of_a_command_at_any_moment_loses_nothing(row, more, rounds, matrix, tmp_path):
    whole, folder = matrix.whole(row, *more), tmp_path / "killed"
    for number in rounds:
        kill_after_rounds(number, matrix.overrides(row, *more), folder, matrix.cache)
    code, output = finish([], folder, matrix.cache)
    assert code == 0, output
    assert_same(folder, whole)
