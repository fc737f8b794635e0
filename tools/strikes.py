"""The faults that `python -m tools.faults` injects, and the commands that it injects them into."""

import contextlib
import json
import multiprocessing.forkserver
import multiprocessing.util
import os
import random
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.run.errors import EXIT_INTERRUPTED, EXIT_TRY_AGAIN
from parallel_epochs.pipeline.run.pulse import Board, Sign
from parallel_epochs.scripts.bench.processes import children

VIEWS = ("evaluation=views", "evaluation.num_views=24", "train.epochs=32")
WATCHED = ("parallel.timeout=10", "parallel.warn_after=0.5")
# A process that gets this signal lets a thread hold the interpreter's lock for ten minutes.
SITE = """import ctypes, signal, threading
def hold(*_):
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(600,), daemon=True).start()
signal.signal(signal.SIGRTMAX, hold)
"""


class LiveRun:
    """A command in a fork of this process, which has done the imports already.

    Args:
        folder: its run directory, or what its result goes to.
        arguments: its module, and its arguments.
        torchrun: number of ranks that torchrun starts. 0: no torchrun.
    """

    def __init__(self, folder: Path, arguments: list[str], torchrun: int = 0):
        self.folder, self.status, self.began = folder, None, time.monotonic()
        self.log = folder.with_name(f"{folder.name}.log")
        self._board: Board | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(arguments, torchrun, self.log)

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended the run; None while the run goes on."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self, seconds: float) -> int | None:
        """Wait at most this long for the end of the run, and return :meth:`poll`."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        return self.status

    def signs(self) -> list[Sign]:
        """Return what the processes of the run last reported to be doing."""
        if self._board is None:
            for pid in (self.pid, *children(self.pid)):
                with contextlib.suppress(FileNotFoundError):  # the run ends at this moment
                    if path := _mapped_board(pid):
                        self._board = Board(path.parent)
                        break
        return [] if self._board is None else [sign for sign in self._board.signs() if sign.pid]

    def ranks(self) -> list[int]:
        """Return the processes of the ranks."""
        return [sign.pid for sign in self.signs() if sign.rank >= 0]

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)


def _be_command(arguments: list[str], torchrun: int, log: Path) -> None:
    """Run `python -m` with these arguments in a new process group; does not return."""
    os.setsid()
    for fd, path in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(
            os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if fd == 1 else os.O_APPEND), 0o644),
            fd,
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(SITE, {})
    multiprocessing.util.spawnv_passfds = fork_rank_server
    if torchrun:
        arguments = [
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={torchrun}",
            "-m",
            *arguments,
        ]
    sys.argv, status = arguments, 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_spawn: Any = multiprocessing.util.spawnv_passfds


def fork_rank_server(path: bytes, arguments: list, fds: list[int]) -> int:
    """Start the process that forks the ranks as a fork of this one, which spares its imports."""
    if "forkserver" not in str(arguments[-1]):
        return _spawn(path, arguments, fds)
    pid = os.fork()
    if pid == 0:
        # The new process has what a program that starts has: no other file, and a server that knows of no server. The
        # numbers of the files stay in use, since objects of this process will close them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, nothing, *fds}:
            with contextlib.suppress(OSError):
                os.dup2(nothing, fd, inheritable=False)
        multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc]
        try:
            exec(arguments[-1], {"__name__": "__main__"})
        except SystemExit:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def ranks_of(parent: int) -> list[int]:
    """Return the processes of the ranks that a process has started."""
    path = _mapped_board(parent)
    return (
        []
        if path is None
        else [sign.pid for sign in Board(path.parent).signs() if sign.pid and sign.rank >= 0]
    )


def _mapped_board(pid: int) -> Path | None:
    """Return the path of the board that a process has mapped into its memory."""
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("/board") and "/parallel-epochs-" in line:
                return Path(line.split(maxsplit=5)[-1])
    except OSError:
        pass
    return None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_saves(run: Any, folder: Path, number: int, seconds: float = 900) -> bool:
    """Wait until a run has saved more checkpoints than this number; tell whether it is still going on.

    The first that is seen may be of before. A run that makes no progress would never end.
    """
    last, saves, end = folder / "checkpoints" / "last.pt", set(), time.monotonic() + seconds
    while len(saves) <= number and run.poll() is None and time.monotonic() < end:
        with contextlib.suppress(
            FileNotFoundError
        ):  # a damaged one is moved away before the other replaces it
            saves.add(last.stat().st_mtime_ns)
        time.sleep(0.001)
    return len(saves) > number and run.poll() is None


# The strikes. If a process has ended by itself meanwhile, the caller sees that from its exit status.


def kill_ranks(number: int) -> Callable[[LiveRun], None]:
    """Make a strike that kills this many random ranks."""

    def strike(run: LiveRun) -> None:
        for pid in random.sample(run.ranks(), number):
            os.kill(pid, signal.SIGKILL)

    return strike


def send(signum: int) -> Callable[[LiveRun], None]:
    return lambda run: run.send(signum)


def send_to_rank(signum: int) -> Callable[[LiveRun], None]:
    return lambda run: os.kill(random.choice(run.ranks()), signum)


def press_ctrl_c(run: LiveRun) -> None:
    os.killpg(run.pid, signal.SIGINT)


def press_ctrl_c_twice(run: LiveRun) -> None:
    press_ctrl_c(run)
    time.sleep(random.random() / 50)
    press_ctrl_c(run)


def stop_a_rank_and_terminate(run: LiveRun) -> None:
    os.kill(random.choice(run.ranks()), signal.SIGSTOP)
    run.send(signal.SIGTERM)


def kill_the_first_rank(run: LiveRun) -> None:
    os.kill(run.ranks()[0], signal.SIGKILL)


def fill_the_disk(run: LiveRun) -> None:
    """Limit the files of the first rank to a few bytes, as if the disk were full."""
    pid = run.ranks()[0]
    resource.prlimit(
        pid, resource.RLIMIT_FSIZE, (100, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1])
    )


def cut_the_checkpoint(folder: Path) -> None:
    """Truncate the last checkpoint at a random place, as a power cut may."""
    path = folder / "checkpoints" / "last.pt"
    with open(path, "r+b") as file:
        file.truncate(random.randrange(path.stat().st_size))


def run_directory(folder: Path) -> str:
    """Return the argument that begins a run in a folder, or continues it."""
    return f"resume={folder}" if (folder / "config.yaml").exists() else f"hydra.run.dir={folder}"


def read_summary(folder: Path) -> dict:
    """Return what must be the same in the summary of a run, whatever has struck it."""
    summary = json.loads((folder / "summary.json").read_text())
    return {
        key: summary[key]
        for key in ("weights_sha256", "best_epoch", "best_valid", "test", "data_epochs")
    }


def read_study(folder: Path) -> list:
    """Return the overrides and the results of the trials of a study."""
    found = [
        (folder / f"trial_{number:03d}" / "summary.json")
        for number in range(len(list(folder.glob("trial_*"))))
    ]
    return [read_summary(path.parent) for path in found]


def read_sweep(folder: Path) -> list:
    """Return the results of the members of a sweep."""
    return [read_summary(path.parent) for path in sorted(folder.glob("*/summary.json"))]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files: each must be whole, and no other may be beside them. A manifest holds times."""
    return {
        str(path.relative_to(folder)): b"" if path.name == "manifest.json" else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def read_page(folder: Path) -> list[bool]:
    """Tell that the page of a report is whole."""
    return [path.read_text().rstrip().endswith("</html>") for path in folder.iterdir()]


@dataclass(frozen=True)
class Job:
    """A command that faults strike.

    Attributes:
        module: its entry point.
        arguments: its arguments; {root} stands for the folder of the campaign.
        target: given the folder of its result, the argument that names it.
        result: reads what must be the same as of a command that nothing struck.
        seconds: where it saves no checkpoints: the strike comes in so many seconds.
    """

    name: str
    arguments: tuple[str, ...]
    module: str = "pipeline.train"
    target: Callable[[Path], str] = run_directory
    result: Callable[[Path], Any] = read_summary
    seconds: float = 0.0


def write_data(folder: Path) -> None:
    """Write the tables, edges and vectors that jobs read."""
    rng = random.Random(0)
    for name, kinds in (("nodes", "xy"), ("others", "xyz")):
        (folder / f"{name}.csv").write_text(
            "id,a,place,words,day,kind\n"
            + "".join(
                f"n{number},{rng.random():.4f},{rng.choice(kinds)},w{rng.randrange(50)} v{number % 2},{number % 90},"
                f"{'ab'[number % 2]}\n"
                for number in range(2000)
            )
        )
    (folder / "ids.csv").write_text(
        "id\n" + "".join(f"n{number}\n" for number in range(0, 2200, 3))
    )
    (folder / "edges.csv").write_text(
        "from,to\n"
        + "".join(f"n{rng.randrange(2000)},n{rng.randrange(2000)}\n" for _ in range(20_000))
    )
    (folder / "edges.tsv").write_text(
        "".join(f"{rng.randrange(300)}\t{rng.randrange(300)}\n" for _ in range(3000))
    )
    (folder / "bipartite.tsv").write_text(
        "".join(f"{rng.randrange(150)}\t{rng.randrange(150, 300)}\n" for _ in range(3000))
    )
    (folder / "molecules.csv").write_text(
        "smiles,y\n"
        + "".join(
            f"{'C' * (1 + number % 9)}{'NO'[number % 2]}{'C' * (number % 5)},{number % 2}\n"
            for number in range(200)
        )
    )


SMALL_MODEL = ("model.num_layers=2", "model.hidden_channels=8")
GENERATED = (
    "data.num_nodes=240",
    "data.num_edges=4800",
    "data.num_species=4",
    "data.num_groups=8",
    "data.num_tasks=3",
    "task.base=none",
    "train.patience=0",
    *SMALL_MODEL,
)
GNN = Job("gnn", (*GENERATED, "model.norm=batch", "train.epochs=80", "train.eval_every=4"))
SAMPLING = Job(
    "sampling",
    (
        *GENERATED,
        "loader=neighbor",
        "loader.num_neighbors=[4,3]",
        "loader.batch_size=40",
        "train.epochs=40",
        "train.eval_every=4",
    ),
)
READ = (
    "data=tables",
    "data.folder={root}",
    "data.nodes.path=nodes.csv",
    "data.nodes.features=[a]",
    "data.nodes.categories=[place]",
    "data.nodes.text=[words]",
    "data.nodes.text_features=scores",
    "data.score_folds=groups",
    "data.nodes.label=kind",
    "data.split=time",
    "data.time_column=day",
    "data.train_until=50",
    "data.valid_until=70",
    "data.edges.path=edges.csv",
    "data.edges.source=from",
    "data.edges.target=to",
    "evaluation.smooth=two_step_propagation",
    *SMALL_MODEL,
    "train.patience=0",
)
TABLES = Job("tables", (*READ, "train.epochs=3"), seconds=3)
TRAINED = Job("a run on tables", (*READ, "train.epochs=41", "train.eval_every=2"))
STORE = Job("store", (*TABLES.arguments, "data.on_disk=true"), seconds=3)
PREPARE = Job(
    "prepare",
    STORE.arguments,
    "pipeline.prepare",
    lambda folder: f"cache_dir={folder}",
    read_files,
    seconds=6,
)
LINKS = Job(
    "links",
    (
        "task=link",
        "data=edges",
        "data.path={root}/bipartite.tsv",
        "data.link_negatives=sides",
        "partition=random",
        "partition.num_parts=2",
        *SMALL_MODEL,
        "task.pairs_per_step=400",
        "train.patience=0",
        "train.epochs=21",
        "train.eval_every=2",
    ),
)
GRAPHS = Job(
    "graphs",
    (
        "task=graph",
        "task.base=none",
        "data=smiles",
        "data.path={root}/molecules.csv",
        "loader=graph",
        "loader.batch_size=20",
        *SMALL_MODEL,
        "train.patience=0",
        "train.epochs=41",
    ),
)
VECTORS = Job(
    "vectors",
    (
        "trainer=node_embedding",
        "data=edges",
        "data.path={root}/edges.tsv",
        "trainer.dim=16",
        "trainer.num_parts=4",
        "trainer.episode_size=3000",
        "train.epochs=200",
        "train.eval_every=20",
    ),
)
KNOWLEDGE = Job(
    "knowledge",
    (
        "trainer=knowledge",
        "data=math",
        "data.num_entities=60",
        "data.num_operands=6",
        "data.num_train=800",
        "data.num_valid=40",
        "data.num_test=40",
        "trainer.dim=8",
        "trainer.batch_size=200",
        "train.epochs=80",
        "train.eval_every=8",
    ),
)
LAYOUT = Job(
    "layout",
    (
        "trainer=layout",
        "data=edges",
        "data.path={root}/edges.tsv",
        "trainer.num_parts=4",
        "train.epochs=300",
        "train.eval_every=10",
    ),
)
TUNE = Job(
    "tune",
    (*GENERATED, "train.epochs=6", "model.dropout=0.1,0.3", "trials=3"),
    "pipeline.tune",
    lambda folder: f"study={folder}",
    read_study,
    seconds=12,
)
PREDICT = Job(
    "predict",
    ("run={root}/undisturbed-gnn-1-0",),
    "pipeline.predict",
    lambda folder: f"output={folder}/table.csv",
    read_files,
    seconds=1,
)
OTHERS = Job(
    "predictions of other tables",
    (
        "run={root}/undisturbed-tables-1-0",
        "data.folder={root}",
        "data.nodes.path=others.csv",
        "data.unknown=empty",
        "output_nodes={root}/ids.csv",
        "skip_unknown=true",
        "columns=class",
    ),
    "pipeline.predict",
    PREDICT.target,
    read_files,
    seconds=2,
)
EXPORT = Job(
    "export",
    ("run={root}/undisturbed-tables-1-0",),
    "pipeline.predict",
    lambda folder: f"export={folder}/model.pe",
    read_files,
    seconds=1,
)
SWEEP = Job(
    "sweep",
    ("-m", "seed=0,1", *GENERATED, "train.epochs=20"),
    target=lambda folder: f"hydra.sweep.dir={folder}",
    result=read_sweep,
    seconds=4,
)
REPORT = Job(
    "report",
    ("{root}/undisturbed-gnn-1-0",),
    "scripts.report",
    lambda folder: f"--output={folder}/page.html",
    read_page,
    seconds=2,
)


@dataclass(frozen=True)
class Fault:
    """A fault that is injected into a command.

    Attributes:
        statuses: exit statuses that the run may end with.
        job: the command.
        overrides: overrides that change the result of the run.
        limits: overrides that do not change it.
        torchrun: whether torchrun starts the ranks.
        during: phase that a rank must be in. Empty: any phase.
        quiet: whether the user must not see a traceback.
        damage: function that damages the run directory afterwards.
        unprepared: whether the fault strikes before the first round, each time with an empty cache.
        unread: whether each run, and not each of its starts, begins with an empty cache.
    """

    name: str
    strike: Callable[[LiveRun], None]
    statuses: tuple[int, ...]
    num_ranks: int = 2
    overrides: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    torchrun: bool = False
    during: str = ""
    quiet: bool = False
    damage: Callable[[Path], None] | None = None
    unprepared: bool = False
    unread: bool = False
    job: Job = GNN


KILLED, STOPPED, FAILED = (-signal.SIGKILL,), (EXIT_TRY_AGAIN,), (1,)
FAULTS = (
    Fault("kill -9 of a rank that torchrun started", kill_ranks(1), FAILED, torchrun=True),
    Fault("SIGSTOP of a rank", send_to_rank(signal.SIGSTOP), STOPPED, limits=WATCHED),
    Fault(
        "a rank's thread holds the interpreter lock",
        send_to_rank(signal.SIGRTMAX),
        STOPPED,
        limits=WATCHED,
    ),
    Fault(
        "SIGTERM, one rank is stopped",
        stop_a_rank_and_terminate,
        STOPPED,
        limits=("parallel.stop_timeout=1.5",),
        quiet=True,
    ),
    Fault("kill -9 of two ranks of three", kill_ranks(2), FAILED, num_ranks=3),
    Fault("kill -9 of a rank", kill_ranks(1), FAILED),
    Fault("kill -9 of all ranks", kill_ranks(2), FAILED),
    Fault("kill -9 of the parent", send(signal.SIGKILL), KILLED),
    Fault("SIGTERM", send(signal.SIGTERM), STOPPED, quiet=True),
    Fault("SIGUSR1", send(signal.SIGUSR1), STOPPED, quiet=True),
    Fault("Ctrl-C", press_ctrl_c, (EXIT_INTERRUPTED,), quiet=True),
    Fault("Ctrl-C twice", press_ctrl_c_twice, (EXIT_INTERRUPTED, -signal.SIGINT), quiet=True),
    Fault(
        "SIGTERM in an evaluation",
        send(signal.SIGTERM),
        STOPPED,
        overrides=VIEWS,
        during="evaluating",
        quiet=True,
    ),
    Fault(
        "kill -9 of a rank in an evaluation",
        kill_ranks(1),
        FAILED,
        overrides=VIEWS,
        during="evaluating",
    ),
    Fault("kill -9 in a save", kill_the_first_rank, FAILED, during="saving"),
    Fault(
        "kill -9 of the parent, last.pt cut short",
        send(signal.SIGKILL),
        KILLED,
        damage=cut_the_checkpoint,
    ),
    Fault("disk full", fill_the_disk, FAILED),
    Fault(
        "one rank: kill -9 while the cache is prepared",
        send(signal.SIGKILL),
        KILLED,
        num_ranks=1,
        unprepared=True,
    ),
    Fault("one rank: kill -9", send(signal.SIGKILL), KILLED, num_ranks=1),
    Fault(
        "one rank: Ctrl-C in an evaluation",
        press_ctrl_c,
        (EXIT_INTERRUPTED,),
        num_ranks=1,
        overrides=VIEWS,
        during="evaluating",
        quiet=True,
    ),
    Fault("kill -9 of a rank with neighbour sampling", kill_ranks(1), FAILED, job=SAMPLING),
    *(
        Fault(f"kill -9 of {job.name}", send(signal.SIGKILL), KILLED, num_ranks=1, job=job)
        for job in (
            VECTORS,
            KNOWLEDGE,
            LAYOUT,
            TUNE,
            PREDICT,
            OTHERS,
            EXPORT,
            PREPARE,
            SWEEP,
            REPORT,
        )
    ),
    *(
        Fault(f"kill -9 of a rank of {job.name}", kill_ranks(1), FAILED, job=job)
        for job in (LINKS, GRAPHS, TRAINED, VECTORS, KNOWLEDGE, LAYOUT)
    ),
    *(
        Fault(
            f"kill -9 while {job.name} is written",
            send(signal.SIGKILL),
            KILLED,
            num_ranks=1,
            job=job,
            unread=True,
        )
        for job in (TABLES, STORE)
    ),
    *(
        Fault(
            f"SIGTERM of {job.name}",
            send(signal.SIGTERM),
            STOPPED,
            num_ranks=1,
            job=job,
            quiet=True,
        )
        for job in (VECTORS, KNOWLEDGE, LAYOUT)
    ),
)
