"""Keeps edges until the turn of their cluster while a graph is read: in memory, and beyond that in a file."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_epochs.pipeline.run import files

# Where an array begins in a file, its dtype, and the shape of its rows.
Extent = tuple[int, np.dtype, tuple[int, ...]]


@dataclass
class Selected:
    """The kept part of a block, by cluster: ``arrays[k][ptr[i]:ptr[i + 1]]`` belongs to cluster i."""

    ptr: np.ndarray
    arrays: list[np.ndarray]


class Waiting:
    """Keeps what was selected until its cluster's turn comes: in memory, and beyond a number of bytes in a file
    without a name, which ends with the process however it ends.

    Args:
        folder: where that file lies; it is made if it is needed.
        buffer: bytes that may stay in memory.
    """

    def __init__(self, folder: Path, buffer: int):
        self._folder, self._buffer, self._held = folder, buffer, 0
        self._pieces: list[Selected] = []
        self._spilled: list[tuple[np.ndarray, list[Extent]]] = []
        self._exit = contextlib.ExitStack()
        self._file: Any = None
        self._end = 0

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *exc: object) -> None:
        self._exit.close()

    def add(self, selected: Selected) -> None:
        """Keep a piece.

        Raises:
            FileError: there is no room for it.
        """
        self._pieces.append(selected)
        self._held += sum(array.nbytes for array in selected.arrays)
        if self._held > self._buffer:
            self._write()

    def take(self, place: int) -> list[np.ndarray]:
        """Return what was kept for a cluster, piece behind piece in the order in which they came."""
        parts = [self._read(ptr, extents, place) for ptr, extents in self._spilled]
        parts += [
            [array[piece.ptr[place] : piece.ptr[place + 1]] for array in piece.arrays]
            for piece in self._pieces
        ]
        return [np.concatenate(arrays) for arrays in zip(*parts)]

    def _write(self) -> None:
        with files.naming(self._folder / "spill", "written", size=lambda: self._held):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = self._exit.enter_context(
                    tempfile.TemporaryFile(dir=self._folder, buffering=0)
                )
            for piece in self._pieces:
                extents = []
                for array in piece.arrays:
                    extents.append((self._end, array.dtype, array.shape[1:]))
                    self._end = files.write_at(self._file.fileno(), array, self._end)
                self._spilled.append((piece.ptr, extents))
        self._pieces, self._held = [], 0

    def _read(self, ptr: np.ndarray, extents: list[Extent], place: int) -> list[np.ndarray]:
        assert self._file is not None
        first, last = int(ptr[place]), int(ptr[place + 1])
        found = [np.empty((last - first, *row), dtype) for _, dtype, row in extents]
        with files.naming(self._folder / "spill", "read"):
            for array, (begin, _, _) in zip(found, extents):
                files.read_at(self._file.fileno(), array, begin + first * array.strides[0])
        return found
