"""A run that was trained, opened again to use what it learned."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from parallel_epochs.pipeline.run import checkpoint as checkpoints
from parallel_epochs.pipeline.run.session import check_data, check_settings

Config = TypeVar("Config")


@dataclass(frozen=True)
class SavedRun(Generic[Config]):
    """A run directory and the checkpoint of it that is used.

    Attributes:
        folder: the run directory.
        config: the configuration of the run.
        settings: its keys that change numbers, by their names.
        checkpoint: "best" by the validation metric, or "last".
        device: where the model is used: "auto", "cpu", "cuda" or "cuda:N".
        check_output: refuses a file, given its key and its path, that must not be replaced.
        shared: what a file for sharing holds in place of the directory, which is then that file; none otherwise.
    """

    folder: Path
    config: Config
    settings: dict[str, Any]
    checkpoint: str = "best"
    device: str = "auto"
    check_output: Callable[[str, Path], None] = lambda name, path: None
    shared: checkpoints.Content | None = None

    @property
    def is_best(self) -> bool:
        """Tell whether it is the best checkpoint, which holds the weights but not the state of the training."""
        return self.shared is not None or self.checkpoint == "best"

    def load(self) -> dict:
        """Load the checkpoint.

        Raises:
            ValueError: there is none, it is damaged, or it was trained with other settings.
        """
        if self.shared is not None:
            return checkpoints.Content(self.folder, self.shared["state"])
        state = checkpoints.load(self.folder / "checkpoints" / f"{self.checkpoint}.pt")
        with checkpoints.fitting(state):
            check_settings(self.folder, state, self.settings)
        return state

    def check_data(self, state: dict, data_hash: str | None) -> None:
        """Compare the dataset that the checkpoint was trained on and that of now.

        Raises:
            ValueError: it is another one.
        """
        check_data(self.folder, state, data_hash)

    def title(self, epoch: int) -> str:
        """Name the checkpoint, of a number of epochs, for a table of its metrics."""
        return f"{self.checkpoint} checkpoint of {self.folder}, epoch {epoch}"
