"""A call of the library leaves the program that calls it alone: its random numbers, its gradients, its main module."""

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from traceback import walk_tb
from types import ModuleType

import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.run import launch

_LOCKS = {"apart": threading.RLock()}
# A fork may copy locks that threads of the parent hold.
os.register_at_fork(after_in_child=lambda: _LOCKS.update(apart=threading.RLock()))
_APART: list[
    contextlib.ExitStack
] = []  # one entry for each call that is under way; the first holds what they change


@contextlib.contextmanager
def apart_from_the_caller(config: object) -> Iterator[None]:
    """Run with gradients and with random numbers of its own, also in the caller's ``torch.no_grad()``.

    The processes of ranks do not import the user's program again, which may train at its top level. What belongs to the
    whole process is changed by the first of several calls in threads, and put back by the last one.

    Args:
        config: of a run, whose class of model.path may call sys.exit().

    Raises:
        ValueError: the class of model.path called sys.exit().
    """
    with _LOCKS["apart"]:
        _APART.append(contextlib.ExitStack())
        if len(_APART) == 1:
            for change in (
                cli.failing_exit(),
                torch.random.fork_rng(),
                _hidden_main(),
                _own_settings(),
            ):
                _APART[0].enter_context(change)
    try:
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            yield
    except SystemExit as error:
        module = (getattr(getattr(config, "model", None), "path", None) or "").rpartition(".")[0]
        if error.code or all(
            frame.f_globals["__name__"] != module for frame, _ in walk_tb(error.__traceback__)
        ):
            raise  # a handler of a signal, say
        raise ValueError(cli.EXITED) from error
    finally:
        with _LOCKS["apart"]:
            last = _APART.pop()
            if not _APART:
                last.close()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Compute in float32, and leave the caller's number format, start method of processes and loggers as they were."""
    dtype, method = torch.get_default_dtype(), multiprocessing.get_start_method(allow_none=True)
    loggers = [logging.getLogger(name) for name in launch.QUIET]
    levels = [logger.level for logger in loggers]
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        multiprocessing.set_start_method(method, force=True)
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
