"""The part of a run's configuration that every product has. Each product adds its own keys in its config.py.

Nothing here imports torch, so that ``--help`` answers at once.
"""

import contextlib
import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.config import DATA_SCHEMAS, DataConfig, SyntheticProteinsConfig
from parallel_epochs.pipeline.keys import Rule, key
from parallel_epochs.pipeline.names import (
    check_device,
)
from parallel_epochs.pipeline.run import files, outputs

_A_OR_NOTHING = {"graph": "a "}
# Keys of `evaluate` and `predict` that name files to write.
OUTPUTS = ("predictions", "output", "export")
# Ends of the names of exported files: of a model for this package, and of programs of torch.
EXPORTS = (".pe", ".pt2")
# The name that programs carry inside.
PROGRAM_MARK = "parallel_epochs"


@dataclass
class TrainerConfig:
    """The product that is trained; a subclass adds the options of the product."""

    name: str = key("gnn", "Product that is trained: gnn, node_embedding, knowledge or layout.")


@dataclass
class TrainConfig:
    """How long a run trains, and how often it is evaluated."""

    epochs: int = key(
        200,
        "Number of passes over the graph, summed over the ranks.",
        minimum=1,
        changes_numbers=False,
    )
    lr: float = key(0.005, "Learning rate of one rank.", above=0)
    eval_every: int = key(
        1,
        "Number of epochs between two evaluations. Each evaluation saves a checkpoint.",
        minimum=1,
    )
    patience: int = key(
        20,
        "Stop after this many evaluations without a better validation metric, but not before half as many epochs "
        "again as the best evaluation had: what learns slowly rests longer. 0: never.",
        minimum=0,
    )


@dataclass
class ParallelConfig:
    """The ranks that train, and the limits of time after which the watchdog ends them."""

    name: str = key(
        "epochs",
        "epochs: each rank draws its own partition. split: the ranks share one partition. "
        "single: one process.",
        choices=("epochs", "split", "single"),
    )
    num_ranks: int = key(
        1,
        "Number of processes that train together. Each has a GPU of its own, or CPU cores.",
        minimum=1,
    )
    threads_per_rank: int = key(
        0,
        "Number of threads of each rank. 0: the number of processors divided by the number "
        "of ranks of the machine, or torch's default for a single process and under "
        "torchrun.",
        minimum=0,
        below=1024,
    )
    timeout: float = key(
        600.0,
        "Number of seconds without a heartbeat of a rank after which the watchdog ends the "
        "run. The log then shows the rank's traceback, and the exit status is 75. Phases that may "
        "take minutes have ten times as long.",
        above=0,
        changes_numbers=False,
    )
    stop_timeout: float = key(
        12.0,
        "Number of seconds that the current step may take after a signal to stop. A slower "
        "run is killed, and only its last checkpoint remains.",
        above=0,
        changes_numbers=False,
    )


@dataclass
class TrackerConfig:
    """The tracker that also gets the records of metrics.jsonl."""

    name: str = key(
        "none",
        "Tracker that gets the records of metrics.jsonl too: none, tensorboard, wandb, mlflow or "
        "custom.",
        changes_numbers=False,
    )
    path: str | None = key(
        None, "Class of tracker=custom, as package.module.Class.", changes_numbers=False
    )


