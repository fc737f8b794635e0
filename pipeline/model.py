"""Trained models from Python: what ``import parallel_epochs as pe`` offers as pe.load, pe.predict and pe.evaluate."""

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.apart import apart_from_the_caller
from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.keys import replaced
from parallel_epochs.pipeline.products import keys_of as product_keys, product_of
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.pipeline.run.read_back import shown
from parallel_epochs.pipeline.run.saved import SavedRun

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.explain.answer import Explanation
    from parallel_epochs.pipeline.gnn.predict.newcomers import Newcomers
    from parallel_epochs.pipeline.serving.app import App

# A table of classes may hold these columns, as the key `columns` of the command has them.
COLUMNS = ("all", "class", "top3")
# Keys of `predict` and `evaluate` that are keys here too, in addition to those of other data.
KEYS = ("method", "num_views", "num_parts", "num_neighbors", "calibrate")
_OPEN: "weakref.WeakSet[Model]" = weakref.WeakSet()


def _renew_locks() -> None:
    """Give the models of a forked process locks of their own; threads of the parent may have held theirs."""
    for model in _OPEN:
        model._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


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
        found = {
            "train": self.summary["train"],
            "valid": self.summary["best_valid"],
            "test": self.summary["test"],
        }
        return {
            split: score for split, score in found.items() if score is not None
        } | self.summary.get("scores", {})

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rounds of ``metrics.jsonl``: epoch, loss, learning rate, seconds and, where it was evaluated, scores."""
        return [
            record
            for record in read_records(self.folder / "metrics.jsonl")
            if record["kind"] == "round"
        ]

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
        self._warm: dict[str, Any] = {}
        _OPEN.add(self)

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes or tasks, in the order of the columns; None for links and where they have numbers."""
        return self._open().classes

    @property
    def ids(self) -> np.ndarray:
        """The ids of what :meth:`predict` predicts, in the order of its rows; of links those of all nodes."""
        return self._open().ids.copy()

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the run, see :attr:`Result.scores`."""
        return self._result().scores

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rounds of the run, see :attr:`Result.history`."""
        return self._result().history

    def logits(
        self,
        data: object = None,
        *,
        pairs: object = None,
        nodes: Sequence[Any] | None = None,
        **keys: object,
    ) -> Tensor:
        """Predict logits, or values in their own unit, see :meth:`predict`."""
        return self._rows(data, pairs, _ids("nodes", nodes), keys)[0]

    def predict(
        self,
        data: object = None,
        *,
        pairs: object = None,
        nodes: Sequence[Any] | None = None,
        triples: object = None,
        top: int | None = None,
        filtered: bool = True,
        table: bool = False,
        columns: str = "all",
        **keys: object,
    ) -> Any:
        """Predict the nodes of a graph, edges, graphs, links, or the answers to questions about a knowledge graph.

        Args:
            data: a ``Data`` or what else :func:`train` takes; a list of SMILES or a list of ``Data`` for models of
                graphs; a path. None: the data of the training, which are predicted once and stay open.
            pairs: pairs of ids of nodes whose links are predicted, as a list, a tensor or a table with the columns source
                and target, for models of links.
            nodes: ids of nodes, edges or graphs, of which alone the predictions are returned. None: all.
            triples: questions to a knowledge graph, (head, relation, "?") or ("?", relation, tail), as a list or a
                table with the columns head, relation and tail. A whole triple is scored.
            top: answers to a question (10), or of a model of links the likeliest targets of each node of `nodes`, as
                :meth:`top` ranks them.
            filtered: leave out answers, or targets, that the training data hold.
            table: return a table with the ids and the names of classes.
            columns: "all", "class" or "top3": which columns classes have in a table, as on the command line.
            keys: further keys of the command ``predict``, as ``calibrate=True``, ``smooth="none"`` or
                ``known_labels="all"``. A key of a table takes a table too: ``label_table=rows``.

        Returns:
            [num_rows, columns], float32: probabilities of the classes, of 1 in each binary task, or values in their own
            unit; [num_pairs], the probabilities of links. With `table`, what ``predict output=TABLE`` writes: id,
            split, class and probabilities; of pairs source, target and score. Of triples and with `top`, always a
            table: line (the question, from 0), head, relation, tail, asked, place and score; or that of :meth:`top`.

        Raises:
            ValueError: the data are not like those of the training, and the message says how they differ; or an id is
                not in them.
        """
        nodes = _ids("nodes", nodes)
        if columns not in COLUMNS:
            raise ValueError(f"columns={columns!r} is unknown; choose one of {', '.join(COLUMNS)}")
        if columns != "all" and not table:
            raise ValueError(f"columns={columns!r} is for table=True. Leave it out")
        if triples is not None:
            self._refuse_beside("triples", data=data, pairs=pairs, nodes=nodes, **keys)
            warm = self._open()
            if not hasattr(warm, "answers"):
                raise ValueError(
                    f"triples= is for runs of trainer=knowledge, and {self.run.folder} is none"
                )
            most = _number("top", 10 if top is None else top)
            with apart_from_the_caller(self.run.config):
                return warm.answers(triples, top=most, filtered=filtered)
        if top is not None:
            self._refuse_beside("top", data=data, pairs=pairs, **keys)
            return self.top(top, sources=nodes, filtered=filtered)
        if not filtered:
            raise ValueError("filtered=False is for top= and triples=. Leave it out")
        if table:
            warm = self._open_rows(data, keys)
            with apart_from_the_caller(self.run.config):
                return warm.table(nodes, columns) if pairs is None else warm.table_of_pairs(pairs)
        rows, kind = self._rows(data, pairs, nodes, keys)
        if kind == "real values":
            return rows
        rows = (
            rows.double()
        )  # as in the tables of `predict`: the last bit would depend on the processor
        return (rows.softmax(1) if kind == "classes" else rows.sigmoid()).float()

    @staticmethod
    def _refuse_beside(name: str, **others: object) -> None:
        """Refuse arguments that do not go together with the named one."""
        if wrong := [other for other, value in others.items() if value is not None]:
            raise ValueError(f"{name}= and {wrong[0]}= exclude each other. Give one of them")

    def _rows(
        self, data: object, pairs: object, nodes: Sequence[Any] | None, keys: Mapping[str, object]
    ) -> tuple[Tensor, str]:
        warm = self._open_rows(data, keys)
        with apart_from_the_caller(self.run.config):
            rows, kind = warm.rows(nodes, pairs)
            return rows.clone(), kind  # the caller may change them

    def top(
        self,
        k: int,
        *,
        sources: Sequence[Any] | None = None,
        candidates: Sequence[Any] | None = None,
        filtered: bool = True,
    ) -> pd.DataFrame:
        """Rank the likeliest targets of each source, as ``predict top=K`` does for a model of links (task=link).

        Of a run that learned vectors these are the nearest vectors.

        Args:
            k: targets of a source, at most.
            sources: ids of nodes. None: all sources.
            candidates: ids of the nodes that may be targets. None: all of their side or type.
            filtered: leave out targets that the source is linked to. Vectors know of no links.

        Returns:
            The columns source, target, score (the probability of a link, or the cosine) and rank, with the ids of the
            data.

        Raises:
            ValueError: an id names no node, or the model neither predicts links nor has learned vectors.
        """
        config = self.run.config
        if not (product_of(config).learns_vectors or config.predicts_links):
            raise ValueError(
                f"{self.run.folder} does not predict links (task=link), whose targets top() ranks"
            )
        k = _number("k", k)
        sources, candidates = _ids("sources", sources), _ids("candidates", candidates)
        warm = self._open()
        with apart_from_the_caller(config):
            return warm.top(k, sources, candidates, filtered=filtered)

    def vectors(self, data: object = None, *, table: bool = False) -> Any:
        """Return vectors: those that were learned of nodes or entities, the positions of a layout, or of a graph
        network what its head reads of each node with a label, or of each node for links.

        Args:
            data: of a graph network, other data, as for :meth:`predict`.
            table: return a table with the column id and a column for each number, v0, v1, ...

        Returns:
            [num_rows, dim], float32, or the table.

        Raises:
            ValueError: the model has no vectors.
        """
        learns = product_of(self.run.config).learns_vectors
        warm = (
            self._open(data)
            if data is None or learns
            else product_of(self.run.config).open_warm(self.run, data, {"embeddings": True})
        )
        with apart_from_the_caller(self.run.config):
            ids, vectors = warm.ids, warm.vectors.numpy().copy()
        return (
            vectors
            if not table
            else pd.DataFrame(
                {"id": ids} | {f"v{number}": column for number, column in enumerate(vectors.T)}
            )
        )

    def explain(self, id: object, *, top: int = 10, label: str | None = None) -> "Explanation":
        """Say which columns, neighbours and edges carry a prediction, as the command ``explain`` does.

        Args:
            id: of a node, an edge or a graph.
            top: rows of each table, at most.
            label: the class or task whose score is explained. None: the likeliest.

        Returns:
            An :class:`~pipeline.gnn.explain.answer.Explanation`: ``print`` shows it, ``columns``, ``neighbours`` and
            ``edges`` are tables, ``to_dict`` gives what JSON can hold, and ``write`` a file.

        Raises:
            ValueError: the id names nothing, `top` is no whole number, or the run learned vectors.
        """
        cli.refuse_explanation(self.run.folder, self.run.config, self.run.shared)
        most, warm = _number("top", top), self._open()
        with apart_from_the_caller(self.run.config), torch.enable_grad():
            return warm.explain(id, most, label)

    def module(self, data: object = None) -> torch.nn.Module:
        """Return the trained network alone, in evaluation mode, without the data of the training.

        ``module(x, edge_index, edge_attr)`` computes the logits of each node, or values in their own unit; of a model
        of graphs ``module(x, edge_index, edge_attr, ptr)``. :meth:`prepare` gives these. A simple method that has a
        part in what :meth:`predict` answers (the report names it) is not in the network.

        Args:
            data: of a file without data, those that the network is built for, as for :meth:`predict`.

        Raises:
            ValueError: the run predicts links, or learned vectors.
        """
        return self._open_rows(data).network

    def prepare(self, data: object = None) -> Data:
        """Prepare a graph as the training data were, for :meth:`module`.

        Args:
            data: as for :meth:`predict`.

        Returns:
            ``x``, ``edge_index``, ``edge_attr`` and, of many graphs, ``ptr``; in the order of :attr:`ids` where all
            nodes have labels.
        """
        return self._open_rows(data).inputs()

    def newcomers(self) -> "Newcomers":
        """Return what predicts new rows with edges to known nodes: ``newcomers().predict(rows, edges)`` is a table.

        Rows and edges are lists of dicts with the columns of the tables of the training. The tables are not read again.

        Raises:
            ValueError: the model cannot do this, and the message says why.
        """
        with apart_from_the_caller(self.run.config):
            return self._open_rows().newcomers

    def app(self, **limits: Any) -> "App":
        """Return an application (ASGI) that answers requests about this model, to be mounted in another one.

        It asks for no token unless it gets one; see the page "Serving".

        Args:
            limits: of :class:`pipeline.serving.limits.ServiceLimits`, such as ``max_rows=100`` or ``token="..."``.
        """
        from parallel_epochs.pipeline.serving.app import App
        from parallel_epochs.pipeline.serving.limits import ServiceLimits

        return App(self, ServiceLimits(**limits))

    def _open_rows(
        self, data: object = None, given: Mapping[str, object] = MappingProxyType({})
    ) -> Any:
        """Open the data of the training, or others, of a model that predicts rows.

        Raises:
            ValueError: the run learned vectors.
        """
        if product_of(self.run.config).learns_vectors:
            raise ValueError(
                f"{self.run.folder} was trained by trainer={self.run.config.trainer.name}: ask for its "
                "vectors() or top()"
            )
        return self._open(data, given)

    def _open(self, data: object = None, given: Mapping[str, object] = MappingProxyType({})) -> Any:
        """Open the data of the training, once for each choice of keys, or others."""
        product = product_of(self.run.config)
        named = (
            {}
            if not given
            else schema.named_keys(
                product_keys(self.run.config.trainer.name).predict(str(self.run.folder)),
                given,
                KEYS,
            )
        )
        if (
            self.run.shared is not None
            and data is None
            and not any(name.startswith("data.") for name in named)
        ):
            raise ValueError(
                f"{self.run.folder} has no data of its own: give those to predict, as predict(data)"
            )
        with apart_from_the_caller(self.run.config):
            if data is not None or any(name.startswith("data.") for name in named):
                return product.open_warm(self.run, data, named)
            with self._lock:
                if (key := repr(sorted(named.items()))) not in self._warm:
                    self._warm[key] = product.open_warm(self.run, None, named)
                return self._warm[key]

    def _result(self) -> "Result":
        if self.run.shared is not None:
            raise ValueError(f"{self.run.folder} is a model alone, without the history of its run")
        return Result(
            self.run.folder, json.loads(files.read_text(self.run.folder / "summary.json"))
        )

    def export(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to one file, without its data; :func:`load` opens it.

        Args:
            overwrite: replace a file that holds something else than such a model.

        Raises:
            ValueError: the model cannot predict other data, and says why; or another file is there.
        """
        path, config = Path(path).expanduser(), self.run.config
        asked = product_keys(config.trainer.name).predict(str(self.run.folder), overwrite=overwrite)
        asked.check_output("export", path, config)
        product_of(config).export(self.run, path, asked)


def load(
    path: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    trust: bool = False,
) -> Model:
    """Open a trained model: a run directory, or a file that ``export`` wrote.

    Args:
        checkpoint: "best" by the validation metric, or "last".
        device: "auto", "cpu", "cuda" or "cuda:N".
        trust: allow a class of the user's that the configuration names, and you have not (model=custom).

    Raises:
        ValueError: it is neither.
    """
    cli.register_schema()
    if not isinstance(path, (str, Path)):
        raise ValueError(
            f"path={shown(path)} names no run: give its directory, or a file that export wrote"
        )
    config, content = cli.load_run(Path(path).expanduser(), trusts=trust)
    options = product_keys(config.trainer.name).evaluate(
        str(Path(path).expanduser()), checkpoint=checkpoint, device=device
    )
    schema.check_options(options)
    return Model(cli.saved_run(options, config, content))


def predict(path: str | Path, data: object = None, **asked: Any) -> pd.DataFrame:
    """Predict with a trained model: :func:`load`, then :meth:`Model.predict` as a table, with the same arguments."""
    return load(path).predict(data, table=True, **asked)


def evaluate(path: str | Path, **keys: object) -> dict[str, float]:
    """Compute the metric of each split, as ``python -m pipeline.evaluate run=DIR`` does.

    Args:
        path: as for :func:`load`.
        keys: of the command, as ``method="exact"``.
    """
    run = load(path).run
    options = product_keys(run.config.trainer.name).evaluate(str(run.folder))
    asked = replaced(options, schema.named_keys(options, keys, KEYS))
    schema.check_options(asked)
    with apart_from_the_caller(run.config):
        return product_of(run.config).evaluate(run, asked)


def _number(name: str, value: object) -> int:
    """Return a number of answers.

    Raises:
        ValueError: it is none; names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, not {value!r}")
    return int(value)


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
        raise ValueError(
            f"{name} is a list of ids, as ['u1'], and not of type {type(ids).__name__}"
        )
    return list(map(str, ids))
