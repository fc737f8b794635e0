"""From the configuration of trainer=gnn to its task, loader, model and trainer."""

import logging
import time
from dataclasses import replace
from functools import partial

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import keep_component
from parallel_epochs.pipeline.data.column_names import describe_inputs
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.gnn import estimate, memory
from parallel_epochs.pipeline.gnn.base import bases
from parallel_epochs.pipeline.gnn.base.label_scores import report_limit
from parallel_epochs.pipeline.gnn.components import find_or_read
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.features import refuse_sparse_modules, visible
from parallel_epochs.pipeline.gnn.kinds.build import KINDS, kind_of
from parallel_epochs.pipeline.gnn.loaders.build import LOADERS, check_evaluation
from parallel_epochs.pipeline.gnn.model import (
    FEATURES,
    check_class,
    construct,
    describe_foreign,
    name_kernel,
    try_model,
)
from parallel_epochs.pipeline.gnn.optimization import (
    build_average,
    build_decay,
    build_optimizer,
    build_schedule,
    check_decay,
    check_precision,
    settle,
)
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.trainer import GNNTrainer
from parallel_epochs.pipeline.graph.components import Components, split_components
from parallel_epochs.pipeline.graph.partitioner import PARTITIONS
from parallel_epochs.pipeline.graph.structure import describe_edges
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.stop import StopRequest

log = logging.getLogger(__name__)

# A component with fewer nodes gets no model of its own (data.components=separate).
LEAST_NODES = 100

# From here on it takes seconds to look through a graph, and the log says so beforehand.
MANY_EDGES = 2_000_000


def check(config: GNNConfig) -> None:
    """Refuse names and model options that nothing knows, and sizes that the machine cannot hold.

    Raises:
        ValueError: names the key.
    """
    for key, name, members in (
        ("task", config.task.name, KINDS),
        ("loader", config.loader.name, LOADERS),
        ("partition", config.partition.name, PARTITIONS),
        ("features", config.features.name, FEATURES),
    ):
        if name not in members:
            raise ValueError(f"{key}.name={name} is unknown; choose one of {', '.join(members)}")
    config = config.representative
    kind_of(config).check()
    estimate.machine_of(config)  # reads memory=
    if hasattr(config.model, "path"):  # a class of the user's
        check_class(config)
        return
    with torch.device("meta"):  # says what is wrong with options that do not go together
        construct(
            config,
            in_channels=config.model.hidden_channels,
            out_channels=1,
            edge_dim=1,
            num_categories=0,
        )


def open_data(
    config: GNNConfig,
    device: torch.device,
    *,
    content_hash: str | None = None,
    describes: bool = True,
) -> OpenData:
    """Open the graph of a run: check it, find its components, and choose those to train on.

    Args:
        content_hash: of the graph, where another process has opened it a moment ago and told of it in the log.
        describes: say in the log what the edges and the components of the graph are.

    Raises:
        ValueError: the dataset is inconsistent, or the task, the partition or the memory does not fit it.
    """
    asked, config = config, config.representative
    is_new, kind = content_hash is None, kind_of(config)
    data = kind.load(content_hash)
    if config.model.is_foreign:
        seen = visible(config, data)
        try_model(kind, seen, kind.task(seen))
    parts, components = [(None, data)], None
    if is_new and describes or config.data.components != "all":
        parts, components = find_parts(config, data, is_new=is_new)
    setups = [begin_at_base(config, device, number, part, verify=is_new) for number, part in parts]
    if config.partition.num_parts == keys.AUTO:
        config = keys.replaced(config, {"partition.num_parts": memory.choose_num_parts(setups)})
    config = keys.replaced(config, settle(Setup(config, data, device)))
    setups = [replace(setup, config=config) for setup in setups]
    for setup in setups:  # what does not fit is refused before anything is written or trained
        if setup.number is not None:
            setup.config = keys.replaced(config, {"data.components": setup.number})
        if is_new:
            setup.task, setup.loader  # noqa: B018 - built here
            check_evaluation(config, setup.data)
            check_decay(config, setup.task)
    config = replace(config, model=asked.model)
    return OpenData(config, visible(config, data), list(setups), components)


