"""Links: which pairs of nodes are linked."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.link_predictor import LinkModel
from parallel_epochs.pipeline.data.cache import load_links
from parallel_epochs.pipeline.data.graph import DataKind
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.data.links import (
    RELATION,
    LinkRelation,
    link_relation_of,
    name_relation,
    sides_of,
)
from parallel_epochs.pipeline.data.node_names import suggest_name
from parallel_epochs.pipeline.gnn.base import link_fusion
from parallel_epochs.pipeline.gnn.base.link_base import fit_link_base, score_each
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import Loader, Task
from parallel_epochs.pipeline.gnn.kinds.base import Kind, Predicted
from parallel_epochs.pipeline.gnn.kinds.nodes import refuse_unlabelled
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.pairs import PairLoader
from parallel_epochs.pipeline.gnn.network import LinkNetwork
from parallel_epochs.pipeline.gnn.predict import top
from parallel_epochs.pipeline.gnn.predict.ids import ids_of as node_ids, look_up, read_texts
from parallel_epochs.pipeline.gnn.predict.table import Table
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.warm_start import learned_of
from parallel_epochs.pipeline.metrics import hits_at
from parallel_epochs.pipeline.names import MASKS, PAIR_COLUMNS, PAIRS, SPLITS
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.tables import Columns

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.kinds.base import Base, Kept, Setup


class LinkKind(Kind):
    """Predicts links between pairs of nodes, decoded from the embeddings of both."""

    unit, has_labels, takes_pairs, has_base = "pairs", False, True, True

    def check(self) -> None:
        if self.config.task.metric is not None:
            hits_at(self.config.task.metric)

    def load(self, content_hash: str | None) -> Data:
        data = load_links(
            self.config.data,
            self.config.cache_dir,
            content_hash=content_hash,
            relation=self.config.task.relation,
            like=learned_of(self.config.train.init, self.config.data.is_stored),
        )
        self.check_data(data)
        return data

    def check_data(self, data: Data) -> None:
        refuse_unlabelled(data, self.config.data.origin())

    def task(self, data: Data) -> LinkTask:
        if data.kind is not DataKind.PAIRS:
            raise ValueError(
                "task=link needs a graph with pairs of nodes, as data=ogb_link reads them; this one has "
                "labels of nodes: set task=node"
            )
        asked = self.config.task.valid_edges
        return LinkTask(
            data,
            hidden_channels=self.config.model.hidden_channels,
            metric=self.config.task.metric,
            valid_edges=self.config.data.allows_valid_edges if asked is None else asked,
        )

    def loader(self, clusters: ClusterLoader) -> Loader:
        task, is_divided = self.config.task, self.config.data.links == "edges"
        return PairLoader(
            clusters,
            pairs_per_step=task.pairs_per_step,
            num_negatives=task.num_negatives,
            hide=task.hide_pairs,
            seed=self.config.seed,
            side=sides_of(clusters.data) if is_divided else None,
        )

    def model(self, encoder: torch.nn.Module, task: Task) -> LinkModel:
        config = self.config
        return LinkModel(
            encoder,
            task.out_channels,
            num_layers=config.task.predictor_layers,
            kind=config.task.predictor,
            reads_index=config.task.common_neighbors,
            dropout=vars(config.model).get("dropout", 0.0),
        )

    def encoder(self, model: torch.nn.Module) -> torch.nn.Module:
        return cast(LinkModel, model).encoder

    def network(self, model: torch.nn.Module, task: Task) -> LinkNetwork:
        return LinkNetwork(cast(LinkModel, model))

    def num_columns(self, model: torch.nn.Module, task: Task) -> int:
        return cast(LinkModel, model).out_channels

    def test_graph(self, task: LinkTask) -> Data | None:
        return task.test_data

    def baselines(self, data: Data, task: LinkTask) -> Iterator[Baseline]:
        return score_each(data, task)

    def record(
        self, data: Data, task: LinkTask, model: torch.nn.Module, rows: Tensor
    ) -> dict[str, Any]:
        return {
            "splits": {
                split: {
                    "rows": len(data[f"{split}_pairs"]),
                    **(
                        {}
                        if split == "train"
                        else {
                            "negatives": len(data[f"{split}_negatives"]),
                            **task.describe(model, rows, split),
                        }
                    ),
                }
                for split in SPLITS
            }
        }

    def read(
        self, asked: GNNPredictConfig, run: str, *, is_new: bool
    ) -> pd.DataFrame | top.Asked | None:
        pairs = asked.pairs
        if asked.calibrate:
            raise ValueError(
                f"calibrate=true is for classes and binary tasks, and {run} has task=link. Leave it out"
            )
        if asked.top is not None:
            return top.read(asked, run)
        self.refuse_nodes(asked, run)
        if pairs is None:
            if is_new:
                raise ValueError("other data have no pairs to predict: name them by pairs=FILE")
            return None
        return read_pairs(pairs)

    def find(
        self,
        given: pd.DataFrame | top.Asked | None,
        data: Data,
        whole: Data,
        asked: GNNPredictConfig,
    ) -> Int[Tensor, "num_pairs 2"] | top.Question | None:
        if given is None:
            if asked.output is not None and not len(data.test_pairs):
                raise ValueError(
                    f"output={asked.output} holds the pairs of the test without pairs=FILE, and "
                    f"{asked.run} has no test pairs. Give a table with the columns source and target as "
                    "pairs=FILE"
                )
            return None
        if isinstance(given, top.Asked):
            return top.find(given, top.links_of(data), ids_of(whole), asked)
        return number_pairs(
            given,
            ids_of(whole),
            "pairs" if asked.pairs is None else f"pairs={asked.pairs}",
            link_relation_of(data),
        )

    def tensors(self, predicted: Predicted) -> dict[str, Tensor]:
        pairs, own = _pairs_of(predicted), link_relation_of(predicted.graph)
        first, width = (
            None if own is None else first_nodes(own),
            cast(LinkModel, predicted.model).out_channels,
        )
        found = {
            "pairs": pairs if first is None else pairs - first,
            "logits": _decode(predicted, pairs),
            "embeddings": predicted.rows[:, -width:],
            "first_node": first,
            "n_id": predicted.graph.get("n_id"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def table(self, predicted: Predicted, asked: GNNPredictConfig) -> Table:
        ids = ids_of(predicted.whole) if predicted.ids is None else predicted.ids
        if (question := predicted.question) is not None:
            score = cast(LinkTask, predicted.task).score_by(
                predicted.model, predicted.rows, of_test=True
            )
            return top.table_of(ids, question.answer(score), len(question.sources))
        pairs = _pairs_of(predicted)
        num_links = len(predicted.graph.test_pairs) if predicted.chosen is None else None
        return table_of(ids, pairs, _decode(predicted, pairs), num_links)

    def fit_base(self, data: Data, task: LinkTask, name: str, seconds: float) -> "Base":
        return fit_link_base(data, task, seconds)

    def other_base(self, kept: "Kept", data: Data) -> "Base":
        return link_fusion.base_of(kept)

    def choose_answer(
        self, setup: "Setup", rows: Tensor, epoch: int, folder: Path
    ) -> dict[str, Any]:
        return link_fusion.finish(setup, rows, epoch, folder)

    def answer(self, predicted: Predicted, setup: "Setup", kept: "Kept") -> Predicted:
        link_fusion.answer_with(cast(LinkTask, setup.task), kept, setup.data)
        return predicted

    def accept(self, data: Data, learned: Learned) -> Data:
        data.update({key: torch.empty(0, 2, dtype=torch.int64) for key in PAIRS})
        data.update(dict.fromkeys(MASKS, torch.zeros(data.num_nodes, dtype=torch.bool)))
        data.metric = learned.metric
        if (
            number := name_relation(data, self.config.task.relation, self.config.data.origin())
        ) is not None:
            data[RELATION] = number
        return data


def _pairs_of(predicted: Predicted) -> Tensor:
    """Return the pairs that are asked for; the positive and then the negative ones of the test if none are."""
    graph = predicted.graph
    return (
        torch.cat([graph.test_pairs, graph.test_negatives])
        if predicted.chosen is None
        else predicted.chosen
    )


def _decode(predicted: Predicted, pairs: Tensor) -> Tensor:
    """Compute the logits of pairs, which are predicted as those of the test are."""
    return cast(LinkTask, predicted.task).decode(
        predicted.model, predicted.rows, pairs.long(), of_test=True
    )


def table_of(
    ids: np.ndarray,
    pairs: Int[Tensor, "num_pairs 2"],
    logits: Float[Tensor, " num_pairs"],
    num_links: int | None,
) -> Table:
    """Return a table with a row for each pair: source, target, whether it is a link, if that is known, and the score.

    The score is the probability of a link among pairs of which every second one is a link, as in training.

    Args:
        ids: of all nodes.
        num_links: number of the pairs, the first ones, that are links; none where nobody knows.
    """

    def columns(part: slice) -> Columns:
        found = dict(zip(PAIR_COLUMNS, ids[pairs[part].long().numpy()].T, strict=True))
        if num_links is not None:
            found["link"] = (np.arange(part.start, part.stop) < num_links).astype(np.int64)
        return found | {"score": logits[part].double().sigmoid().float().numpy()}

    return Table(f"the probabilities of {len(pairs):,} pairs", len(pairs), 1, columns)


def read_pairs(path: str) -> pd.DataFrame:
    """Read a table of pairs of nodes; returns its columns source and target as texts.

    Raises:
        ValueError: there is no such file or column, a table without rows, or a row without an id.
    """
    key = f"pairs={path}"
    table = read_texts(key, path, PAIR_COLUMNS)
    for column in PAIR_COLUMNS:
        if (empty := table[column] == "").any():
            raise ValueError(
                f"{key}: row {int(np.argmax(empty)) + 1} below the header has no {column}"
            )
    return table


def _refuse_loops(table: pd.DataFrame, same: np.ndarray, key: str) -> None:
    """Refuse rows that pair a node with itself."""
    if same.any():
        row = int(np.argmax(same))
        raise ValueError(
            f"{key}: row {row + 1} below the header pairs {table.iloc[row, 0]!r} with itself; a link is between two "
            "different nodes"
        )


def ids_of(data: Data) -> np.ndarray:
    """Return the ids of the nodes of a graph with pairs: their names, or numbers where they have none.

    The numbers are those within the type of a node, of a graph with several types.
    """
    if "names" in data:
        return node_ids(data, None)
    return np.concatenate([np.arange(num_nodes) for num_nodes in data.types.counts])


def first_nodes(own: LinkRelation) -> Int[Tensor, " 2"]:
    """Return the first node of the type of the sources, and of that of the targets, of a relation."""
    return torch.tensor([own.source.start, own.target.start])


def number_pairs(
    table: pd.DataFrame,
    ids: np.ndarray,
    key: str,
    own: LinkRelation | None = None,
) -> Int[Tensor, "num_pairs 2"]:
    """Find the nodes that a table of pairs names; those of a relation have ids that are unique within a type.

    Args:
        table: as :func:`read_pairs` returns it.
        ids: of all nodes.
        key: that names the table, for messages.

    Raises:
        ValueError: names the first id that no node has, and one that looks alike; or a row pairs a node with itself.
    """
    sides = (
        [(table, ids, "the run")]
        if own is None
        else [
            (table[[name]], ids[nodes.start : nodes.stop], f"the type of the {name}s of {own.name}")
            for name, nodes in zip(PAIR_COLUMNS, (own.source, own.target), strict=True)
        ]
    )
    numbers = torch.cat([_look_up(*side, key) for side in sides], dim=1)
    if own is not None:
        numbers += first_nodes(own)
    _refuse_loops(table, (numbers[:, 0] == numbers[:, 1]).numpy(), key)
    return numbers


def _look_up(
    table: pd.DataFrame, ids: np.ndarray, whose: str, key: str
) -> Int[Tensor, "num_pairs num_columns"]:
    """Find the places of ids among those of some nodes.

    Args:
        whose: nodes these are, for messages.
    """
    numbers = np.stack([look_up(table[column].tolist(), ids) for column in table], axis=1)
    unknown = numbers < 0
    if unknown.any():
        row = int(np.argmax(unknown.any(1)))
        name = table.iloc[row, int(np.argmax(unknown[row]))]
        rows = int(unknown.any(1).sum())
        more = f"; {rows:,} rows name such nodes" if rows > 1 else ""
        raise ValueError(
            f"{key}: row {row + 1} below the header names {name!r}, which is not one of the "
            f"{len(ids):,} nodes of {whose}{suggest_name(name, list(map(str, ids)))}{more}"
        )
    return torch.from_numpy(numbers)
