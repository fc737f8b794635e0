"""A check that a long run does not leak: memory, open files and threads for every ten epochs."""

import statistics
import sys
import tempfile
from pathlib import Path

from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts.bench.measure import say, write_row
from parallel_epochs.scripts.bench.processes import Held, watch

WINDOW = 10  # epochs of a row


def bench_steady(*overrides: str, epochs: int = 200, num_ranks: int = 1) -> None:
    """Measure memory, open files and threads of a long run for every ten epochs, relative to the second ten.

    The ratio compares the memory that belongs to no file, because a process counts less of a library when more other
    processes have loaded it.

    Args:
        overrides: further overrides of python -m pipeline.train.
    """
    windows: dict[int, list[Held]] = {}
    alone = (
        [] if any(text.startswith("trainer=") for text in overrides) else ["task.base=none"]
    )  # a single network
    with tempfile.TemporaryDirectory() as root:
        run = Path(root, "run")
        for held in watch(
            [
                sys.executable,
                "-m",
                "pipeline.train",
                f"parallel.num_ranks={num_ranks}",
                "parallel.threads_per_rank=1",
                f"train.epochs={epochs}",
                "train.patience=0",
                *alone,
                *overrides,
                f"hydra.run.dir={run}",
            ],
            every=0.02,
        ):
            trained = max(
                (
                    record["epochs"]
                    for record in read_records(run / "metrics.jsonl")
                    if record["kind"] == "round"
                ),
                default=0,
            )
            if WINDOW <= trained < epochs:
                windows.setdefault(trained // WINDOW, []).append(held)
    first = None
    for window, samples in windows.items():
        # Medians, as evaluations and checkpoints take more for a moment.
        pss, anonymous, files, threads = map(
            statistics.median_low,
            zip(
                *(
                    (held.pss_kib, held.anonymous_kib, held.num_files, held.num_threads)
                    for held in samples
                )
            ),
        )
        first = first or anonymous
        say(f"epochs {WINDOW * window} to {WINDOW * (window + 1)}: {len(samples)} samples")
        write_row(
            {
                "bench": "steady",
                "num_ranks": num_ranks,
                "epoch": WINDOW * window,
                "pss_mib": round(pss / 2**10, 1),
                "anonymous_mib": round(anonymous / 2**10, 1),
                "ratio": round(anonymous / first, 4),
                "highest_mib": round(max(held.pss_kib for held in samples) / 2**10, 1),
                "files": files,
                "process_threads": threads,
            }
        )
