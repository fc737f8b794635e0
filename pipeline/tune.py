"""`python -m pipeline.tune study=DIR`: search keys for the best validation metric, by Optuna.

Each trial is an ordinary run in a process of its own, `DIR/trial_N`. Its validation metric is told to Optuna while it
trains; a trial that promises little is stopped. The study is a file, which several such commands may share, and what
was killed is continued by the next command that is given the same study.
"""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from parallel_epochs.pipeline.command import cli, space, trust
from parallel_epochs.pipeline.command.space import Search, TuneConfig, hold
from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, DamagedFile, Stopped
from parallel_epochs.pipeline.run.log import format_score, format_table, read_records
from parallel_epochs.pipeline.run.progress import TerminalHandler
from parallel_epochs.pipeline.run.stop import end_with
from parallel_epochs.pipeline.run.words import command_of, count

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
MAX_FAILURES = 3  # in a row


class Worker:
    """Takes trials of a study, one after the other.

    Args:
        options: the folder of the study, and how it is searched.
        trust: whether trials may have classes that the user has not named in a command.
    """

    def __init__(self, study: "Study", search: Search, options: TuneConfig, *, trust: bool = True):
        self._study, self._search, self._options = study, search, options
        self._folder, self._trust = Path(options.study), trust
        self._types = space.check_space(search)
        self._child: subprocess.Popen | None = None
        self._signum, self._num_failed = 0, 0

    def work(self) -> None:
        """Continue what was killed, then begin trials until the study has enough.

        Raises:
            ValueError: several trials in a row have failed.
            Stopped: a signal asked for it; the trial goes on when the study does.
        """
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, self._note)
        while not self._signum:
            with contextlib.ExitStack() as held:
                taken = self._take(held)
                if taken is None:
                    return
                self._run(*taken)
        raise Stopped(self._signum)

    def _take(self, held: contextlib.ExitStack) -> tuple["Trial", list[str]] | None:
        """Take over a trial whose worker is gone, or begin one; none if the study has enough.

        Args:
            held: gets the lock that tells others that the worker of the trial lives.

        Returns:
            The trial, and the overrides with its values.
        """
        import optuna

        with hold(self._folder / ".study", wait=True):  # one worker at a time
            trials = self._study.get_trials(deepcopy=False)
            for known in trials:
                if known.state == optuna.trial.TrialState.RUNNING:
                    try:
                        held.enter_context(hold(self._worker_folder(known.number)))
                    except ValueError:  # its worker lives
                        continue
                    log.info("trial %d was interrupted and continues", known.number)
                    trial = optuna.trial.Trial(self._study, known._trial_id)
                    return trial, self._choose(trial)
            if len(trials) >= self._options.trials:
                return None
            trial = self._study.ask()
            held.enter_context(hold(self._worker_folder(trial.number)))
            return trial, self._choose(trial)

    def _choose(self, trial: "Trial") -> list[str]:
        """Return the overrides of a trial; their values are drawn if it has none yet.

        Raises:
            ValueError: they name a class that the user has neither named nor trusts.
        """
        import optuna

        # A function of the trial, the seed and the results so far: the study of one worker can be repeated.
        self._study.sampler = optuna.samplers.TPESampler(seed=trial.number)
        overrides = space.suggest(trial, self._search, self._types)
        trial.set_user_attr("overrides", overrides)
        try:
            _, config = space.compose_with(self._search, overrides)
        except cli.USER_ERRORS:  # the trial fails with the same message, and the study goes on
            return overrides
        trust.check(config, self._folder / "study.journal", trust=self._trust, trains=True)
        return overrides

    def _worker_folder(self, number: int) -> Path:
        return self._folder / ".workers" / str(number)

    def _note(self, signum: int, frame: object) -> None:
        self._signum = signum
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _run(self, trial: "Trial", chosen: list[str]) -> None:
        """Train a trial to its end, or until it is pruned, and tell the study."""
        from optuna.trial import TrialState

        folder = self._folder / f"trial_{trial.number:03d}"
        with hold(folder, wait=True):  # a run that lost its worker ends by itself, and saves first
            pass
        quoted = "'" + str(folder).replace("'", "\\'") + "'"
        is_resumed = (
            any(folder.glob("**/checkpoints/last.pt")) and (folder / "config.yaml").is_file()
        )
        overrides = (
            [f"resume={folder}", *(["trust=true"] if self._options.trust else [])]
            if is_resumed
            else [*self._search.fixed, *chosen, f"hydra.run.dir={quoted}"]
        )
        log.info("trial %d: %s", trial.number, " ".join(chosen))
        start, is_pruned = time.perf_counter(), False
        with tempfile.TemporaryFile("w+") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "parallel_epochs.pipeline.train", *overrides],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),
            )
            if self._signum:  # it came before there was a child to send it to
                self._child.send_signal(signal.SIGTERM)
            while (status := self._child.poll()) is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(POLL_SECONDS)
                if not is_pruned and self._report(trial, folder) and trial.should_prune():
                    is_pruned = True
                    self._child.send_signal(signal.SIGTERM)
            self._child = None
            output.seek(0)
            said = output.read().strip().splitlines()
        self._report(trial, folder)
        seconds = time.perf_counter() - start
        if is_pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
            log.info("trial %d: pruned after %.0f s", trial.number, seconds)
        elif (
            summary := read_summary(folder)
        ) is not None:  # also where a signal met the run after its last word
            self._tell(trial, summary.get("metric", ""), summary["best_valid"], seconds)
        elif status in (EXIT_TRY_AGAIN, -signal.SIGTERM):  # somebody stopped it, or this command
            self._signum = self._signum or signal.SIGTERM
        elif status == 0:
            self._fail(trial, "it ended without a result; did its code call sys.exit?")
        else:
            self._fail(trial, said[-1] if said else f"ended with status {status}")

    def _fail(self, trial: "Trial", reason: str) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr("failure", reason)
        self._study.tell(trial, state=TrialState.FAIL)
        self._num_failed += 1
        log.warning("trial %d failed: %s", trial.number, reason)
        if self._num_failed >= MAX_FAILURES:
            raise ValueError(
                f"{MAX_FAILURES} trials in a row have failed, the last one with: {reason}"
            )

    def _tell(self, trial: "Trial", metric: str, valid: float | None, seconds: float) -> None:
        """Tell the study what a trial has come to: the metric, or minus a metric of which less is better.

        Raises:
            ValueError: the metric is undefined on the validation split.
        """
        if valid is None:
            raise ValueError(
                f"{metric} is undefined on the validation split of trial {trial.number}: there is nothing "
                "to search by; choose another task.metric, or give the split labels of both kinds"
            )
        trial.set_user_attr("metric", metric)
        self._study.tell(trial, merit(metric, valid))
        self._num_failed = 0
        log.info(
            "trial %d: valid %s, %.0f s; best %s of trial %d",
            trial.number,
            format_score(valid),
            seconds,
            format_score(merit(metric, self._study.best_value)),
            self._study.best_trial.number,
        )

    def _report(self, trial: "Trial", folder: Path) -> bool:
        """Tell the study the validation metrics that are new."""
        known = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        records = read_records(folder / "metrics.jsonl")
        metric = next((record["metric"] for record in records if "metric" in record), "")
        new = {
            record["epochs"]: record["valid"]
            for record in records
            if record["kind"] == "round"
            and record.get("valid") is not None
            and record["epochs"] not in known
        }
        for epoch, valid in new.items():
            trial.report(merit(metric, valid), epoch)
        return bool(new)


