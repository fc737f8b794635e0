"""`python -m scripts.report DIR...`: write a self-contained HTML page about a run, or about several runs.

Several runs are compared with the first one. The directory of a sweep stands for all its runs. For runs that differ
only in their seeds, the page has means, standard deviations and the text for OGB's leaderboard.
"""

import hashlib
import re
import sys
from argparse import Namespace
from pathlib import Path

from parallel_epochs.pipeline.command.arguments import Parser
from parallel_epochs.pipeline.run import outputs
from parallel_epochs.pipeline.run.errors import install_command, printable
from parallel_epochs.pipeline.run.files import write_text


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
            ours=document.is_page(output),
            overwrite=options.overwrite,
            way_out="--overwrite",
        )
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
        "--overwrite",
        action="store_true",
        help="replace an existing file that is not a page of this command; files of runs "
        "are never replaced",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
