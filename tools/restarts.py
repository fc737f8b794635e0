"""`python -m tools.restarts ENGINE`: kill parts of runs that their engine starts again, and compare the weights.

Each run is struck twice, at random moments after its third checkpoint since the last start. It must end with the bits
of a run that nothing struck. `torchrun`: two agents on this machine with a rank each; a rank, an agent, or an agent
with its rank is killed, and killed agents are started again. `ray`: two raylets on this machine with a worker each; a
worker or a raylet is killed, and another raylet joins the cluster.
"""

import argparse
import contextlib
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.command.arguments import Parser, positive
from parallel_epochs.scripts.bench.processes import children
from tools.strikes import GENERATED, is_alive, read_summary, wait_for_saves

if TYPE_CHECKING:
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

RUN = (
    *GENERATED,
    "model.norm=batch",
    "train.epochs=60",
    "train.eval_every=4",
    "parallel.threads_per_rank=1",
)
RAYLET = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
ROOT = Path(__file__).resolve().parents[1]
SECONDS_TO_END = 900


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(*arguments: str, log: Path, **environment: str) -> subprocess.Popen:
    """Start `python -m` in a session of its own. Its output is added to a file."""
    with open(log, "a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )


class Torchrun:
    """Two agents of torchrun on this machine. This process holds the store of their rendezvous.

    Args:
        folder: the run directory.
        nodes: numbers of machines, as torchrun takes them.
    """

    def __init__(self, folder: Path, *overrides: str, nodes: str = "2", seconds_to_join: int = 30):
        import torch.distributed as dist

        self.log, self._port = folder.with_suffix(".log"), free_port()
        self._store = dist.TCPStore(
            "127.0.0.1", self._port, is_master=True, wait_for_workers=False, multi_tenant=True
        )
        self._arguments = (
            f"--nnodes={nodes}",
            "--rdzv-conf",
            f"last_call_timeout={seconds_to_join},join_timeout=900",
            "-m",
            "pipeline.train",
            *overrides,
            f"hydra.run.dir={folder}",
            "resume=auto",
        )
        self.agents = [self.start_agent(), self.start_agent()]

    def start_agent(self) -> subprocess.Popen:
        return start(
            "torch.distributed.run",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            "--rdzv-id=restarts",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            "--local-addr=127.0.0.1",
            "--max-restarts=3",
            *self._arguments,
            log=self.log,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )

    def poll(self) -> int | None:
        statuses = [agent.poll() for agent in self.agents]
        return None if None in statuses else max(map(abs, statuses))

    def strikes(self) -> dict[str, Callable[[], None]]:
        """Return what can be killed, by its name."""
        return {
            "a rank": self.kill_rank,
            "an agent": self.kill_agent,
            "an agent and its rank": lambda: self.kill_agent(with_rank=True),
        }

    def kill_rank(self) -> None:
        os.kill(children(random.choice(self.agents).pid)[0], signal.SIGKILL)

    def kill_agent(self, *, with_rank: bool = False, returns: bool = True) -> None:
        """Kill an agent and, if it `returns`, start another one."""
        number = random.randrange(len(self.agents))
        agent, ranks = self.agents[number], children(self.agents[number].pid)
        for pid in [agent.pid, *(ranks if with_rank else [])]:
            os.kill(pid, signal.SIGKILL)
        agent.wait()
        while any(map(is_alive, ranks)):  # without their agent they end by themselves
            time.sleep(0.01)
        del self.agents[number]
        if returns:
            self.agents.append(self.start_agent())

    def close(self) -> None:
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGTERM)
            agent.wait(60)


@functools.cache
def ray_cluster() -> "Cluster":
    """Begin a Ray cluster: a head without processors, and two raylets with one each."""
    os.environ.setdefault(
        "RAY_raylet_start_wait_time_s", "600"
    )  # on a busy machine; Ray reads it when it is imported
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **RAYLET})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **RAYLET)
    return cluster


