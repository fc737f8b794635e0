"""The simple method that a run begins at: fitted once, kept in the cache, and shown to a network as columns."""

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import path_of
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn import estimate
from parallel_epochs.pipeline.gnn.base.fit import SECONDS, Base, fit_base
from parallel_epochs.pipeline.gnn.base.link_base import LinkBase, fit_link_base
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.loaders.snapshots import size_of_pass
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.names import BASE_COLUMNS, MARKS, ranks_at
from parallel_epochs.pipeline.run import checkpoint, pulse, read_back
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.log import format_score

log = logging.getLogger(__name__)

AnyBase = TypeVar("AnyBase", Base, LinkBase)
# Raise it when the methods score otherwise, so that they are fitted again.
FORMAT, LINKS_FORMAT = 12, 4
# All simple methods may take this part of the network's time, and a number of seconds between these.
PART, FEWEST_SECONDS, MOST_SECONDS = 0.2, 1, 3 * SECONDS
# A method is chosen for so many nodes, or whole graphs, at most.
MOST_NODES = 300_000


def fit_or_read(config: GNNConfig, data: Graph, *, verify: bool) -> Base | LinkBase | None:
    """Fit the simple method of a run, or read its scores from the cache; none if the run has no such method.

    Args:
        data: the graph with all its features.
        verify: whether to check what the cache holds, and to say in the log what was found.

    Raises:
        ValueError: the method does not fit the data.
    """
    if config.task.base == "none":
        return None
    is_chosen, reason = config.task.base == "auto", config.why_no_base()
    task = None if is_chosen and reason else kind_of(config).task(data)
    if is_chosen and (task is None or (reason := _why_not(data, task))):
        if config.task.reads_base:
            raise ValueError(
                f"task.candidate={config.task.candidate} reads a simple method, and task.base=auto "
                f"chooses none: {reason}"
            )
        if verify:
            log.info("no simple method (task.base=auto): %s", reason)
        return None
    seconds = config.task.base_seconds if is_chosen else SECONDS
    if isinstance(task, LinkTask):
        seconds = float(seconds)
        asked: list = [LINKS_FORMAT, seconds, task.metric, task.test_data is not None]
        return _keep(
            config,
            data,
            asked,
            LinkBase,
            partial(fit_link_base, data, task, seconds),
            verify=verify,
        )
    if not isinstance(task, NodeTask):  # a kind of others
        if is_chosen:
            return None
        raise ValueError(
            f"task.base={config.task.base}: this task has no simple methods. Leave it out"
        )
    shape, marks = (task.num_rows, task.out_channels), data.get(MARKS, ((), ()))
    asked = [
        FORMAT,
        config.task.base,
        seconds,
        task.metric,
        config.data.components,
        *shape,
        *[marks] * any(map(any, marks)),
    ]

    def check(path: Path, base: Base) -> None:
        if tuple(base.rows.shape) != shape or not base.rows.isfinite().all():
            raise DamagedFile(f"{path} is damaged: it holds other scores than of {shape[0]:,} rows")

    return _keep(
        config,
        data,
        asked,
        Base,
        partial(fit_base, data, task, config.task.base, seconds=seconds),
        check,
        verify=verify,
    )


def _keep(
    config: GNNConfig,
    data: Graph,
    asked: list,
    form: type[AnyBase],
    fit: Callable[[], AnyBase],
    check: Callable[[Path, AnyBase], None] = lambda path, base: None,
    *,
    verify: bool,
) -> AnyBase:
    """Fit a simple method, or read from the cache what was fitted.

    Args:
        asked: all that it depends on in addition to the data.
        form: class of what is fitted.
        check: refuses what was read.
    """
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def fit_now() -> dict[str, Any]:
        pulse.beat("fitting simple methods", pulse.State.LONG)
        return vars(fit())

    base = form(
        **checkpoint.keep(
            path_of(config.data, config.cache_dir, data.content_hash, f"-base-{digest}"),
            fit_now,
            again="fitting it again",
            verify=verify,
            check=lambda path, content: check(path, read_back.build(path, form, content)),
        )
    )
    if verify:
        log.info(
            "simple method: %s, valid %s, %.1f s",
            base.title,
            format_score(base.scores["valid"]),
            base.seconds,
        )
    return base


def settle(config: GNNConfig, data: Graph) -> dict[str, float]:
    """Return the value of task.base_seconds if it is "auto" and a method is chosen: a part of the network's time."""
    if (
        config.task.base != keys.AUTO
        or config.task.base_seconds != keys.AUTO
        or config.why_no_base()
    ):
        return {}
    num_ranked = 0
    if config.predicts_links and ranks_at(config.task.metric or data.metric):
        num_ranked = (len(data.valid_pairs) + len(data.test_pairs)) * data.num_nodes
    whole = estimate.seconds_of_training(config, *size_of_pass(data), num_ranked)
    return {"task.base_seconds": float(min(MOST_SECONDS, max(FEWEST_SECONDS, round(PART * whole))))}


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
    base: Base | LinkBase | None,
    moments: Sequence[float] | None = None,
) -> Graph:
    """Give the nodes of a graph the scores of a simple method as columns, where the network reads them.

    They stand behind the features of the nodes, in a graph with several types of nodes behind those of the type with
    labels, and in front of categories.

    Args:
        base: the simple method; none if the run has none.
        moments: as :func:`moments_of` returned them for the graph of the training. None: it is this one.
    """
    if base is None or isinstance(base, LinkBase) or not config.task.reads_base:
        return data
    scale, shift = moments or moments_of(data, base.rows)
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


def moments_of(data: Graph, rows: Float[Tensor, "num_rows columns"]) -> tuple[float, float]:
    """Return the deviation and the mean of all scores of the training rows, which are out of fold.

    All columns have the same ones, since they are compared with each other.
    """
    known = rows[data.train_mask].double()
    deviation = float(known.std(correction=0))
    return (deviation if deviation > 1e-6 else 1.0), float(known.mean())
