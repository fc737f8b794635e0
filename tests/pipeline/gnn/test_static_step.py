"""A step on static tensors against the usual one, and the order in which its parts are captured and replayed."""

import contextlib
import functools
import importlib.util
import itertools
import math
import types

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.models import edge_index as edges
from parallel_epochs.models.aggregate import cpu
from parallel_epochs.models.edge_index import room_for
from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.models.networks.encoders import TypeEncoder
from parallel_epochs.pipeline.gnn import build, optimization, static_step
from parallel_epochs.pipeline.gnn.static_step import WARM_UP, CudaRecorder, StaticStep
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.contract import Progress
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.sync import GradientSync
from tests.helpers import building
from tests.helpers.running import TOY

LOOPS = "model.kwargs={add_self_loops:false}"
MODELS = [
    ["model.dropout=0.1"],
    ["model.dropout=0.1", "model.gradient_checkpointing=true", "model.norm=batch"],
    ["model=pyg", "model.conv=SAGEConv"],
    ["model=pyg", "model.conv=GCNConv"],
    ["model=pyg", "model.conv=GATConv", LOOPS],
    ["model=pyg", "model.conv=GATv2Conv", LOOPS, "model.norm=batch"],
]
OPTIONS = [
    ["train.accumulate=3", "train.ema=0.9", "train.schedule=cosine", "train.clip_grad_norm=0.1"],
    ["train.label_input=0.5"],
    ["train.precision=fp16"],
    ["train.precision=bf16", "train.warmup_steps=3"],
]


class FakeRecorder:
    """Replays by calling again; `calls` lists what happened."""

    def __init__(self, fails=False):
        self.calls, self.fails = [], fails

    def run(self, function):
        self.calls.append("run")
        function()

    def capture(self, function):
        if self.fails:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self.calls.append("capture")
        return lambda: self.calls.append("replay") or function()


@contextlib.contextmanager
def trainer_of(
    configure,
    monkeypatch,
    *overrides,
    everything=True,
    is_static=False,
    recorder=None,
    edit=lambda data: None,
):
    config = configure(*TOY, *overrides)
    data = building.open_graph(config).data
    edit(data)
    if everything:  # so that the usual loss has the same rows, and adds them up in the same order
        data.train_mask = torch.ones_like(data.train_mask)
    with monkeypatch.context() as patch:
        patch.setattr(build, "GNNTrainer", functools.partial(build.GNNTrainer, recorder=recorder))
        patch.setattr(build, "choose_static", lambda *args: is_static)
        trainer = building.build_trainer(config, data, torch.device("cpu"))
    with contextlib.closing(trainer):
        yield trainer


def give_loops(data) -> None:
    """Turn the first edge into every second node into a self-loop, and drop the features of edges."""
    (ptr, src), _ = data.edge_index.get_csc()
    src[ptr[:-1:2][ptr[:-1:2] < ptr[1::2]].long()] = torch.arange(
        0, data.num_nodes, 2, dtype=src.dtype
    )
    del data.edge_attr


def train(trainer) -> tuple:
    """Train to the end; returns the weights, the optimizer's state, and losses and norms of gradients."""
    numbers = []
    while trainer.progress.round < trainer.num_rounds:
        list(trainer.steps())
        numbers.append((trainer.numbers.loss, trainer.numbers.grad_norm, trainer.numbers.lr))
        trainer.evaluate()
    state = trainer.state()
    return checkpoint.digest(trainer.weights()), checkpoint.digest(state["optimizer"]), numbers


