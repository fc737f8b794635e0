"""A training that begins with the weights of another run, on newer data."""

import logging
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.pipeline.data import learned as learning
from parallel_epochs.pipeline.data.learned import PREPROCESSING, Learned
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.features import NodeTable, load_weights, weights_of
from parallel_epochs.pipeline.run import checkpoint, files
from parallel_epochs.pipeline.run.errors import DamagedFile

log = logging.getLogger(__name__)


def learned_of(init: str | None, are_tables: bool) -> Learned | None:
    """Return what was learned of the tables of the run that a training begins with; none of other data.

    Args:
        init: the key train.init.
        are_tables: whether the data are tables.

    Raises:
        ValueError: there is no such run, or it kept nothing of its tables.
    """
    if init is None or not are_tables:
        return None
    found = _read(init)[1]
    if found is None or found.fitted is None:
        raise ValueError(
            f"train.init={init}: that run was not trained on tables, or kept nothing of what "
            "it learned of them. Choose another one, or leave train.init out"
        )
    return found


def begin(
    init: str,
    model: torch.nn.Module,
    table: NodeTable | None,
    task: Task,
    *,
    inputs: tuple[bool, bool],
) -> None:
    """Give a model the weights of the run that train.init names.

    Weights of columns and classes that only this training has stay as they are.

    Args:
        init: the key train.init.
        task: what this training learns.
        inputs: whether labels, and scores of a simple method, are inputs of the model.

    Raises:
        ValueError: the other model has other layers.
    """
    weights, learned = _read(init)
    sizes = (task.out_channels if learned is None else learned.out_channels), task.out_channels
    own, found = weights_of(model, table), {}
    for name, value in own.items():
        placed = _place(weights[name], value, sizes, inputs) if name in weights else None
        if placed is None:
            shape = (
                f"the shape {list(weights[name].shape)}" if name in weights else "no such weights"
            )
            raise ValueError(
                f"train.init={init}: {name} has the shape {list(value.shape)} here, and "
                f"{shape} there. Give this run the keys of that model, and data with the same columns"
            )
        found[name] = placed
    load_weights(found, model, table)
    log.info(
        "the model begins with the weights of %s%s. Validation and test are too good where they hold rows that "
        "trained it (train.init)",
        init,
        "" if sizes[0] == sizes[1] else f"; {sizes[1] - sizes[0]:,} more classes begin anew",
    )


def _read(init: str) -> tuple[dict[str, Tensor], Learned | None]:
    """Read the best weights of a run, or those of an exported file, and what was learned of its data if it was kept."""
    path = Path(init)
    try:
        if not path.is_dir():
            content = checkpoint.load(path)
            return content["state"]["model"], learning.from_dict(path, content["learned"])
        weights, kept = (
            checkpoint.load(path / "checkpoints" / "best.pt")["model"],
            path / PREPROCESSING,
        )
        return weights, learning.from_dict(kept, checkpoint.load(kept)) if files.is_there(
            kept
        ) else None
    except (KeyError, TypeError, DamagedFile, ValueError) as error:
        raise ValueError(
            f"train.init={init} is no run of trainer=gnn that ended, nor a file that export= wrote: "
            f"{error}"
        ) from None


def _place(
    old: Tensor, new: Tensor, sizes: tuple[int, int], blocks: tuple[bool, bool]
) -> Tensor | None:
    """Put old weights into new ones of other sizes; none where they do not fit.

    Args:
        sizes: number of classes or columns of labels, of then and of now.
        blocks: whether labels, and scores of a simple method, are inputs now.
    """
    if old.dim() != new.dim():
        return None
    found = [_match(*each, sizes, blocks) for each in zip(old.shape, new.shape, strict=True)]
    if any(each is None for each in found):
        return None
    out = new.detach().clone()
    places = [each for each in found if each is not None]
    if not places:
        return old.to(out)
    out[torch.meshgrid(*(to for _, to in places), indexing="ij")] = old.to(out)[
        torch.meshgrid(*(from_ for from_, _ in places), indexing="ij")
    ]
    return out


def _match(
    old: int, new: int, sizes: tuple[int, int], blocks: tuple[bool, bool]
) -> tuple[Tensor, Tensor] | None:
    """Find which places of a dimension of then and of now mean the same; none where it has another size.

    A dimension is that of all classes, or that of a model's inputs: labels and whether they are known, own columns,
    and scores of a simple method.
    """
    if old == new:
        return torch.arange(old), torch.arange(new)
    classes = torch.arange(min(sizes))
    if (old, new) == sizes:
        return classes, classes
    for before in sorted(product((False, True), repeat=2), key=lambda each: each != blocks):
        own = old - len(_inputs(sizes[0], 0, before))
        then, now = _inputs(sizes[0], own, before), _inputs(sizes[1], own, blocks)
        if own > 0 and len(now) == new:
            places = {name: place for place, name in enumerate(then)}
            pairs = [(places[name], place) for place, name in enumerate(now) if name in places]
            from_, to = torch.tensor(pairs).unbind(1)
            return from_, to
    return None


def _inputs(size: int, own: int, blocks: tuple[bool, ...]) -> list[tuple[str, int]]:
    """Name the inputs of a model."""
    labels = [*(("label", number) for number in range(size)), ("known", 0)]
    scores = [("score", number) for number in range(size)]
    return labels * blocks[0] + [("own", number) for number in range(own)] + scores * blocks[1]
