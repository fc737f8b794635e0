"""`python -m scripts.faults`: hurt a training run at random moments, again and again, and see whether anything is lost.

Each fault strikes a run of several ranks some seconds after it began or was resumed, until it was struck as often as
asked; then the run is let to its end, which must have the bits of an undisturbed one.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.run.log import read_records

RUN = ["data.num_nodes=1200", "data.num_edges=40000", "model.num_layers=3", "model.hidden_channels=32",
       "train.epochs=480", "train.eval_every=8"]
FAULTS = ("kill -9 of a rank", "kill -9 of the parent", "SIGTERM", "SIGUSR1")


def start(folder: Path, arguments: list[str]) -> subprocess.Popen:
    target = f"resume={folder}" if (folder / "config.yaml").exists() else f"hydra.run.dir={folder}"
    with open(folder.with_suffix(".log"), "a") as log:
        return subprocess.Popen([sys.executable, "-m", "pipeline.train", *arguments, target], stdout=log, stderr=log)


def ranks_of(parent: int) -> list[int]:
    """The processes of the ranks that a process has started."""
    return [rank for pid, command in children(parent) if "forkserver" in command for rank, _ in children(pid)]


def children(parent: int) -> list[tuple[int, str]]:
    """The processes that a process has started, with their command lines."""
    lines = subprocess.run(["ps", "-ww", "--ppid", str(parent), "-o", "pid=,args="], capture_output=True,
                           text=True).stdout
    return sorted((int(line.split()[0]), line) for line in lines.splitlines())


def rounds_in(folder: Path) -> int:
    """How many rounds a run has recorded."""
    return sum(record["kind"] == "round" for record in read_records(folder / "metrics.jsonl"))


def strike(fault: str, process: subprocess.Popen) -> bool:
    """Whether there was somebody to hurt."""
    ranks = ranks_of(process.pid)
    if not ranks or process.poll() is not None:
        return False
    if fault == "kill -9 of a rank":
        os.kill(random.choice(ranks), signal.SIGKILL)
    else:
        process.send_signal(signal.SIGKILL if "parent" in fault else signal.Signals[fault])
    process.wait()
    gone = time.monotonic() + 10
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        if time.monotonic() > gone:
            raise SystemExit(f"{fault}: a rank outlived the run by more than ten seconds")
        time.sleep(0.05)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="strikes of each fault")
    parser.add_argument("--num-ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as root:
        arguments = [*RUN, f"parallel.num_ranks={options.num_ranks}", f"cache_dir={root}/cache"]
        folder = Path(root, "undisturbed")
        if start(folder, arguments).wait():
            raise SystemExit(folder.with_suffix(".log").read_text())
        expected = json.loads((folder / "summary.json").read_text())
        print("| fault | times tried | lost |\n|---|---|---|", flush=True)
        for fault in FAULTS:
            folder, tried = Path(root, fault.replace(" ", "-")), 0
            while tried < options.times and not (folder / "summary.json").exists():
                process, before = start(folder, arguments), rounds_in(folder)
                # Anywhere from the first steps on; a run that never gets further would never end.
                while process.poll() is None and rounds_in(folder) <= before:
                    time.sleep(0.01)
                time.sleep(random.random())
                tried += strike(fault, process)
            if start(folder, arguments).wait():
                raise SystemExit(folder.with_suffix(".log").read_text())
            summary = json.loads((folder / "summary.json").read_text())
            lost = any(summary[key] != expected[key] for key in ("weights_sha256", "best_valid", "test", "data_epochs"))
            print(f"| {fault} | {tried} | {int(lost)} |", flush=True)


if __name__ == "__main__":
    main()