def workers_of(raylet: "Node") -> list[int]:
    """Return the processes of Ray Train's workers that a raylet has started."""
    pids = [
        pid for process in raylet.all_processes["raylet"] for pid in children(process.process.pid)
    ]
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
    ]


class Ray:
    """A run on a Ray cluster of this machine: a head without processors, and two raylets that take a worker each.

    Args:
        folder: the run directory.
    """

    def __init__(self, folder: Path, *overrides: str):
        self.log, self._cluster = folder.with_suffix(".log"), ray_cluster()
        self._process = start(
            "scripts.ray_train",
            *overrides,
            f"hydra.run.dir={folder}",
            "ray.num_workers=2",
            f"ray.address={self._cluster.address}",
            log=self.log,
            RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.5",
            RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="600",
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def strikes(self) -> dict[str, Callable[[], None]]:
        """Return what can be killed, by its name."""
        return {"a worker": self.kill_worker, "a raylet": self.kill_raylet}

    def kill_worker(self) -> None:
        os.kill(random.choice(sum(map(workers_of, self._cluster.worker_nodes), [])), signal.SIGKILL)

    def kill_raylet(self) -> None:
        """Kill a raylet that has a worker, and let another one join the cluster."""
        victim = random.choice(
            [raylet for raylet in self._cluster.worker_nodes if workers_of(raylet)]
        )
        self._cluster.remove_node(victim, allow_graceful=False)
        self._cluster.add_node(num_cpus=1, **RAYLET)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


ENGINES = {"torchrun": Torchrun, "ray": Ray}


def strike_run(name: str, folder: Path, strikes: int, expected: str) -> tuple[list[str], bool]:
    """Strike a run so often, and wait for its end.

    Returns:
        What was killed, and whether the weights are the expected ones.
    """
    engine, killed = ENGINES[name](folder, *RUN, f"cache_dir={folder.parent / 'cache'}"), []
    try:
        for _ in range(strikes):
            if wait_for_saves(engine, folder, 3):
                time.sleep(0.2 * random.random())
                kind, strike = random.choice(list(engine.strikes().items()))
                strike()
                killed.append(kind)
        end = time.monotonic() + SECONDS_TO_END
        while engine.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        good = engine.poll() == 0 and read_summary(folder)["weights_sha256"] == expected
        if not good:
            print(engine.log.read_text()[-5000:], file=sys.stderr)
        return killed, good
    finally:
        engine.close()


def main() -> None:
    parser = Parser(
        prog="python -m tools.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument(
        "--times", type=positive, default=20, help="number of kills (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random moments (default: %(default)s)"
    )
    options = parser.parse_args()
    random.seed(options.seed)
    killed, runs, lost = list[str](), 0, 0
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "undisturbed")
        if start(
            "pipeline.train",
            *RUN,
            f"cache_dir={root}/cache",
            "parallel.num_ranks=2",
            f"hydra.run.dir={folder}",
            log=Path(root, "log"),
        ).wait():
            sys.exit(Path(root, "log").read_text())
        while len(killed) < options.times:
            found, good = strike_run(
                options.engine,
                Path(root, f"run{runs}"),
                min(2, options.times - len(killed)),
                read_summary(folder)["weights_sha256"],
            )
            if not found and not good:
                sys.exit(f"error: run {runs + 1} ended before it was struck; its output is above")
            killed, runs, lost = killed + found, runs + 1, lost + (not good)
            print(
                f"run {runs}: killed {', '.join(found) or 'nothing'}; {'same bits' if good else 'LOST'}",
                file=sys.stderr,
                flush=True,
            )
    print("| killed | times tried | lost |\n|---|---|---|")
    for kind in sorted(set(killed)):
        print(f"| {options.engine}: {kind} | {killed.count(kind)} | |")
    print(f"| {options.engine}: all, in {runs} runs | {len(killed)} | {lost} |")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
