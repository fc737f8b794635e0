"""The page about several runs: each is compared with the first, and seeds are averaged."""

import statistics

from parallel_epochs.pipeline.names import LOWER_IS_BETTER
from parallel_epochs.pipeline.run.log import mean_and_std
from parallel_epochs.scripts.report import charts, words
from parallel_epochs.scripts.report.charts import Figures, Line
from parallel_epochs.scripts.report.elements import (
    Cell,
    Column,
    code,
    copyable,
    escape,
    facts,
    number,
    paragraph,
    swatch,
    table,
    text,
)
from parallel_epochs.scripts.report.runs import (
    AXES,
    Run,
    comparable,
    differing,
    qualities,
    scores_of,
)
from parallel_epochs.scripts.report.single import (
    Section,
    axis_switch,
    badge,
    graph_sections,
    warnings,
)
from parallel_epochs.scripts.report.sweep import leaderboard, summary_of_sweep

SPEED_COLUMNS = {"step": "Steps", "epochs": "Epochs", "wall_seconds": "Wall time (s)"}
MAX_KEYS = 12  # that differ and are shown at once
SHARED_CORES = (
    "Ranks shared the cores of a CPU, so wall times are longer than on one machine per rank. Compare runs "
    "by steps and epochs."
)


def compare(
    lines: list[Line], left_out: list[str], figures: Figures, *, with_seeds: bool
) -> tuple[str, list[Section]]:
    """Compare runs.

    Args:
        left_out: a line for each run that has nothing to show.

    Returns:
        A title, and sections of which the first stands above the others.
    """
    _number(lines)
    runs = [run for line in lines for run in line.members]
    labels = [_label(line, run) for line in lines for run in line.members]
    _, problems = summary_of_sweep(runs, left_out)
    problems += [f"{run.folder}: {problem}" for run in runs for problem in run.problems]
    settings = (
        f" of {'one setting' if len(lines) == 1 else f'{len(lines)} settings'}"
        if len(lines) < len(runs)
        else ""
    )
    title = (
        " and ".join(run.name for run in runs)
        if len(runs) <= 2
        else f"{len(runs)} runs{settings}, {runs[0].name} to {runs[-1].name}"
    )
    return title, [
        ("", "", _states(runs) + warnings(problems)),
        (
            "settings",
            "Settings" if len(lines) > 1 else "Seeds",
            _settings(lines) if len(lines) < len(runs) else "",
        ),
        ("curves", "Curves", _curves(lines, figures, with_seeds=with_seeds)),
        ("runs", "Runs", _runs(lines, labels)),
        ("differences", "Differences of configuration", _differences(lines)),
        ("speed", "Speed-up at equal quality", _speed_up(runs, labels) if len(lines) > 1 else ""),
        ("time", "Time of each phase", _time(lines, figures)),
        *graph_sections(runs[0], figures, f" of {runs[0].name}"),
        ("environment", "Hardware, versions and commands", _environment(runs)),
        ("leaderboard", "For OGB's leaderboard", _leaderboard(runs, left_out)),
    ]


def _label(line: Line, run: Run) -> str:
    """Return a label for a run: its settings, and its seed if other runs differ only by the seed."""
    return ", ".join(
        filter(None, [line.label, f"seed {run.seed}" if len(line.members) > 1 else ""])
    )


def _states(runs: list[Run]) -> str:
    counts: dict[tuple[str, str], int] = {}
    for run in runs:
        counts[run.state.name, run.state.kind] = counts.get((run.state.name, run.state.kind), 0) + 1
    return (
        '<p class="state">'
        + " ".join(
            f'<span class="badge {kind}">{number_} {escape(name)}</span>'
            for (name, kind), number_ in counts.items()
        )
        + "</p>"
    )


