"""Training and prediction from Python: what ``import parallel_epochs as pe`` offers as pe.train, pe.load and pe.embed.

A call composes the same configuration as the command with the same keys, and trains the same weights.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from hydra.errors import HydraException
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.command import arguments, cli, folder as run_folder, schema
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.data.objects import Naming, keys_of, naming
from parallel_epochs.pipeline.products import keys_of as product_keys, product_of
from parallel_epochs.pipeline.run import files, rounds, words
from parallel_epochs.pipeline.run.errors import Stopped  # noqa: F401 - what Ctrl-C raises
from parallel_epochs.pipeline.run.log import LogFile, read_records
from parallel_epochs.pipeline.run.progress import TerminalHandler
from parallel_epochs.pipeline.run.read_back import shown
from parallel_epochs.pipeline.run.saved import SavedRun

# A table of classes may hold these columns, as the key `columns` of the command has them.
COLUMNS = ("all", "class", "top3")
_LOCKS = {"train": threading.RLock(), "apart": threading.RLock()}
# A fork may copy locks that threads of the parent hold.
os.register_at_fork(after_in_child=lambda: _LOCKS.update({name: threading.RLock() for name in _LOCKS}))
_apart: list[contextlib.ExitStack] = []  # one entry for each call that is under way; the first holds what they change


@dataclass(frozen=True)
class Result:
    """A run that has ended.

    Attributes:
        folder: the run directory.
        summary: the content of its ``summary.json``.
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def scores(self) -> dict[str, float]:
        """The metric of each split at the best epoch, by "train", "valid" and "test", and what else was measured."""
        found = {"train": self.summary["train"], "valid": self.summary["best_valid"], "test": self.summary["test"]}
        return {split: score for split, score in found.items() if score is not None} | self.summary.get("scores", {})

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rounds of ``metrics.jsonl``: epoch, loss, learning rate, seconds and, where it was evaluated, scores."""
        return [record for record in read_records(self.folder / "metrics.jsonl") if record["kind"] == "round"]

    @cached_property
    def model(self) -> "Model":
        """The best checkpoint."""
        return load(self.folder)


class Model:
    """A trained model. Its data and weights are read when it is first asked, and stay open.

    Args:
        run: its run.
    """

    def __init__(self, run: SavedRun):
        self.run, self._lock = run, threading.Lock()
        self._warm: Any = None

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes or tasks, in the order of the columns; None for links and where they have numbers.
        """
        return self._open().classes

    @property
    def ids(self) -> np.ndarray:
        """The ids of what :meth:`predict` predicts, in the order of its rows; of links those of all nodes."""
        return self._open().ids

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the run, see :attr:`Result.scores`."""
        return self._result().scores

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rounds of the run, see :attr:`Result.history`."""
        return self._result().history

    def logits(self, data: object = None, *, pairs: Tensor | None = None, nodes: Sequence[Any] | None = None) -> Tensor:
        """Predict logits, or values in their own unit, see :meth:`predict`."""
        return self._rows(data, pairs, nodes)[0]

    def predict(self, data: object = None, *, pairs: object = None, nodes: Sequence[Any] | None = None,
                table: bool = False, columns: str = "all") -> Any:
        """Predict the nodes of a graph, edges, graphs, or links.

        Args:
            data: a ``Data`` or what else :func:`train` takes; a list of SMILES or a list of ``Data`` for models of
                graphs; a path. None: the data of the training, which are predicted once and stay open.
            pairs: nodes whose links are predicted [num_pairs, 2], int64, for models of links. With `table`, pairs of
                ids, as a list or a table with the columns source and target.
            nodes: ids of nodes, edges or graphs, of which alone the predictions are returned. None: all.
            table: return a table with the ids and the names of classes.
            columns: "all", "class" or "top3": which columns classes have in a table, as on the command line.

        Returns:
            [num_rows, columns], float32: probabilities of the classes, of 1 in each binary task, or values in their own
            unit; [num_pairs], the probabilities of links. With `table`, what ``predict output=TABLE`` writes: id,
            split, class and probabilities; of pairs source, target and score.

        Raises:
            ValueError: the data are not like those of the training, and the message says how they differ; or an id is
                not in them.
        """
        nodes = _ids("nodes", nodes)
        if columns not in COLUMNS:
            raise ValueError(f"columns={columns!r} is unknown; choose one of {', '.join(COLUMNS)}")
        if columns != "all" and not table:
            raise ValueError(f"columns={columns!r} is for table=True. Leave it out")
        if table:
            warm = self._open(data)
            with _apart_from_the_caller(self.run.config):
                return warm.table(nodes, columns) if pairs is None else warm.table_of_pairs(pairs)
        rows, kind = self._rows(data, pairs, nodes)
        if kind == "real values":
            return rows
        rows = rows.double()  # as in the tables of `predict`: the last bit would depend on the processor
        return (rows.softmax(1) if kind == "classes" else rows.sigmoid()).float()

    def _rows(self, data: object, pairs: object, nodes: Sequence[Any] | None) -> tuple[Tensor, str]:
        warm = self._open(data)
        with _apart_from_the_caller(self.run.config):
            return warm.rows(nodes, pairs)

    def top(self, k: int, *, sources: Sequence[Any] | None = None, candidates: Sequence[Any] | None = None,
            filtered: bool = True) -> pd.DataFrame:
        """Rank the likeliest targets of each source, as ``predict top=K`` does for a model of links (task=link).

        Args:
            k: targets of a source, at most.
            sources: ids of nodes. None: all sources.
            candidates: ids of the nodes that may be targets. None: all of their side or type.
            filtered: leave out targets that the source is linked to.

        Returns:
            The columns source, target, score (the probability of a link) and rank, with the ids of the data.

        Raises:
            ValueError: an id names no node, or the model does not predict links.
        """
        config = self.run.config
        if not getattr(config, "predicts_links", False):
            raise ValueError(f"{self.run.folder} does not predict links (task=link), whose targets top() ranks")
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise ValueError(f"k must be a whole number of targets, 1 or more, not {k!r}")
        sources, candidates = _ids("sources", sources), _ids("candidates", candidates)
        warm = self._open()
        with _apart_from_the_caller(config):
            return warm.top(int(k), sources, candidates, filtered=filtered)

    def vectors(self, *, table: bool = False) -> Any:
        """Return vectors: those that were learned of nodes or entities, the positions of a layout, or of a graph
        network what its head reads of each node with a label, or of each node for links.

        Args:
            table: return a table with the column id and a column for each number, v0, v1, ...

        Returns:
            [num_rows, dim], float32, or the table.

        Raises:
            ValueError: the model has no vectors.
        """
        config = self.run.config
        product = product_of(config)
        if product.learns_vectors:
            with tempfile.TemporaryDirectory() as scratch:
                path = f"{scratch}/vectors.pt"
                asked = product_keys(config.trainer.name).predict(str(self.run.folder), predictions=path)
                with _apart_from_the_caller(config):
                    product.predict(cli.saved_run(asked, config), asked)
                found = torch.load(path, weights_only=True)
                ids, vectors = np.array(found["names"], object), found["embedding"].numpy()
        else:
            warm = self._open()
            with _apart_from_the_caller(config):
                ids, vectors = warm.ids, warm.vectors.numpy()
        return vectors if not table else pd.DataFrame(
            {"id": ids} | {f"v{number}": column for number, column in enumerate(vectors.T)})

    def module(self) -> torch.nn.Module:
        """Return the trained network alone, in evaluation mode, without the data of the training.

        ``module(x, edge_index, edge_attr)`` computes the logits of each node, or values in their own unit; of a model
        of graphs ``module(x, edge_index, edge_attr, ptr)``. :meth:`prepare` gives these. A simple method that has a
        part in what :meth:`predict` answers (the report names it) is not in the network.

        Raises:
            ValueError: the run predicts links, or learned vectors.
        """
        self._refuse_several("a network")
        return self._open().network

    def prepare(self, data: object = None) -> Data:
        """Prepare a graph as the training data were, for :meth:`module`.

        Args:
            data: as for :meth:`predict`.

        Returns:
            ``x``, ``edge_index``, ``edge_attr`` and, of many graphs, ``ptr``; in the order of :attr:`ids` where all
            nodes have labels.
        """
        self._refuse_several("inputs")
        return self._open(data).inputs()

    def _open(self, data: object = None) -> Any:
        """Open the data of the training, once, or others."""
        product = product_of(self.run.config)
        with _apart_from_the_caller(self.run.config):
            if data is not None:
                return product.open_warm(self.run, data)
            with self._lock:
                if self._warm is None:
                    self._warm = product.open_warm(self.run, None)
                return self._warm

    def _refuse_several(self, what: str) -> None:
        if self.run.others:
            raise ValueError(f"a mean of {1 + len(self.run.others)} runs has not {what} of its own: load one of them")

    def _result(self) -> "Result":
        self._refuse_several("scores and rounds")
        if self.run.shared is not None:
            raise ValueError(f"{self.run.folder} is a model alone, without the history of its run")
        return Result(self.run.folder, json.loads(files.read_text(self.run.folder / "summary.json")))

    def export(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to one file, without its data; :func:`load` opens it.

        Args:
            overwrite: replace a file that holds something else than such a model.

        Raises:
            ValueError: the model cannot predict other data, and says why; or another file is there.
        """
        self._refuse_several("a file")
        path, config = Path(path).expanduser(), self.run.config
        asked = product_keys(config.trainer.name).predict(str(self.run.folder), overwrite=overwrite)
        asked.check_output("export", path, config)
        product_of(config).export(self.run, path)


def _ids(name: str, ids: object) -> list[str] | None:
    """Return ids as texts.

    Raises:
        ValueError: they are no list; names the argument.
    """
    if ids is None:
        return None
    if isinstance(ids, Tensor):
        ids = ids.tolist()
    if not isinstance(ids, (list, tuple, range, np.ndarray, pd.Series, pd.Index)):
        raise ValueError(f"{name} is a list of ids, as ['u1'], and not of type {type(ids).__name__}")
    return list(map(str, ids))


def train(data: object = None, *overrides: str, folder: str | Path | None = None, verbose: bool = True,
          on_round: rounds.OnRound | None = None, **keys: object) -> Result:
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
    cli.register_schema()
    names: dict[str, str] = {}
    with _LOCKS["train"], naming(names):
        config, given = _configure(data, overrides, keys, folder, names)
        is_named, folder = folder is not None or config.resumes, _make_folder(config, folder)
        config, summary = run_folder.begin_or_continue(config, folder, named=cli.named_keys(given), is_named=is_named,
                                                       in_sweep=False)
        if summary is None:
            command = f"{words.command_of('train')} {shlex.join(given)}".strip()
            with _apart_from_the_caller(config), _logging(folder, names, verbose=verbose) as log_config:
                summary = training.run(config, folder, command, log_config=log_config,
                                       beside=partial(rounds.told, folder, on_round))
        return Result(folder, summary)


def load(path: str | Path | Sequence[str | Path], *, checkpoint: str = "best", device: str = "auto",
         trust: bool = False) -> Model:
    """Open a trained model: a run directory, or a file that ``export`` wrote.

    Args:
        path: several, or the directory of a sweep, give a model whose predictions are the mean of those of all.
        checkpoint: "best" by the validation metric, or "last".
        device: "auto", "cpu", "cuda" or "cuda:N".
        trust: allow a class of the user's that the configuration names, and you have not (model=custom).

    Raises:
        ValueError: it is neither.
    """
    cli.register_schema()
    paths: list[Any] = [path] if isinstance(path, (str, Path)) or not isinstance(path, (list, tuple)) else list(path)
    if not paths or not all(isinstance(one, (str, Path)) for one in paths):
        raise ValueError(f"path={shown(path)} names no run: give the directory of one, a file that export wrote, or a "
                         "list of several")
    paths = [Path(one).expanduser() for one in paths]
    loaded = cli.load_runs(cli.members_of(paths[0]) if len(paths) == 1 else paths, trusts=trust)
    first, config, _ = loaded[0]
    options = product_keys(config.trainer.name).evaluate(str(first), checkpoint=checkpoint, device=device)
    schema.check_options(options)
    return Model(cli.saved_runs(options, loaded))


def predict(path: str | Path | Sequence[str | Path], data: object = None, **asked: Any) -> pd.DataFrame:
    """Predict with a trained model: :func:`load`, then :meth:`Model.predict` as a table."""
    return load(path).predict(data, table=True, **asked)


def evaluate(path: str | Path | Sequence[str | Path], **keys: Any) -> dict[str, float]:
    """Compute the metric of each split, as ``python -m pipeline.evaluate run=DIR`` does.

    Args:
        path: as for :func:`load`.
        keys: of the command, as ``method="exact"``.
    """
    run = load(path).run
    asked = product_keys(run.config.trainer.name).evaluate(str(run.folder), **keys)
    schema.check_options(asked)
    with _apart_from_the_caller(run.config):
        return product_of(run.config).evaluate(run, asked)


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
            raise ValueError(f"folder={chosen} cannot be a run directory: {error.strerror}") from None
        return chosen
    new = Path(f"outputs/{config.name}/{time.strftime('%Y-%m-%d_%H-%M-%S')}-s{config.seed}")
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            new.mkdir(parents=True)
            break
        new = new.with_name(f"{new.name.partition('_run')[0]}_run{number}")
    return new


def _configure(data: object, overrides: Sequence[str], keys: dict[str, Any],
               folder: str | Path | None = None, names: dict[str, str] | None = None) -> tuple[RunConfig, list[str]]:
    """Compose and check the configuration of a run.

    Args:
        names: gets what the files of data in memory stand for.

    Returns:
        It, and the arguments of the command that composes it.

    Raises:
        ValueError: what the command would print.
    """
    if "RANK" in os.environ:
        raise ValueError(f"RANK={os.environ['RANK']} is set, as torchrun does, and pe.train starts the ranks itself. "
                         "Call it without torchrun, and give num_ranks")
    if wrong := [text for text in overrides if text.startswith(("hydra", "-"))]:
        raise ValueError(f"{wrong[0]} is for the command. Name the run directory by folder=")
    known, groups = schema.all_keys(), cli.config_groups()
    meant = {"seconds": "tune.seconds"} if keys.get("model") == "auto" else {}
    given = {_full_name(meant.get(name, name), known, groups): value for name, value in keys.items()}
    caches = [text.partition("=")[2] for text in overrides if text.startswith("cache_dir=")]
    cache = Path(given.get("cache_dir", caches[-1] if caches else ".cache")).expanduser()
    given = {name: text for key, value in given.items() for name, text in _describe_value(key, value).items()}
    data_keys = {name: _as_text(value) for name, value in keys_of(data, cache, {} if names is None else names).items()}
    twice = data_keys.keys() & (given.keys() | {text.partition("=")[0] for text in overrides}) - {"data"}
    if twice:
        raise ValueError(f"{min(twice)} is given, and data too, which stands for it: leave one of them out")
    told = arguments.complete([*(f"{name}={text}" for name, text in data_keys.items()), *overrides,
                               *(f"{name}={text}" for name, text in given.items()),
                               *([] if folder is None else [f"hydra.run.dir={arguments.quoted(str(folder))}"])], groups)
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
        raise ValueError(f"{name} means {' or '.join(found)}: name one in full, as in **{{\"{found[0]}\": VALUE}}")
    return found[0] if found else name  # what is unknown is refused with the other arguments


def _describe_value(name: str, value: object) -> dict[str, str]:
    """Write a key and its value as on the command line; a class of a model becomes two keys.

    Raises:
        ValueError: a model that other processes could not import.
    """
    if name == "model" and isinstance(value, torch.nn.Module):
        raise ValueError(f"model= takes the name of a model or a class, not an object of {type(value).__name__}: each "
                         "rank builds its own. Give the class, and its arguments by **{'model.kwargs': {...}}")
    if name == "model" and isinstance(value, type):
        if value.__module__ == "__main__" or "." in value.__qualname__:
            raise ValueError(f"model={value.__qualname__}: write the class into a module of its own, at its top, so "
                             "that other processes can import it")
        return {"model": "custom", "model.path": f"{value.__module__}.{value.__name__}"}
    return {name: _as_text(value)}


def _as_text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_as_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_as_text(item)}' for key, item in value.items())}}}"
    text = str(value)
    is_plain = not isinstance(value, (str, Path)) or re.fullmatch(r"[A-Za-z_][\w./+-]*", text, re.ASCII)
    return text if is_plain else arguments.quoted(text)


@contextlib.contextmanager
def _apart_from_the_caller(config: RunConfig) -> Iterator[None]:
    """Run with gradients and with random numbers of its own, also in the caller's ``torch.no_grad()``.

    The processes of ranks do not import the user's program again, which may train at its top level. What belongs to the
    whole process is changed by the first of several calls in threads, and put back by the last one.

    Raises:
        ValueError: the class of model.path called sys.exit().
    """
    with _LOCKS["apart"]:
        _apart.append(contextlib.ExitStack())
        if len(_apart) == 1:
            for change in (cli.failing_exit(), torch.random.fork_rng(), _hidden_main()):
                _apart[0].enter_context(change)
    try:
        with torch.inference_mode(False):
            yield
    except SystemExit as error:
        module = (getattr(getattr(config, "model", None), "path", None) or "").rpartition(".")[0]
        if error.code or all(frame.f_globals["__name__"] != module for frame, _ in walk_tb(error.__traceback__)):
            raise  # a handler of a signal, say
        raise ValueError(cli.EXITED) from error
    finally:
        with _LOCKS["apart"]:
            last = _apart.pop()
            if not _apart:
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
