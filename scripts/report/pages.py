"""The page, as HTML that needs nothing else."""

import html

from pipeline.names import SPLITS
from scripts.report import figures
from scripts.report.runs import AXES, SECONDARY, Run, comparable, differing, groups, qualities, short, shown
from scripts.report.sweep import summary_of_sweep

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
tr + tr td { border-top: 1px solid #eee; } td { font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } .wide td, .wide th { white-space: nowrap; } .warning { color: #a02000; font-weight: 600; }
code, pre { background: #f4f4f4; padding: .1rem .3rem; } code { overflow-wrap: anywhere; }
pre { padding: .8rem; font-size: 13px; overflow-x: auto; } svg { max-width: 100%; height: auto; }
"""
ROWS = ("experiment", "metric", "best_valid", "test", "train", "best_epoch", "data_epochs", "num_parameters",
        "wall_seconds", "peak_memory_bytes", "num_ranks", "parallel", "lr_scaling", "hardware", "kernel", "seed",
        "weights_sha256", "command", "versions")
COLUMNS = {"best_valid": "validation", "test": "test", "best_epoch": "best epoch", "data_epochs": "epochs",
           "wall_seconds": "wall s", "peak_memory_bytes": "peak memory"}
SPEED_COLUMNS = {"step": "steps", "epochs": "epochs", "wall_seconds": "wall seconds"}
SHARED_CORES = ("Ranks shared the cores of a CPU: compare runs by steps and epochs; their wall time is not that of as "
                "many machines.")


def page(runs: list[Run], left_out: list[str] = ()) -> str:
    """The whole page of one run, or of several overlaid.

    Args:
        left_out: a line for each member of a sweep that has nothing to show.
    """
    sections = _one(runs[0]) if len(runs) == 1 and not left_out else _several(runs, list(left_out))
    if runs[0].partition:
        sections.append(("Partition", _partition(runs[0].partition)))
    if runs[0].components:
        sections.append(("Connected components", _components(runs[0].components)))
    named = (", ".join(run.name for run in runs) if len(runs) <= 4
             else f"{len(runs)} runs, {runs[0].name} to {runs[-1].name}")
    title = html.escape(named)
    body = "".join(f"<h2>{html.escape(heading)}</h2>{content}" for heading, content in sections)
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>")


def _one(run: Run) -> list[tuple[str, str]]:
    rows = [[key, _value(key, run.summary.get(key))] for key in ROWS]
    return [
        ("Result", _html_table(["", html.escape(run.name)], rows)),
        ("Loss", figures.svg(figures.curves(run, ["loss"], "loss of the training steps"))),
        (f"Metric: {run.metric}", figures.svg(figures.curves(run, list(SPLITS), run.metric))),
    ]


def _several(runs: list[Run], left_out: list[str]) -> list[tuple[str, str]]:
    text, warnings = summary_of_sweep(runs, left_out)
    sections = [("Runs", "".join(f'<p class="warning">{html.escape(line)}</p>' for line in warnings) + _runs(runs))]
    # The table of the runs says it already where each setting was run once.
    if text and len(groups(runs)) < len(runs):
        sections.append(("Seeds" if not differing(runs) else "Settings", f"<pre>{html.escape(text)}</pre>"))
    figure, hidden = figures.overlay(runs, keys=("loss", "valid", "test"))
    notes = ["Axes are logarithmic: equal distances are equal ratios."]
    if hidden:
        notes.append(f"{hidden} settings with a lower validation metric are not drawn.")
    if any(run.shares_cores for run in runs):
        notes.append(SHARED_CORES)
    sections.append(("Curves", f"<p>{html.escape(' '.join(notes))}</p>{figures.svg(figure)}"))
    if differing(runs):
        sections.append(("Speed-up at equal quality", _speed_up(runs)))
    return sections


def _labels(runs: list[Run]) -> list[str]:
    """A name for each run: what tells it apart, and its seed where others differ by seed only."""
    named = {}
    for label, members in groups(runs):
        for run in members:
            named[id(run)] = ", ".join(filter(None, [label, f"seed {run.seed}" if len(members) > 1 else ""]))
    return [named[id(run)] for run in runs]


def _runs(runs: list[Run]) -> str:
    differ, labels = differing(runs), _labels(runs)
    keys = [key for key in differ if key in SECONDARY]  # the others are in the label
    head = ["run", "directory", *(short(key, differ) for key in keys), *COLUMNS.values()]
    rows = []
    for label, run in zip(labels, runs):
        rows.append([html.escape(label), html.escape(run.folder.resolve().name),
                     *(html.escape(shown(run.settings.get(key))) for key in keys),
                     *(_value(key, run.summary.get(key)) for key in COLUMNS)])
    about = []
    for key in ("num_parameters", "hardware", "kernel", "versions", "command"):
        values = dict.fromkeys(_value(key, run.summary[key]) for run in runs if run.summary.get(key) is not None)
        about.append([key, "<br>".join(values) or "–"])
    return f'<div class="wide">{_html_table(head, rows)}</div><br>{_html_table(["", "of all"], about)}'


def _speed_up(runs: list[Run]) -> str:
    """Tables of when each run first reached a quality, against the first run."""
    if not comparable(runs):
        return "<p>None: the runs are of different data or metrics.</p>"
    labels, tables = _labels(runs), []
    for quality in qualities(runs):
        what = ("the best of the first run" if quality == runs[0].best() else
                "the highest that all runs reached")
        first = runs[0].reached(quality)
        rows = []
        for label, run in zip(labels, runs):
            at = run.reached(quality)
            cells = [_against(at, first, key) for key in AXES] if at else ["not reached"] + [""] * (len(AXES) - 1)
            rows.append([html.escape(label), *cells])
        tables.append(f"<p>Validation {html.escape(runs[0].metric)} {quality:.4f}, {what}:</p>"
                      + _html_table(["run", *SPEED_COLUMNS.values()], rows))
    shared = any(run.shares_cores for run in runs)
    note = ("When an evaluation first showed the quality, and in brackets how many times sooner than the first run. "
            "Wall time includes evaluations. " + (SHARED_CORES if shared else ""))
    return f"<p>{html.escape(note)}</p>" + "".join(tables)


def _against(at: dict, first: dict, key: str) -> str:
    if at.get(key) is None or not first.get(key):
        return "–"
    return f"{at[key]:,.4g} ({first[key] / at[key]:.2f}×)"


def _html_table(head: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _value(key: str, value: object) -> str:
    if value is None:
        return "–"
    if key == "peak_memory_bytes":
        return f"{value / 2**30:.2f} GiB"
    if key == "weights_sha256":
        return f"<code>{html.escape(value[:16])}</code>"
    if key == "command":
        return f"<code>{html.escape(value)}</code>"
    if key == "versions":
        return html.escape(", ".join(f"{name} {version}" for name, version in value.items()))
    if isinstance(value, float):
        return f"{value:,.1f}" if key == "wall_seconds" else f"{value:.4f}"
    return html.escape(f"{value:,}" if isinstance(value, int) else str(value))


def _partition(part: dict) -> str:
    return (f"<p>{html.escape(part['name'])}, round {part['round'] + 1}: {len(part['sizes']):,} clusters, "
            f"{sum(part['kept_edges']):,} of {part['num_edges']:,} directed edges kept ({part['cut']:.1%} cut), "
            f"imbalance {part['imbalance']:.3f}, drawn in {part['seconds']:.2f} s.</p>"
            f"{figures.svg(figures.partition(part))}")


def _components(components: dict) -> str:
    largest = components["largest"]
    text = (f"<p>{components['num_components']:,} components, of which {components['num_single_nodes']:,} are single "
            "nodes.</p>")
    rows = [[str(rank), *(f"{c[key]:,}" for key in ("num_nodes", "num_edges", "num_labelled", "num_train"))]
            for rank, c in enumerate(largest[:5], start=1)]
    return (text + _html_table(["", "nodes", "directed edges", "labelled", "for training"], rows)
            + figures.svg(figures.components(largest)))