def _settings(lines: list[Line]) -> str:
    """Build a table with mean and standard deviation over the seeds of each setting."""
    length, unit = words.time_unit(
        [run.summary.get("wall_seconds", 0) for line in lines for run in line.members]
    )
    metric = words.metric_name(lines[0].members[0].metric)
    scores = scores_of([run for line in lines for run in line.members])
    columns = [
        Column("Setting"),
        Column("Seeds", True),
        *(Column(words.score_name(split, metric), True) for split in scores.values()),
        Column(f"Wall time ({unit})", True),
    ]
    rows = []
    for line in lines:
        finished = [run.summary for run in line.members if run.state.kind == "finished"]
        found = {
            key: [summary[key] for summary in finished if summary.get(key) is not None]
            for key in (*scores, "wall_seconds")
        }
        means = {key: statistics.fmean(values) if values else None for key, values in found.items()}
        rows.append(
            [
                Cell(_swatch(line) + escape(line.label or "all"), line.label),
                number(len(finished), str(len(finished))),
                *(
                    number(means[key], mean_and_std(found[key]) if found[key] else "")
                    for key in scores
                ),
                number(means["wall_seconds"], f"{(means['wall_seconds'] or 0) / length:,.1f}"),
            ]
        )
    note = paragraph("Mean ± sample standard deviation over the seeds that finished.", "note")
    return table(columns, rows, label="Settings") + note


def _swatch(line: Line) -> str:
    return swatch(line.number) if line.number < charts.MAX_LINES else ""


def _number(lines: list[Line]) -> None:
    """Give colours to the lines that are drawn: for each metric the first line and the best of the others."""
    for metric in {line.members[0].metric for line in lines}:
        ours = [line for line in lines if line.members[0].metric == metric]
        best = sorted(ours[1:], key=lambda line: -max(run.merit() for run in line.members))[
            : charts.MAX_LINES - 1
        ]
        drawn = [*ours[:1], *(line for line in ours[1:] if line in best)]
        for line in ours:
            line.number = drawn.index(line) if line in drawn else charts.MAX_LINES


def _curves(lines: list[Line], figures: Figures, *, with_seeds: bool) -> str:
    """Draw the charts of each metric separately, as two metrics and their losses have no common axis."""
    notes, blocks = [], []
    if any(run.shares_cores for line in lines for run in line.members):
        notes.append(SHARED_CORES)
    metrics = dict.fromkeys(line.members[0].metric for line in lines)
    for metric in metrics:
        ours = [line for line in lines if line.members[0].metric == metric]
        drawn = [line for line in ours if line.number < charts.MAX_LINES]
        if hidden := len(ours) - len(drawn):
            worse = "higher" if metric in LOWER_IS_BETTER else "lower"
            notes.append(
                f"{words.count(hidden, 'setting')} with a {worse} validation metric "
                f"{'is' if hidden == 1 else 'are'} not drawn."
            )
        runs = [run for line in drawn for run in line.members]
        quality = (
            next(reversed(qualities(runs)), None) if comparable(runs) and len(drawn) > 1 else None
        )
        legend = charts.legend_of(
            [
                (
                    line.key,
                    line.label or f"{len(line.members)} seeds",
                    line.number,
                    len(line.members) if with_seeds else 1,
                )
                for line in drawn
            ]
        )
        found = [
            charts.curves(figures, drawn, key, with_seeds=with_seeds, quality=quality)
            for key in charts.CURVES
        ]
        heading = f"<h3>{escape(words.metric_name(metric))}</h3>" if len(metrics) > 1 else ""
        blocks.append(
            f'{heading}<div class="block">{legend}<div class="charts">{"".join(found)}</div></div>'
        )
    if any(len(line.members) > 1 for line in lines):
        notes.append(
            "A curve is the mean over seeds, and its band is one standard deviation to each side."
            + ("" if with_seeds else " There are too many runs to draw a curve for each.")
        )
    notes.append("A ring marks the best epoch of a run.")
    return axis_switch() + "".join(blocks) + paragraph(" ".join(notes), "note")


