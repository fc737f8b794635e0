"""From a configuration to the objects of a run: the only file that knows every part."""

import copy
import logging
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from models import custom
from models.aggregate import backend
from pipeline import arguments, build_embedding, checks, estimate, keys
from pipeline.build_loader import LOADERS, build_loader
from pipeline.build_model import (
    build_model,
    construct,
    describe_foreign,
    encoder_of,
    learned_channels,
    naming_keys,
    try_model,
)
from pipeline.build_predictor import build_predictor
from pipeline.config import FOREIGN, Config
from pipeline.data.cache import keep_component, load, path_of
from pipeline.data.prepare import describe_inputs
from pipeline.effects import settings
from pipeline.features import NodeTable, refuse_sparse_modules, without_features
from pipeline.graph.components import Components, find_components, split_components
from pipeline.graph.partitioner import PARTITIONS, check_engine
from pipeline.graph.structure import Structure, inspect
from pipeline.loaders.neighbor import check_pyg
from pipeline.metrics import KINDS, METRICS, kind_of
from pipeline.names import LOWER_IS_BETTER
from pipeline.run import checkpoint, pulse
from pipeline.run.ranks import Ranks
from pipeline.run.session import Session, Trainer
from pipeline.run.stop import StopRequest
from pipeline.run.tracker import CsvTracker, MlflowTracker, TensorBoardTracker, WandbTracker
from pipeline.schedule import Schedule
from pipeline.tasks.graph import GraphTask
from pipeline.tasks.link import LinkTask
from pipeline.tasks.node import NodeTask
from pipeline.trainers.gnn import GNNTrainer, Task

log = logging.getLogger(__name__)

# One line for each member of tasks/ and trainers/, and for each kind of node features. Loaders are in build_loader.py,
# trainers that need neither a task nor a loader in build_embedding.py.
TASKS: dict[str, type] = {"node": NodeTask, "graph": GraphTask, "link": LinkTask}
FEATURES: dict[str, type[NodeTable] | None] = {"data": None, "embedding": NodeTable}
TRAINERS = {"gnn": GNNTrainer}
TRACKERS: dict[str, Any] = {
    "none": None, "csv": CsvTracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker, "mlflow": MlflowTracker}
# From here on it takes seconds to look through a graph, and the log says so beforehand.
MANY_EDGES = 2_000_000
OWN_KERNELS = "the model's own"  # what aggregates messages where others wrote the layers
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class OpenGraph:
    """A graph that is ready for training.

    Attributes:
        data: all of it.
        components: its connected components; none where another process has told of them, and of many graphs.
        parts: the graphs that get a model each, with the number of their component where there are several.
    """

    data: Data
    components: Components | None
    parts: list[tuple[str | None, Data]]


def check(config: Config) -> None:
    """Refuse names and model options that nothing knows, and sizes that the machine cannot hold, before any long work.

    Raises:
        ValueError: names the key.
    """
    for key, name, members in (("task", config.task.name, TASKS), ("loader", config.loader.name, LOADERS),
                               ("partition", config.partition.name, PARTITIONS),
                               ("features", config.features.name, FEATURES),
                               ("trainer", config.trainer.name, {**TRAINERS, **build_embedding.TRAINERS}),
                               ("tracker", config.tracker.name, TRACKERS)):
        if name not in members:
            raise ValueError(f"{key}.name={name} is unknown; choose one of {', '.join(members)}")
    checks.check_on_disk(config)
    if config.trainer.name in build_embedding.TRAINERS:
        arguments.check_folder("cache_dir", Path(config.cache_dir))
        estimate.check_ranks(config)
        build_embedding.check(config)
        return
    if config.task.name == "link":
        checks.check_link(config)
    elif config.task.metric not in (None, *METRICS):
        raise ValueError(f"task.metric={config.task.metric} is unknown; choose one of {', '.join(METRICS)}")
    if config.loader.name == "cluster":
        check_engine(config.partition.name)
    elif config.loader.name == "neighbor" and config.loader.backend == "pyg":
        check_pyg()
    arguments.check_folder("cache_dir", Path(config.cache_dir))
    estimate.check_ranks(config)
    estimate.check_memory(config)
    estimate.check_table(config, num_nodes=1)
    if config.model.name == "custom":
        with naming_keys(config):
            custom.find(getattr(config.model, "path"))  # noqa: B009 - of this model's schema
        return
    estimate.check_model(config, lambda sizes: construct(
        keys.replaced(config, {f"model.{name}": size for name, size in sizes.items()}),
        in_channels=1 if getattr(config.model, "encode_x", True) else sizes["hidden_channels"], out_channels=1,
        edge_dim=None if getattr(config.model, "knn", 0) else 1, num_categories=0))


