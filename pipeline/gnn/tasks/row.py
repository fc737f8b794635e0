"""The labels of a label table: each row is a node with an edge from the node that it asks about."""

from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from parallel_epochs.pipeline.gnn.tasks.edge import find_ends
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask

# A metric of fewer rows says little.
FEWEST = 30


class RowTask(NodeTask):
    """Predicts the labels of rows as :class:`NodeTask` does those of nodes.

    Of validation and test, the metric is also that of the new rows: those about nodes that no training row is about.
    """

    @cached_property
    def _is_new(self) -> Bool[Tensor, " num_nodes"]:
        data, entity = self._data, find_ends(self._data)[:, 0]
        own, trained = (
            data.types.nodes_of(data.types.labelled),
            torch.zeros(data.num_nodes, dtype=torch.bool),
        )
        trained[entity[data.train_mask[own.start : own.stop]]] = True
        found = torch.zeros_like(trained)
        found[own.start : own.stop] = ~trained[entity]
        return found

    def scores(
        self,
        model: torch.nn.Module | None,
        rows: Float[Tensor, "num_rows out_channels"],
    ) -> dict[str, float]:
        """Compute the metric on the rows of each split, and as ``_of_new@valid`` and ``_of_new`` on new ones of two
        splits, unless there are few. Other data than those of the training do not tell which rows are new.
        """
        found = super().scores(model, rows)
        if "split_names" in self._data:
            return found
        for name, split in (
            (f"{self.metric}_of_new@valid", "valid"),
            (f"{self.metric}_of_new", "test"),
        ):
            chosen = self._data[f"{split}_mask"] & self._is_new
            if int(chosen.sum()) < FEWEST:
                continue
            score = self._score(rows[chosen], self._data.y[chosen])
            if score == score:  # not NaN
                found[name] = score
        return found
