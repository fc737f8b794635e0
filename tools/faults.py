"""`python -m tools.faults`: inject faults into commands at random moments, and check that nothing is lost.

Each fault strikes a run some time after its start, and again after each resume, until it has struck as often as asked.
The commands train every product, write stores, search, predict and report.
A run that reaches its end must have the same bits as an undisturbed run. After a strike all processes must exit in
time, the exit status must be the documented one, and a user who asked for a stop must not see a traceback.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tools.strikes import (
    FAULTS,
    GNN,
    SITE,
    TABLES,
    Fault,
    LiveRun,
    is_alive,
    wait_for_saves,
    write_data,
)

SECONDS_TO_END = 40


class WrongOutcome(Exception):
    """The run did not react to a fault as it must."""


class Campaign:
    """Starts runs in a folder, strikes them, and compares their results with those of undisturbed runs."""

    def __init__(self, root: Path):
        self.root = root

    def cache(self, fault: Fault) -> Path:
        """Return the cache of the runs of a fault."""
        own = fault.unprepared or fault.unread
        return self.root / (f"cache-{fault.name.replace(' ', '-')}" if own else "cache")

    def command(
        self, fault: Fault, folder: Path, *, cache: Path | None = None, torchrun: bool = False
    ) -> list[str]:
        """Return the module and the arguments that a fault strikes."""
        job, more = fault.job, list[str]()
        if job.module == "pipeline.train":
            more = [
                *([] if torchrun else [f"parallel.num_ranks={fault.num_ranks}"]),
                *fault.overrides,
            ]
        if job.module in ("pipeline.train", "pipeline.tune"):
            more.append(f"cache_dir={cache or self.cache(fault)}")
        own = [argument.format(root=self.root) for argument in job.arguments]
        return [job.module, *own, *more, job.target(folder)]

    def reference(self, fault: Fault) -> Path:
        """Return the folder of the undisturbed run whose result the struck runs must have."""
        number = next(
            number for number, other in enumerate(FAULTS) if other.overrides == fault.overrides
        )
        return self.root / f"undisturbed-{fault.job.name}-{fault.num_ranks}-{number}"

    def train_reference(self, fault: Fault) -> bool:
        """Train the undisturbed run of a fault unless it exists; tell whether it succeeded."""
        folder = self.reference(fault)
        folder.mkdir(exist_ok=True)
        run = LiveRun(folder, self.command(fault, folder, cache=self.root / "cache"))
        if run.wait(600) != 0:
            print(f"undisturbed: {run.log.read_text()}", file=sys.stderr)
            return False
        return True

    def try_fault(self, fault: Fault, times: int) -> tuple[int, int, int]:
        """Strike runs by a fault as often as asked.

        Returns:
            The number of strikes, of runs that reached their end, and of runs that lost something.
        """
        tried = runs = lost = 0
        folder = self._new_folder(fault, runs)
        while True:
            struck = tried < times
            if fault.unprepared and struck or fault.unread and not any(folder.iterdir()):
                shutil.rmtree(self.cache(fault), ignore_errors=True)
            module, *arguments = self.command(fault, folder, torchrun=fault.torchrun)
            limits = list(fault.limits) if struck else []
            run = LiveRun(folder, [module, *limits, *arguments], fault.torchrun and fault.num_ranks)
            if struck and self._wait_for_the_moment(fault, run) and self._strike(fault, run):
                tried += 1
                continue
            if run.wait(600) != 0:
                if run.status is None:
                    os.killpg(run.pid, signal.SIGKILL)
                raise WrongOutcome(
                    f"an undisturbed run ended with status {run.status}: {run.log.read_text()[-2000:]}"
                )
            runs, lost = runs + 1, lost + self._is_lost(fault, folder)
            shutil.rmtree(folder)
            folder = self._new_folder(fault, runs)
            if not struck:
                return tried, runs, lost

    def _new_folder(self, fault: Fault, number: int) -> Path:
        folder = self.root / f"{FAULTS.index(fault)}-{number}"
        folder.mkdir()
        return folder

    def _wait_for_the_moment(self, fault: Fault, run: LiveRun) -> bool:
        """Wait for the moment of the strike; tell whether the run is still going on."""
        if fault.unprepared or fault.job.seconds:
            time.sleep((fault.job.seconds or 0.8) * random.random())
            return run.poll() is None
        end = time.monotonic() + 300
        wait_for_saves(run, run.folder, 2, 300)  # one of which may be truncated
        time.sleep(0.2 * random.random())
        while fault.during and run.poll() is None and time.monotonic() < end:
            if any(sign.doing.startswith(fault.during) for sign in run.signs() if sign.rank >= 0):
                time.sleep(0.02 * random.random())
                break
        return run.poll() is None and len(run.ranks()) == fault.num_ranks

    def _strike(self, fault: Fault, run: LiveRun) -> bool:
        """Strike a run and wait for its end; tell whether the strike came before the run had finished.

        Raises:
            WrongOutcome: the run did not react as it must.
        """
        pids = [sign.pid for sign in run.signs()]
        try:
            fault.strike(run)
        except ProcessLookupError:
            run.wait(SECONDS_TO_END)
            return False
        end = time.monotonic() + SECONDS_TO_END
        status = run.wait(SECONDS_TO_END)
        while any(map(is_alive, pids)) and time.monotonic() < end:
            time.sleep(0.005)
        if status is None or any(map(is_alive, pids)):
            for pid in {run.pid, *pids}:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
            raise WrongOutcome(
                f"a process was still alive {SECONDS_TO_END} s after the strike: "
                f"{run.log.read_text()[-2000:]}"
            )
        if status == 0:
            return False
        output = run.log.read_text()
        if status not in fault.statuses:
            raise WrongOutcome(
                f"the exit status was {status}, not one of {[*map(int, fault.statuses)]}: "
                f"{output[-2000:]}"
            )
        if fault.quiet and "Traceback (most recent call last)" in output:
            raise WrongOutcome(f"the user saw a traceback: {output[-2000:]}")
        if fault.damage is not None:
            fault.damage(run.folder)
        return True

    def _is_lost(self, fault: Fault, folder: Path) -> bool:
        ours, expected = map(fault.job.result, (folder, self.reference(fault)))
        return ours != expected


def work(campaign: Campaign, faults: list[Fault], times: int, seed: int) -> bool:
    """Try faults one after the other and print a row of the table for each; tell whether nothing was lost."""
    good = True
    for fault in faults:
        random.seed(f"{seed} {fault.name}")
        start, problem = time.monotonic(), ""
        try:
            tried, _runs, lost = campaign.try_fault(fault, times)
            print(f"| {fault.name} | {tried} | {lost} |", flush=True)
            good &= lost == 0
        except WrongOutcome as error:
            good, problem = False, str(error)
            print(f"| {fault.name} | failed | |", flush=True)
            print(f"{fault.name}: {problem}", file=sys.stderr, flush=True)
        print(f"{fault.name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return good


def in_processes(jobs: list[Callable[[], bool]]) -> bool:
    """Call functions in parallel, each in a fork of this process; tell whether all returned true."""
    pids = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if job() else 1
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        pids.append(pid)
    return not any([os.waitpid(pid, 0)[1] for pid in pids])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        help="number of strikes of each fault (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="number of runs that are struck in parallel (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="TEXT",
        help="try only faults whose name contains one of these texts",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random moments (default: %(default)s)"
    )
    options = parser.parse_args()
    import torch.distributed.run  # noqa: F401 - imported once, for all forks

    import parallel_epochs.pipeline.training  # noqa: F401

    faults = [fault for fault in FAULTS if any(text in fault.name for text in options.only)]
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        site = Path(root, "site")
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        paths = [
            str(site),
            str(Path(__file__).resolve().parents[1]),
            os.environ.get("PYTHONPATH", ""),
        ]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        campaign = Campaign(Path(root))
        write_data(campaign.root)
        # The first of these also prepares the graph for others; both are predicted with, reported or exported.
        bases = {
            campaign.reference(fault): fault
            for fault in FAULTS
            if fault.job in (GNN, TABLES) and fault.num_ranks == 1 and not fault.overrides
        }
        for fault in bases.values():
            campaign.train_reference(fault)
        references = {
            campaign.reference(fault): fault
            for fault in faults
            if campaign.reference(fault) not in bases
        }
        split = [list(references.values())[job :: options.jobs] for job in range(options.jobs)]
        if not in_processes(
            [lambda mine=mine: all(map(campaign.train_reference, mine)) for mine in split]
        ):
            sys.exit(1)
        print("| fault | times tried | lost |\n|---|---|---|", flush=True)
        good = in_processes(
            [
                lambda mine=faults[job :: options.jobs]: work(
                    campaign, mine, options.times, options.seed
                )
                for job in range(options.jobs)
            ]
        )
    print(f"{time.monotonic() - start:.0f} seconds", file=sys.stderr)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
