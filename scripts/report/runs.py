"""Reading of run directories, differences between runs, and the moment at which a run reached a quality."""

import contextlib
import fcntl
import functools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from parallel_epochs.pipeline.command.schema import keys_without_numbers
from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts.report.words import count, duration, setting

# Keys that say where things lie, not what is computed; how long a run trained is told.
NO_SETTING = keys_without_numbers() - {"train.epochs"}
# Keys that rarely are what a comparison is about: a label names them only if nothing else tells the runs apart.
SECONDARY = ("name", "train.epochs", "train.eval_every")
# Beginnings of the keys that matter most.
FIRST = ("model.name", "model.", "data.", "task.", "trainer.", "num_ranks", "parallel", "train.")
AXES = {
    "step": "steps of each rank",
    "epochs": "epochs (passes over the graph, all ranks)",
    "wall_seconds": "training time (s)",
}
# A page reads these keys of a summary, which may lack any of them.
NUMBERS = (
    *("best_epoch", "best_valid", "test", "train", "num_parameters", "data_epochs"),
    *("wall_seconds", "command_seconds", "peak_memory_bytes", "num_ranks", "seed"),
)
TEXTS = (
    *("experiment", "metric", "parallel", "lr_scaling", "kernel", "weights_sha256"),
    *("hardware", "command"),
)
RECORDS = ("versions", "baseline", "scores", "base", "network", "answer")
TAIL = 1 << 16  # bytes at the end of the log that are searched for an error


@dataclass(frozen=True)
class RunState:
    """The state of a run: its name, its kind (running, finished, stopped or failed), and a sentence about it."""

    name: str
    kind: str
    text: str


@dataclass
class Run:
    """The content of a run directory.

    Attributes:
        rounds: records of the rounds, without values that are not finite numbers.
        drawn: the first record of each other kind: partition, sampling, graphs.
        summary: the summary, empty until the run has ended.
        settings: the configuration with dotted keys, without the seed and without NO_SETTING.
        config: the whole configuration with dotted keys.
        problems: messages about files that could not be read.
    """

    folder: Path
    name: str
    rounds: list[dict]
    drawn: dict[str, dict]
    summary: dict
    settings: dict
    config: dict
    state: RunState
    problems: list[str]

    @property
    def seed(self) -> object:
        return self.summary.get("seed", self.config.get("seed"))

    @property
    def metric(self) -> str:
        drawn = [str(record["metric"]) for record in self.drawn.values() if "metric" in record]
        return self.summary.get("metric") or next(iter(drawn), "metric")

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that the metric is computed of; one stands for all where no point is held out."""
        all_in_one = self.metric in (self.best_round() or {})
        return ("valid",) if all_in_one else ("valid", "test", "train")

    @property
    def scores(self) -> dict[str, str]:
        """Return the keys of the result that hold scores, each with its split."""
        found = {"best_valid": "Validation", "test": "Test"}
        return found if len(self.splits) > 1 else {"best_valid": ""}

    @property
    def shares_cores(self) -> bool:
        """Tell whether several ranks shared the processors of a machine instead of having a GPU each."""
        on_cpu = "cpu" in self.summary.get("kernel", "") or re.match(
            r"\d+ x ", self.summary.get("hardware", "")
        )
        return self.settings["num_ranks"] > 1 and bool(on_cpu)

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
        first, found = self.rounds[0] if self.rounds else {}, []
        spent = first.get("seconds", 0.0) + first.get("evaluation_seconds", math.inf)
        before = max(first.get("wall_seconds", 0.0) - spent, 0.0)
        for record in self.rounds:
            if {"seconds", "wall_seconds"} <= record.keys():
                draw = record.get("draw_seconds", 0.0) * (1 - record.get("hidden", 0.0))
                sync, evaluated = record.get("sync_seconds", 0.0), record["wall_seconds"] - before
                found.append(
                    {
                        "train": max(record["seconds"] - draw - sync, 0.0),
                        "draw": draw,
                        "sync": sync,
                        "evaluate": max(evaluated - record["seconds"], 0.0),
                    }
                )
                before = record["wall_seconds"]
        return found

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase of the whole run."""
        names = ("train", "draw", "sync", "evaluate")
        return {name: sum(phase[name] for phase in self.phases) for name in names}

    @property
    def rates(self) -> list[float]:
        """Return the learning rates of the rounds, each once."""
        return sorted({record["lr"] for record in self.rounds if "lr" in record})

    @property
    def versions(self) -> str:
        """Return the versions of packages on one line."""
        found = self.summary.get("versions", {})
        return ", ".join(f"{name} {version}" for name, version in found.items())

    def best_round(self) -> dict | None:
        """Return the first round with the best validation metric."""
        return max(
            (record for record in self.rounds if "valid" in record),
            key=lambda record: merit(self.metric, record["valid"]),
            default=None,
        )

    def best(self) -> float | None:
        return (self.best_round() or {}).get("valid")

    def merit(self) -> float:
        """Return the best validation metric as a number where higher is better, or minus infinity."""
        best = self.best()
        return -math.inf if best is None else merit(self.metric, best)

    def reached(self, quality: float) -> dict | None:
        """Return the first round with a validation metric that is at least this good."""
        wanted = merit(self.metric, quality)
        return next(
            (e for e in self.rounds if "valid" in e and merit(self.metric, e["valid"]) >= wanted),
            None,
        )


