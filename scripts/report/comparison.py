"""Means over seeds, speed-up at equal quality and differing keys: all that a page computes of several runs."""

import statistics
from collections import Counter
from dataclasses import dataclass

import pandas as pd

from parallel_epochs.pipeline.names import LOWER_IS_BETTER, merit
from parallel_epochs.pipeline.run.log import mean_and_std
from parallel_epochs.scripts.report import charts
from parallel_epochs.scripts.report.charts import PHASES, Line
from parallel_epochs.scripts.report.runs import (
    AXES,
    Run,
    comparable,
    differing,
    groups,
    qualities,
    short,
)
from parallel_epochs.scripts.report.words import duration, metric_name, score, setting, title

KEYS = {"num_ranks": "parallel.num_ranks", "lr_scaling": "parallel.lr_scaling"}


@dataclass
class Comparison:
    """Several runs, of which those that differ only in their seeds are a line.

    Attributes:
        counted: the runs that count in means.
        problems: why the others do not.
    """

    lines: list[Line]
    counted: list[Run]
    problems: list[str]

    @property
    def runs(self) -> list[Run]:
        return [run for line in self.lines for run in line.members]

    @property
    def labels(self) -> list[tuple[Line, Run, str]]:
        """Return each run with its line and a label: its settings, and its seed if other runs differ only by it."""
        return [
            (line, run, ", ".join(filter(None, [line.label, several and f"seed {run.seed}"])))
            for line in self.lines
            for several in [len(line.members) > 1]
            for run in line.members
        ]

    @property
    def scores(self) -> dict[str, str]:
        """Return the keys of scores that any of the runs has, each with its title."""
        metrics = {run.metric for run in self.runs}
        name = metric_name(self.runs[0].metric) if len(metrics) == 1 else "metric"
        found = max((run.scores for run in self.runs), key=len)
        return {key: title(f"{split} {name}".strip()) for key, split in found.items()}

    @property
    def titles(self) -> list[str]:
        return [f">{name}" for name in self.scores.values()]

    @property
    def phase_titles(self) -> list[str]:
        return [f">{name}" for name in PHASES.values()]

    @property
    def states(self) -> Counter:
        return Counter((run.state.kind, run.state.name) for run in self.runs)

    @property
    def shared(self) -> str:
        """Return a warning where training times are not comparable."""
        if not any(run.shares_cores for run in self.runs):
            return ""
        return (
            "Ranks shared the cores of a CPU, so training times are longer than on one machine per rank. Compare runs by "
            "steps and epochs."
        )

    @property
    def is_one_setting(self) -> bool:
        """Tell whether all that counts differs only in its seed."""
        return len(self.counted) > 1 and comparable(self.counted) and not differing(self.counted)

    def means(self, members: list[Run]) -> list[str]:
        """Return how many of some runs have finished, their mean scores and their time."""
        done = [run.summary for run in members if run.state.kind == "finished"]
        cells = [f"{len(done)}"]
        for key in self.scores:
            found = [summary[key] for summary in done if summary.get(key) is not None]
            cells.append(mean_and_std(found) if found else "–")
        seconds = [summary.get("wall_seconds", 0) for summary in done] or [0]
        return [*cells, duration(statistics.fmean(seconds))]

    def curves(self) -> list[tuple[str, list, int]]:
        """Draw the charts of each metric separately; returns its name, its charts and how many lines are not drawn."""
        found = []
        for metric, drawn, hidden in by_metric(self.lines):
            runs, name = [run for line in drawn for run in line.members], metric_name(metric)
            of = " of the network" if any(run.summary.get("network") for run in runs) else ""
            kinds = [
                ("valid", f"validation {name}{of}", name),
                ("test", f"test {name}{of}", name),
                ("loss", "training loss", "training loss"),
            ]
            if any(len({r.get("lr") for r in run.rounds}) > 1 for run in runs):
                kinds.append(("lr", "learning rate", "learning rate"))
            cards = [
                charts.curves(
                    [(line, key) for line in drawn], *names, quality=quality_of(drawn, key)
                )
                for key, *names in kinds
            ]
            found.append((name, cards, hidden))
        return found

    def differences(self) -> tuple[list[str], list[list[str]]]:
        """Return the keys in which the lines differ, and the values of each line."""
        first = [line.members[0] for line in self.lines]
        keys = differing(first)
        values = [[setting(run.settings.get(key)) for key in keys] for run in first]
        return [KEYS.get(key, key) for key in keys], values

    def speed_up(self) -> list[tuple[str, list[list[str]]]]:
        """Return for each quality what it is, and when each run first reached it, compared with the first run."""
        runs, found = self.runs, []
        for quality in qualities(runs) if comparable(runs) and len(self.lines) > 1 else []:
            extreme = "lowest" if runs[0].metric in LOWER_IS_BETTER else "highest"
            what = f"the {extreme} value that all runs reached"
            if quality == runs[0].best():
                what = "the best value of the first run"
            first, rows = runs[0].reached(quality), []
            for _, run, label in self.labels:
                at, cells = run.reached(quality), ["not reached"] * len(AXES)
                if at is not None:
                    cells = [
                        f"{at[key]:,.4g} ({first[key] / at[key]:.2f}×)"
                        if at.get(key) and first.get(key)
                        else "–"
                        for key in AXES
                    ]
                rows.append([label, *cells])
            found.append((f"{score(quality)}, {what}", rows))
        return found

    def phases(self) -> list[tuple[Line, dict[str, float]]]:
        """Return the mean seconds of each phase of an epoch of each line that has recorded them."""
        found = []
        for line in self.lines:
            last = [(run.rounds or [{}])[-1] for run in line.members]
            epochs = max(sum(record.get("epochs", 0) for record in last), 1)
            phases = [phase for run in line.members for phase in run.phases]
            found.append((line, {k: sum(phase[k] for phase in phases) / epochs for k in PHASES}))
        return [(line, mean) for line, mean in found if any(mean.values())]

    def environment(self) -> list[tuple[str, list[str]]]:
        """Return hardware, versions and commands, each value once."""
        keys = {"hardware": "Hardware", "kernel": "Aggregation", "command": "Commands"}
        found = {name: [run.summary.get(key) for run in self.runs] for key, name in keys.items()}
        found["Versions"] = [run.versions for run in self.runs]
        return [(name, [*dict.fromkeys(filter(None, own))]) for name, own in found.items()]

    def summary(self) -> str:
        """Return means and deviations as text, the best setting by validation first; empty without two runs."""
        if len(self.counted) < 2 or not comparable(self.counted):
            return ""
        keys, metric = differing(self.counted), self.counted[0].metric
        members = sorted(
            (group for _, group in groups(self.counted)),
            key=lambda group: (
                -merit(metric, statistics.fmean(run.summary["best_valid"] for run in group))
            ),
        )
        rows = [
            [*(short(key, keys) for key in keys), "seeds", *self.scores.values(), "training time"]
        ]
        for group in members:
            own = [setting(group[0].settings.get(key)) for key in keys]
            rows.append([*own, *self.means(group)])
        head = f"{len(self.counted)} runs of {len(members)} settings"
        if not keys:
            head = f"{len(self.counted)} seeds ({', '.join(str(run.seed) for run in self.counted)})"
        head += "; mean ± unbiased standard deviation over seeds, by the validation metric"
        return f"{head}\n{pd.DataFrame(rows[1:], columns=rows[0]).to_string(index=False)}"


