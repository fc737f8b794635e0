"""Tasks by name: what each asks of a run and of the data, and how it is built."""

from collections.abc import Callable
from dataclasses import dataclass

from torch_geometric.data import Data

from parallel_epochs.pipeline.data.base_config import refuse_without_labels
from parallel_epochs.pipeline.data.kinds import DataKind, data_kind
from parallel_epochs.pipeline.data.typed import refuse_unread, schema_of
from parallel_epochs.pipeline.gnn.tasks.graph import GraphTask
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.losses import LabelLoss, LossOptions
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.trainer import Task
from parallel_epochs.pipeline.metrics import KINDS, METRICS, hits_at, kind_of
from parallel_epochs.pipeline.names import TEXT_SCORES


@dataclass(frozen=True)
class TaskOptions:
    """What a run asks of its task.

    Attributes:
        metric: name of the metric; None for that of the dataset.
        label_input: fraction of the training labels that are inputs.
        hidden_channels: width of the model.
        valid_edges: whether the test of links sees the edges of validation.
        loss: what the loss of classes and binary tasks is.
        smooth: how predicted classes are smoothed.
        text_scores: weight of the scores of texts in the logits.
    """

    metric: str | None
    label_input: float
    hidden_channels: int
    valid_edges: bool
    loss: LossOptions = LossOptions()
    smooth: str = "none"
    text_scores: float = 0.0


@dataclass(frozen=True)
class TaskKind:
    """A task.

    Attributes:
        build: builds it for a graph; a ValueError if it does not fit.
        check: refuses options, before anything is opened.
        check_data: refuses a dataset, as it was read or prepared, before the task is built. It also gets where the
            dataset comes from, for its message.
    """

    build: Callable[[Data, TaskOptions], Task]
    check: Callable[[TaskOptions], None]
    check_data: Callable[[Data, TaskOptions, str], None]


def with_labels(task: type[NodeTask]) -> TaskKind:
    """Return the record of a task that learns labels."""
    def build(data: Data, options: TaskOptions) -> NodeTask:
        _check_smooth(data, options)
        more = {"text_scores": options.text_scores} if options.text_scores else {}
        return task(data, label_input=options.label_input, metric=options.metric, loss_options=options.loss, **more)

    return TaskKind(build, _check_known, _check_labels)


def _check_known(options: TaskOptions) -> None:
    if options.metric is None:
        return
    if options.metric not in METRICS:
        raise ValueError(f"task.metric={options.metric} is unknown; choose one of {', '.join(METRICS)}")
    options.loss.check_kind(kind_of(options.metric))


def _check_has_labels(data: Data, options: TaskOptions, origin: str) -> None:
    if data_kind(data) is not DataKind.GRAPHS and "train_mask" not in data:
        refuse_without_labels(origin, "save y and masks, or y with data.split=random" if origin.endswith(".pt")
                              else "give them with the graph")


def _check_labels(data: Data, options: TaskOptions, origin: str) -> None:
    if (schema := schema_of(data)) is not None:
        refuse_unread(schema, origin)
    _check_has_labels(data, options, origin)
    check_metric(options.metric, data.metric)
    kind = kind_of(data.metric)
    options.loss.check_kind(kind)
    _check_smooth(data, options)
    if options.text_scores and TEXT_SCORES not in data:
        raise ValueError(f"task.text_scores={options.text_scores:g} needs scores of texts among the features, and "
                         f"{origin} has none. Leave it out")
    if "out_channels" in data and kind != "real values":  # prepared: the weights fit the labels, or are refused here
        LabelLoss(options.loss, data, num_labels=data.out_channels, is_binary=kind == "binary tasks")


def _check_smooth(data: Data, options: TaskOptions) -> None:
    if options.smooth == "none":
        return
    if (kind := kind_of(data.metric)) != "classes":
        raise ValueError(f"evaluation.smooth={options.smooth} needs classes; this run learns {kind}. Leave it out")
    if schema_of(data) is not None:
        raise ValueError(f"evaluation.smooth={options.smooth} spreads labels along all edges, and this graph has "
                         "several types of nodes. Leave it out")
    if not bool(data.valid_mask.any()):
        raise ValueError(f"evaluation.smooth={options.smooth} is tuned by the validation labels, and the valid split "
                         "is empty. Leave it out, or choose another split")


def check_metric(chosen: str | None, metric: str) -> None:
    """Refuse a metric of other labels than the dataset has.

    Args:
        metric: that of the dataset.

    Raises:
        ValueError: names those that fit.
    """
    if chosen is not None and chosen not in KINDS[kind := kind_of(metric)]:
        raise ValueError(f"task.metric={chosen} is a metric of {kind_of(chosen)}, and the dataset ({metric}) has "
                         f"{kind}. Choose one of {', '.join(KINDS[kind])}")


def _build_link(data: Data, options: TaskOptions) -> LinkTask:
    return LinkTask(data, hidden_channels=options.hidden_channels, metric=options.metric,
                    valid_edges=options.valid_edges)


def _check_link(options: TaskOptions) -> None:
    if options.metric is not None:
        hits_at(options.metric)


# One line for each member of tasks/.
TASKS: dict[str, TaskKind] = {"node": with_labels(NodeTask), "graph": with_labels(GraphTask),
                              "link": TaskKind(_build_link, _check_link, _check_has_labels)}
