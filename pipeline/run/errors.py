"""How a run ends before its time, and errors as one line that a user can read."""

import signal

from omegaconf.errors import OmegaConfBaseException

EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


class RankError(ChildProcessError):
    """A rank failed; the message has its number and the reason."""


class Stopped(Exception):
    """A signal asked the run to stop; what it has learned is saved."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def one_line(error: BaseException) -> str:
    """Join the message of an error and of what caused it, without the lines that only a programmer can use."""
    if isinstance(error.__cause__, OSError):
        return one_line(error.__cause__)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    noise = ("object_type=", "reference_type=", "full_key:", "To append", "provider=", "Config search path")
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error.__cause__, OmegaConfBaseException):
        lines += one_line(error.__cause__).splitlines()
    lines = [line.removeprefix("ValueError raised while resolving interpolation: ") for line in lines]
    return " ".join(line for line in lines if line and not line.startswith(noise))
