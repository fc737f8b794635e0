"""Ranks that are watched or hurt in the middle of a run, for test_guards.py; their processes import it by name."""

import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.gnn.config import GNNConfig as Config
from parallel_epochs.pipeline.gnn.predict import inference
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.trainer import GNNTrainer
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.checkpoint import digest
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest


def train_hurt(
    hurt: Callable | None, ranks: Ranks, stop: StopRequest, config: Config, folder: Path, *args
) -> dict | None:
    """Train as a rank, write down what it sees, and let ``hurt(ranks, stop, folder)`` change the program first."""
    watch(folder / f"rank-{ranks.rank}.jsonl")
    if hurt is not None:
        hurt(ranks, stop, folder)
    return training._train_launched(ranks, stop, config, folder, *args)


def watch(path: Path) -> None:
    """Write a line for this process, for each step and for each round."""

    def note(**seen) -> None:
        with open(path, "a") as file:
            file.write(json.dumps(seen) + "\n")

    step, loss, evaluate = GNNTrainer._step, NodeTask.loss, GNNTrainer.evaluate

    def watched_step(self, batch, lr):
        note(step=self.progress.step + 1)
        return step(self, batch, lr)

    def watched_loss(self, model, batch, rng):
        note(
            random=digest([torch.get_rng_state(), rng.get_state()]),
            threads=torch.get_num_threads(),
            maps=[
                line.split()[-1]
                for line in Path("/proc/self/maps").read_text().splitlines()
                if "graphs" in line
            ],
        )
        return loss(self, model, batch, rng)

    def watched_evaluate(self):
        note(weights=digest(self.weights()))
        return evaluate(self)

    note(pid=os.getpid())
    GNNTrainer._step, NodeTask.loss, GNNTrainer.evaluate = (
        watched_step,
        watched_loss,
        watched_evaluate,
    )


def before_step(number: int, do: Callable[[GNNTrainer], object]) -> None:
    """Call ``do(trainer)`` before an optimizer step of the run, from 1."""
    step = GNNTrainer._step

    def changed(self, batch, lr):
        if self.progress.step + 1 == number:
            do(self)
        return step(self, batch, lr)

    GNNTrainer._step = changed


def drift(number: int, ranks: Ranks, stop: StopRequest, folder: Path) -> None:
    """A weight of rank 1 moves by itself."""

    def move(trainer: GNNTrainer) -> None:
        with torch.no_grad():
            next(trainer.model.parameters())[0] += 1e-6

    if ranks.rank == 1:
        before_step(number, move)


def finish_before_the_others_are_stopped(ranks: Ranks, stop: StopRequest, folder: Path) -> None:
    """Rank 1 ends its first evaluation before the request to stop, which rank 0 meets in the middle of its own."""

    class InTurn(inference.Bar):
        def advance(self, text=None):
            while ranks.is_first and not stop.signum:
                time.sleep(0.001)
            super().advance(text)
            stop._signum.value = signal.SIGTERM

    inference.Bar = InTurn


def kill_this_process() -> None:
    """Die as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(point: str, number: int, die: Callable[[], None] = kill_this_process) -> None:
    """Change this process so that it dies at a named point of the save of last.pt with this number, from 1."""
    saves = 0
    write, save, replace, link = files.write_atomically, torch.save, os.replace, os.link

    def counted(path, *args, **options):
        nonlocal saves
        saves += path.name == "last.pt"
        if saves == number and point == "before the temporary file":
            die()
        write(path, *args, **options)

    def halved(state, file):
        if saves == number and point == "half-written":
            whole = io.BytesIO()
            save(state, whole)
            file.write(whole.getvalue()[: whole.tell() // 2])
            file.flush()
            die()
        save(state, file)

    def renamed(source, target):
        now = Path(target).name == "last.pt" and saves == number
        if now and point == "before the rename":
            die()
        replace(source, target)
        if now and point == "after the rename":
            die()

    def pruned(source, target):
        link(source, target)
        if saves == number and point == "while pruning":
            die()

    files.write_atomically, torch.save, os.replace, os.link = counted, halved, renamed, pruned


class ReturnValues:
    """A callback of Hydra that writes down what the task function returned: what a sweeper would optimise."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def on_job_end(self, config, job_return, **kwargs) -> None:
        with open(self.folder / "returned.jsonl", "a") as file:
            file.write(json.dumps(job_return.return_value) + "\n")
