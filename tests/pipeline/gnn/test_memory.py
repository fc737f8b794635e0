"""The memory of a run, estimated before it starts: beside what a larger batch takes, and beside whole processes."""

import dataclasses
import logging
import re

import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import folder as run_folder, schema as configuration
from parallel_epochs.pipeline.gnn import memory as footprint
from parallel_epochs.pipeline.gnn.contract import autocast
from parallel_epochs.pipeline.gnn.loaders import build as build_loader
from parallel_epochs.pipeline.gnn.memory import Linear
from parallel_epochs.pipeline.graph import stream as graph_stream
from parallel_epochs.pipeline.run import memory
from parallel_epochs.pipeline.run.allocations import Allocations
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers import building as build
from tests.helpers.running import TOY, finish, shell, summary_of, train

CPU = torch.device("cpu")
GRAPH = [
    "data.num_nodes=4000",
    "data.num_edges=40000",
    "data.num_tasks=8",
    "model.hidden_channels=32",
    "device=cpu",
]
AUTO = "partition.num_parts=auto"
MODELS = [[], ["train.precision=bf16"], ["features=embedding"], ["model=revgnn"]]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Overrides of a graph that is made once."""
    return [*GRAPH, f"cache_dir={tmp_path_factory.mktemp('cache')}"]


def choose_num_parts(config, graph) -> int:
    return footprint.choose_num_parts([build.part_of(config, part.data) for part in graph.parts])


def open_data(config):
    data = build.open_graph(config).parts[0].data
    return data


def test_what_operators_allocate_is_counted_while_it_is_held():
    x, weight = torch.randn(1000, 100), torch.randn(100, 100, requires_grad=True)
    with Allocations() as found:
        y = x @ weight
        assert found.now == 400_000
        y.view(-1)[3:].detach().mul_(2)  # the same memory
        assert found.now == found.peak == 400_000
        z = y.relu()
        assert found.now == 800_000
        del y, z
        assert found.now == 0 and found.peak == 800_000
        torch.nn.functional.embedding(torch.arange(5), weight, sparse=True).sum().backward()
    assert found.now == weight.grad._values().numel() * 4 + 5 * 8


def test_a_plane_goes_through_its_points():
    linear = Linear.through(
        [(10, 50), (20, 100), (10, 100)],
        [3 * n + 0.5 * e + 7 for n, e in ((10, 50), (20, 100), (10, 100))],
    )
    assert linear(100, 10) == pytest.approx(312)


@pytest.mark.parametrize(
    "overrides", MODELS, ids=lambda overrides: " ".join(overrides) or "default"
)
def test_small_batches_tell_what_a_larger_one_takes(overrides, graph, configure):
    config = configure(*graph, *overrides, "partition.num_parts=2")
    data = open_data(config)
    found = footprint.measure(build.part_of(config, data))
    task, loader = build.build_task(config, data), build.build_loader(config, data)
    model, table = build.build_model(config, data, task), build.build_table(config, data, CPU)
    partition = build_loader.build_partitioner(config, data).draw(0)
    batch = next(loader.batches_of(partition))
    size = batch.num_nodes, batch.num_edges
    rng = torch.Generator().manual_seed(0)
    with Allocations() as step, autocast(CPU, config.train.precision):
        task.loss(model, batch if table is None else table.attach(batch, CPU, rng), rng)[
            0
        ].backward()
    gradients = sum(p.grad.numel() * 4 for p in model.parameters() if p.grad is not None)
    assert found.step(*size) / footprint.ALLOCATED == pytest.approx(step.peak - gradients, rel=0.1)
    assert found.batch(*size) / footprint.ALLOCATED == pytest.approx(
        footprint.bytes_of(batch), rel=0.02
    )
    assert found.batch_size(2) == (2000, pytest.approx(size[1], rel=0.05))
    assert found.fixed >= 16 * sum(p.numel() for p in model.parameters()) + footprint.bytes_of(data)


def test_the_fewest_clusters_that_fit_are_chosen(graph, configure, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    config = configure(*graph, AUTO)
    opened = build.open_graph(config)
    found = dataclasses.replace(
        footprint.measure(build.part_of(config, opened.parts[0].data)), fixed=1e8
    )
    monkeypatch.setattr(footprint, "measure", lambda *args: found)
    for num_parts in (1, 2, 7):
        given = dataclasses.replace(config, memory=f"{int(found.total(num_parts)) + 1}B")
        assert choose_num_parts(given, opened) == num_parts
        assert "partition.num_parts=auto: " in caplog.text
        # Two ranks share the memory.
        twice = keys.replaced(
            given, {"memory": f"{2 * int(given.memory[:-1])}B", "parallel.num_ranks": 2}
        )
        assert choose_num_parts(twice, opened) == max(num_parts, 4)
    assert build.open_graph(given).config.partition.num_parts == num_parts
    monkeypatch.setattr(
        footprint, "measure", lambda *args: dataclasses.replace(found, clusters_per_step=3)
    )
    assert choose_num_parts(given, opened) == 21
    monkeypatch.setattr(footprint, "measure", lambda *args: found)
    with pytest.raises(
        ValueError,
        match=r"auto: memory=90MB, 90 MB a rank, is too little: even clusters of two nodes take 1\d\d MB a rank",
    ):
        choose_num_parts(dataclasses.replace(config, memory="90MB"), opened)
    assert build.open_graph(configure(*graph)).config.partition.num_parts == 1
    monkeypatch.setattr(footprint, "MOST_WHOLE_EDGES", 9_999)
    assert build.open_graph(configure(*graph)).config.partition.num_parts == 4


def test_denser_clusters_need_more_of_them(graph, configure):
    found = footprint.measure(build.part_of(config := configure(*graph), open_data(config)))
    metis = dataclasses.replace(found, is_random=False)
    assert found.batch_size(4) == (1000, 2500) and metis.batch_size(4) == (1000, 10000)
    assert found.batch_size(1) == metis.batch_size(1) == (4000, 40000)
    of_metis = footprint.measure(
        build.part_of(configure(*graph, "partition=metis"), open_data(config))
    )
    assert found.is_random and not of_metis.is_random


def test_of_a_graph_on_disk_what_waits_is_counted(graph, configure, monkeypatch):
    config = configure(*graph, "data.on_disk=true", "partition.num_parts=4")
    data = open_data(config)
    edge_bytes = 8 + 4 * data.edge_attr.size(1)
    blocks = 2 * 40_000 * (edge_bytes - 4)  # the whole graph is one, and another is read ahead
    waiting = graph_stream.waiting_bytes
    assert waiting(data, 10_000) == blocks + 10_000 * edge_bytes
    monkeypatch.setattr(
        graph_stream, "buffer_bytes", lambda: 1000
    )  # the rest waits in files, and so do features
    assert waiting(data, 10_000) == blocks + 2000
    monkeypatch.setattr(graph_stream, "BLOCK_BYTES", 5000)
    assert waiting(data, 10_000) == 2 * 5000 + 2000
    monkeypatch.setattr(footprint, "waiting_bytes", lambda data, num_edges: 1e12)
    assert footprint.measure(build.part_of(config, data)).fixed > 1e12


def test_no_random_number_is_drawn_from_those_of_the_run(graph, configure):
    config = configure(*graph)
    data, before = open_data(config), torch.get_rng_state()
    footprint.measure(build.part_of(config, data))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "text, size",
    [
        ("12GB", 12e9),
        ("1.5GiB", 1.5 * 2**30),
        ("64kB", 64e3),
        ("7B", 7),
        ("2 TiB", 2**41),
    ],
)
def test_sizes(text, size):
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["memory=12XB"], "memory=12XB is not a size; give a number and B, kB, MB, GB or TB"),
        (["memory=12"], "memory=12 is not a size"),
        (["partition.num_parts=many"], "partition.num_parts=many: give a whole number, or auto"),
        (["partition.num_parts=2.5"], "partition.num_parts=2.5: give a whole number, or auto"),
        (["partition.num_parts=0"], "partition.num_parts must be at least 1, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        build.check(configure(*overrides))


def test_a_run_keeps_the_number_that_was_chosen(configure, tmp_path):
    command = [*TOY, AUTO, "train.epochs=1", "device=cpu"]
    train(configure(*command), tmp_path / "run")
    saved = configuration.load(tmp_path / "run" / "config.yaml")
    assert saved.partition.num_parts == 1  # this machine holds all of it
    resumed = configure(*command, f"resume={tmp_path / 'run'}", "memory=9GB")
    again = run_folder.resolve(resumed, tmp_path / "run", named={"partition.num_parts"})
    assert again == dataclasses.replace(saved, memory="9GB")
    with pytest.raises(ValueError, match="trained with other values: partition.num_parts: 1 -> 3"):
        run_folder.resolve(keys.replaced(resumed, {"partition.num_parts": 3}), tmp_path / "run")


def test_only_memory_of_other_folders_is_counted(tmp_path):
    (tmp_path / "numbers").write_bytes(stream("test", 0).bytes(1 << 25))
    before = memory.resident_bytes(str(tmp_path))
    mapped = torch.from_file(str(tmp_path / "numbers"), size=1 << 25, dtype=torch.uint8)
    assert int(mapped.sum()) > 0
    assert (
        memory.resident_bytes(str(tmp_path)) - before
        < 1 << 24
        < memory.resident_bytes("/nowhere") - before
    )


@pytest.mark.slow
def test_ranks_train_with_the_number_that_was_chosen(tmp_path):
    arguments = [*TOY, AUTO, "parallel.num_ranks=2", "train.epochs=4"]
    status, output = finish(arguments, tmp_path / "run", tmp_path / "cache")
    assert (
        status == 0
        and "partition.num_parts=auto: 4 clusters, which keep about 25% of the edges, so that"
        in output
    )
    assert finish([AUTO, "train.epochs=6"], tmp_path / "run", tmp_path / "cache")[0] == 0
    assert summary_of(tmp_path / "run")["data_epochs"] == 6


LARGE = [
    "data.num_nodes=20000",
    "data.num_edges=200000",
    "model.hidden_channels=128",
    "partition.num_parts=2",
    "train.epochs=1",
    "model.num_layers=7",
]  # of two steps, the second with the optimizer's state


@pytest.mark.slow
@pytest.mark.parametrize("more", ["seed=0", "features=embedding", "data.on_disk=true"])
def test_a_process_takes_what_was_estimated(more, configure, tmp_path):
    cache, arguments = tmp_path / "cache", [*LARGE, more, "device=cpu"]
    # The first to open a graph also prepares it, which takes memory of its own.
    assert finish([*LARGE, "model.num_layers=2"], tmp_path / "first", cache)[0] == 0
    told = shell("pipeline.check", *arguments, f"cache_dir={cache}", cwd=tmp_path).stdout
    size, unit = re.search(r"memory +about ([\d.]+) (MB|GB) a rank", told).groups()
    status, output = finish(arguments, tmp_path / "run", cache)
    assert status == 0, output
    # The process of the check, whose own memory it counts, holds a little more than a run does.
    told_bytes = float(size) * {"MB": 1e6, "GB": 1e9}[unit]
    assert 0.8 < told_bytes / summary_of(tmp_path / "run")["peak_memory_bytes"] < 1.3
