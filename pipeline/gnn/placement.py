"""Decides where the graph of a run lies while batches are made, on the GPU or not, and reports the memory it takes."""

import logging
from functools import partial

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn import memory
from parallel_epochs.pipeline.gnn.base.label_scores import report_limit
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.estimate import machine_of
from parallel_epochs.pipeline.gnn.loaders.snapshots import MOST_KEPT, num_snapshots
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.resident import bytes_of, put_on
from parallel_epochs.pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)


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
    size, (room, text) = size_of(setup.data), room_of(setup, trains)
    text = f"the graph takes {format_bytes(size)}, and {format_bytes(room)} are left on the GPU: {text}"
    if size > room:
        level = logging.WARNING if asked == "cuda" else logging.INFO
        log.log(level, "data.device=%s: the CPU makes the batches, as %s", asked, text)
        return
    log.info("data.device=%s: the GPU makes the batches, as %s", asked, text)
    setup.put = partial(put_on, device=device)
    setup.bytes_on_gpu = size
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
    return ""


def room_of(setup: Setup, trains: bool) -> tuple[float, str]:
    """Return the bytes that training and evaluation, or a prediction, leave to the graph, and how they were found."""
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
    return max(limit - beside, 0), text


def size_of(data: Data) -> int:
    """Return the bytes of a graph on a device; of one with snapshots, those of all that are kept."""
    times = max(num_snapshots(data), 1)
    return bytes_of(data) * (times if times * data.num_edges <= MOST_KEPT else 1)
