"""Measures the pipeline on a GPU that is at hand for minutes: a list of rows, each a process with a limit of time.

Rows reuse the other benchmarks, the tests for a GPU, and training runs. DIR/rows.jsonl has the numbers of each row as
soon as it ends, or the reason why it failed, and DIR/logs what it said. Without a GPU,
``python -m scripts.bench gpu --out DIR --device cpu --small`` runs every row in miniature, with some kernels under
Triton's interpreter.

A machine with a GPU may have torch and PyG, but neither a network nor Hydra. ``make gpu-packages`` puts what is missing
there into build/gpu-packages, for Python 3.12. There, run this with PYTHONPATH=build/gpu-packages.
"""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import four_digits, say

GROUPS = ("step", "knowledge")
ROOT = Path(__file__).resolve().parents[2]
# Seconds of a row whose time does not count.
FIRST = 90


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        group: a name in GROUPS.
        seconds: limit of its time.
        command: what follows ``python -m``. {device}, {out} and {cache} stand for the device and for folders.
        small: arguments that a run in miniature adds, of which the last of several values counts.
        is_first: whether it runs at the same time as others before the rest, and its time does not count.
    """

    name: str
    group: str
    seconds: int
    command: str
    small: str
    is_first: bool = False


BENCH = "--device {device} --repeat 5"
TRAIN = "pipeline.train cache_dir={cache} device={device} hydra.run.dir={out}"
TEST = "pytest -v -p no:cacheprovider -W ignore -m"
FLAGSHIP = (
    "+experiment=ogbn_proteins data=synthetic_proteins "
    f"data.num_nodes={PROTEINS[0]} data.num_edges={PROTEINS[1]}"
)
# An evaluation is not part of an epoch: there is one, at the end.
EPOCHS = f"{TRAIN} {FLAGSHIP} train.epochs=4 train.eval_every=4"
# Options of a row in miniature.
FEW = "--repeat 1 --num-nodes 300 --num-edges 3000"
TINY = "data.num_nodes=1000 data.num_edges=8000"
TINY_FLAGSHIP = f"{TINY} model.num_layers=3"
# Rows may use what earlier ones have left over of their limits, and all of them end within --seconds.
ROWS: tuple[Row, ...] = (
    *(
        Row(
            f"kernels of {name}",
            "step",
            FIRST,
            f"{TEST} 'not exhaustive' tests/helpers/{file}.py",
            f"-k {chosen} --maxfail=1",
            is_first=True,
        )
        for name, file, chosen in (
            ("sums", "triton_cases", "nothing_to_aggregate"),
            ("attention", "triton_attention_cases", "graphs_without_edges"),
            ("messages", "triton_messages_cases", "ties_divide"),
        )
    ),
    Row(
        "training, stopping and resuming",
        "step",
        FIRST,
        f"{TEST} gpu -n 6 tests/test_gpu.py -k 'not cases'",
        "-n 0 --collect-only",
        is_first=True,
    ),
    Row(
        "the graph of the flagship",
        "step",
        150,
        f"pipeline.prepare cache_dir={{cache}} {FLAGSHIP}",
        TINY,
        is_first=True,
    ),
    Row(
        "data of knowledge",
        "knowledge",
        FIRST,
        "scripts.bench.gpu_data {cache}",
        "0.02",
        is_first=True,
    ),
    Row(
        "relations of arithmetic",
        "knowledge",
        FIRST,
        f"{TRAIN} trainer=knowledge data=math train.epochs=2",
        "train.epochs=1",
        is_first=True,
    ),
    Row("aggregation", "step", 60, f"scripts.bench aggregate {BENCH}", f"{FEW} --eager"),
    Row(
        "layers",
        "step",
        60,
        f"scripts.bench convs {BENCH} --cases GCNConv SAGEConv 'GATv2Conv, 4 heads, features'",
        f"{FEW} --cases SAGEConv",
    ),
    Row(
        "step",
        "step",
        60,
        f"scripts.bench step {BENCH} --pyg-layers 14 --layers 112",
        f"{FEW} --pyg-layers 3 --layers 4",
    ),
    Row("epoch of the flagship", "step", 40, EPOCHS, TINY_FLAGSHIP),
    Row(
        "ComplEx of 1000 numbers on a graph like FB15k-237",
        "knowledge",
        66,
        f"{TRAIN} +experiment=complex_fb15k237 trainer.dim=2000 data.folder={{cache}}/triples train.epochs=60",
        "train.epochs=5 trainer.dim=8",
    ),
    Row(
        "epoch of the flagship in bf16",
        "knowledge",
        35,
        f"{EPOCHS} train.precision=bf16",
        TINY_FLAGSHIP,
    ),
)


def bench_gpu(
    out: str = "build/gpu",
    group: tuple[str, ...] = (),
    rows: tuple[str, ...] = (),
    seconds: int = 560,
    device: str = "cuda",
    small: bool = False,
) -> None:
    """Measure every row of the table on a GPU, each in a process of its own with a time limit.

    Args:
        out: folder of the results, which is new or empty (default: build/gpu).
        group: groups of rows: step or knowledge (default: both).
        rows: rows whose name contains one of these texts (default: all).
        seconds: time for all rows. What is left over is named.
        small: run every row in miniature.

    Raises:
        ValueError: there is no such group or device, the folder has results, or a row failed.
    """
    device, folder, end = (
        choose_device(device).type,
        Path(out).absolute(),
        time.monotonic() + seconds,
    )
    wanted = {*(group or GROUPS)}
    if unknown := sorted(wanted - {*GROUPS}):
        raise ValueError(f"--group {unknown[0]} is unknown; choose one of {', '.join(GROUPS)}")
    chosen = [
        row
        for row in ROWS
        if row.group in wanted and (not rows or any(text in row.name for text in rows))
    ]
    if not chosen:
        raise ValueError(
            f"--rows {' '.join(rows)}: no row has such a name; there are "
            f"{'; '.join(row.name for row in ROWS)}"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--out={folder} is not empty; choose a new folder")
    (folder / "logs").mkdir(parents=True)

    def measure(row: Row) -> bool:
        """Run a row and add its numbers to the file; returns whether it succeeded."""
        found = run(row, folder, device, small, end)
        with (folder / "rows.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"row": row.name, "group": row.group, **each}) + "\n" for each in found
            )
        say(f"{row.name}: {found[0].get('failed', 'done')}")
        return "failed" not in found[0]

    with ThreadPoolExecutor(10) as pool:
        first = [row for row in chosen if row.is_first]
        succeeded = dict(zip(first, pool.map(measure, first), strict=True))
    succeeded |= {row: measure(row) for row in chosen if not row.is_first}
    if failed := [row.name for row, success in succeeded.items() if not success]:
        raise ValueError(
            f"{len(failed)} of {len(chosen)} rows failed: {', '.join(failed)}; see {out}/rows.jsonl"
        )


def run(row: Row, folder: Path, device: str, small: bool, end: float) -> list[dict]:
    """Run the process of a row; returns its numbers, and first of them the reason if it failed.

    Args:
        end: the clock's reading at which no row may run any more.
    """
    name, start = row.name.replace(" ", "_"), time.monotonic()
    # Rows in miniature only show that they run, perhaps on a busy machine.
    limit = min(row.seconds * (10 if small else 1), end - start)
    if limit < 1:
        return [{"failed": "no time was left"}]
    place, log = folder / "runs" / name, folder / "logs" / name
    command = f"{row.command} {row.small}" if small else row.command
    places = {"device": device, "out": place, "cache": folder / "cache"}
    arguments = [part.format_map(places) for part in shlex.split(command)]
    say(f"{row.name}: at most {limit:.0f} s")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_environment(device, is_test="pytest" in command),
            start_new_session=True,
        )
        try:
            reason = f"exit status {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {limit:.0f} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    seconds = {"seconds": round(time.monotonic() - start, 1)}
    found = [*read_csv(lines), *read_run(place), *read_tests(lines)] or [{}]
    if process.returncode:
        seconds["failed"] = f"{reason}: {lines[-1][-300:] if lines else 'it said nothing'}"
    return [seconds | each for each in found]


def _environment(device: str, *, is_test: bool) -> dict[str, str]:
    """Return the environment of a row: tests of kernels see the GPU, or Triton interprets them."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    more = {"TESTS_SEE_GPUS": "1"} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    if is_test:  # such a machine lacks packages of modules whose shapes would be checked
        more["CHECK_SHAPES"] = "0"
    if is_test and device == "cpu":
        more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def read_csv(lines: list[str]) -> list[dict]:
    """Read the rows that another benchmark has printed, each below a header of its own if its columns differ."""
    found, header = list[dict](), list[str]()
    for line in csv.reader(lines):
        if line and line[0] == "bench":
            header = line
        elif header and len(line) == len(header):
            found.append(dict(zip(header, line)))
    return found


