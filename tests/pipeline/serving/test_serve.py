"""`python -m pipeline.serve` as a process: signals, clients that hang, ports in use, stores that are replaced."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

import parallel_epochs as pe
from tests.helpers.running import ROOT
from tests.pipeline.test_model import SMALL, people

HEADERS = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run on people."""
    folder = tmp_path_factory.mktemp("served")
    pe.train(
        people(),
        folder=folder / "run",
        cache_dir=folder / "cache",
        **SMALL,
        **{
            "data.nodes.label": "town",
            "data.nodes.features": ["age"],
            "data.edges.features": ["sum"],
            "task.base": "none",
        },
    )
    return folder


# The service with another limit of its time.
IMPATIENT = """
import functools, runpy
from parallel_epochs.pipeline.serving import limits
limits.ServiceLimits = functools.partial(limits.ServiceLimits, seconds=1)
runpy.run_module("pipeline.serve", run_name="__main__", alter_sys=True)
"""


def start(run, *arguments, program=("-m", "pipeline.serve"), **environment):
    return subprocess.Popen(
        [sys.executable, *program, f"run={run}", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


@contextmanager
def served(run, *arguments, **environment):
    """Serve a run; yields the process and its port. It must end with status 0 and without a traceback."""
    process = start(run, "port=0", *arguments, **environment)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"serving .*, at http://[^ ]*:(\d+)", line):
                break
        else:
            pytest.fail("".join(lines) + process.stderr.read())
        yield process, int(found[1])
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert (
            "Traceback" not in output + errors
            and "leaked" not in errors
            and "the service has ended" in output
        )
    finally:
        process.kill()


def ask(port, route="/predict", content=None, *, to="127.0.0.1", **headers):
    body = json.dumps({"ids": ["p1"]} if content is None else content)
    with closing(http.client.HTTPConnection(to, port, timeout=60)) as connection:
        connection.request("POST", route, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_hanging_clients_and_long_bodies_stop_nobody(folder):
    with served(folder / "run", program=("-c", IMPATIENT)) as (_, port), ExitStack() as stack:
        hanging = []
        for begin in (
            b"",
            b"POST /predict HTTP/1.1\r\nHost: lo",
            HEADERS + b"Content-Length: 500\r\n\r\n{",
            b"\x16\x03\x01nonsense\r\n\r\n",
        ):
            for _ in range(20):
                hanging.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
                hanging[-1].sendall(begin)
        endless = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        endless.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with suppress(OSError):  # the service closes the connection long before 1 GB
            while sent < 1 << 30:
                sent += endless.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert sent < 100e6
        assert ask(port)[0] == 200
        time.sleep(2.5)
        for connection in hanging:  # each was told, or its connection was closed
            connection.settimeout(5)
            with suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
        assert ask(port)[0] == 200


def test_a_request_under_way_is_answered_before_the_end(folder):
    with (
        served(folder / "run") as (process, port),
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        new = {"rows": [{"id": "n1", "age": 3}]}
        assert ask(port, content=new)[0] == 200  # by modules that tell of leaks
        body = json.dumps({"ids": ["p1"]}).encode()
        slow.sendall(HEADERS + b"Content-Length: %d\r\n\r\n" % len(body))
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        slow.sendall(body)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError):
            ask(port)


def test_a_port_in_use_and_open_addresses_are_refused_in_one_line(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ([f"port={port}"], f"port={port} cannot be used: Address already in use"),
            (["host=0.0.0.0"], "host=0.0.0.0 can be reached from other machines"),
            (["host=no.such.host.invalid"], "host=no.such.host.invalid is no address"),
            ([f"token={tmp_path / 'none'}"], "none does not exist"),
            (["prt=1"], "did you mean port"),
            (["port=70000"], "port must be less than 65536, not 70000"),
        ]
        for arguments, message in cases:
            process = start(folder / "run", *arguments)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 1 and message in errors and errors.count("\n") == 1, errors


def test_a_service_outlives_a_hangup_while_it_opens_and_a_cache_that_is_moved(folder):
    with start(folder / "run", "port=0", "host=127.0.0.2") as process:
        for line in process.stdout:
            if line.startswith("opening"):
                process.send_signal(signal.SIGHUP)
            if found := re.search(r"serving .*, at http://127.0.0.2:(\d+)", line):
                break
        os.rename(folder / "cache", folder / "moved")
        try:
            for name, status in (("127.0.0.2", 200), ("localhost", 200), ("evil.example", 403)):
                assert ask(int(found[1]), to="127.0.0.2", Host=name)[0] == status
        finally:
            os.rename(folder / "moved", folder / "cache")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
