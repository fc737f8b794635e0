"""Reading of run directories, differences between runs, and the moment at which a run reached a quality."""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from parallel_epochs.pipeline.command.schema import keys_without_numbers
from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts.report.label_scores import read_scores
from parallel_epochs.scripts.report.layout import NAME, Layout, read_layout
from parallel_epochs.scripts.report.states import RunState, is_going_on, last_error, state_of
from parallel_epochs.scripts.report.table import read_table
from parallel_epochs.scripts.report.why_section import read_why
from parallel_epochs.scripts.report.words import setting

# Keys that say where things lie, not what is computed; how long a run trained is told.
NO_SETTING = keys_without_numbers() - {"train.epochs"}
# Keys that rarely are what a comparison is about: a label names them only if nothing else tells the runs apart.
SECONDARY = ("name", "train.epochs", "train.eval_every")
# Groups of keys, those that matter most first. Keys of no group come last.
ORDER = (
    "model",
    "data",
    "task",
    "features",
    "trainer",
    "num_ranks",
    "parallel",
    "lr_scaling",
    "train.lr",
    "train.optimizer",
    "train",
    "loader",
    "partition",
    "evaluation",
    "kernel",
)
# The parallel settings, which are read from the summary. Older runs do not have them.
RANKS, MODE, SCALING = "num_ranks", "parallel", "lr_scaling"
AXES = {
    "step": "steps of each rank",
    "epochs": "epochs (passes over the graph, all ranks)",
    "wall_seconds": "wall time (s)",
}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_fan_outs(value: object) -> bool:
    return _are_numbers(value) or isinstance(value, dict) and all(map(_are_numbers, value.values()))


def _are_components(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and all(map(_is_number, item.values())) and "num_nodes" in item
        for item in value
    )


# The fields that a page reads from each record, by type. Fields of a summary may be missing.
CONTENT: dict[str, dict[Callable[[object], bool], tuple[str, ...]]] = {
    "summary.json": {
        _is_number: (
            "best_epoch",
            "best_valid",
            "test",
            "train",
            "num_parameters",
            "data_epochs",
            "wall_seconds",
            "peak_memory_bytes",
            "num_ranks",
            "seed",
        ),
        _is_text: (
            "experiment",
            "metric",
            "parallel",
            "lr_scaling",
            "kernel",
            "weights_sha256",
            "hardware",
            "command",
        ),
        lambda value: isinstance(value, dict): (
            "versions",
            "smoothed",
            "baseline",
            "scores",
            "base",
            "network",
            "answer",
        ),
    },
    "components.json": {
        _is_number: ("num_components", "num_single_nodes"),
        _are_components: ("largest",),
    },
    "metrics.jsonl": {
        _is_number: ("round", "num_edges", "cut", "imbalance", "seconds"),
        _is_text: ("name", "metric"),
        _are_numbers: ("sizes", "kept_edges"),
    },
    "sampling": {
        _is_number: ("num_batches", "num_seeds", "mean_nodes", "mean_edges", "seconds"),
        _is_text: ("name", "metric"),
        _are_fan_outs: ("num_neighbors",),
    },
    "graphs": {
        _is_number: (
            "num_graphs",
            "num_batches",
            "least_graphs",
            "most_graphs",
            "least_nodes",
            "most_nodes",
            "seconds",
        ),
        _is_text: ("pack", "metric"),
    },
}


