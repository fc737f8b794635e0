"""Hostile inputs: files that nobody should have written, a command that meets them, and how it must end."""

import dataclasses
import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.helpers.running import command


@dataclasses.dataclass(frozen=True)
class Case:
    """One hostile input.

    Args:
        name: what is wrong, in a few words; the test's id
        typed: the command after ``python -m``, as a user types it
        message: the one line of standard error, with ``<*>`` for what depends on the machine. None if the command
            must succeed
        files: writes the files that the command meets into an empty folder, the command's working directory
        seconds: the command must end within this time
    """

    name: str
    typed: str
    message: str | None
    files: Callable[[Path], object] = lambda folder: None
    seconds: float = 120.0


def matches(found: str, message: str) -> bool:
    """Compare a line with what is expected, except for what depends on the machine."""
    return re.fullmatch(re.escape(message).replace(re.escape("<*>"), ".*"), found) is not None


def assert_refused(done: subprocess.CompletedProcess, message: str) -> None:
    """Check that a command has ended with one line of standard error and status 1, without a traceback.

    Args:
        message: the line behind "error: ", with ``<*>`` for what depends on the machine.
    """
    line = done.stderr.removesuffix("\n")
    assert done.returncode == 1, (done.returncode, done.stdout[-2000:], done.stderr)
    assert matches(line, f"error: {message}") and "\n" not in line, done.stderr


def check(case: Case, folder: Path) -> subprocess.CompletedProcess:
    """Run the command: it ends as expected, in time, and no file that was there has changed."""
    case.files(folder)
    before = digests(folder)
    module, *arguments = shlex.split(case.typed)
    process = command(module, *arguments, cwd=folder)
    try:
        output, errors = process.communicate(timeout=case.seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{case.name}: still running after {case.seconds} s") from None
    after = digests(folder)
    assert "Traceback" not in output + errors, errors
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if case.message is None:
        assert process.returncode == 0, errors
    else:
        assert_refused(done, case.message)
    assert {path: after.get(path) for path in before} == before, "a file that was there has changed"
    return done


def digests(folder: Path) -> dict[Path, str]:
    """Digest every regular file below a folder."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
