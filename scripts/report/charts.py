"""Charts of a page as Plotly figures."""

import hashlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup, escape
from plotly import express as px, graph_objects as go

from parallel_epochs.scripts.report.runs import AXES, Run
from parallel_epochs.scripts.report.words import shortened, title as capital

# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#84076f")
OURS = {"color_discrete_sequence": COLOURS}
MAX_LINES = 2 * len(COLOURS)  # the second half is dashed
MAX_NUMBERS = 60_000  # in all curves of a chart
MAX_SEEDS = 40  # runs of which each has a curve of its own
MAX_BARS = 200
GREY = "#7b848d"  # is read on white paper and on a dark screen
PHASES = {
    "train": "Training",
    "draw": "Waiting for batches",
    "sync": "Synchronising ranks",
    "evaluate": "Evaluating and saving",
}


@dataclass
class Line:
    """A curve of runs that differ only in their seeds; number: of its colour."""

    label: str
    members: list[Run]
    number: int

    @property
    def is_drawn(self) -> bool:
        return self.number < MAX_LINES

    @property
    def style(self) -> dict:
        dash = "solid" if self.number < len(COLOURS) else "dash"
        return {"color": COLOURS[self.number % len(COLOURS)], "dash": dash, "width": 2}


def card(figure: go.Figure, name: str) -> Markup:
    """Draw a figure on a card of the page."""
    axis = {"gridcolor": "rgba(128,128,128,.18)", "linecolor": GREY, "zeroline": False}
    figure.update_layout(
        template=go.layout.Template(),
        font={"size": 12, "color": GREY, "family": "system-ui, sans-serif"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 12, "r": 14, "t": 44, "b": 10},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "orientation": "v"},
        bargap=0.4,
    )
    figure.update_xaxes(automargin=True, **axis)
    figure.update_yaxes(automargin=True, **axis)
    digest = hashlib.sha256(figure.to_json().encode()).hexdigest()[:10]
    drawing = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"chart-{digest}",
        default_height=f"{figure.layout.height or 340}px",
        config={
            "displaylogo": False,
            "responsive": True,
            "toImageButtonOptions": {"format": "svg"},
            "modeBarButtonsToRemove": ["select2d", "lasso2d"],
        },
    )
    return Markup(
        f'<figure class="card" aria-label="{escape(name)}"><figcaption><h3>{escape(name)}</h3>'
        f"</figcaption>{drawing}</figure>"
    )


def curve_figure(
    lines: list[tuple[Line, str]], unit: str, *, quality: float | None = None
) -> go.Figure | None:
    """Draw a quantity of several runs: the mean and a band of one standard deviation over seeds, and the best epochs.

    Args:
        lines: each with the key of the quantity in the records of rounds.
        quality: value of the metric at which the runs are compared.
    """
    traces, places = list[dict](), list[dict]()  # the horizontal positions of each, by the axis

    def add(records: list[list[dict]], y: list, back: bool = False, **style) -> None:
        traces.append({"y": y, "type": "scatter", "mode": "lines", **style})
        x = {key: [_mean([r.get(key) for r in group]) for group in records] for key in AXES}
        places.append({key: [*own, *reversed(own)] if back else own for key, own in x.items()})

    most = max(MAX_NUMBERS // (8 * len(lines)), 50)
    total = sum(len(line.members) for line, _ in lines)
    for line, key in lines:
        groups = _thin([g for g in _aligned(line.members) if any(key in r for r in g)], most)
        values = [[r[key] for r in group if key in r] for group in groups]
        mean = [statistics.fmean(found) for found in values]
        if not mean:
            continue
        name = escape(shortened(line.label)) or " "
        common = {"line": line.style, "legendgroup": name, "connectgaps": True}
        if len(line.members) > 1:
            spread = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in values]
            low, high = ([m + sign * s for m, s in zip(mean, spread)] for sign in (-1, 1))
            band = {"line": {"width": 0}, "fill": "toself", "fillcolor": _faint(line), "name": name}
            shown = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name}
            add(groups, [*low, *reversed(high)], back=True, **band, **shown)
        mode = "lines+markers" if len(mean) < 3 else "lines"
        many = f" ({len(line.members)} seeds)" if len(line.members) > 1 else ""
        add(groups, mean, name=name + many, mode=mode, **common)
        for run in line.members if 1 < len(line.members) and total <= MAX_SEEDS else []:
            own = _thin([[r] for r in run.rounds if key in r], most)
            is_first = not any(trace.get("legendgroup") == "seeds" for trace in traces)
            seed = {"name": "each seed", "legendgroup": "seeds", "showlegend": is_first}
            seed |= {"visible": "legendonly", "opacity": 0.6}
            add(own, [group[0][key] for group in own], line={**line.style, "width": 1}, **seed)
        if key == "valid":
            best = [[record] for run in line.members if (record := run.best_round())]
            marker = {"size": 8, "symbol": "circle-open", "color": line.style["color"]}
            ring = {"name": f"{name}, best epoch", "showlegend": False, "legendgroup": name}
            add(best, [r["valid"] for [r] in best], mode="markers", marker=marker, **ring)
    if not traces:
        return None
    figure = go.Figure(
        [{**trace, "x": place["epochs"]} for trace, place in zip(traces, places)],
        {
            "xaxis": {"title": {"text": AXES["epochs"]}},
            "yaxis": {"title": {"text": unit}},
            "hovermode": "x unified" if len(traces) < 20 else "closest",
            "showlegend": len(lines) > 1,
        },
    )
    figure.update_layout(updatemenus=[_menu(places)])
    if quality is not None:
        figure.add_hline(quality, line={"color": GREY, "width": 1, "dash": "dot"})
    return figure


