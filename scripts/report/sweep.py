"""Summaries of sweeps: means and deviations over seeds, a table of settings, and the text for OGB's leaderboard."""

import statistics
import textwrap

from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run.log import mean_and_std
from parallel_epochs.scripts.report.runs import Run, comparable, differing, groups, scores_of, short
from parallel_epochs.scripts.report.words import setting

OGB_SEEDS = 10
FILL_IN = "(fill in)"


def summary_of_sweep(runs: list[Run], left_out: list[str]) -> tuple[str, list[str]]:
    """Return a summary of a sweep as text, and a warning for each run that does not count.

    The summary of runs that differ only in their seeds is their mean and the text for the leaderboard. Otherwise it is
    a table with a line for each setting. It is empty if there are no two runs to average.

    Args:
        left_out: warnings about members of the sweep that could not be read.
    """
    counted, warnings = _counted(runs, left_out)
    if len(counted) < 2 or not comparable(counted):
        return "", warnings
    keys = differing(counted)
    return _table(counted, keys) if keys else "\n".join(
        [*_seeds(counted), *_leaderboard(counted)]
    ), warnings


def leaderboard(runs: list[Run], left_out: list[str]) -> str:
    """Fill in OGB's form from runs that differ only in their seeds; the text is empty for other runs."""
    counted, _ = _counted(runs, left_out)
    if (
        len(counted) < 2
        or not comparable(counted)
        or differing(counted)
        or len(scores_of(runs)) == 1
    ):
        return ""
    return "\n".join([*_seeds(counted), *_leaderboard(counted)])


def _counted(runs: list[Run], left_out: list[str]) -> tuple[list[Run], list[str]]:
    """Return the runs that count, and a warning for each of the others."""
    counted, warnings = [], [f"left out: {line}" for line in left_out]
    seen = {}
    for run in runs:
        key = (run.seed, *(str(item) for item in sorted(run.settings.items())))
        if run.state.kind != "finished":
            warnings.append(f"left out of means: {run.folder} {run.state.text}")
        elif any(run.summary.get(key) is None for key in run.score_keys):
            warnings.append(
                f"left out of means: {run.folder} has no metric, as it is undefined on this split"
            )
        elif key in seen:
            warnings.append(
                f"left out of means: {run.folder} has the same settings and seed as {seen[key]}"
            )
        else:
            seen[key] = run.folder
            counted.append(run)
    return counted, warnings


def _seeds(runs: list[Run]) -> list[str]:
    metric, seeds = runs[0].metric, sorted(run.seed for run in runs)
    lines = [
        f"{len(runs)} seeds ({', '.join(map(str, seeds))}), mean ± unbiased standard deviation of {metric}",
        *(
            f"  {split.lower() or 'all':<10}  {_score(runs, key)}"
            for key, split in scores_of(runs).items()
        ),
    ]
    if len(scores_of(runs)) == 1:
        return lines
    if len(runs) < OGB_SEEDS:
        lines.append(
            f"  The leaderboard asks for {OGB_SEEDS} seeds: {OGB_SEEDS - len(runs)} are missing."
        )
    elif seeds != list(range(OGB_SEEDS)):
        lines.append(
            f"  The leaderboard asks for {OGB_SEEDS} seeds, either not fixed or 0 to {OGB_SEEDS - 1}."
        )
    return lines


def _score(runs: list[Run], key: str) -> str:
    return mean_and_std([run.summary[key] for run in runs])


def _leaderboard(runs: list[Run]) -> list[str]:
    """Fill in the fields of OGB's form, https://ogb.stanford.edu/docs/leader_overview/, if there is a test."""
    if len(scores_of(runs)) == 1:
        return []
    settings, versions = runs[0].settings, _distinct(runs, "versions")
    name = settings.get("model.name", "")
    rows = [
        ("Dataset", _dataset(settings)),
        ("OGB version", "; ".join(v.get("ogb", "not recorded") for v in versions) or FILL_IN),
        ("Method", f"{ {'deepergcn': 'DeeperGCN'}.get(name, name) } {FILL_IN}".strip()),
        ("External data", f"{FILL_IN} yes or no; if yes, name it in the method"),
        ("Test performance", f"{_score(runs, 'test')} ({len(runs)} seeds)"),
        ("Validation performance", f"{_score(runs, 'best_valid')} ({len(runs)} seeds)"),
        ("#Params", "; ".join(f"{n:,}" for n in _distinct(runs, "num_parameters"))),
        (
            "Hardware",
            "; ".join(_distinct(runs, "hardware")) or f"{FILL_IN} not recorded in these runs",
        ),
        (
            "Versions",
            "; ".join(", ".join(f"{key} {value}" for key, value in v.items()) for v in versions),
        ),
        *(("Command", command) for command in _distinct(runs, "command")),
        ("Code, paper, contact", FILL_IN),
    ]
    width = max(len(key) for key, _ in rows)
    lines = ["", "For the form of https://ogb.stanford.edu/docs/leader_overview/"]
    for key, value in rows:
        # Commands stay on one line, so that they can be copied.
        parts = [value] if key == "Command" else textwrap.wrap(value, 100) or [""]
        lines += [f"  {key if i == 0 else '':<{width}}  {part}" for i, part in enumerate(parts)]
    return lines


def _dataset(settings: dict) -> str:
    name = settings.get("data.name")
    if settings.get("data.source") != "ogb":
        return f"none of OGB's: data={settings.get('data.source')}"
    return (
        f"none of OGB's, unless data.folder={settings['data.folder']} holds {name}"
        if settings.get("data.folder")
        else name
    )


def _distinct(runs: list[Run], key: str) -> list:
    values = []
    for run in runs:
        if (value := run.summary.get(key)) is not None and value not in values:
            values.append(value)
    return values


def _table(runs: list[Run], keys: list[str]) -> str:
    """Build a table with a line for each setting, the best mean validation metric first (not the test metric)."""
    members = sorted(
        (group for _, group in groups(runs)),
        key=lambda group: (
            -merit(group[0].metric, statistics.fmean(run.summary["best_valid"] for run in group))
        ),
    )
    scores = scores_of(runs)
    titles = [f"validation {runs[0].metric}", "test"] if len(scores) > 1 else [runs[0].metric]
    rows = [[*(short(key, keys) for key in keys), "seeds", *titles, "wall s"]]
    for group in members:
        rows.append(
            [
                *(setting(key, group[0].settings.get(key)) for key in keys),
                str(len(group)),
                *(_score(group, key) for key in scores),
                f"{statistics.fmean(run.summary.get('wall_seconds') or 0 for run in group):,.1f}",
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]
    head = f"{len(runs)} runs of {len(members)} settings, by {'validation metric' if len(scores) > 1 else titles[0]}"
    if len(members) < len(runs):
        head += "; mean ± unbiased standard deviation over seeds"
    return "\n".join([head, *(f"  {line}" for line in lines)])
