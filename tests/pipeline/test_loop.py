import contextlib
import json
import math
import os

import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.components import find_components, select_component
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Plateau, Share
from tests.helpers import building as build
from tests.helpers.building import train_one
from tests.helpers.graphs import random_graph, task_graph
from tests.helpers.running import TOY, rounds_of, train

CPU = torch.device("cpu")
RNG = torch.Generator()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four epochs: its configuration, its summary and its folder, which nothing may change."""
    folder = tmp_path_factory.mktemp("trained")
    config = cli.compose_config(
        [f"cache_dir={folder / 'cache'}", *TOY, "tracker=tensorboard", "task.base=none"]
    )
    return config, train(config, folder / "run"), folder / "run"


def test_a_run_directory_is_complete(trained):
    _, summary, folder = trained
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert {
        "experiment",
        "metric",
        "best_epoch",
        "best_valid",
        "test",
        "num_parameters",
        "data_epochs",
        "wall_seconds",
        "peak_memory_bytes",
        "num_ranks",
        "kernel",
        "seed",
        "weights_sha256",
        "versions",
        "command",
    } <= set(summary)
    assert sorted(os.listdir(folder / "checkpoints")) == ["best.pt", "last.pt", "previous.pt"]
    assert list((folder / "tensorboard").glob("events*")) and (folder / "config.yaml").exists()
    best = rounds_of(folder)[summary["best_epoch"] - 1]
    assert best["valid"] == max(e["valid"] for e in rounds_of(folder)) == summary["best_valid"]
    assert best["test"] == summary["test"]
    last = checkpoint.load(folder / "checkpoints" / "last.pt")
    assert checkpoint.digest(last["model"]) == summary["weights_sha256"]


def weights_after_a_round(config, data) -> str:
    with contextlib.closing(build.build_trainer(config, data, CPU)) as trainer:
        assert len(list(trainer.steps())) == trainer.about.num_steps
        return checkpoint.digest(trainer.weights())


@pytest.fixture
def random_states(monkeypatch) -> list[tuple[str, str]]:
    """Digests of torch's random state and of the step's own, at each loss that is computed."""
    states, loss = [], NodeTask.loss

    def watched(self, model, batch, rng):
        states.append(
            (checkpoint.digest(torch.get_rng_state()), checkpoint.digest(rng.get_state()))
        )
        return loss(self, model, batch, rng)

    monkeypatch.setattr(NodeTask, "loss", watched)
    return states


def test_every_step_of_every_round_has_random_numbers_of_its_own(configure, random_states):
    config, states = configure(*TOY), random_states
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, CPU)
    ) as trainer:
        for _ in range(2):
            list(trainer.steps())
            trainer.evaluate()
    assert len(states) == 8 and all(len(set(each)) == 8 for each in zip(*states))


def test_every_rank_has_random_numbers_of_its_own(configure, random_states, monkeypatch):
    config, states = configure(*TOY), random_states
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, CPU)
    ) as trainer:
        batch = next(trainer.loader.batches(0, Share()))
        for rank in (0, 0, 1):
            monkeypatch.setattr(trainer, "_ranks", Ranks(rank, 2))
            trainer._step([batch], 0.01)
    first, again, other = states
    assert first == again and all(one != two for one, two in zip(first, other))


def test_training_learns(configure, tmp_path):
    train(
        configure(
            *TOY,
            "data.num_nodes=300",
            "data.num_edges=9000",
            "train.epochs=30",
            "train.eval_every=30",
            "train.lr=0.03",
            "model.hidden_channels=32",
        ),
        tmp_path / "run",
    )
    losses = [e["loss"] for e in rounds_of(tmp_path / "run")]
    assert losses[-1] < 0.75 * losses[0] and rounds_of(tmp_path / "run")[-1]["train"] > 0.85


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_optimizer_moves(
    what, configure, tmp_path, monkeypatch
):
    config = configure(*TOY)
    original, calls, models = NodeTask.loss, [], []

    class Infinite(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * math.inf

    def poisoned(self, model, batch, rng):
        models.append(model)
        calls.append(checkpoint.digest(model.state_dict()))
        total, count = original(self, model, batch, rng)
        if len(calls) == 6:
            total = total * math.nan if what == "loss" else Infinite.apply(total)
        return total, count

    monkeypatch.setattr(NodeTask, "loss", poisoned)
    with pytest.raises(
        FloatingPointError, match=f"{what} is (nan|inf) in round 2, step 2, batch 2 .60 nodes."
    ):
        train(config, tmp_path / "run")
    assert checkpoint.digest(models[0].state_dict()) == calls[-1] != calls[-2]
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["round"] == 1


class Given(torch.nn.Module):
    """A model that returns what it was given and remembers its input."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x, edge_index, edge_attr):
        self.x = x
        return self.logits * 1


