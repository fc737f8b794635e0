"""A Slurm of two nodes on this machine: its own daemons, ports, key and files, all gone afterwards."""

import contextlib
import getpass
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
# A requeued job waits until its credential has expired; five seconds are the least.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
# No cgroups, which a container may lack.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
# Seconds from SIGTERM to SIGKILL.
KillWait=20
MinJobAge=3600
# Names of nodes in the same process table: %n above, and -N below.
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@contextlib.contextmanager
def slurm_cluster() -> Iterator[dict[str, str]]:
    """Run the daemons; the value is the environment in which sbatch, srun, squeue ... speak to them."""
    # Of a Slurm job that these tests run in, nothing may be left.
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "SBATCH", "SRUN"))
    }
    # Not in the folder of the test run, which pytest closes to other users; munged refuses that.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name,
        contextlib.ExitStack() as daemons,
    ):
        folder = Path(name)
        folder.chmod(0o711)  # munged's clients have to reach its socket
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        conf = folder / "slurm.conf"
        conf.write_text(
            CONF.format(
                folder=folder,
                host=socket.gethostname(),
                user=getpass.getuser(),
                ports=free_ports(3),
            )
        )
        environ["SLURM_CONF"] = str(conf)

        def start(*command: str) -> None:
            with open(folder / f"{command[0]}.log", "a") as log:
                # The system ends the daemon if this process dies.
                process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    env=environ,
                    stdout=log,
                    stderr=log,
                )
            daemons.callback(process.wait)
            daemons.callback(process.terminate)

        start(
            "munged",
            "--foreground",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--seed-file={folder}/munge.seed",
        )
        wait_for((folder / "munge.socket").exists, "munged", folder)
        start("slurmctld", "-D")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-N", node)
        try:
            wait_for(
                lambda: (
                    slurm(
                        environ,
                        "sinfo",
                        "--noheader",
                        "--Node",
                        "--states=idle",
                        "--format=%N",
                        "--partition=main",
                    ).split()
                    == ["n1", "n2"]
                ),
                "idle nodes",
                folder,
            )
            yield environ
        finally:
            slurm(environ, "scancel", "--user", getpass.getuser())
            wait_for(
                lambda: not slurm(environ, "squeue", "--noheader"), "the end of all jobs", folder
            )


def slurm(environ: dict[str, str], *command: str) -> str:
    """What a command prints; nothing if it fails."""
    return subprocess.run(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=30,
    ).stdout


def wait_for(condition: Callable[[], bool], what: str, logs: Path, seconds: float = 600) -> None:
    """Look ten times a second whether a condition holds.

    Raises:
        TimeoutError: with the logs in a folder.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            texts = [
                f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(logs.glob("*.log"))
            ]
            raise TimeoutError("\n".join([f"waited {seconds:.0f} s in vain for {what}", *texts]))
        time.sleep(0.1)
