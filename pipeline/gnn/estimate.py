"""Says what memory a run may use, from sizes alone."""

from dataclasses import dataclass

import torch

from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory, parse_bytes

# Size of a block of the whole graph that is computed at a time.
BLOCK_NODES, BLOCK_EDGES = 1 << 16, 1 << 22


@dataclass(frozen=True)
class Machine:
    """The memory that holds a run: a GPU for each rank, or this machine for all its ranks.

    Attributes:
        on_gpu: whether the model lies on a GPU.
        num_ranks: number of ranks on this machine.
        given: the memory that training may use, such as "12GB"; None for 80 % of what there is.
    """

    on_gpu: bool
    num_ranks: int
    given: str | None = None

    @property
    def memory(self) -> int:
        """The bytes that the GPU has, or this machine."""
        return torch.cuda.get_device_properties(0).total_memory if self.on_gpu else machine_memory()

    @property
    def budget(self) -> float:
        """The bytes that a rank may take."""
        return (parse_bytes(self.given) if self.given else 0.8 * self.memory) / (
            1 if self.on_gpu else self.num_ranks
        )

    def describe_budget(self) -> str:
        """Say how much a rank may take, and why."""
        limit = f"{format_bytes(self.budget)} a rank"
        if self.given:
            return f"memory={self.given}, {limit},"
        return f"{limit}, 80 % of what {'the GPU' if self.on_gpu else 'this machine'} has,"


def machine_of(config: GNNConfig) -> Machine:
    """Describe what holds a run.

    Raises:
        ValueError: its memory is no size.
    """
    if config.memory is not None:
        try:
            parse_bytes(config.memory)
        except ValueError as error:
            raise ValueError(f"memory={error}") from None
    return Machine(
        config.device != "cpu" and torch.cuda.is_available(),
        config.parallel.num_ranks,
        config.memory,
    )


def activation_bytes(num_nodes: int, channels: int) -> int:
    """Return the memory of activations in blocks, three tensors at a time; 0 where they lie in files of their own."""
    size = 3 * 4 * num_nodes * channels
    return size if size <= machine_memory() // 4 else 0
