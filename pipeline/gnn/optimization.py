"""From the keys of train and parallel to what changes the weights: optimizer, learning rate, and shares of a rank."""

import logging
from collections.abc import Callable
from functools import partial

import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn.average import WeightAverage
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.contract import Task
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import LOWER_IS_BETTER
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import DECAYS, Decay, DecayOptions, Plateau, Schedule

log = logging.getLogger(__name__)

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "rmsprop": torch.optim.RMSprop,
}

# train.epochs=auto chooses about so many steps, and epochs in this range.
STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 10_000, 8, 500


def settle(setup: Setup) -> dict[str, float]:
    """Return the values of the keys of train that are "auto", which fit the number of batches of an epoch."""
    asked = [
        name
        for name in ("epochs", "warmup_steps", "ema")
        if vars(setup.config.train)[name] == keys.AUTO
    ]
    if not asked:
        return {}
    num_batches = setup.loader.num_batches
    chosen = {
        "epochs": min(max(STEPS // num_batches, FEWEST_EPOCHS), MOST_EPOCHS),
        "warmup_steps": num_batches,
        "ema": 1 - 1 / min(max(num_batches, 10), 1000),
    }
    return {f"train.{name}": chosen[name] for name in asked}


def build_optimizer(config: GNNConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a model's parameters."""
    train = config.train
    return OPTIMIZERS[train.optimizer](
        model.parameters(), lr=train.lr, weight_decay=train.weight_decay
    )


def build_average(config: GNNConfig, model: torch.nn.Module) -> WeightAverage | None:
    """Build the moving average of a model's weights, if the run has one."""
    return WeightAverage(model, config.train.ema) if config.train.ema else None


def build_schedule(config: GNNConfig, num_batches: int, ranks: Ranks = Ranks()) -> Schedule:
    """Build what shares out rounds and sets learning rates."""
    train, parallel = config.train, config.parallel
    return Schedule(
        num_epochs=train.epochs,
        num_batches=num_batches,
        rank=ranks.rank,
        num_ranks=ranks.num_ranks,
        split=parallel.name == "split",
        accumulate=train.accumulate,
        lr=train.lr,
        lr_scaling=parallel.lr_scaling,
        warmup_steps=train.warmup_steps,
        eval_every=train.eval_every,
    )


def check_decay(config: GNNConfig, task: Task) -> None:
    """Refuse a learning rate that follows a validation metric that the graph does not have.

    Raises:
        ValueError: names the key.
    """
    schedule = config.train.schedule
    if DECAYS[schedule] is Plateau and not task.is_defined("valid"):
        raise ValueError(
            f"train.schedule={schedule} follows the validation metric, but {task.metric} is "
            "undefined on the valid split, with no rows to score or rows of one kind alone. Leave "
            "train.schedule out, or choose another split or task.metric"
        )


def build_decay(config: GNNConfig, task: Task, schedule: Schedule) -> Decay:
    """Build what changes the learning rate in the course of a run."""
    train = config.train
    return DECAYS[train.schedule](
        DecayOptions(
            train.lr,
            schedule.warmup_steps,
            schedule.total_steps,
            train.plateau_factor,
            train.plateau_patience,
            task.metric in LOWER_IS_BETTER,
        )
    )


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that a GPU does not have.

    Raises:
        ValueError: names the key and the GPU.
    """
    if (
        device.type == "cuda"
        and precision == "bf16"
        and (found := torch.cuda.get_device_capability(device)) < (8, 0)
    ):
        raise ValueError(
            "train.precision=bf16 needs a GPU of compute capability 8.0 or more; "
            f"{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}. Set train.precision=fp16"
        )