def test_a_cluster_without_a_labelled_node_has_weight_zero(configure, tmp_path):
    data = task_graph([3])
    config = configure("partition.num_parts=8", "train.epochs=2", "model.num_layers=2")
    summary = train_one(config, data, tmp_path, CPU, "test")
    assert math.isfinite(rounds_of(tmp_path)[0]["loss"]) and summary["num_rounds"] == 2
    batch = next(
        b
        for b in ClusterLoader(data).batches_of(
            Partitioner(data.edge_index, name="random", num_parts=8).draw(0)
        )
        if not b.train_mask.any()
    )
    model = Given(torch.randn(batch.num_nodes, 2))
    total, count = NodeTask(data).loss(model, batch, RNG)
    total.backward()
    assert total == 0 and count == 0 and bool((model.logits.grad == 0).all())


def test_missing_labels_are_left_out_of_the_loss():
    data = task_graph(list(range(40)))
    data.target = torch.ones(40, dtype=torch.bool)
    model = Given(torch.randn(40, 2))
    full, count = NodeTask(data).loss(model, data, RNG)
    term = torch.nn.functional.binary_cross_entropy_with_logits(model.logits[5, 1], data.y[5, 1])
    data.y[5, 1] = math.nan
    part, fewer = NodeTask(data).loss(model, data, RNG)
    assert count == 80 and fewer == 79
    torch.testing.assert_close(part, full - term)


@pytest.mark.parametrize("metric", ["rocauc", "acc"])
def test_labels_as_inputs_are_never_those_that_are_learned(metric):
    data = task_graph(list(range(30)))
    if metric == "acc":
        data.metric, data.y, data.out_channels = "acc", (torch.arange(40) % 3).unsqueeze(1), 3
    data.target, data.n_id = torch.ones(40, dtype=torch.bool), torch.arange(40)
    task = NodeTask(data, label_input=0.5)
    columns = data.out_channels
    model = Given(torch.zeros(40, columns))
    assert task.in_channels == 5 + columns + 1
    total, count = task.loss(model, data, RNG.manual_seed(0))
    total.backward()
    learned = (model.logits.grad != 0).any(1)
    shown = model.x[:, columns] == 1
    assert not bool((learned & shown).any()) and torch.equal(learned | shown, data.train_mask)
    assert 5 < int(shown.sum()) < 25 and int(count) == int(learned.sum()) * (
        2 if metric == "rocauc" else 1
    )
    assert bool((model.x[~shown, :columns] == 0).all()) and torch.equal(
        model.x[:, columns + 1 :], data.x
    )
    task.predict(model, data)
    assert torch.equal(model.x[:, columns] == 1, data.train_mask)
    labels = (
        data.y[:30]
        if metric == "rocauc"
        else torch.nn.functional.one_hot(data.y[:30, 0], 3).float()
    )
    expected = (labels - labels.mean(0)) / labels.std(0, correction=0)
    torch.testing.assert_close(model.x[:30, :columns], expected)


def test_every_choice_of_the_optimizer_changes_the_result(configure):
    config = configure(*TOY)
    data = build.open_graph(config).data
    choices = [
        {},
        {"seed": 1},
        {"train.clip_grad_norm": 0.01},
        {"train.weight_decay": 0.1},
        {"train.weight_decay": 0.1, "train.optimizer": "adamw"},
        {"train.optimizer": "rmsprop"},
        {"train.accumulate": 2},
        {"train.ema": 0.5},
        {"model.dropout": 0.5},
        {"model.input_dropout": 0.5},
        {"model.edge_dropout": 0.5},
        {"train.precision": "bf16"},
    ]
    first, *others = (
        weights_after_a_round(keys.replaced(config, choice), data) for choice in [{}, *choices]
    )
    assert first == others[0] and len(set(others)) == len(choices)


