"""Charts for Plotly.js as plain dicts.

charts.js adds all that depends on the reader (theme, horizontal axis, hidden curves) from the `meta` of each trace.
"""

import html
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from parallel_epochs.pipeline.names import LOWER_IS_BETTER, merit
from parallel_epochs.scripts.report.elements import NUM_COLOURS, escape, swatch
from parallel_epochs.scripts.report.runs import AXES, Run
from parallel_epochs.scripts.report.words import SPLITS, duration, metric_name, score, score_name

MAX_LINES = 2 * NUM_COLOURS  # the second half is dashed
MAX_NUMBERS = 90_000  # in all curves of a page: about a megabyte, in addition to the library
MIN_POINTS = 50
MAX_BARS = 200
MAX_MARKERS = 12  # points of a curve that are marked each
CURVES = {"valid": "Validation", "test": "Test", "loss": "Training loss", "lr": "Learning rate"}
PHASES = {
    "train": "Training",
    "draw": "Waiting for batches",
    "sync": "Synchronising ranks",
    "evaluate": "Evaluating and saving",
}


@dataclass
class Line:
    """A curve of runs that differ only in their seeds.

    Attributes:
        key: name by which the legend shows and hides it.
        number: number of its colour.
    """

    key: str
    label: str
    members: list[Run]
    number: int


@dataclass
class Figures:
    """Collects the charts of a page.

    Attributes:
        charts: charts for charts.js, each with the id of its element, traces and a Plotly layout.
        xs: horizontal positions that traces share: epochs, steps and seconds.
        num_points: largest number of points of a curve.
        axes: names of the horizontal positions.
        draws_by_eval: whether a chart needs WebGL, for which Plotly compiles functions from text.
    """

    num_points: int = 1000
    axes: dict[str, str] = field(default_factory=lambda: dict(AXES))
    charts: list[dict] = field(default_factory=list)
    xs: dict[str, dict[str, list]] = field(default_factory=dict)
    draws_by_eval: bool = False

    def add(
        self,
        title: str,
        traces: list[dict],
        layout: dict,
        *,
        label: str,
        legend: str = "",
        marks: list[dict] | None = None,
    ) -> str:
        """Add a chart, and return its element for the page.

        Args:
            label: description for screen readers.
            marks: vertical lines, each with horizontal positions and a text.
        """
        name = f"chart-{len(self.charts)}"
        self.charts.append({"id": name, "data": traces, "layout": layout, "marks": marks or []})
        return (
            f'<figure class="card" aria-labelledby="{name}-title"><figcaption><h3 id="{name}-title">'
            f"{escape(title)}</h3>{legend}</figcaption>"
            f'<div class="drawing" id="{name}" role="img" aria-label="{escape(label)}"></div></figure>'
        )

    def data(self) -> str:
        """Return all charts as JSON for an element of the page."""
        # The JSON must not contain the closing tag of a script.
        return json.dumps(
            {"charts": self.charts, "xs": self.xs, "axes": self.axes},
            allow_nan=False,
            separators=(",", ":"),
        ).replace("<", "\\u003c")


