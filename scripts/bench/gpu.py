"""Measures the pipeline on a GPU that is at hand for minutes: a table of rows, each a process with a limit of time.

Rows reuse the other benchmarks, the tests for a GPU, and training runs. Results are saved after every row:
DIR/rows.jsonl has all numbers, DIR/table.md the most important ones, and DIR/logs what each row said. If a row fails or
takes too long, the table says why, and the next one begins. Without a GPU,
``python -m scripts.bench gpu --out DIR --device cpu --small`` runs every row in miniature, with some kernels under
Triton's interpreter.

A machine with a GPU may have torch and PyG, but neither a network nor Hydra. ``make gpu-packages`` puts what is missing
there into build/gpu-packages, for Python 3.12. There, run this with PYTHONPATH=build/gpu-packages.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench.graphs import PROTEINS
from parallel_epochs.scripts.bench.measure import four_digits, say

GROUPS = ("step", "knowledge", "large")
ROOT = Path(__file__).resolve().parents[2]
# Seconds of a row whose time does not count.
FIRST = 90
# Options of a row in miniature.
FEW, TINY = (
    ("--num-nodes", "300", "--num-edges", "3000"),
    ("data.num_nodes=1000", "data.num_edges=8000"),
)
# The numbers of a row that the table shows, if the row has them.
SHOWN = (
    "tests",
    "replayed_ours_median_s",
    "ours_median_s",
    "ratio_median",
    "compiled_ratio_median",
    "fraction_of_limit",
    "epoch_s",
    "waited",
    "pairs_per_s",
    "gb_per_s",
    "triples_per_s",
    "valid",
    "test",
    "at_60_s",
    "gpu_mib",
    "times",
    "same_bits",
    "seconds",
)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        group: a name in GROUPS.
        seconds: limit of its time.
        command: what follows ``python -m``. {device}, {out} and {cache} stand for the device and for folders.
        small: arguments that a run in miniature adds, of which the last of several values counts.
        instead: the command of a run on the CPU, if it is another one.
        read: turns standard output and the folder of the run into dictionaries of numbers.
        compared: name of an earlier row; this one shows how many times as fast it is, and whether its
            weights are the same.
        turn: "first" for rows whose time does not count, which all run at the same time before the others; or "alone".
    """

    name: str
    group: str
    seconds: int
    command: tuple[str, ...]
    small: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    read: Callable[[str, Path], list[dict]] = lambda output, folder: []
    compared: str = ""
    turn: str = "alone"


def read_csv(output: str, folder: Path) -> list[dict]:
    """Read the rows that another benchmark has printed, each below a header of its own if its columns differ."""
    found, header = list[dict](), list[str]()
    for line in csv.reader(output.splitlines()):
        if line and line[0] == "bench":
            header = line
        elif header and len(line) == len(header):
            found.append({name: _number(value) for name, value in zip(header, line) if value != ""})
    return found


def read_run(output: str, folder: Path) -> list[dict]:
    """Read the numbers of a training run, also of one that was cut off: the fastest round counts, as the first one
    compiles kernels.
    """
    found = folder / "summary.json"
    summary = json.loads(found.read_text()) if found.exists() else {"peak_memory_bytes": 0}
    rounds = [record for record in _read_metrics(folder) if record["kind"] == "round"]
    best = min(rounds, key=lambda record: record["seconds"])
    waited = 1 - best.get("hidden", 1.0)
    soon = [
        record["valid"]
        for record in _read_metrics(folder)
        if "valid" in record and record["wall_seconds"] <= 60
    ]
    rates = {
        f"{name}_per_s": four_digits(best[f"num_{name}"] / best["seconds"])
        for name in ("pairs", "triples")
        if f"num_{name}" in best
    }
    return [
        {
            "epoch_s": four_digits(best["seconds"]),
            "drawing_s": four_digits(best["draw_seconds"]),
            **rates,
            "waited": round(waited * best["draw_seconds"] / best["seconds"], 4),
            "loss": best["loss"],
            "at_60_s": max(soon, default=None),
            "gpu_mib": round(summary["peak_memory_bytes"] / 2**20),
            "rounds": len(rounds),
            **{
                name.removeprefix("best_"): summary.get(name)
                for name in ("best_valid", "test", "kernel", "weights_sha256")
            },
        }
    ]


