"""What the layers tell a user once: warnings, so that they are seen where no logging is set up."""

import logging

import torch

log = logging.getLogger(__name__)
_said: set[str] = set()


def warn(message: str, *, once: str = "") -> None:
    """Log a warning, but not a second one of the same text, or of the same `once`; none where torch.compile traces."""
    if torch.compiler.is_compiling() or (once or message) in _said:
        return
    _said.add(once or message)
    log.warning("%s", message)
