"""The file of a page, and its updates while a run goes on."""

import hashlib
import re
import time
from pathlib import Path

from parallel_epochs.pipeline.run.files import write_atomically
from parallel_epochs.scripts.report.pages import page
from parallel_epochs.scripts.report.runs import Run, find_runs

QUIET_LOOKS = (
    4  # looks without a running run after which a sweep has ended, as its next run may be starting
)


def choose_output(folders: list[Path]) -> Path:
    """Name the page of one directory report.html, and of several after them, so that none overwrites another."""
    first = (
        folders[0].parent if folders[0].suffix == ".csv" and folders[0].is_file() else folders[0]
    )
    if len(folders) == 1:
        return first / "report.html"
    others = [re.sub(r"[^\w.-]+", "_", folder.resolve().name) for folder in folders[1:]]
    names = "-".join(others) if len(others) <= 2 else f"{others[0]}-and-{len(others) - 1}-others"
    digest = hashlib.sha256(
        "\n".join(str(folder.resolve()) for folder in folders).encode()
    ).hexdigest()[:6]
    return first / f"report-with-{names[:80]}-{digest}.html"


def write_page(output: Path, runs: list[Run], left_out: list[str], *, live: float = 0) -> None:
    """Write the page atomically."""
    document = page(runs, left_out, live=live)
    write_atomically(output, lambda file: file.write(document.encode()))


def watch(folders: list[Path], output: Path, every: float) -> int:
    """Write the page every few seconds until all runs have ended, or until Ctrl-C.

    Returns:
        The exit status.

    Raises:
        ValueError: there is nothing to show, or a path is a file.
    """
    if files := [path for path in folders if not path.is_dir()]:
        raise ValueError(
            f"--watch needs directories of runs, and {files[0]} is a file: leave out --watch"
        )
    shown, quiet, last = False, 0, None
    try:
        while True:
            found = _look(folders)
            if found is None:
                if last != "waiting":
                    print(
                        f"waiting for a run in {', '.join(map(str, folders))}; stop with Ctrl-C",
                        flush=True,
                    )
                last = "waiting"
            else:
                runs, left_out = found
                going_on = any(run.state.kind == "running" for run in runs)
                quiet = 0 if going_on else quiet + 1
                is_sweep = any(not (folder / "config.yaml").is_file() for folder in folders)
                if not going_on and quiet >= (QUIET_LOOKS if is_sweep and shown else 1):
                    write_page(output, runs, left_out)
                    ended = (
                        f"the run {runs[0].state.text}" if len(runs) == 1 else "all runs have ended"
                    )
                    print(f"{output}: this is the last page, as {ended}")
                    return 0
                write_page(output, runs, left_out, live=every)
                if not shown:
                    print(
                        f"{output}: open it in a browser. It is written again every {every:g} s until the run ends "
                        "or you press Ctrl-C",
                        flush=True,
                    )
                shown = True
            time.sleep(every)
    except KeyboardInterrupt:
        if shown and (found := _look(folders)) is not None:
            write_page(output, *found)
        print(
            f"\n{output if shown else 'no page'}: no longer updated, which does not stop the runs"
        )
        return 130


def _look(folders: list[Path]) -> tuple[list[Run], list[str]] | None:
    """Read the runs, or return None if no run has begun."""
    try:
        return find_runs(folders)
    except ValueError:
        if all(not any(folder.glob("**/metrics.jsonl")) for folder in folders):
            return None
        raise
