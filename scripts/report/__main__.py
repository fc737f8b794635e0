"""`python -m scripts.report DIR...`: one self-contained HTML page of a run, or of several runs overlaid.

Several runs are compared with the first. A directory of a sweep stands for all its members; runs that differ in their
seeds alone give mean, standard deviation and what OGB's leaderboard asks for.
"""

import sys
from argparse import Namespace
from pathlib import Path

from pipeline.arguments import Parser, check_output
from scripts.report import figures, find_runs
from scripts.report.layout_figure import draw_layout
from scripts.report.runs import AXES, Run
from scripts.report.sweep import summary_of_sweep
from scripts.report.watch import choose_output, watch, write_page


def main() -> None:
    options = _options()
    output = options.output or choose_output(options.runs)
    try:
        for name, path in (("--output", options.output), ("--figure", options.figure)):
            if path is not None:
                check_output(name, path)
        if options.watch:
            sys.exit(watch(options.runs, output, options.every))
        runs, left_out = find_runs(options.runs)
        text, warnings = summary_of_sweep(runs, left_out) if len(runs) > 1 or left_out else ("", [])
        for line in warnings + [f"{run.folder}: {problem}" for run in runs for problem in run.problems]:
            print(line, file=sys.stderr)
        if len(runs) == 1 and (problem := runs[0].layout[1]):
            print(problem, file=sys.stderr)
        if text:
            print(text, end="\n\n")
        write_page(output, runs, left_out)
        if options.figure is not None:
            figures.save(_figure(runs, options.against), options.figure)
    except ImportError as error:
        sys.exit(f"error: the report draws with Plotly and matplotlib ({error}): pip install -e .[report]")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.figure is not None:
        print(options.figure)
    print(output)


def _figure(runs: list[Run], against: list[str] | None):
    """Draw what --figure writes: the layout of a run that left one, else curves, which --against asks for by name."""
    layout, problem = runs[0].layout if len(runs) == 1 else (None, "")
    if against or len(runs) > 1 or not (layout or problem or runs[0].makes_layout):
        return figures.overlay(runs, against)[0]
    if layout is None:
        waits = f"{runs[0].folder} has no layout yet: it is written when the run ends"
        raise ValueError(f"--figure: {problem or waits}. For its curves add --against {' '.join(AXES)}")
    return draw_layout(layout)


def _options() -> Namespace:
    parser = Parser(prog="python -m scripts.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="run directories, or directories of sweeps")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        help="the page; report.html in the directory if not given, in the first of several a name of "
                             "their own")
    parser.add_argument("--watch", action="store_true", help="write the page again and again until the runs have ended")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS",
                        help="between two pages of --watch; 10")
    parser.add_argument("--figure", type=Path, metavar="FILE",
                        help="also write the overlaid curves alone, as .svg or .png; of a run that left a layout the "
                             "layout, unless --against is given")
    parser.add_argument("--against", nargs="+", choices=AXES, metavar="AXIS",
                        help=f"columns of that figure, of {', '.join(AXES)}; all if not given")
    options = parser.parse_args()
    if not options.every >= 1:
        parser.error("--every must be at least 1 second")
    if options.watch and options.figure:
        parser.error("--watch writes the page only: leave out --figure")
    return options


if __name__ == "__main__":
    main()
