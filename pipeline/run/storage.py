"""Allocates large tables in memory, or in memory-mapped files if they do not fit into memory."""

import mmap
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.pipeline.run import files


class MemoryStorage:
    """Keeps tables in memory.

    Attributes:
        releases: whether :meth:`release` frees memory.
    """

    releases = False

    def zeros(self, *shape: int) -> Tensor:
        """Allocate a table of zeros, float32."""
        return torch.zeros(shape)

    def release(self, table: Tensor, first: int, last: int) -> None:
        """Do nothing: the rows stay in memory."""


class DiskStorage(MemoryStorage):
    """Keeps tables in files without a name, which the system deletes however the process ends.

    The system reads and writes their pages on demand. It may drop the pages of released rows from memory, after it
    has written them.

    Args:
        folder: the folder of the files, which is made if it does not exist.

    Raises:
        FileError: the folder cannot be made.
    """

    releases = True

    def __init__(self, folder: Path):
        self._folder = folder
        self._maps: dict[int, mmap.mmap] = {}
        with files.naming(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)

    def zeros(self, *shape: int) -> Tensor:
        """Allocate a table of zeros, float32, and reserve its space on the disk.

        Raises:
            FileError: the disk has not enough space.
        """
        size = 4 * torch.Size(shape).numel()
        if not size:
            return torch.zeros(shape)
        with (
            files.naming(self._folder / "tables", "written", size=lambda: size),
            tempfile.TemporaryFile(dir=self._folder) as file,
        ):
            # Writing a page for which the disk has no space would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
        table = torch.frombuffer(mapped, dtype=torch.float32).view(shape)
        self._maps[table.data_ptr()] = mapped
        return table

    def release(self, table: Tensor, first: int, last: int) -> None:
        """Free the memory of the rows from `first` up to `last` (exclusive). Their values stay."""
        if not table.numel() or first >= last:
            return
        row, page = 4 * table[0].numel(), mmap.PAGESIZE
        # Whole pages: what a row of another partition shares is read again.
        start = first * row // page * page
        self._maps[table.data_ptr()].madvise(mmap.MADV_DONTNEED, start, last * row - start)


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, or of its nearest parent that exists."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free
