"""The choice of the device, on a machine that has no GPU or pretends to have one."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from parallel_epochs.pipeline.block_training.device import settle
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.run.ranks import Ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 10**9, 8 * 10**9))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def choose(
    asked, device=CPU, *, size=1000, needed=10**9, ranks=Ranks(), in_triton=True, why_cpu=""
):
    config = SimpleNamespace(device=asked, trainer=SimpleNamespace(name="layout"))
    return settle(
        Part(config, None, device),
        size=size,
        least=1000,
        what="points",
        needed=needed,
        ranks=ranks,
        in_triton=in_triton,
        why_cpu=why_cpu,
    )


def test_auto_takes_a_gpu_from_a_size_on(gpu, caplog):
    caplog.set_level("INFO")
    assert choose("auto", size=999) == choose("cpu") == CPU and not caplog.messages
    assert choose("auto") == GPU == choose("cuda", GPU, size=1)
    assert "device=auto: a GPU, taken from 1,000 points on" in caplog.messages
    assert choose("auto", needed=6 * 10**9) == CPU
    assert (
        "device=auto: the CPU: 1,000 points take 6 GB, but 5 GB of the GPU are free"
        in caplog.messages
    )


def test_without_a_gpu_auto_is_the_cpu():
    assert choose("auto") == CPU


def test_a_gpu_without_room_is_refused_and_the_cpu_trains_what_none_can(gpu, monkeypatch, caplog):
    with pytest.raises(
        ValueError,
        match="device=cuda: 1,000 points take 6 GB, but 5 GB of the GPU are free. Set dev",
    ):
        choose("cuda", GPU, needed=6 * 10**9)
    assert (
        choose("cuda", GPU, ranks=Ranks(0, 2))
        == CPU
        == choose("cuda", GPU, needed=6 * 10**9, why_cpu="it is wide")
    )
    assert caplog.messages == [
        f"device=cuda: the CPU trains, as {reason}"
        for reason in ("trainer=layout trains on one GPU, and this run has 2 ranks", "it is wide")
    ]
    assert choose("cuda", GPU, ranks=Ranks(0, 2), in_triton=False) == GPU
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose("cuda", GPU) == CPU
    assert (
        "device=cuda: the CPU trains, as trainer=layout needs Triton there, which is not "
        in caplog.messages[-1]
    )
