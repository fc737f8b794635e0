"""From a configuration to the objects of a run: the only file that knows every part."""

import copy
import functools
import importlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from models.aggregate import backend
from pipeline import arguments, estimate, keys
from pipeline.config import MODELS, Config, settings
from pipeline.data.cache import load, pack, path_of, unpack
from pipeline.data.prepare import describe_inputs
from pipeline.features import NodeTable, refuse_sparse_modules, without_features
from pipeline.graph.components import Components, find_components, split_components
from pipeline.graph.partitioner import PARTITIONS, Partitioner
from pipeline.graph.structure import inspect
from pipeline.inference import largest_stack, predict_exact, predict_views
from pipeline.loaders.cluster import ClusterLoader
from pipeline.loaders.neighbor import NeighborLoader, check_pyg
from pipeline.run import checkpoint
from pipeline.run.ranks import Ranks
from pipeline.run.session import Session, Trainer
from pipeline.run.stop import StopRequest
from pipeline.run.tracker import CsvTracker, MlflowTracker, TensorBoardTracker, WandbTracker
from pipeline.schedule import Schedule
from pipeline.tasks.node import NodeTask
from pipeline.trainers.gnn import GNNTrainer, Loader

log = logging.getLogger(__name__)

# One line for each member of tasks/, loaders/ and trainers/, and for each kind of node features.
TASKS = {"node": NodeTask}
LOADERS: dict[str, type] = {"cluster": ClusterLoader, "neighbor": NeighborLoader}
FEATURES: dict[str, type[NodeTable] | None] = {"data": None, "embedding": NodeTable}
TRAINERS = {"gnn": GNNTrainer}
TRACKERS: dict[str, Any] = {
    "none": None, "csv": CsvTracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker, "mlflow": MlflowTracker}
