"""A session keeps what must not be lost: it resumes, saves, records and stops a run of any trainer."""

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from parallel_epochs.pipeline.names import SPLITS, ranks_at
from parallel_epochs.pipeline.run import checkpoint, files, pulse, read_back
from parallel_epochs.pipeline.run.contract import Step, Trainer
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.log import RunLog, format_score
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.tracker import Tracker
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Format of the checkpoints; raise it when older ones cannot be resumed.
FORMAT = 2
# A mean loss of a round so many times that of the first step, or 1 if that is larger, does not come back.
LARGEST_GROWTH = 1e4
# Steps between two checks that all ranks have the same weights.
STEPS_OF_CHECK = 100
# A run that stops early has had so many times the epochs of the best evaluation.
LONGER = 1.5


def check_settings(folder: Path, saved: dict, settings: dict[str, Any]) -> None:
    """Compare the settings that a checkpoint was trained with and those of now.

    Args:
        saved: the checkpoint; one of before settings were saved has none.

    Raises:
        ValueError: the message names those that differ.
    """
    trained = saved.get("settings", {})
    if edited := [
        f"{name}: {' '.join(str(trained[name]).split()):.80} -> {value}"
        for name, value in settings.items()
        if name in trained and (isinstance(trained[name], Tensor) or trained[name] != value)
    ]:
        raise ValueError(
            f"{folder / 'config.yaml'} is not what this run was trained with ({'; '.join(edited)}): put "
            "the old values back, or start a new run"
        )


def check_data(folder: Path, saved: dict, data_hash: str | None) -> None:
    """Compare the dataset that a checkpoint was trained on and that of now.

    Raises:
        ValueError: it is another one.
    """
    if saved.get("data_hash") != data_hash:
        raise ValueError(
            f"{folder}: the dataset is not the one that this run was started with: restore it, or "
            "start a new run"
        )


def load_best(folder: Path, ranks: Ranks) -> checkpoint.Content:
    """Load the best checkpoint of a run that has ended, on all ranks, when the first has saved it."""
    ranks.wait()
    return checkpoint.load(folder / "checkpoints" / "best.pt", mmap=None)


def shown_scores(scores: dict[str, float], metric: str) -> dict[str, float]:
    """Choose what a line of the log shows: the metric of each evaluated split, or alone where it has none."""
    return (
        {metric: scores[metric]}
        if metric in scores
        else {split: scores[split] for split in SPLITS if split in scores}
    )


