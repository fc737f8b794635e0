"""Computes what a run takes at least, before anything is built: absurd sizes are refused by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory, parse_bytes

# A weight, its gradient and the optimizer's two moments, float32.
BYTES_PER_PARAMETER = 16
# An object of Python's for each module and parameter.
BYTES_PER_MODULE = 4_000
# Seconds of an epoch and its evaluation for each edge and channel of a layer, and for each node and pair of channels.
SECONDS_PER_MESSAGE, SECONDS_PER_PRODUCT = 6e-9, 1.5e-9
# Seconds in which an evaluation ranks a candidate of a source.
SECONDS_PER_RANK = 5e-9
# Sizes up to the first are built, on the device that allocates nothing; larger ones are extrapolated from some of at
# least the second.
LARGEST_BUILT, SMALLEST_BUILT = 64, 6
# Size of a block of the whole graph that is computed at a time.
BLOCK_NODES, BLOCK_EDGES = 1 << 16, 1 << 22

Sizes = dict[str, int]


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
    def holder(self) -> str:
        """The name of what has that memory."""
        return "the GPU" if self.on_gpu else "this machine"

    @property
    def num_sharing(self) -> int:
        """The number of ranks that share the memory: one on a GPU."""
        return 1 if self.on_gpu else self.num_ranks

    @property
    def budget(self) -> float:
        """The bytes that a rank may take."""
        return (parse_bytes(self.given) if self.given else 0.8 * self.memory) / self.num_sharing

    def describe_budget(self) -> str:
        """Say how much a rank may take, and why."""
        limit = format_bytes(self.budget)
        if self.given:
            return f"memory={self.given}" + (
                f", {limit} for each of {self.num_sharing} ranks," if self.num_sharing > 1 else ""
            )
        return f"{limit} a rank, 80 % of what {self.holder} has,"


def seconds_of_training(
    config: GNNConfig, num_nodes: int, num_edges: int, num_ranked: int = 0
) -> float:
    """Estimate the seconds that a network is trained on a core, from sizes alone.

    A run that stops early is taken to have three times as many evaluations as its patience.

    Args:
        num_ranked: candidates of all sources that an evaluation ranks.
    """
    train, model = config.train, config.model
    epochs = (
        min(train.epochs, 3 * train.patience * train.eval_every) if train.patience else train.epochs
    )
    width, depth = getattr(model, "hidden_channels", 64), getattr(model, "num_layers", 4)
    ranking = epochs / train.eval_every * num_ranked * SECONDS_PER_RANK
    return ranking + epochs * depth * width * (
        SECONDS_PER_MESSAGE * num_edges + SECONDS_PER_PRODUCT * num_nodes * width
    )


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


def extrapolate(count: Callable[[Sizes], int], sizes: Sizes, step: int = 1) -> int:
    """Compute what is at most quadratic in each of some sizes, without the cost of large ones: exact in integers.

    Args:
        step: small sizes differ from large ones by multiples of it, so that what it divides stays divisible.
    """
    rounded_up = step * math.ceil(SMALLEST_BUILT / step)
    # Three small sizes lie below this one, whatever the remainder.
    built = max(LARGEST_BUILT, rounded_up + 3 * step)
    large = next((name for name, size in sizes.items() if size > built), None)
    if large is None:
        return count(sizes)
    least = sizes[large] % step + rounded_up
    a, b, c = (extrapolate(count, {**sizes, large: least + i * step}, step) for i in range(3))
    n = (sizes[large] - least) // step
    return a + n * (b - a) + n * (n - 1) // 2 * (c - 2 * b + a)


def check_model(
    sizes: Sizes,
    usual: Sizes,
    construct: Callable[[Sizes], torch.nn.Module],
    machine: Machine,
    *,
    step: int = 1,
) -> None:
    """Refuse a model that the machine cannot hold for training.

    Args:
        sizes: the model's keys that are sizes, by their names.
        usual: their values where they are not given.
        construct: builds the model with other values of them.
        step: see :func:`extrapolate`.

    Raises:
        ValueError: names the keys whose sizes are to blame, or says what `construct` does of impossible options.
    """

    def measure(sizes: Sizes) -> int:
        with torch.device("meta"):
            model = construct(sizes)
        each = BYTES_PER_PARAMETER * sum(weight.numel() for weight in model.parameters())
        return each + BYTES_PER_MODULE * (
            len(list(model.modules())) + len(list(model.parameters()))
        )

    def total(sizes: Sizes) -> int:
        return extrapolate(measure, sizes, step) * machine.num_sharing

    available = machine.memory
    needed = total(sizes)
    if needed <= available:
        return
    larger = {name: size for name, size in sizes.items() if size > usual[name]}
    to_blame = [
        name for name in larger if total({**sizes, name: usual[name]}) <= available
    ] or list(larger)
    named = " and ".join(f"model.{name}={sizes[name]}" for name in to_blame) or "parallel.num_ranks"
    raise ValueError(
        f"{named}: weights, gradients and optimizer take at least {format_bytes(needed)}, but "
        f"{machine.holder} has {format_bytes(available)}. Lower {'them' if len(to_blame) > 1 else 'it'}"
    )


def check_table(
    num_nodes: int,
    channels: int,
    machine: Machine,
    *,
    hidden_channels: int,
    optimizer: str,
    device: str,
) -> None:
    """Refuse a table of node features that the machine cannot hold: every rank has all of it.

    Args:
        channels: columns of the table; 0 without one.
        hidden_channels: what the first layer makes of a row.
        optimizer: that of the table.
        device: "auto" for the model's, or "cpu".

    Raises:
        ValueError: names the key.
    """
    # Its numbers, and the two moments of each.
    each = (
        num_nodes * (12 if optimizer == "sparse_adam" else 4)
        + BYTES_PER_PARAMETER * hidden_channels
    )
    on_gpu = machine.on_gpu and device == "auto"
    num_tables = 1 if on_gpu else machine.num_ranks
    needed, available = channels * each * num_tables, machine.memory if on_gpu else machine_memory()
    if needed > available:
        ranks = f" in each of {num_tables} ranks" if num_tables > 1 else ""
        holder, mend = (
            ("the GPU", ", or set features.device=cpu") if on_gpu else ("this machine", "")
        )
        raise ValueError(
            f"features.channels={channels}: a table of {num_nodes:,} nodes, with its optimizer{ranks}, "
            f"takes at least {format_bytes(needed)}, but {holder} has {format_bytes(available)}: lower "
            f"it{mend}"
        )


def check_activations(
    num_nodes: int,
    num_layers: int,
    hidden_channels: int,
    machine: Machine,
    *,
    bytes_each: int,
    mend: str,
) -> None:
    """Refuse batches of which training cannot keep what backward needs: at least the input of every layer.

    Args:
        num_nodes: of a batch.
        num_layers: of which the inputs are kept.
        bytes_each: of a number.
        mend: what makes batches smaller.

    Raises:
        ValueError: names the keys.
    """
    needed, available = (
        num_nodes * num_layers * hidden_channels * bytes_each * machine.num_sharing,
        machine.memory,
    )
    if needed > available:
        layers = "" if num_layers == 1 else f"model.num_layers={num_layers} x "
        raise ValueError(
            f"a batch of {num_nodes:,} nodes x {layers}model.hidden_channels={hidden_channels} takes at "
            f"least {format_bytes(needed)} in training, but {machine.holder} has "
            f"{format_bytes(available)}: {mend}, or lower these"
        )


def check_whole_graph(num_edges: int, bytes_per_edge: int, machine: Machine) -> None:
    """Refuse an exact evaluation by one forward that makes larger tensors of edges x channels than the machine holds.

    Args:
        bytes_per_edge: of the largest of them; another is made from it.

    Raises:
        ValueError: names the key.
    """
    needed, available = 2 * num_edges * bytes_per_edge, machine.memory
    if needed > available:
        raise ValueError(
            f"evaluation=exact: one forward over {num_edges:,} edges takes at least "
            f"{format_bytes(needed)}, but {machine.holder} has {format_bytes(available)}: choose "
            "evaluation=views"
        )


def activation_bytes(num_nodes: int, channels: int) -> int:
    """Return the memory of activations in blocks, three tensors at a time; 0 where they lie in files of their own."""
    size = 3 * 4 * num_nodes * channels
    return size if size <= machine_memory() // 4 else 0
