"""The section of a page with a layout, and a compact encoding of its points."""

import base64
import json
import zlib

import numpy as np

from parallel_epochs.scripts.report.elements import escape
from parallel_epochs.scripts.report.layout import TURN, Layout
from parallel_epochs.scripts.report.layout_colours import class_colours, grey, legend_order
from parallel_epochs.scripts.report.words import count

HELP = ("Wheel or pinch to zoom, drag to move, double click for the whole. With the keyboard: arrows, + and -, "
        "0 for the whole, Escape to clear.")
TURNING = " Hold Shift and drag, or press Shift and an arrow, to turn."
HINT = "Click to hide or show this class. Double click, or press Shift and Enter, to show only this class."


def layout_section(layout: Layout) -> str:
    """Build the elements of the section, which layout.js draws into."""
    told = count(len(layout.names), "point")
    if classes := legend_order(layout.counts()):
        told += f" in {count(len(classes), 'class', 'classes')}"
    turn = _button("turn", "Turn", "Turn by dragging, instead of moving", ' aria-pressed="false"') \
        if layout.dimensions == 3 else ""
    help = HELP + (TURNING if turn else "")
    kind = f"layout card{'' if classes_of(layout) else ' plain'}{' many' if len(classes) > 24 else ''}"
    return (
        f'<div class="{kind}" id="layout-card"><div class="toolbar">'
        '<div class="finding"><input type="search" id="layout-search" placeholder="Search names" '
        'aria-label="Search names; Enter goes to the next match" autocomplete="off" spellcheck="false">'
        f'{_button("previous", "&lsaquo;", "Previous match", " disabled")}'
        f'{_button("next", "&rsaquo;", "Next match", " disabled")}'
        '<output id="layout-found" for="layout-search"></output></div><div class="looking">'
        f'{_button("in", "+", "Zoom in")}{_button("out", "&minus;", "Zoom out")}'
        f'{_button("whole", "Whole", "Show the whole")}{turn}</div></div>'
        '<div class="map"><div class="picture" id="layout-picture" tabindex="0" role="application" '
        f'aria-label="{escape(layout.title)}: a map of {escape(told)}" aria-describedby="layout-help">'
        '<canvas id="layout-canvas"></canvas><div class="ring" id="layout-ring" hidden></div>'
        '<div class="tip" id="layout-tip" hidden><bdi class="name"></bdi><bdi class="class"></bdi></div></div>'
        f'{_legend(layout)}</div>'
        f'<p class="note" id="layout-help">{escape(f"{layout.title}: {told}. {help}")}</p></div>')


def layout_data(layout: Layout) -> str:
    """Return the points as JSON for an element of the page.

    Positions are 24-bit integers, stored as separate planes of low, middle and high bytes. zlib compresses them, the
    labels (32 bits) and the names (a JSON list).
    """
    steps = np.rint(layout.position * (2**23 - 1)).astype(np.int64) + 2**23
    planes = [((steps[:, axis] >> shift) & 255).astype(np.uint8) for axis in range(layout.dimensions)
              for shift in (0, 8, 16)]
    counts = layout.counts()
    return json.dumps({
        "num_points": len(layout.names), "dimensions": layout.dimensions, "turn": TURN.reshape(-1).tolist(),
        "crowding": layout.crowding(), "classes": layout.label_names,
        "colours": {theme: [*class_colours(counts, dark=dark), grey(counts, dark=dark)]
                    for theme, dark in (("light", False), ("dark", True))},
        "positions": _packed(np.concatenate(planes).tobytes()),
        "labels": _packed(layout.labels.astype("<i4").tobytes()),
        "names": _packed(json.dumps(layout.names, separators=(",", ":")).encode()),
    }, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _button(name: str, face: str, label: str, state: str = "") -> str:
    return (f'<button type="button" class="toggle" id="layout-{name}" aria-label="{label}" title="{label}"{state}>'
            f"{face}</button>")


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def classes_of(layout: Layout) -> list[tuple[int, str, int]]:
    """Return label, name and number of points of each class, and of the points without a class if there are any."""
    counts = layout.counts()
    none = int((layout.labels < 0).sum())
    shown = [(label, layout.label_names[label], int(counts[label])) for label in legend_order(counts)]
    return [*shown, *([(-1, "no class", none)] if none else [])] if shown else []


def _legend(layout: Layout) -> str:
    entries = classes_of(layout)
    if not entries:
        return ""
    items = "".join(
        f'<li><button type="button" class="of-class" data-label="{label}" aria-pressed="true" '
        f'title="{escape(name[:200])}&#10;{HINT}"><i></i><bdi>{escape(name)}</bdi>'
        f'<span class="number">{number:,}</span></button></li>'
        for label, name, number in entries)
    number = count(len(legend_order(layout.counts())), "class", "classes")
    return (f'<div class="classes"><div class="above"><span class="note">{number}</span><button type="button" '
            f'class="toggle" id="layout-all" hidden>Show all</button></div><ul aria-label="Classes">{items}</ul></div>')
