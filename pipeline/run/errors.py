"""The errors that end a run early, and their messages as one line for the user."""

import os
import re
import resource
import shlex
import signal
from errno import EMFILE
from importlib import metadata
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

import parallel_epochs

EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class RankError(ChildProcessError):
    """A rank failed. The message gives its number and the reason."""


class FileError(OSError):
    """The system could not read or write a file, which the message names. The content of the file may be intact."""

    def __init__(self, message: str, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class InUse(ValueError):
    """Another process holds a lock."""


class DamagedFile(ValueError):
    """The content of a file is wrong, and reading it again would not help. The message names the file."""


class Stopped(Exception):
    """A signal asked the run to stop, or the watchdog ended it. The run can be resumed from its last checkpoint.

    Args:
        signum: the signal; 0 for none.
        reason: the message, if the signal alone does not explain it.
    """

    def __init__(self, signum: int, reason: str = ""):
        super().__init__(reason or f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_status(self) -> int:
        return EXIT_INTERRUPTED if self.signum == signal.SIGINT else EXIT_TRY_AGAIN


# Characters that move the cursor, change colours or titles, ring, or reorder a line; halves of pairs cannot be printed.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Write characters that steer a terminal as \x1b, for a message may hold names that others chose."""
    return STEERING.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\x80" else f"\\u{ord(found[0]):04x}",
        text,
    )


def one_line(error: BaseException) -> str:
    """Join the messages of an error and of its cause in one line, without what only a programmer can use."""
    if isinstance(error.__cause__, OSError) and str(error).startswith(
        "Unable to configure handler"
    ):
        return one_line(error.__cause__)  # logging does not name the file
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_folder():
        return "the current folder has been deleted: change to one that exists, and run the command again"
    if isinstance(error, OSError) and error.errno == EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"this process may have {most} files open, and that is not enough: raise the limit by "
            f"ulimit -n {max(1024, 2 * most)}"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    noise = (
        "object_type=",
        "reference_type=",
        "full_key:",
        "To append",
        "provider=",
        "Config search path",
    )
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error.__cause__, OmegaConfBaseException):
        lines += one_line(error.__cause__).splitlines()
    lines = [
        line.removeprefix("ValueError raised while resolving interpolation: ") for line in lines
    ]
    return " ".join(line for line in lines if line and not line.startswith(noise))


def _has_folder() -> bool:
    """Tell whether the current folder is there still."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of pyproject.toml, for the way this program came here.

    In a checkout it uses the versions that were tested. Elsewhere it names these packages: no index has ours.
    """
    root = Path(parallel_epochs.__file__).resolve().parents[1]
    if (root / "pyproject.toml").exists():
        here = Path.cwd() == root
        constraints = "constraints.txt" if here else shlex.quote(str(root / "constraints.txt"))
        return f"pip install -c {constraints} -e '{'.' if here else root}[{extra}]'"
    needed = [
        text.partition(";")[0].strip()
        for text in metadata.requires("parallel-epochs") or ()
        if re.search(rf"extra == ['\"]{extra}['\"]", text)
    ]
    return f"pip install {shlex.join(needed)}"
