"""Where large tables lie: in memory, or in files that are mapped into it, for what memory cannot hold."""

import mmap
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from pipeline.run import files


class MemoryStorage:
    """Keeps tables in memory.

    Attributes:
        releases: whether :meth:`release` makes room.
    """

    releases = False

    def zeros(self, *shape: int) -> Tensor:
        """Make a table of zeros, float32."""
        return torch.zeros(shape)

    def release(self, table: Tensor, first: int, last: int) -> None:
        """Do nothing: the rows stay in memory."""


class DiskStorage(MemoryStorage):
    """Keeps tables in files without a name, which end with the process however it ends.

    The system reads and writes their pages as they are used. It may drop those of released rows from memory, after
    it has written them.

    Args:
        folder: where the files lie; it is made if it is not there.

    Raises:
        FileError: it cannot be made.
    """

    releases = True

    def __init__(self, folder: Path):
        self._folder = folder
        self._maps: dict[int, mmap.mmap] = {}
        with files.naming(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)

    def zeros(self, *shape: int) -> Tensor:
        """Make a table of zeros, float32, whose room on the disk is taken at once.

        Raises:
            FileError: the disk has no room.
        """
        size = 4 * torch.Size(shape).numel()
        if not size:
            return torch.zeros(shape)
        with files.naming(self._folder / "tables", "written", size=lambda: size), \
                tempfile.TemporaryFile(dir=self._folder) as file:
            # A page that the disk has no room for would end the process when it is written.
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
        table = torch.frombuffer(mapped, dtype=torch.float32).view(shape)
        self._maps[table.data_ptr()] = mapped
        return table

    def release(self, table: Tensor, first: int, last: int) -> None:
        """Give back the memory of the rows from `first` to before `last`; their values stay."""
        if not table.numel() or first >= last:
            return
        row, page = 4 * table[0].numel(), mmap.PAGESIZE
        # Whole pages: what a row of another partition shares is read again.
        start = first * row // page * page
        self._maps[table.data_ptr()].madvise(mmap.MADV_DONTNEED, start, last * row - start)


def free_space(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder, or of the nearest above it that is there."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free