def check_metric(chosen: str | None, metric: str) -> None:
    """Refuse a metric of other labels than the dataset has.

    Args:
        metric: that of the dataset.

    Raises:
        ValueError: names those that fit.
    """
    if chosen is not None and kind_of(chosen) != kind_of(metric):
        raise ValueError(f"task.metric={chosen} is of {kind_of(chosen)}, the dataset ({metric}) has {kind_of(metric)}: "
                         f"choose one of {', '.join(KINDS[kind_of(metric)])}")


def check_tracker(config: Config) -> None:
    """Refuse a tracker that cannot run here, before any long work.

    Raises:
        ValueError: its package is not installed, or nobody is logged in.
    """
    if tracker := TRACKERS.get(config.tracker.name):
        tracker.check()


def choose_device(name: str, ranks: Ranks = Ranks()) -> torch.device:
    """Return the device of a name; "auto" takes a GPU if there is one, and each rank of a machine its own.

    Raises:
        ValueError: there is no such device here, or fewer GPUs than ranks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device={name} is unknown; choose auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(f"device={name}: torch sees no GPU on this machine")
    if ranks.num_local == 1:
        return torch.device(name)
    if name != "cuda" or torch.cuda.device_count() < ranks.num_local:
        raise ValueError(f"device={name} for {ranks.num_local} ranks on a machine with {torch.cuda.device_count()} "
                         "GPUs: every rank needs one of its own. Set parallel.num_ranks or device=cpu")
    return torch.device("cuda", ranks.local_rank)


def open_graph(config: Config, *, content_hash: str | None = None) -> OpenGraph:
    """Open the graph of a run: check it, find its components, and choose those to train on.

    Args:
        content_hash: of the graph, where another process has opened it a moment ago and told of it in the log.

    Raises:
        ValueError: the dataset is inconsistent, or the partition does not fit it.
    """
    check(config)
    data = load(config.data, config.cache_dir, content_hash=content_hash)
    checked = content_hash is not None
    if config.trainer.name in build_embedding.TRAINERS:
        build_embedding.check_data(config, data)
        if not checked:
            log.info("%s", build_embedding.describe(config, data))
        return OpenGraph(data, None, [(None, data)])
    if "ptr" not in data and "train_mask" not in data:
        raise ValueError(f"{config.data.origin()} has no labels to learn: give them as data.labels, or learn vectors "
                         "of its nodes by trainer=node_embedding")
    if config.task.name != "link":
        check_metric(config.task.metric, data.metric)
    checks.check_edge_features(config, data)
    if config.model.name in FOREIGN:
        visible = _visible(config, data)
        try_model(config, visible, build_task(config, visible))
    if checked and config.data.components == "all":
        data = _visible(config, data)
        return OpenGraph(data, None, [(None, data)])
    if "ptr" in data:
        log.info("graphs: %s, with %s nodes and %s directed edges in all", f"{data.ptr.numel() - 1:,}",
                 f"{data.num_nodes:,}", f"{data.num_edges:,}")
        log.info("%s", describe_inputs(data, config.data, label_input=0))
        build_loader(config, data)
        estimate.check_activations(config, data)
        return OpenGraph(data, None, [(None, data)])
    if not checked:
        if data.num_edges >= MANY_EDGES:
            log.info("graph: looking for odd edges and connected components among %s edges", f"{data.num_edges:,}")
        log.info("graph: %s", _describe_edges(data))
        log.info("%s", describe_inputs(data, config.data, label_input=config.train.label_input,
                                       num_learned=learned_channels(config), concat=config.features.concat))

    if config.data.components == "all" and "store" not in data:
        components = find_components(data)
    else:
        components = Components.unpack(checkpoint.keep(
            path_of(config.data, config.cache_dir, data.content_hash, "-components"),
            lambda: find_components(data).pack(), again="finding them again", verify=not checked))
    if not checked:
        log.info("%s", components)
    parts = split_components(
        data, components, config.data.components, config.data.min_component_size,
        partial(keep_component, config.data, config.cache_dir, data, verify=not checked))
    for _, part in parts:  # what does not fit is refused before anything is written or trained
        build_task(config, part), build_loader(config, part)
        estimate.check_table(config, part.num_nodes)
        estimate.check_activations(config, part)
    return OpenGraph(_visible(config, data), components, [(number, _visible(config, part)) for number, part in parts])


def _describe_edges(data: Data) -> str:
    if "structure" in data:
        return str(Structure(**data.structure))
    if "store" in data:  # to count needs memory for several numbers of each edge
        return f"{data.num_nodes:,} nodes, {data.num_edges:,} directed edges; its store says nothing of odd ones"
    return str(inspect(data.edge_index))


def _visible(config: Config, data: Data) -> Data:
    """Leave out the features that a table stands in place of; what lies in a cache has all of them."""
    return without_features(data) if config.features.name == "embedding" and not config.features.concat else data


def build_task(config: Config, data: Data) -> Task:
    """Build what is learned on a graph.

    Raises:
        ValueError: it does not fit the graph.
    """
    if config.task.name == "link":
        return LinkTask(data, hidden_channels=config.model.hidden_channels, metric=config.task.metric,
                        valid_edges=config.task.valid_edges)
    if config.task.metric is not None:
        data = copy.copy(data)
        data.metric = config.task.metric
    if config.task.name == "graph":
        return GraphTask(data)
    return TASKS[config.task.name](data, label_input=config.train.label_input)


def build_schedule(config: Config, num_batches: int, ranks: Ranks = Ranks()) -> Schedule:
    """Build what shares out rounds and sets learning rates."""
    train, parallel = config.train, config.parallel
    return Schedule(num_epochs=train.epochs, num_batches=num_batches, rank=ranks.rank, num_ranks=ranks.num_ranks,
                    split=parallel.name == "split", lr=train.lr, lr_scaling=parallel.lr_scaling,
                    warmup_steps=train.warmup_steps, eval_every=train.eval_every)


def build_table(config: Config, data: Data, device: torch.device) -> NodeTable | None:
    """Build the learned node features of a graph, none where the model sees those of the data.

    Args:
        device: of the model.

    Raises:
        ValueError: the graph has no nodes.
    """
    features, table = config.features, FEATURES[config.features.name]
    return None if table is None else table(
        data.num_nodes, features.channels, lr=features.lr, optimizer=features.optimizer, dropout=features.dropout,
        seed=config.seed, device=torch.device("cpu") if features.device == "cpu" else device)


def build_trainer(config: Config, data: Data, device: torch.device, *, ranks: Ranks = Ranks(),
                  stop: StopRequest | None = None) -> Trainer:
    """Build what trains a model on a graph, for this rank.

    Raises:
        ValueError: the configuration does not fit the graph.
    """
    if config.trainer.name in build_embedding.TRAINERS:
        return build_embedding.build_trainer(config, data, device, ranks, stop)
    train = config.train
    task, loader = build_task(config, data), build_loader(config, data, device)
    schedule = build_schedule(config, loader.num_batches, ranks)
    # Compiled and kept here, on first use, rather than in the middle of the first step.
    pulse.beat("preparing the batches", pulse.State.LONG)
    with ranks.first_then_others():
        loader.prepare()
        kernel = OWN_KERNELS if config.model.name in FOREIGN else backend(
            torch.empty(1, 1, device=device), torch.empty(2, 0, dtype=torch.int64, device=device),
            kernel=config.kernel)
    torch.manual_seed(config.seed)
    model = build_model(config, data, task).to(device)
    refuse_sparse_modules(model, train.optimizer)
    table = build_table(config, data, device)
    optimizer = OPTIMIZERS[train.optimizer](model.parameters(), lr=train.lr, weight_decay=train.weight_decay,
                                            fused=True)
    predict_all = build_predictor(config, model, task, loader, ranks, stop, table=table)
    trainer = TRAINERS[config.trainer.name](
        model, optimizer, task, loader, schedule, predict_all, device=device, table=table, precision=train.precision,
        clip_grad_norm=train.clip_grad_norm, seed=config.seed, prefetch=config.partition.prefetch, kernel=kernel,
        ranks=ranks, stop=stop)
    encoder = encoder_of(model)
    title = getattr(encoder, "title", f"{config.model.num_layers} layers x {config.model.hidden_channels} channels")
    log.info("model: %s, %s parameters, on %s", title, f"{trainer.num_parameters:,}", device)
    if config.model.name in FOREIGN:
        log.info("%s", describe_foreign(config, encoder, data))
    if knn := getattr(config.model, "knn", 0):
        log.info("the graph's edges are not used: model.knn=%d compares all pairs of a batch's nodes", knn)
    if table is not None:
        log.info("table: %s, scaled and warmed up as the model's%s", table,
                 "; train.weight_decay is that of the model alone" if train.weight_decay else "")
    log.info("%s", schedule)
    return trainer


def build_session(config: Config, folder: Path, data: Data, *, ranks: Ranks = Ranks(),
                  stop: StopRequest | None = None) -> Session:
    """Build what keeps a run in its directory."""
    metric = config.task.metric or data.get("metric")  # edges alone have none
    tracker, name = TRACKERS[config.tracker.name], "/".join(folder.resolve().parts[-2:])
    open_tracker = None if tracker is None else partial(
        tracker, folder, name=name, project=config.tracker.project,
        best="min" if metric in LOWER_IS_BETTER else "max",
        settings={entry.name: entry.value for entry in keys.entries(config)})
    return Session(folder, data_hash=data.get("content_hash"), settings=settings(config),
                   patience=config.train.patience, check_every=config.parallel.check_every,
                   allow_rescale=config.resume_allow_rescale, open_tracker=open_tracker, ranks=ranks, stop=stop)
