"""From a configuration to what predicts every row: exactly, by views, or from sampled neighbours."""

import copy
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks import blockwise
from parallel_epochs.models.networks.heads import find_head, keep_inputs
from parallel_epochs.pipeline.gnn.contract import Loader, Task, autocast
from parallel_epochs.pipeline.gnn.estimate import BLOCK_EDGES, BLOCK_NODES, activation_bytes
from parallel_epochs.pipeline.gnn.features import load_weights
from parallel_epochs.pipeline.gnn.loaders.build import build_stream
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader
from parallel_epochs.pipeline.gnn.loaders.snapshots import (
    in_whole,
    num_snapshots,
    rows_of,
    take_snapshot,
)
from parallel_epochs.pipeline.gnn.predict.inference import (
    Predict,
    predict_exact,
    predict_views,
    stack_of_layers,
)
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import SNAPSHOT
from parallel_epochs.pipeline.run import checkpoint, pulse
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.session import load_best
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.storage import zeros_on_disk

log = logging.getLogger(__name__)


def predict_best(
    setup: Setup, folder: Path, ranks: Ranks, stop: StopRequest | None
) -> tuple[Tensor, int]:
    """Predict every row with the best checkpoint of a run that has ended, on all ranks.

    Returns:
        The rows, empty on other ranks than the first where only the first can predict; and the epoch of the checkpoint.

    Raises:
        Stopped: a rank was asked to stop; all ranks raise it.
    """
    best = load_best(folder, ranks)
    with checkpoint.fitting(best):
        load_weights(best["model"], setup.model, setup.table)
    return build_predictor(setup, ranks, stop)(best["round"]), best["epoch"]


def build_predictor(
    setup: Setup,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
    *,
    embeddings: bool = False,
) -> Callable[[int], Tensor]:
    """Build a function from the round to the predictions of every row, by the method of the configuration.

    Where the test is predicted from a graph of its own, the predictions from it stand in columns behind the others.

    Args:
        embeddings: of labels of nodes: what the model's head reads of each stands in columns behind its predictions.

    Raises:
        ValueError: the model has no head that reads embeddings.
    """
    model, task, loader = setup.model, setup.task, setup.loader
    in_blocks = _in_blocks(setup, stop)
    layers = [] if in_blocks else stack_of_layers(model)
    predict, num_columns = _predict_batches(setup, in_blocks or model, embeddings=embeddings)
    common: dict[str, Any] = dict(
        num_rows=task.num_rows, out_channels=num_columns, layers=layers, ranks=ranks, stop=stop
    )
    predict_all = _build_predictor_of(loader.data, setup, predict, common)
    test_data = setup.kind.test_graph(task)
    if test_data is None:
        return predict_all
    predict_test = _build_predictor_of(test_data, setup, predict, common)
    return lambda round_: torch.cat([predict_all(round_), predict_test(round_)], dim=-1)


def _predict_batches(
    setup: Setup, runs: torch.nn.Module, *, embeddings: bool
) -> tuple[Predict, int]:
    """Build what predicts a batch, and return its columns too; `runs` computes the model."""
    model, task = setup.model, setup.task
    if not embeddings:
        return functools.partial(task.predict, runs), setup.kind.num_columns(model, task)
    if (head := find_head(model)) is None:
        raise ValueError(
            f"embeddings=true: model={setup.config.model.name} has no torch.nn.Linear called head, "
            "whose inputs would be the embeddings; leave it out"
        )
    return _predict_both(task, runs, head), setup.kind.num_columns(model, task) + head.in_features


