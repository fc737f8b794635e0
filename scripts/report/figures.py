"""Figures as matplotlib draws them; as SVG for the page."""

import io
import statistics
from pathlib import Path

from scripts.report.runs import AXES, Run, comparable, groups, qualities

# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MAX_GROUPS = 2 * len(COLOURS)


def curves(run: Run, keys: list[str], label: str):
    """One run's loss or metrics against epochs and wall time."""
    figure, axes = _figure(1, 2)
    for axis, x_key in zip(axes[0], ("epochs", "wall_seconds")):
        for key, colour in zip(keys, COLOURS):
            points = _points(run, x_key, key)
            if points:
                axis.plot(*zip(*points), color=colour, linewidth=1.4, label=key,
                          marker="." if len(points) < 3 else None)
        axis.set(xlabel=AXES[x_key], ylabel=label)
        if len(keys) > 1 and axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
    return figure


def overlay(runs: list[Run], against: list[str] | None = None, keys: tuple[str, ...] = ("loss", "valid")):
    """Several runs in one figure: loss and metric, a row each, against steps, epochs and wall time, a column each.

    Runs that differ in their seeds alone share a colour. Axes are logarithmic: a run that gets to the same quality k
    times sooner lies the same distance to the left everywhere. A ring shows where a run first reaches the quality at
    which runs are compared.

    Args:
        against: columns, some keys of AXES; all if not given.
        keys: rows.

    Returns:
        The figure and the number of settings left out because nobody could tell so many lines apart.
    """
    against = against or list(AXES)
    shown, hidden = _shown(groups(runs))
    quality = min(qualities(runs), default=None) if comparable(runs) and len(shown) > 1 else None
    figure, axes = _figure(len(keys), len(against), width=4.0, height=2.7)
    names = {"loss": "training loss", "valid": f"validation {runs[0].metric}", "test": f"test {runs[0].metric}"}
    for row, key in zip(axes, keys):
        for axis, x_key in zip(row, against):
            for i, (_, members) in enumerate(shown):
                style = dict(color=COLOURS[i % len(COLOURS)], linestyle="-" if i < len(COLOURS) else "--",
                             linewidth=1.4, alpha=1 if len(members) == 1 else 0.6)
                for run in members:
                    points = _points(run, x_key, key)
                    if points:
                        axis.plot(*zip(*points), **style, marker="." if len(points) < 3 else None)
                    if key == "valid" and quality is not None and (at := run.reached(quality)):
                        axis.plot(at[x_key], at[key], "o", markersize=6, markerfacecolor="white", color=style["color"],
                                  zorder=3)
            if key == "valid" and quality is not None:
                axis.axhline(quality, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
            if key != "loss":
                axis.set_ylim(_bottom(runs, key), None)
        row[0].set_ylabel(names[key])
    for column, x_key in enumerate(against):
        shared = x_key == "wall_seconds" and any(run.shares_cores for run in runs)
        axes[-1, column].set_xlabel(AXES[x_key] + (", ranks share cores" if shared else ""))
        _log_scale(axes[0, column])
    _legend(figure, shown)
    return figure, hidden


def partition(part: dict):
    """Nodes and kept edges of each cluster."""
    figure, axes = _figure(1, 2)
    index = range(1, len(part["sizes"]) + 1)
    for axis, key, label in zip(axes[0], ("sizes", "kept_edges"), ("nodes", "edges kept within the cluster")):
        axis.bar(index, part[key], width=0.8 if len(index) < 100 else 1.0, color=COLOURS[0])
        axis.set(xlabel="cluster", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def components(largest: list[dict]):
    """Sizes of the largest components."""
    figure, axes = _figure(1, 1)
    axis = axes[0, 0]
    axis.bar(range(1, len(largest) + 1), [c["num_nodes"] for c in largest], color=COLOURS[0])
    axis.set(xlabel=f"component, the {len(largest):,} largest" if len(largest) > 1 else "component", ylabel="nodes",
             yscale="log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def svg(figure) -> str:
    """The figure as an element of a page."""
    buffer = io.StringIO()
    _save(figure, buffer, "svg")
    text = buffer.getvalue()
    return text[text.index("<svg"):]


def save(figure, path: Path) -> None:
    """Write the figure to a file.

    Raises:
        ValueError: matplotlib does not write the format that the name ends in.
    """
    _save(figure, path, path.suffix.removeprefix(".") or "svg")


def _save(figure, target, format: str) -> None:
    import matplotlib

    # Without the date and with fixed names of its parts, equal runs give equal figures.
    with matplotlib.rc_context({"svg.hashsalt": "report"}):
        figure.savefig(target, format=format, dpi=150, metadata={"Date": None} if format == "svg" else None)


def _figure(rows: int, columns: int, *, width: float = 5.2, height: float = 3.3):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
    return figure, axes


def _points(run: Run, x_key: str, y_key: str) -> list[tuple[float, float]]:
    return [(e[x_key], e[y_key]) for e in run.rounds if e.get(y_key) is not None and e.get(x_key) is not None]


def _shown(found: list[tuple[str, list[Run]]]) -> tuple[list[tuple[str, list[Run]]], int]:
    """The groups to draw: the first, with which all are compared, and the best of the others."""
    first, *others = found
    best = sorted(others, key=lambda group: -max(run.best() or 0 for run in group[1]))[:MAX_GROUPS - 1]
    return [first, *(group for group in others if group in best)], len(others) - len(best)


def _log_scale(axis) -> None:
    """With ticks at 10, 20, 50 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _bottom(runs: list[Run], key: str) -> float | None:
    """Where the axis of a metric begins: above the climb from chance, which would press what differs into a strip."""
    values = [value for run in runs for _, value in _points(run, "step", key)]
    return statistics.quantiles(values, n=5)[0] if len(values) > 20 else None


def _legend(figure, shown: list[tuple[str, list[Run]]]) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for i, (label, members) in enumerate(shown):
        if len(members) > 1:
            label = f"{label} ({len(members)} seeds)" if label else f"{len(members)} seeds"
        entries.append(Line2D([], [], color=COLOURS[i % len(COLOURS)], linestyle="-" if i < len(COLOURS) else "--",
                              label=label))
    # Inches of a line and of a letter at the default size, so that long labels take more rows instead of leaving the
    # figure.
    widest = 0.7 + 0.09 * max(len(entry.get_label()) for entry in entries)
    columns = max(1, min(len(entries), int(figure.get_figwidth() / widest)))
    figure.legend(handles=entries, loc="outside upper center", ncols=columns, frameon=False)