@pytest.mark.parametrize(
    "overrides",
    [
        *MODELS[:2],
        *(pytest.param(each, marks=pytest.mark.slow) for each in MODELS[2:5]),
        *MODELS[5:],
        *OPTIONS,
    ],
    ids=lambda overrides: " ".join(overrides).replace("model.", ""),
)
def test_the_numbers_are_those_of_the_usual_step(overrides, configure, monkeypatch):
    with trainer_of(configure, monkeypatch, *overrides) as trainer:
        *weights, expected = train(trainer)
    with trainer_of(
        configure, monkeypatch, *overrides, is_static=True, recorder=FakeRecorder()
    ) as trainer:
        *found, numbers = train(trainer)
        rooms = [key[1] for key in trainer._static._batches]
        assert rooms and not trainer._static._varies and all(room % 64 == 0 for room in rooms)
    assert found == weights or "label_input" in overrides[0]
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overrides", [[], ["task.class_weights=balanced"]])
def test_padding_changes_no_bit_where_some_nodes_have_no_label(
    overrides, configure, monkeypatch, caplog
):
    caplog.set_level("INFO")
    found = []
    for most in (8, 0):  # without room for a single size, steps run on the batches themselves
        monkeypatch.setattr(static_step, "MAX_SIZES", most)
        with trainer_of(
            configure, monkeypatch, *overrides, everything=False, is_static=True
        ) as trainer:
            found.append(train(trainer))
            assert bool(trainer._static._batches) == bool(most)
    assert found[0] == found[1]
    assert (
        caplog.messages.count(
            "training steps run without a CUDA graph: batches have more than 0 sizes"
        )
        == 1
    )
    with trainer_of(configure, monkeypatch, *overrides, everything=False) as trainer:
        numbers = train(trainer)[2]
    torch.testing.assert_close(
        torch.tensor(numbers), torch.tensor(found[0][2]), rtol=1e-4, atol=1e-5
    )


def test_parts_are_warmed_up_then_captured_and_replayed(configure, monkeypatch):
    recorder = FakeRecorder()
    with trainer_of(
        configure,
        monkeypatch,
        "partition=whole",
        "train.epochs=5",
        is_static=True,
        recorder=recorder,
    ) as trainer:
        train(trainer)
    assert recorder.calls == ["run"] * 2 * WARM_UP + ["capture", "replay"] * 2 + ["replay"] * 2 * (
        5 - WARM_UP - 1
    )


def test_a_later_size_is_warmed_up_once(configure, monkeypatch):
    recorder = FakeRecorder()
    with trainer_of(configure, monkeypatch, is_static=True, recorder=recorder) as trainer:
        for size in "aaaabbb":
            trainer._static._run((size,), lambda: None)
    assert recorder.calls == [
        *["run"] * 2,
        "capture",
        "replay",
        "replay",
        "run",
        "capture",
        "replay",
        "replay",
    ]


def test_the_ranks_sum_gradients_between_two_replays(configure, monkeypatch):
    """The sum over two ranks with the same batches is twice the gradient of one, over twice the labels."""
    recorder = FakeRecorder()

    class Twins(Ranks):
        def sum_(self, tensor):
            recorder.calls.append("sum")
            tensor.mul_(2)

    overrides = [
        "model.dropout=0.1",
        "train.precision=fp16",
        "train.accumulate=2",
        "train.clip_grad_norm=0.5",
    ]
    with trainer_of(configure, monkeypatch, *overrides) as trainer:
        expected = train(trainer)
    with trainer_of(
        configure, monkeypatch, *overrides, is_static=True, recorder=recorder
    ) as trainer:
        trainer._ranks = trainer._sync._ranks = Twins(0, 2)
        trainer._static._num_ranks = 2
        monkeypatch.setattr(Ranks, "first_then_others", contextlib.nullcontext)
        monkeypatch.setattr(Ranks, "broadcast", lambda self, value: value)
        found = train(trainer)
    assert found[:2] == expected[:2]
    torch.testing.assert_close(torch.tensor(found[2]), torch.tensor(expected[2]))
    assert "replay replay sum sum replay" in " ".join(recorder.calls)


