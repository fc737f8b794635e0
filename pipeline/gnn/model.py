"""From a configuration to a model: its constructor's arguments, and a try of models whose layers others wrote."""

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Data

from parallel_epochs.models.aggregate import backend
from parallel_epochs.models.networks import custom
from parallel_epochs.models.networks.custom import CustomModel
from parallel_epochs.models.networks.foreign import try_forward
from parallel_epochs.models.networks.heads import find_head
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.join_types import column_ranges
from parallel_epochs.pipeline.gnn.config import MODELS, GNNConfig
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.features import NodeTable
from parallel_epochs.pipeline.gnn.kinds.base import Kind

OWN_KERNELS = "the model's own"  # what aggregates messages where others wrote the layers
# Where node features come from besides the data.
FEATURES: dict[str, type[NodeTable] | None] = {"data": None, "embedding": NodeTable}


def build_model(kind: Kind, data: Data, task: Task) -> torch.nn.Module:
    """Build a model with the sizes that the graph and the task ask for, its weights drawn from torch's random state.

    Raises:
        ValueError: an unknown name or an impossible size.
    """
    config = kind.config
    model = construct(config, **_sizes(kind, data, task))
    if config.model.is_foreign:  # lazy parameters get their shapes
        _try(kind, model, data, task)
    if (
        config.begins_at_scores and (head := find_head(model)) is not None
    ):  # the logits begin at the scores
        for parameter in head.parameters():
            torch.nn.init.zeros_(parameter)
    return kind.model(model, task)


def _sizes(kind: Kind, data: Data, task: Task) -> dict[str, Any]:
    """Collect what a model's constructor takes that depends on the data."""
    config = kind.config
    sizes = {
        "in_channels": task.in_channels + config.learned_channels,
        "out_channels": task.out_channels,
        "edge_dim": None if data.edge_attr is None else data.edge_attr.size(1),
        "num_categories": data.num_categories,
        **kind.sizes(data),
    }
    return sizes if data.types.homogeneous else sizes | _typed_sizes(kind, data, task)


def _typed_sizes(kind: Kind, data: Data, task: Task) -> dict[str, Any]:
    """Collect what a model's constructor takes of a graph with several types of nodes."""
    config, types = kind.config, data.types
    parameters = inspect.signature(_class_of(config)).parameters
    if config.learned_channels and not config.features.concat and hasattr(config.model, "path"):
        raise ValueError(
            "features.concat=false leaves out the features of the types with learned rows by their linear "
            "maps, and a class of yours has none. Set features.concat=true"
        )
    num_own = data.x.size(1) - data.num_categories
    # Pairs may be of any types.
    names = {
        "types": types.names,
        "relations": types.relations,
        "labelled": types.labelled if kind.has_labels else None,
    }
    named = {"schema": names} if "schema" in parameters else {}
    return named | {
        "num_relations": len(types.relations),
        "type_columns": column_ranges(
            types,
            num_labels=task.in_channels - num_own,
            num_learned=config.learned_channels,
            learned=_learned_types(config, data.types),
            replaces=not config.features.concat,
        ),
    }


def _learned_types(config: GNNConfig, types: GraphTypes) -> list[str]:
    """Return the types of nodes that have rows of the learned table.

    Raises:
        ValueError: the configuration names one that is not there.
    """
    if not config.learned_channels:
        return []
    chosen = types.names if (named := config.features.types) is None else named
    if wrong := [name for name in chosen if name not in types.names]:
        raise ValueError(
            f"features.types names {wrong[0]}, and {config.data.origin()} has no such type of nodes; "
            f"there are {', '.join(types.names)}"
        )
    return chosen


def build_table(config: GNNConfig, data: Data, device: torch.device) -> NodeTable | None:
    """Build the learned node features of a graph, none where the model sees those of the data.

    Args:
        device: of the model.

    Raises:
        ValueError: the graph has no nodes.
    """
    features, table = config.features, FEATURES[config.features.name]
    if data.types.homogeneous and features.types is not None:
        raise ValueError(
            f"features.types={features.types} is for graphs with several types of nodes, and "
            f"{config.data.origin()} has one. Leave it out"
        )
    if table is None:
        return None
    ranges = (
        None
        if features.types is None
        else [data.types.nodes_of(name) for name in _learned_types(config, data.types)]
    )
    num_rows = data.num_nodes if ranges is None else sum(map(len, ranges))
    return table(
        num_rows,
        features.channels,
        lr=features.lr,
        dropout=features.dropout,
        init=features.init,
        seed=config.seed,
        ranges=ranges,
        device=device,
    )


