"""Colours of classes: the largest get those that differ most, on white paper and on a dark screen."""

import numpy as np

# The first six are Okabe and Ito's. Each further one lies farthest from those before it and from grey, by the distance
# in OKLab (https://bottosson.github.io/posts/oklab) to normal and to red-green blind eyes.
DISTINCT = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#84076f",
    "#5e4b0c",
    "#9754ed",
    "#4ed847",
    "#3c27c0",
    "#a20321",
    "#ed75fe",
    "#93c69d",
    "#d41972",
    "#827a03",
    "#845c96",
    "#176c5f",
    "#f19f91",
    "#b931b3",
)
DISTINCT_DARK = (
    "#48a3e6",
    "#fe8744",
    "#48c698",
    "#ee98c7",
    "#7acdff",
    "#ffb736",
    "#c753ac",
    "#99854b",
    "#b88efe",
    "#66ed5e",
    "#6d70ff",
    "#e45457",
    "#f3a4fe",
    "#a7dbb1",
    "#fe639d",
    "#ada644",
    "#b48ac7",
    "#55a193",
    "#feb8ab",
    "#ea63e2",
)
# Colours of one lightness and little chroma, which further classes share.
GENTLE = (
    "#cd9ba9",
    "#8fb696",
    "#b0a2cd",
    "#baaa7e",
    "#87b1ce",
    "#cf9d94",
    "#7fb8ac",
    "#c29dbe",
    "#a5b185",
    "#9baad3",
    "#c9a284",
    "#7cb6c0",
)
GENTLE_DARK = (
    "#9d737f",
    "#698a6f",
    "#85799d",
    "#8d7f5a",
    "#62859e",
    "#9f746d",
    "#5b8b81",
    "#947590",
    "#7c8560",
    "#737fa2",
    "#99795f",
    "#588a92",
)
GREY, GREY_DARK = "#a3a9b0", "#5d666f"


def class_colours(counts: np.ndarray, *, dark: bool = False) -> list[str]:
    """Choose a colour for each class.

    Args:
        counts: int64 [num_labels], points of each class. As long as all colours differ, they go by the classes' order,
            so that two layouts of the same classes look alike; beyond that by size.
    """
    distinct, gentle = (DISTINCT_DARK, GENTLE_DARK) if dark else (DISTINCT, GENTLE)
    few = len(counts) <= len(distinct)
    order = np.arange(len(counts)) if few else np.argsort(-counts, kind="stable")
    colours = [""] * len(counts)
    for rank, label in enumerate(order.tolist()):
        colours[label] = (
            distinct[rank] if rank < len(distinct) else gentle[(rank - len(distinct)) % len(gentle)]
        )
    return colours


def grey(counts: np.ndarray, *, dark: bool = False) -> str:
    """Return the colour of points of no class: grey beside classes, else the first of all."""
    if not counts.any():
        return DISTINCT_DARK[0] if dark else DISTINCT[0]
    return GREY_DARK if dark else GREY


def legend_order(counts: np.ndarray) -> list[int]:
    """Order the classes that have points for a legend: few as they are numbered, many by size."""
    order = (
        range(len(counts))
        if len(counts) <= len(DISTINCT)
        else np.argsort(-counts, kind="stable").tolist()
    )
    return [label for label in order if counts[label]]
