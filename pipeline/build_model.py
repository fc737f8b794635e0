"""From a configuration to a model: its constructor's arguments, and a try of models whose layers others wrote."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Data

from models.foreign import Tried, try_forward
from models.link_predictor import LinkModel
from models.pyg import PyGModel
from pipeline import estimate
from pipeline.config import FOREIGN, MODELS, Config
from pipeline.tasks.link import LinkTask
from pipeline.trainers.gnn import Task


def build_model(config: Config, data: Data, task: Task) -> torch.nn.Module:
    """Build a model with the sizes that the graph and the task ask for, its weights drawn from torch's random state.

    Raises:
        ValueError: an unknown name or an impossible size.
    """
    model = construct(config, **_sizes(config, data, task))
    if config.model.name in FOREIGN:  # lazy parameters get their shapes
        _try(config, model, data, task)
    if not isinstance(task, LinkTask):
        return model
    return LinkModel(model, task.out_channels, num_layers=config.task.predictor_layers,
                     dropout=getattr(config.model, "dropout", 0.0))


def _sizes(config: Config, data: Data, task: Task) -> dict[str, Any]:
    """Collect what a model's constructor takes that depends on the data."""
    sizes = {"in_channels": task.in_channels + learned_channels(config), "out_channels": task.out_channels,
             "edge_dim": None if data.edge_attr is None else data.edge_attr.size(1),
             "num_categories": data.num_categories}
    if config.task.name == "graph":
        sizes |= {"pool": config.task.pool, "node_tables": data.get("x_tables"),
                  "edge_tables": data.get("edge_tables")}
    return sizes


def learned_channels(config: Config) -> int:
    """Return the columns that a learned table gives a model beside those of the data; 0 without one."""
    return config.features.channels if config.features.name == "embedding" else 0


def try_model(config: Config, data: Data, task: Task) -> None:
    """Call a model whose layers others wrote on a tiny graph, before long work.

    Raises:
        ValueError: it fails, returns something else than predictions, or is too large for the evaluation.
    """
    with torch.random.fork_rng():
        model = construct(config, **_sizes(config, data, task))
        tried = _try(config, model, data, task)
    if config.evaluation.method == "exact" and not (isinstance(model, PyGModel) and model.splits()):
        estimate.check_whole_graph(config, data.num_edges, tried.bytes_per_edge)


def _try(config: Config, model: torch.nn.Module, data: Data, task: Task) -> Tried:
    with naming_keys(config):
        return try_forward(model, str(model.title), out_channels=task.out_channels,
                           num_columns=task.in_channels + learned_channels(config) + data.num_categories,
                           edge_dim=None if data.edge_attr is None else data.edge_attr.size(1))


def construct(config: Config, **sizes) -> torch.nn.Module:
    """Call the constructor of the configured model.

    Args:
        sizes: what it takes that depends on the data.

    Raises:
        ValueError: names the key that it refuses.
    """
    module, class_name = MODELS[config.model.name]
    options = {name: value for name, value in vars(config.model).items() if name != "name"}
    with naming_keys(config):
        return getattr(importlib.import_module(module), class_name)(**sizes, **options, kernel=config.kernel)


@contextlib.contextmanager
def naming_keys(config: Config) -> Iterator[None]:
    """Let messages of a constructor, which begin with the argument, name the key below "model"."""
    try:
        yield
    except ValueError as error:
        is_key = re.split(r"[ =:]", str(error))[0] in vars(config.model)
        raise ValueError(f"model.{error}" if is_key else str(error)) from None


def encoder_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return the configured model itself, without what decodes pairs of nodes."""
    return model.encoder if isinstance(model, LinkModel) else model


def describe_foreign(config: Config, model: torch.nn.Module, data: Data) -> str:
    """Say what a model whose layers others wrote does with edge features, and how it is evaluated."""
    name = getattr(config.model, "conv", model.title)
    used = f"to {name} as {model.edge_argument}" if model.edge_argument else f"not used by {name}"
    text = "" if data.edge_attr is None else f"the {data.edge_attr.size(1)} edge features: {used}; "
    exact = "layer by layer, in blocks of edges where the graph is large" \
        if isinstance(model, PyGModel) and model.splits() else "by one forward over the whole graph"
    how = {"exact": exact, "views": "by views"}.get(config.evaluation.method, "by sampled neighbours")
    return f"{text}evaluation: {how}"
