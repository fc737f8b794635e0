"""The still picture of a layout, for a README or a paper, by matplotlib and in the page's colours."""

import math

import numpy as np

from parallel_epochs.scripts.report.layout import Layout
from parallel_epochs.scripts.report.layout_colours import class_colours, grey, legend_order
from parallel_epochs.scripts.report.layout_names import place_names
from parallel_epochs.scripts.report.layout_section import classes_of

SIDE = 7.0  # inches of the longer side of the picture
VECTORS = 3_000  # points up to which an SVG holds a circle for each; more are an image within it
MOST = 30  # classes of a legend; the names of more stand on the map
LETTERS = 7.0  # size of the names on the map, in 1/72 inch
LONGEST = 28  # letters of a class in the legend
MIN_SIDE = 0.35  # of the shorter side, as a share of the longer


def draw_layout(layout: Layout):
    """Draw the points, and the names of their classes: in a legend with numbers of points, or, if the classes are more
    than a legend tells apart, on the map.

    Returns:
        A matplotlib Figure.
    """
    from matplotlib.figure import Figure

    flat, counts = layout.flat(), layout.counts()
    half = np.abs(flat[:, :2]).max(0)
    width, height = SIDE * np.maximum(half / half.max(), MIN_SIDE) if half.any() else (SIDE, SIDE)
    beside = _legend_width(layout, counts) if np.count_nonzero(counts) <= MOST else 0.0
    figure = Figure(figsize=(width + beside, height))
    axes = figure.add_axes((0, 0, width / (width + beside), 1))
    axes.set_axis_off()
    radius, opacity = layout.brush(width, height)
    colours = np.array([*class_colours(counts), grey(counts)])[layout.labels]
    order = (
        np.argsort(flat[:, 2], kind="stable") if layout.dimensions == 3 else _scattered(len(flat))
    )
    axes.scatter(
        flat[order, 0],
        flat[order, 1],
        s=4 * radius**2,
        c=colours[order],
        alpha=opacity,
        linewidths=0,
        rasterized=len(flat) > VECTORS,
    )
    reach = np.maximum(half, MIN_SIDE * half.max() if half.any() else 1) * 1.03
    axes.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]), aspect="equal")
    if beside:
        _draw_legend(figure, layout, counts, width / (width + beside))
    elif counts.any():
        _draw_names(axes, layout, counts, 2 * reach[0] / (72 * width))
    return figure


def _scattered(num_points: int) -> np.ndarray:
    """An order that does not go by what the data is sorted by, so that no class lies on top of all others."""
    step = max(1, round(num_points * 0.618034))
    while math.gcd(step, num_points) != 1:
        step += 1
    return np.arange(num_points) * step % num_points


def _entries(layout: Layout, counts: np.ndarray) -> list[tuple[str, str]]:
    """A colour and a text for each class that has points."""
    colours = [*class_colours(counts), grey(counts)]
    return [
        (colours[label], f"{_shorten(name)}  {number:,}")
        for label, name, number in classes_of(layout)
    ]


def _shorten(name: str) -> str:
    """Without what matplotlib reads as mathematics, without line breaks, and not too long."""
    name = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}\u2026"
    return " ".join(name.split()).replace("$", r"\$")


def _legend_width(layout: Layout, counts: np.ndarray) -> float:
    """Inches that the legend needs beside the points."""
    entries = _entries(layout, counts)
    if not entries:
        return 0.0
    return 0.55 + 0.075 * max(len(text) for _, text in entries)


def _draw_legend(figure, layout: Layout, counts: np.ndarray, left: float) -> None:
    from matplotlib.lines import Line2D

    entries = _entries(layout, counts)
    handles = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            markersize=5,
            markeredgewidth=0,
            color=colour,
            label=text,
        )
        for colour, text in entries
    ]
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(left, 0.5),
        frameon=False,
        fontsize=8,
        handletextpad=0.1,
        labelspacing=0.35,
    )


def _draw_names(axes, layout: Layout, counts: np.ndarray, unit: float) -> None:
    """Write the names of classes on the map.

    Args:
        unit: of the axes, in 1/72 inch.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patheffects import withStroke
    from matplotlib.textpath import TextPath

    sizes = {}
    for label in legend_order(counts):
        text = _shorten(layout.label_names[label])
        width = TextPath((0, 0), text, size=LETTERS).get_extents().width if text.strip() else 0.0
        sizes[label] = text, (width + 4) * unit, (LETTERS + 2) * unit
    colours = class_colours(counts)
    for name in place_names(layout.flat()[:, :2], layout.labels, sizes):
        axes.text(
            name.x,
            name.y,
            name.text,
            ha="center",
            va="center",
            size=LETTERS,
            weight="bold",
            color=0.6 * np.array(to_rgb(colours[name.label])),
            path_effects=[withStroke(linewidth=1.8, foreground="white", alpha=0.85)],
        )
