"""The defaults of task=graph, and keys of train that are chosen by the number of batches."""

from types import SimpleNamespace

import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import schema
from parallel_epochs.pipeline.gnn.base import bases
from parallel_epochs.pipeline.gnn.base.graphs import count_contents, count_patterns
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.optimization import settle
from tests.helpers import building as build
from tests.helpers.graph_toys import write_graphs
from tests.helpers.running import train


@pytest.fixture
def overrides(tmp_path):
    return [
        "data=ogb_graph",
        f"data.folder={write_graphs(tmp_path / 'toy', num_graphs=80)}",
        "task=graph",
    ]


def test_graphs_are_learned_by_gated_gcn_and_other_models_keep_their_keys(configure, overrides):
    config = configure(*overrides)
    assert (config.model.name, config.model.conv, config.model.norm) == (
        "pyg",
        "GatedGCNConv",
        "batch",
    )
    assert (config.loader.name, config.loader.batch_size, config.data.random_walk) == (
        "graph",
        32,
        20,
    )
    assert (config.train.schedule, config.train.optimizer) == ("cosine", "adamw")
    other = configure(*overrides, "model=deepergcn", "train.lr=0.01", "data.random_walk=null")
    assert (other.model.name, other.train.lr, other.data.random_walk) == ("deepergcn", 0.01, None)
    assert configure("data=digits").train.epochs == 500 and configure("data=digits").train.ema == 0


def test_the_experiments_of_earlier_versions_keep_their_recipes(configure):
    for name in ("ogbg_molhiv", "ogbg_molpcba", "ogbg_ppa"):
        config = configure(f"+experiment={name}")
        train = config.train
        assert (config.model.name, train.optimizer, train.schedule) == ("deepergcn", "adam", "none")
        assert (
            train.ema,
            train.warmup_steps,
            train.clip_grad_norm,
            train.weight_decay,
            train.patience,
        ) == (0,) * 5
        assert config.data.random_walk is None
    config = configure("+experiment=ogbg_molhiv_gatedgcn")
    assert (config.train.epochs, config.train.ema, config.train.warmup_steps) == (100, 0, 5145)


@pytest.mark.parametrize(
    "num_batches, epochs, ema",
    [(1, 500, 0.9), (100, 100, 0.99), (1029, 9, 0.999), (5000, 8, 0.999)],
)
def test_epochs_warm_up_and_average_follow_the_batches(
    num_batches, epochs, ema, configure, overrides
):
    def settled(*more):
        setup = SimpleNamespace(
            config=configure(*overrides, *more), loader=SimpleNamespace(num_batches=num_batches)
        )
        return keys.replaced(setup.config, settle(setup)).train

    found = settled()
    assert (found.epochs, found.warmup_steps, found.ema) == (
        epochs,
        num_batches,
        pytest.approx(ema),
    )
    given = settled("train.epochs=3", "train.ema=0", "train.warmup_steps=7")
    assert (given.epochs, given.warmup_steps, given.ema) == (3, 7, 0)


@pytest.mark.slow
def test_a_run_keeps_the_numbers_that_were_chosen(configure, overrides, tmp_path):
    config = configure(
        *overrides, "model.hidden_channels=8", "loader.batch_size=12", "train.patience=2"
    )
    assert config.train.epochs == "auto"
    summary = train(config, tmp_path / "run")
    saved = schema.load(tmp_path / "run" / "config.yaml")
    assert (saved.train.epochs, saved.train.warmup_steps, saved.train.ema) == (
        500,
        4,
        pytest.approx(0.9),
    )
    assert 0 < summary["best_epoch"] <= 500


@pytest.mark.parametrize(
    "given, message",
    [
        ("train.epochs=some", "train.epochs=some: give a whole number, or auto"),
        ("train.ema=some", "train.ema=some: give a number, or auto"),
        ("train.warmup_steps=-1", "train.warmup_steps must be at least 0"),
    ],
)
def test_odd_numbers_are_refused(given, message, configure, overrides):
    with pytest.raises(ValueError, match=message):
        configure(*overrides, given)


def test_a_simple_method_is_chosen_by_the_number_of_graphs(configure, overrides, monkeypatch):
    config = configure(*overrides, "task.base=auto")
    monkeypatch.setattr(bases, "MOST_NODES", 80)
    opened = build.open_graph(config).parts[0]
    assert opened.data.num_nodes > 300 and opened.base is not None
    monkeypatch.setattr(bases, "MOST_NODES", 79)
    assert build.open_graph(config).parts[0].base is None


def test_patterns_do_not_read_where_a_node_stands(configure, overrides):
    """The probabilities of random walks are categories too, which hardly two nodes of different graphs share."""
    plain, walks = (
        build.open_graph(configure(*overrides, f"data.random_walk={steps}")).parts[0]
        for steps in ("null", 4)
    )
    own = count_patterns(plain.data)
    assert walks.task.num_last == 4 and torch.equal(own, count_patterns(walks.data, 4))
    assert not torch.equal(own, count_patterns(walks.data))
    sums = [Inputs(setup.data, setup.task).hop(0) for setup in (plain, walks)]
    assert torch.equal(*sums) and count_contents(walks.data).size(1) > sums[0].size(1)