class Session:
    """The directory of a run and what happens around its steps; used in a ``with`` statement, by all ranks together.

    Args:
        folder: the run directory, which exists; rank 0 writes to it.
        data_hash: of what is trained on; a checkpoint of other data is refused.
        settings: what the numbers depend on; a checkpoint of other settings is refused.
        patience: evaluations without a better validation metric before the run ends, which has had half as many epochs
            again as the best one; 0 for never.
        allow_rescale: whether a checkpoint of another number of ranks may be resumed.
        open_tracker: opens what the rounds are recorded by as well, see :class:`pipeline.run.log.RunLog`.
        on_best: called by the first rank after the best evaluation so far, when its checkpoint is saved.
        stop: asks for an end after the step in hand.
        began: time of :func:`time.perf_counter` at which the work began; now if not given.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data_hash: str | None = None,
        settings: dict[str, Any] | None = None,
        patience: int = 0,
        allow_rescale: bool = False,
        open_tracker: Callable[..., Tracker] | None = None,
        on_best: Callable[[], None] = lambda: None,
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
        began: float | None = None,
    ):
        self.folder, self.ranks = folder, ranks
        self._origin: dict[str, Any] = {"data_hash": data_hash, "settings": settings or {}}
        self._patience = patience
        self._allow_rescale, self._open_tracker, self._on_best = (
            allow_rescale,
            open_tracker,
            on_best,
        )
        self._stop = stop or StopRequest()
        self._stop_agreed = self._has_explained = False
        self._run_log: RunLog | None = None
        self._began, self._trained = time.perf_counter() if began is None else began, 0.0

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._run_log is not None:
            self._run_log.close(
                "finished" if kind is None else "stopped" if kind is Stopped else "failed"
            )

    @property
    def _open_log(self) -> RunLog:
        assert self._run_log is not None, "resume opens the log"
        return self._run_log

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def resume(self, trainer: Trainer) -> None:
        """Load the last checkpoint, if there is one, and open the log.

        Raises:
            ValueError: the checkpoint is of another dataset, other settings or another number of ranks, or none is
                whole.
            FileError: a checkpoint cannot be read; it is left alone.
        """
        files.own_folder(self._checkpoints)
        with self.ranks.first_then_others():  # the first repairs what is damaged
            saved = checkpoint.load_last(self._checkpoints)
        if saved is not None:
            self._load(trainer, saved)
        progress = trainer.progress
        self._began -= progress.wall_seconds
        self._assert_same_weights(trainer)
        self._run_log = RunLog(
            self.folder if self.ranks.is_first else None,
            metric=trainer.about.metric,
            first_round=progress.round,
            open_tracker=self._open_tracker,
        )
        for kind, values in trainer.describe().items():
            self._open_log.record(kind, **values)
        self._start_bar(trainer)
        self._stop.defer()

    def _load(self, trainer: Trainer, saved: dict) -> None:
        if saved.get("format") != FORMAT:
            raise ValueError(
                f"{self.folder} was trained by another version of this program, whose checkpoints cannot "
                "be resumed: continue with that version, or start a new run"
            )
        same_ranks = saved["num_ranks"] == self.ranks.num_ranks
        if not same_ranks and not self._allow_rescale:
            raise ValueError(
                f"{self.folder} was trained by {saved['num_ranks']} ranks, not {self.ranks.num_ranks}: "
                "their number decides on the partitions and the learning rate. "
                "resume_allow_rescale=true goes on from the checkpoint with the learning rate of the new "
                "number"
            )
        with checkpoint.fitting(saved):
            check_settings(self.folder, saved, self._origin["settings"])
            check_data(self.folder, saved, self._origin["data_hash"])
            numbers = {**saved["progress"], **saved["progress"]["best_scores"]}
            del numbers["best_scores"]
            read_back.check_values(
                self._checkpoints / "last.pt", numbers, dict.fromkeys(numbers, int | float | None)
            )
            trainer.load(saved)
        progress = trainer.progress
        if not same_ranks:
            log.info(
                "%s continue%s what %s began: from here on, the partitions and the learning rate are those of the "
                "new number",
                count(self.ranks.num_ranks, "rank"),
                "s" * (self.ranks.num_ranks == 1),
                count(saved["num_ranks"], "rank"),
            )
        if not same_ranks and progress.step_in_round:
            log.warning("the round that had begun starts again with the new number of ranks")
            progress.begin_round()
        log.info(
            "resumed after %d of %d epochs%s",
            progress.epochs,
            trainer.about.num_epochs,
            f" and {progress.step_in_round} steps" if progress.step_in_round else "",
        )
        if saved["arithmetic"] != trainer.about.arithmetic:
            log.warning(
                "started on %s, continued on %s: the last bits of the result may differ",
                saved["arithmetic"],
                trainer.about.arithmetic,
            )

    def finished(self, trainer: Trainer) -> bool:
        """Tell whether nothing is left to do."""
        progress = trainer.progress
        if (
            0 < self._patience <= progress.num_worse
            and progress.epochs >= LONGER * (progress.best_epoch or 0)
            and progress.round < trainer.num_rounds
        ):
            log.info(
                "no better validation metric in %s: stopping", count(self._patience, "evaluation")
            )
            return True
        return progress.round >= trainer.num_rounds

    def after_step(self, trainer: Trainer, step: Step) -> None:
        """Check that the ranks agree, and leave if one of them was asked to.

        Raises:
            FloatingPointError: the loss of the round has exploded, although it is finite.
            RankError: the ranks' weights differ.
            Stopped: the checkpoint is saved.
        """
        self._open_log.advance()
        if trainer.progress.first_loss is None:
            trainer.progress.first_loss = trainer.progress.mean_loss
        if step.is_last:
            self._refuse_divergence(trainer)
            self._open_log.end_bar()
            self._trained = time.perf_counter()
        if step.number % STEPS_OF_CHECK == 0:
            self._assert_same_weights(trainer)
        self._stop_agreed = step.stop
        if step.stop and not step.is_last:
            self._leave(trainer)

    def _refuse_divergence(self, trainer: Trainer) -> None:
        """End a run whose loss explodes; all ranks have the same numbers."""
        progress = trainer.progress
        limit = min(trainer.about.loss_limit, LARGEST_GROWTH * max(progress.first_loss or 0.0, 1.0))
        if progress.mean_loss > limit:
            raise FloatingPointError(
                f"training has diverged: the mean loss of round {progress.round + 1} is {progress.mean_loss:.3g}, and "
                f"no run that learns exceeds {limit:.3g}. "
                + (
                    f"The checkpoint of epoch {progress.best_epoch} is kept in {self._checkpoints / 'best.pt'}. "
                    if progress.best_epoch is not None
                    else ""
                )
                + "Start a new run with a lower train.lr"
            )

    def evaluate(self, trainer: Trainer) -> dict[str, float] | None:
        """Let the trainer evaluate. If a signal stops it, save a checkpoint from which a resumed run evaluates again.

        Raises:
            Stopped: the checkpoint is saved.
        """
        try:
            return trainer.evaluate()
        except Stopped:
            return self._leave(trainer)

    def close_round(self, trainer: Trainer, scores: dict[str, float] | None) -> None:
        """Record a round, and after an evaluation remember the best one and save a checkpoint.

        Raises:
            RankError: the ranks' weights differ.
            Stopped: the checkpoint is saved.
        """
        progress, number = trainer.progress, trainer.progress.round - 1
        evaluated = None if scores is None else time.perf_counter() - self._trained
        if scores is not None:
            self._assert_same_weights(trainer)
            self._explain_undefined(trainer, scores)
            progress.num_worse += 1
            if self._is_best(trainer, scores["valid"]):
                progress.best_epoch, progress.best_scores, progress.num_worse = (
                    progress.epochs,
                    scores,
                    0,
                )
                if self.ranks.is_first:
                    checkpoint.save(
                        self._checkpoints / "best.pt",
                        {
                            "model": trainer.weights(),
                            "round": number,
                            "epoch": progress.epochs,
                            "scores": scores,
                            **self._origin,
                        },
                    )
                    self._on_best()
        numbers = trainer.numbers
        assert numbers is not None, "a round has ended"
        self._open_log.record(
            "round",
            round=number,
            epochs=progress.epochs,
            step=progress.step,
            **numbers.record(),
            **({} if scores is None else {"evaluation_seconds": evaluated}),
            wall_seconds=time.perf_counter() - self._began,
            **(scores or {}),
        )
        # A trainer may score more than the splits: that is for the record.
        shown = None if scores is None else shown_scores(scores, trainer.about.metric)
        self._open_log.epoch_line(
            epoch=progress.epochs,
            num_epochs=trainer.about.num_epochs,
            numbers=numbers,
            evaluation_seconds=evaluated,
            scores=shown,
            syncs=self.ranks.num_ranks > 1,
            is_best=progress.best_epoch == progress.epochs,
        )
        # After the record: a resumed run drops the records behind its checkpoint, and could not add one.
        if scores is not None:
            self._save(trainer)
        if self._stop_agreed and progress.round < trainer.num_rounds:
            self._leave(trainer)
        self._start_bar(trainer)

    def result(self, trainer: Trainer) -> dict[str, Any]:
        """Sum the run up, for summary.json; "test" is None if no evaluation has it."""
        progress, about, scores = trainer.progress, trainer.about, trainer.progress.best_scores
        assert progress.best_epoch is not None, "the last round is evaluated"
        more = {name: score for name, score in scores.items() if name not in SPLITS}
        return {
            "metric": about.metric,
            "best_epoch": progress.best_epoch,
            "best_valid": scores["valid"],
            "test": scores.get("test"),
            "train": scores["train"],
            **({"scores": more} if more else {}),
            "num_parameters": about.num_parameters,
            "data_epochs": progress.epochs,
            "num_rounds": progress.round,
            "wall_seconds": time.perf_counter() - self._began,
            "kernel": about.kernel,
            "weights_sha256": checkpoint.digest(trainer.weights()),
        }

    @staticmethod
    def _is_best(trainer: Trainer, score: float) -> bool:
        """Tell whether a validation metric is better than all before; one that is undefined (NaN) counts as better."""
        if trainer.progress.best_epoch is None:
            return True
        best = trainer.progress.best_scores["valid"]
        return not (score >= best if trainer.about.lower_is_better else score <= best)

    def _explain_undefined(self, trainer: Trainer, scores: dict[str, float]) -> None:
        """Say once of which splits the metric is undefined."""
        undefined = [
            split
            for split, score in scores.items()
            if score != score and not (split == "train" and ranks_at(trainer.about.metric))
        ]
        if undefined and self.ranks.is_first and not self._has_explained:
            self._has_explained = True
            log.warning(
                "%s is undefined on the %s split, with no rows to score or rows of one kind alone%s",
                trainer.about.metric,
                " and the ".join(undefined),
                ": the last epoch counts as the best one" if "valid" in undefined else "",
            )

    def _start_bar(self, trainer: Trainer) -> None:
        if trainer.progress.round < trainer.num_rounds:
            self._open_log.start_bar(
                trainer.about.num_steps,
                initial=trainer.progress.step_in_round,
                epoch=trainer.progress.epochs,
                num_epochs=trainer.about.num_epochs,
            )

    def _assert_same_weights(self, trainer: Trainer) -> None:
        if self.ranks.num_ranks > 1:
            self.ranks.assert_equal(checkpoint.digest(trainer.fingerprint()), "the weights")

    def _save(self, trainer: Trainer) -> None:
        if self.ranks.is_first:
            pulse.beat("saving", pulse.State.SAVING)
            trainer.progress.wall_seconds = time.perf_counter() - self._began
            checkpoint.save_last(
                self._checkpoints,
                {
                    **trainer.state(),
                    "format": FORMAT,
                    "round": trainer.progress.round,
                    "num_ranks": self.ranks.num_ranks,
                    "arithmetic": trainer.about.arithmetic,
                    **self._origin,
                },
            )

    def _leave(self, trainer: Trainer) -> NoReturn:
        self._save(trainer)
        progress = trainer.progress
        if self.ranks.is_first and progress.best_epoch is not None:
            metric, scores = trainer.about.metric, progress.best_scores
            shown = [
                f"{f'{name} {metric}' if name in SPLITS else name} {format_score(score)}"
                for name, score in scores.items()
            ]
            log.info("best so far: epoch %d, %s", progress.best_epoch, ", ".join(shown))
        self.ranks.wait()  # who starts the ranks may end them all when the first of them has ended
        raise Stopped(self._stop.signum or signal.SIGTERM)
