"""Allocates tables in memory-mapped files, and tells how much room a disk has."""

import mmap
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.pipeline.run import files


def zeros_on_disk(folder: Path, *shape: int) -> Tensor:
    """Allocate a table of zeros, float32, in a file without a name, which the system deletes however the process ends.

    The system reads and writes its pages on demand.

    Args:
        folder: the folder of the file, which is made if it does not exist.

    Raises:
        FileError: the folder cannot be made, or the disk has not enough space.
    """
    with files.naming(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    size = 4 * torch.Size(shape).numel()
    if not size:
        return torch.zeros(shape)
    with (
        files.naming(folder / "tables", "written", size=lambda: size),
        tempfile.TemporaryFile(dir=folder) as file,
    ):
        # Writing a page for which the disk has no space would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        mapped = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(mapped, dtype=torch.float32).view(shape)


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, or of its nearest parent that exists."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free
