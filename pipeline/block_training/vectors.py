"""Vectors that a run has trained: in files of the formats of the field, and open to be asked for the nearest."""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.models.embedding.spectral import unit_rows
from parallel_epochs.pipeline.block_training.cosines import nearest_of
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.opened import Part, open_whole
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import files, tables
from parallel_epochs.pipeline.run.log import format_score, format_table
from parallel_epochs.pipeline.run.saved import SavedRun

log = logging.getLogger(__name__)


def check_predictions(run: SavedRun, predictions: str | None) -> Path:
    """Check where vectors shall be saved, before any long work.

    Raises:
        ValueError: names the key.
    """
    if predictions is None:
        raise ValueError("One argument is missing: predictions=FILE")
    check_device(run)
    return Path(predictions)


def check_device(run: SavedRun) -> None:
    """Refuse a GPU, which reads no vectors."""
    if run.device not in ("auto", "cpu"):
        raise ValueError(
            f"device={run.device}: {run.folder} learned vectors, which are read on the CPU. Leave device "
            "out"
        )


def open_run(
    run: SavedRun, check: Callable[[Any, Graph], None], describe: Callable[[Graph], str]
) -> tuple[dict, Part]:
    """Load the checkpoint of a run, and open the data that it was trained on; see :func:`open_whole`.

    Raises:
        ValueError: no such checkpoint, a damaged one, or another dataset.
    """
    state = run.load()
    (part,) = open_whole(run.config, torch.device("cpu"), check, describe).parts
    run.check_data(state, part.data.get("content_hash"))
    return state, part


class OpenVectors:
    """A run that learned vectors, which stay open.

    Args:
        run: the run.
        data, given: none; the vectors are those of the training.
        read: returns the vectors of the run, and their names.

    Attributes:
        ids: the names, in the order of `vectors`.
        vectors: [num_rows, dim], float32.
        classes: none.

    Raises:
        ValueError: other data are given, or the run cannot be read.
    """

    classes = None

    def __init__(
        self,
        run: SavedRun,
        data: object,
        given: Mapping[str, object],
        read: Callable[[SavedRun], tuple[Tensor, list[str]]],
    ):
        self._title = f"{run.folder} was trained by trainer={run.config.trainer.name}"
        if data is not None or given:
            raise ValueError(
                f"{self._title}, and learned vectors of its own data. Leave "
                f"{'data' if data is not None else next(iter(given))} out"
            )
        check_device(run)
        self.vectors, names = read(run)
        self.ids = np.array(names, object)

    def top(
        self, k: int, sources: list[str] | None, candidates: list[str] | None, *, filtered: bool
    ) -> pd.DataFrame:
        """Rank the nearest vectors of each source by their cosines; see :meth:`pipeline.model.Model.top`."""
        if not filtered:
            raise ValueError(
                f"filtered=False is for links. {self._title}: top() ranks its nearest vectors"
            )
        asked, others = (
            slice(None) if ids is None else self._find(name, ids)
            for name, ids in (("sources", sources), ("candidates", candidates))
        )
        numbers = torch.arange(len(self.ids))
        found, cosines = nearest_of(self._unit, k, numbers[asked], numbers[others])
        rows, ranks = torch.isfinite(cosines).nonzero(as_tuple=True)
        return pd.DataFrame(
            {
                "source": self.ids[asked][rows],
                "target": self.ids[found[rows, ranks]],
                "score": cosines[rows, ranks].numpy(),
                "rank": ranks.numpy() + 1,
            }
        )

    @cached_property
    def _unit(self) -> Tensor:
        return torch.from_numpy(unit_rows(self.vectors.numpy()))

    def _find(self, name: str, ids: list[str]) -> np.ndarray:
        """Return the numbers of ids; `name` is the argument that they were given for."""
        found = pd.Index(self.ids).get_indexer(ids)
        if not len(ids) or (found < 0).any():
            raise ValueError(
                f"{name}: "
                + (
                    f"there is no vector of {ids[int(np.argmax(found < 0))]!r}"
                    if len(ids)
                    else "give one id at least"
                )
            )
        return found


def log_scores(title: str, scores: dict[str, float], metric: str) -> None:
    """Log the metrics of a checkpoint as a table.

    Args:
        metric: of the splits.
    """
    log.info(
        "%s",
        format_table(
            [
                (f"{name} {metric}" if name in SPLITS else name, format_score(score))
                for name, score in scores.items()
            ],
            title,
        ),
    )


def save(path: Path, vectors: Tensor, names: list[str]) -> None:
    """Save vectors in the format that the name of the file ends with.

    Raises:
        ValueError: see :func:`writer_of`.
    """
    write = writer_of(path)
    files.write_atomically(path, lambda file: write(file, vectors, names))
    log.info("wrote %s vectors of %d numbers to %s", f"{len(vectors):,}", vectors.size(1), path)


def writer_of(path: Path) -> Callable[[IO[bytes], Tensor, list[str]], None]:
    """Choose what writes vectors to a file.

    Raises:
        ValueError: it is none of the formats, or what writes it is not installed.
    """
    if path.suffix not in WRITERS:
        raise ValueError(
            f"predictions={path}: vectors can only be saved as one of {', '.join(WRITERS)}"
        )
    if path.suffix == ".parquet":
        tables.check_parquet("predictions", path)
    return WRITERS[path.suffix]


def _write_tensors(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    torch.save({"embedding": vectors, "names": names}, file)


def _write_numpy(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    np.save(file, vectors.numpy())


def _write_parquet(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    columns = {f"v{number}": column for number, column in enumerate(vectors.numpy().T)}
    tables.write_parquet(file, [{"id": np.array(names, object), **columns}])


def _write_word2vec(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    """Write a line of sizes, and a line a node: its name, blanks in it as underscores, and its numbers."""
    file.write(f"{vectors.size(0)} {vectors.size(1)}\n".encode())
    for name, row in zip(names, vectors.tolist(), strict=True):
        file.write(
            f"{'_'.join(name.split())} {' '.join(f'{value:.6g}' for value in row)}\n".encode()
        )


# By the end of the file's name.
WRITERS: dict[str, Callable[[IO[bytes], Tensor, list[str]], None]] = {
    ".pt": _write_tensors,
    ".npy": _write_numpy,
    ".parquet": _write_parquet,
    ".txt": _write_word2vec,
}
