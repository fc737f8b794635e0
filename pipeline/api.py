"""Training from Python: what ``import parallel_epochs as pe`` offers as pe.train and pe.embed.

A call composes the same configuration as the command with the same keys, and trains the same weights.
"""

import contextlib
import itertools
import logging
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.errors import HydraException

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.apart import apart_from_the_caller
from parallel_epochs.pipeline.command import arguments, cli, folder as run_folder, schema
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.data.objects import Naming, is_table, keep_table, keys_of, naming
from parallel_epochs.pipeline.model import Result
from parallel_epochs.pipeline.run import rounds, words
from parallel_epochs.pipeline.run.errors import Stopped  # noqa: F401 - what Ctrl-C raises
from parallel_epochs.pipeline.run.log import LogFile
from parallel_epochs.pipeline.run.progress import TerminalHandler

_LOCKS = {"train": threading.RLock()}
# A fork may copy a lock that a thread of the parent holds.
os.register_at_fork(after_in_child=lambda: _LOCKS.update(train=threading.RLock()))


def train(
    data: object = None,
    *overrides: str,
    folder: str | Path | None = None,
    verbose: bool = True,
    on_round: rounds.OnRound | None = None,
    **keys: object,
) -> Result:
    """Train as ``python -m pipeline.train`` does with the same keys.

    Calls in several threads wait for each other. Predictions in other threads do not wait; they take torch's random
    numbers from the same generator as the training.

    Args:
        data: a ``torch_geometric.data.Data``, a ``HeteroData`` or a dict of its attributes, a SciPy matrix, a NetworkX
            graph, a pair of tables (nodes, edges) of pandas or Arrow, or the content of data.schema with such tables
            as paths, which are kept in files of the cache; a path of a file that torch.save wrote; or the name of a
            dataset ("digits"). None: what the keys say.
        overrides: further arguments of the command, as "partition=metis" or "+experiment=digits".
        folder: the run directory. None: a new one below outputs/.
        verbose: print the log. It is written to ``train.log`` in any case.
        on_round: is called with the record of each round, as in :attr:`Result.history`, in another thread of this
            process, soon after the round. If it returns False, the run stops with a checkpoint.
        keys: the keys of the command with their values. The group may be left out where one group alone has the key:
            ``num_layers=7`` is model.num_layers=7. A key with a point is given as ``**{"train.lr": 0.01}``.

    Raises:
        ValueError: the message that the command would print.
        Stopped: a signal asked for it, such as Ctrl-C, or `on_round` did; with ``resume="auto"`` and the same folder it
            goes on.
    """
    if threading.current_thread().name == rounds.THREAD:
        raise ValueError(
            "on_round calls pe.train, which would wait for the end of the run that calls on_round"
        )
    cli.register_schema()
    names: dict[str, str] = {}
    with _LOCKS["train"], naming(names):
        config, given = _configure(data, overrides, keys, folder, names)
        is_named, folder = folder is not None or config.resumes, _make_folder(config, folder)
        config, summary = run_folder.begin_or_continue(
            config, folder, named=cli.named_keys(given), is_named=is_named, in_sweep=False
        )
        if summary is None:
            command = f"{words.command_of('train')} {shlex.join(given)}".strip()
            with (
                apart_from_the_caller(config),
                _logging(folder, names, verbose=verbose) as log_config,
            ):
                summary = training.run(
                    config,
                    folder,
                    command,
                    log_config=log_config,
                    beside=partial(rounds.told, folder, on_round),
                )
        return Result(folder, summary)


def embed(data: object = None, *overrides: str, **keys: Any) -> np.ndarray:
    """Learn a vector for each node: :func:`train` with trainer=node_embedding, then :meth:`Model.vectors`."""
    return train(data, "trainer=node_embedding", *overrides, **keys).model.vectors()


def _make_folder(config: RunConfig, folder: str | Path | None) -> Path:
    """Make the run directory: the named one, that of the run to resume, or a new one."""
    named = config.resume if config.resumes else folder
    if named is not None:
        chosen = Path(named).expanduser()
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"folder={chosen} cannot be a run directory: {error.strerror}"
            ) from None
        return chosen
    new = Path(f"outputs/{config.name}/{time.strftime('%Y-%m-%d_%H-%M-%S')}-s{config.seed}")
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            new.mkdir(parents=True)
            break
        new = new.with_name(f"{new.name.partition('_run')[0]}_run{number}")
    return new


