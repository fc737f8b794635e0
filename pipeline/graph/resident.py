"""A graph on the device of the model: its structure there, and its features there or in page-locked memory."""

from collections.abc import Collection

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.subgraph import GRAPH_KEYS, NODE_KEYS

# Batches are made of these attributes.
KEYS = ("edge_index", "edge_attr", *NODE_KEYS, "n_id", "ptr")


class HeldRows:
    """Rows in page-locked memory, which a GPU reads; some of them lie on the device as well.

    Args:
        values: [num_rows, columns], on the CPU.
        near: numbers of the rows that the device holds, int64.

    Attributes:
        values: all rows, on the CPU.
    """

    def __init__(
        self,
        values: Shaped[Tensor, "num_rows columns"],
        near: Int[Tensor, " num_near"],
        device: torch.device,
    ):
        self.values = values.contiguous().pin_memory() if device.type == "cuda" else values
        self._near = self._slot = None
        if len(near):
            self._near = values[near].to(device)
            self._slot = torch.full((len(values),), -1, dtype=torch.int32, device=device)
            self._slot[near.to(device)] = torch.arange(len(near), dtype=torch.int32, device=device)

    def take(self, rows: Int[Tensor, " num_taken"]) -> Shaped[Tensor, "num_taken columns"]:
        """Gather rows on the device."""
        if rows.device.type == "cuda":
            from parallel_epochs.models.kernels.gather import gather_rows

            return gather_rows(self.values, self._near, self._slot, rows)
        found = self.values.index_select(0, rows.cpu()).to(
            rows.device
        )  # tests: the kernel waits for nothing
        if self._near is None or self._slot is None:
            return found
        slot = self._slot[rows].long()
        return torch.where((slot >= 0).unsqueeze(1), self._near[slot.clamp(min=0)], found)


def most_used(data: Data, count: int) -> Int[Tensor, " count"]:
    """Return the nodes that the most edges leave: those that samples reach most often."""
    src = data.edge_index.as_tensor()[0]
    return (
        torch.bincount(src, minlength=data.num_nodes)
        .sort(descending=True, stable=True)
        .indices[:count]
    )


def put_on(
    data: Data, device: torch.device, *, far: Collection[str] = (), num_near: int = 0
) -> Data:
    """Copy what batches are made of to a device.

    Args:
        far: keys of matrices that stay in page-locked memory.
        num_near: rows of a far ``x`` that the device holds as well, those of the nodes that most edges leave.
    """
    graph, held = type(data)(num_nodes=data.num_nodes), {}
    for key in KEYS:
        value = data.get(key)
        if value is None:
            continue
        if key in far:
            held[key] = HeldRows(value, most_used(data, num_near if key == "x" else 0), device)
            graph[key] = held[key].values
        else:
            graph[key] = value.to(device)
    for key in GRAPH_KEYS:
        if key in data:
            graph[key] = data[key]
    if held:
        graph.held = held
    return graph


def bytes_of(data: Data, keys: Collection[str] = KEYS) -> int:
    """Return the bytes that :func:`put_on` copies of some keys."""
    total = 0
    for key in keys:
        value = data.get(key)
        if value is not None:
            count = (
                2 * value.size(1) + value.get_sparse_size(1) + 1
                if key == "edge_index"
                else value.numel()
            )
            total += count * value.element_size()
    return total