def read_run(folder: Path) -> list[dict]:
    """Read the numbers of a training run, also of one that was cut off: the fastest round counts, as the first one
    compiles kernels.
    """
    path = folder / "metrics.jsonl"
    lines = (
        path.read_text().split("\n")[:-1] if path.exists() else []
    )  # the last one may be cut off
    rounds = [record for record in map(json.loads, lines) if record["kind"] == "round"]
    if not rounds:
        return []
    best, summary = min(rounds, key=lambda record: record["seconds"]), folder / "summary.json"
    end = json.loads(summary.read_text()) if summary.exists() else {}
    waited = (1 - best.get("hidden", 1.0)) * best["draw_seconds"] / best["seconds"]
    rates = {
        f"{name}_per_s": four_digits(best[f"num_{name}"] / best["seconds"])
        for name in ("pairs", "triples")
        if f"num_{name}" in best
    }
    names = ("best_valid", "test", "kernel", "weights_sha256", "peak_memory_bytes")
    return [
        {
            "epoch_s": four_digits(best["seconds"]),
            "waited": round(waited, 4),
            "loss": best["loss"],
            **rates,
            **{name: end.get(name) for name in names},
        }
    ]


def read_tests(lines: list[str]) -> list[dict]:
    """Read the last line of pytest's; of tests that were cut off, count those that passed."""
    said = [line.strip("= ") for line in lines if " passed in " in line or " passed, " in line]
    passed = sum("PASSED" in line for line in lines)
    return [{"tests": [*said, f"{passed} passed"][0]}] if said or passed else []
