"""No training step waits for the device: what is counted on the pretended one, forward, backward and optimizer."""

import contextlib
import sys
from itertools import islice

import pytest
import torch

from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.pipeline.gnn import trainer as of_trainer
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers import building
from tests.helpers.pretend_device import DEVICE, OnDevice, pretended
from tests.helpers.running import TOY

NEIGHBORS = ["loader=neighbor", "loader.batch_size=40"]


@pytest.fixture
def kernels(monkeypatch):
    """Let the kernels of the CPU compute for the pretended device, as those of a GPU do."""

    monkeypatch.setattr(Fused, "missing", lambda self, device: "")
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda weight: None
    )
    monkeypatch.setattr(of_trainer, "autocast", lambda device, precision: contextlib.nullcontext())


def move(trainer) -> None:
    """Move a model and its optimizer to the pretended device."""
    moved = {}
    for module in trainer.model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                moved[weight] = module._parameters[name] = torch.nn.Parameter(
                    OnDevice(weight.detach())
                )
        for name, buffer in module._buffers.items():
            module._buffers[name] = OnDevice(buffer)
    for group in trainer.optimizer.param_groups:
        group["params"] = [moved[weight] for weight in group["params"]]


@contextlib.contextmanager
def on_device(config):
    """Build a trainer of a configuration and the first batches of two rounds, all on the pretended device."""
    data = building.open_graph(config).data
    if (
        getattr(config.model, "conv", "") == "GATConv"
    ):  # the number of features of its self-loops would vary
        del data.edge_attr
    with (
        contextlib.closing(building.build_trainer(config, data, torch.device("cpu"))) as trainer,
        pretended() as waited,
    ):
        batches = [
            batch.to(DEVICE)
            for round_ in range(2)
            for batch in islice(trainer.loader.batches(round_, Share()), 2)
        ]
        move(trainer)
        yield trainer, batches, waited


@pytest.mark.parametrize(
    "given", [["partition.num_parts=3"], ["partition=whole"], NEIGHBORS], ids=" ".join
)
def test_no_layer_of_the_usual_step_waits(given, kernels, configure):
    """Its loss, its norm and the rows with labels are waited for, however many layers there are."""
    found = []
    for num_layers in (2, 5):
        fan_outs = ",".join("3" * num_layers)
        overrides = [*given, *[f"loader.num_neighbors=[{fan_outs}]"][: given is NEIGHBORS]]
        with on_device(configure(*TOY, *overrides, f"model.num_layers={num_layers}")) as (
            trainer,
            batches,
            waited,
        ):
            trainer.device = DEVICE
            trainer._step(batches[:1], 0.01)
            waited.clear()
            trainer._step(batches[1:2], 0.01)
            found.append(dict(waited))
    assert found[0] == found[1] and sum(found[0].values()) <= 9, found
