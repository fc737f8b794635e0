"""Remembers the classes that a user has named (model.path, tracker.path). A saved run or study may name no other.

To import a class is to run code of its author's choice. So every class that a user names on the command line is
remembered in a folder that only this user can write to, together with the arguments that it was called with. What
others saved can at most call again what the user has called before.
"""

import hashlib
import json
import logging
import os
import stat
from collections.abc import Collection
from pathlib import Path

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.run import files

# The key that names the class of tracker=custom.
TRACKER = "tracker.path"

log = logging.getLogger(__name__)


def register() -> Path:
    """Return the folder with a file for each class."""
    return files.user_records() / "trusted"


def remember(config: RunConfig) -> None:
    """Remember the classes that a configuration names, for the user has asked for them."""
    for call in _calls_of(config).values():
        if not _is_known(call):
            _remember(call)


def _remember(call: str) -> None:
    folder, reason = register(), "others can write to it"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(folder / _digest(call), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(file, "w") as opened:
            opened.write(call)  # for who wants to know; only the name is read
    except OSError as error:
        reason = str(error.strerror)
    if not _is_known(call):
        log.warning(
            "%s cannot be used (%s). You will need trust=true to resume or evaluate this run",
            folder,
            reason,
        )


def check(
    config: RunConfig,
    origin: Path,
    *,
    trust: bool,
    trains: bool = False,
    named: Collection[str] = (),
) -> None:
    """Refuse a saved configuration that names a class which the user has not named.

    Args:
        origin: file of the configuration, for the message.
        trust: the user has said that the classes may be called. They are remembered.
        trains: whether the tracker is called too.
        named: keys that this command names.

    Raises:
        ValueError: names the class.
    """
    for key, call in _calls_of(config).items():
        if key in named or _is_known(call) or key == TRACKER and not trains:
            continue
        if not trust:
            given = "in a command with these model.kwargs" if key != TRACKER else "in a command"
            raise ValueError(
                f"{origin} names the class {json.loads(call)['path']} ({key}). You have not named it "
                f"{given}, and importing it would run code that the author of this file chose. If you "
                "trust the author, add trust=true, once for each class"
            )
        _remember(call)


def _calls_of(config: RunConfig) -> dict[str, str]:
    """Write each class that a configuration names, with its arguments, as a text, by the key that names it."""
    found = {entry.name: entry.value for entry in keys.entries(config)}
    calls = {}
    if "model.path" in found:  # which only model=custom has
        calls["model.path"] = {"path": found["model.path"], "kwargs": found["model.kwargs"]}
    if found[TRACKER] is not None:
        calls[TRACKER] = {"path": found[TRACKER], "is": "tracker"}
    return {key: json.dumps(call, sort_keys=True, default=repr) for key, call in calls.items()}


def _digest(call: str) -> str:
    return hashlib.sha256(call.encode()).hexdigest()


def _is_known(call: str) -> bool:
    """Tell whether this user has remembered a call, and nobody else can have done so.

    The folder above is shared with stores, and may belong to a group.
    """
    folder = register()
    try:
        found = [path.lstat() for path in (folder, folder / _digest(call))]
    except OSError:
        return False
    return all(
        status.st_uid == os.geteuid()
        and not stat.S_ISLNK(status.st_mode)
        and not status.st_mode & 0o022
        for status in found
    )