def compare(runs: list[Run], left_out: list[str]) -> Comparison:
    """Group runs, and find those that count in means.

    Args:
        left_out: a line for each run that has nothing to show.
    """
    lines = [Line(label, members, 0) for label, members in groups(runs)]
    by_metric(lines)  # which gives them their colours
    counted, seen = list[Run](), dict[tuple, object]()
    problems = [f"left out: {line}" for line in left_out]
    for run in runs:
        key = (str(run.seed), *(str(item) for item in sorted(run.settings.items())))
        why = ""
        if run.state.kind != "finished":
            why = run.state.text
        elif any(run.summary.get(name) is None for name in run.scores):
            why = "has no metric, as it is undefined on this split"
        elif key in seen:
            why = f"has the same settings and seed as {seen[key]}"
        if why:
            problems.append(f"left out of means: {run.folder} {why}")
        else:
            seen[key] = run.folder
            counted.append(run)
    return Comparison(lines, counted, problems)


def by_metric(lines: list[Line]) -> list[tuple[str, list[Line], int]]:
    """Return the lines of each metric that are drawn, and how many are not: two metrics have no common axis."""
    found = []
    for metric in dict.fromkeys(line.members[0].metric for line in lines):
        own = [line for line in lines if line.members[0].metric == metric]
        drawn = charts.rank(own)
        found.append((metric, drawn, len(own) - len(drawn)))
    return found


def quality_of(lines: list[Line], key: str) -> float | None:
    """Return the validation metric at which lines are compared."""
    runs = [run for line in lines for run in line.members]
    if key != "valid" or len(lines) < 2 or not comparable(runs):
        return None
    return next(reversed(qualities(runs)), None)