def test_what_ranks_do_not_use_has_a_gradient_that_stays_in_its_place():
    """A capture reads the gradients where they lie; the sum over ranks makes new ones, for all parameters."""

    class Twins(Ranks):
        def sum_(self, tensor):
            tensor.mul_(2)

    model, batch = (
        torch.nn.Linear(2, 1),
        Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 0, dtype=torch.long)),
    )
    model.unused, batch.cluster = torch.nn.Parameter(torch.ones(3)), 0
    task = types.SimpleNamespace(
        draw=lambda *args: None,
        static_loss=lambda model, batch, drawn: (model(batch.x).sum(), torch.tensor(3)),
    )
    cpu = torch.device("cpu")
    step = StaticStep(
        model,
        torch.optim.Adam(model.parameters(), fused=True),
        task,
        device=cpu,
        precision="fp32",
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        max_norm=math.inf,
        average=None,
        sync=GradientSync(model, Twins(0, 2)),
        num_ranks=2,
        recorder=None,
        graph=batch,
    )
    step._varies = True
    for batches in ([batch], [None], [batch]):
        step.begin(Progress())
        step.take(batches, 0.1, torch.Generator(), 0)
        assert [weight.grad.data_ptr() for weight in model.parameters()] == [
            grad.data_ptr() for grad in step._grads
        ]
    assert torch.equal(model.unused, torch.ones(3))


def test_a_failed_capture_is_said_once_and_changes_nothing(configure, monkeypatch, caplog):
    with trainer_of(configure, monkeypatch, is_static=True) as trainer:
        expected = train(trainer)
    with trainer_of(
        configure, monkeypatch, is_static=True, recorder=FakeRecorder(fails=True)
    ) as trainer:
        assert train(trainer) == expected
    lines = [line for line in caplog.messages if "CUDA graph" in line]
    assert lines == [
        "training steps run without a CUDA graph, as it cannot be captured: operation not permitted when "
        "stream is capturing"
    ]


def test_what_a_failed_capture_planned_is_planned_anew(configure, monkeypatch):
    """The kernels of a GPU keep their chunks by the version of pointers, and what was captured was never computed."""
    recorder, versions = FakeRecorder(fails=True), []
    with trainer_of(
        configure,
        monkeypatch,
        "partition=whole",
        "model=pyg",
        "model.conv=GATConv",
        edit=give_loops,
        is_static=True,
        recorder=recorder,
    ) as trainer:

        def note(model, batch, drawn):
            looped = [
                ptr
                for each in edges.held[batch.edge_index]._looped.values()
                for ptr in (each[0], each[3])
            ]
            pointers = [batch.edge_index._indptr, batch.edge_index._T_indptr, *looped]
            versions.append([ptr._version for ptr in pointers])
            return loss(model, batch, drawn)

        def capture(function):
            function()
            raise RuntimeError("of the driver's")

        loss, trainer.task.static_loss, recorder.capture = trainer.task.static_loss, note, capture
        list(itertools.islice(trainer.steps(), 1))
        for _ in range(3):
            list(trainer.steps())
            trainer.evaluate()
    *_, captured, again = versions[:5]
    assert len(captured) == 4 and all(a < b for a, b in zip(captured, again, strict=True)), versions


def test_after_a_failed_capture_eager_work_goes_on(monkeypatch):
    """Torch 2.11 ends no capture that was invalidated: neither the stream nor its allocator nor random numbers."""
    calls = []
    graph = types.SimpleNamespace(replay=lambda: None)

    @contextlib.contextmanager
    def capture(given, *, pool, stream, capture_error_mode):
        assert given is graph and (pool, stream, capture_error_mode) == (
            "pool",
            "side",
            "thread_local",
        )
        calls.append("capture")
        with contextlib.suppress(RuntimeError):
            yield
        raise RuntimeError("operation failed due to a previous error during capture")

    fake = types.SimpleNamespace(
        Stream=lambda device: "side",
        graph_pool_handle=lambda: "pool",
        CUDAGraph=lambda: graph,
        graph=capture,
        current_stream=lambda device: "main",
        set_stream=lambda stream: calls.append(stream),
        get_rng_state=lambda device: torch.default_generator.get_state(),
        default_generators=[
            types.SimpleNamespace(graphsafe_set_state=lambda state: calls.append("random"))
        ],
    )
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *given: calls.append(given), raising=False
    )
    monkeypatch.setattr(
        torch,
        "Generator",
        lambda device: types.SimpleNamespace(
            set_state=lambda state: None, graphsafe_get_state=lambda: None
        ),
    )
    recorder = CudaRecorder(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="previous error"):
        recorder.capture(lambda: calls.append("work"))
    assert calls == ["capture", "work", "main", (0, "pool"), "random"] and recorder._failed == [
        graph
    ]