def _read_metrics(folder: Path) -> list[dict]:
    """Read the records of a run; the last one may be cut off."""
    lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def read_tests(output: str, folder: Path) -> list[dict]:
    """Read the last line of pytest's; of tests that were cut off, count those that passed."""
    lines = (line.strip("= ") for line in reversed(output.splitlines()) if " passed" in line)
    return [{"tests": next(lines, f"{output.count('PASSED')} passed until it was ended")}]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _bench(
    name: str,
    seconds: int,
    bench: str,
    *options: str,
    group: str = "step",
    small: tuple[str, ...] = FEW,
    **more,
) -> Row:
    command = "scripts.bench", bench, "--device", "{device}", "--repeat", "5", *options
    return Row(name, group, seconds, command, ("--repeat", "1", *small), read=read_csv, **more)


def _train(
    name: str, seconds: int, *overrides: str, group: str = "step", command: str = "train", **more
) -> Row:
    places = (
        ("cache_dir={cache}",)
        if command == "prepare"
        else (
            "cache_dir={cache}",
            "device={device}",
            "hydra.run.dir={out}",
        )
    )
    return Row(
        name,
        group,
        seconds,
        (f"pipeline.{command}", *overrides, *places),
        **{"read": read_csv if command == "prepare" else read_run, **more},
    )


def _test(name: str, file: str, chosen: str) -> Row:
    tests = (
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-m",
        "not exhaustive",
        "tests/helpers/" + file,
    )
    return Row(
        name,
        "step",
        FIRST,
        tests,
        instead=(*tests, "-k", chosen, "--maxfail=1"),
        read=read_tests,
        turn="first",
    )


def _data(name: str, *what: str, group: str) -> Row:
    return Row(
        name,
        group,
        FIRST,
        ("scripts.bench.gpu_data", "{cache}", *what, "--given", "{given}"),
        ("--scale", "0.02"),
        turn="first",
    )


