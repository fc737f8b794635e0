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
from parallel_epochs.pipeline.gnn import model as models
from parallel_epochs.pipeline.gnn.build import (  # noqa: F401 - for the tests
    build_schedule,
)
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.estimate import machine_of
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of  # noqa: F401
from parallel_epochs.pipeline.gnn.kinds.labels import check_metric  # noqa: F401
from parallel_epochs.pipeline.gnn.model import build_table, construct  # noqa: F401
from parallel_epochs.pipeline.gnn.predict.command import predict_rows, save as save_asked
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup
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
    return (Setup if config.trainer.name == "gnn" else Part)(config, data, device)


def predict_all(
    config: RunConfig, data: Data, round_: int = 0, ranks: Ranks = Ranks(), **parts
) -> torch.Tensor:
    """Predict every row of a graph.

    Args:
        parts: model, task, loader or table, where it is another than that of the configuration.
    """
    setup = Setup(config, data, CPU)
    for name, part in parts.items():
        setattr(setup, name, part)
    return build_predictor(setup, ranks)(round_)


def build_trainer(
    config: RunConfig,
    data: Data,
    device: torch.device = CPU,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> Trainer:
    """Build what trains on some data."""
    return product_of(config).build(part_of(config, data, device), ranks=ranks, stop=stop)


def build_task(config: RunConfig, data: Data):
    """Build what is learned on a graph."""
    return kind_of(config).task(data)


def build_loader(config: RunConfig, data: Data, device: torch.device = CPU):
    """Build what makes the batches."""
    return Setup(config, data, device).loader


def build_model(config: RunConfig, data: Data, task) -> torch.nn.Module:
    """Build a model with the sizes that a graph and a task ask for."""
    return models.build_model(kind_of(config), data, task)


def try_model(config: RunConfig, data: Data, task) -> None:
    """Call a model whose layers others wrote on a tiny graph."""
    models.try_model(kind_of(config), data, task, machine_of(config))


@dataclasses.dataclass(frozen=True)
class Restored(Predicted):
    """Predictions, and what the model was trained on."""

    setup: Setup | None = None


def predicted(run, **asked) -> Restored:
    """Predict with a checkpoint of a run of trainer=gnn, by keys of `predict`."""
    setup, found = predict_rows(run, GNNPredictConfig(str(run.folder), **asked))
    return Restored(**vars(found), setup=setup)


def restore(options) -> Restored:
    """Load a checkpoint of a run of trainer=gnn."""
    run, asked = _of_run(options, "evaluate")
    setup, found = predict_rows(run, GNNPredictConfig(**vars(asked)))
    return Restored(**vars(found), setup=setup)


def save(found: Restored, options) -> None:
    """Save predictions as files that are asked for."""
    save_asked(found.setup.kind, found, options)


def evaluate(options) -> dict[str, float]:
    """Evaluate a run as `python -m pipeline.evaluate` does."""
    run, asked = _of_run(options, "evaluate")
    return product_of(run.config).evaluate(run, asked)


def predict(options) -> None:
    """Predict with a run as `python -m pipeline.predict` does."""
    run, asked = _of_run(options, "predict")
    product_of(run.config).predict(run, asked)


def _of_run(options, command: str):
    config = schema.load(Path(options.run) / "config.yaml")
    asked = schema.to_options(OmegaConf.structured(options), config, command)
    return cli.saved_run(asked, config), asked


def train_one(
    config: RunConfig,
    data: Data,
    folder: Path,
    device: torch.device = CPU,
    command: str = "test",
    **options,
) -> dict:
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