@dataclass
class Run:
    """The content of a run directory.

    Attributes:
        rounds: records of the rounds, without values that are not finite numbers.
        partition: record of the first partition.
        sampling: record of the first batches of sampled neighbours.
        graphs: record of the first batches of whole graphs.
        summary: the summary, empty until the run has ended.
        settings: the configuration with dotted keys, without the seed and without NO_SETTING.
        config: the whole configuration with dotted keys.
        problems: messages about files that could not be read.
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
    state: RunState
    problems: list[str]

    @property
    def metric(self) -> str:
        drawn = self.partition or self.sampling or self.graphs or {}
        return self.summary.get("metric") or drawn.get("metric", "metric")

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that the metric is computed of; one stands for all where no point is held out."""
        return (
            ("valid",) if self.metric in (self.best_round() or {}) else ("valid", "test", "train")
        )

    @property
    def score_keys(self) -> dict[str, str]:
        """Return the keys of the result that hold scores, each with its split; one without a split if there are none."""
        return (
            {"best_valid": "Validation", "test": "Test"}
            if len(self.splits) > 1
            else {"best_valid": ""}
        )

    @property
    def source(self) -> dict:
        """Return the keys of the data, and the metric."""
        return {key: value for key, value in self.settings.items() if key.startswith("data.")} | {
            "metric": self.metric
        }

    @property
    def shares_cores(self) -> bool:
        """Tell whether several ranks shared the processors of a machine instead of having a GPU each."""
        on_cpu = "cpu" in self.summary.get("kernel", "") or re.match(
            r"\d+ x ", self.summary.get("hardware") or ""
        )
        return self.settings[RANKS] > 1 and bool(on_cpu)

    @property
    def result(self) -> dict:
        """Return the result of the run so far: the summary, completed from the rounds."""
        best, last = self.best_round() or {}, self.rounds[-1] if self.rounds else {}
        so_far = {
            "best_valid": best.get("valid"),
            "test": best.get("test"),
            "train": best.get("train"),
            "best_epoch": best.get("epochs"),
            "data_epochs": last.get("epochs"),
            "wall_seconds": last.get("wall_seconds"),
        }
        return so_far | self.summary if self.state.kind == "finished" else self.summary | so_far

    @functools.cached_property
    def phases(self) -> list[dict[str, float]]:
        """Return the seconds of each phase, a dict for each round that has recorded them; those of the set-up of none."""
        first = self.rounds[0] if self.rounds else {}
        found, before = (
            [],
            max(
                first.get("wall_seconds", 0.0)
                - first.get("seconds", 0.0)
                - first.get("evaluation_seconds", math.inf),
                0.0,
            ),
        )
        for record in self.rounds:
            if {"seconds", "wall_seconds"} <= record.keys():
                draw = record.get("draw_seconds", 0.0) * (1 - record.get("hidden", 0.0))
                sync = record.get("sync_seconds", 0.0)
                found.append(
                    {
                        "train": max(record["seconds"] - draw - sync, 0.0),
                        "draw": draw,
                        "sync": sync,
                        "evaluate": max(record["wall_seconds"] - before - record["seconds"], 0.0),
                    }
                )
                before = record["wall_seconds"]
        return found

    @property
    def makes_layout(self) -> bool:
        """Tell whether the run writes a layout when it ends."""
        return self.config.get("trainer.name", self.config.get("trainer")) == "layout"

    @functools.cached_property
    def layout(self) -> tuple[Layout | None, str]:
        """Return the layout, if there is one, and a message if it cannot be read. Pages about sweeps do not read it."""
        try:
            if (
                files.is_there(self.folder / NAME)
                or self.makes_layout
                and self.state.kind == "finished"
            ):
                return read_layout(self.folder), ""
        except (ValueError, OSError) as error:
            return None, str(error)
        return None, ""

    @functools.cached_property
    def scores(self) -> tuple[dict | None, str]:
        """Return the scores of each class or task, if the run left them, and a message if they cannot be read."""
        try:
            return read_scores(self.folder), ""
        except (ValueError, OSError) as error:
            return None, str(error)

    @functools.cached_property
    def why(self) -> tuple[dict[str, list[dict]], str]:
        """Return the explanations of some predictions, if there are any, and a message if they cannot be read."""
        try:
            return read_why(self.folder), ""
        except (ValueError, OSError) as error:
            return {}, str(error)

    def best(self) -> float | None:
        """Return the best validation metric."""
        return (self.best_round() or {}).get("valid")

    def best_round(self) -> dict | None:
        """Return the first round with the best validation metric."""
        return max(
            (e for e in self.rounds if "valid" in e),
            key=lambda e: merit(self.metric, e["valid"]),
            default=None,
        )

    def merit(self) -> float:
        """Return the best validation metric as a number where higher is better, or minus infinity."""
        best = self.best()
        return -math.inf if best is None else merit(self.metric, best)

    def reached(self, quality: float) -> dict | None:
        """Return the first round with a validation metric that is at least this good."""
        return next(
            (
                e
                for e in self.rounds
                if "valid" in e and merit(self.metric, e["valid"]) >= merit(self.metric, quality)
            ),
            None,
        )


