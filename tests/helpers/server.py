"""A process that has the imports behind it and forks for every command: `python -m MODULE` in a fifth of a second.

What it starts is a real process of its own: it has its own number, files, environment and signals, and may be killed.
The server is forked from the tests' own process before any of them runs.
"""

import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings

import torch

from tests.helpers import composing

# What commands import when they need it, beside what the tests have imported.
OURS = (
    "pipeline.training",
    "pipeline.gnn.predict.command",
    "pipeline.data.readers.ogb_node",
    "scripts.report.document",
)
PRELOAD = (
    *(f"parallel_epochs.{name}" for name in OURS),
    "sklearn.datasets",
    "sklearn.neighbors",
)


class Server:
    """Starts, asks after and reaps processes; one request at a time."""

    def __init__(self):
        self._lock = threading.Lock()
        (requests, self._requests), (self._replies, replies) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of forks beside threads: those of this process do nothing yet
            pid = os.fork()
        if pid == 0:
            os.close(self._requests), os.close(self._replies)
            with os.fdopen(requests) as requests, os.fdopen(replies, "w") as replies:
                _serve(requests, replies)
            os._exit(0)
        os.close(requests), os.close(replies)
        self._requests, self._replies = os.fdopen(self._requests, "w"), os.fdopen(self._replies)

    def close(self) -> None:
        """Let the process end."""
        self._requests.close()
        self._replies.close()

    def ask(self, **request):
        with self._lock:
            print(json.dumps(request), file=self._requests, flush=True)
            return json.loads(self._replies.readline())


class Command(subprocess.Popen):
    """`python -m MODULE ...` started by the server, used like a ``Popen``.

    Args:
        output, errors: paths that standard output and standard error go to.
    """

    def __init__(
        self,
        server: Server,
        module: str,
        arguments: list[str],
        *,
        cwd: str,
        env: dict[str, str],
        output: str,
        errors: str,
    ):
        self._server, self.args, self.returncode = server, [module, *arguments], None
        self.stdin = self.stdout = self.stderr = None
        self._output, self._errors = output, errors
        self.pid = server.ask(
            module=module, arguments=arguments, cwd=str(cwd), env=env, output=output, errors=errors
        )

    def __del__(self):
        pass

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        waited = threading.Event()
        seconds = 0.0
        while self.poll() is None:
            if timeout is not None and seconds > timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            waited.wait(0.01)
            seconds += 0.01
        return self.returncode

    def communicate(self, input=None, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        with open(self._output) as output, open(self._errors) as errors:
            return output.read(), errors.read()

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


@functools.cache
def _prepare() -> None:
    """Do once what every command would do."""
    for name in PRELOAD:
        importlib.import_module(name)
    composing.compose_config(())


def _serve(requests, replies) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in requests:
        request = json.loads(line)
        _prepare()  # with the first command
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            reply = os.waitstatus_to_exitcode(status) if pid else None
        else:
            reply = os.fork()
            if reply == 0:
                requests.close(), replies.close()
                os._exit(_run(**request))
        print(json.dumps(reply), file=replies, flush=True)


def _run(
    module: str, arguments: list[str], cwd: str, env: dict[str, str], output: str, errors: str
) -> int:
    """Be `python -m MODULE ...`, or `python -c CODE`; returns its exit status."""
    for fd, path in ((0, os.devnull), (1, output), (2, errors)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # TMPDIR may be another one
    os.chdir(cwd)
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", 1)))
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [module, *arguments]
    status = 0
    try:
        if module == "-c":
            exec(arguments[0], {"__name__": "__main__"})
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status
