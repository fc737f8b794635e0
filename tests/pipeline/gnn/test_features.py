"""Learned node features: a table beside the model, its sparse gradients, its optimizer, ranks and checkpoints."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.features import (
    KEY,
    NodeTable,
    refuse_sparse_modules,
)
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.sync import GradientSync
from tests.helpers import building as build, feature_cases, rank_cases
from tests.helpers.building import EvaluateConfig, restore
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.running import TOY, forked, status_of, train

pytestmark = pytest.mark.usefixtures("importable")
CPU = torch.device("cpu")
TABLE = [*TOY, "features=embedding", "features.channels=6"]
NEIGHBOR = ["loader=neighbor", "loader.num_neighbors=[3,2]", "loader.batch_size=50"]


def batch_of(nodes: list[int]) -> Data:
    return Data(
        x=torch.arange(2.0 * len(nodes)).view(-1, 2), n_id=torch.tensor(nodes), num_nodes=len(nodes)
    )


def test_a_row_is_a_function_of_the_seed_and_its_number():
    table = NodeTable(5000, 3, lr=1).weight.detach()
    assert torch.equal(NodeTable(4500, 3, lr=1).weight, table[:4500])
    assert not torch.equal(NodeTable(5000, 3, lr=1, seed=1).weight, table)
    assert table.unique().numel() > 0.99 * table.numel(), "blocks of rows repeat"


@pytest.mark.parametrize("shape", [(30, 6), (6, 6), (4, 6)])
def test_an_orthogonal_table_is_that_of_torch_from_the_same_normal_numbers(shape, monkeypatch):
    """torch draws its own numbers; here it gets ours, without their factor, which has no effect."""
    numbers = NodeTable(*shape, lr=1, seed=3).weight.detach()

    def give(self, *args, **kwargs):
        return self.copy_(numbers.t() if self.shape != numbers.shape else numbers)

    expected = torch.empty(shape)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", give)
        torch.nn.init.orthogonal_(expected)
    table = NodeTable(*shape, lr=1, init="orthogonal", seed=3).weight.detach()
    torch.testing.assert_close(table, expected)
    product = table.t() @ table if shape[0] >= shape[1] else table @ table.t()
    torch.testing.assert_close(product, torch.eye(min(shape)))


def test_only_the_rows_of_a_batch_move_and_as_by_the_dense_optimizer():
    table = NodeTable(9, 2, lr=0.5)
    dense = torch.nn.Parameter(table.weight.detach().clone())
    reference = torch.optim.Adam([dense], lr=0.5 * 0.1)
    before, batch = dense.detach().clone(), batch_of([7, 0, 3])
    seen = table.attach(batch, CPU).x
    assert torch.equal(seen, torch.cat([before[[7, 0, 3]], batch.x], 1)) and batch.x.size(1) == 2
    (seen + 1).pow(3).sum().backward()
    (dense[[7, 0, 3]] + 1).pow(3).sum().backward()
    assert table.weight.grad.is_sparse
    assert torch.equal(table.gradient(), dense.grad[[0, 3, 7]])  # sorted, each row once
    table.step(0.1)
    reference.step()
    moved = (table.weight.detach() != before).all(1)
    assert moved.nonzero().squeeze(1).tolist() == [0, 3, 7]
    assert torch.equal(table.weight[~moved], before[~moved])
    torch.testing.assert_close(table.weight, dense)
    for moment in [
        v for v in table.optimizer.state[table.weight].values() if isinstance(v, torch.Tensor)
    ]:
        assert (moment != 0).any(1).tolist() == moved.tolist()


def test_a_part_of_the_nodes_is_seen_without_its_rows():
    table, batch = NodeTable(4000, 3, lr=1, dropout=0.25), batch_of(list(range(4000)))
    hidden = (table.attach(batch, CPU, torch.Generator().manual_seed(1)).x[:, :3] == 0).all(1)
    again = (table.attach(batch, CPU, torch.Generator().manual_seed(1)).x[:, :3] == 0).all(1)
    assert torch.equal(hidden, again) and 0.2 < hidden.float().mean() < 0.3
    assert not (table.attach(batch, CPU).x[:, :3] == 0).any(), "predictions see all rows"
    table.attach(batch, CPU, torch.Generator().manual_seed(1)).x.sum().backward()
    assert torch.equal(table.gradient() == 0, hidden.unsqueeze(1).expand(-1, 3))


def test_sums_see_every_number():
    table = NodeTable(300, 7, lr=1)  # 2,100 numbers: two blocks and a rest
    sums = checkpoint.digest(table.sums())
    for row, column in ((0, 0), (146, 3), (200, 6), (299, 6)):
        with torch.no_grad():
            old = table.weight[row, column].clone()
            table.weight[row, column] = torch.nextafter(old, old + 1)
            assert checkpoint.digest(table.sums()) != sums, (row, column)
            table.weight[row, column] = old
    assert checkpoint.digest(table.sums()) == sums


def test_ranks_compare_a_table_by_its_sums(configure):
    config = configure(*TABLE)
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, CPU)
    ) as trainer:
        before = checkpoint.digest(trainer.fingerprint())
        trainer.table.weight.data[-1, -1] += 1e-6
        assert checkpoint.digest(trainer.fingerprint()) != before


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_step_takes_memory_for_the_rows_that_it_touches(num_ranks):
    # The table takes 49 MiB, 1,000 rows of it 0.25 MiB.
    assert status_of(forked(feature_cases.check_memory_of_steps, 200_000, num_ranks)) == 0


def test_a_run_is_evaluated_as_it_was_trained(configure, tmp_path):
    views = ["partition=metis", "evaluation=views", "evaluation.num_views=2"]
    config = configure(*TABLE, "train.epochs=2", *views, "features.dropout=0.5")
    summary = train(config, tmp_path / "run")
    last = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    assert summary["num_parameters"] == sum(value.numel() for value in last.values())
    assert last[KEY].shape == (240, 6) and last[KEY].dtype == torch.float32
    assert (last[KEY] != NodeTable(240, 6, lr=1).weight).any(1).sum() > 60
    assert checkpoint.digest(last) == summary["weights_sha256"]
    restored = restore(EvaluateConfig(run=str(tmp_path / "run"), device="cpu"))
    scores = restored.setup.task.scores(restored.setup.model, restored.rows)
    assert scores["test"] == pytest.approx(summary["test"], abs=1e-9)


def test_the_model_sees_the_table_alone_or_first(configure, tmp_path):
    for concat, columns in (("false", 6), ("true", 6 + 8 + 4)):
        config = configure(*TABLE, f"features.concat={concat}")
        data = build.open_graph(config).data
        _task, _model, table = rank_cases.learn(config, data)
        assert (
            table.attach(
                next(
                    build.build_loader(config, data).batches(
                        0, build.build_schedule(config, 4).share(0)
                    )
                ),
                CPU,
            ).x.size(1)
            == columns
        )
        assert data.num_categories == (0 if concat == "false" else 4)


def test_the_norm_that_is_clipped_is_that_of_model_and_table(configure, monkeypatch):
    drawn, attach = [], NodeTable.attach
    monkeypatch.setattr(
        NodeTable,
        "attach",
        lambda self, batch, device, rng=None: drawn.append(rng) or attach(self, batch, device, rng),
    )
    config = configure(
        *TABLE, "train.clip_grad_norm=0.01", "train.warmup_steps=10", "features.lr=0.5"
    )
    data, norms, sync = build.open_graph(config).data, [], GradientSync.__call__

    def measure_then_sync(self, *args):
        agreed = sync(self, *args)
        grads = [p.grad for p in trainer.model.parameters() if p.grad is not None] + [
            trainer.table.gradient()
        ]
        norms.append(float(torch.nn.utils.get_total_norm(grads)) / agreed.count)
        return agreed

    monkeypatch.setattr(GradientSync, "__call__", measure_then_sync)
    with contextlib.closing(build.build_trainer(config, data, CPU)) as trainer:
        next(trainer.steps())
        assert trainer.progress.grad_norm == pytest.approx(norms[0]), "of the mean over the labels"
        grads = [p.grad for p in trainer.model.parameters() if p.grad is not None] + [
            trainer.table.gradient()
        ]
        assert float(torch.nn.utils.get_total_norm(grads)) == pytest.approx(0.01, rel=1e-3)
        assert trainer.progress.grad_norm > 0.01 and float(trainer.table.gradient().norm()) > 0
        assert isinstance(drawn[0], torch.Generator), "rows are hidden in training"
        assert trainer.table.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 / 10)


def test_a_run_goes_on_from_a_mapped_checkpoint(configure, tmp_path):
    config, path = configure(*TABLE), tmp_path / "last.pt"
    data, digests = build.open_graph(config).data, []
    with (
        contextlib.closing(build.build_trainer(config, data, CPU)) as trainer,
        contextlib.closing(build.build_trainer(config, data, CPU)) as resumed,
    ):
        steps = trainer.steps()
        next(steps), next(steps)
        checkpoint.save(path, trainer.state())
        next(steps)
        before = checkpoint.digest(checkpoint.load(path))
        state = checkpoint.load(path, mmap=True)
        assert str(path) in Path("/proc/self/maps").read_text()
        resumed.load(state)
        next(resumed.steps())
        digests = [checkpoint.digest(each.state()) for each in (trainer, resumed)]
    assert digests[0] == digests[1] and checkpoint.digest(
        checkpoint.load(path)
    ) == before == checkpoint.digest(state)


def test_nodes_without_a_row_get_the_mean(configure, tmp_path, monkeypatch):
    edges = [
        (i, j)
        for first in (0, 20)
        for i in range(first, first + 20)
        for j in range(first, first + 20)
        if i != j
    ]
    whole = random_graph(43, 100, 0)
    data = make_graph(
        [*edges, (40, 41), (41, 40)],
        43,
        x=whole.x,
        y=whole.y,
        edge_attr=torch.ones(len(edges) + 2, 3),
    )
    number = torch.arange(43)
    data.train_mask, data.valid_mask, data.test_mask = (
        number % 3 == 0,
        number % 3 == 1,
        number % 3 == 2,
    )
    data.content_hash = "generated"
    monkeypatch.setattr(
        "parallel_epochs.pipeline.gnn.kinds.base.load", lambda *args, **kwargs: data
    )
    monkeypatch.setattr("parallel_epochs.pipeline.gnn.build.LEAST_NODES", 10)
    config = configure(*TABLE, "data.components=separate", "train.epochs=1")
    seen = []
    attach_mean = NodeTable.attach_mean
    monkeypatch.setattr(
        NodeTable,
        "attach_mean",
        lambda self, batch, device: (
            seen.append((self, attach_mean(self, batch, device))) or seen[-1][1]
        ),
    )
    summary = train(config, tmp_path / "run")
    ((table, batch),) = seen
    assert torch.equal(batch.x, table.weight.mean(0).expand(3, 6)) and table.weight.size(0) == 20
    assert list(summary["components"]) == ["1", "2"] and 0 <= summary["test"] <= 1


def test_what_cannot_be_is_refused_before_any_work(configure, monkeypatch):
    for overrides, message in (
        (["features.name=table"], "features.name=table is unknown; choose one of data, embedding"),
        (["features.channels=0"], "features.channels must be at least 1, not 0"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            build.check(configure(*overrides))
        assert "\n" not in str(refused.value)
    with pytest.raises(
        ValueError,
        match="features=embedding learns a row for each node, and the graph has no nodes",
    ):
        NodeTable(0, 4, lr=1)
    model = torch.nn.ModuleDict({"names": torch.nn.Embedding(3, 2, sparse=True)})
    with pytest.raises(
        ValueError,
        match=r"names is an Embedding\(sparse=True\), and train.optimizer=adam is a dense",
    ):
        refuse_sparse_modules(model, "adam")
    refuse_sparse_modules(torch.nn.Embedding(3, 2), "adam")