FLAGSHIP = (
    "+experiment=ogbn_proteins",
    "data=synthetic_proteins",
    f"data.num_nodes={PROTEINS[0]}",
    f"data.num_edges={PROTEINS[1]}",
)
POINTS = (
    "trainer=layout",
    "data=vectors",
    "trainer.init=pca",
    "trainer.num_neighbors=15",
    "trainer.perplexity=5",
    "train.epochs=5",
    "train.eval_every=5",
)
# An evaluation is not part of an epoch: there is one, at the end.
EPOCHS = ("train.epochs=4", "train.eval_every=4")
TINY_FLAGSHIP = (*TINY, "model.num_layers=3")
# Rows may use what earlier ones have left over of their limits, and all of them end within --seconds.
ROWS: tuple[Row, ...] = (
    _test("kernels of sums", "triton_cases.py", "nothing_to_aggregate"),
    _test("kernels of attention", "triton_attention_cases.py", "graphs_without_edges"),
    _test("kernels of messages", "triton_messages_cases.py", "ties_divide"),
    Row(
        "training, stopping and resuming",
        "step",
        FIRST,
        (
            "pytest",
            "-v",
            "-n",
            "6",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            "tests/test_gpu.py",
            "-k",
            "not cases",
        ),
        instead=(
            "pytest",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            "tests/test_gpu.py",
            "--collect-only",
        ),
        read=read_tests,
        turn="first",
    ),
    _train(
        "the graph of the flagship", 150, *FLAGSHIP, command="prepare", small=TINY, turn="first"
    ),
    _data("data of knowledge and layouts", "triples", "points", group="knowledge"),
    _train(
        "relations of arithmetic",
        FIRST,
        "trainer=knowledge",
        "data=math",
        "train.epochs=2",
        group="knowledge",
        small=("train.epochs=1",),
        turn="first",
    ),
    _bench("aggregation", 60, "aggregate", small=(*FEW, "--eager")),
    _bench(
        "layers",
        60,
        "convs",
        "--cases",
        "GCNConv",
        "SAGEConv",
        "GATv2Conv, 4 heads, features",
        small=(*FEW, "--cases", "SAGEConv"),
    ),
    _bench(
        "step",
        60,
        "step",
        "--pyg-layers",
        "14",
        "--layers",
        "112",
        small=(*FEW, "--pyg-layers", "3", "--layers", "4"),
    ),
    _train("epoch of the flagship", 40, *FLAGSHIP, *EPOCHS, small=TINY_FLAGSHIP),
    _train(
        "epoch of the flagship with clusters from the CPU",
        40,
        *FLAGSHIP,
        *EPOCHS,
        "data.device=cpu",
        small=TINY_FLAGSHIP,
        compared="epoch of the flagship",
    ),
    _train(
        "ComplEx of 1000 numbers on FB15k-237",
        66,
        "+experiment=complex_fb15k237",
        "trainer.dim=2000",
        "data.folder={cache}/triples",
        "train.epochs=60",
        group="knowledge",
        small=("train.epochs=5", "trainer.dim=8"),
    ),
    _train(
        "layout of a hundred thousand points",
        30,
        *POINTS,
        "data.path={cache}/points.npy",
        group="knowledge",
        small=("train.epochs=1",),
    ),
    _train(
        "epoch of the flagship in bf16",
        35,
        *FLAGSHIP,
        *EPOCHS,
        "train.precision=bf16",
        group="knowledge",
        small=TINY_FLAGSHIP,
        compared="epoch of the flagship",
    ),
    _train(
        "5 million entities of which a GPU holds a quarter",
        400,
        "trainer=knowledge",
        "data=math",
        "data.num_entities=5_000_000",
        "data.num_train=2_000_000",
        "data.num_valid=100",
        "data.num_test=100",
        "trainer.dim=400",
        "trainer.loss=negatives",
        "trainer.batch_size=4000",
        "trainer.num_parts=8",
        "train.epochs=1",
        "train.eval_every=1",
        group="large",
        small=("data.num_entities=1000", "data.num_train=20000", "trainer.dim=8"),
    ),
)


def bench_gpu(
    out: str = "build/gpu",
    group: tuple[str, ...] = (),
    rows: tuple[str, ...] = (),
    seconds: int = 560,
    device: str = "cuda",
    small: bool = False,
    given: str = "none",
) -> None:
    """Measure every row of the table on a GPU, each in a process of its own with a time limit.

    Args:
        out: folder of the results, which is new or empty (default: build/gpu).
        group: groups of rows: step, knowledge or large (default: the first two).
        rows: rows whose name contains one of these texts (default: all).
        seconds: time for all rows. What is left over is named.
        small: run every row in miniature.
        given: folder with FB15k-237.tar.gz; without it, a graph as large is generated.

    Raises:
        ValueError: there is no such group or device, or the folder has results.
    """
    place = choose_device(device)
    wanted = {*(group or GROUPS[: None if rows else 2])}
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
    table = RowTable(
        Path(out).absolute(), place.type, small, time.monotonic() + seconds, Path(given).absolute()
    )
    with ThreadPoolExecutor(10) as pool:
        runs = {row: pool.submit(table.run, row) for row in chosen if row.turn == "first"}
        for run in as_completed(runs.values()):
            table.save(next(row for row in runs if runs[row] is run), run.result())
    for row in chosen:
        if row.turn == "alone":
            table.save(row, table.run(row))
    if failed := [name for name, result in table.results.items() if "failed" in result[0]]:
        raise ValueError(
            f"{len(failed)} of {len(chosen)} rows failed: {', '.join(failed)}; see {out}/table.md"
        )


