"""`python -m scripts.report DIR...`: one self-contained HTML page of a run, or of several runs overlaid.

Several runs are compared with the first. A directory of a sweep stands for all its members; runs that differ in their
seeds alone give mean, standard deviation and what OGB's leaderboard asks for.
"""

import argparse
import sys
from pathlib import Path

from pipeline.run.files import write_atomically
from scripts.report import figures, find_runs, page
from scripts.report.runs import AXES
from scripts.report.sweep import summary_of_sweep


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="run directories, or directories of sweeps")
    parser.add_argument("--out", type=Path, help="the page; report.html in the first directory if not given")
    parser.add_argument("--figure", type=Path, metavar="PATH",
                        help="also write the overlaid curves alone, as .svg or .png")
    parser.add_argument("--against", nargs="+", choices=AXES, metavar="AXIS", default=list(AXES),
                        help=f"columns of that figure, of {', '.join(AXES)}; all if not given")
    options = parser.parse_args()
    out = options.out or options.runs[0] / "report.html"
    try:
        runs, left_out = find_runs(options.runs)
        text, warnings = summary_of_sweep(runs, left_out) if len(runs) > 1 or left_out else ("", [])
        for line in warnings:
            print(line, file=sys.stderr)
        if text:
            print(text, end="\n\n")
        document = page(runs, left_out)
        write_atomically(out, lambda file: file.write(document.encode()))
        if options.figure is not None:
            figures.save(figures.overlay(runs, options.against)[0], options.figure)
    except ImportError as error:
        sys.exit(f"error: the report draws with matplotlib ({error}): pip install -e .[report]")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.figure is not None:
        print(options.figure)
    print(out)


if __name__ == "__main__":
    main()
