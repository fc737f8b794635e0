"""No training step waits for the device: what is counted on the pretended one, forward, backward and optimizer."""

import contextlib
import math
import sys
from functools import partial
from itertools import islice

import pytest
import torch

from parallel_epochs.models import structure
from parallel_epochs.models.convs import activation
from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.pipeline.gnn import static_step, trainer as of_trainer
from parallel_epochs.pipeline.gnn.static_step import StaticStep
from parallel_epochs.pipeline.graph.resident import put_on
from parallel_epochs.pipeline.run.contract import Progress
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import seed_torch
from tests.helpers import building
from tests.helpers.pretend_device import DEVICE, OnDevice, pretended
from tests.helpers.running import TOY

NEIGHBORS = ["loader=neighbor", "loader.batch_size=40"]


@pytest.fixture
def kernels(monkeypatch):
    """Let the kernels of the CPU compute for the pretended device, as those of a GPU do."""

    def without_padding(edge_index, found):
        if not isinstance(found.indptr, OnDevice):
            return found
        num_edges = int(found.indptr.held[-1])
        return structure.Structure(
            *(
                tensor
                if tensor is None or name.endswith("ptr")
                else OnDevice(tensor.held[:num_edges])
                for name, tensor in found._asdict().items()
            )
        )

    monkeypatch.setattr(Fused, "missing", lambda self, device: "")
    monkeypatch.setattr(activation, "_is_compiled", lambda device, channels: True)
    monkeypatch.setattr(structure, "_without_padding", without_padding)
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda weight: None
    )
    for module in (static_step, of_trainer):
        monkeypatch.setattr(module, "autocast", lambda device, precision: contextlib.nullcontext())


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
        trainer.loader.place(partial(put_on, device=DEVICE))
        batches = [list(islice(trainer.loader.batches(round_, Share()), 2)) for round_ in range(2)]
        move(trainer)
        yield trainer, sum(batches, []), waited


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.dropout=0.1", "train.clip_grad_norm=1", "train.ema=0.9"],
        ["partition=whole", "model.norm=batch"],
        *(["model=pyg", f"model.conv={name}"] for name in ("GCNConv", "SAGEConv", "GATConv")),
    ],
    ids=" ".join,
)
def test_a_static_step_waits_for_nothing(overrides, kernels, configure):
    config = configure(*TOY, *overrides)
    with on_device(config) as (trainer, batches, waited):
        step = StaticStep(
            trainer.model,
            trainer.optimizer,
            trainer.task,
            device=DEVICE,
            precision="fp32",
            scaler=trainer._scaler,
            max_norm=math.inf,
            average=trainer._average,
            sync=trainer._sync,
            num_ranks=1,
            recorder=None,
            graph=trainer.loader.data,
        )
        step.begin(Progress())
        step.take(batches[:1], 0.01, seed_torch("dropout", 0), 0)  # it tries whether a shape varies
        waited.clear()
        for number, batch in enumerate(batches[1:], 1):
            step.take([batch], 0.01, seed_torch("dropout", number), number)
        assert not step._varies and not waited, waited
        progress = Progress()
        assert step.settle(progress) is None and sum(waited.values()) == 1
        assert 0 < progress.loss_sum < math.inf


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
