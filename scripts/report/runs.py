"""Run directories: what they hold, what differs between them, and when each reached a quality."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.config import keys_without_effect
from pipeline.run.log import read_records

# Keys that say where things lie, not what is computed; how long a run trained is told.
NO_SETTING = keys_without_effect() - {"train.epochs"}
# Keys that rarely are what a comparison is about: a label names them only if nothing else tells the runs apart.
SECONDARY = ("name", "train.epochs", "train.eval_every")
# The parallel settings, which the summary knows best; runs of before have none of them.
RANKS, MODE, SCALING = "num_ranks", "parallel", "lr_scaling"
AXES = {"step": "steps of each rank", "epochs": "epochs (passes over the graph, all ranks)",
        "wall_seconds": "wall time [s]"}


@dataclass
class Run:
    """What a run directory tells; a run that has not ended yet has no summary."""

    folder: Path
    name: str
    rounds: list[dict]
    partition: dict | None
    components: dict | None
    summary: dict
    settings: dict  # the configuration with dotted keys, without the seed and without NO_SETTING
    seed: int | None

    @property
    def metric(self) -> str:
        return self.summary.get("metric") or (self.partition or {}).get("metric", "metric")

    @property
    def source(self) -> dict:
        """What the run was trained on."""
        return {key: value for key, value in self.settings.items() if key.startswith("data.")} | {"metric": self.metric}

    @property
    def shares_cores(self) -> bool:
        """Whether several ranks ran on processors, which they share, rather than on a GPU each."""
        on_cpu = "cpu" in self.summary.get("kernel", "") or re.match(r"\d+ x ", self.summary.get("hardware") or "")
        return self.settings[RANKS] > 1 and bool(on_cpu)

    def best(self) -> float | None:
        """The best validation metric."""
        return max((e["valid"] for e in self.rounds if e.get("valid") is not None), default=None)

    def reached(self, quality: float) -> dict | None:
        """The first evaluated round whose validation metric is at least this."""
        return next((e for e in self.rounds if e.get("valid") is not None and e["valid"] >= quality), None)


def read_run(folder: Path) -> Run:
    """Read a run directory.

    Raises:
        ValueError: it is not one, or it has no round yet.
    """
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
    records = read_records(folder / "metrics.jsonl")
    rounds = [r for r in records if r["kind"] == "round"]
    if not rounds:
        raise ValueError(f"{folder} has no round to show")
    partitions = [r for r in records if r["kind"] == "partition"]
    summary = _read_json(folder / "summary.json") or {}
    name = " ".join(filter(None, [summary.get("experiment"), folder.resolve().name]))
    # Read as plain YAML: a run of an older version, whose keys are no longer those of the schema, has curves as well.
    try:
        config = _flat(yaml.safe_load((folder / "config.yaml").read_text()) or {})
    except yaml.YAMLError as error:
        raise ValueError(f"{folder / 'config.yaml'} is not a configuration: {' '.join(str(error).split())}") from None
    return Run(folder, name, rounds, partitions[-1] if partitions else None, _read_json(folder / "components.json"),
               summary, _settings(config, summary), summary.get("seed", config.get("seed")))


def find_runs(folders: list[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these directories: run directories, directories of Hydra's multirun, or of runs by component.

    Returns:
        The runs, and a line for each member of a multirun that has nothing to show.

    Raises:
        ValueError: a directory is no run and holds none.
    """
    runs, left_out = [], []
    for folder in folders:
        if (folder / "config.yaml").is_file() or not (members := _members(folder)):
            runs += _with_components(folder)
            continue
        for member in members:
            # One member that failed early must not hide the others.
            try:
                runs += _with_components(member)
            except ValueError as error:
                left_out.append(str(error))
    if not runs:
        raise ValueError("nothing to show: " + "; ".join(left_out))
    return runs, left_out


def _members(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir()
             if path.is_dir() and (path.name.isdecimal() or (path / "config.yaml").is_file())]
    return sorted(found, key=lambda path: (
        not path.name.isdecimal(), int(path.name) if path.name.isdecimal() else 0, path.name))


def _with_components(folder: Path) -> list[Run]:
    return [read_run(path) for path in sorted(folder.glob("component_*")) or [folder]]


def _read_json(path: Path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() else None


def _flat(value: dict, prefix: str = "") -> dict:
    items = {}
    for key, item in value.items():
        items |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return items


def _settings(config: dict, summary: dict) -> dict:
    """Everything but the seed that may make runs differ."""
    num_ranks = summary.get("num_ranks", config.get("parallel.num_ranks", 1))
    mode = "split" if "split" in (summary.get("parallel"), config.get("parallel.name")) and num_ranks > 1 else "epochs"
    scaling = summary.get("lr_scaling", config.get("parallel.lr_scaling", "none"))
    others = {key: value for key, value in config.items()
              if key != "seed" and key not in NO_SETTING and not key.startswith("parallel.")}
    return {RANKS: num_ranks, MODE: mode, SCALING: scaling, **others}


def differing(runs: list[Run]) -> list[str]:
    """The settings other than the seed in which the runs differ."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)]


def groups(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs that are alike except for their seeds, each group with a label that tells it from the others.

    Runs with even the same seed (of two versions of the code, say) are groups of their own.
    """
    keys = differing(runs)
    found: dict[tuple, list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(str(run.settings.get(key)) for key in keys), []).append(run)
    first = [members[0] for members in found.values()]
    primary = [key for key in keys if key not in SECONDARY]
    # One graph against another differs in a dozen keys; there the directory says it better.
    attempts = [] if len(primary) > 5 else [[_label(run, primary) for run in first],
                                            [_label(run, keys, full=True) for run in first]]
    labels = next((labels for labels in attempts if len(set(labels)) == len(labels)), _names(first))
    found_groups = []
    for label, members in zip(labels, found.values()):
        if len({run.seed for run in members}) == len(members) and (label or len(members) > 1):
            found_groups.append((label, members))
        else:
            found_groups += [(", ".join(filter(None, [label, name])), [run])
                             for name, run in zip(_names(members), members)]
    return found_groups


def _names(runs: list[Run]) -> list[str]:
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _label(run: Run, keys: list[str], *, full: bool = False) -> str:
    parts = []
    # With one rank nothing is shared out or scaled, whatever the configuration says.
    several = full or run.settings[RANKS] > 1
    for key in keys:
        value = run.settings.get(key)
        if key == RANKS:
            parts.append(f"{value} rank{'s' * (value != 1)}")
        elif key == MODE:
            parts += [{"epochs": "parallel epochs"}.get(value, value)] if several else []
        elif key == SCALING:
            parts += [{"none": "unscaled"}.get(value, value)] if several else []
        else:
            parts.append(f"{short(key, keys)} {shown(value)}")
    return ", ".join(parts)


def shown(value: object) -> str:
    """A setting's value, in tables and labels."""
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def short(key: str, keys: list[str]) -> str:
    """A setting as a heading among others: without its group, where that is enough."""
    group, _, last = key.rpartition(".")
    if last == "name" and group:
        return group
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def comparable(runs: list[Run]) -> bool:
    """Whether the runs are of the same data and metric, so that their metrics can be held against each other."""
    return all(run.source == runs[0].source for run in runs)


def qualities(runs: list[Run]) -> list[float]:
    """The validation metrics at which to compare: the best of the first run and, if not all reached it, what all
    did.
    """
    best = [run.best() for run in runs if run.best() is not None]
    if len(best) < 2 or runs[0].best() is None:
        return []
    return list(dict.fromkeys([best[0], min(best)]))
