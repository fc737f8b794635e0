"""Where the graph of a run lies: what fits, what runs instead, and what is refused."""

import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn import estimate, memory, placement
from parallel_epochs.pipeline.graph.resident import KEYS, bytes_of, put_on
from parallel_epochs.pipeline.training import check
from tests.helpers.building import open_graph
from tests.helpers.graphs import random_graph
from tests.helpers.running import TOY


@pytest.fixture
def data():
    data = random_graph(1000, 20_000, 0)
    data.x = torch.zeros(1000, 25)  # 100 bytes a node
    return data


def test_the_bytes_of_a_graph(data):
    assert bytes_of(data) == sum(
        put_on(data, torch.device("cpu"))[key].nbytes
        for key in KEYS
        if key in data and key != "edge_index"
    ) + 4 * (2 * data.num_edges + 1001)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.device=gpu"], "data.device=gpu is unknown; choose one of auto, cpu, cuda"),
        (
            ["data.device=cuda", "device=cpu"],
            "data.device=cuda needs a GPU that trains; this run has device=cpu",
        ),
        (
            ["data.device=cuda"],
            "needs a GPU that trains; this run has device=auto, and torch sees no GPU here",
        ),
        (["data.device=cuda", "data.on_disk=true"], "needs on_disk=false|needs data.on_disk=false"),
        (
            ["data.device=cuda", "trainer=node_embedding"],
            "other trainers make no batches of a graph",
        ),
    ],
)
def test_where_there_is_no_such_device_the_key_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        check(configure(*TOY[:5], *overrides))


@pytest.fixture
def gpu(monkeypatch):
    """Let this machine have a GPU of 8 GB, as far as its size is asked for."""
    sizes = {"free": 8_000_000_000, "total": 8_000_000_000}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (sizes["free"], sizes["total"]))
    monkeypatch.setattr(estimate.Machine, "memory", property(lambda self: sizes["total"]))
    return sizes


@pytest.fixture
def opened(gpu, configure, monkeypatch):
    """Open the graph of a run that trains on this GPU; its loader and its model are built."""

    def open_toy(asked, *overrides):
        setup = open_graph(configure(*TOY, *overrides)).parts[0]
        setup.loader, setup.model  # noqa: B018 - built on the CPU
        setup.config, setup.device = (
            keys.replaced(setup.config, {"data.device": asked}),
            torch.device("cuda", 0),
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        return setup

    return open_toy


@pytest.mark.parametrize(
    "free, overrides",
    [(20_000, ["loader=neighbor", "loader.num_neighbors=[3,3]"]), (1_010_000, [])],
)
def test_what_other_programs_use_is_not_there(gpu, opened, free, overrides, monkeypatch, caplog):
    caplog.set_level("INFO")
    nothing, setup = memory.Linear(0, 0, 0), opened("cuda", *overrides)
    monkeypatch.setattr(
        memory,
        "measure",
        lambda setup: memory.Footprint(
            240,
            4800,
            process=0,
            graph=5e5,
            state=1e6,
            batch=nothing,
            step=nothing,
            evaluation=0,
            clusters_per_step=1,
            is_random=True,
            held=1,
        ),
    )
    gpu["free"] = free
    placement.place(setup, trains=True)
    assert setup.put is None and caplog.records[-1].levelname == "WARNING"
    assert "10 kB are left on the GPU" in caplog.text
    assert "of the GPU's 8 GB are free, as other programs or ranks use the rest" in caplog.text
    assert "the CPU makes the batches, as the graph takes" in caplog.text


@pytest.mark.parametrize("trains", [True, False])
def test_the_loader_is_placed_once(opened, trains, monkeypatch, caplog):
    """A prediction takes no trial step, as its data may have no labels."""
    caplog.set_level("INFO")
    setup, puts = opened("auto"), []
    monkeypatch.setattr(placement, "put_on", lambda data, device: puts.append(device) or data)
    monkeypatch.setattr(memory, "is_known", lambda setup: not trains)
    for _ in range(2):
        placement.place(setup, trains=trains)
    assert puts == [setup.device] and setup.bytes_on_gpu == bytes_of(setup.data)
    assert caplog.text.count("data.device=auto: the GPU makes the batches") == 1
    assert (
        "6.4 GB a rank, 80 % of what the GPU has, may be used, and half of it is for the model"
        in caplog.text
    )


@pytest.mark.parametrize(
    "asked, text", [("cpu", ""), ("auto", "the graph stays on the disk (data.on_disk=true)")]
)
def test_the_cpu_draws_where_it_was_asked_for_or_nothing_else_can(opened, asked, text, caplog):
    caplog.set_level("INFO")
    setup = opened(asked)
    setup.data.on_disk = bool(text)
    placement.place(setup, trains=True)
    assert (
        setup.put is None and text in caplog.text and bool(text) == ("data.device" in caplog.text)
    )
