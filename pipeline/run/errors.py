"""How a run ends before its time, and errors as one line that a user can read."""

import signal

from omegaconf.errors import OmegaConfBaseException

EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class RankError(ChildProcessError):
    """A rank failed; the message has its number and the reason."""


class FileError(OSError):
    """The system would not read or write a file; the message names it. What the file holds may be whole."""

    def __init__(self, message: str, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class DamagedFile(ValueError):
    """What a file holds is wrong, however often it is read; the message names it."""


class Stopped(Exception):
    """A signal asked the run to stop, or its watchdog ended it; what was saved can be continued.

    Args:
        signum: the signal; 0 for none.
        reason: if it is not the signal alone.
    """

    def __init__(self, signum: int, reason: str = ""):
        super().__init__(reason or f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_status(self) -> int:
        return EXIT_INTERRUPTED if self.signum == signal.SIGINT else EXIT_TRY_AGAIN


def one_line(error: BaseException) -> str:
    """Join the message of an error and of what caused it, without the lines that only a programmer can use."""
    if isinstance(error.__cause__, OSError) and str(error).startswith("Unable to configure handler"):
        return one_line(error.__cause__)  # logging does not name the file
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    noise = ("object_type=", "reference_type=", "full_key:", "To append", "provider=", "Config search path")
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error.__cause__, OmegaConfBaseException):
        lines += one_line(error.__cause__).splitlines()
    lines = [line.removeprefix("ValueError raised while resolving interpolation: ") for line in lines]
    return " ".join(line for line in lines if line and not line.startswith(noise))
