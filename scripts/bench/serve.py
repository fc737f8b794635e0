"""Time of the answers of a service over HTTP, compared with a bare Starlette application."""

import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import parallel_epochs as pe
from parallel_epochs.scripts.bench.graphs import heavy_tailed
from parallel_epochs.scripts.bench.measure import (
    four_digits,
    say,
    write_row,
)

CLIENTS, SERVICE = (1, 8, 64), "parallel_epochs.pipeline.serve"
# A server that answers every request with a short text, on a free port that it prints as our service does.
BARE = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
async def answer(request: Request) -> Response:
    await request.json()
    return Response(b'{"rows":[{"id":"n1"}]}', media_type="application/json")
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # with TCP_NODELAY
listening.bind(("127.0.0.1", 0))
listening.listen(2048)
print(f"serving at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
app = Starlette(routes=[Route("/predict", answer, methods=["POST"])])
uvicorn.Server(uvicorn.Config(app, log_level="error", loop="asyncio", http="h11")).run([listening])
"""


def bench_serve(
    num_nodes: int = 63_436,
    num_edges: int = 290_000,
    num_targets: int = 50_000,
    classes: int = 50,
    requests: int = 2000,
    soak: float = 0.0,
) -> None:
    """Measure answers for known rows, new rows and rankings, at 1, 8 and 64 clients, beside a bare Starlette.

    Args:
        num_targets: number of nodes that are ranked.
        classes: number of classes of the nodes.
        requests: number of requests for a known row; a computed answer is asked for a tenth as often.
        soak: seconds for which 64 clients ask for known rows at the end.
    """
    edges = _table(num_nodes, num_edges)
    numbers = torch.randn(num_nodes, 8, generator=torch.manual_seed(0)).numpy()
    nodes = pd.DataFrame(
        {
            "id": [f"n{number}" for number in range(num_nodes)],
            "label": [f"c{number % classes}" for number in range(num_nodes)],
            **{f"x{column}": numbers[:, column] for column in range(8)},
        }
    )
    rows = [
        {"id": f"new{number}", **{f"x{column}": 0.5 for column in range(8)}}
        for number in range(1000)
    ]
    joins = [
        {"source": row["id"], "target": f"n{(7 * number + step) % num_nodes}"}
        for number, row in enumerate(rows)
        for step in range(5)
    ]
    few = max(1, requests // 10)
    with tempfile.TemporaryDirectory() as scratch:
        keys: dict[str, Any] = {
            "num_layers": 2,
            "hidden_channels": 64,
            "epochs": 1,
            "verbose": False,
            "partition": "whole",
            "cache_dir": f"{scratch}/cache",
        }
        pe.train(
            (nodes, edges),
            folder=f"{scratch}/nodes",
            **keys,
            **{
                "data.nodes.label": "label",
                "data.nodes.features": [f"x{column}" for column in range(8)],
                "task.base": "none",
                "evaluation": "exact",
            },
        )
        pe.train(
            (None, _table(num_targets, num_edges)), "task=link", folder=f"{scratch}/links", **keys
        )
        with (
            _started("-c", BARE) as (_, bare),
            _started("-m", SERVICE, f"run={scratch}/nodes", "port=0") as (pid, port),
        ):
            for clients in CLIENTS:
                for name, asked, number, at in (
                    ("bare", {"ids": ["n1"]}, requests, bare),
                    ("known", {"ids": ["n1"]}, requests, port),
                    ("new", {"rows": rows[:1], "edges": joins[:5]}, few, port),
                ):
                    _measure(name, at, "/predict", asked, clients, number, pid)
            _measure("new x1000", port, "/predict", {"rows": rows, "edges": joins}, 1, 5, pid)
            if soak:
                _measure("soak", port, "/predict", {"ids": ["n1"]}, 64, sys.maxsize, pid, soak)
        with _started("-m", SERVICE, f"run={scratch}/links", "port=0") as (pid, port):
            for clients in CLIENTS:
                name = f"top 10 of {num_targets:,}"
                _measure(name, port, "/top", {"ids": ["n1"]}, clients, few, pid)


def _table(num_nodes: int, num_edges: int) -> pd.DataFrame:
    """Draw edges between nodes of which each has one at least."""
    source, target = heavy_tailed(num_nodes, num_edges).as_tensor().numpy()
    chain = range(num_nodes)
    return (
        pd.DataFrame(
            {
                "source": [f"n{end}" for end in [*source, *chain]],
                "target": [
                    f"n{end}" for end in [*target, *((end + 1) % num_nodes for end in chain)]
                ],
            }
        )
        .query("source != target")
        .drop_duplicates()
    )


@contextlib.contextmanager
def _started(*arguments: str) -> Iterator[tuple[int, int]]:
    """Start a server in a process of its own; yields the process's number and the port."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stdout:
                if found := re.search(r"http://127.0.0.1:(\d+)", line):
                    yield process.pid, int(found[1])
                    return
            raise SystemExit(f"{' '.join(arguments[:2])} did not start: nothing is timed")
        finally:
            process.terminate()


def _measure(
    name: str,
    port: int,
    route: str,
    asked: dict,
    clients: int,
    number: int,
    pid: int,
    seconds: float = 600.0,
) -> None:
    """Ask for the same from several clients, and write a row; stop at the first answer that is an error."""
    body = json.dumps(asked).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    before, used, start = _mib(pid), _cpu_seconds(pid), time.perf_counter()
    taken = asyncio.run(
        _ask_all(port, head.encode() + b"\r\n\r\n" + body, clients, number, start + seconds)
    )
    wall, used = time.perf_counter() - start, _cpu_seconds(pid) - used
    quantiles = statistics.quantiles(taken, n=100) if len(taken) > 1 else taken * 99
    say(
        f"{name}, {clients} clients: p50 {quantiles[49] * 1e3:.2f} ms, p99 {quantiles[98] * 1e3:.2f} ms"
    )
    write_row(
        {
            "bench": "serve",
            "what": name,
            "clients": clients,
            "requests": len(taken),
            "p50_ms": four_digits(quantiles[49] * 1e3),
            "p99_ms": four_digits(quantiles[98] * 1e3),
            "per_second": four_digits(len(taken) / wall),
            "cpu_ms": four_digits(used * 1e3 / len(taken)),
            "resident_mib_before": before,
            "resident_mib": _mib(pid),
        }
    )


def _mib(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) // 2**10


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, which other work on the machine leaves as it is."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _ask_all(port: int, request: bytes, clients: int, number: int, end: float) -> list[float]:
    """Return the seconds of each of some requests, which clients send as soon as they have an answer."""
    left, taken = iter(range(number)), []

    async def go_on() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            if (start := time.perf_counter()) > end:
                break
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            answer = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise SystemExit(
                    f"the service answers {head[:15]!r} {answer[:200]!r}: nothing is timed"
                )
            taken.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(go_on() for _ in range(clients)))
    return taken
