"""The contract of a kind: what is learned of a graph, what a row of predictions is, and how it is written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import Loader, Task
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.network import Network
from parallel_epochs.pipeline.gnn.predict.table import Table
from parallel_epochs.pipeline.gnn.predict.top import Question
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.warm_start import learned_of
from parallel_epochs.pipeline.run.baseline_file import Baseline

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.base.fit import Base
    from parallel_epochs.pipeline.gnn.base.fusion import Kept
    from parallel_epochs.pipeline.gnn.setup import Setup

# Options of the models that are compared, on a graph of one type of nodes and on one of several. All have the channels
# of the run, and its layers where it names a number of layers.
MODELS: dict[str, dict] = {
    "deepergcn": {"name": "deepergcn"},
    "sums": {"name": "deepergcn", "aggr": "softmax_sum"},
    "dropout": {
        "name": "deepergcn",
        "aggr": "mean",
        "num_mlp_layers": 1,
        "dropout": 0.5,
        "input_dropout": 0.5,
    },
    "sage": {"name": "pyg", "conv": "SAGEConv"},
    "gcn": {
        "name": "pyg",
        "conv": "GCNConv",
        "root_weight": True,
        "norm": "batch",
        "residual": False,
        "dropout": 0.2,
        "num_layers": 12,
        "lr": 0.01,
    },
    "gatv2": {"name": "pyg", "conv": "GATv2Conv", "kwargs": {"heads": 4}},
}
TYPED: dict[str, dict] = {
    "rgcn": {"name": "rgcn"},
    "hgt": {"name": "hgt"},
    "deepergcn": {"name": "deepergcn"},
}


@dataclass(frozen=True)
class Predicted:
    """Predictions of a checkpoint.

    Attributes:
        graph: what was predicted.
        whole: all of the dataset, of which `graph` may be a component.
        task: what was learned.
        model: the trained model.
        rows: predictions [num_rows, columns].
        epoch: passes over the graph when the checkpoint was saved.
        chosen: what is asked for, as :meth:`Kind.find` returns it; none for all.
        is_whole: whether there is a row for everything, and not only for what is chosen.
        embeddings: inputs of the model's head for each row; none if nobody asked.
        temperatures: what the logits were divided by; none if they were not.
        thresholds: logits above which binary tasks are positive; none if the run has chosen none.
        question: the sources whose likeliest targets are asked for, in place of what is chosen.
        ids: of everything, where they are known already.
    """

    graph: Data
    whole: Data
    task: Task
    model: torch.nn.Module
    rows: Tensor
    epoch: int
    chosen: Tensor | None = None
    is_whole: bool = True
    embeddings: Tensor | None = None
    temperatures: Tensor | None = None
    thresholds: Tensor | None = None
    question: Question | None = None
    ids: np.ndarray | None = None


class Kind(ABC):
    """A kind of learning on a graph.

    A kind owns its task, what a row of predictions is and how rows are written, its ids, its record in the report, and
    what other data a trained model takes.

    Args:
        config: of the run.

    Attributes:
        unit: noun of what has a row in a file of predictions.
        is_one_graph: whether the data are one graph, which may be cut, and not many small ones.
        has_labels: whether labels are learned.
        takes_pairs: whether pairs of nodes are predicted.
        has_base: whether a run can begin at a simple method.
        reads_base: whether scores of a simple method can be inputs.
        instead_of_pairs: what to do where pairs of nodes are asked for, and none are predicted.
    """

    unit: ClassVar[str]
    is_one_graph: ClassVar[bool] = True
    has_labels: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = False
    has_base: ClassVar[bool] = False
    reads_base: ClassVar[bool] = False
    instead_of_pairs: ClassVar[str] = "Leave it out"

    def __init__(self, config: GNNConfig):
        self.config = config

    @abstractmethod
    def check(self) -> None:
        """Refuse a configuration before anything is opened.

        Raises:
            ValueError: names the key.
        """

    @abstractmethod
    def check_data(self, data: Data) -> None:
        """Refuse a dataset, as it was read or prepared, before the task is built.

        Raises:
            ValueError: says what the dataset lacks.
        """

    @abstractmethod
    def task(self, data: Data) -> Task:
        """Build what is learned on a graph.

        Raises:
            ValueError: it does not fit the graph.
        """

    @abstractmethod
    def baselines(self, data: Data, task: Any) -> Iterator[Baseline]:
        """Fit each simple method to a graph and score it; yields one after the other, as they end."""

    @abstractmethod
    def record(self, data: Data, task: Any, model: torch.nn.Module, rows: Tensor) -> dict[str, Any]:
        """Describe the splits and score the predictions of an evaluation, for the report.

        Args:
            model: with the weights that were evaluated.
        """

    @abstractmethod
    def tensors(self, predicted: Predicted) -> dict[str, Tensor]:
        """Return what a file of predictions holds: "logits" or "values", a row for each `unit`, and what explains them."""

    @abstractmethod
    def table(self, predicted: Predicted, asked: GNNPredictConfig) -> Table:
        """Return the table of predictions, with the ids of the user."""

    @abstractmethod
    def accept(self, data: Data, learned: Learned) -> Data:
        """Complete other data than those of the training, prepared as those were, so that the task can be built.

        Raises:
            ValueError: they do not fit what was learned.
        """

    def load(self, content_hash: str | None) -> Data:
        """Open the dataset of a run and check it.

        Args:
            content_hash: of the graph, where another process has opened it a moment ago.

        Raises:
            ValueError: the dataset is inconsistent, or does not fit.
        """
        data = load(
            self.config.data,
            self.config.cache_dir,
            content_hash=content_hash,
            check=self.check_data,
            degrees=self.config.data.counts_degrees,
            like=learned_of(self.config.train.init, self.config.data.is_stored),
        )
        self.check_data(data)
        return data

    def models(self, data: Data) -> dict[str, dict]:
        """Return the options of the models that model=auto compares on some data, by the names of the settings."""
        return MODELS if data.types.homogeneous else TYPED

    def fit_base(self, data: Data, task: Any, name: str, seconds: float) -> "Base":
        """Fit the simple method that a run begins at, a :class:`pipeline.gnn.base.fit.Base`.

        Args:
            name: value of ``task.base``.
            seconds: what all methods may take, by an estimate.

        Raises:
            ValueError: the data or the task do not fit.
        """
        raise NotImplementedError

    def other_base(self, kept: "Kept", data: Data) -> "Base":
        """Return the simple method of a run for other data than those of the training.

        Args:
            kept: of it, a :class:`pipeline.gnn.base.fusion.Kept`.

        Raises:
            ValueError: it cannot score them.
        """
        raise NotImplementedError

    def choose_answer(
        self, setup: "Setup", rows: Tensor, epoch: int, folder: Path
    ) -> dict[str, Any]:
        """Choose what a run with a simple method answers with, and keep it; returns what this adds to the summary.

        Args:
            rows: that the trained network predicts.
            epoch: of the network.
        """
        raise NotImplementedError

    def answer(self, predicted: Predicted, setup: "Setup", kept: "Kept") -> Predicted:
        """Mix the predictions of a network with those of the simple method; those of links when they are asked."""
        raise NotImplementedError

    def undirected(self, data: Data) -> EdgeIndex:
        """Return the edges by which a graph is cut into clusters."""
        return data.edge_index

    def loader(self, clusters: ClusterLoader) -> Loader:
        """Return the loader of the training batches, given that of a graph's clusters."""
        return clusters

    def sizes(self, data: Data) -> dict[str, Any]:
        """Return arguments of a model's constructor that this kind alone has."""
        return {}

    def model(self, encoder: torch.nn.Module, task: Task) -> torch.nn.Module:
        """Return what is trained, given the configured model."""
        return encoder

    def encoder(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the configured model of what is trained."""
        return model

    def network(self, model: torch.nn.Module, task: Task) -> torch.nn.Module:
        """Return the module that answers from a graph alone, given the trained model."""
        return Network(model, cast(NodeTask, task))

    def inputs(self, data: Data, task: Task) -> Tensor:
        """Return what the network reads of each node of a graph."""
        return data.x

    def num_columns(self, model: torch.nn.Module, task: Task) -> int:
        """Return the number of columns of a row."""
        return task.out_channels

    def test_graph(self, task: Any) -> Data | None:
        """Return the graph that the test is predicted from, if it is another one."""
        return None

    def read(self, asked: GNNPredictConfig, run: str, *, is_new: bool) -> Any:
        """Read the files that say what is asked for, before any long work; returns what :meth:`find` takes.

        Args:
            run: directory of the run, for messages.
            is_new: whether other data than those of the training are predicted.

        Raises:
            ValueError: a file cannot be read, or a key is for other kinds.
        """
        self.refuse_nodes(asked, run)
        self.refuse_pairs(asked, run)

    def find(
        self, given: Any, data: Data, whole: Data, asked: GNNPredictConfig
    ) -> Tensor | Question | None:
        """Find what is asked for in a graph; none for everything.

        Args:
            given: as :meth:`read` returns it.
            whole: all of the dataset, whose ids they are.

        Raises:
            ValueError: it is not there.
        """
        return None

    def refuse_columns(self, asked: GNNPredictConfig, task: Task) -> None:
        """Refuse columns of the likeliest classes where no classes are learned."""
        if asked.columns != "all" and task.kind != "classes":
            raise ValueError(
                f"columns={asked.columns} is for classes, and this run learns {task.kind}. Leave it out"
            )

    def refuse_nodes(self, asked: GNNPredictConfig, run: str) -> None:
        """Refuse the keys of tables that have a row for each node."""
        for name, value in asked.keys_of_nodes().items():
            if value:
                raise ValueError(
                    f"{name}={value} needs a table with a row for each node, and {run} has "
                    f"task={self.config.task.name}. Leave it out"
                )

    def refuse_pairs(self, asked: GNNPredictConfig, run: str) -> None:
        """Refuse pairs of nodes where no links are predicted."""
        if asked.pairs is not None:
            raise ValueError(
                f"pairs={asked.pairs} needs a run of task=link; {run} has task={self.config.task.name}. "
                f"{self.instead_of_pairs}"
            )
        if asked.top is not None:
            raise ValueError(
                f"top={asked.top} ranks the targets of links and needs a run of task=link or "
                f"trainer=knowledge; {run} has task={self.config.task.name}. Leave it out"
            )


def numbers_of(chosen: Tensor | None, num_rows: int) -> np.ndarray:
    """Return the numbers of what is chosen, of all rows if nothing is."""
    return np.arange(num_rows) if chosen is None else chosen.numpy()
