"""Remembers the classes of model=custom that a user has named. A saved run or study may name no other.

To import a class is to run code of its author's choice. So every class that a user names on the command line is
remembered in a folder that only this user can write to, together with the arguments that it was called with. What
others saved can at most call again what the user has called before.
"""

import hashlib
import json
import logging
import os
import stat
from pathlib import Path

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import RunConfig

log = logging.getLogger(__name__)


def register() -> Path:
    """Return the folder with a file for each class."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "parallel-epochs" / "trusted"


def remember(config: RunConfig) -> None:
    """Remember the class that a configuration names, if it names one, for the user has asked for it."""
    if (call := _call_of(config)) is None or _is_known(call):
        return
    folder = register()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / _digest(call), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(file, "w") as opened:
            opened.write(call)  # for who wants to know; only the name is read
    except OSError as error:
        log.warning("%s cannot be written (%s). You will need trust=true to resume or evaluate this run", folder,
                    error.strerror)
        return
    if not _is_known(call):
        log.warning("%s can be written to by others. You will need trust=true to resume or evaluate this run", folder)


def check(config: RunConfig, origin: Path, *, trust: bool) -> None:
    """Refuse a saved configuration that names a class which the user has not named.

    Args:
        origin: file of the configuration, for the message.
        trust: the user has said that the class may be called. It is remembered.

    Raises:
        ValueError: names the class.
    """
    call = _call_of(config)
    if call is None or _is_known(call):
        return
    if not trust:
        raise ValueError(f"{origin} names the class {json.loads(call)['path']} (model.path). You have not named it in "
                         "a command with these model.kwargs, and importing it would run code that the author of this "
                         "file chose. If you trust the author, add trust=true, once for each class")
    remember(config)


def _call_of(config: RunConfig) -> str | None:
    """Write the class that a configuration names and its arguments as one text; none if it names no class."""
    found = {entry.name: entry.value for entry in keys.entries(config)}
    if "model.path" not in found:  # which only model=custom has
        return None
    return json.dumps({"path": found["model.path"], "kwargs": found["model.kwargs"]}, sort_keys=True, default=repr)


def _digest(call: str) -> str:
    return hashlib.sha256(call.encode()).hexdigest()


def _is_known(call: str) -> bool:
    """Tell whether this user has remembered a call, and nobody else can have done so.

    The folder above is shared with stores, and may belong to a group.
    """
    folder = register()
    try:
        return all(_is_own(path) for path in (folder, folder / _digest(call)))
    except OSError:
        return False


def _is_own(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o022