@pytest.mark.parametrize("accumulate, steps", [(1, 4), (3, 2), (9, 1)])
def test_a_step_has_the_gradient_of_all_labels_of_its_batches(
    configure, monkeypatch, accumulate, steps
):
    config, found = configure(*TOY, "model.dropout=0", f"train.accumulate={accumulate}"), []
    data = build.open_graph(config).data
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self: found.append(
            [weight.grad.clone() for weight in self.param_groups[0]["params"]]
        ),
    )
    with contextlib.closing(build.build_trainer(config, data, CPU)) as trainer:
        taken = list(trainer.steps())
        assert len(taken) == trainer.about.num_steps == steps == len(found) and taken[-1].is_last
        model, task = trainer.model, trainer.task
        batches = list(build.build_loader(config, data, CPU).batches(0, Share()))
    for first, grads in zip(range(0, 4, accumulate), found, strict=True):
        model.zero_grad()
        total = sum_counts = 0
        for batch in batches[first : first + accumulate]:
            loss, count = task.loss(model, batch, RNG)
            total, sum_counts = total + loss, sum_counts + count
        (total / sum_counts).backward()
        for weight, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(grad, weight.grad)


def test_a_plateau_follows_a_linear_warm_up_and_clipping_bounds_the_gradient(
    configure, tmp_path, monkeypatch
):
    norms, observed = [], []
    step, observe = torch.optim.Adam.step, Plateau.observe

    def watched(self, *args, **kwargs):
        grads = [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        norms.append(float(torch.nn.utils.get_total_norm(grads)))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    monkeypatch.setattr(
        Plateau, "observe", lambda self, score: (observed.append(score), observe(self, score))
    )
    train(
        configure(
            *TOY,
            "train.clip_grad_norm=0.01",
            "train.warmup_steps=8",
            "train.lr=0.3",
            "train.epochs=6",
            "train.schedule=plateau",
            "train.plateau_patience=0",
        ),
        tmp_path / "run",
    )
    assert len(norms) == 24 and max(norms) == pytest.approx(0.01, rel=1e-3)
    rounds, expected = rounds_of(tmp_path / "run"), [0.15, 0.3]
    assert observed == [record["valid"] for record in rounds[1:]], (
        "the first evaluation lies in the warm-up"
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.1, patience=0)
    for score in observed[:-1]:
        scheduler.step(score)
        expected.append(scheduler.get_last_lr()[0])
    assert [record["lr"] for record in rounds] == pytest.approx(expected) and min(
        expected
    ) < 0.3 / 2


def test_components_separate_trains_each_and_reports_the_whole(
    configure, tmp_path, monkeypatch, caplog
):
    data = random_graph(90, 400, 0)
    left = data.edge_index.as_tensor()
    keep = ((left < 50).all(0)) | (((left >= 50) & (left < 85)).all(0))
    edge_index, perm = sort_edges(left[:, keep], 90)
    data.edge_attr, data.edge_index = data.edge_attr[keep][perm.long()], edge_index
    part = torch.randint(3, (90,), generator=torch.Generator().manual_seed(0))
    data.train_mask, data.valid_mask, data.test_mask = part == 0, part == 1, part == 2
    data.content_hash = "generated"
    monkeypatch.setattr(
        "parallel_epochs.pipeline.gnn.kinds.base.load", lambda *args, **kwargs: data
    )
    monkeypatch.setattr("parallel_epochs.pipeline.gnn.build.LEAST_NODES", 30)
    separate = [
        "train.epochs=2",
        "model.num_layers=2",
        "partition.num_parts=2",
        "evaluation=exact",
    ]
    config = configure("data.components=separate", *separate)
    caplog.set_level("INFO")
    seen = []
    scores = NodeTask.scores
    monkeypatch.setattr(
        NodeTask,
        "scores",
        lambda self, model, rows: seen.append((rows, self._data)) or scores(self, model, rows),
    )
    summary = train(config, tmp_path / "run")
    logits = next(logits for logits, of in reversed(seen) if of is data)
    assert len(logits) == 90 and bool((logits != 0).all()) and torch.isfinite(logits).all()
    assert (
        list(summary["components"]) == ["1", "2"] and "5 nodes of small components" in caplog.text
    )
    assert 0 <= summary["test"] <= 1
    for rank in "12":
        own = json.loads((tmp_path / "run" / f"component_{rank}" / "summary.json").read_text())
        assert own["test"] == summary["components"][rank]["test"]
    for number, size in (("1", 50), ("2", 35)):
        own = configure(*separate, f"data.components={number}")
        part = Graph(**select_component(data, find_components(data), number).to_dict())
        best = checkpoint.load(tmp_path / "run" / f"component_{number}" / "checkpoints" / "best.pt")
        model = build.build_model(own, part, NodeTask(part))
        model.load_state_dict(best["model"])
        rows = build.predict_all(own, part, best["round"], model=model, loader=ClusterLoader(part))
        torch.testing.assert_close(logits[part.n_id], rows)
        assert len(part.n_id) == size
    again = train(config, tmp_path / "run")
    assert again["weights_sha256"] == summary["weights_sha256"] and again["test"] == summary["test"]
