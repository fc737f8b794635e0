"""Run directories: what they hold, what differs between them, and when each reached a quality."""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.effects import keys_without_effect
from pipeline.names import merit
from pipeline.run import files
from pipeline.run.log import read_records
from scripts.report.layout import NAME, Layout, read_layout
from scripts.report.states import State, is_going_on, last_error, state_of
from scripts.report.words import setting

# Keys that say where things lie, not what is computed; how long a run trained is told.
NO_SETTING = keys_without_effect() - {"train.epochs"}
# Keys that rarely are what a comparison is about: a label names them only if nothing else tells the runs apart.
SECONDARY = ("name", "train.epochs", "train.eval_every")
# The parallel settings, which the summary knows best; runs of before have none of them.
RANKS, MODE, SCALING = "num_ranks", "parallel", "lr_scaling"
AXES = {"step": "steps of each rank", "epochs": "epochs (passes over the graph, all ranks)",
        "wall_seconds": "wall time (s)"}
def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_components(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and all(map(_is_number, item.values()))
                                           and "num_nodes" in item for item in value)


# What the pages count with or show of each record; of a summary any may be missing.
CONTENT: dict[str, dict[Callable[[object], bool], tuple[str, ...]]] = {
    "summary.json": {_is_number: ("best_epoch", "best_valid", "test", "train", "num_parameters", "data_epochs",
                                  "wall_seconds", "peak_memory_bytes", "num_ranks", "seed"),
                     _is_text: ("experiment", "metric", "parallel", "lr_scaling", "kernel", "weights_sha256",
                                "hardware", "command"),
                     lambda value: isinstance(value, dict): ("versions",)},
    "components.json": {_is_number: ("num_components", "num_single_nodes"), _are_components: ("largest",)},
    "metrics.jsonl": {_is_number: ("round", "num_edges", "cut", "imbalance", "seconds"), _is_text: ("name", "metric"),
                      _are_numbers: ("sizes", "kept_edges")},
    "sampling": {_is_number: ("num_batches", "num_seeds", "mean_nodes", "mean_edges", "seconds"),
                 _is_text: ("name", "metric"), _are_numbers: ("num_neighbors",)},
    "graphs": {_is_number: ("num_graphs", "num_batches", "least_graphs", "most_graphs", "least_nodes", "most_nodes",
                            "seconds"), _is_text: ("pack", "metric")},
}


@dataclass
class Run:
    """What a run directory tells.

    Attributes:
        rounds: the records of the rounds; of each, the values that are finite numbers.
        partition: the first partition that the run trained on.
        sampling: what the first batches of sampled neighbours held.
        graphs: what the first batches of whole graphs held.
        summary: empty while the run has not ended.
        settings: the configuration with dotted keys, without the seed and without NO_SETTING.
        config: the whole configuration, with dotted keys.
        problems: what could not be read.
    """

    folder: Path
    name: str
    rounds: list[dict]
    partition: dict | None
    sampling: dict | None
    graphs: dict | None
    components: dict | None
    summary: dict
    settings: dict
    config: dict
    seed: int | None
    state: State
    problems: list[str]

    @property
    def metric(self) -> str:
        drawn = self.partition or self.sampling or self.graphs or {}
        return self.summary.get("metric") or drawn.get("metric", "metric")

    @property
    def source(self) -> dict:
        """What the run was trained on."""
        return {key: value for key, value in self.settings.items() if key.startswith("data.")} | {"metric": self.metric}

    @property
    def shares_cores(self) -> bool:
        """Whether several ranks ran on processors, which they share, rather than on a GPU each."""
        on_cpu = "cpu" in self.summary.get("kernel", "") or re.match(r"\d+ x ", self.summary.get("hardware") or "")
        return self.settings[RANKS] > 1 and bool(on_cpu)

    @property
    def result(self) -> dict:
        """What the run came to, or has come to so far: the summary, and the rounds for what it does not say."""
        best, last = self.best_round() or {}, self.rounds[-1] if self.rounds else {}
        so_far = {"best_valid": best.get("valid"), "test": best.get("test"), "train": best.get("train"),
                  "best_epoch": best.get("epochs"), "data_epochs": last.get("epochs"),
                  "wall_seconds": last.get("wall_seconds")}
        return so_far | self.summary if self.state.kind == "finished" else self.summary | so_far

    @functools.cached_property
    def phases(self) -> list[dict[str, float]]:
        """The seconds of each phase, a dict for each round that says them."""
        found, before = [], 0.0
        for record in self.rounds:
            if {"seconds", "wall_seconds"} <= record.keys():
                draw = record.get("draw_seconds", 0.0) * (1 - record.get("hidden", 0.0))
                sync = record.get("sync_seconds", 0.0)
                found.append({"train": max(record["seconds"] - draw - sync, 0.0), "draw": draw, "sync": sync,
                              "evaluate": max(record["wall_seconds"] - before - record["seconds"], 0.0)})
                before = record["wall_seconds"]
        return found

    @property
    def makes_layout(self) -> bool:
        """Whether the run is to leave a layout when it ends."""
        return self.config.get("trainer.name", self.config.get("trainer")) == "layout"

    @functools.cached_property
    def layout(self) -> tuple[Layout | None, str]:
        """The layout, if the run left one, and what is wrong with it. Read when it is first asked for: the page of a
        sweep shows none.
        """
        try:
            if files.is_there(self.folder / NAME) or self.makes_layout and self.state.kind == "finished":
                return read_layout(self.folder), ""
        except (ValueError, OSError) as error:
            return None, str(error)
        return None, ""

    def best(self) -> float | None:
        """The best validation metric."""
        return (self.best_round() or {}).get("valid")

    def best_round(self) -> dict | None:
        """The first round with the best validation metric."""
        return max((e for e in self.rounds if "valid" in e), key=lambda e: merit(self.metric, e["valid"]), default=None)

    def merit(self) -> float:
        """The best validation metric as a number of which more is better; less than any if there is none."""
        best = self.best()
        return -math.inf if best is None else merit(self.metric, best)

    def reached(self, quality: float) -> dict | None:
        """The first evaluated round whose validation metric is at least as good as this."""
        return next((e for e in self.rounds
                     if "valid" in e and merit(self.metric, e["valid"]) >= merit(self.metric, quality)), None)


