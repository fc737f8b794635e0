"""The functions of a product: what the entry points and the training ask of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from parallel_epochs.pipeline.config import AskConfig, EvaluateConfig, RunConfig
from parallel_epochs.pipeline.data.opened import OpenData, Part
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.contract import Trainer
from parallel_epochs.pipeline.run.saved import SavedRun

Config = TypeVar("Config", bound=RunConfig)
OwnPart = TypeVar("OwnPart", bound=Part)
Evaluation = TypeVar("Evaluation", bound=EvaluateConfig)
Prediction = TypeVar("Prediction", bound=EvaluateConfig)


def do_nothing(*_: object) -> None:
    """Stand for a function that a product does without."""


def finish_nothing(part: Part, trainer: Trainer, folder: Path, **_: object) -> dict[str, Any]:
    """Add nothing to the summary."""
    return {}


def train_one_part(
    train_one: Callable[[Part, Path], dict], opened: OpenData, folder: Path, **_: object
) -> dict:
    """Train a model on all of the data."""
    return train_one(opened.parts[0], folder)


def refuse_explanation(run: SavedRun, asked: AskConfig) -> None:
    """Refuse to explain vectors; the command has said so before."""
    raise ValueError(f"{run.folder} learned vectors, which are not explained")


def refuse_to_open(run: SavedRun, data: object, given: Mapping[str, object]) -> None:
    """Refuse to keep a run open."""
    raise ValueError(
        f"runs of trainer={run.config.trainer.name} cannot be asked from Python: use the commands"
    )


def refuse_export(run: SavedRun, path: Path, asked: AskConfig) -> None:
    """Refuse to write vectors to a file without their data."""
    raise ValueError(
        f"{run.folder} learned vectors, which belong to its data: save vectors() instead"
    )


@dataclass(frozen=True, kw_only=True)
class Product(Generic[Config, OwnPart, Evaluation, Prediction]):
    """The functions of a kind of training, which ``trainer=`` chooses by its name. They raise ValueErrors for users.

    Attributes:
        open_data: opens the dataset of a run on a device, checks that it fits, and describes it in the log, unless
            `content_hash` says that another process has done so a moment ago.
        build: builds the trainer of a part of the opened data, given `ranks` and `stop`.
        evaluate: computes the metrics of a checkpoint, and saves its predictions if asked to.
        predict: saves what a checkpoint predicts, or the vectors that it holds.
        open_warm: opens a run and its data, or others, to be asked many times, with keys of `predict`; see
            :class:`pipeline.gnn.predict.warm.Warm` and :class:`pipeline.block_training.vectors.OpenVectors`.
        check: refuses what the configuration and the machine rule out, before anything is opened or written.
        prepare: fills the caches that training would fill, in addition to the graph's.
        memory_of: says what memory a rank will take, and what it may use; None if it is not known before training.
        report: logs what is known of a training before it begins.
        write_start: writes what a run keeps in addition to its configuration, before the first step.
        write_best: writes what belongs to the best evaluation so far, in addition to the checkpoint.
        write_results: writes what a run leaves in addition to its summary.
        finish: predicts once more when training has ended, on all ranks; returns what that adds to the summary.
        train_parts: trains a model for each part of the opened data by the given function, and returns the content of
            ``summary.json``. There is one part, unless a product makes several.
        baselines: returns the metric of the runs on some data, and the simple methods that they should be better than,
            each scored when it is reached. None: there are none.
        export: writes a model to one file, without its data.
        explain: says which columns, neighbours and edges carry a prediction.
        learns_vectors: whether a run learns vectors of its data, and not a model that predicts rows.
    """

    open_data: Callable[..., OpenData]
    build: Callable[..., Trainer]
    evaluate: Callable[[SavedRun[Config], Evaluation], dict[str, float]]
    predict: Callable[[SavedRun[Config], Prediction], None]
    check: Callable[[Config], None] = do_nothing
    prepare: Callable[[OwnPart], object] = do_nothing
    memory_of: Callable[[OwnPart], str | None] = do_nothing
    report: Callable[[OwnPart], None] = do_nothing
    write_start: Callable[[OwnPart, Path], None] = do_nothing
    write_best: Callable[[OwnPart, Any, Path], None] = do_nothing
    write_results: Callable[[OwnPart, Path], None] = do_nothing
    finish: Callable[..., dict[str, Any]] = finish_nothing
    train_parts: Callable[..., dict] = train_one_part
    baselines: Callable[[OwnPart], tuple[str, Iterator[Baseline]]] | None = None
    open_warm: Callable[[SavedRun[Config], object, Mapping[str, object]], Any] = refuse_to_open
    export: Callable[[SavedRun[Config], Path, Any], None] = refuse_export
    explain: Callable[[SavedRun[Config], Any], None] = refuse_explanation
    learns_vectors: bool = True