def read_summary(folder: Path) -> dict | None:
    """Read the summary of a run that has ended; none if it has written none, or another one than a run writes."""
    path = folder / "summary.json"
    try:
        summary = files.read_json(path) if files.is_there(path) else {}
    except DamagedFile as error:
        log.warning("%s", error)
        return None
    return summary if "best_valid" in summary else None


def tabulate(study: "Study") -> str:
    """Format the trials, the best first, and the command of the best one."""
    rows = []
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    for trial in sorted(
        finished, key=lambda trial: (trial.state.name != "COMPLETE", -(trial.value or 0))
    ):
        value = f"{trial.state.name.lower()} after {count(trial.last_step or 0, 'epoch')}"
        if trial.state.name == "COMPLETE":
            value = format_score(
                merit(trial.user_attrs.get("metric", ""), cast(float, trial.value))
            )
        rows.append(
            (f"trial {trial.number}", f"{value}  {' '.join(trial.user_attrs.get('overrides', []))}")
        )
    return format_table(
        rows or [("no trial", "has ended")], "trials, the best validation metric first"
    )


def main() -> None:
    """Search."""
    logging.basicConfig(
        level=logging.INFO, format="%(message)s", handlers=[TerminalHandler(sys.stdout)]
    )
    given, typed = space.read_command(sys.argv[1:])
    study, search, options = space.open_study(given, typed)
    # The user names what is typed.
    is_typed = bool(typed.fixed or typed.space)
    try:
        Worker(study, search, options, trust=options.trust or is_typed).work()
    except Stopped as stopped:
        log.info("%s; continue with %s study=%s", stopped, command_of("tune"), options.study)
        sys.exit(EXIT_TRY_AGAIN)
    log.info("%s", tabulate(study))
    trials = study.get_trials(deepcopy=False)
    if not any(trial.state.name == "COMPLETE" for trial in trials):
        reasons = [trial.user_attrs["failure"] for trial in trials if "failure" in trial.user_attrs]
        last = f", the last one with: {reasons[-1]}" if reasons else ""
        raise ValueError(
            f"no trial of {options.study} has a result: all {len(trials)} have failed{last}"
        )
    best = study.best_trial
    log.info("best: trial %d, in %s", best.number, Path(options.study) / f"trial_{best.number:03d}")
    log.info(
        "%s %s", command_of("train"), shlex.join([*search.fixed, *best.user_attrs["overrides"]])
    )


if __name__ == "__main__":
    cli.call(main)
