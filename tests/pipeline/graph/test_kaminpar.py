"""KaMinPar in a process of its own: what it cuts, and what comes of a process that is killed or fails."""

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.graph import kaminpar
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers import building as build
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.kill_runs import is_alive
from tests.helpers.running import (
    ROOT,
    forked,
    status_of,
)
from tests.pipeline.graph.test_partition import grid, is_partition

pytest.importorskip("kaminpar")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def clusters(partition):
    return {frozenset(partition.nodes(i).tolist()) for i in range(partition.num_parts)}


def test_ranks_have_cuts_of_their_own_which_rounds_reorder_and_regroup(tmp_path):
    graph = random_graph(300, 900, 0).edge_index
    cut = Partitioner(graph, name="kaminpar", num_parts=4, seed=0, cache=tmp_path)
    assert clusters(cut.draw(0, 0)) == clusters(cut.draw(1, 0)) != clusters(cut.draw(0, 1))
    assert not torch.equal(cut.draw(0, 0).perm, cut.draw(1, 0).perm)
    regrouped = Partitioner(graph, name="kaminpar_random", num_parts=4, seed=0, cache=tmp_path)
    draws = [regrouped.draw(round_, rank) for round_, rank in ((0, 0), (1, 0), (0, 1))]
    assert all(is_partition(draw, 300) and draw.num_parts == 4 for draw in draws)
    assert len({frozenset(clusters(draw)) for draw in draws}) == 3
    # One cut for each rank, and one into 80 for all that regroup it.
    assert sorted(path.name.split("-")[2] for path in tmp_path.glob("kaminpar-*.pt")) == [
        "4",
        "4",
        "80",
    ]


@pytest.mark.parametrize("block", [1, 3, 2**22])
def test_the_file_has_neither_loops_nor_duplicates(block, monkeypatch):
    path = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    monkeypatch.setattr(kaminpar, "BLOCK", block)
    written = []
    for more in ([], [(0, 0), (3, 3)], [(0, 1), (1, 0)], [(1, 1), (1, 2), (2, 1), (1, 1)]):
        file = io.BytesIO()
        kaminpar.write_parhip(make_graph(path + more, 4).edge_index, file)
        written.append(file.getvalue())
    assert len(set(written)) == 1
    head, tail = (
        np.frombuffer(written[0][:64], np.uint64),
        np.frombuffer(written[0][64:], np.uint32),
    )
    # Flags, nodes, edges; where the neighbours of each node begin, in bytes of the file; the neighbours.
    assert head.tolist() == [11, 4, 6, 64, 68, 76, 84, 88] and tail.tolist() == [1, 0, 2, 1, 3, 2]


def test_the_package_is_asked_for_before_anything_else(configure, monkeypatch):
    monkeypatch.setattr(kaminpar.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"which is not installed: pip install .* -e '\.\[kaminpar\]'"
    ):
        build.check(configure("partition=kaminpar_random"))


def slow_process(monkeypatch, code):
    """Let the process of a cut run something else than a cut."""
    monkeypatch.setattr(
        kaminpar,
        "PROCESS",
        f"import os, signal, sys, time; sys.path.insert(0, {str(ROOT)!r}); {code}",
    )


@pytest.mark.parametrize(
    "code, message",
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "killed by SIGKILL, perhaps for lack of memory. Try again",
        ),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "killed by SIGSEGV. Try again, or set partition=random",
        ),
        ("sys.exit('no such graph')", "failed: no such graph. Try again"),
        (
            "pass",
            "failed: it wrote nothing. Try again",
        ),
    ],
)
def test_a_process_that_fails_is_a_clear_error(code, message, monkeypatch, tmp_path):
    slow_process(monkeypatch, code)
    with pytest.raises(ChildProcessError, match=message):
        kaminpar.cut_with_kaminpar(grid(), 4, 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def children(pid):
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


def wait_until(done, what, seconds=30):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def wait_for_child(pid):
    wait_until(lambda: children(pid), "a process was started")
    return children(pid)[0]


@linux
def test_a_request_to_stop_ends_the_process(monkeypatch, tmp_path):
    slow_process(monkeypatch, "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
    started = []

    def interrupt():
        started.append(wait_for_child(os.getpid()))
        time.sleep(0.5)  # one that is still being started ends with this process
        os.kill(os.getpid(), signal.SIGTERM)

    known = set(children(os.getpid()))
    monkeypatch.setattr(
        sys.modules[__name__],
        "children",
        lambda pid, read=children: [child for child in read(pid) if child not in known],
    )
    thread = threading.Thread(target=interrupt)
    with pytest.raises(Stopped), StopRequest():
        thread.start()
        kaminpar.cut_with_kaminpar(grid(), 4, 0, tmp_path)
    thread.join()
    assert not is_alive(started[0]) and list(tmp_path.iterdir()) == []


@linux
def test_the_process_ends_with_one_that_is_killed(monkeypatch, tmp_path):
    sleeping, folder = tmp_path / "sleeping", tmp_path / "cut"
    folder.mkdir()
    slow_process(
        monkeypatch,
        "from pathlib import Path; from parallel_epochs.pipeline.graph import kaminpar_process; "
        f"kaminpar_process.end_with(int(sys.argv[-1])); Path({str(sleeping)!r}).touch(); "
        "time.sleep(60)",
    )
    pid = forked(kaminpar.cut_with_kaminpar, grid(), 4, 0, folder)
    child = wait_for_child(pid)
    wait_until(sleeping.exists, "the process has asked to end with its parent")
    os.kill(pid, signal.SIGKILL)
    assert status_of(pid) == -signal.SIGKILL
    wait_until(lambda: not is_alive(child), "the process has ended")
    assert list(folder.iterdir()) == []