def points_for(lines: list[Line]) -> tuple[int, bool]:
    """Choose the number of points of a curve, and whether there is room for a curve of each seed."""
    weights = [(18, 8 * len(line.members) if len(line.members) > 1 else 0) for line in lines]
    with_seeds = MAX_NUMBERS // max(sum(a + b for a, b in weights), 1)
    return (
        (with_seeds, True)
        if with_seeds >= MIN_POINTS
        else (MAX_NUMBERS // sum(a for a, _ in weights), False)
    )


def metric_curves(figures: Figures, run: Run, legend: str) -> str:
    """Draw the metric of each split of one run, with a mark at the best epoch."""
    name = metric_name(run.metric)
    traces = []
    for number, split in enumerate(run.splits):
        label = SPLITS[split] if len(run.splits) > 1 else name
        traces += _curve(
            figures, Line(split, label, [run], number), split, with_seeds=False, digits=4
        )
    best = run.best_round()
    marks = (
        []
        if best is None
        else [
            {
                "x": {key: best.get(key) for key in AXES},
                "text": f"best: epoch {best.get('epochs', 0):,.0f}",
            }
        ]
    )
    label = "; ".join(f"{trace['name']} {_from_to(trace['y'])}" for trace in traces)
    return figures.add(
        f"{name[:1].upper()}{name[1:]}",
        traces,
        {"yaxis": {"title": {"text": name}}},
        legend=legend,
        marks=marks,
        label=f"{name}{' of each split' * (len(run.splits) > 1)}. {label}",
    )


def curves(
    figures: Figures, lines: list[Line], key: str, *, with_seeds: bool, quality: float | None = None
) -> str:
    """Draw one quantity of several runs, with mean and band for runs that differ only in their seeds.

    Args:
        quality: value of the metric at which the runs are compared.
    """
    is_metric, splits = (
        key in SPLITS,
        {split for line in lines for run in line.members for split in run.splits},
    )
    if is_metric and key not in splits:
        return ""
    unit = (
        metric_name(lines[0].members[0].metric)
        if is_metric
        else CURVES.get(key, "Gradient norm").lower()
    )
    title = score_name(CURVES[key] if is_metric and len(splits) > 1 else "", unit)
    traces, told = [], []
    for line in lines:
        found = _curve(figures, line, key, with_seeds=with_seeds, digits=4 if is_metric else None)
        told += [
            f"{line.label} {_from_to(trace['y'])}".strip()
            for trace in found
            if trace["meta"]["role"] == "mean"
        ]
        traces += found
        if key == "valid":
            traces += _best(figures, line)
    if not told or key == "lr" and not changes(run for line in lines for run in line.members):
        return ""
    layout: dict = {"yaxis": {"title": {"text": unit}}}
    if key in ("lr", "grad_norm"):
        layout["yaxis"]["rangemode"] = "tozero"
    if is_metric and len(lines) > 1 and (bounds := _bounds(lines, key)) is not None:
        layout["yaxis"] |= bounds
    if key == "valid" and quality is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": quality,
                "y1": quality,
                "line": {"width": 1, "dash": "dot"},
            }
        ]
    more = f"; and {len(told) - 6} more" if len(told) > 6 else ""
    return figures.add(title, traces, layout, label=f"{title}. {'; '.join(told[:6])}{more}")


def changes(runs: Iterable[Run]) -> bool:
    """Tell whether the learning rate of any of these runs changed."""
    return any(len({r["lr"] for r in run.rounds if "lr" in r}) > 1 for run in runs)


def score_curves(
    figures: Figures,
    title: str,
    lines: list[tuple[str, str, int, list[tuple[float, float, int]]]],
    axes: tuple[str, str],
    *,
    diagonal: bool = False,
) -> str:
    """Draw curves of numbers between 0 and 1 against each other.

    Args:
        lines: key, label, number of the colour and points of each; a point is x, y and a number of rows.
        axes: titles of the horizontal and of the vertical axis.
        diagonal: whether to draw the line to compare with.
    """
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(points) <= MAX_MARKERS else "lines",
            "name": label,
            "x": [_short(x) for x, _, _ in points],
            "y": [_short(y) for _, y, _ in points],
            "customdata": [size for _, _, size in points],
            "hovertemplate": f"{label}: {axes[1]} %{{y:.3f}}, {axes[0]} %{{x:.3f}} (%{{customdata:,}})"
            "<extra></extra>",
            "meta": {"role": "mean", "key": key, "colour": place},
        }
        for key, label, place, points in lines
    ]
    whole = {
        axis: {"title": {"text": name}, "range": [-0.01, 1.02]}
        for axis, name in zip(("xaxis", "yaxis"), axes)
    }
    line = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": {"width": 1, "dash": "dot"}}
    return figures.add(
        title,
        traces,
        {**whole, "shapes": [line] * diagonal, "hovermode": "closest"},
        label=f"{title}: {axes[1]} by {axes[0]} of {' and '.join(line[1] for line in lines)}",
    )


def phase_areas(figures: Figures, run: Run) -> str:
    """Draw the time of each phase in every round."""
    phases = run.phases
    if len(phases) < 2 or len(phases) != len(run.rounds):
        return ""
    kept = _thin(run.rounds, figures.num_points, run.metric)
    figures.xs["phases"] = {key: [_short(run.rounds[i].get(key)) for i in kept] for key in AXES}
    shown = [key for key in PHASES if any(phase[key] for phase in phases)]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": PHASES[key],
            "y": [_short(phases[i][key]) for i in kept],
            "stackgroup": "phases",
            "hovertemplate": "%{y:.3g} s",
            "meta": {"role": "area", "x": "phases", "key": key, "colour": list(PHASES).index(key)},
        }
        for key in shown
    ]
    told = "; ".join(
        f"{PHASES[key]} {duration(sum(phase[key] for phase in phases))}" for key in shown
    )
    legend = legend_of([(key, PHASES[key], list(PHASES).index(key), 1) for key in shown])
    return figures.add(
        "Seconds of each round",
        traces,
        {"yaxis": {"title": {"text": "seconds"}}},
        legend=legend,
        label=f"Seconds of each round by phase. In all: {told}",
    )