def _runs(lines: list[Line], labels: list[str]) -> str:
    runs = [run for line in lines for run in line.members]
    marks = [_swatch(line) for line in lines for _ in line.members]
    length, unit = words.time_unit([run.summary.get("wall_seconds", 0) for run in runs])
    metrics = {run.metric for run in runs}
    metric = words.metric_name(runs[0].metric) if len(metrics) == 1 else "metric"
    scores = scores_of(runs)
    columns = [
        Column("Run"),
        Column("Directory"),
        Column("State"),
        *(
            Column(
                words.score_name(split, metric),
                True,
                "the best" if key == "best_valid" else "at the best validation",
            )
            for key, split in scores.items()
        ),
        Column("Best epoch", True),
        Column("Epochs", True),
        Column(f"Wall time ({unit})", True),
        Column("Peak memory (GiB)", True),
        Column("Parameters", True),
    ]
    rows = []
    for label, mark, run in zip(labels, marks, runs):
        result, state = run.result, run.state
        wall, found = (
            result.get("wall_seconds"),
            [result.get(key) if key in run.score_keys else None for key in scores],
        )
        epoch, epochs, memory = (
            result.get(key) for key in ("best_epoch", "data_epochs", "peak_memory_bytes")
        )
        suffix = f" {escape(words.metric_name(run.metric))}" if len(metrics) > 1 else ""
        rows.append(
            [
                Cell(mark + escape(label), label),
                Cell(code(run.folder.resolve().name)),
                Cell(badge(state), state.name),
                *(Cell(escape(words.score(value)) + suffix, value) for value in found),
                number(epoch, words.count(epoch)),
                number(epochs, words.count(epochs)),
                number(wall, f"{(wall or 0) / length:,.1f}"),
                number(memory, f"{(memory or 0) / 2**30:.2f}"),
                number(result.get("num_parameters"), words.count(result.get("num_parameters"))),
            ]
        )
    return table(columns, rows, label="Runs")


def _sortable(value: object) -> float | str | None:
    return value if value is None or isinstance(value, (int, float)) else str(value)


def _differences(lines: list[Line]) -> str:
    """Build a table of the keys in which the settings differ."""
    first = [line.members[0] for line in lines]
    keys = differing(first)
    if not keys:
        return ""
    names = {key: words.KEYS.get(key, key) for key in keys}
    note = paragraph(
        "Keys of the model and the data come first, then those of training. All other keys have the same "
        "value in all runs, except for the seed and the paths of files.",
        "note",
    )
    values = {key: [words.setting(key, run.settings.get(key)) for run in first] for key in keys}
    if len(keys) > len(lines):
        columns = [Column("Key"), *(Column(line.label) for line in lines), Column("Meaning")]
        rows = [
            [
                Cell(code(names[key]), names[key]),
                *(text(value) for value in values[key]),
                text(words.meanings().get(names[key], "")),
            ]
            for key in keys
        ]
    else:
        columns = [
            Column("Setting"),
            *(Column(names[key], True, words.meanings().get(names[key], "")) for key in keys),
        ]
        rows = [
            [
                Cell(_swatch(line) + escape(line.label), line.label),
                *(
                    number(_sortable(line.members[0].settings.get(key)), values[key][i])
                    for key in keys
                ),
            ]
            for i, line in enumerate(lines)
        ]
    if len(rows) <= MAX_KEYS or len(keys) <= len(lines):
        return table(columns, rows, label="Keys that differ") + note
    more = table(columns, rows[MAX_KEYS:], label="More keys that differ")
    return (
        table(columns, rows[:MAX_KEYS], label="Keys that differ")
        + f"<details><summary>{words.count(len(rows) - MAX_KEYS, 'more key')}</summary>{more}</details>"
        + note
    )