@pytest.mark.parametrize(
    "override, reason",
    [("model.edge_dropout=0.5", "edge dropout"), ("kernel=reference", "a list of all edges")],
)
def test_shapes_that_vary_are_said_and_run_on_the_batches(
    override, reason, configure, monkeypatch, caplog
):
    caplog.set_level("INFO")
    with trainer_of(configure, monkeypatch, override) as trainer:
        expected = train(trainer)
    with trainer_of(configure, monkeypatch, override, is_static=True) as trainer:
        found = train(trainer)
        assert trainer._static._varies
    assert found[:2] == expected[:2]
    assert (
        f"training steps run without a CUDA graph: {reason} would read the padding of the edges"
        in caplog.text
    )


@pytest.mark.parametrize("step", [0, 2])
def test_a_loss_that_is_not_finite_is_found_after_the_round_and_moves_nothing(
    step, configure, monkeypatch
):
    with trainer_of(configure, monkeypatch, is_static=True) as trainer:
        list(trainer.steps())
        trainer.evaluate()
        trainer.progress.first_loss = 1.0
        loss, calls, weights = trainer.task.static_loss, [], []

        def break_one(model, batch, drawn):
            total, count = loss(model, batch, drawn)
            calls.append(checkpoint.digest(trainer.weights()))
            return total * (math.nan if len(calls) == step + 1 else 1.0), count

        trainer.task.static_loss = break_one
        with pytest.raises(
            FloatingPointError,
            match=rf"(?s)loss is nan in round 2, step {step + 1}, batch .* nodes\)",
        ):
            list(trainer.steps())
        weights = {*calls[step:], checkpoint.digest(trainer.weights())}
    assert len(calls) == trainer.schedule.num_steps and len(weights) == 1


def test_room_is_little_and_for_few_sizes():
    assert [room_for(num_edges) for num_edges in (1, 64, 65)] == [64, 64, 128]
    rooms = {room_for(num_edges) for num_edges in range(760_000, 820_000, 7)}
    assert len(rooms) <= 2 and max(rooms) < 820_000 * 1.125
    assert all(
        room_for(room) == room for room in {*rooms, 64, 4096, room_for(4097), room_for(2**20 - 1)}
    )


def test_self_loops_of_the_layer_are_put_in_their_place(configure, monkeypatch):
    """Half of the batches' nodes have a self-loop already, and dropout is drawn by the numbers of edges and loops."""
    overrides, found = (
        ["model=pyg", "model.conv=GATConv", "model.dropout=0.3", "model.kwargs={dropout:0.4}"],
        [],
    )
    for is_static in (False, True):
        with trainer_of(
            configure, monkeypatch, *overrides, is_static=is_static, edit=give_loops
        ) as trainer:
            found.append(train(trainer))
            assert not is_static or trainer._static._batches and not trainer._static._varies
    assert found[0][:2] == found[1][:2]


def test_features_of_new_self_loops_follow_those_of_all_edges(configure, monkeypatch, caplog):
    caplog.set_level("INFO")
    overrides, found = ["model=pyg", "model.conv=GATConv", "model.kwargs={fill_value:0.5}"], []
    for is_static in (False, True):
        with trainer_of(configure, monkeypatch, *overrides, is_static=is_static) as trainer:
            found.append(train(trainer)[:2])
    assert (
        found[0] == found[1]
        and "the features of new self-loops would read the padding" in caplog.text
    )


