"""Allocates large tables in memory, or in memory-mapped files if they do not fit into memory."""

import logging
import mmap
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)

# Bytes of each learned number: in last.pt and previous.pt, at least and with what Adam keeps of it; in best.pt.
LEAST_BYTES, ADAM_BYTES, BEST_BYTES = 4, 16, 4


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


def check_room(folder: Path, num_parameters: int) -> None:
    """Refuse a run whose checkpoints the disk cannot hold; warn if it cannot once an optimizer has filled them.

    Args:
        folder: of the run, perhaps one that is continued: its own checkpoints are replaced.
        num_parameters: numbers that are learned.

    Raises:
        ValueError: even last.pt and previous.pt, with weights alone, do not fit.
    """
    free = free_space(folder) + sum(path.stat().st_size for path in folder.glob("checkpoints/*.pt"))
    least, likely = 2 * LEAST_BYTES * num_parameters, (2 * ADAM_BYTES + BEST_BYTES) * num_parameters
    if least > free:
        raise ValueError(
            f"{folder} is on a disk with {format_bytes(free)} for checkpoints, but those of "
            f"{num_parameters:,} parameters take {format_bytes(least)} at least: delete files, or choose "
            "another disk by hydra.run.dir"
        )
    if likely > free:
        log.warning(
            "%s is on a disk with %s for checkpoints, but those of %s parameters may take %s: delete files, or "
            "choose another disk by hydra.run.dir",
            folder,
            format_bytes(free),
            f"{num_parameters:,}",
            format_bytes(likely),
        )
