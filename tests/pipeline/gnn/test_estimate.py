import pytest
import torch

from parallel_epochs.pipeline import config as effects, keys, training
from parallel_epochs.pipeline.gnn import estimate
from parallel_epochs.pipeline.run import memory
from tests.helpers import building as build
from tests.helpers.graphs import random_graph


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.block=dense", "model.norm=batch", "model.msg_norm=true"],
        *(
            pytest.param(overrides, marks=pytest.mark.slow)
            for overrides in (
                [],
                ["model=revgnn", "model.num_groups=5", "model.hidden_channels=130"],
            )
        ),
    ],
)
def test_parameters_are_counted_without_being_built(overrides, configure, monkeypatch):
    monkeypatch.setattr(
        estimate, "LARGEST_BUILT", 12
    )  # of sizes beyond that, three small ones are built
    config = configure(*overrides)

    def count(sizes):
        changed = keys.replaced(config, {f"model.{name}": size for name, size in sizes.items()})
        with torch.device("meta"):
            model = build.construct(
                changed, in_channels=3, out_channels=2, edge_dim=5, num_categories=0
            )
        return sum(weight.numel() for weight in model.parameters())

    sizes = dict(num_layers=14, hidden_channels=130, num_mlp_layers=13)
    assert estimate.extrapolate(count, sizes, getattr(config.model, "num_groups", 1)) == count(
        sizes
    )


@pytest.mark.parametrize("name", ["deep", "wide"])
def test_a_reversible_model_keeps_the_activations_of_one_layer(name, configure, monkeypatch):
    config = configure(f"+experiment=ogbn_proteins_revgnn_{name}")
    build.check(config)
    monkeypatch.setattr(estimate, "machine_memory", lambda: 10**6)
    build.check_activations(config, random_graph(1000, 10, 0))


def test_keys_to_blame_are_those_without_which_it_fits(configure, monkeypatch):
    monkeypatch.setattr(estimate, "machine_memory", lambda: 10**9)
    build.check(configure("+experiment=ogbn_proteins"))
    config = configure()
    for changes, named in (
        ({"model.num_layers": 50000}, "model.num_layers=50000"),
        ({"model.num_layers": 500, "model.hidden_channels": 5000}, "model.hidden_channels=5000"),
        (
            {"model.num_layers": 50000, "model.hidden_channels": 50000},
            "model.num_layers=50000 and model.hidden_channels=50000",
        ),
        ({"parallel.num_ranks": 3000}, "parallel.num_ranks"),
    ):
        monkeypatch.setattr(training, "machine_memory", lambda: 10**12)
        with pytest.raises(
            ValueError, match=f"^{named}: weights, .* take at least .* has 1 GB. Lower (it|them)$"
        ):
            build.check(keys.replaced(config, changes))


def test_batches_whose_activations_do_not_fit_are_refused(configure, monkeypatch):
    data = random_graph(1000, 10, 0)
    monkeypatch.setattr(estimate, "machine_memory", lambda: 10**6)
    fits = configure("partition.num_parts=4")  # 250 nodes x 4 layers x 64 channels x 4 bytes
    whole = configure("partition=whole")
    build.check_activations(fits, data)
    for config in (
        whole,
        *(
            keys.replaced(fits, changes)
            for changes in (
                {"partition.clusters_per_step": 4},
                {"model.num_layers": 16},
                {"parallel.num_ranks": 4},
            )
        ),
    ):
        with pytest.raises(
            ValueError,
            match="a batch of .* in training, but this machine has 1 MB: raise partition",
        ):
            build.check_activations(config, data)
    build.check_activations(
        keys.replaced(whole, {"train.precision": "bf16", "model.num_layers": 7}), data
    )


def test_memory_is_that_of_the_control_group(tmp_path, monkeypatch):
    assert 10**8 < memory.machine_memory() < 10**15
    monkeypatch.setattr(memory, "_limits_of_groups", lambda: iter([12_345]))
    assert memory.machine_memory() == 12_345
    assert [memory.format_bytes(size) for size in (0, 999, 999.7e3, 1e9, 25.3e9, 4e25)] == [
        "0 B",
        "999 B",
        "1 MB",
        "1 GB",
        "25.3 GB",
        "4e+07 EB",
    ]


def test_keys_that_do_nothing_are_named(configure):
    assert effects.explain_idle_keys(configure()) is None
    assert effects.explain_idle_keys(configure("+experiment=ogbn_products")) is None
    found = effects.explain_idle_keys(
        configure("evaluation.num_views=3", "model.p=2", "partition=whole", "partition.num_parts=8")
    )
    assert found == (
        "without effect: partition.num_parts=8 with partition.name=whole, model.p=2.0 with "
        "model.aggr=softmax, evaluation.num_views=3 with evaluation.method=exact"
    )


def test_a_tilde_is_the_home_directory(configure, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of-a-user")
    assert configure("data=file", 'data.path="~/graph.pt"').data.path == "/home/of-a-user/graph.pt"
    assert configure("data=ogb", 'name="~/x"').name == "~/x"