def try_model(kind: Kind, data: Data, task: Task) -> None:
    """Call a model whose layers others wrote on a tiny graph, before long work.

    Raises:
        ValueError: it fails, or returns something else than predictions.
    """
    with torch.random.fork_rng():
        _try(kind, construct(kind.config, **_sizes(kind, data, task)), data, task, trains=True)


def _try(
    kind: Kind, model: torch.nn.Module, data: Data, task: Task, *, trains: bool = False
) -> None:
    config = kind.config
    with naming_keys(config):
        try_forward(
            model,
            str(model.title),
            out_channels=task.out_channels,
            num_columns=task.in_channels + config.learned_channels + data.num_categories,
            edge_dim=None if data.edge_attr is None else data.edge_attr.size(1),
            node_tables=data.get("x_tables"),
            edge_tables=data.get("edge_tables"),
            num_categories=data.num_categories,
            num_relations=data.get("num_relations", 0),
            ends=_ends_of(data),
            num_rows=None if kind.is_one_graph else 1,
            trains=trains,
        )


def _ends_of(data: Data) -> list[tuple[int, int]] | None:
    """Return the numbers of the types that each relation of a typed graph has at its ends; none for other graphs."""
    if data.types.homogeneous:
        return None
    number = {name: place for place, name in enumerate(data.types.names)}
    return [(number[source], number[target]) for source, _, target in data.types.relations]


def construct(config: GNNConfig, **sizes: object) -> torch.nn.Module:
    """Call the constructor of the configured model.

    Args:
        sizes: what it takes that depends on the data.

    Raises:
        ValueError: names the key that it refuses.
    """
    options = {name: value for name, value in vars(config.model).items() if name != "name"}
    with naming_keys(config):
        return _class_of(config)(**sizes, **options, kernel=config.kernel)


def check_class(config: GNNConfig) -> None:
    """Refuse a class of the user's that cannot be found.

    Raises:
        ValueError: names the key.
    """
    with naming_keys(config):
        custom.find(vars(config.model)["path"])


def _class_of(config: GNNConfig) -> type[torch.nn.Module]:
    """Return the class of the configured model."""
    module, class_name, _ = MODELS[config.model.name]
    return getattr(importlib.import_module(f"parallel_epochs.models.networks.{module}"), class_name)


@contextlib.contextmanager
def naming_keys(config: GNNConfig) -> Iterator[None]:
    """Let messages of a constructor, which begin with the argument, name the key below "model"."""
    try:
        yield
    except ValueError as error:
        is_key = re.split(r"[ =:]", str(error))[0] in vars(config.model)
        raise ValueError(f"model.{error}" if is_key else str(error)) from error


def name_kernel(config: GNNConfig, encoder: torch.nn.Module, device: torch.device) -> str:
    """Name what aggregates messages in a model that was called once."""
    if config.model.is_foreign and not (
        isinstance(encoder, PyGModel) and not encoder.why_pygs_own()
    ):
        return OWN_KERNELS
    return backend(
        torch.empty(1, 1, device=device),
        torch.empty(2, 0, dtype=torch.int64, device=device),
        kernel=config.kernel,
    )


def describe_foreign(kind: Kind, model: torch.nn.Module, data: Data) -> str:
    """Say what a model whose layers others wrote does with edge features, and how it is evaluated."""
    config = kind.config
    name = vars(config.model).get("conv", model.title)
    used = f"to {name} as {model.edge_argument}" if model.edge_argument else f"not used by {name}"
    if isinstance(model, CustomModel) and model.takes_dicts and not data.types.homogeneous:
        text = (
            f"{name} gets dicts of {len(data.types.names)} types of nodes and {len(data.types.relations)} "
            "relations; "
        )
    else:
        text = (
            ""
            if data.edge_attr is None
            else f"the {data.edge_attr.size(1)} edge features: {used}; "
        )
    exact = "by one forward over the whole graph"
    if isinstance(model, PyGModel):
        text += f"{name}: {model.describe_code()}; "
    if not kind.is_one_graph:
        exact = "by batches of whole graphs"
    how = {"exact": exact, "views": "by views"}.get(
        config.evaluation.method, "by sampled neighbours"
    )
    return f"{text}evaluation: {how}"