def read_run(folder: Path) -> Run:
    """Read a run directory. What is damaged beside the configuration and the rounds is left out and named.

    Raises:
        ValueError: it is not one, or it has no round and none is coming.
    """
    if not files.is_there(folder / "config.yaml"):
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
    # Read as plain YAML: a run of an older version, whose keys are no longer those of the schema, has curves as well.
    try:
        config = yaml.safe_load(files.read_text(folder / "config.yaml"))
    except yaml.YAMLError as error:
        raise ValueError(f"{folder / 'config.yaml'} is not a configuration: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{folder / 'config.yaml'} is not a configuration: it holds no keys")
    config = _flat(config)
    records = read_records(folder / "metrics.jsonl")
    rounds = [_finite(r) for r in records if r["kind"] == "round"]
    if not rounds and not is_going_on(folder):
        error = last_error(folder)
        raise ValueError(f"{folder} has no round to show{f': {error}' if error else ''}")
    problems = _missing_rounds(rounds)
    partition, sampling, graphs = (
        _whole(problems, folder / "metrics.jsonl", lambda _, kind=kind: next(
            (r for r in records if r["kind"] == kind), None), "" if kind == "partition" else kind)
        for kind in ("partition", "sampling", "graphs"))
    summary = _whole(problems, folder / "summary.json", _read_json) or {}
    components = _whole(problems, folder / "components.json", _read_json)
    name = " ".join(filter(None, [summary.get("experiment", config.get("name")), folder.resolve().name]))
    return Run(folder, name, rounds, partition, sampling, graphs, components, summary, _settings(config, summary),
               config, summary.get("seed", config.get("seed")),
               state_of(folder, rounds, summary, config.get("train.epochs")), problems)


def _whole(problems: list[str], path: Path, read: Callable[[Path], dict | None], content: str = "") -> dict | None:
    """Read a record; nothing if it is damaged, which is added to the problems."""
    try:
        record = read(path)
        if path.name == "summary.json" and record is not None:
            record = {key: value for key, value in record.items() if value is not None and value == value}  # not NaN
        for is_whole, keys in CONTENT[content or path.name].items() if record is not None else ():
            for key in keys:
                if not is_whole(record.get(key)) and (key in record or path.name != "summary.json"):
                    raise ValueError(f"{key} is {record.get(key)!r:.80}")
    except (ValueError, AttributeError, OSError) as error:
        text = str(error)
        problems.append(text if str(path) in text else f"{path} is damaged: {text}")
        return None
    return record


def _finite(record: dict) -> dict:
    """Leave out what is no finite number."""
    return {key: value for key, value in record.items() if _is_number(value)}


def _missing_rounds(rounds: list[dict]) -> list[str]:
    numbers = sorted({int(r["round"]) for r in rounds if "round" in r})
    if not numbers or numbers[-1] + 1 == len(numbers):
        return []
    first = next(i for i, number in enumerate(numbers) if number != i)
    return [f"metrics.jsonl lacks {numbers[-1] + 1 - len(numbers):,} of {numbers[-1] + 1:,} rounds, the first of them "
            f"round {first + 1:,}"]


def find_runs(folders: list[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these directories: run directories, directories of Hydra's multirun, or of runs by component.

    Returns:
        The runs, and a line for each of them that has nothing to show.

    Raises:
        ValueError: a directory is no run and holds none, or none has anything to show.
    """
    runs, left_out = [], []
    for folder in folders:
        is_run = files.is_there(folder / "config.yaml")
        members = [] if is_run else _members(folder)
        if not members and not is_run:
            raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
        for member in members or [folder]:
            # One that failed early must not hide the others.
            try:
                runs += _with_components(member)
            except (ValueError, OSError) as error:
                left_out.append(str(error))
    if not runs:
        raise ValueError("nothing to show: " + "; ".join(left_out) if len(left_out) > 1 else left_out[0])
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
    return files.read_json(path) if files.is_there(path) else None


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
            parts.append(f"{short(key, keys)} {setting(key, value)}")
    return ", ".join(parts)


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
    best = [run for run in runs if run.best() is not None]
    if len(best) < 2 or runs[0].best() is None:
        return []
    return list(dict.fromkeys([best[0].best(), common_quality(best)]))


def common_quality(runs: list[Run]) -> float:
    """The best validation metric that all of these runs have reached."""
    return min(runs, key=Run.merit).best()