# From here on it takes seconds to look through a graph, and the log says so beforehand.
MANY_EDGES = 2_000_000
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class OpenGraph:
    """A graph that is ready for training.

    Attributes:
        data: all of it.
        components: its connected components; none where another process has told of them.
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
                               ("trainer", config.trainer.name, TRAINERS), ("tracker", config.tracker.name, TRACKERS)):
        if name not in members:
            raise ValueError(f"{key}.name={name} is unknown; choose one of {', '.join(members)}")
    if config.loader.name == "neighbor" and config.loader.backend == "pyg":
        check_pyg()
    arguments.check_folder("cache_dir", Path(config.cache_dir))
    estimate.check_ranks(config)
    estimate.check_table(config, num_nodes=1)
    estimate.check_model(config, lambda sizes: _construct(
        keys.replaced(config, {f"model.{name}": size for name, size in sizes.items()}), in_channels=1, out_channels=1,
        edge_dim=1, num_categories=0))


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
    if checked and config.data.components == "all":
        data = _visible(config, data)
        return OpenGraph(data, None, [(None, data)])
    if not checked:
        if data.num_edges >= MANY_EDGES:
            log.info("graph: looking for odd edges and connected components among %s edges", f"{data.num_edges:,}")
        log.info("graph: %s", inspect(data.edge_index))
        num_learned = config.features.channels if FEATURES[config.features.name] else 0
        log.info("%s", describe_inputs(data, config.data, label_input=config.train.label_input,
                                       num_learned=num_learned, concat=config.features.concat))

    def keep(part: str, build: Callable[[], dict]) -> dict:
        if "content_hash" not in data:
            return build()
        path = path_of(config.data, config.cache_dir, data.content_hash, part)
        return checkpoint.keep(path, build, again="selecting it again", verify=not checked)

    if config.data.components == "all":
        components = find_components(data)
    else:
        components = Components.unpack(keep("-components", lambda: find_components(data).pack()))
    if not checked:
        log.info("%s", components)
    parts = split_components(
        data, components, config.data.components, config.data.min_component_size,
        lambda number, build: unpack(keep(f"-component-{number}", lambda: pack(build()))))
    for _, part in parts:
        build_loader(config, part)  # what does not fit is refused before anything is written or trained
        estimate.check_table(config, part.num_nodes)
        estimate.check_activations(config, part)
    return OpenGraph(_visible(config, data), components, [(number, _visible(config, part)) for number, part in parts])


def _visible(config: Config, data: Data) -> Data:
    """Leave out the features that a table stands in place of; what lies in a cache has all of them."""
    return without_features(data) if config.features.name == "embedding" and not config.features.concat else data


def build_partitioner(config: Config, data: Data) -> Partitioner:
    """Build what draws the partitions of a run.

    Raises:
        ValueError: the configured partition does not fit the graph.
    """
    return Partitioner(
        data.edge_index, name=config.partition.name, num_parts=config.partition.num_parts, seed=config.seed,
        num_micro_parts=config.partition.num_micro_parts, cache=Path(config.cache_dir) / "partitions")


def build_task(config: Config, data: Data) -> NodeTask:
    """Build what is learned on a graph."""
    return TASKS[config.task.name](data, label_input=config.train.label_input)


def build_loader(config: Config, data: Data, device: torch.device = torch.device("cpu")) -> Loader:
    """Build what makes the batches.

    Raises:
        ValueError: it does not fit the graph.
    """
    loader = LOADERS[config.loader.name]
    if loader is NeighborLoader:
        return NeighborLoader(data, config.loader.num_neighbors, batch_size=config.loader.batch_size, seed=config.seed,
                              backend=config.loader.backend, device=device)
    return loader(data, build_partitioner(config, data), device=device,
                  clusters_per_step=config.partition.clusters_per_step)


def build_view_loader(config: Config, loader: Loader) -> ClusterLoader | NeighborLoader:
    """Build what makes the batches of views, clusters or every node with sampled neighbours, unless `loader` does."""
    data, device = loader.data, loader.device
    if config.evaluation.method == "neighbor":
        return NeighborLoader(data, config.evaluation.num_neighbors or config.loader.num_neighbors,
                              batch_size=config.loader.batch_size, nodes=torch.arange(data.num_nodes),
                              purpose="evaluation", seed=config.seed, device=device)
    return loader if isinstance(loader, ClusterLoader) else ClusterLoader(data, device=device)


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


def build_model(config: Config, data: Data, task: NodeTask) -> torch.nn.Module:
    """Build a model with the sizes that the graph and the task ask for, its weights drawn from torch's random state.

    Raises:
        ValueError: an unknown name or an impossible size.
    """
    learned = config.features.channels if FEATURES[config.features.name] else 0
    return _construct(config, in_channels=task.in_channels + learned, out_channels=task.out_channels,
                      edge_dim=None if data.edge_attr is None else data.edge_attr.size(1),
                      num_categories=data.num_categories)


def _construct(config: Config, **sizes) -> torch.nn.Module:
    module, class_name = MODELS[config.model.name]
    options = {name: value for name, value in vars(config.model).items() if name != "name"}
    try:
        return getattr(importlib.import_module(module), class_name)(**sizes, **options, kernel=config.kernel)
    except ValueError as error:
        # A constructor's message begins with the argument; its options are the keys below "model".
        is_key = re.split(r"[ =]", str(error))[0] in options
        raise ValueError(f"model.{error}" if is_key else str(error)) from None


def build_predictor(config: Config, model: torch.nn.Module, task: NodeTask, loader: Loader,
                    ranks: Ranks = Ranks(), stop: StopRequest | None = None, *,
                    table: NodeTable | None = None) -> Callable[[int], Tensor]:
    """Build a function from the round to the predictions of every row, by the method of the configuration."""
    evaluation, view_loader = config.evaluation, build_view_loader(config, loader)

    @functools.cache
    def whole_graph() -> Data:
        # SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex; a model that does not says so.
        data = copy.copy(loader.data)
        if not getattr(model, "takes_int32_edges", False):
            data.edge_index = data.edge_index.long()
        return data

    def predict(batch: Data) -> tuple[Tensor, Tensor]:
        return task.predict(model, batch if table is None else table.attach(batch, loader.device))

    def predict_all(round_: int) -> Tensor:
        model.eval()
        common: dict[str, Any] = dict(num_rows=task.num_rows, out_channels=task.out_channels,
                                      layers=largest_stack(model), ranks=ranks, stop=stop)
        with torch.autocast(loader.device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
            if evaluation.method == "exact":
                return predict_exact(predict, whole_graph(), **common, device=loader.device)
            return predict_views(predict, view_loader, **common, num_views=evaluation.num_views,
                                 num_parts=evaluation.num_parts, seed=config.seed, round_=round_,
                                 prefetch=config.partition.prefetch)

    return predict_all


def build_trainer(config: Config, data: Data, device: torch.device, *, ranks: Ranks = Ranks(),
                  stop: StopRequest | None = None) -> Trainer:
    """Build what trains a model on a graph, for this rank.

    Raises:
        ValueError: the configuration does not fit the graph.
    """
    train = config.train
    task, loader = build_task(config, data), build_loader(config, data, device)
    schedule = build_schedule(config, loader.num_batches, ranks)
    # Compiled and kept here, on first use, rather than in the middle of the first step.
    with ranks.first_then_others():
        loader.prepare()
        kernel = backend(torch.empty(1, 1, device=device), torch.empty(2, 0, dtype=torch.int64, device=device),
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
    log.info("model: %d layers x %d channels, %s parameters, on %s", config.model.num_layers,
             config.model.hidden_channels, f"{trainer.num_parameters:,}", device)
    if table is not None:
        log.info("table: %s, scaled and warmed up as the model's%s", table,
                 "; train.weight_decay is that of the model alone" if train.weight_decay else "")
    log.info("%s", schedule)
    return trainer


def build_session(config: Config, folder: Path, data: Data, *, ranks: Ranks = Ranks(),
                  stop: StopRequest | None = None) -> Session:
    """Build what keeps a run in its directory."""
    tracker, name = TRACKERS[config.tracker.name], "/".join(folder.resolve().parts[-2:])
    open_tracker = None if tracker is None else partial(
        tracker, folder, name=name, project=config.tracker.project,
        settings={entry.name: entry.value for entry in keys.entries(config)})
    return Session(folder, data_hash=data.get("content_hash"), settings=settings(config),
                   patience=config.train.patience, check_every=config.parallel.check_every,
                   allow_rescale=config.resume_allow_rescale, open_tracker=open_tracker, ranks=ranks, stop=stop)