def read_run(folder: Path) -> Run:
    """Read a run directory. Damaged files other than the configuration and the rounds are named and left out.

    Raises:
        ValueError: the folder is not a run directory, or it has no round and the run has ended.
    """
    if not files.is_there(folder / "config.yaml"):
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
    # Read as plain YAML, as runs of older versions have keys that the schema no longer has.
    try:
        limits.check_yaml(text := files.read_text(folder / "config.yaml"), "config.yaml")
        config = yaml.safe_load(text)
    except DamagedFile:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder / 'config.yaml'} is not a configuration: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{folder / 'config.yaml'} is not a configuration: it holds no keys")
    config = _flat(config)
    records = read_records(folder / "metrics.jsonl")
    rounds = [
        {key: value for key, value in r.items() if _is_number(value)}
        for r in records
        if r["kind"] == "round"
    ]
    if not rounds and not is_going_on(folder):
        error = last_error(folder)
        raise ValueError(f"{folder} has no round to show{f': {error}' if error else ''}")
    problems = _missing_rounds(rounds)
    partition, sampling, graphs = (
        _whole(
            problems,
            folder / "metrics.jsonl",
            lambda _, kind=kind: next((r for r in records if r["kind"] == kind), None),
            "" if kind == "partition" else kind,
        )
        for kind in ("partition", "sampling", "graphs")
    )
    summary = _whole(problems, folder / "summary.json", _read_json) or {}
    components = _whole(problems, folder / "components.json", _read_json)
    name = " ".join(
        dict.fromkeys(
            filter(None, [summary.get("experiment", config.get("name")), folder.resolve().name])
        )
    )
    return Run(
        folder,
        name,
        rounds,
        partition,
        sampling,
        graphs,
        components,
        summary,
        _settings(config, summary),
        config,
        summary.get("seed", config.get("seed")),
        state_of(folder, rounds, summary, config.get("train.epochs")),
        problems,
    )


def _whole(
    problems: list[str], path: Path, read: Callable[[Path], dict | None], content: str = ""
) -> dict | None:
    """Read a record. If it is damaged, add that to the problems and return None."""
    try:
        record = read(path)
        if path.name == "summary.json" and record is not None:
            record = {
                key: value for key, value in record.items() if value is not None and value == value
            }  # not NaN
        for is_whole, keys in CONTENT[content or path.name].items() if record is not None else ():
            for key in keys:
                if not is_whole(record.get(key)) and (key in record or path.name != "summary.json"):
                    raise ValueError(f"{key} is {record.get(key)!r:.80}")
    except (ValueError, AttributeError, OSError) as error:
        text = str(error)
        problems.append(text if str(path) in text else f"{path} is damaged: {text}")
        return None
    return record


def _missing_rounds(rounds: list[dict]) -> list[str]:
    numbers = sorted({int(r["round"]) for r in rounds if "round" in r})
    if not numbers or numbers[-1] + 1 == len(numbers):
        return []
    first = next(i for i, number in enumerate(numbers) if number != i)
    return [
        f"metrics.jsonl lacks {numbers[-1] + 1 - len(numbers):,} of {numbers[-1] + 1:,} rounds; the first one is "
        f"round {first + 1:,}"
    ]


