"""`python -m tools.reference_runs record FILE | compare FILE`: small runs whose results no refactoring may change.

Record the results before a refactoring, and compare after every commit. They are bit-exact on one machine with a fixed
number of threads, but not across machines, so the file is not part of the repository.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from parallel_epochs.pipeline.command.arguments import Parser
from parallel_epochs.pipeline.run import files, outputs

TOY = (
    "data.num_nodes=240 data.num_edges=4800 data.num_species=4 data.num_groups=8 data.num_tasks=3 "
    "model.num_layers=3 model.hidden_channels=16 train.epochs=6 train.patience=0 task.base=none"
)
RUNS = {
    "random": TOY,
    "metis": f"{TOY} partition=metis",
    "metis_random": f"{TOY} partition=metis_random partition.num_parts=8 "
    "partition.clusters_per_step=2",
    "whole": f"{TOY} partition=whole",
    "batch norm": f"{TOY} model.norm=batch model.num_mlp_layers=1",
    "label input": f"{TOY} train.label_input=0.5",
    "two ranks, epochs": f"{TOY} parallel.num_ranks=2 parallel.lr_scaling=sqrt train.epochs=7",
    "two ranks, split": f"{TOY} parallel=split parallel.num_ranks=2 partition.num_parts=5 "
    "train.label_input=0.3",
    "two ranks, batch norm, views": f"{TOY} parallel.num_ranks=2 model.norm=batch evaluation=views "
    "evaluation.num_views=2",
    "views": f"{TOY} evaluation=views evaluation.num_views=3 evaluation.num_parts=4",
    "bf16": f"{TOY} train.precision=bf16",
    "reference kernel": f"{TOY} kernel=reference model.aggr=softmax_sum",
    "optimizer": f"{TOY} train.optimizer=adamw train.weight_decay=0.1 train.warmup_steps=7 "
    "train.clip_grad_norm=0.1",
    "checkpointing": f"{TOY} model.gradient_checkpointing=true",
    "digits": "+experiment=digits train.epochs=3",
    "separate": "data=file data.path=COMPONENTS data.degrees=false data.components=separate "
    "data.node_features=log_sum partition.num_parts=2 train.epochs=3 model.num_layers=2",
    "largest": "data=file data.path=COMPONENTS data.degrees=false task.base=none "
    "data.components=largest partition.num_parts=2 train.epochs=3",
    "stopped in an epoch": f"{TOY} partition.num_parts=60 train.epochs=40 train.eval_every=40",
    "two ranks, stopped in an epoch": f"{TOY} partition.num_parts=60 train.epochs=60 train.eval_every=60 "
    "parallel.num_ranks=2",
}
KEYS = ("weights_sha256", "best_valid", "test", "best_epoch", "data_epochs", "num_parameters")


def write_components(path: Path) -> None:
    """Save a graph of two large components and a few isolated nodes."""
    rng = torch.Generator().manual_seed(0)
    pairs = torch.cat(
        [
            torch.randint(0, 120, (2, 500), generator=rng),
            torch.randint(120, 190, (2, 250), generator=rng),
        ],
        dim=1,
    )
    edges, part = (
        torch.cat([pairs, pairs.flip(0)], dim=1),
        torch.randint(0, 3, (195,), generator=rng),
    )
    torch.save(
        {
            "edge_index": edges,
            "edge_attr": torch.rand(500 + 250, 3, generator=rng).repeat(2, 1),
            "y": torch.randint(0, 2, (195, 2), generator=rng).float(),
            "train_mask": part == 0,
            "valid_mask": part == 1,
            "test_mask": part == 2,
        },
        path,
    )


def train(name: str, root: Path, num_threads: int) -> dict:
    """Train a reference run in its own processes. Runs named "stopped" get a signal and are resumed."""
    arguments = RUNS[name].replace("COMPONENTS", str(root / "components.pt")).split()
    folder = root / name.replace(" ", "_").replace(",", "")
    environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    command = [
        sys.executable,
        "-m",
        "pipeline.train",
        *arguments,
        f"cache_dir={root / 'cache'}",
        f"parallel.threads_per_rank={num_threads}",
    ]

    def start(target: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*command, target],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    process = start(f"hydra.run.dir={folder}")
    if "stopped" in name:
        metrics = folder / "metrics.jsonl"
        while process.poll() is None and (
            not metrics.exists() or metrics.read_text().count('"loss"') < 2
        ):
            time.sleep(0.005)
        process.send_signal(signal.SIGUSR1)
        process.communicate()
        if (folder / "summary.json").exists():
            raise SystemExit(f"{name}: the run ended before it could be stopped")
        process = start(f"resume={folder}")
    errors = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"{name}: {errors}")
    summary = json.loads((folder / "summary.json").read_text())
    return {key: summary[key] for key in KEYS}


def main() -> None:
    parser = Parser(
        prog="python -m tools.reference_runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "action", choices=("record", "compare"), help="write the file, or compare with it"
    )
    parser.add_argument("file", type=Path, help="results of the reference runs, as JSON")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="number of threads of a process (default: %(default)s)",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=2,
        help="number of runs at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing file that does not hold such results",
    )
    options = parser.parse_args()
    try:
        if options.action == "record":
            outputs.check(
                "FILE",
                options.file,
                overwrite=options.overwrite,
                way_out="--overwrite",
            )
        recorded = files.read_json(options.file) if options.action == "compare" else {}
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        root = Path(folder)
        write_components(root / "components.pt")
        results = dict(zip(RUNS, pool.map(lambda name: train(name, root, options.threads), RUNS)))
    if options.action == "record":
        files.write_text(options.file, json.dumps(results, indent=2) + "\n")
        return
    differing = [
        f"{name}: {recorded.get(name)} -> {result}"
        for name, result in results.items()
        if recorded.get(name) != result
    ]
    if differing:
        raise SystemExit("\n".join(differing))
    print(f"{len(results)} reference runs are the same")


if __name__ == "__main__":
    main()
