"""Predictions of every row: averaged over random partitions or drawn neighbours, or exact on the whole graph."""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from parallel_epochs.pipeline.gnn.contract import Loader
from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.progress import Bar
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.threads import borrowed_threads

# Row numbers [n] and their predictions [n, out_channels] for a batch, by a model in evaluation mode.
Predict = Callable[[Data], tuple[Tensor, Tensor]]


@torch.no_grad()
def predict_views(
    predict: Predict,
    loader: Loader,
    *,
    num_rows: int,
    out_channels: int,
    num_views: int,
    num_parts: int = 1,
    seed: int,
    round_: int,
    prefetch: int = 2,
    layers: Sequence[torch.nn.Module] = (),
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> Tensor:
    """Predict every row once in each view of a loader and average the predictions over the views.

    The result is a function of `predict`, `seed` and `round_`. The batches of all views are shared out among the ranks,
    and their predictions summed.

    Args:
        loader: one that has views, see :class:`pipeline.gnn.contract.Loader`.
        num_rows: number of rows to predict.
        out_channels: columns of the predictions.
        num_views: number of views.
        num_parts: clusters of a view.
        seed: of the views; a neighbour loader has its own.
        layers: modules that each run once a batch; a request to stop is looked at before each.
        stop: asks for an end.

    Returns:
        Predictions in order, [num_rows, out_channels], float32, on the CPU.

    Raises:
        Stopped: a rank was asked to stop; all ranks raise it.
    """
    views = loader.views(num_parts, seed)
    assert views is not None
    num_batches, make = views

    def start(view: int) -> Iterator[Data]:
        mine = range(num_batches)[
            (ranks.rank - view * num_batches) % ranks.num_ranks :: ranks.num_ranks
        ]
        return make(round_, view, mine)

    total = torch.zeros(num_rows, out_channels)
    share = math.ceil(num_views * num_batches / ranks.num_ranks)
    rounds = [(view, functools.partial(start, view)) for view in range(num_views)]
    with (
        stopped_together(stop, ranks, layers),
        Bar("evaluating", share, "clusters", show=ranks.is_first) as bar,
        BackgroundRounds(rounds, device=loader.device, prefetch=prefetch) as background,
    ):
        for view in range(num_views):
            for batch in background.batches(view):
                rows, predictions = predict(batch.to(loader.device, non_blocking=True))
                total[rows.cpu()] += predictions.float().cpu()
                bar.advance()
    ranks.sum_(total)
    return total / num_views


@torch.no_grad()
def predict_exact(
    predict: Predict,
    data: Data,
    *,
    num_rows: int,
    out_channels: int,
    device: torch.device,
    layers: Sequence[torch.nn.Module] = (),
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> Tensor:
    """Predict every row from the whole graph, layer by layer.

    The aggregation takes a bounded number of edges at a time, so that memory holds a few tensors of nodes x channels
    beside the graph. One pass can not be shared out: rank 0 makes it, on a CPU with the threads of all ranks of its
    machine, while the others wait.

    Args:
        layers: modules that each run once: they tell how far the pass is, and a request to stop is looked at before
            each.

    Returns:
        Predictions in order, [num_rows, out_channels], float32, on the CPU; on other ranks than the first nothing is
        computed, and the result is empty.

    Raises:
        Stopped: a rank was asked to stop; all ranks raise it.
    """
    if not ranks.is_first:
        with stopped_together(stop, ranks, layers):
            return torch.empty(0)
    # Data.to works in place; the graph itself stays where it is.
    batch = copy.copy(data)
    batch.n_id = torch.arange(data.num_nodes)
    batch.target = torch.ones(data.num_nodes, dtype=torch.bool)
    with (
        stopped_together(stop, ranks, layers),
        borrowed_threads(ranks.num_local),
        Bar("evaluating", len(layers), "layers") as bar,
        contextlib.ExitStack() as hooks,
    ):
        for layer in layers:
            hooks.callback(layer.register_forward_hook(lambda *_: bar.advance()).remove)
        rows, predictions = predict(batch.to(device))
        predictions = predictions.float().cpu()
        if len(rows) == num_rows and torch.equal(rows.cpu(), torch.arange(num_rows)):
            return predictions
        total = torch.zeros(num_rows, out_channels)
        total[rows.cpu()] = predictions
    return total


@contextlib.contextmanager
def stopped_together(
    stop: StopRequest | None, ranks: Ranks, layers: Sequence[torch.nn.Module] = ()
) -> Iterator[Callable[[], None]]:
    """Stop a block on all ranks together.

    A rank that is asked to stop leaves the block between two layers of the model, or where the block calls the function
    that it gets. The others leave at its end.

    Raises:
        Stopped: on all ranks, if one was asked to stop.
    """

    def look(*_: object) -> None:
        pulse.renew()
        if stop is not None:
            stop.check()

    asked = torch.tensor([0])
    try:
        with contextlib.ExitStack() as hooks:
            for layer in layers:
                hooks.callback(layer.register_forward_pre_hook(look).remove)
            yield look
    except Stopped as stopped:
        asked[0] = stopped.signum
    ranks.max_(asked)
    if asked:
        raise Stopped(int(asked))


def stack_of_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of a model: the ``ModuleList`` with the most parameters among those with graph convolutions if
    there are such, or the model's own modules.

    Hooks on what a convolution folds into itself, an encoder of edges, would keep it from doing so.
    """
    stacks = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module)
    ]
    convolve = [
        stack
        for stack in stacks
        if any(isinstance(module, MessagePassing) for module in stack.modules())
    ]
    return list(
        max(
            convolve or stacks,
            key=lambda stack: sum(p.numel() for p in stack.parameters()),
            default=model.children(),
        )
    )