class RowTable:
    """The results so far, and what all rows share.

    Args:
        folder: where they are saved.
        device: "cuda" or "cpu".
        small: whether rows run in miniature.
        end: the clock's reading at which no row may run any more.
        given: folder of data at hand.

    Raises:
        ValueError: the folder has results.
    """

    def __init__(self, folder: Path, device: str, small: bool, end: float, given: Path):
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"--out={folder} is not empty; choose a new folder")
        (folder / "logs").mkdir(parents=True)
        self.folder, self.device, self.small = folder, device, small
        self.end, self.given = end, given
        self.results = dict[str, list[dict]]()

    def run(self, row: Row) -> list[dict]:
        """Run the process of a row; returns its numbers, or the reason why there are none."""
        name, start = row.name.replace(" ", "_"), time.monotonic()
        # Rows in miniature only show that they run, perhaps on a busy machine.
        limit = min(row.seconds * (10 if self.small else 1), self.end - start)
        if limit < 1:
            return [{"failed": "no time was left"}]
        run = self.folder / "runs" / name
        output, said = (self.folder / "logs" / f"{name}.{kind}" for kind in ("out", "err"))
        command = (
            row.instead
            if row.instead and self.device == "cpu"
            else (row.command + (row.small if self.small else ()))
        )
        places = {
            "device": self.device,
            "out": str(run),
            "cache": str(self.folder / "cache"),
            "given": str(self.given),
        }
        say(f"{row.name}: at most {limit:.0f} s")
        with output.open("w") as out, said.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", *(part.format_map(places) for part in command)],
                cwd=ROOT,
                stdout=out,
                stderr=err,
                env=self._environment(row),
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        seconds = {"seconds": round(time.monotonic() - start, 1)}
        try:
            found = row.read(output.read_text(), run)
        except (OSError, ValueError, KeyError) as error:  # it ended before it wrote them
            found = [{"failed": f"its numbers cannot be read: {error!r}"}]
        if code == 0:
            return [seconds | each for each in found or [{}]]
        reason = (
            f"it took longer than {limit:.0f} s"
            if code is None
            else (f"exit status {code}: {_last_line(said, output)}")
        )
        first, *others = found or [{}]
        return [seconds | first | {"failed": reason}, *others]

    def save(self, row: Row, result: list[dict]) -> None:
        """Add the result of a row to the files; earlier rows are already there."""
        before = self.results.get(row.compared)
        if before and "epoch_s" in before[0] and "epoch_s" in result[0]:
            result[0] |= {
                "times": four_digits(before[0]["epoch_s"] / result[0]["epoch_s"]),
                "same_bits": before[0]["weights_sha256"] == result[0]["weights_sha256"],
            }
        self.results[row.name] = result
        with (self.folder / "rows.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"row": row.name, "group": row.group, **each}) + "\n" for each in result
            )
        lines = ["| row | what | numbers |", "|---|---|---|", *self._lines()]
        (self.folder / "table.md").write_text("\n".join(lines) + "\n")
        say(f"{row.name}: {result[0].get('failed', 'done')}")

    def _lines(self) -> Iterator[str]:
        for name, result in self.results.items():
            for each in result:
                layers = f"{each['layers']:.0f} layers" if "layers" in each else ""
                what = each.get("conv") or each.get("aggr") or layers
                numbers = [f"{column} {each[column]}" for column in SHOWN if column in each]
                if "failed" in each:
                    yield f"| {name} | {what} | {each['failed']} |"
                if "failed" not in each or len(numbers) > 1:  # besides its seconds
                    yield f"| {name} | {what} | {', '.join(numbers)} |"

    def _environment(self, row: Row) -> dict[str, str]:
        """Return the environment of a row: tests of kernels see the GPU, or Triton interprets them."""
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        kernels = {"TESTS_SEE_GPUS": "1"} if self.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        if (
            "pytest" in row.command
        ):  # such a machine lacks packages of modules whose shapes would be checked
            kernels |= {"CHECK_SHAPES": "0"}
            if self.device == "cpu":
                kernels |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **kernels}


def _last_line(*logs: Path) -> str:
    """Return the last line of the first file that has one."""
    lines = [
        line
        for log in logs
        for line in log.read_text(errors="replace").splitlines()[-1:]
        if line.strip()
    ]
    return lines[0][-300:] if lines else "it said nothing"
