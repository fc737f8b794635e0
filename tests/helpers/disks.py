"""Disks that are mounted for a test, where no other process sees them."""

import contextlib
import ctypes
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CLONE_NEWNS = 0x20000  # of sched.h


def mount(*arguments: str | Path) -> None:
    """Run ``mount``, or skip the test where this process may not.

    This process has a mount namespace of its own, which it shares with the processes that it starts from now on. The
    kernel unmounts everything in it when the last of them ends, so a test that is killed leaves no disk behind.
    """
    if not has_own_mounts():
        pytest.skip("only root may mount")
    subprocess.run(["mount", *arguments], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of its own, in memory, with so many MiB, in a new folder; skip the test where this may not be."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder)
    try:
        yield folder
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", folder], check=True)


@functools.cache
def has_own_mounts() -> bool:
    """Move to a mount namespace of this process' own, like a command under ``unshare -m``; tell whether that worked.

    What starts processes for the tests is forked after this, so that they see the disks too.
    """
    if (
        os.geteuid()
        or not hasattr(ctypes.CDLL(None), "unshare")
        or ctypes.CDLL(None).unshare(CLONE_NEWNS)
    ):
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0