@pytest.mark.parametrize(
    "overrides, reason",
    [
        ([], ""),
        (["model=pyg", "partition.num_parts=3"], ""),
        (["partition=whole"], ""),
        (["model.knn=4"], "model.knn=4"),
        (["model=equilibrium"], "model=equilibrium"),
        (["model.edge_dropout=0.1"], "model.edge_dropout=0.1"),
        (["model.virtual_node=add"], "model.virtual_node=add"),
        (["loader=neighbor"], "loader=neighbor"),
        (["partition=metis"], "partition=metis"),
        (["features=embedding"], "features=embedding"),
        (["train.optimizer=rmsprop"], "train.optimizer=rmsprop"),
        (["task.focal_gamma=2"], "a loss whose shape"),
        (["kernel=reference"], "kernel=reference"),
    ],
)
def test_what_has_no_static_step_says_why(overrides, reason, configure, caplog):
    caplog.set_level("INFO")
    config = configure(*TOY, *overrides)
    given = config if config.task.focal_gamma else configure(*TOY)
    task = building.Setup(given, building.open_graph(given).data, torch.device("cpu")).task
    kernel, gpu = "reference" if config.kernel == "reference" else "fused-gpu", torch.device("cuda")
    model = torch.nn.Identity()
    assert optimization.choose_static(config, task, kernel, gpu, model) == (not reason)
    assert (f"as this run has {reason}" if reason else "captured in CUDA graphs") in caplog.text
    config.train.cuda_graph = "true"
    with pytest.raises(ValueError, match="needs a GPU; this run has device=cpu"):
        optimization.choose_static(config, task, kernel, torch.device("cpu"), model)
    if reason:
        with pytest.raises(
            ValueError, match=f"needs batches of one shape and fused kernels; this run has {reason}"
        ):
            optimization.choose_static(config, task, kernel, gpu, model)
    config.train.cuda_graph = "auto"
    assert not optimization.choose_static(
        config, task, kernel, gpu, TypeEncoder([[(0, 1)]], 4, in_channels=1)
    )
    config.train.cuda_graph = "false"
    assert not optimization.choose_static(config, task, kernel, gpu, model)


@pytest.mark.parametrize("asked", ["true", "auto"])
def test_without_triton_steps_are_not_captured(asked, configure, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = Fused("aggregation", cpu, "gpu").missing("cuda")
    config = configure(*TOY, f"train.cuda_graph={asked}")
    task, given = (
        types.SimpleNamespace(has_static_loss=True),
        (f"reference ({reason})", torch.device("cuda")),
    )
    with (
        pytest.raises(
            ValueError,
            match="kernel=reference .the GPU kernel needs Triton .pip install triton... Leave ",
        )
        if asked == "true"
        else contextlib.nullcontext()
    ):
        assert not optimization.choose_static(config, task, *given, torch.nn.Identity())
    assert (
        asked == "true"
        or "not captured in CUDA graphs, as this run has kernel=reference (the GPU k" in caplog.text
    )


def test_an_old_gpu_without_bf16_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    gpu = torch.device("cuda", 0)
    for found in ((7, 5), (8, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
        with (
            pytest.raises(
                ValueError, match=r"8.0 or more; Tesla T4 has 7.5. Set train.precision=fp16"
            )
            if found == (7, 5)
            else contextlib.nullcontext()
        ):
            optimization.check_precision("bf16", gpu)
        optimization.check_precision("fp16", gpu)
        optimization.check_precision("bf16", torch.device("cpu"))


@pytest.mark.parametrize("value", ["true", "false", "auto"])
def test_the_key_is_a_word(value, configure):
    assert configure(*TOY, f"train.cuda_graph={value}").train.cuda_graph == value
