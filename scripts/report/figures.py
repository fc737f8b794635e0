"""A figure for a README or a paper, which no browser draws: the overlaid curves of several runs, by matplotlib."""

import io
import re
import statistics
import textwrap
from pathlib import Path

from parallel_epochs.pipeline.names import LOWER_IS_BETTER
from parallel_epochs.pipeline.run.files import write_atomically, write_text
from parallel_epochs.pipeline.run.outputs import Header
from parallel_epochs.scripts.report.runs import AXES, Run, comparable, groups, qualities
from parallel_epochs.scripts.report.words import metric_name

# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
TOLERANCE = 0.7  # in 1/72 inch, how far a point that is left out may lie from a curve
CREATOR = "parallel_epochs.scripts.report"  # in the metadata of every figure
MAX_GROUPS = 2 * len(COLOURS)


def overlay(runs: list[Run], against: list[str] | None = None):
    """Several runs in one figure: loss and metric, a row each, against steps, epochs and wall time, a column each.

    Runs that differ in their seeds alone share a colour. Axes are logarithmic: a run that gets to the same quality k
    times sooner lies the same distance to the left everywhere. A ring shows where a run first reaches the quality at
    which runs are compared. Runs of another metric have rows of their own.

    Args:
        against: columns, some keys of AXES; all if not given.

    Returns:
        The figure and the number of settings left out because nobody could tell so many lines apart.
    """
    against = against or list(AXES)
    shown, hidden = _shown(groups(runs))
    quality = next(reversed(qualities(runs)), None) if comparable(runs) and len(shown) > 1 else None
    rows = [
        (metric, key)
        for metric in dict.fromkeys(run.metric for run in runs)
        for key in ("loss", "valid")
    ]
    figure, axes = _figure(len(rows), len(against))
    for row, (metric, key) in zip(axes, rows):
        for axis, x_key in zip(row, against):
            for i, (_, members) in enumerate(shown):
                members = [run for run in members if run.metric == metric]
                style = dict(
                    color=COLOURS[i % len(COLOURS)],
                    linestyle="-" if i < len(COLOURS) else "--",
                    linewidth=1.4,
                    alpha=1 if len(members) == 1 else 0.6,
                )
                for run in members:
                    points = _points(run, x_key, key)
                    if points:
                        axis.plot(*zip(*points), **style, marker="." if len(points) < 3 else None)
                    if key == "valid" and quality is not None and (at := run.reached(quality)):
                        axis.plot(
                            at[x_key],
                            at[key],
                            "o",
                            markersize=6,
                            markerfacecolor="white",
                            color=style["color"],
                            zorder=3,
                        )
            if key == "valid" and quality is not None:
                axis.axhline(quality, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
            if key != "loss":
                _leave_out_the_start(axis, [run for run in runs if run.metric == metric])
        of = f" ({metric_name(metric)})" if len(rows) > 2 else ""
        row[0].set_ylabel(
            f"validation {metric_name(metric)}" if key == "valid" else f"training loss{of}"
        )
    for column, x_key in enumerate(against):
        shared = x_key == "wall_seconds" and any(run.shares_cores for run in runs)
        axes[-1, column].set_xlabel(AXES[x_key] + (", ranks share cores" if shared else ""))
        _log_scale(axes[0, column])
    _legend(figure, shown)
    return figure, hidden


def save(figure, path: Path) -> None:
    """Write the figure to a file.

    Raises:
        ValueError: matplotlib does not write the format that the name ends in.
    """
    import matplotlib

    format = path.suffix.removeprefix(".") or "svg"
    if format != "svg":
        picture = io.BytesIO()
        figure.savefig(
            picture,
            format=format,
            dpi=150,
            metadata={"Software": CREATOR} if format == "png" else None,
        )
        write_atomically(path, lambda file: file.write(picture.getbuffer()))
        return
    text = io.StringIO()
    # Without the date and with fixed names of its parts, equal runs give equal figures.
    with matplotlib.rc_context({"svg.hashsalt": "report", "path.simplify_threshold": TOLERANCE}):
        figure.savefig(text, format="svg", dpi=150, metadata={"Date": None, "Creator": CREATOR})
    write_text(path, shorten(text.getvalue()))


def shorten(svg: str) -> str:
    """Leave out the indentation of an SVG, and digits of its places that nobody sees."""
    return re.sub(
        r'(?<= d="|\s[xy]=")[^"]*',
        lambda places: re.sub(
            r"-?\d+\.\d+(?:e-?\d+)?",
            lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."),
            places[0],
        ).replace(" \n", "\n"),
        re.sub(r"\n +<", "\n<", svg),
    )


def is_figure(header: Header) -> bool:
    """Tell by the header of a file whether it is a figure of this package."""
    return CREATOR.encode() in header.start


def _figure(rows: int, columns: int):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0 * columns, 2.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
    return figure, axes


def _points(run: Run, x_key: str, y_key: str) -> list[tuple[float, float]]:
    return [
        (e[x_key], e[y_key])
        for e in run.rounds
        if e.get(y_key) is not None and e.get(x_key) is not None
    ]


def _shown(found: list[tuple[str, list[Run]]]) -> tuple[list[tuple[str, list[Run]]], int]:
    """The groups to draw: the first, with which all are compared, and the best of the others."""
    first, *others = found
    best = sorted(others, key=lambda group: -max(run.merit() for run in group[1]))[: MAX_GROUPS - 1]
    return [first, *(group for group in others if group in best)], len(others) - len(best)


def _log_scale(axis) -> None:
    """With ticks at 10, 20, 50 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _leave_out_the_start(axis, runs: list[Run]) -> None:
    """Bound the axis of a metric: without the way from chance, which would press what differs into a strip."""
    values = [value for run in runs for _, value in _points(run, "step", "valid")]
    if len(values) > 20:
        quantiles = statistics.quantiles(values, n=5)
        if runs[0].metric in LOWER_IS_BETTER:
            axis.set_ylim(None, quantiles[-1])
        else:
            axis.set_ylim(quantiles[0], None)


def _legend(figure, shown: list[tuple[str, list[Run]]]) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for i, (label, members) in enumerate(shown):
        if len(members) > 1:
            label = f"{label} ({len(members)} seeds)" if label else f"{len(members)} seeds"
        entries.append(
            Line2D(
                [],
                [],
                color=COLOURS[i % len(COLOURS)],
                linestyle="-" if i < len(COLOURS) else "--",
                label=label,
            )
        )
    # Inches of a line and of a letter at the default size, so that long labels take more rows instead of leaving the
    # figure, and go on in another line if they are longer than it is wide.
    widest = 0.7 + 0.09 * max(len(entry.get_label()) for entry in entries)
    columns = max(1, min(len(entries), int(figure.get_figwidth() / widest)))
    if columns == 1:
        for entry in entries:
            entry.set_label(
                textwrap.fill(entry.get_label(), max(10, int((figure.get_figwidth() - 0.7) / 0.09)))
            )
        lines = sum(entry.get_label().count("\n") + 1 for entry in entries)
        figure.set_figheight(figure.get_figheight() + 0.2 * lines)
    figure.legend(handles=entries, loc="outside upper center", ncols=columns, frameon=False)
