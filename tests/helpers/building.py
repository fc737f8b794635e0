"""The parts of a run, built one by one, and its checkpoints evaluated: what commands do, by a call."""

import contextlib
import dataclasses
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys, training
from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.data.opened import OpenData, Part
from parallel_epochs.pipeline.gnn.build import (  # noqa: F401 - for the tests
    build_schedule,
    check_activations,
    check_table,
)
from parallel_epochs.pipeline.gnn.loaders.build import build_loader  # noqa: F401
from parallel_epochs.pipeline.gnn.model import build_model, build_table, construct, try_model  # noqa: F401
from parallel_epochs.pipeline.gnn.predictions import (  # noqa: F401
    Asked,
    Restored,
    restore as restore_gnn,
    save_predictions,
)
from parallel_epochs.pipeline.gnn.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup, build_task, machine_of  # noqa: F401
from parallel_epochs.pipeline.gnn.tasks.build import check_metric  # noqa: F401
from parallel_epochs.pipeline.products import product_of
from parallel_epochs.pipeline.run.contract import Trainer
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.training import check  # noqa: F401

CPU = torch.device("cpu")
# The keys of every `evaluate` and `predict`; those that the run's product does not read are refused.
EvaluateConfig = schema.AnyEvaluation


def open_graph(config: RunConfig, **options) -> OpenData:
    """Open the dataset of a run."""
    return training.open_data(config, CPU, **options)


def part_of(config: RunConfig, data: Data, device: torch.device = CPU) -> Part:
    """Return data as a part of a run that is trained on all of it."""
    return (Setup if product_of(config.trainer.name).name == "gnn" else Part)(config, data, device)


def predict_all(config: RunConfig, data: Data, round_: int = 0, ranks: Ranks = Ranks(), **parts) -> torch.Tensor:
    """Predict every row of a graph.

    Args:
        parts: model, task, loader or table, where it is another than that of the configuration.
    """
    setup = Setup(config, data, CPU)
    for name, part in parts.items():
        setattr(setup, name, part)
    return build_predictor(setup, ranks)(round_)


def build_trainer(config: RunConfig, data: Data, device: torch.device = CPU, ranks: Ranks = Ranks(),
                  stop: StopRequest | None = None) -> Trainer:
    """Build what trains on some data."""
    return product_of(config.trainer.name).build(part_of(config, data, device), ranks=ranks, stop=stop)


def restore(options) -> Restored:
    """Load a checkpoint of a run of trainer=gnn."""
    run, asked = _of_run(options, predicts=False)
    own = {field.name: asked.pop(field.name) for field in dataclasses.fields(Asked) if field.name in asked}
    return restore_gnn(run, Asked(**own), **asked)


def evaluate(options) -> dict[str, float]:
    """Evaluate a run as `python -m pipeline.evaluate` does."""
    run, asked = _of_run(options, predicts=False)
    return product_of(run.config.trainer.name).evaluate(run, **asked)


def predict(options) -> None:
    """Predict with a run as `python -m pipeline.predict` does."""
    run, asked = _of_run(options, predicts=True)
    product_of(run.config.trainer.name).predict(run, **asked)


def _of_run(options, *, predicts: bool):
    config = schema.load(Path(options.run) / "config.yaml")
    return cli.saved_run(schema.to_options(OmegaConf.structured(options), config, predicts=predicts), config)


def train_one(config: RunConfig, data: Data, folder: Path, device: torch.device = CPU, command: str = "test",
              **options) -> dict:
    """Train one model on a graph, as a run does for each of its parts."""
    return training.train_part(part_of(config, data, device), folder, command=command, **options)


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the config.yaml of a run."""
    (folder / "config.yaml").write_text(keys.to_yaml(config))


@contextlib.contextmanager
def open_trainer(config: RunConfig, data: Data, device: torch.device = CPU, **options):
    """Build what trains on some data, and close it at the end."""
    with contextlib.closing(build_trainer(config, data, device, **options)) as trainer:
        yield trainer