@dataclass
class RunConfig:
    """The keys that every product reads.

    Attributes:
        takes: what a dataset must hold for this product: see :class:`pipeline.data.config.DataConfig`.
        members: the parts whose keys depend on one of them: its name, and the dataclass of each of its values.
        rules: keys that do not go with each other.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    # The command `explain` takes predictions of its runs.
    explains: ClassVar[bool] = False
    # The meaning of device=auto for this product: "auto", a GPU if there is one; or "cpu", where GPUs are experimental.
    auto_device: ClassVar[str] = "auto"
    members: ClassVar[dict[str, tuple[str, dict[str, type]]]] = {"data": ("source", DATA_SCHEMAS)}

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule({"parallel.name": ("single",)}, "parallel.num_ranks", (1,), "it is one process"),
    )

    name: str = key("default", "Name of the experiment.")
    seed: int = key(0, "Seed of every random number generator.", minimum=0, below=2**63)
    device: str = key(
        "auto",
        "Device: cpu, cuda, cuda:N, or auto: a GPU if there is one; of trainers but gnn, one "
        "process takes it, from a size on.",
    )
    memory: str | None = key(
        None,
        "Memory that training may use, per GPU or per machine, e.g. 12GB. Default: 80 % of "
        "what is installed.",
        changes_numbers=False,
    )
    resume: str | None = key(
        None,
        "Run directory to continue in place. auto, with hydra.run.dir=DIR: continue the run "
        "that DIR holds, or begin one there.",
        changes_numbers=False,
        is_path=True,
    )
    resume_allow_rescale: bool = key(
        False,
        "Allow that a run resumes with another number of ranks. The learning rate "
        "is then computed anew.",
        changes_numbers=False,
    )
    trust: bool = key(
        False,
        "Resume a run whose config.yaml names a class that you have not named in a command of "
        "your own (model=custom). Importing the class runs its code.",
        changes_numbers=False,
    )
    cache_dir: str = key(
        ".cache",
        "Folder of prepared graphs and of partitions by METIS.",
        changes_numbers=False,
        is_path=True,
    )
    data: DataConfig = field(default_factory=SyntheticProteinsConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    @property
    def device_name(self) -> str:
        """The device to ask for: "cpu", "cuda", "cuda:N", or "auto" for a GPU if there is one."""
        return self.auto_device if self.device == "auto" else self.device

    @property
    def resumes(self) -> bool:
        """Tell whether `resume` names the run to continue."""
        return self.resume not in (None, keys.AUTO)

    @property
    def predicts_links(self) -> bool:
        """Tell whether pairs of nodes are predicted, and not labels."""
        return False

    @property
    def lr_scaling(self) -> str:
        """How the learning rate follows the number of ranks."""
        return "none"

    def read_as(self, named: Collection[str]) -> Self:
        """Return the configuration as it is meant by a command that names these keys and groups."""
        return self

    def check(self) -> None:
        """Refuse values that no run of this product can have.

        Raises:
            ValueError: names the key.
        """
        keys.check(self)
        check_device(self.device)
        keys.check_rules(self, self.rules)
        product = self.trainer.name
        if self.data.holds not in self.takes:
            fitting = [name for name, schema in DATA_SCHEMAS.items() if schema.holds in self.takes]
            raise ValueError(
                f"trainer={product} cannot train on data={self.data.source}, which holds "
                f"{_A_OR_NOTHING.get(self.data.holds, '')}{self.data.holds}. Choose one of "
                f"data={', '.join(fitting)}"
            )
        if self.data.on_disk and self.data.holds != "graph":
            raise ValueError(
                f"data.on_disk=true needs a single graph; data={self.data.source} holds "
                f"{self.data.holds}, which are mapped into memory anyway. Leave it out"
            )
        self.check_components()

    def describe_members(self) -> str:
        """Name the product and the other members that decide about the keys, as on the command line."""
        chosen = [
            f"{part}={getattr(getattr(self, part), name)}"
            for part, (name, _) in self.members.items()
        ]
        return " and ".join([f"trainer={self.trainer.name}", *chosen])

    def check_components(self) -> None:
        """Refuse to choose connected components; a product that can overrides this.

        Raises:
            ValueError: names the key.
        """
        if self.data.components != "all":
            raise ValueError(
                f"data.components={self.data.components}: trainer={self.trainer.name} trains on all "
                "components. Leave it out"
            )


@dataclass
class OpenConfig:
    """The keys of every command that opens a run that was trained."""

    run: str = key(
        ...,
        "Run directory, or a file that export=FILE wrote.",
        is_path=True,
    )
    checkpoint: str = key(
        "best", "Checkpoint: best by the validation metric, or last.", choices=("best", "last")
    )
    device: str = key("auto", "Device: auto, cpu, cuda or cuda:N.")
    trust: bool = key(
        False,
        "Open a run whose config.yaml names a class that you have not named in a command of your "
        "own (model=custom). Importing the class runs its code.",
    )


@dataclass
class AskConfig(OpenConfig):
    """The keys of the commands that write what they are asked about a run."""

    overwrite: bool = key(
        False,
        "Replace existing files that python -m pipeline.predict did not write. Files that the "
        "command reads, and files of runs, stores and caches, are never replaced.",
    )

    def check_outputs(self, config: RunConfig) -> None:
        """Check all files that are to be written; see :func:`check_output`.

        Raises:
            ValueError: names the key. Two keys may not name the same file.
        """
        written = [
            (name, Path(path))
            for name in OUTPUTS
            if (path := getattr(self, name, None)) is not None
        ]
        outputs.check_distinct(written)
        for name, path in written:
            self.check_output(name, path, config)

    def check_output(self, name: str, path: Path, config: RunConfig) -> None:
        """Refuse a file that cannot be written or must not be replaced, before any long work.

        Args:
            name: the key that names the file.
            config: of the run.

        Raises:
            ValueError: names the key, the file, and what it is.
        """
        outputs.check(
            name,
            path,
            reads=self.sources(config),
            cache=Path(config.cache_dir),
            overwrite=self.overwrite,
        )
        if name == "export" and path.suffix not in EXPORTS:
            raise ValueError(
                f"export={path}: the end of the name chooses the format, and must be one of "
                f"{', '.join(EXPORTS)}"
            )

    def sources(self, config: RunConfig) -> list[tuple[str, Path]]:
        """List the files, folders and patterns that the command reads, each with the key that names it.

        Args:
            config: of the run.
        """
        named = [
            (entry.name, Path(entry.value))
            for entry in keys.entries(self)
            if entry.meaning.is_path
            and entry.value
            and entry.name not in OUTPUTS
            and not entry.name.startswith("data.")
        ]
        found = [
            (name, path) for name, path in named if name != "run" or not path.is_dir()
        ] + config.data.sources()
        new = {
            entry.name: entry.value
            for entry in keys.entries(self)
            if entry.name.startswith("data.") and entry.value is not None
        }
        if new:  # what is wrong with them is said when they are opened, before anything is written
            with contextlib.suppress(ValueError):
                found += keys.replaced(config, new).data.sources()
        return found


@dataclass
class EvaluateConfig(AskConfig):
    """The keys of `python -m pipeline.evaluate` that every product reads."""

    predictions: str | None = key(
        None,
        "File for the predictions. Logits, in the order of nodes, graphs or pairs, are "
        "saved as .pt. Vectors and positions are saved as .pt, .npy, .parquet, or .txt in "
        "word2vec's format. Answers are saved as .tsv, .parquet, .json or .pt.",
        is_path=True,
    )


@dataclass
class ExplainConfig(AskConfig):
    """The keys of `python -m pipeline.explain`."""

    node: str | None = key(
        None, "Id of the node, edge or graph whose prediction is explained.", is_text=True
    )
    label: str | None = key(
        None, "Class or task whose score is explained. Default: the likeliest.", is_text=True
    )
    top: int = key(
        10,
        "Largest number of columns, of neighbours and of edges that are named.",
        minimum=1,
        below=10_000,
    )
    output: str | None = key(
        None,
        "File to write: a table of all parts below each other, which ends with .parquet, .csv, .csv.gz, "
        ".tsv or .tsv.gz. Default: they are printed.",
        is_path=True,
    )

    def check_question(self) -> None:
        """Refuse a question that names nothing, before any long work."""
        if self.node is None:
            raise ValueError("One argument is missing: node=ID")
        if self.output is not None:
            from parallel_epochs.pipeline.run import tables  # imports pandas

            tables.format_of("output", self.output)


# Another number of ranks changes these; a checkpoint records how many there were.
RESCALED = {"parallel.num_ranks", "parallel.threads_per_rank"}


def write_config(config: RunConfig, folder: Path) -> None:
    """Write config.yaml of a run, with the folder in which it was started first, to which its paths are relative.

    Raises:
        FileError: the file cannot be written.
    """
    path, start = folder / "config.yaml", f"# started in {Path.cwd()}\n"
    if files.is_there(path) and (
        found := re.search(r"^# started in /.*\n", files.read_text(path), re.MULTILINE)
    ):
        start = found[0]
    files.write_text(path, keys.to_yaml(config) + start)


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the keys that change numbers, which checkpoints record: an edited config.yaml is noticed.

    Keys that name files are left out, since the content of files is compared, and so are the keys of ranks, since
    their number is.
    """
    left_out = keys_without_effect(config) | RESCALED
    return {
        entry.name: entry.value
        for entry in keys.entries(config)
        if entry.name not in left_out and not entry.meaning.names_files
    }


