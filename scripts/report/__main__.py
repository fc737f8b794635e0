"""`python -m scripts.report DIR...`: write a self-contained HTML page about a run, or about several runs.

Several runs are compared with the first one. The directory of a sweep stands for all its runs. For runs that differ
only in their seeds, the page has means, standard deviations and the text for OGB's leaderboard.
"""

import sys
from argparse import Namespace
from pathlib import Path

from parallel_epochs.pipeline.command.arguments import Parser
from parallel_epochs.pipeline.run import outputs
from parallel_epochs.pipeline.run.errors import install_command, printable
from parallel_epochs.scripts.report import figures, find_runs
from parallel_epochs.scripts.report.layout_figure import draw_layout
from parallel_epochs.scripts.report.pages import is_page
from parallel_epochs.scripts.report.runs import AXES, Run
from parallel_epochs.scripts.report.sweep import summary_of_sweep
from parallel_epochs.scripts.report.watch import choose_output, watch, write_page


def main() -> None:
    options = _options()
    output = options.output or choose_output(options.runs)
    try:
        if missing := [folder for folder in options.runs if not folder.exists()]:
            raise ValueError(f"{missing[0]} is not a run directory: it does not exist")
        _check_outputs(options, output)
        if options.watch:
            sys.exit(watch(options.runs, output, options.every))
        runs, left_out = find_runs(options.runs)
        text, warnings = summary_of_sweep(runs, left_out) if len(runs) > 1 or left_out else ("", [])
        for line in warnings + [
            f"{run.folder}: {problem}" for run in runs for problem in run.problems
        ]:
            print(printable(line), file=sys.stderr)
        for _, problem in [runs[0].layout, runs[0].scores, runs[0].why] if len(runs) == 1 else []:
            if problem:
                print(printable(problem), file=sys.stderr)
        if text:
            print(printable(text), end="\n\n")
        write_page(output, runs, left_out)
        if options.figure is not None:
            figures.save(_figure(runs, options.against), options.figure)
    except ImportError as error:
        sys.exit(
            f"error: the report draws with Plotly and matplotlib ({error}): {install_command('report')}"
        )
    except (ValueError, OSError) as error:
        sys.exit(printable(f"error: {error}"))
    if options.figure is not None:
        print(options.figure)
    print(output)


def _check_outputs(options: Namespace, page: Path) -> None:
    """Refuse files that must not be replaced.

    Raises:
        ValueError: names the argument and the file.
    """
    rules = dict(
        reads=[("the runs", path) for path in options.runs if path.is_file()],
        overwrite=options.overwrite,
        way_out="--overwrite",
    )
    outputs.check("--output", page, ours=is_page, **rules)
    if options.figure is not None:
        outputs.check_distinct([("--output", page), ("--figure", options.figure)])
        outputs.check("--figure", options.figure, ours=figures.is_figure, **rules)


def _figure(runs: list[Run], against: list[str] | None):
    """Draw the figure for --figure: the layout of a run that has one, otherwise the curves that --against chooses."""
    layout, problem = runs[0].layout if len(runs) == 1 else (None, "")
    if against or len(runs) > 1 or not (layout or problem or runs[0].makes_layout):
        return figures.overlay(runs, against)[0]
    if layout is None:
        waits = f"{runs[0].folder} has no layout yet; the run writes it when it ends"
        raise ValueError(
            f"--figure: {problem or waits}. To draw the curves, add --against {' '.join(AXES)}"
        )
    return draw_layout(layout)


def _options() -> Namespace:
    parser = Parser(prog="python -m scripts.report", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="run directories, directories of sweeps, or a .csv table of the rounds of several runs",
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
        "--figure",
        type=Path,
        metavar="FILE",
        help="also write a figure of the curves as .svg or .png; for a run with a layout, a figure of "
        "the layout, unless --against is given",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        choices=AXES,
        metavar="AXIS",
        help=f"columns of the figure of curves: {', '.join(AXES)} (default: all)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing file that is not a page or figure of this command; files of runs are "
        "never replaced",
    )
    options = parser.parse_args()
    if not options.every >= 1:
        parser.error("--every must be at least 1 second")
    if options.watch and options.figure:
        parser.error("--watch cannot write a figure: leave out --figure")
    return options


if __name__ == "__main__":
    main()
