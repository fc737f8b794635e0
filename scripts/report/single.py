"""The page about one run."""

import re

from parallel_epochs.pipeline.run.words import command_of
from parallel_epochs.scripts.report import charts, words
from parallel_epochs.scripts.report.charts import Figures, Line
from parallel_epochs.scripts.report.curve_section import curve_section
from parallel_epochs.scripts.report.elements import (
    Cell,
    Column,
    code,
    copyable,
    escape,
    facts,
    number,
    paragraph,
    table,
    text,
    tiles,
)
from parallel_epochs.scripts.report.label_section import confusion_section, label_section, title_of
from parallel_epochs.scripts.report.layout_section import layout_section
from parallel_epochs.scripts.report.runs import AXES, Run
from parallel_epochs.scripts.report.states import RunState
from parallel_epochs.scripts.report.typed_section import typed_section
from parallel_epochs.scripts.report.why_section import why_section

Section = tuple[str, str, str]  # anchor, heading, content
MAX_PARTS = 12  # scores of single parts that are shown open
AXIS_BUTTONS = {"epochs": "Epochs", "step": "Steps", "wall_seconds": "Time"}


def describe(run: Run, figures: Figures) -> tuple[str, list[Section]]:
    """Describe a run by a title and sections, of which the first stands above the others."""
    if run.settings["num_ranks"] == 1:
        figures.axes = {
            "epochs": "epochs",
            "step": "optimizer steps",
            "wall_seconds": AXES["wall_seconds"],
        }
    (layout, problem), (scores, of_scores), (why, of_why) = run.layout, run.scores, run.why
    problems = [*run.problems, *filter(None, [problem, of_scores, of_why])]
    return run.name, [
        ("", "", _state(run) + warnings(problems) + _tiles(run) + _command(run)),
        ("layout", "Layout", layout_section(layout, figures) if layout else ""),
        ("curves", "Curves", _curves(run, figures)),
        ("scores", "Further scores", _further_scores(run)),
        ("settings", "Settings compared", _trials(run)),
        ("labels", title_of(scores), label_section(scores) if scores else ""),
        (
            "thresholds",
            "ROC and precision-recall",
            curve_section(scores, figures) if scores else "",
        ),
        ("confusion", "Confusion matrix", confusion_section(scores) if scores else ""),
        ("why", "Why", why_section(why)),
        (
            "types",
            "Types and relations",
            typed_section(scores, run.partition) if scores and "typed" in scores else "",
        ),
        ("time", "Time of each phase", _time(run, figures)),
        *graph_sections(run, figures),
        ("environment", "Hardware and versions", _environment(run)),
        ("configuration", "Configuration", _configuration(run)),
    ]


def badge(state: RunState) -> str:
    """Build a badge with the state of a run."""
    return (
        f'<span class="badge {state.kind}" title="{escape(state.text)}">{escape(state.name)}</span>'
    )


def _state(run: Run) -> str:
    sentence = run.state.text[:1].upper() + run.state.text[1:].removesuffix(".")
    return f'<p class="state">{badge(run.state)} {escape(sentence)}.</p>'


def warnings(lines: list[str]) -> str:
    """Build a list of problems."""
    return (
        f'<ul class="warning">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
        if lines
        else ""
    )


def _tiles(run: Run) -> str:
    result, name = run.result, words.metric_name(run.metric)
    epoch, last = result.get("best_epoch"), (run.rounds or [{}])[-1]
    titles = {
        split: words.score_name(words.SPLITS[split] if len(run.splits) > 1 else "", name)
        for split in run.splits
    }
    best = f"best value, after epoch {epoch:,}" if epoch is not None else ""
    entries = [
        *(
            (
                title,
                words.score(result.get("best_valid" if split == "valid" else split)),
                (best if split == "valid" else "at the best validation") + _smoothed(run, split),
            )
            for split, title in titles.items()
        ),
        *_baseline(run, name),
        (
            "Training loss",
            f"{last['loss']:.4g}" if "loss" in last else words.NOTHING,
            "in the last round",
        ),
        (
            "Wall time",
            words.duration(result.get("wall_seconds")),
            words.count(result.get("data_epochs"), "epoch"),
        ),
        (
            "Peak memory",
            words.memory(result.get("peak_memory_bytes")),
            "" if run.summary else "known when the run has ended",
        ),
        ("Parameters", words.count(result.get("num_parameters")), f"seed {run.seed}"),
        (
            "Ranks",
            words.count(run.settings["num_ranks"]),
            words.setting("parallel", run.settings["parallel"])
            if run.settings["num_ranks"] != 1
            else "",
        ),
    ]
    return tiles(entries)


