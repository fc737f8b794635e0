"""The map of a layout that a finished run has written: positions, names and classes of its points."""

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from plotly import express as px, graph_objects as go

from parallel_epochs.pipeline.run import files
from parallel_epochs.scripts.report.charts import COLOURS, card
from parallel_epochs.scripts.report.runs import Run
from parallel_epochs.scripts.report.words import count, shortened

NAME = "layout.npz"
PARTS = ("position", "names", "labels", "label_names", "title")
AGAIN = "Continue the run, which writes the file again when it ends"
# Further colours than those of curves: each lies far from those before it, also for red-green blind eyes.
MORE = (
    *("#5e4b0c", "#9754ed", "#4ed847", "#3c27c0", "#a20321", "#ed75fe", "#93c69d", "#d41972"),
    *("#827a03", "#845c96", "#176c5f", "#f19f91", "#b931b3"),
)
GREY = "#a3a9b0"
LONGEST = 300  # characters of a name


@dataclass(frozen=True)
class Layout:
    """Points in two or three dimensions.

    Attributes:
        position: float32 [num_points, 2 or 3].
        labels: int64 [num_points], the class of each point, or -1.
    """

    position: np.ndarray
    names: list[str]
    labels: np.ndarray
    label_names: list[str]
    title: str


def read_layout(folder: Path) -> Layout:
    """Read the layout of a run directory.

    Raises:
        ValueError: there is no layout, or its file is damaged or of another kind.
        FileError: the file cannot be read.
    """
    path = folder / NAME
    if not files.is_there(path):
        raise ValueError(
            f"{path} does not exist. A run of trainer=layout writes it when it ends: continue the run"
        )
    try:
        parts = _read_parts(path)
        names, label_names, (title,) = (
            _texts(parts[name]) for name in ("names", "label_names", "title")
        )
        labels, position = parts["labels"].astype(np.int64), parts["position"].astype(np.float32)
        num_points = len(names)
        if labels.shape != (num_points,) or position.shape not in (
            (num_points, 2),
            (num_points, 3),
        ):
            raise ValueError("names, labels and positions in two or three dimensions do not fit")
        if not names or ((labels < -1) | (labels >= len(label_names))).any():
            raise ValueError("there is no point, or a label is neither -1 nor one of label_names")
    except (
        *(ValueError, EOFError, KeyError, TypeError, AttributeError, SyntaxError),
        *(NotImplementedError, zipfile.BadZipFile, zlib.error),
    ) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or not a layout: {text}. {AGAIN}") from None
    if not np.isfinite(position).all():
        raise ValueError(f"{path}: positions are not finite. The training diverged: lower train.lr")
    return Layout(position, names, labels, label_names, title)


def makes_layout(run: Run) -> bool:
    """Tell whether the run writes a layout when it ends."""
    return run.config.get("trainer.name", run.config.get("trainer")) == "layout"


def layout_of(run: Run) -> Layout | None:
    """Read the layout of a run that has ended, if it makes one.

    Raises:
        ValueError: its file is missing or damaged.
    """
    is_due = makes_layout(run) and run.state.kind == "finished"
    return read_layout(run.folder) if is_due or files.is_there(run.folder / NAME) else None


def _read_parts(path: Path) -> dict[str, np.ndarray]:
    with files.open_file(path) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is truncated, or not an archive of NumPy arrays")
        file.seek(0)
        archive = np.load(file, allow_pickle=False)
        if missing := [name for name in PARTS if name not in archive.files]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return {name: archive[name] for name in PARTS}


def _texts(array: np.ndarray) -> list[str]:
    """Return texts that can be encoded as UTF-8; unpaired surrogates become question marks."""
    return [text.encode("utf-8", "replace").decode() for text in array.reshape(-1).tolist()]


def layout_figure(layout: Layout) -> go.Figure:
    """Draw the map: a trace for each class, large ones first, so that they hide no others."""
    names = [*map(shortened, layout.label_names), "no class"]
    counts = np.bincount(layout.labels + 1, minlength=len(names))
    order = sorted(np.flatnonzero(counts[1:]).tolist(), key=lambda label: -counts[label + 1])
    shown = {label: f"{escape(names[label])} ({counts[label + 1]:,})" for label in (-1, *order)}
    table = pd.DataFrame(layout.position, columns=[*"xyz"[: layout.position.shape[1]]])
    table["class"] = [shown[label] for label in layout.labels.tolist()]
    table["name"] = [str(escape(shortened(name, LONGEST))) for name in layout.names]
    colours = dict(zip((shown[label] for label in order), (*COLOURS[:6], *MORE)))
    how = {
        "color": "class",
        "hover_name": "name",
        "category_orders": {"class": [*shown.values()]},
        "color_discrete_map": {name: colours.get(name, GREY) for name in shown.values()},
    }
    if "z" in table:
        figure = px.scatter_3d(table, "x", "y", "z", **how).update_scenes(aspectmode="data")
    else:
        figure = px.scatter(table, "x", "y", render_mode="webgl", **how)
        figure.update_yaxes(scaleanchor="x").update_layout(dragmode="pan")
    figure.update_traces(hovertemplate="%{hovertext}<extra>%{fullData.name}</extra>")
    hidden = {"visible": False}
    size = min(max(math.sqrt(40_000 / len(table)), 2.5), 9.0)
    figure.update_traces(marker={"size": size, "opacity": 0.8})
    figure.update_xaxes(**hidden).update_yaxes(**hidden)
    figure.update_scenes(xaxis=hidden, yaxis=hidden, zaxis=hidden)
    return figure.update_layout(height=720, legend={"itemsizing": "constant", "title": ""})


def layout_section(layout: Layout) -> Markup:
    """Draw the map on a card."""
    told = count(len(layout.names), "point")
    if num_classes := len({*layout.labels.tolist()} - {-1}):
        told += f" in {count(num_classes, 'class', 'classes')}"
    return card(layout_figure(layout), f"{shortened(layout.title, LONGEST)}: {told}")