def _menu(places: list[dict]) -> dict:
    """Make the menu by which a reader chooses the horizontal axis."""
    buttons = [
        {
            "label": name,
            "method": "update",
            "args": [{"x": [place[key] for place in places]}, {"xaxis.title.text": AXES[key]}],
        }
        for key, name in (("epochs", "Epochs"), ("step", "Steps"), ("wall_seconds", "Time"))
    ] + [
        {"label": name, "method": "relayout", "args": [{"xaxis.type": name.lower()}]}
        for name in ("Log", "Linear")
    ]
    place = {"x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom", "pad": {"b": 4}}
    return {"buttons": buttons, **place}


def curves(lines: list[tuple[Line, str]], name: str, unit: str, **more) -> Markup:
    figure = curve_figure(lines, unit, **more)
    return Markup("") if figure is None else card(figure, capital(name))


def metric_curves(run: Run, name: str, splits: dict[str, str]) -> Markup:
    """Draw the metric of each split of a run; it is that of the network, whatever the run answers with."""
    several = len(run.splits) > 1
    lines = [
        (Line(splits[split] if several else name, [run], number), split)
        for number, split in enumerate(run.splits)
    ]
    return curves(lines, f"{name} of the network" if run.summary.get("network") else name, name)


def phase_areas(run: Run) -> Markup:
    """Draw the time of each phase in every round."""
    if len(run.phases) < 2 or len(run.phases) != len(run.rounds):
        return Markup("")
    table = pd.DataFrame(run.phases).rename(columns=PHASES)
    table["epochs"] = [record.get("epochs", i) for i, record in enumerate(run.rounds)]
    table = table.iloc[_thin([*range(len(table))], 2000)]
    names = {"value": "seconds", "variable": ""}
    figure = px.area(table, x="epochs", y=[*PHASES.values()], labels=names, **OURS)
    return card(figure.update_layout(hovermode="x unified"), "Seconds of each round")


def phase_bars(found: list[tuple[Line, dict[str, float]]]) -> Markup:
    """Draw the time of each phase of an epoch, one bar for each setting."""
    table = pd.DataFrame([mean for _, mean in found]).rename(columns=PHASES)
    names = {"value": "seconds per epoch", "variable": "", "index": ""}
    figure = px.bar(table, x=[*PHASES.values()], orientation="h", labels=names, **OURS)
    # Two labels may be cut to the same text.
    labels = [escape(shortened(line.label, 30)) for line, _ in found]
    figure.update_yaxes(tickvals=[*table.index], ticktext=labels, autorange="reversed")
    return card(figure.update_layout(height=130 + 26 * len(found)), "Seconds per epoch")


def bars(values: list[float], name: str, of: str, unit: str, *, log: bool = False) -> Markup:
    """Draw a number for each cluster or component, or their histogram if there are many."""
    if len(values) > MAX_BARS:
        return card(px.histogram(x=values, nbins=60, labels={"x": unit}, **OURS), name)
    places, labels = [*range(1, len(values) + 1)], {"x": of, "y": unit}
    return card(px.bar(x=places, y=values, log_y=log, labels=labels, **OURS), name)


def score_curves(
    name: str, points_of: Callable, found: dict[str, dict], axes: tuple[str, str]
) -> Markup:
    """Draw curves of numbers between 0 and 1 against each other; a point is x, y and a number of rows."""
    rows = [(split, *point) for split, curve in found.items() for point in points_of(curve)]
    table = pd.DataFrame(rows, columns=["split", *axes, "rows"])
    few = len(rows) < 26
    figure = px.line(
        table, *axes, color="split", hover_data=["rows"], labels={"split": ""}, markers=few, **OURS
    )
    figure.update_layout(xaxis_range=[-0.01, 1.02], yaxis_range=[-0.01, 1.02])
    if name != "Precision-recall curve":
        line = {"color": GREY, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=line)
    return card(figure, name)


def confusion(name: str, names: list[str], counts: list[list[int]]) -> Markup:
    """Draw how often each class was predicted for the rows of each class; the shade is the share of the row."""
    shares = [[number / max(sum(row), 1) for number in row] for row in counts]
    labels = {"x": "predicted", "y": "class", "color": "share"}
    figure = px.imshow(
        shares, zmin=0, zmax=1, labels=labels, aspect="auto", color_continuous_scale="Blues"
    )
    figure.update_traces(text=counts, texttemplate="%{text}" if len(names) <= 12 else "")
    shown = [escape(shortened(each, 14)) for each in names]
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(tickvals=[*range(len(names))], ticktext=shown)
    height = max(320, min(30 * len(names), 900))
    return card(figure.update_layout(height=height, coloraxis_showscale=False), name)


def _faint(line: Line) -> str:
    colour = line.style["color"]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _mean(values: list) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _aligned(members: list[Run]) -> list[list[dict]]:
    """Group the rounds that ended after the same number of epochs, if more than half of the runs have one."""
    found: dict[float, list[dict]] = {}
    for run in members:
        for record in run.rounds:
            found.setdefault(record.get("epochs", record.get("round", 0)), []).append(record)
    return [records for _, records in sorted(found.items()) if 2 * len(records) > len(members)]


def _thin(items: list, most: int) -> list:
    """Leave out items at equal distances, and never the last one."""
    step = -(-len(items) // most) or 1
    return items[::step] + (items[-1:] if (len(items) - 1) % step else [])


def rank(lines: list[Line]) -> list[Line]:
    """Choose the lines that are drawn, the first and the best of the others, and give them their colours."""
    best = sorted(lines[1:], key=lambda line: -max(run.merit() for run in line.members))
    drawn = [line for line in lines if line is lines[0] or line in best[: MAX_LINES - 1]]
    for line in lines:
        line.number = drawn.index(line) if line in drawn else MAX_LINES
    return drawn