def _further_scores(run: Run) -> str:
    """Build a table of what the summary holds besides the metric of each split: Hits@K, heads, tails, each relation."""
    whole, parts = [], []
    for name, value in run.summary.get("scores", {}).items():
        metric, _, part = name.removeprefix("valid_").partition("@")
        if not isinstance(value, float):
            continue
        if part.isdecimal():  # Hits@10 is a metric, and the MRR of heads one of a part
            metric, part = f"{metric}@{part}", ""
        is_valid = name.startswith("valid_") or part == "valid"
        split = words.SPLITS["valid" if is_valid else "test"] if "test" in run.splits else "All"
        part = "" if part == "valid" else part
        if re.fullmatch(
            r"0\.\d+", part
        ):  # of node embeddings: a classifier that is trained on some of the labels
            part = f"{float(part):.0%} of the labels for training"
        (whole if part in ("", "heads", "tails") else parts).append(
            [
                text(words.score_name("", words.metric_name(metric))),
                text(split),
                text(words.shortened(part or "all")),
                number(value, words.score(value)),
            ]
        )
    columns = [Column("Metric"), Column("Split"), Column("Part"), Column("Value", True)]
    shown = table(columns, whole, label="Further scores") if whole else ""
    if 0 < len(parts) <= MAX_PARTS:
        shown = table(columns, whole + parts, label="Further scores")
    elif parts:
        shown += (
            f"<details><summary>{words.count(len(parts), 'score')} of single parts</summary>"
            f"{table(columns, parts, label='Scores of single parts')}</details>"
        )
    return shown


def _trials(run: Run) -> str:
    """Build a table of the settings that model=auto compared: the last trial of each; "" without them."""
    last = {each["setting"]: each for each in run.summary.get("trials", [])}
    rows = [
        [
            text(name),
            number(each["valid"], words.score(each["valid"])),
            number(each["epochs"], f"{each['epochs']:,}"),
        ]
        for name, each in last.items()
    ]
    columns = [Column("Setting"), Column("Validation", True), Column("Epochs", True)]
    return table(columns, rows, label="Settings compared") if rows else ""


def _baseline(run: Run, name: str) -> list[tuple[str, str, str]]:
    """Build the tiles of the network alone and of the simple method that a run begins at.

    Otherwise, build that of the best simple method on the dataset, if `pipeline.baselines` has found one.
    """
    base, network = run.summary.get("base", {}), run.summary.get("network", {})
    best = base or run.summary.get("baseline", {})
    entries = [
        ("of the network alone", network, ""),
        ("of a simple method", best, f"{best.get('title' if base else 'name')}; "),
    ]
    return [
        (
            f"{words.score_name(words.SPLITS['test'], name)} {what}",
            words.score(scores["test"]),
            f"{about}{words.score(scores.get('valid'))} at the validation",
        )
        for what, scores, about in entries
        if isinstance(scores.get("test"), float)
    ]


def _smoothed(run: Run, split: str) -> str:
    """Say what the score of a split is with smoothed predictions; "" without them."""
    value = run.summary.get("smoothed", {}).get(split)
    return f"; {words.score(value)} smoothed" if isinstance(value, float) else ""


def _command(run: Run) -> str:
    if command := run.summary.get("command"):
        return copyable(command, "the command")
    if run.state.kind == "running":
        return ""
    return paragraph("To continue the run:", "note") + copyable(
        f"{command_of('train')} resume={run.folder}", "the command"
    )