def find_parts(
    config: GNNConfig, data: Data, *, is_new: bool
) -> tuple[list[tuple[str | None, Data]], Components | None]:
    """Choose the parts of a graph that are trained on: itself, or connected components; the log tells of a new graph.

    Returns:
        The number and the graph of each part, and the components that were found, of one graph.
    """
    is_one_graph = kind_of(config).is_one_graph
    if is_new:
        if not is_one_graph:
            log.info(
                "graphs: %s, with %s nodes and %s directed edges in all",
                f"{data.ptr.numel() - 1:,}",
                f"{data.num_nodes:,}",
                f"{data.num_edges:,}",
            )
        else:
            if data.num_edges >= MANY_EDGES:
                log.info(
                    "graph: looking for irregular edges and connected components among %s edges",
                    f"{data.num_edges:,}",
                )
            is_typed = not data.types.homogeneous
            log.info("graph: %s", describe_edges(data, several_relations=is_typed))
            if is_typed:
                log.info("graph: %s", data.types)
        log.info("%s", _describe_inputs(config, data))
    if not is_one_graph:
        return [(None, data)], None
    components = find_or_read(config, data, verify=is_new)
    if is_new:
        log.info("%s", components)
    keep = partial(keep_component, config.data, config.cache_dir, data, verify=is_new)
    return split_components(data, components, config.data.components, LEAST_NODES, keep), components


def begin_at_base(
    config: GNNConfig, device: torch.device, number: str | None, part: Data, *, verify: bool
) -> Setup:
    """Fit the simple method that a network begins at, and show its scores to the network."""
    base, bare = bases.fit_or_read(config, part, verify=verify), visible(config, part)
    return Setup(config, bases.show(config, bare, base), device, number, base, bare)


def _describe_inputs(config: GNNConfig, data: Data) -> str:
    text = describe_inputs(
        config.data,
        data,
        num_learned=config.learned_channels,
        concat=config.features.concat,
        learned_types=config.features.types,
    )
    if config.train.label_input:
        text += f"; labels of training nodes (train.label_input={config.train.label_input:g})"
    if config.task.text_scores:
        text += (
            f"; logits begin at {config.task.text_scores:g} times the scores of texts "
            "(task.text_scores)"
        )
    return text


def build_trainer(
    setup: Setup, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None
) -> GNNTrainer:
    """Build what trains a model on a graph, for this rank.

    Raises:
        ValueError: the configuration does not fit the graph.
    """
    config, device, loader, train = setup.config, setup.device, setup.loader, setup.config.train
    check_precision(train.precision, device)
    schedule = build_schedule(config, loader.num_batches, ranks)
    # Compiled and kept here, on first use, rather than in the middle of the first step.
    pulse.beat("preparing the batches", pulse.State.LONG)
    with ranks.first_then_others():
        loader.prepare()
        kernel = name_kernel(config, setup.kind.encoder(setup.model), device)
    model, table = setup.model, setup.table
    setup.begin()
    refuse_sparse_modules(model, train.optimizer)
    predict_all, decay = (
        build_predictor(setup, ranks, stop),
        build_decay(config, setup.task, schedule),
    )
    trainer = GNNTrainer(
        model,
        build_optimizer(config, model),
        setup.task,
        loader,
        schedule,
        predict_all,
        device=device,
        decay=decay,
        average=build_average(config, model),
        table=table,
        precision=train.precision,
        clip_grad_norm=train.clip_grad_norm,
        seed=config.seed,
        kernel=kernel,
        ranks=ranks,
        stop=stop,
    )
    _describe_model(setup, trainer.about.num_parameters)
    log.info("%s%s", schedule, decay)
    return trainer


def report(setup: Setup) -> None:
    """Log what the run will not record."""
    report_limit(setup)
    if loss := str(getattr(setup.task, "label_loss", None) or ""):
        log.info("loss: %s", loss)


def _describe_model(setup: Setup, num_parameters: int) -> None:
    config, encoder = setup.config, setup.kind.encoder(setup.model)
    title = getattr(
        encoder,
        "title",
        f"{config.model.num_layers} layers x {config.model.hidden_channels} channels",
    )
    log.info("model: %s, %s parameters, on %s", title, f"{num_parameters:,}", setup.device)
    if config.model.is_foreign:
        log.info("%s", describe_foreign(setup.kind, encoder, setup.data))
    if setup.table is not None:
        log.info(
            "table: %s, scaled and warmed up as the model's%s",
            setup.table,
            "; train.weight_decay is that of the model alone" if config.train.weight_decay else "",
        )


def prepare(setup: Setup) -> None:
    """Fill the caches that training would fill, and describe the first partition."""
    start = time.perf_counter()
    drawn = setup.loader.draw(0, Share())
    setup.loader.measure(drawn, time.perf_counter() - start)