def keys_without_effect(config: RunConfig) -> set[str]:
    """Return the keys of which a run may be resumed with other values: a step computes the same with them."""
    values = {entry.name: entry.value for entry in keys.entries(config)}
    return {
        entry.name
        for entry in keys.entries(config)
        if not entry.meaning.changes_numbers or entry.meaning.blockers(values)
    }


def changed_keys(config: RunConfig) -> set[str]:
    """Return the keys that have another value than in the default run of the same product, data and model."""
    default = type(config)()
    chosen = set[str]()
    parts: dict[str, Any] = {"trainer": type(config.trainer)()}
    for part, (name, _) in config.members.items():
        own = type(getattr(config, part))
        if own is not type(getattr(default, part)):
            chosen.add(f"{part}.{name}")
        parts[part] = own()
    default = dataclasses.replace(default, **parts)
    values = {entry.name: entry.value for entry in keys.entries(config)}
    return chosen | {
        entry.name for entry in keys.entries(default) if values[entry.name] != entry.value
    }


def explain_idle_keys(config: RunConfig) -> str | None:
    """Name the keys that were set but have no effect with the values of other keys. Return None if there are none."""
    values, changed = (
        {entry.name: entry.value for entry in keys.entries(config)},
        changed_keys(config),
    )
    idle = []
    for entry in keys.entries(config):
        is_chosen = (
            entry.name in changed and entry.value != entry.meaning.before
        )  # which old runs have by themselves
        if is_chosen and (blockers := entry.meaning.blockers(values)):
            others = " and ".join(f"{name}={values.get(name)}" for name in blockers)
            idle.append(f"{entry.name}={entry.value} with {others}")
    return f"without effect: {', '.join(idle)}" if idle else None
