"""Summarises a finished run: summary.json, and the table at the end of the log."""

import dataclasses
import os
import platform
import re
import resource
from importlib import metadata
from pathlib import Path

import torch

from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import trials
from parallel_epochs.pipeline.run.log import format_score
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.words import count

PACKAGES = ("torch", "torch_geometric", "pymetis", "ogb", "hydra-core", "scikit-learn")


def describe(
    *,
    experiment: str,
    parallel: str,
    lr_scaling: str,
    seed: int,
    command: str,
    device: torch.device,
    ranks: Ranks,
    libraries: dict[str, dict[str, str]],
) -> dict:
    """Build what ``summary.json`` says of the command and the machine, besides the results of the session.

    Args:
        libraries: the compiled libraries that this process has loaded, with the level, build and compiler of each.
    """
    return {
        "experiment": experiment,
        "peak_memory_bytes": peak_memory_bytes(device),
        "num_ranks": ranks.num_ranks,
        "parallel": parallel,
        "lr_scaling": lr_scaling,
        "libraries": libraries,
        "seed": seed,
        "versions": {name: metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "hardware": name_hardware(device),
        "command": command,
    }


def tabulate(summary: dict) -> list[tuple[str, str]]:
    """Return the rows of the log's final table, as names and texts."""
    scores = summary.get("scores", {})
    rows = (
        []
        if summary["metric"] in scores
        else [  # which has no splits then
            (f"{split} {summary['metric']}", format_score(summary[key]))
            for split, key in (("train", "train"), ("valid", "best_valid"), ("test", "test"))
        ]
    )
    rows += [(name, format_score(score)) for name, score in scores.items()]
    if base := summary.get("base"):
        network, simple = (
            f"valid {format_score(of['valid'])}, test {format_score(of['test'])}"
            for of in (summary["network"], base)
        )
        rows = [("answer", summary["answer"]["text"]), *rows]
        # Whoever names a model of their own asks for its scores.
        is_own = "own_model" in summary and "trials" not in summary
        place = 0 if is_own else len(rows)
        rows.insert(place, ("network alone", network))
        rows.append(("simple method", f"{base['title']}: {simple}"))
    if decisions := summary.get("decisions"):
        rows += [
            (
                f"{split} decisions",
                ", ".join(f"{name} {format_score(score)}" for name, score in own.items()),
            )
            for split in ("valid", "test")
            if (own := decisions[split])
        ]
    for name, each in summary.get("candidates", {}).items():
        rows.append(
            (
                f"  candidate {name}",
                f"valid {format_score(each['best_valid'])}, test "
                f"{format_score(each['test'])}, network alone valid "
                f"{format_score(each['network']['valid'])}, test "
                f"{format_score(each['network']['test'])}",
            )
        )
    if best := summary.get("baseline"):
        rows.append(
            (
                "simple method",
                f"{best['name']}: valid {format_score(best['valid'])}, test "
                f"{format_score(best['test'])}, {compare_to_baseline(summary)}",
            )
        )
    for number, part in summary.get("components", {}).items():
        rows.append(
            (
                f"  component {number}",
                f"valid {format_score(part['best_valid'])}, test "
                f"{format_score(part['test'])}, "
                f"best epoch {part['best_epoch']}",
            )
        )
    if summary["best_epoch"] is not None:
        rows.append(("best epoch", f"{summary['best_epoch']} of {summary['data_epochs']}"))
    if summary["num_ranks"] > 1:
        rows.append(("ranks", f"{summary['num_ranks']} (parallel={summary['parallel']})"))
    return [
        *rows,
        ("epochs", count(summary["data_epochs"], "pass", "passes") + " over the data"),
        ("parameters", f"{summary['num_parameters']:,}"),
        ("aggregation", summary["kernel"]),
        (
            "wall time",
            f"{summary['command_seconds']:.1f} s, of which reading and simple methods took "
            f"{summary['opening_seconds']:.1f} s",
        ),
        ("peak memory", f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"),
        ("weights", summary["weights_sha256"][:16]),
    ]


def of_trials(folder: Path) -> dict:
    """Return what a summary holds of the settings that a run has compared."""
    found = trials.read(folder)
    return {"trials": [dataclasses.asdict(trial) for trial in found]} if found else {}


def compare_to_baseline(summary: dict) -> str:
    """Say whether a run is better than the best simple method on its dataset, by the validation metric."""
    ours = merit(summary["metric"], summary["best_valid"])
    simple = merit(summary["metric"], summary["baseline"]["valid"])
    if simple == ours:
        return "as good as this run"
    return "better than this run" if simple > ours else "below this run"


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far, of the process or of its tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def name_hardware(device: torch.device) -> str:
    """Return the GPU's name, or the processor's with its number of cores and the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name}, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
