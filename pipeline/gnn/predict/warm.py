"""A run that stays open: its data, its model, and one prediction of everything, of which each question takes its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn.base.fusion import read_kept
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.explain.answer import Explanation
from parallel_epochs.pipeline.gnn.explain.explainer import Explainer
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.kinds.labels import LabelKind, labels_of
from parallel_epochs.pipeline.gnn.kinds.links import ids_of
from parallel_epochs.pipeline.gnn.network import Network
from parallel_epochs.pipeline.gnn.predict import top
from parallel_epochs.pipeline.gnn.predict.command import main_of, predict_rows
from parallel_epochs.pipeline.gnn.predict.in_memory import written
from parallel_epochs.pipeline.gnn.predict.newcomers import Newcomers
from parallel_epochs.pipeline.gnn.predict.ranking import BlockScorer, Links
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import PAIR_COLUMNS
from parallel_epochs.pipeline.run.saved import SavedRun

# Stands for a table in memory where a file is asked for.
IN_MEMORY = "memory.csv"


class Warm:
    """A run whose data and model are open.

    Args:
        run: the run. Its data are read, and everything is predicted, when it is opened.
        data: others than those of the training, as :meth:`pipeline.model.Model.predict` takes them.
        given: keys of the command `predict`.

    Attributes:
        ids: of what is predicted: nodes of the type with labels, edges, rows or graphs; of links all nodes.

    Raises:
        ValueError: the data are not like those of the training.
    """

    def __init__(self, run: SavedRun[GNNConfig], data: object, given: Mapping[str, object]):
        self._run = run
        with written(data, run.config.data, run.folder, given) as found:
            self._asked = keys.replaced(GNNPredictConfig(str(run.folder)), found)
            keys.check(self._asked)
            is_other = any(name.startswith("data.") for name in found)
            wanted = replace(self._asked)
            if wanted.embeddings:
                wanted.output = IN_MEMORY
            if (
                is_other and kind_of(run.config).takes_pairs
            ):  # other data have no pairs of their own
                wanted.top, wanted.output = 1, IN_MEMORY
            self._setup, predicted = predict_rows(run, wanted)
            self._kind = self._setup.kind
            names = (
                ids_of(predicted.whole)
                if self._kind.takes_pairs
                else cast(LabelKind, self._kind).ids(predicted)
            )
        self._predicted = replace(predicted, ids=names, question=None)
        types, self._own = predicted.graph.types, slice(0, len(names))
        if self._kind.is_one_graph and not self._kind.takes_pairs:
            nodes = types.nodes_of(types.labelled)
            self._own = slice(nodes.start, nodes.stop)
        self.ids = names[self._own]

    @cached_property
    def _places(self) -> tuple[dict[str, int], frozenset[str]]:
        """The row of each id, and the ids that several rows have."""
        names = pd.Index(self.ids.astype(str))
        return dict(zip(names.tolist(), range(len(names)))), frozenset(names[names.duplicated()])

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes or tasks; none for links, and where they have numbers."""
        if self._kind.takes_pairs:
            return None
        return labels_of(self._predicted.whole, self._predicted.task.out_channels)

    def rows(self, nodes: Sequence[Any] | None, pairs: object) -> tuple[Tensor, str]:
        """Return logits or values, and the kind of the labels; see :meth:`pipeline.model.Model.predict`.

        Raises:
            ValueError: an id or a pair names no node, or pairs do not fit the run.
        """
        self._refuse_pairs(pairs)
        predicted = self._predicted
        if pairs is not None:
            predicted = self._with_pairs(pairs)
        elif nodes is not None:
            return predicted.rows[self._find(nodes)], predicted.task.kind
        return main_of(self._kind.tensors(predicted))[1], predicted.task.kind

    @cached_property
    def newcomers(self) -> Newcomers:
        """An object that predicts new rows; see :meth:`pipeline.model.Model.newcomers`."""
        return Newcomers(self._run)

    def table(self, nodes: Sequence[Any] | None, columns: str) -> pd.DataFrame:
        """Return what `predict output=TABLE` writes, of some nodes or of all; see :meth:`pipeline.model.Model.predict`.

        Raises:
            ValueError: an id names no node, or `columns` does not fit the run.
        """
        self._refuse_pairs(None)
        asked, predicted = replace(self._asked, columns=columns), self._predicted
        self._kind.refuse_columns(asked, predicted.task)
        chosen = (
            torch.arange(self._own.start, self._own.stop) if nodes is None else self._find(nodes)
        )
        part = replace(predicted, rows=predicted.rows[chosen], chosen=chosen, is_whole=False)
        return self._kind.table(part, asked).frame()

    def table_of_pairs(self, pairs: object) -> pd.DataFrame:
        """Return the probabilities of pairs of ids, in columns source, target and score; see :meth:`rows`."""
        self._refuse_pairs(pairs)
        return self._kind.table(self._with_pairs(pairs), self._asked).frame()

    def _with_pairs(self, pairs: object) -> Predicted:
        """Return predictions with the pairs of ids that are asked for.

        Args:
            pairs: a table with the columns source and target, or a list or a tensor of pairs.
        """
        predicted, names = self._predicted, list(PAIR_COLUMNS)
        given = pairs.tolist() if isinstance(pairs, Tensor) else cast(Any, pairs)
        try:
            table = given if isinstance(given, pd.DataFrame) else pd.DataFrame(given, columns=names)
            table = table[names].map(str)
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                "pairs is a list of pairs of ids, or a table with the columns source and target"
            ) from None
        chosen = self._kind.find(table, predicted.graph, predicted.whole, self._asked)
        return replace(predicted, chosen=cast(Tensor, chosen))

    def top(
        self, k: int, sources: list[str] | None, candidates: list[str] | None, *, filtered: bool
    ) -> pd.DataFrame:
        """Rank the likeliest targets; see :meth:`pipeline.model.Model.top`."""
        ids, asked = (
            cast(np.ndarray, self._predicted.ids),
            replace(self._asked, top=k, filtered=filtered),
        )
        for name, given in (("sources", sources), ("candidates", candidates)):
            if given is not None and (not given or len(set(given)) < len(given)):
                raise ValueError(f"{name} must hold ids, each once")
        question = top.find(top.Asked(sources, candidates), self._links, ids, asked)
        return top.table_of(ids, question.answer(self._score), len(question.sources)).frame()

    @cached_property
    def _links(self) -> Links:
        return top.links_of(cast(Data, self._predicted.graph))

    @cached_property
    def _score(self) -> BlockScorer:
        """Scores of links, with the paths that they are computed from."""
        predicted = self._predicted
        return cast(LinkTask, predicted.task).score_by(
            predicted.model, predicted.rows, of_test=True
        )

    @cached_property
    def vectors(self) -> Tensor:
        """The inputs of the model's head for each of `ids`; of links the embeddings of nodes, float32.

        Raises:
            ValueError: the model has no such head, or predicts graphs.
        """
        if self._kind.takes_pairs:
            return self._kind.tensors(replace(self._predicted, chosen=torch.empty(0, 2).long()))[
                "embeddings"
            ]
        if not self._kind.is_one_graph:
            raise ValueError(
                f"{self._run.folder} predicts graphs, which have no vectors: call predict()"
            )
        predicted = self._predicted
        if predicted.embeddings is None:
            _, predicted = predict_rows(
                self._run, replace(self._asked, embeddings=True, output=IN_MEMORY)
            )
        assert predicted.embeddings is not None
        return predicted.embeddings[self._own]

    def explain(self, asked: object, top: int, label: str | None, key: str = "id") -> Explanation:
        """Explain the prediction of an id, by a key; see :meth:`pipeline.model.Model.explain`.

        Raises:
            ValueError: the id names nothing, or there is no such class.
        """
        return self.explainer.explain(int(self._find([asked], key)), top=top, label=label)

    @cached_property
    def explainer(self) -> Explainer:
        """Explains predictions."""
        return Explainer(self._setup, read_kept(self._run), cast(np.ndarray, self._predicted.ids))

    @property
    def network(self) -> Network:
        """The trained network alone; see :meth:`pipeline.model.Model.module`."""
        if self._kind.takes_pairs:
            raise ValueError(
                f"{self._run.folder} predicts links, by a network and a predictor of pairs: call "
                "predict() or vectors()"
            )
        return Network(self._setup.model, cast(NodeTask, self._setup.task))

    def inputs(self) -> Data:
        """Return a copy of the inputs of the network; see :meth:`Setup.inputs`."""
        return self._setup.inputs().clone()

    def _refuse_pairs(self, pairs: object) -> None:
        """Refuse pairs of nodes for a model of labels, and a model of links without them."""
        if self._kind.takes_pairs != (pairs is not None):
            raise ValueError(
                "pairs= is for models of links (task=link)"
                if pairs is not None
                else "this model predicts links: name the pairs of nodes by pairs="
            )

    def _find(self, nodes: Sequence[Any], key: str = "nodes") -> Tensor:
        """Return the numbers of nodes, given their ids by a key.

        Raises:
            ValueError: names the first id that no node has.
        """
        wanted = list(map(str, nodes))
        places, repeated = self._places
        if repeated and (several := [name for name in wanted if name in repeated]):
            raise ValueError(
                f"{key}={several[0]}: several {self._kind.unit} have this id"
                + (": leave nodes out" if key == "nodes" else ", and it names none of them")
            )
        found = [places.get(name, -1) for name in wanted]
        if -1 in found:
            raise ValueError(
                f"{key}: none of the {len(self.ids):,} {self._kind.unit} has the id "
                f"{wanted[found.index(-1)]!r}; they are called "
                f"{', '.join(map(str, self.ids[:3]))}, ..."
            )
        return self._own.start + torch.tensor(found, dtype=torch.int64)