def phase_bars(figures: Figures, lines: list[Line], means: list[dict[str, float]]) -> str:
    """Draw the time of each phase of an epoch, one bar for each setting."""
    shown = [key for key in PHASES if any(mean[key] for mean in means)]
    names = [
        escape(line.label if len(line.label) <= 30 else f"{line.label[:29]}…") for line in lines
    ]
    # The position is a number: two labels may be cut to the same text.
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASES[key],
            "x": [_short(mean[key]) for mean in means],
            "y": list(range(len(lines))),
            "hovertemplate": "%{x:.3g} s",
            "meta": {"role": "bar", "key": key, "colour": list(PHASES).index(key)},
        }
        for key in shown
    ]
    layout = {
        "barmode": "stack",
        "hovermode": "y unified",
        "height": 130 + 26 * len(lines),
        "xaxis": {"title": {"text": "seconds per epoch"}},
        "yaxis": {
            "tickvals": list(range(len(lines))),
            "ticktext": names,
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
        },
    }
    told = "; ".join(f"{line.label} {sum(mean.values()):.3g} s" for line, mean in zip(lines, means))
    legend = legend_of([(key, PHASES[key], list(PHASES).index(key), 1) for key in shown])
    return figures.add(
        "Seconds per epoch", traces, layout, legend=legend, label=f"Seconds per epoch. {told}"
    )


def bars(
    figures: Figures, values: list[float], *, title: str, of: str, unit: str, log: bool = False
) -> str:
    """Draw a number for each cluster or component, or their histogram if there are many.

    Args:
        of: name of the thing that a bar stands for.
        unit: name of the things that are counted.
    """
    label = f"{title}: from {min(values):,} to {max(values):,}"
    if len(values) <= MAX_BARS:
        trace = {
            "type": "bar",
            "x": list(range(1, len(values) + 1)),
            "y": values,
            "name": unit,
            "hovertemplate": f"{of} %{{x}}: %{{y:,}} {unit}<extra></extra>",
        }
        few = len(values) < 13
        layout = {
            "xaxis": {"title": {"text": of}, **({"dtick": 1} if few else {})},
            "hovermode": "closest",
            "bargap": 0.5 if few else 0.1 if len(values) < 100 else 0,
            "yaxis": {"title": {"text": unit}, **({"type": "log", "dtick": 1} if log else {})},
        }
    else:
        trace = {
            "type": "histogram",
            "x": values[:: -(-len(values) // 20_000)],
            "name": unit,
            "hovertemplate": f"%{{x}} {unit}: %{{y:,}} {of}s<extra></extra>",
        }
        layout = {
            "xaxis": {"title": {"text": unit}},
            "yaxis": {"title": {"text": f"{of}s"}},
            "hovermode": "closest",
        }
    trace["meta"] = {"role": "bar", "key": "", "colour": 0}
    return figures.add(title, [trace], layout, label=label)


def legend_of(entries: list[tuple[str, str, int, int]]) -> str:
    """Build a legend whose entries show and hide curves.

    Args:
        entries: key, label, number of the colour and number of seeds of each.
    """
    items = []
    for key, label, number, seeds in entries:
        item = (
            f'<button type="button" class="key" data-key="{escape(key)}" aria-pressed="true" title="Click to hide '
            f'or show this curve. Double click to show only this one.">{swatch(number)}{escape(label)}</button>'
        )
        if seeds > 1:
            item += (
                f'<button type="button" class="seeds" data-key="{escape(key)}" aria-pressed="false" '
                f'aria-label="Curve of each seed of {escape(label)}" title="Show the curve of each seed">'
                f"{seeds} seeds</button>"
            )
        items.append(f"<li>{item}</li>")
    return f'<ul class="legend" aria-label="Legend">{"".join(items)}</ul>'


def _curve(
    figures: Figures, line: Line, key: str, *, with_seeds: bool, digits: int | None
) -> list[dict]:
    """Make the traces of one quantity: the mean, a band of one standard deviation, and a curve of each seed."""
    several = len(line.members) > 1
    aligned = _aligned(line.members)
    kept = [
        aligned[i]
        for i in _thin(
            [records[0] for records in aligned], figures.num_points, line.members[0].metric
        )
    ]
    found = [[r[key] for r in records if key in r] for records in kept]
    if not any(found):
        return []
    mean = [statistics.fmean(values) if values else None for values in found]
    position = _share_positions(figures, kept)
    form = f".{digits}f" if digits else ".4~g"
    meta = {
        "x": position,
        "key": line.key,
        "colour": line.number % NUM_COLOURS,
        "dashed": line.number >= NUM_COLOURS,
    }
    base = {
        "type": "scatter",
        "mode": "lines+markers" if sum(map(bool, found)) < 3 else "lines",
        "connectgaps": True,
    }
    label = html.escape(line.label or f"{len(line.members)} seeds")
    if not several:
        return [
            base
            | {
                "name": label,
                "y": [_short(value) for value in mean],
                "hovertemplate": f"%{{y:{form}}}",
                "meta": meta | {"role": "mean"},
            }
        ]
    spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in found]
    band = {
        "low": [_short(m - s) if m is not None else None for m, s in zip(mean, spread)],
        "high": [_short(m + s) if m is not None else None for m, s in zip(mean, spread)],
    }
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "hoverinfo": "skip",
            "y": [],
            "meta": meta | {"role": "band"} | band,
        },
        base
        | {
            "name": label,
            "y": [_short(value) for value in mean],
            "customdata": [[_short(s), len(values)] for s, values in zip(spread, found)],
            "hovertemplate": f"%{{y:{form}}} ± %{{customdata[0]:{form}}} (mean of %{{customdata[1]}})",
            "meta": meta | {"role": "mean"},
        },
    ]
    for run in line.members if with_seeds else []:
        records = [run.rounds[i] for i in _thin(run.rounds, figures.num_points, run.metric)]
        own = _share_positions(figures, [[r] for r in records])
        traces.append(
            base
            | {
                "name": html.escape(f"{line.label}, seed {run.seed}".lstrip(", ")),
                "y": [_short(r.get(key)) for r in records],
                "hovertemplate": f"%{{y:{form}}}",
                "meta": meta | {"x": own, "role": "seed"},
            }
        )
    return traces