def _speed_up(runs: list[Run], labels: list[str]) -> str:
    """Build tables of the time at which each run first reached a quality, compared with the first run."""
    if not comparable(runs):
        return paragraph("There is none, as the runs have different data or metrics.")
    tables = []
    for quality in qualities(runs):
        what = (
            "the best value of the first run"
            if quality == runs[0].best()
            else f"the {'lowest' if runs[0].metric in LOWER_IS_BETTER else 'highest'} value that all runs reached"
        )
        first = runs[0].reached(quality)
        rows = []
        for label, run in zip(labels, runs):
            at = run.reached(quality)
            cells = (
                [_against(at, first, key) for key in AXES]
                if at
                else [Cell("not reached", "")] * len(AXES)
            )
            rows.append([text(label), *cells])
        title = words.score_name(
            runs[0].score_keys["best_valid"], words.metric_name(runs[0].metric)
        )
        tables.append(
            paragraph(f"{title} {words.score(quality)}, {what}:")
            + table(
                [Column("Run"), *(Column(title, True) for title in SPEED_COLUMNS.values())],
                rows,
                label="Speed-up",
            )
        )
    if not tables:
        return ""
    shared = any(run.shares_cores for run in runs)
    note = (
        "The first evaluation with this quality, and in brackets the speed-up over the first run. Wall time "
        "includes evaluations. " + (SHARED_CORES if shared else "")
    )
    return paragraph(note, "note") + "".join(tables)


def _against(at: dict, first: dict, key: str) -> Cell:
    if at.get(key) is None or not first.get(key):
        return number(None, "")
    return number(at[key], f"{at[key]:,.4g} ({first[key] / at[key]:.2f}×)")


def _time(lines: list[Line], figures: Figures) -> str:
    timed = [(line, mean) for line in lines if any((mean := _mean_phases(line.members)).values())]
    if not timed:
        return ""
    means = [mean for _, mean in timed]
    shown = [key for key in charts.PHASES if any(mean[key] for mean in means)]
    columns = [
        Column("Setting"),
        *(Column(charts.PHASES[key], True) for key in shown),
        Column("Total", True),
    ]
    rows = [
        [
            Cell(_swatch(line) + escape(line.label or "all"), line.label),
            *(number(mean[key], f"{mean[key]:.4f}") for key in shown),
            number(sum(mean.values()), f"{sum(mean.values()):.4f}"),
        ]
        for line, mean in timed
    ]
    drawn = (
        charts.phase_bars(figures, [line for line, _ in timed], means)
        if 1 < len(timed) <= charts.MAX_LINES
        else ""
    )
    note = paragraph("Seconds per epoch.", "note")
    return drawn + table(columns, rows, label="Seconds per epoch of each phase") + note


def _mean_phases(runs: list[Run]) -> dict[str, float]:
    """Compute the mean seconds of each phase per epoch over all of these runs."""
    epochs = sum(run.rounds[-1].get("epochs", len(run.rounds)) for run in runs if run.rounds)
    return {
        key: sum(phase[key] for run in runs for phase in run.phases) / max(epochs, 1)
        for key in charts.PHASES
    }


def _environment(runs: list[Run]) -> str:
    """List hardware, versions and commands, each value once."""
    shown = []
    for key, name in (
        ("hardware", "Hardware"),
        ("kernel", "Aggregation"),
        ("versions", "Versions"),
    ):
        found = dict.fromkeys(
            words.versions(value) if key == "versions" else str(value)
            for run in runs
            if (value := run.summary.get(key))
        )
        if found:
            shown.append((name, "<br>".join(escape(value) for value in found)))
    commands = dict.fromkeys(run.summary["command"] for run in runs if run.summary.get("command"))
    listed = "".join(copyable(command, "the command") for command in commands)
    if len(commands) > 2:
        listed = f"<details><summary>{len(commands)} commands</summary>{listed}</details>"
    return facts(shown) + listed


def _leaderboard(runs: list[Run], left_out: list[str]) -> str:
    block = leaderboard(runs, left_out)
    return copyable(block, "the fields of the form") if block else ""