def _build_predictor_of(
    data: Data,
    setup: Setup,
    predict_batch: Predict,
    common: dict[str, Any],
    *,
    is_snapshot: bool = False,
) -> Callable[[int], Tensor]:
    """Build what predicts every row of a graph; `common` is what every method takes.

    Args:
        is_snapshot: whether the graph is one of a whole, in which its nodes have the numbers ``n_id``.
    """
    if SNAPSHOT in data:
        return lambda round_: _predict_snapshots(data, setup, predict_batch, common, round_)
    config, model, table, loader = setup.config, setup.model, setup.table, setup.loader
    evaluation, device = config.evaluation, loader.device
    is_one_graph = setup.kind.is_one_graph
    viewed = _viewed(setup, data)

    @functools.cache
    def whole_graph() -> Data:
        # SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex; a model that does not says so.
        whole = copy.copy(data)
        if not getattr(model, "takes_int32_edges", False):
            whole.edge_index = whole.edge_index.long()
        return whole

    def predict(batch: Data) -> tuple[Tensor, Tensor]:
        batch = in_whole(batch, data) if is_snapshot else batch
        return predict_batch(batch if table is None else table.attach(batch, device))

    def predict_all(round_: int) -> Tensor:
        model.eval()
        with autocast(device, config.train.precision):
            if evaluation.is_exact and is_one_graph:
                return predict_exact(predict, whole_graph(), **common, device=device)
            return predict_views(
                predict,
                viewed,
                **common,
                num_views=evaluation.num_views if is_one_graph else 1,
                num_parts=evaluation.num_parts,
                seed=config.seed,
                round_=round_,
            )

    return predict_all


def _predict_snapshots(
    data: Data, setup: Setup, predict_batch: Predict, common: dict[str, Any], round_: int
) -> Tensor:
    """Predict the rows of each snapshot from its graph; all other nodes have zeros."""
    total = torch.empty(0)
    for number in range(num_snapshots(data)):
        view = take_snapshot(data, number)
        found = _build_predictor_of(view, setup, predict_batch, common, is_snapshot=True)(round_)
        if len(found):  # not on other ranks than the first, where only the first can predict
            total, rows = total if len(total) else torch.zeros_like(found), rows_of(data, number)
            total[rows] = found[rows]
    return total


def _in_blocks(setup: Setup, stop: StopRequest | None) -> torch.nn.Module | None:
    """Return what computes the model on a whole graph on disk, a block of nodes at a time; none where the model does.

    Its activations lie in memory where a quarter of it is enough for them, and else in files without names.
    """
    config, model, loader = setup.config, setup.model, setup.loader
    if not config.evaluation.is_exact or not loader.data.on_disk or loader.device.type != "cpu":
        return None
    if reason := blockwise.why_not(model):
        log.info("evaluation=exact: the whole graph in one forward, as %s", reason)
        return None
    spill = Path(config.cache_dir) / "spill"

    def allocate(rows: int, columns: int) -> Tensor:
        small = activation_bytes(rows, columns) > 0
        return torch.zeros(rows, columns) if small else zeros_on_disk(spill, rows, columns)

    def look() -> None:
        pulse.renew()
        if stop is not None:
            stop.check()

    return blockwise.InBlocks(
        cast(DeeperGCN, model),
        num_rows=BLOCK_NODES,
        num_edges=BLOCK_EDGES,
        allocate=allocate,
        before_block=look,
    ).eval()


def _predict_both(task: Task, model: torch.nn.Module, head: torch.nn.Linear) -> Predict:
    """Build a function that predicts the targets of a batch, with their embeddings in columns behind."""
    take = keep_inputs(head)

    def predict(batch: Data) -> tuple[Tensor, Tensor]:
        rows, predictions = task.predict(model, batch)
        embeddings = take()
        if embeddings.size(0) != batch.num_nodes:
            raise ValueError(
                f"embeddings=true: the model's head reads {embeddings.size(0):,} rows, and there are "
                f"{batch.num_nodes:,} nodes: these are not embeddings of nodes; leave it out"
            )
        return rows, torch.cat([predictions, embeddings[batch.target]], dim=1)

    return predict


def _viewed(setup: Setup, data: Data) -> Loader:
    """Return what makes the batches of views of a graph: the loader of the training where it can, else one like it."""
    config, own = setup.config, setup.loader
    samples = config.evaluation.samples and setup.kind.is_one_graph
    if data is own.data and not samples and own.views(1, config.seed) is not None:
        return own
    is_snapshot = SNAPSHOT in own.data
    made: ClusterLoader | NeighborLoader
    if samples:
        first = data.types.nodes_of(data.types.labelled).start if is_snapshot else 0
        made = NeighborLoader(
            data,
            config.evaluation_fan_outs,
            batch_size=config.loader.batch_size,
            nodes=torch.arange(first, data.num_nodes),
            purpose="evaluation",
            seed=config.seed,
            device=own.device,
        )
    else:
        made = ClusterLoader(data, device=own.device, stream=build_stream(config, data))
    return made if samples or not is_snapshot else setup.kind.loader(cast(ClusterLoader, made))