def _best(figures: Figures, line: Line) -> list[dict]:
    found = [(run, best) for run in line.members if (best := run.best_round())]
    if not found:
        return []
    position = _share_positions(figures, [[best] for _, best in found])
    texts = [
        html.escape(
            f"{line.label}{f', seed {run.seed}' if len(line.members) > 1 else ''}: best epoch "
            f"{best.get('epochs', 0):,.0f}, {score(best['valid'])}".lstrip(", :")
        )
        for run, best in found
    ]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "best epoch",
            "y": [_short(b["valid"]) for _, b in found],
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
            "meta": {
                "role": "best",
                "x": position,
                "key": line.key,
                "colour": line.number % NUM_COLOURS,
            },
        }
    ]


def _share_positions(figures: Figures, rounds: list[list[dict]]) -> str:
    """Store horizontal positions once for all curves that have them, and return their name."""
    values = {
        key: [
            _short(statistics.fmean(found))
            if (found := [r[key] for r in records if key in r])
            else None
            for records in rounds
        ]
        for key in AXES
    }
    known = next((key for key, other in figures.xs.items() if other == values), None)
    if known is None:
        known = f"x{len(figures.xs)}"
        figures.xs[known] = values
    return known


def _aligned(members: list[Run]) -> list[list[dict]]:
    """Group the rounds that ended after the same number of epochs, if more than half of the runs have one."""
    found: dict[float, list[dict]] = {}
    for run in members:
        for record in run.rounds:
            found.setdefault(record.get("epochs", record.get("round", 0)), []).append(record)
    return [records for _, records in sorted(found.items()) if 2 * len(records) > len(members)]


def _thin(rounds: list[dict], num_points: int, metric: str) -> list[int]:
    """Choose the rounds to draw: as many with as without evaluation, and always the best and the last one."""
    if len(rounds) <= num_points:
        return list(range(len(rounds)))
    evaluated = [i for i, r in enumerate(rounds) if "valid" in r]
    others = [i for i, r in enumerate(rounds) if "valid" not in r]
    best = max(evaluated, key=lambda i: merit(metric, rounds[i]["valid"]), default=None)
    chosen = {len(rounds) - 1, *([best] if best is not None and evaluated else [])}
    share = num_points // (2 if evaluated and others else 1)
    for indices in (evaluated, others):
        chosen |= set(indices[:: max(-(-len(indices) // max(share, 1)), 1)])
    return sorted(chosen)


def _bounds(lines: list[Line], key: str) -> dict | None:
    """Bound the axis of a metric so that the steep start of training does not hide the differences at the end."""
    values = [r[key] for line in lines for run in line.members for r in run.rounds if key in r]
    if len(values) <= 20:
        return None
    quantiles = statistics.quantiles(values, n=10)
    if lines[0].members[0].metric in LOWER_IS_BETTER:
        return {"range": [None, _short(quantiles[-1])], "autorange": "min"}
    return {"range": [_short(quantiles[0]), None], "autorange": "max"}


def _short(value: float | None) -> float | None:
    """Round to six digits, which is more than a screen shows."""
    if value is None:
        return None
    value = float(f"{value:.6g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _from_to(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"from {found[0]:.4g} to {found[-1]:.4g}" if found else "none"
