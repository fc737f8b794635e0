"""The threads of the C++ kernels: whom a loop waits for, errors, forks, signals and sleep.

The body of a loop is a Python function. One that does not return 0 stands for memory that is not there.
"""

import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parallel_epochs.models.kernels.native import NativeLibrary
from tests.helpers.running import ROOT

SOURCE = f"""#include "{ROOT}/models/kernels/threads.h"
extern "C" int loop(int64_t num_threads, int64_t count, int (*body)(int64_t)) try {{
  parallel_for(num_threads, count, 1, [&](int64_t i) {{ if (body(i)) throw std::bad_alloc(); }});
  return 0;
}} catch (const std::bad_alloc&) {{ return 1; }}"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    path, body = tmp_path_factory.mktemp("loops") / "loop.cpp", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
    path.write_text(SOURCE)
    run = NativeLibrary("loops of tests", path, otherwise="").require().loop
    return lambda num_threads, count, do: run(ctypes.c_int64(num_threads), ctypes.c_int64(count),
                                              body(lambda i: do(i) or 0))


def meet(loop, num_threads: int) -> bool:
    """Tell whether so many threads are in one loop at the same time, which a loop does not need to end."""
    together = threading.Barrier(num_threads, timeout=20)
    return loop(num_threads, num_threads, lambda i: together.wait() and 0) == 0 and not together.broken


def test_no_other_piece_waits_for_a_thread_that_is_stuck(loop):
    others = threading.Semaphore(0)
    assert loop(2, 50, lambda i: others.release() if i else not all(others.acquire(timeout=20) for _ in range(49))) == 0


def test_nested_loops_of_several_callers_and_errors_end(loop):
    with ThreadPoolExecutor(4) as callers:
        ends = callers.map(lambda at: loop(3, 9, lambda i: loop(3, 9, lambda j: i * 9 + j == at)), [0, 40, 80, 81])
    assert list(ends) == [1, 1, 1, 0]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_threads_sleep_block_signals_and_are_started_again_in_a_fork(loop):
    before = set(os.listdir("/proc/self/task"))
    assert meet(loop, 12) and meet(loop, 2)
    for task in set(os.listdir("/proc/self/task")) - before:
        assert int(Path("/proc/self/task", task, "status").read_text().split("SigBlk:")[1].split()[0], 16) & 2  # SIGINT
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.1
    child = os.fork()
    if not child:
        os._exit(not meet(loop, 3))
    assert os.waitpid(child, 0)[1] == 0
