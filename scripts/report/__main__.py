"""`python -m scripts.report DIR...`: write a self-contained HTML page about a run, or about several runs.

Several runs are compared with the first one. The directory of a sweep stands for all its runs. For runs that differ
only in their seeds, the page has means, standard deviations and the text for OGB's leaderboard.
"""

import hashlib
import re
import sys
import time
from argparse import Namespace
from pathlib import Path

from parallel_epochs.pipeline.command.arguments import Parser
from parallel_epochs.pipeline.run import outputs
from parallel_epochs.pipeline.run.errors import EXIT_INTERRUPTED, install_command, printable
from parallel_epochs.pipeline.run.files import write_text

# Looks without a running run after which all have ended, as the next run of a sweep may be starting.
QUIET_LOOKS = 3


def main() -> None:
    options = _options()
    output = options.output or choose_output(options.runs)
    try:
        from parallel_epochs.scripts.report import comparison, document
        from parallel_epochs.scripts.report.runs import find_runs

        if missing := [folder for folder in options.runs if not folder.exists()]:
            raise ValueError(f"{missing[0]} is not a run directory: it does not exist")
        outputs.check(
            "--output",
            output,
            ours=document.is_page,
            overwrite=options.overwrite,
            way_out="--overwrite",
        )
        if options.watch:
            sys.exit(watch(options.runs, output, options.every))
        runs, left_out = find_runs(options.runs)
        text, problems = "", []
        if len(runs) > 1 or left_out:
            several = comparison.compare(runs, left_out)
            text, problems = several.summary(), several.problems
        content, more = document.build(runs, left_out)
        problems += [f"{run.folder}: {line}" for run in runs for line in run.problems]
        for line in dict.fromkeys([*problems, *more]):
            print(printable(line), file=sys.stderr)
        if text:
            print(printable(text), end="\n\n")
        write_text(output, content)
    except ImportError as error:
        sys.exit(f"error: the report draws with Plotly ({error}): {install_command('report')}")
    except (ValueError, OSError) as error:
        sys.exit(printable(f"error: {error}"))
    print(output)


def choose_output(folders: list[Path]) -> Path:
    """Name the page of one directory report.html, and of several after them, so that none overwrites another."""
    first = folders[0]
    if len(folders) == 1:
        return first / "report.html"
    others = [re.sub(r"[^\w.-]+", "_", folder.resolve().name) for folder in folders[1:]]
    names = "-".join(others) if len(others) <= 2 else f"{others[0]}-and-{len(others) - 1}-others"
    paths = "\n".join(str(folder.resolve()) for folder in folders)
    digest = hashlib.sha256(paths.encode()).hexdigest()[:6]
    return first / f"report-with-{names[:80]}-{digest}.html"


def watch(folders: list[Path], output: Path, every: float) -> int:
    """Write the page every few seconds until all runs have ended, or until Ctrl-C; returns the exit status.

    Raises:
        ValueError: there is nothing to show.
    """
    from parallel_epochs.scripts.report.document import page
    from parallel_epochs.scripts.report.runs import find_runs

    print(f"{output} is written every {every:g} s until all runs have ended, or Ctrl-C", flush=True)
    quiet, status = 0, 0
    try:
        while quiet < QUIET_LOOKS:
            if any(any(folder.glob("**/metrics.jsonl")) for folder in folders):
                found = find_runs(folders)
                quiet = 0 if any(run.state.kind == "running" for run in found[0]) else quiet + 1
                write_text(output, page(*found, live=every))
            time.sleep(every)
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    write_text(output, page(*find_runs(folders)))
    print(f"{output}: this is the last page")
    return status


def _options() -> Namespace:
    parser = Parser(prog="python -m scripts.report", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="run directories, or directories of sweeps",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file of the page (default: report.html in the directory; with several directories, a "
        "name made of theirs, in the first one)",
    )
    parser.add_argument(
        "--watch", action="store_true", help="write the page again and again until the runs end"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="seconds between two pages with --watch (default: 10)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing file that is not a page of this command; files of runs "
        "are never replaced",
    )
    options = parser.parse_args()
    if not options.every >= 1:
        parser.error("--every must be at least 1 second")
    return options


if __name__ == "__main__":
    main()