def _configure(
    data: object,
    overrides: Sequence[str],
    keys: dict[str, Any],
    folder: str | Path | None = None,
    names: dict[str, str] | None = None,
) -> tuple[RunConfig, list[str]]:
    """Compose and check the configuration of a run.

    Args:
        names: gets what the files of data in memory stand for.

    Returns:
        It, and the arguments of the command that composes it.

    Raises:
        ValueError: what the command would print.
    """
    if folder is not None and not isinstance(folder, (str, Path)):
        raise ValueError(
            f"folder is of type {type(folder).__name__}: give the path of a run directory"
        )
    if "RANK" in os.environ:
        raise ValueError(
            f"RANK={os.environ['RANK']} is set, as torchrun does, and pe.train starts the ranks itself. "
            "Call it without torchrun, and give num_ranks"
        )
    if wrong := [text for text in (*overrides, *keys) if text.startswith(("hydra", "-"))]:
        raise ValueError(f"{wrong[0]} is for the command. Name the run directory by folder=")
    known, groups = schema.all_keys(), cli.config_groups()
    meant = {"seconds": "tune.seconds"} if keys.get("model") == "auto" else {}
    given = {
        _full_name(meant.get(name, name), known, groups): value for name, value in keys.items()
    }
    _check_names(given, known, groups)
    caches = [text.partition("=")[2] for text in overrides if text.startswith("cache_dir=")]
    cache = given.get("cache_dir", caches[-1] if caches else ".cache")
    if not isinstance(cache, (str, Path)):
        raise ValueError(f"cache_dir is of type {type(cache).__name__}: give the path of a folder")
    cache = Path(cache).expanduser()
    names = {} if names is None else names
    given = {
        key: keep_table(value, f"the table {key}", cache.absolute() / "given", names)
        if is_table(value) and key.startswith("data.")
        else value
        for key, value in given.items()
    }
    given = {
        name: text
        for key, value in given.items()
        for name, text in _describe_value(key, value).items()
    }
    found = keys_of(data, cache, names)
    data_keys = {name: _as_text(name, value) for name, value in found.items()}
    twice = data_keys.keys() & (given.keys() | {text.partition("=")[0] for text in overrides}) - {
        "data"
    }
    if twice:
        raise ValueError(
            f"{min(twice)} is given, and data too, which stands for it: leave one of them out"
        )
    told = arguments.complete(
        [
            *(f"{name}={text}" for name, text in data_keys.items()),
            *overrides,
            *(f"{name}={text}" for name, text in given.items()),
            *([] if folder is None else [f"hydra.run.dir={arguments.quoted(str(folder))}"]),
        ],
        groups,
    )
    try:
        cli.check_command("pipeline.train", training.check_new, needs_data=True, given=told)
        return cli.compose_config(told), told
    except HydraException as error:
        raise ValueError(cli.explain(error)) from error


def _full_name(name: str, names: set[str], groups: Mapping[str, Any]) -> str:
    """Return the key, or the group, that a keyword argument names.

    Raises:
        ValueError: several groups have such a key.
    """
    if name in names or name in groups or "." in name:
        return name
    found = sorted(full for full in names if full.rpartition(".")[2] == name)
    if len(found) > 1:
        raise ValueError(
            f'{name} means {" or ".join(found)}: name one in full, as in **{{"{found[0]}": VALUE}}'
        )
    return found[0] if found else name  # what is unknown is refused with the other arguments


def _check_names(names: Iterable[str], known: set[str], groups: dict[str, list[str]]) -> None:
    """Refuse what is the name of no key, before its value is looked at.

    Raises:
        ValueError: names it, and a key that looks like it.
    """
    for name in names:
        if name not in groups and f"+{name}" not in groups:
            try:
                arguments.check(arguments.parse([f"{name}=0"], known), groups, known)
            except HydraException as error:
                raise ValueError(cli.explain(error)) from error


def _describe_value(name: str, value: object) -> dict[str, str]:
    """Write a key and its value as on the command line; a class of a model becomes two keys.

    Raises:
        ValueError: a model that other processes could not import.
    """
    if name == "model" and isinstance(value, torch.nn.Module):
        raise ValueError(
            f"model= takes the name of a model or a class, not an object of {type(value).__name__}: each "
            "rank builds its own. Give the class, and its arguments by **{'model.kwargs': {...}}"
        )
    if name in ("model", "tracker") and isinstance(value, type):
        if value.__module__ == "__main__" or "." in value.__qualname__:
            raise ValueError(
                f"{name}={value.__qualname__}: write the class into a module of its own, at its top, so "
                "that other processes can import it"
            )
        return {name: "custom", f"{name}.path": f"{value.__module__}.{value.__name__}"}
    return {name: _as_text(name, value)}


def _as_text(name: str, value: object) -> str:
    """Write the value of a key as on the command line.

    Raises:
        ValueError: no key takes an object of its type.
    """
    if isinstance(value, (np.generic, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_as_text(name, item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_as_text(name, item)}' for key, item in value.items())}}}"
    if not isinstance(value, (int, float, str, Path)):
        raise ValueError(
            f"{name} is of type {type(value).__name__}: give a number, a text, a list or a dict of these"
        )
    text = str(value)
    is_plain = not isinstance(value, (str, Path)) or re.fullmatch(
        r"[A-Za-z_][\w./+-]*", text, re.ASCII
    )
    return text if is_plain else arguments.quoted(text)


@contextlib.contextmanager
def _logging(folder: Path, names: dict[str, str], *, verbose: bool) -> Iterator[dict[str, Any]]:
    """Write the log of a run as the command does: into its directory and, if `verbose`, on the screen.

    Args:
        names: what the files of data in memory stand for.

    Yields:
        The configuration of logging for the processes of ranks.
    """
    config = cli.log_config(folder)
    config["filters"]["naming"] = {"()": f"{Naming.__module__}.{Naming.__name__}", "names": names}
    config["handlers"]["stdout"]["filters"].append("naming")
    config["handlers"]["file"]["filters"] = ["naming"]
    file, logger = LogFile(folder / "train.log"), logging.getLogger("parallel_epochs")
    file.setFormatter(logging.Formatter(config["formatters"]["file"]["format"]))
    handlers: list[logging.Handler] = [file]
    if verbose:
        handlers.append(TerminalHandler(sys.stdout))
    else:
        config["root"]["handlers"] = ["file"]
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # or who has handlers of their own would read each line twice
    for handler in handlers:
        handler.addFilter(Naming(names))
        logger.addHandler(handler)
    try:
        yield config
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
        for handler in handlers:
            logger.removeHandler(handler)
        file.close()