def _curves(run: Run, figures: Figures) -> str:
    if not run.rounds:
        return paragraph("No round has ended yet.")
    shown = [
        (split, words.SPLITS[split], i, 1)
        for i, split in enumerate(run.splits)
        if any(split in r for r in run.rounds)
    ]
    legend = charts.legend_of(shown) if len(run.splits) > 1 else ""
    line = [Line("run", "", [run], 0)]
    drawn = [
        charts.metric_curves(figures, run, legend) if shown else "",
        *(
            charts.curves(figures, line, key, with_seeds=False)
            for key in ("loss", "lr", "grad_norm")
        ),
    ]
    rates = {r["lr"] for r in run.rounds if "lr" in r}
    note = (
        paragraph(f"The learning rate was {rates.pop():g} in all rounds.", "note")
        if len(rates) == 1
        else ""
    )
    return axis_switch() + f'<div class="charts block">{"".join(drawn)}</div>{note}'


def axis_switch() -> str:
    """Build the buttons that choose the horizontal axis of the curves."""
    buttons = "".join(
        f'<button type="button" data-axis="{key}" aria-pressed="{str(key == "epochs").lower()}" '
        f'title="{escape(AXES[key])}">{name}</button>'
        for key, name in AXIS_BUTTONS.items()
    )
    return (
        f'<div class="toolbar"><div class="switch" role="group" aria-label="Horizontal axis">{buttons}</div>'
        '<button type="button" class="toggle" data-log aria-pressed="false" title="Equal distances mean equal '
        'ratios">Logarithmic</button></div>'
    )


def _time(run: Run, figures: Figures) -> str:
    sums = {key: sum(phase[key] for phase in run.phases) for key in charts.PHASES}
    total, epochs = sum(sums.values()), run.rounds[-1].get("epochs") if run.rounds else None
    if not total or not epochs:
        return ""
    columns = [
        Column("Phase"),
        *(Column(title, True) for title in ("Seconds", "Per epoch", "Share")),
    ]
    rows = [
        [
            text(name),
            number(sums[key], f"{sums[key]:,.2f}"),
            number(sums[key], f"{sums[key] / epochs:.4f}"),
            number(sums[key], f"{sums[key] / total:.1%}"),
        ]
        for key, name in charts.PHASES.items()
        if sums[key]
    ]
    drawn = sum(r.get("draw_seconds", 0) for r in run.rounds)
    note = (
        paragraph(
            f"A background thread drew batches for {words.duration(drawn)} in total. The table has the time "
            "that training waited for it.",
            "note",
        )
        if drawn
        else ""
    )
    return (
        f'<div class="pair"><div>{table(columns, rows, label="Seconds of each phase")}{note}</div>'
        f"{charts.phase_areas(figures, run)}</div>"
    )


def graph_sections(run: Run, figures: Figures, whose: str = "") -> list[Section]:
    """Describe the graph of a run: its first partition or batches, and its components.

    Args:
        whose: addition to the headings that names the run.
    """
    return [
        (
            "partition",
            f"Partition{whose}",
            _partition(run.partition, figures) if run.partition else "",
        ),
        ("sampling", f"Neighbour sampling{whose}", _sampling(run.sampling) if run.sampling else ""),
        ("graphs", f"Batches of graphs{whose}", _graphs(run.graphs) if run.graphs else ""),
        (
            "components",
            f"Connected components{whose}",
            _components(run.components, figures) if run.components else "",
        ),
    ]


def _partition(part: dict, figures: Figures) -> str:
    sizes, kept = part["sizes"], part["kept_edges"]
    told = (
        f"{part['name'].capitalize()}, as drawn for round {part['round'] + 1:,}: "
        f"{words.count(len(sizes), 'cluster')}, {sum(kept):,} of {part['num_edges']:,} directed edges kept "
        f"({part['cut']:.1%} cut), imbalance {part['imbalance']:.3f}, drawn in {words.duration(part['seconds'])}."
    )
    if len(sizes) < 2:
        return paragraph(told)
    return (
        paragraph(told)
        + '<div class="charts">'
        + "".join(
            charts.bars(figures, values, title=title, of="cluster", unit=unit)
            for values, title, unit in (
                (sizes, "Nodes of each cluster", "nodes"),
                (kept, "Edges kept within each cluster", "edges"),
            )
        )
        + "</div>"
    )