def find_runs(folders: list[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these directories: run directories, directories of Hydra's multirun, or of runs by component. A .csv
    file is a table of runs.

    Returns:
        The runs, and a line for each run that has nothing to show.

    Raises:
        ValueError: a directory holds no run, or no run has anything to show.
    """
    runs, left_out = [], []
    for folder in folders:
        if folder.suffix == ".csv" and folder.is_file():
            runs += _of_table(folder)
            continue
        is_run = files.is_there(folder / "config.yaml")
        members = [] if is_run else _members(folder)
        if not members and not is_run:
            raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
        for member in members or [folder]:
            # A run that failed early must not hide the others.
            try:
                runs += [read_run(path) for path in sorted(member.glob("component_*")) or [member]]
            except (ValueError, OSError) as error:
                left_out.append(str(error))
    if not runs:
        raise ValueError(
            "nothing to show: " + "; ".join(left_out) if len(left_out) > 1 else left_out[0]
        )
    return runs, left_out


def _of_table(path: Path) -> list[Run]:
    """The runs of a table, as if they had finished in directories beside it."""
    runs = []
    for name, (rounds, settings) in read_table(path).items():
        named = CONTENT["summary.json"]
        summary = {key: settings[key] for keys in named.values() for key in keys if key in settings}
        config = {key: value for key, value in settings.items() if key not in summary}
        folder = path.parent / name
        run = Run(
            folder,
            " ".join(filter(None, [summary.get("experiment"), name])),
            rounds,
            None,
            None,
            None,
            None,
            summary,
            _settings(config, summary),
            config,
            summary["seed"],
            state_of(folder, rounds, summary, None),
            [],
        )
        summary |= {key: value for key, value in run.result.items() if value is not None}
        runs.append(run)
    return runs


def _members(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [
        path
        for path in folder.iterdir()
        if path.is_dir() and (path.name.isdecimal() or (path / "config.yaml").is_file())
    ]
    return sorted(
        found,
        key=lambda path: (
            not path.name.isdecimal(),
            int(path.name) if path.name.isdecimal() else 0,
            path.name,
        ),
    )


def _read_json(path: Path) -> dict | None:
    return files.read_json(path) if files.is_there(path) else None


def _flat(value: dict, prefix: str = "") -> dict:
    items = {}
    for key, item in value.items():
        items |= (
            _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
        )
    return items


def _settings(config: dict, summary: dict) -> dict:
    """Return all settings in which runs may differ, except for the seed."""
    num_ranks = summary.get("num_ranks", config.get("parallel.num_ranks", 1))
    mode = (
        "split"
        if "split" in (summary.get("parallel"), config.get("parallel.name")) and num_ranks > 1
        else "epochs"
    )
    scaling = summary.get("lr_scaling", config.get("parallel.lr_scaling", "none"))
    others = {
        key: value
        for key, value in config.items()
        if key != "seed" and key not in NO_SETTING and not key.startswith("parallel.")
    }
    return {RANKS: num_ranks, MODE: mode, SCALING: scaling, **others}


def differing(runs: list[Run]) -> list[str]:
    """List the settings, except for the seed, in which the runs differ: what matters most first.

    Within a group, the choice of a component comes before its keys, and keys of all runs before keys of some.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    found = [
        key
        for key in keys
        if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)
    ]

    def place(key: str) -> tuple[int, bool, bool]:
        group = next(
            (i for i, first in enumerate(ORDER) if f"{key}.".startswith(f"{first}.")), len(ORDER)
        )
        is_choice = key.rpartition(".")[2] in ("name", "source")
        return group, not is_choice, not all(key in run.settings for run in runs)

    return sorted(found, key=place)


def groups(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Group the runs that differ only in their seeds, each group with a label that distinguishes it.

    Runs with the same settings and the same seed, for example of two versions of the code, are separate groups.
    """
    keys = differing(runs)
    found: dict[tuple, list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(str(run.settings.get(key)) for key in keys), []).append(run)
    first = [members[0] for members in found.values()]
    primary = [key for key in keys if key not in SECONDARY]
    # Runs on different graphs differ in a dozen keys; the names of their directories are better labels.
    attempts = (
        []
        if len(primary) > 5
        else [
            [_label(run, primary) for run in first],
            [_label(run, keys, full=True) for run in first],
        ]
    )
    labels = next((labels for labels in attempts if len(set(labels)) == len(labels)), _names(first))
    found_groups = []
    for label, members in zip(labels, found.values()):
        if len({run.seed for run in members}) == len(members) and (label or len(members) > 1):
            found_groups.append((label, members))
        else:
            found_groups += [
                (", ".join(filter(None, [label, name])), [run])
                for name, run in zip(_names(members), members)
            ]
    return found_groups


def _names(runs: list[Run]) -> list[str]:
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _label(run: Run, keys: list[str], *, full: bool = False) -> str:
    parts = []
    # With one rank, mode and scaling have no effect, whatever the configuration says.
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
    """Shorten a key for a heading: leave out its group if it is unique without it."""
    group, _, last = key.rpartition(".")
    if last == "name" and group:
        return group
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def scores_of(runs: list[Run]) -> dict[str, str]:
    """Return the scores that any of some runs has; see :attr:`Run.score_keys`."""
    return max((run.score_keys for run in runs), key=len)


def comparable(runs: list[Run]) -> bool:
    """Tell whether the runs have the same data and metric, so that their metrics can be compared."""
    return all(run.source == runs[0].source for run in runs)


def qualities(runs: list[Run]) -> list[float]:
    """List the validation metrics at which to compare: the best of the first run, then the best that all reached."""
    best = [run for run in runs if run.best() is not None]
    if len(best) < 2 or runs[0].best() is None:
        return []
    return list(dict.fromkeys([best[0].best(), min(best, key=Run.merit).best()]))
