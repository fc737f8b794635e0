"""What a run takes at least, by arithmetic, before anything is built: absurd sizes are refused by name."""

import math
from collections.abc import Callable

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.loaders.build import LOADERS
from parallel_epochs.pipeline.keys import entries
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory, parse_bytes

# A weight, its gradient and the optimizer's two moments, float32.
BYTES_PER_PARAMETER = 16
# An object of Python's for each module and parameter.
BYTES_PER_MODULE = 4_000
# Sizes up to the first are built, on the device that allocates nothing; larger ones are extrapolated from some of at
# least the second.
LARGEST_BUILT, SMALLEST_BUILT = 64, 6

Sizes = dict[str, int]


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


def check_model(config: GNNConfig, construct: Callable[[Sizes], torch.nn.Module]) -> None:
    """Refuse a model that the machine cannot hold for training.

    Args:
        construct: builds the model with other values of some of its keys.

    Raises:
        ValueError: names the keys whose sizes are to blame, or says what `construct` does of impossible options.
    """
    default = {entry.name: entry.value for entry in entries(type(config.model)())}
    sizes = {name: value for name, value in vars(config.model).items() if type(value) is int and name != "num_groups"}
    step = getattr(config.model, "num_groups", 1)  # which divides the channels
    heads = getattr(config.model, "kwargs", {}).get("heads", 1)
    step = heads if isinstance(heads, int) and heads > 1 else step

    def measure(sizes: Sizes) -> int:
        with torch.device("meta"):
            model = construct(sizes)
        each = BYTES_PER_PARAMETER * sum(weight.numel() for weight in model.parameters())
        return each + BYTES_PER_MODULE * (len(list(model.modules())) + len(list(model.parameters())))

    def total(sizes: Sizes) -> int:
        return extrapolate(measure, sizes, step) * ranks_of_machine(config)

    available = memory_of(config)
    needed = total(sizes)
    if needed <= available:
        return
    larger = {name: size for name, size in sizes.items() if size > default[name]}
    to_blame = [name for name in larger if total({**sizes, name: default[name]}) <= available] or list(larger)
    named = " and ".join(f"model.{name}={sizes[name]}" for name in to_blame) or "parallel.num_ranks"
    raise ValueError(f"{named}: weights, gradients and optimizer take at least {format_bytes(needed)}, "
                     f"{holder_of(config)} has {format_bytes(available)}. "
                     f"Lower {'them' if len(to_blame) > 1 else 'it'}")


def check_table(config: GNNConfig, num_nodes: int) -> None:
    """Refuse a table of node features that the machine cannot hold: every rank has all of it.

    Raises:
        ValueError: names the key.
    """
    features = config.features
    if not config.learned_channels:
        return
    # Its numbers, and the two moments of each; and what the first layer makes of a row.
    table = num_nodes * (12 if features.optimizer == "sparse_adam" else 4)
    on_gpu = _on_gpu(config) and features.device == "auto"
    each = table + BYTES_PER_PARAMETER * config.model.hidden_channels
    num_tables = 1 if on_gpu else config.parallel.num_ranks
    needed, available = features.channels * each * num_tables, memory_of(config) if on_gpu else machine_memory()
    if needed > available:
        ranks = f" in each of {num_tables} ranks" if num_tables > 1 else ""
        holder, mend = ("the GPU", ", or set features.device=cpu") if on_gpu else ("this machine", "")
        raise ValueError(f"features.channels={features.channels}: a table of {num_nodes:,} nodes, with its optimizer"
                         f"{ranks}, takes at least {format_bytes(needed)}, {holder} has {format_bytes(available)}: "
                         f"lower it{mend}")


def check_activations(config: GNNConfig, data: Data) -> None:
    """Refuse batches of which training cannot keep what backward needs: at least the input of every layer.

    Raises:
        ValueError: names the keys.
    """
    model, found = config.model, LOADERS[config.loader.name].num_nodes(config, data)
    if hasattr(model, "path") or found is None:  # a class of the user's, whose layers and channels nobody knows
        return
    num_nodes, mend = found
    layers = 1 if model.name == "equilibrium" or getattr(model, "reversible", False) else model.num_layers
    bytes_each = 4 if config.train.precision == "fp32" else 2
    training = num_nodes * layers * model.hidden_channels * bytes_each * ranks_of_machine(config)
    available = memory_of(config)
    if training > available:
        raise ValueError(f"a batch of {num_nodes:,} nodes x {'' if layers == 1 else f'model.num_layers={layers} x '}"
                         f"model.hidden_channels={model.hidden_channels} takes at least {format_bytes(training)} in "
                         f"training, {holder_of(config)} has {format_bytes(available)}: {mend}, or "
                         "lower these")


def check_memory(config: GNNConfig) -> None:
    """Refuse a memory that is no size.

    Raises:
        ValueError: names the key.
    """
    if config.memory is not None:
        try:
            parse_bytes(config.memory)
        except ValueError as error:
            raise ValueError(f"memory={error}") from None


def check_whole_graph(config: GNNConfig, num_edges: int, bytes_per_edge: int) -> None:
    """Refuse an exact evaluation by one forward that makes larger tensors of edges x channels than the machine holds.

    Args:
        bytes_per_edge: of the largest of them; another is made from it.

    Raises:
        ValueError: names the key.
    """
    needed, available = 2 * num_edges * bytes_per_edge, memory_of(config)
    if needed > available:
        raise ValueError(f"evaluation=exact: one forward over {num_edges:,} edges takes at least "
                         f"{format_bytes(needed)}, {holder_of(config)} has {format_bytes(available)}: choose "
                         "evaluation=views")


def budget(config: GNNConfig) -> float:
    """Return the bytes that a rank may take: `memory`, or 80 % of what there is, shared by the ranks of the machine."""
    given = config.memory and parse_bytes(config.memory)
    return (given or 0.8 * memory_of(config)) / ranks_of_machine(config)


def describe_budget(config: GNNConfig) -> str:
    """Say how much a rank may take, and why."""
    limit, ranks = format_bytes(budget(config)), ranks_of_machine(config)
    if config.memory:
        return f"memory={config.memory}" + (f", {limit} for each of {ranks} ranks," if ranks > 1 else "")
    return f"{limit} a rank, 80 % of what {holder_of(config)} has,"


def ranks_of_machine(config: GNNConfig) -> int:
    """Return how many ranks share the memory: those of a machine; a GPU has one."""
    return 1 if _on_gpu(config) else config.parallel.num_ranks


def memory_of(config: GNNConfig) -> int:
    """Return the bytes of memory that the GPU has, or this machine."""
    return torch.cuda.get_device_properties(0).total_memory if _on_gpu(config) else machine_memory()


def holder_of(config: GNNConfig) -> str:
    """Name what has that memory."""
    return "the GPU" if _on_gpu(config) else "this machine"


def _on_gpu(config: GNNConfig) -> bool:
    return config.device != "cpu" and torch.cuda.is_available()
