"""What a run on one machine lets other users and machines reach: nothing but sockets of numbers on loopback."""

import contextlib
import ipaddress
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parallel_epochs.pipeline.run import ranks as rank_tools
from parallel_epochs.pipeline.run.errors import EXIT_INTERRUPTED
from parallel_epochs.pipeline.run.launch import launch
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers import rank_cases
from tests.helpers.running import ROOT, TOY, start, wait_for_rounds

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of sockets"),
    pytest.mark.usefixtures("importable"),
]
TWO = [*TOY, "parallel.num_ranks=2", "train.epochs=5000"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train with two ranks until the tests end."""
    folder = tmp_path_factory.mktemp("network")
    process = start(TWO, folder / "run", folder / "cache")
    wait_for_rounds(folder / "run", 1, process)
    assert process.poll() is None, process.communicate()
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    return [pid, *(other for child in children for other in family(child))]


def sockets_of(pids: list[int]) -> set[str]:
    """Return the inodes of the sockets that processes have open."""
    names = [name for pid in pids for name in open_files(pid)]
    return {found[1] for name in names if (found := re.fullmatch(r"socket:\[(\d+)\]", name))}


def open_files(pid: int) -> list[str]:
    """Return the names of what a running process has open; it may close a file between the listing and the look."""
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(file))
    return names


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address as the kernel writes it: words of four bytes, each in the machine's order."""
    words = bytes.fromhex(text)
    return ipaddress.ip_address(
        b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    )


def open_addresses(sockets: set[str]) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses at which others reach sockets: those that listen, and all of UDP."""
    rows = [
        (kind, line.split())
        for kind in ("tcp", "tcp6", "udp", "udp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [
        address(row[1].split(":")[0])
        for kind, row in rows
        if row[9] in sockets and (row[3] == "0A" or kind.startswith("udp"))
    ]


def test_nothing_of_a_run_listens_beyond_loopback(run):
    pids = family(run.pid)
    sockets, environs = (
        sockets_of(pids),
        [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids],
    )
    found = open_addresses(sockets)
    assert len(pids) == 6, "the run, its watchdog, resource tracker and rank server, and two ranks"
    assert len(found) == 2 and all(each.is_loopback for each in found), found
    assert not any(b"MASTER_PORT" in environ for environ in environs)
    local = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = [
        row[7] for row in local if row[6] in sockets and int(row[3], 16) & 0x10000
    ]  # those that listen
    assert len(paths) == 1 and stat.S_IMODE(Path(paths[0]).parent.stat().st_mode) == 0o700


def test_only_the_user_can_open_the_file_where_ranks_meet(run):
    (store,) = [
        path
        for path in Path("/dev/shm").glob("parallel-epochs-*/parallel-epochs-*/store")
        if path.stat().st_size
        and any(str(path.parent.parent) in name for name in open_files(run.pid))
    ]
    assert (
        stat.S_IMODE(store.parent.stat().st_mode)
        == stat.S_IMODE(store.parent.parent.stat().st_mode)
        == 0o700
    )


def test_values_are_unpickled_from_that_file_alone():
    found = launch(rank_cases.told_by_the_first, 2, 1, StopRequest())
    assert [each.tolist() for each in found] == [[10, 20], [10, 20]]


@pytest.mark.parametrize(
    "num_local, own, expected", [(2, None, "lo"), (2, "eth7", "eth7"), (1, None, None)]
)
def test_ranks_of_one_machine_talk_over_loopback_unless_the_user_says_otherwise(
    num_local, own, expected, monkeypatch
):
    names, seen = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), []
    for name in names:
        monkeypatch.setenv(name, own or "")
        if own is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(
        rank_tools, "from_environment", lambda: rank_tools.Ranks(0, 2, 0, num_local)
    )
    monkeypatch.setattr(rank_tools, "_store", dist.HashStore)
    monkeypatch.setattr(
        dist, "init_process_group", lambda *args, **kwargs: seen.extend(map(os.environ.get, names))
    )
    rank_tools.join(torch.device("cpu"))
    assert seen == [expected, expected]


@pytest.mark.slow
def test_ctrl_c_while_the_ranks_start_ends_the_run_with_one_line(tmp_path):
    """The terminal sends it also to the process that ranks are forked from, which may still import what they need."""
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pipeline.train",
                *TWO,
                f"hydra.run.dir={tmp_path / 'run'}",
                f"cache_dir={tmp_path / 'cache'}",
            ],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # noqa: PLW1509
        while (
            process.poll() is None and "starting 2 ranks" not in (tmp_path / "output").read_text()
        ):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == EXIT_INTERRUPTED
    said = (tmp_path / "output").read_text()
    last = said.splitlines()[-1]
    assert re.match("stopped by SIGINT( while the ranks started)?; continue with resume=", last), (
        said
    )
    assert "Traceback" not in said
