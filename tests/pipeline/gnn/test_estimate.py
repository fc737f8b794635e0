from parallel_epochs.pipeline import config as effects
from parallel_epochs.pipeline.run import memory


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
        configure(
            "evaluation.num_views=3",
            "model.aggr=max",
            "model.t=2",
            "partition=whole",
            "partition.num_parts=8",
        )
    )
    assert found == (
        "without effect: partition.num_parts=8 with partition.name=whole, model.t=2.0 with "
        "model.aggr=max, evaluation.num_views=3 with evaluation.method=exact"
    )


def test_a_tilde_is_the_home_directory(configure, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of-a-user")
    assert configure("data=file", 'data.path="~/graph.pt"').data.path == "/home/of-a-user/graph.pt"
    assert configure("data=ogb", 'name="~/x"').name == "~/x"
