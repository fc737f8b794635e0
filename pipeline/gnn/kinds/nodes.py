"""The labels of nodes."""

from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.base_config import refuse_without_labels
from parallel_epochs.pipeline.data.join_types import refuse_unread
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.labels import LabelKind
from parallel_epochs.pipeline.gnn.predict import ids
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import TEXT_SCORES
from parallel_epochs.pipeline.run.tables import Columns


class NodeKind(LabelKind):
    """Predicts the labels of nodes. Of a graph with several types of nodes, those of one type have labels."""

    unit, learns, reads_base = "nodes", NodeTask, True

    def check_data(self, data: Data) -> None:
        origin, weight = self.config.data.origin(), self.config.task.text_scores
        refuse_unread(data.types, origin)
        refuse_unlabelled(data, origin)
        super().check_data(data)
        if weight and TEXT_SCORES not in data:
            raise ValueError(
                f"task.text_scores={weight:g} needs scores of texts among the features, and {origin} has "
                "none. Leave it out"
            )

    def tensors(self, predicted: Predicted) -> dict[str, Tensor]:
        found, own = super().tensors(predicted), self._labelled(predicted.graph)
        for name in {"logits", "values"} & found.keys():
            found[name] = found[name][own].clone()  # a view would be saved with all rows
        if "n_id" in predicted.graph:
            found["n_id"] = predicted.graph.n_id[own]
        return found

    def inputs(self, data: Data, task: Task) -> Tensor:
        return cast(NodeTask, task).inputs(data, data.train_mask)

    def num_rows(self, data: Data) -> int:
        return data.num_nodes

    def ids(self, predicted: Predicted) -> np.ndarray:
        return ids.ids_of(predicted.whole, predicted.graph.get("n_id"))

    def read(self, asked: GNNPredictConfig, run: str, *, is_new: bool) -> list[str] | None:
        self.refuse_pairs(asked, run)
        for name, value in asked.keys_of_nodes().items():
            if value and asked.output is None:
                raise ValueError(f"{name}={value} is for a table of predictions. Give output=FILE")
        return None if asked.output_nodes is None else ids.read_ids(asked.output_nodes)

    def find(
        self, given: list[str] | None, data: Data, whole: Data, asked: GNNPredictConfig
    ) -> Tensor | None:
        if asked.output is None:
            return None
        nodes = self._nodes_of(data, asked)
        if given is None:
            return None if len(nodes) == data.num_nodes else torch.arange(nodes.start, nodes.stop)
        own = ids.ids_of(whole, data.get("n_id"))[nodes.start : nodes.stop]
        return nodes.start + torch.from_numpy(ids.find_nodes(given, own, asked.output_nodes))

    def describe(self, numbers: np.ndarray, data: Data, asked: GNNPredictConfig) -> Columns:
        if asked.output_type != "all":
            return self.describe_ends(numbers, data) if self.is_labelled(data, asked) else {}
        last = np.cumsum(data.types.counts)
        return {
            "type": np.array(data.types.names, object)[np.searchsorted(last, numbers, side="right")]
        }

    def describe_ends(self, numbers: np.ndarray, data: Data) -> Columns:
        """Return columns that say what each of some nodes with labels is of, if they are edges."""
        return {}

    def is_labelled(self, data: Data, asked: GNNPredictConfig) -> bool:
        return asked.output_type in (None, data.types.labelled)

    def _labelled(self, data: Data) -> slice:
        """Return the nodes whose predictions mean something."""
        nodes = data.types.nodes_of(data.types.labelled)
        return slice(nodes.start, nodes.stop)

    def _nodes_of(self, data: Data, asked: GNNPredictConfig) -> range:
        """Return the nodes that a table may hold: those of a type."""
        types, name = data.types, asked.output_type or data.types.labelled
        if types.homogeneous and asked.output_type is not None:
            raise ValueError(
                f"output_type={name} is for graphs with several types of nodes, and this one has one. "
                "Leave it out"
            )
        if name not in (*types.names, "all"):
            raise ValueError(
                f"output_type={name}: there is no such type of nodes; there are "
                f"{', '.join(types.names)}, and all"
            )
        if name != types.labelled and not asked.embeddings:
            raise ValueError(
                f"output_type={name}: the model predicts labels of {types.labelled}. For the vectors of "
                "other nodes give embeddings=true"
            )
        if name != "all":
            return types.nodes_of(name)
        if asked.output_nodes is not None:
            raise ValueError(
                f"output_nodes={asked.output_nodes} lists ids, which are unique within a type only. Name "
                "their type by output_type"
            )
        return range(data.num_nodes)


def refuse_unlabelled(data: Data, origin: str) -> None:
    """Refuse a graph whose nodes have no splits.

    Raises:
        ValueError: says how to give them.
    """
    if "train_mask" not in data:
        refuse_without_labels(
            origin,
            "add y and masks, or y with data.split=random"
            if origin.endswith(".pt")
            else "give them with the graph",
        )
