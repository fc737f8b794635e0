"""Notices of the layers to the user, each given once. They are warnings, which are shown without any logging set-up."""

import logging

import torch

log = logging.getLogger(__name__)
_said: set[str] = set()


def warn(message: str, *, once: str = "") -> None:
    """Log a warning unless the same text, or the same `once`, was logged before, or torch.compile is tracing."""
    if torch.compiler.is_compiling() or (once or message) in _said:
        return
    _said.add(once or message)
    log.warning("%s", message)