def read_run(folder: Path) -> Run:
    """Read a run directory. Damaged files other than the configuration and the rounds are named and left out.

    Raises:
        ValueError: the folder is not a run directory, or it has no round and the run has ended.
    """
    path = folder / "config.yaml"
    if not files.is_there(path):
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml")
    # Read as plain YAML, as runs of older versions have keys that the schema no longer has.
    try:
        limits.check_yaml(text := files.read_text(path), "config.yaml")
        config = yaml.safe_load(text)
    except DamagedFile:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a configuration: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{path} is not a configuration: it holds no keys")
    config = _flat(config)
    records = read_records(folder / "metrics.jsonl")
    rounds = [
        {key: value for key, value in record.items() if _is_number(value)}
        for record in records
        if record["kind"] == "round"
    ]
    if not rounds and not _is_going_on(folder):
        error = _last_error(folder)
        raise ValueError(f"{folder} has no round to show{f': {error}' if error else ''}")
    problems = _missing_rounds(rounds)
    summary, path = {}, folder / "summary.json"
    try:
        summary = _check_summary(files.read_json(path)) if files.is_there(path) else {}
    except (ValueError, OSError) as error:
        text = str(error)
        problems.append(text if str(path) in text else f"{path} is damaged: {text}")
    drawn = {record["kind"]: record for record in reversed(records) if record["kind"] != "round"}
    state = _state_of(folder, rounds, summary, config.get("train.epochs"))
    names = [summary.get("experiment", config.get("name")), folder.resolve().name]
    name = " ".join(dict.fromkeys(str(each) for each in names if each))
    settings = _settings(config, summary)
    return Run(folder, name, rounds, drawn, summary, settings, config, state, problems)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_summary(record: dict) -> dict:
    found = {key: value for key, value in record.items() if value is not None and value == value}
    wanted = {
        **dict.fromkeys(NUMBERS, _is_number),
        **dict.fromkeys(TEXTS, lambda value: isinstance(value, str)),
        **dict.fromkeys(RECORDS, lambda value: isinstance(value, dict)),
    }
    for key, is_whole in wanted.items():
        if key in found and not is_whole(found[key]):
            raise ValueError(f"{key} is {found[key]!r:.80}")
    return found


def _missing_rounds(rounds: list[dict]) -> list[str]:
    numbers = sorted({int(r["round"]) for r in rounds if "round" in r})
    if not numbers or numbers[-1] + 1 == len(numbers):
        return []
    first = next(i for i, number in enumerate(numbers) if number != i)
    return [
        f"metrics.jsonl lacks {numbers[-1] + 1 - len(numbers):,} of {numbers[-1] + 1:,} rounds; the first one is "
        f"round {first + 1:,}"
    ]


def _state_of(folder: Path, rounds: list[dict], summary: dict, num_epochs: object) -> RunState:
    """Find the state of a run from its directory."""
    last = rounds[-1] if rounds else {}
    done, total = last.get("epochs"), num_epochs if isinstance(num_epochs, int) else 0
    progress = count(len(rounds), "round")
    if done is not None and total:
        progress = f"{done:,} of {total:,} epochs"
    if _is_going_on(folder):
        left = ""
        if last.get("wall_seconds") and done and total:
            left = f", about {duration((total / done - 1) * last['wall_seconds'])} left"
        return RunState("running", "running", f"still running: {progress} so far{left}")
    # A run that was resumed and has not ended again still has its old summary.
    if summary and summary.get("data_epochs") in (None, done):
        early = "early, " if done is not None and done < total else ""
        return RunState("finished", "finished", f"finished {early}after {progress}")
    if error := _last_error(folder):
        diverged = re.search(r"(loss|gradient norm) is -?(nan|inf)", error)
        how = "diverged" if diverged else "ended by an error"
        return RunState(how.split()[-1], "failed", f"{how} after {progress}: {error}")
    return RunState("stopped", "stopped", f"stopped after {progress}")


