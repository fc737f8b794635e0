"""Blocks of work that threads of C++ train, task by task: the call that skip-gram and layouts share."""

import ctypes
from typing import Any

import numpy as np
from torch import Tensor

from parallel_epochs.models.kernels.layout import fill
from parallel_epochs.models.kernels.native import NativeLibrary


def train_tasks(
    library: NativeLibrary,
    function: str,
    structure: Any,
    tasks: list[list[Any]],
    tensors: dict[str, Tensor],
    **numbers: float,
) -> tuple[float, float]:
    """Train blocks in place.

    Args:
        library, function: where the function in C++ is, and its name.
        structure: what it takes, see :func:`models.kernels.layout.read_structure`.
        tasks: lists of blocks. The blocks of a task are trained in order. Blocks of different tasks share no rows.
        tensors, numbers: fields of the structure.

    Returns:
        The loss, summed over some pairs, and the number of these pairs.

    Raises:
        ValueError: the library cannot be compiled here; the message says why.
    """
    compiled = library.require("embeddings are trained")
    blocks = [block for task in tasks for block in task]
    fields = np.array([tuple(vars(block).values()) for block in blocks], np.int64).reshape(
        len(blocks), 7
    )
    ptr = np.cumsum([0, *(len(task) for task in tasks)], dtype=np.int64)
    loss = np.zeros((len(blocks), 2))
    getattr(compiled, function)(
        ctypes.byref(
            fill(
                structure,
                tensors,
                num_tasks=len(tasks),
                task_ptr=ptr.ctypes.data,
                blocks=fields.ctypes.data,
                loss=loss.ctypes.data,
                **numbers,
            )
        )
    )
    total, count = loss.sum(0)
    return float(total), float(count)