def _fan_out(numbers: list[int]) -> str:
    return ", ".join("all" if number < 0 else f"{number:,}" for number in numbers)


def _sampling(drawn: dict) -> str:
    given = drawn["num_neighbors"]
    numbers = (
        _fan_out(given)
        if isinstance(given, list)
        else "; ".join(f"{_fan_out(own)} ({name})" for name, own in given.items())
    )
    return paragraph(
        f"{drawn['name'].capitalize()} with at most {numbers} neighbours of a node at each hop: "
        f"{words.count(drawn['num_seeds'], 'seed')} in {words.count(drawn['num_batches'], 'batch', 'batches')}, "
        f"with {drawn['mean_nodes']:,.0f} nodes and {drawn['mean_edges']:,.0f} directed edges on average, drawn in "
        f"{words.duration(drawn['seconds'])} each."
    )


def _graphs(drawn: dict) -> str:
    return paragraph(
        f"{words.count(drawn['num_graphs'], 'training graph')} in "
        f"{words.count(drawn['num_batches'], 'batch', 'batches')} of {drawn['least_graphs']:,} to "
        f"{drawn['most_graphs']:,} graphs and {drawn['least_nodes']:,} to {drawn['most_nodes']:,} nodes, packed by "
        f"{drawn['pack']}."
    )


def _components(components: dict, figures: Figures) -> str:
    largest, total = components["largest"], components["num_components"]
    if total == 1:
        one = largest[0] if largest else {}
        size = (
            f": {one['num_nodes']:,} nodes and {one['num_edges']:,} directed edges"
            if "num_edges" in one
            else ""
        )
        return paragraph(f"The graph is connected{size}.")
    keys = {
        "num_nodes": "Nodes",
        "num_edges": "Directed edges",
        "num_labelled": "Labelled",
        "num_train": "For training",
    }
    columns = [Column("Component"), *(Column(title, True) for title in keys.values())]
    rows = [
        [Cell(str(rank), rank), *(number(c.get(key), words.count(c.get(key))) for key in keys)]
        for rank, c in enumerate(largest[:5], start=1)
    ]
    which = f"the {len(largest):,} largest components" if total > len(largest) else "each component"
    drawn = (
        charts.bars(
            figures,
            [c["num_nodes"] for c in largest],
            title=f"Nodes of {which}",
            of="component",
            unit="nodes",
            log=True,
        )
        if len(largest) > 1
        else ""
    )
    singles = words.count(components["num_single_nodes"], "single node")
    return (
        paragraph(
            f"The graph has {total:,} components, including {singles}."
            + (f" The {len(rows)} largest:" if total > len(rows) else "")
        )
        + f'<div class="pair">{table(columns, rows, label="The largest components")}{drawn}</div>'
    )


def _environment(run: Run) -> str:
    summary = run.summary
    rows = [
        ("Hardware", escape(summary.get("hardware", ""))),
        ("Peak memory", words.memory(summary.get("peak_memory_bytes")) if summary else ""),
        ("Aggregation", escape(summary.get("kernel", ""))),
        ("Versions", escape(words.versions(summary.get("versions", {})))),
        (
            "Weights (SHA-256)",
            code(summary["weights_sha256"][:16]) if summary.get("weights_sha256") else "",
        ),
        ("Directory", code(run.folder)),
    ]
    note = (
        ""
        if summary
        else paragraph("Hardware, memory and versions are recorded when a run ends.", "note")
    )
    return note + facts((name, value) for name, value in rows if value)


def _configuration(run: Run) -> str:
    rows = [
        [
            Cell(code(key), key),
            Cell(code(words.setting("", value))),
            text(words.meanings().get(key, "")),
        ]
        for key, value in run.config.items()
    ]
    return (
        f"<details><summary>All {len(rows)} keys</summary>"
        f"{table([Column('Key'), Column('Value'), Column('Meaning')], rows, label='Configuration')}</details>"
    )
