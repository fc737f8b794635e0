"""`python -m scripts.report DIR...`: one self-contained HTML page of one or several runs."""

import argparse
import html
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint import write_atomically
from pipeline.log import read_records

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
tr + tr td { border-top: 1px solid #eee; } td { font-variant-numeric: tabular-nums; }
code { background: #f4f4f4; padding: .1rem .3rem; overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; }
"""
COLOURS = ("#3366aa", "#cc5533", "#339966", "#9955bb", "#aa8833", "#555555", "#cc3377", "#33a0b0")
ROWS = ("experiment", "metric", "best_valid", "test", "train", "best_epoch", "data_epochs", "num_parameters", "wall_seconds",
        "peak_memory_bytes", "num_ranks", "kernel", "seed", "weights_sha256", "command", "versions")


@dataclass
class Run:
    """What a run directory tells; a run that has not ended yet has no summary."""

    folder: Path
    name: str
    epochs: list[dict]
    partition: dict | None
    components: dict | None
    summary: dict


def read_run(folder: Path) -> Run:
    """Read a run directory.

    Raises:
        ValueError: it is not one, or it has no epoch yet.
    """
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
    records = read_records(folder / "metrics.jsonl")
    epochs = [r for r in records if r["kind"] == "epoch"]
    if not epochs:
        raise ValueError(f"{folder} has no epoch to show")
    partitions = [r for r in records if r["kind"] == "partition"]
    summary = _read_json(folder / "summary.json") or {}
    name = " ".join(filter(None, [summary.get("experiment"), folder.resolve().name]))
    return Run(folder, name, epochs, partitions[-1] if partitions else None,
               _read_json(folder / "components.json"), summary)


def _read_json(path: Path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() else None


def page(runs: list[Run]) -> str:
    """The whole page as HTML."""
    metric = (runs[0].partition or {}).get("metric", "metric")
    sections = [
        ("Result", _table(runs)),
        ("Loss", _curves(runs, ["loss"], "loss of the training steps")),
        (f"Metric: {metric}", _curves(runs, ["train", "valid", "test"] if len(runs) == 1 else ["valid", "test"], metric)),
    ]
    if runs[0].partition:
        sections.append(("Partition", _partition(runs[0])))
    if runs[0].components:
        sections.append(("Connected components", _components(runs[0].components)))
    title = html.escape(", ".join(run.name for run in runs))
    body = "".join(f"<h2>{html.escape(heading)}</h2>{content}" for heading, content in sections)
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
            f"<body><h1>{title}</h1>{body}</body></html>")


def _table(runs: list[Run]) -> str:
    head = "".join(f"<th>{html.escape(run.name)}</th>" for run in runs)
    rows = []
    for key in ROWS:
        cells = "".join(f"<td>{_value(key, run.summary.get(key))}</td>" for run in runs)
        rows.append(f"<tr><th>{key}</th>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


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


def _curves(runs: list[Run], keys: list[str], label: str) -> str:
    """Against data epochs and against wall time, side by side."""
    figure, axes = _figure(2)
    for axis, (x_key, x_label) in zip(axes, (("data_epochs", "passes over the graph"), ("wall_seconds", "wall time [s]"))):
        for i, run in enumerate(runs):
            for j, key in enumerate(keys):
                points = [(e[x_key], e[key]) for e in run.epochs if e.get(key) is not None]
                if not points:
                    continue
                colour = COLOURS[(i if len(runs) > 1 else j) % len(COLOURS)]
                style = ("-", "--", ":")[j % 3] if len(runs) > 1 else "-"
                name = " ".join(([run.name] if len(runs) > 1 else []) + ([key] if len(keys) > 1 else []))
                axis.plot(*zip(*points), style, color=colour, linewidth=1.4, label=name or None,
                          marker="." if len(points) < 3 else None)
        axis.set(xlabel=x_label, ylabel=label)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
    return _svg(figure)


def _partition(run: Run) -> str:
    part = run.partition
    figure, axes = _figure(2)
    index = range(1, len(part["sizes"]) + 1)
    for axis, key, label in zip(axes, ("sizes", "kept_edges"), ("nodes", "edges kept within the cluster")):
        axis.bar(index, part[key], width=0.8 if len(index) < 100 else 1.0, color=COLOURS[0])
        axis.set(xlabel="cluster", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return (f"<p>{html.escape(part['name'])}, epoch {part['epoch'] + 1}: {len(part['sizes']):,} clusters, "
            f"{sum(part['kept_edges']):,} of {part['num_edges']:,} directed edges kept ({part['cut']:.1%} cut), imbalance "
            f"{part['imbalance']:.3f}, drawn in {part['seconds']:.2f} s.</p>{_svg(figure)}")


def _components(components: dict) -> str:
    largest = components["largest"]
    text = f"<p>{components['num_components']:,} components, of which {components['num_single_nodes']:,} are single nodes."
    rows = "".join(f"<tr><td>{rank}</td>" + "".join(f"<td>{c[key]:,}</td>" for key in
                   ("num_nodes", "num_edges", "num_labelled", "num_train")) + "</tr>"
                   for rank, c in enumerate(largest[:5], start=1))
    figure, axes = _figure(1)
    axes[0].bar(range(1, len(largest) + 1), [c["num_nodes"] for c in largest], color=COLOURS[0])
    axes[0].set(xlabel=f"component, the {len(largest):,} largest" if len(largest) > 1 else "component", ylabel="nodes",
                yscale="log")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    return (f"{text}</p><table><tr><th></th><th>nodes</th><th>directed edges</th><th>labelled</th><th>for training</th></tr>"
            f"{rows}</table>{_svg(figure)}")


def _figure(columns: int):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, 3.3), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
    return figure, axes


def _svg(figure) -> str:
    import matplotlib

    buffer = io.StringIO()
    # Without the date and with fixed names of its parts, equal runs give equal pages.
    with matplotlib.rc_context({"svg.hashsalt": "report"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg"):]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="run directories")
    parser.add_argument("--out", type=Path, help="the page; report.html in the first directory if not given")
    options = parser.parse_args()
    out = options.out or options.runs[0] / "report.html"
    try:
        text = page([read_run(folder) for run in options.runs for folder in sorted(run.glob("component_*")) or [run]])
        write_atomically(out, lambda file: file.write(text.encode()))
    except ImportError as error:
        sys.exit(f"error: the report draws with matplotlib ({error}): pip install -e .[report]")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(out)


if __name__ == "__main__":
    main()
