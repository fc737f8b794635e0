"""The class of a product: what the entry points and the training ask of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from parallel_epochs.pipeline.config import EvaluateConfig, RunConfig

if TYPE_CHECKING:  # these import torch
    import torch
    from torch import Tensor

    from parallel_epochs.pipeline.data.opened import OpenData, Part
    from parallel_epochs.pipeline.run.baseline_file import Baseline
    from parallel_epochs.pipeline.run.contract import Trainer
    from parallel_epochs.pipeline.run.ranks import Ranks
    from parallel_epochs.pipeline.run.saved import SavedRun
    from parallel_epochs.pipeline.run.stop import StopRequest

Config = TypeVar("Config", bound=RunConfig)
OwnPart = TypeVar("OwnPart", bound="Part")
Evaluation = TypeVar("Evaluation", bound=EvaluateConfig)
Prediction = TypeVar("Prediction", bound=EvaluateConfig)


class Product(ABC, Generic[Config, OwnPart, Evaluation, Prediction]):
    """A kind of training, which ``trainer=`` chooses by its name.

    The methods import torch when they are called, so that a run can be composed without it.

    Attributes:
        name: value of ``trainer=``, and name of the product's folder.
        config: keys of a run.
        evaluate_keys, predict_keys: keys of `python -m pipeline.evaluate` and of `python -m pipeline.predict`.
        has_baselines: whether there are simple methods that its runs should be better than.
        learns_vectors: whether a run learns vectors of its data, and not a model that predicts rows.
    """

    name: ClassVar[str]
    config: type[Config]
    evaluate_keys: type[Evaluation]
    predict_keys: type[Prediction]
    has_baselines: ClassVar[bool] = False
    learns_vectors: ClassVar[bool] = True

    @abstractmethod
    def open_data(self, config: Config, device: "torch.device", *, content_hash: str | None = None) -> "OpenData":
        """Open the dataset of a run, check that it fits, and describe it in the log.

        Args:
            content_hash: hash of the data if another process has opened them a moment ago and described them.

        Raises:
            ValueError: the dataset is inconsistent, or does not fit the configuration.
        """

    @abstractmethod
    def build(self, part: OwnPart, *, ranks: "Ranks", stop: "StopRequest | None" = None) -> "Trainer":
        """Build the trainer of a part of the opened data, for this rank.

        Raises:
            ValueError: the configuration does not fit the data.
        """

    @abstractmethod
    def evaluate(self, run: "SavedRun[Config]", asked: Evaluation) -> dict[str, float]:
        """Compute the metrics of a checkpoint, and save its predictions if asked to.

        Raises:
            ValueError: the checkpoint is missing or damaged, or does not fit the dataset or the keys.
        """

    @abstractmethod
    def predict(self, run: "SavedRun[Config]", asked: Prediction) -> None:
        """Save what a checkpoint predicts, or the vectors that it holds.

        Raises:
            ValueError: as :meth:`evaluate`.
        """

    def check(self, config: Config) -> None:
        """Refuse what the configuration and the machine rule out, before anything is opened or written.

        Raises:
            ValueError: names the key, or what is missing.
        """

    def prepare(self, part: OwnPart) -> None:
        """Fill the caches that training would fill, in addition to the graph's."""

    def memory_of(self, part: OwnPart) -> str | None:
        """Say what memory a rank will take, and what it may use; None if it is not known before training."""

    def report(self, part: OwnPart) -> None:
        """Log what is known of a training before it begins."""

    def write_start(self, part: OwnPart, folder: Path) -> None:
        """Write what a run keeps in addition to its configuration, before the first step."""

    def write_best(self, part: OwnPart, trainer: "Trainer", folder: Path) -> None:
        """Write what belongs to the best evaluation so far, in addition to the checkpoint."""

    def write_results(self, part: OwnPart, folder: Path) -> None:
        """Write what a run leaves in addition to its summary."""

    def finish(self, part: OwnPart, trainer: "Trainer", folder: Path, *, ranks: "Ranks",
               stop: "StopRequest | None" = None) -> dict[str, Any]:
        """Predict once more when training has ended, on all ranks; returns what that adds to the summary.

        Raises:
            Stopped: a rank was asked to stop; all ranks raise it.
        """
        return {}

    def train_parts(self, train_one: "Callable[[Part, Path], dict]", opened: "OpenData", folder: Path, *,
                    ranks: "Ranks") -> dict:
        """Train a model for each part of the opened data. There is one part, unless a product makes several.

        Args:
            train_one: trains the model of a part in a folder.

        Returns:
            The content of ``summary.json``.
        """
        return train_one(opened.parts[0], folder)

    def baselines(self, part: OwnPart) -> "tuple[str, Iterator[Baseline]]":
        """Return the metric of the runs on some data, and the simple methods, each scored when it is reached."""
        raise NotImplementedError(f"trainer={self.name} has no baselines")

    def predict_in_memory(self, run: "SavedRun[Config]", data: object, pairs: "Tensor | None") -> "tuple[Tensor, str]":
        """Predict rows with a trained model; see :meth:`pipeline.api.Model.predict`.

        Returns:
            Logits or values, and the kind of the labels.

        Raises:
            ValueError: the run learned vectors, or the data are not like those of the training.
        """
        raise ValueError(f"{run.folder} was trained by trainer={self.name}: ask for its vectors()")

    def export(self, run: "SavedRun[Config]", path: Path) -> None:
        """Write a model to one file, without its data.

        Raises:
            ValueError: the model cannot predict other data.
        """
        raise ValueError(f"{run.folder} learned vectors, which belong to its data: save vectors() instead")