def _is_going_on(folder: Path) -> bool:
    """Tell whether a process holds the lock of the directory or, for a component, of its parent."""
    is_part = folder.name.startswith("component_")
    for path in (folder, folder.parent) if is_part else (folder,):
        with contextlib.suppress(OSError):
            fd = os.open(path / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # waits for no pipe
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
    return False


def _last_error(folder: Path) -> str | None:
    """Return the error in the log that ended the run after its last start, or None."""
    logs = [path for path in folder.glob("*.log") if path.is_file()]
    if not logs:
        return None
    log, error = max(logs, key=lambda path: path.stat().st_mtime), None
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        for line in file.read().decode(errors="replace").splitlines():
            if match := re.match(r"\S+ \S+ (INFO|ERROR) (.*)", line):
                level, message = match.groups()
                if level == "ERROR":
                    error = message.removeprefix("error: ")
                elif re.match(r"epoch +\d|partition: ", message):
                    error = None  # the run went on after an older error
    return error


def find_runs(folders: list[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these directories: run directories, directories of Hydra's multirun, or of runs by component.

    Returns:
        The runs, and a line for each run that has nothing to show.

    Raises:
        ValueError: a directory holds no run, or no run has anything to show.
    """
    runs, left_out = [], []
    for folder in folders:
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


def _members(folder: Path) -> list[Path]:
    found = [
        path
        for path in (folder.iterdir() if folder.is_dir() else [])
        if path.is_dir() and (path.name.isdecimal() or (path / "config.yaml").is_file())
    ]
    return sorted(found, key=lambda path: (not path.name.isdecimal(), path.name.zfill(9)))


def _flat(value: dict, prefix: str = "") -> dict:
    items = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        items |= _flat(item, f"{name}.") if isinstance(item, dict) else {name: item}
    return items


def _settings(config: dict, summary: dict) -> dict:
    """Return all settings in which runs may differ, except for the seed; those of ranks are what the run has found."""
    num_ranks = summary.get("num_ranks", config.get("parallel.num_ranks", 1))
    mode = summary.get("parallel", config.get("parallel.name", "epochs"))
    scaling = summary.get("lr_scaling", config.get("parallel.lr_scaling", "none"))
    others = {
        key: value
        for key, value in config.items()
        if key != "seed" and key not in NO_SETTING and not key.startswith("parallel.")
    }
    num_ranks = num_ranks if isinstance(num_ranks, int) else 1
    mode = "split" if mode == "split" and num_ranks > 1 else "epochs"
    return {"num_ranks": num_ranks, "parallel": mode, "lr_scaling": scaling, **others}


def differing(runs: list[Run]) -> list[str]:
    """List the settings, except for the seed, in which the runs differ: what matters most first."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    found = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    return sorted(found, key=lambda key: [not key.startswith(first) for first in FIRST])


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
    chosen = [] if len(primary) > 5 else [primary, keys]
    attempts = [[_label(run, some) for run in first] for some in chosen]
    labels = next((each for each in attempts if len(set(each)) == len(each)), _names(first))
    grouped = []
    for label, members in zip(labels, found.values()):
        if len({run.seed for run in members}) == len(members) and (label or len(members) > 1):
            grouped.append((label, members))
        else:
            named = zip(_names(members), members)
            grouped += [(", ".join(filter(None, [label, name])), [run]) for name, run in named]
    return grouped


def _names(runs: list[Run]) -> list[str]:
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _label(run: Run, keys: list[str]) -> str:
    known = {"epochs": "parallel epochs", "none": "unscaled"}
    parts = []
    for key in keys:
        value = run.settings.get(key)
        if key == "num_ranks":
            parts.append(count(value, "rank"))
        elif key not in ("parallel", "lr_scaling"):
            parts.append(f"{short(key, keys)} {setting(value)}")
        elif run.settings["num_ranks"] > 1:  # with one rank, they have no effect
            parts.append(known.get(str(value), str(value)))
    return ", ".join(parts)


def short(key: str, keys: list[str]) -> str:
    """Shorten a key for a heading: leave out its group if it is unique without it."""
    group, _, last = key.rpartition(".")
    if last == "name" and group:
        return group
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def comparable(runs: list[Run]) -> bool:
    """Tell whether the runs have the same data and metric, so that their metrics can be compared."""
    sources = [
        {**{k: v for k, v in run.settings.items() if k.startswith("data.")}, "metric": run.metric}
        for run in runs
    ]
    return all(source == sources[0] for source in sources)


def qualities(runs: list[Run]) -> list[float]:
    """List the validation metrics at which to compare: the best of the first run, then the best that all reached."""
    best = [run for run in runs if run.best() is not None]
    if len(best) < 2 or runs[0].best() is None:
        return []
    return list(dict.fromkeys([best[0].best(), min(best, key=Run.merit).best()]))
