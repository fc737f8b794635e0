"""The section of a page with a layout: a map that Plotly draws, and a field that searches the names of its points."""

import base64
import html

import numpy as np

from parallel_epochs.scripts.report.charts import Figures
from parallel_epochs.scripts.report.elements import escape
from parallel_epochs.scripts.report.layout import TURN, Layout
from parallel_epochs.scripts.report.layout_colours import class_colours, grey, legend_order
from parallel_epochs.scripts.report.words import count

SEARCH = (
    '<div class="toolbar"><input type="search" id="layout-search" placeholder="Search names" autocomplete="off" '
    'aria-label="Search names; Enter goes to the next match"><output id="layout-found" for="layout-search">'
    "</output></div>"
)
LONGEST_NAME, LONGEST_CLASS = 300, 40  # characters that are shown
INCHES = (8.0, 7.0)  # the usual size of the map, at 96 pixels each
LEAST = 2.5  # pixels of a point


def layout_section(layout: Layout, figures: Figures) -> str:
    """Add the map to the charts of a page: one trace for each class, and a last one that marks what is searched for."""
    classes = classes_of(layout)
    told = count(len(layout.names), "point")
    if layout.label_names and (named := legend_order(layout.counts())):
        told += f" in {count(len(named), 'class', 'classes')}"
    # Points of no class and of large classes are drawn first, and hide no others; the legend has an order of its own.
    ranked = sorted(
        enumerate(classes or [(-1, "points", len(layout.names))]),
        key=lambda entry: (entry[1][0] >= 0, -entry[1][2]),
    )
    traces = [
        _points(layout, label, f"{_shorten(name, LONGEST_CLASS)} ({number:,})", rank)
        for rank, (label, name, number) in ranked
    ]
    traces.append(
        traces[0]
        | {
            "x": [],
            "y": [],
            "z": [],
            "text": [],
            "showlegend": False,
            "hoverinfo": "skip",
            "mode": "markers+text",
            "textposition": "top center",
            "legendrank": len(traces),
            "marker": {"size": 12, "symbol": "circle-open", "line": {"width": 2}},
            "meta": {"role": "found", "key": ""},
        }
    )
    hidden = {"visible": False}
    if layout.dimensions == 3:
        (eye, up), axes = (
            (
                {axis: float(part) for axis, part in zip("xyz", row)}
                for row in (1.6 * TURN[2], TURN[1])
            ),
            {"xaxis": hidden, "yaxis": hidden, "zaxis": hidden},
        )
        view: dict = {
            "scene": axes
            | {
                "aspectmode": "data",
                "camera": {"eye": eye, "up": up, "projection": {"type": "orthographic"}},
            }
        }
    else:
        view = {"xaxis": hidden, "yaxis": hidden | {"scaleanchor": "x"}}
        figures.draws_by_eval = True
    view |= {
        "height": 720,
        "hovermode": "closest",
        "showlegend": bool(classes),
        "uirevision": "map",
        "legend": {"itemsizing": "constant"},
        "margin": {"l": 4, "r": 4, "t": 34, "b": 4},
    }
    return figures.add(
        f"{layout.title}: {told}",
        traces,
        view,
        legend=SEARCH,
        label=f"{layout.title}: a map of {told}",
    )


def classes_of(layout: Layout) -> list[tuple[int, str, int]]:
    """Return label, name and number of points of each class, and of the points without a class if there are any."""
    counts = layout.counts()
    none = int((layout.labels < 0).sum())
    shown = [
        (label, layout.label_names[label], int(counts[label])) for label in legend_order(counts)
    ]
    return [*shown, *([(-1, "no class", none)] if none else [])] if shown else []


def _points(layout: Layout, label: int, name: str, rank: int) -> dict:
    """Make the trace of a class. Plotly reads names as HTML, and arrays as base64."""
    chosen, counts = np.flatnonzero(layout.labels == label), layout.counts()
    radius, opacity = layout.brush(*INCHES)
    axes = {
        axis: {"dtype": "f4", "bdata": base64.b64encode(values.astype("<f4").tobytes()).decode()}
        for axis, values in zip("xyz", layout.position[chosen].T)
    }
    return axes | {
        "type": "scatter3d" if layout.dimensions == 3 else "scattergl",
        "mode": "markers",
        "legendrank": rank,
        "name": escape(name),
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "text": [html.escape(_shorten(layout.names[i], LONGEST_NAME), quote=False) for i in chosen],
        "marker": {"size": max(2 * radius * 96 / 72, LEAST), "opacity": opacity},
        "meta": {
            "role": "point",
            "key": "",
            "colours": [
                [*class_colours(counts, dark=dark), grey(counts, dark=dark)][label]
                for dark in (False, True)
            ],
        },
    }


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"
