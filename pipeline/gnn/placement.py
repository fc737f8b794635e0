"""Decides where the graph of a run lies while batches are made, on the GPU or not, and reports the memory it takes."""

import importlib.util
import logging
from dataclasses import dataclass
from functools import partial

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn import memory
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.estimate import machine_of
from parallel_epochs.pipeline.gnn.label_scores import report_limit
from parallel_epochs.pipeline.gnn.loaders.snapshots import MOST_KEPT, num_snapshots
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.resident import KEYS, bytes_of, put_on
from parallel_epochs.pipeline.names import SNAPSHOT
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory

log = logging.getLogger(__name__)

# These matrices may stay in page-locked memory.
FAR = ("x", "edge_attr")


@dataclass(frozen=True)
class Room:
    """The memory for a graph.

    Attributes:
        gpu: bytes that are left on the GPU.
        host: bytes that a rank may lock in the machine's memory.
        text: says how `gpu` was found.
    """

    gpu: float
    host: float
    text: str


@dataclass(frozen=True)
class Plan:
    """Where a graph lies.

    Attributes:
        name: "cuda", "pinned" or "cpu".
        text: says so in the log, with the numbers.
        size: bytes on the GPU.
        far: keys of the matrices in page-locked memory.
        num_near: rows of a far ``x`` that the GPU holds as well.
    """

    name: str
    text: str
    size: int = 0
    far: tuple[str, ...] = ()
    num_near: int = 0


def place(setup: Setup, *, trains: bool) -> None:
    """Let the loader of a run make its batches where data.device asks for them, or where the graph fits; once.

    Args:
        trains: whether training follows, of which a trial step is taken here to learn its size.
    """
    asked, device = setup.config.data.device, setup.device
    if setup.put is not None or device.type != "cuda" or asked == "cpu":
        return
    if reason := why_cpu(setup.config, setup.data):
        log.info("data.device=%s: the CPU makes the batches, as %s", asked, reason)
        return
    found = plan(
        asked,
        setup.data,
        room_of(setup, trains),
        has_triton=importlib.util.find_spec("triton") is not None,
    )
    log.log(
        logging.WARNING if asked not in ("auto", found.name) else logging.INFO,
        "data.device=%s: %s",
        asked,
        found.text,
    )
    if found.name != "cpu":
        setup.put = partial(put_on, device=device, far=found.far, num_near=found.num_near)
        setup.bytes_on_gpu = found.size
        setup.loader.place(setup.put)


def report(setup: Setup) -> None:
    """Log where the graph lies, the memory that a rank will take, where it is known beforehand, and what the run will
    not record.
    """
    place(setup, trains=True)
    memory.report(setup)
    report_limit(setup)
    if loss := str(getattr(setup.task, "label_loss", None) or ""):
        log.info("loss: %s", loss)


def why_cpu(config: GNNConfig, data: Data) -> str:
    """Return the reason why the CPU makes the batches whatever fits, or an empty text."""
    if data.on_disk:
        return "the graph stays on the disk (data.on_disk=true)"
    by_pyg = config.loader.name == "neighbor" and config.loader.backend == "pyg"
    return "loader.backend=pyg draws there" if by_pyg else ""


def room_of(setup: Setup, trains: bool) -> Room:
    """Find the memory that training and evaluation, or a prediction, leave to the graph."""
    machine = machine_of(setup.config)
    free, total = torch.cuda.mem_get_info(setup.device)
    # Torch keeps what tensors of before have left.
    free += torch.cuda.memory_reserved(setup.device) - torch.cuda.memory_allocated(setup.device)
    limit = min(machine.budget, free)
    text = (
        f"{machine.describe_budget()} may be used"
        if free >= machine.budget
        else f"{format_bytes(free)} of the GPU's {format_bytes(total)} are free, as other programs or ranks use the rest"
    )
    if trains and memory.is_known(setup):
        found = memory.measure(setup)
        beside = found.total(setup.config.partition.num_clusters) - found.graph
        text += f", and training takes about {format_bytes(beside)} of it"
    else:
        beside = limit / 2
        text += ", and half of it is for the model, whose needs are not known beforehand"
    return Room(max(limit - beside, 0), 0.8 * machine_memory() / machine.num_ranks, text)


def plan(asked: str, data: Data, room: Room, *, has_triton: bool) -> Plan:
    """Decide where a graph lies: all of it on the GPU, only its structure there, or nothing.

    Args:
        asked: data.device: "auto", "cuda" or "pinned".
    """
    size, held = size_of(data), f"{format_bytes(room.gpu)} are left on the GPU: {room.text}"
    if asked != "pinned" and size <= room.gpu:
        return Plan(
            "cuda",
            f"the graph, {format_bytes(size)}, lies on the GPU, which makes the batches; {held}",
            size,
        )
    far = tuple(key for key in FAR if data.get(key) is not None and data[key].numel())
    locked, text = size_of(data, far), f"the graph takes {format_bytes(size)}, and {held}"
    # Torch's allocator of locked memory takes powers of two.
    taken = sum(1 << (size_of(data, (key,)) - 1).bit_length() for key in far)
    structure, reason = size - locked, ""
    if structure > room.gpu:
        reason = f"its structure alone takes {format_bytes(structure)}"
    elif taken > room.host:
        reason = f"a rank may lock {format_bytes(room.host)} of the machine's memory, not {format_bytes(taken)}"
    elif far and not has_triton:
        reason = "the GPU reads locked memory by a kernel in Triton, which is not installed"
    if reason:
        return Plan("cpu", f"{text}. The CPU makes the batches, as {reason}")
    num_near = each = 0
    if "x" in far and SNAPSHOT not in data:
        each = data.x.size(1) * data.x.element_size()
        num_near = int(
            min(max(room.gpu - structure - 4 * data.num_nodes, 0) // each, data.num_nodes)
        )
    return Plan(
        "pinned",
        f"{text}. Its structure lies on the GPU, which makes the batches and reads the features, "
        f"{format_bytes(locked)}, from page-locked memory; it also holds those of {num_near:,} of "
        f"{data.num_nodes:,} nodes",
        structure + num_near * each,
        far,
        num_near,
    )


def size_of(data: Data, keys: tuple[str, ...] = KEYS) -> int:
    """Return the bytes of a graph on a device; of one with snapshots, those of all that are kept."""
    times = max(num_snapshots(data), 1)
    return bytes_of(data, keys) * (times if times * data.num_edges <= MOST_KEPT else 1)
