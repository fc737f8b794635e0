"""The simple method that a run begins at: fitted once, kept in the cache, and shown to a network as columns."""

import copy
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parallel_epochs.pipeline.data.cache import path_of
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.base import fusion
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.names import BASE_COLUMNS
from parallel_epochs.pipeline.run import checkpoint, pulse, read_back
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.log import format_score

log = logging.getLogger(__name__)

# Raise it when the methods score otherwise, so that they are fitted again.
FORMAT = 13
# A method is chosen for so many nodes, or whole graphs, at most.
MOST_NODES = 300_000


def fit_or_read(config: GNNConfig, data: Graph, *, verify: bool) -> Base | None:
    """Fit the simple method of a run, or read its scores from the cache; none if the run has no such method.

    Args:
        data: the graph with all its features.
        verify: whether to check what the cache holds, and to say in the log what was found.

    Raises:
        ValueError: the method does not fit the data.
    """
    if config.task.base == "none":
        return None
    kind, is_chosen, reason = kind_of(config), config.task.base == "auto", config.why_no_base()
    task = None if is_chosen and reason else kind.task(data)
    if is_chosen and (task is None or (reason := _why_not(data, task))):
        if config.task.reads_base:
            raise ValueError(
                f"task.candidate={config.task.candidate} reads a simple method, and task.base=auto "
                f"chooses none: {reason}"
            )
        if verify:
            log.info("no simple method (task.base=auto): %s", reason)
        return None
    assert task is not None
    if not kind.has_base:
        if is_chosen:
            return None
        raise ValueError(
            f"task.base={config.task.base}: this task has no simple methods. Leave it out"
        )
    seconds = config.task.base_seconds
    shape = None if kind.takes_pairs else (task.num_rows, task.out_channels)
    settings = [FORMAT, config.task.base, seconds, task.metric, config.data.components, shape]
    settings += [kind.test_graph(task) is not None, (), ()]
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = path_of(config.data, config.cache_dir, data.content_hash, f"-base-{digest}")

    def fit() -> dict[str, Any]:
        pulse.beat("fitting simple methods", pulse.State.LONG)
        return vars(kind.fit_base(data, task, config.task.base, seconds))

    def check(path: Path, content: dict) -> None:
        rows = read_back.build(path, Base, content).rows
        if (None if rows is None else tuple(rows.shape)) != shape or (
            rows is not None and not rows.isfinite().all()
        ):
            raise DamagedFile(
                f"{path} is damaged: it holds other scores than of {data.num_nodes:,} nodes"
            )

    base = Base(**checkpoint.keep(path, fit, again="fitting it again", verify=verify, check=check))
    if verify:
        log.info(
            "simple method: %s, valid %s, %.1f s",
            base.title,
            format_score(base.scores["valid"]),
            base.seconds,
        )
    return base


def _why_not(data: Graph, task: Task) -> str | None:
    """Say why no method is chosen for some data; none if one may be."""
    if task.num_rows > MOST_NODES:
        return f"there are more than {MOST_NODES:,} nodes or graphs; name a method to fit it nevertheless"
    if not bool(data.train_mask.any()) or not task.is_defined("valid"):
        return f"the {task.metric} of the valid split has too few labels to choose one"
    return None


def show(
    config: GNNConfig,
    data: Graph,
    base: Base | None,
    moments: Sequence[float] | None = None,
) -> Graph:
    """Give the nodes of a graph the scores of a simple method as columns, where the network reads them.

    They stand behind the features of the nodes, in a graph with several types of nodes behind those of the type with
    labels, and in front of categories.

    Args:
        base: the simple method; none if the run has none.
        moments: as :func:`fusion.moments_of` returned them for the graph of the training. None: it is this one.
    """
    if base is None or base.rows is None or not config.task.reads_base:
        return data
    scale, shift = moments or fusion.moments_of(data, base.rows)
    types, columns = data.types, (base.rows - shift) / scale
    num_own = data.x.size(1) - data.num_categories
    own, categories = data.x[:, :num_own].float(), data.x[:, num_own:]
    shown, first = copy.copy(data), num_own
    if not types.homogeneous:
        assert types.labelled is not None
        place, nodes = types.names.index(types.labelled), types.nodes_of(types.labelled)
        first = types.widths[place]
        wide = own.new_zeros(data.num_nodes, max(num_own, first + columns.size(1)))
        wide[:, :num_own] = own
        wide[nodes.start : nodes.stop, first : first + columns.size(1)] = columns[
            nodes.start : nodes.stop
        ]
        own, columns = wide, wide[:, :0]
        shown.types = replace(
            types,
            widths=[
                width + base.rows.size(1) * (number == place)
                for number, width in enumerate(types.widths)
            ],
        )
    shown.x = torch.cat([own, columns, categories], dim=1)
    if config.task.candidate == "offset":
        shown[BASE_COLUMNS] = [first, scale, shift]
    return shown
