"""Chooses the device of vectors and layouts, and refuses one that cannot train them."""

import logging

import torch

from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.run import ranks as rank_tools
from parallel_epochs.pipeline.run.memory import format_bytes
from parallel_epochs.pipeline.run.ranks import Ranks

log = logging.getLogger(__name__)


def settle(
    part: Part,
    *,
    size: int,
    least: int,
    what: str,
    needed: int,
    ranks: Ranks,
    says: bool = True,
) -> torch.device:
    """Return the device of a run: device=auto takes a GPU from a size on, where there is one and it has room.

    The CPU trains, and the log says so, where a GPU cannot train this at all.

    Args:
        size: of what is learned, in `what`, "nodes" for example.
        least: the smallest size for which device=auto takes a GPU.
        needed: bytes that training takes on a GPU.
        says: whether to log what is chosen.

    Raises:
        ValueError: the run asks for a GPU that has no room for it.
    """
    asked, is_auto = part.config.device, part.config.device == "auto"
    stays = size < least or ranks.num_ranks > 1 or not torch.cuda.is_available()
    if is_auto and stays or not is_auto and part.device.type == "cpu":
        return part.device
    device = rank_tools.choose_device("cuda", ranks) if is_auto else part.device
    torch.cuda.empty_cache()  # a model that was trained before may have left some
    free = torch.cuda.mem_get_info(device)[0]
    reason = ""
    if needed > free:
        reason = f"{size:,} {what} take {format_bytes(needed)}, but {format_bytes(free)} of the GPU are free"
        if not is_auto:
            raise ValueError(f"device={asked}: {reason}. Set device=cpu")
    if says and reason and not is_auto:
        log.warning("device=%s: the CPU trains, as %s", asked, reason)
    elif says and is_auto:
        log.info(
            "device=auto: %s",
            f"the CPU: {reason}" if reason else f"a GPU, taken from {least:,} {what} on",
        )
    return torch.device("cpu") if reason else device
