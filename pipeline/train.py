"""`python -m pipeline.train`: compose a run, train it, write down what came of it."""

import contextlib
import dataclasses
import json
import logging
import logging.config
import os
import platform
import re
import shlex
import signal
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from torch_geometric.data import Data

from pipeline import checkpoint, cli, config as configuration, distributed, graph
from pipeline.config import Config
from pipeline.data import load
from pipeline.distributed import Ranks, Stopped, StopRequest
from pipeline.log import table, without_nan
from pipeline.loop import Result, build_model, device_of, fit, partitioner_of, predictor
from pipeline.loader import ClusterLoader
from pipeline.metrics import predict_exact
from pipeline.task import SPLITS, NodeTask

log = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: they change where things lie and how long it trains, not the numbers.
FREE_TO_DIFFER = ("resume", "resume_allow_rescale", "cache_dir", "tensorboard", "partition.prefetch", "train.epochs", "data.root",
                  "parallel.check_every")


def run(config: Config, folder: Path, command: str, *, log_config: dict | None = None) -> dict:
    """Train as configured and write the run directory, in this process or in one for each rank.

    Args:
        folder: the run directory, which exists; a run that it holds is continued.
        log_config: for :func:`logging.config.dictConfig` in the processes of the ranks.

    Returns:
        The content of ``summary.json``, perhaps empty on other ranks of torchrun than the first.

    Raises:
        ValueError: the configuration or the dataset is wrong, or another process uses the directory.
        FloatingPointError: the training diverged.
        RankError: a rank failed.
        Stopped: a signal asked for it; the checkpoint is saved.
    """
    with StopRequest() as stop:
        ranks = distributed.environment()  # torchrun's, who has started the others as well
        if ranks is not None:
            return _train(ranks, stop, config, folder, command)
        num_ranks = config.parallel.num_ranks
        if num_ranks == 1:
            return _train(Ranks(), stop, config, folder, command)
        distributed.prepare_launch()
        # Here rather than in every rank: what is wrong with the data, and the caches that the ranks share.
        device_of(config.device, Ranks(num_ranks=num_ranks, num_local=num_ranks))
        data, components, _ = _open(config)
        with checkpoint.lock(folder):
            _write_start(folder, config, components)
            threads = distributed.threads_of_each(num_ranks, config.parallel.threads_per_rank)
            log.info("starting %d ranks of %d threads", num_ranks, threads)
            summary = distributed.launch(_train_rank, num_ranks, threads, stop, config, folder, command, data.content_hash,
                                         log_config)
        if summary is None:
            raise Stopped(stop.signum)
        return summary


def _train_rank(ranks: Ranks, stop: StopRequest, config: Config, folder: Path, command: str, content_hash: str,
                log_config: dict | None) -> dict | None:
    """What a process that :func:`run` started does; none if it was stopped."""
    if log_config is not None:
        logging.config.dictConfig(log_config)
    try:
        return _train(ranks, stop, config, folder, command, content_hash)
    except Stopped:
        return None


def _open(config: Config) -> tuple[Data, graph.Components, list[tuple[str | None, Data]]]:
    """The graph, its components, and what gets a model of its own; checked, and told of in the log."""
    data = load(config.data, config.cache_dir)
    log.info("graph: %s", graph.structure(data.edge_index))
    components = graph.connected_components(data)
    log.info("%s", components)
    parts = graph.parts(data, components, config.data.components, config.data.min_component_size)
    for _, part in parts:
        partitioner_of(config, part)  # what does not fit is refused before anything is written or trained
    return data, components, parts


def _open_again(config: Config, content_hash: str) -> tuple[Data, list[tuple[str | None, Data]]]:
    """What :func:`_open` has checked in another process."""
    data = load(config.data, config.cache_dir, content_hash=content_hash)
    if config.data.components == "all":
        return data, [(None, data)]
    components = graph.connected_components(data)
    return data, graph.parts(data, components, config.data.components, config.data.min_component_size)


def _train(ranks: Ranks, stop: StopRequest, config: Config, folder: Path, command: str,
           content_hash: str | None = None) -> dict:
    """Train as one of the ranks; `content_hash` is of the graph, where another process has opened it."""
    if not ranks.is_first:
        logging.getLogger().setLevel(logging.WARNING)
    device = device_of(config.device, ranks)
    if ranks.num_ranks > 1:
        distributed.join(device)
    with contextlib.ExitStack() as stack:
        opens = ranks.is_first and content_hash is None
        if opens:
            stack.enter_context(checkpoint.lock(folder))
            data, components, parts = _open(config)
            _write_start(folder, config, components)
        content_hash = ranks.broadcast(data.get("content_hash") if opens else content_hash)
        if not opens:
            data, parts = _open_again(config, content_hash)
        if config.data.components == "separate":
            summary = _train_separately(config, data, parts, folder, device, command, ranks, stop)
        else:
            summary = _train_one(config, parts[0][1], folder, device, command, ranks, stop)
        if ranks.is_first:
            _write_json(folder / "summary.json", summary)
            log.info("%s", table(_rows(summary), f"result of {config.name}, in {folder}"))
    ranks.wait()
    return summary


def _write_start(folder: Path, config: Config, components: graph.Components) -> None:
    _write_yaml(folder, config)
    _write_json(folder / "components.json", components.record())


def _train_one(config: Config, data: Data, folder: Path, device: torch.device, command: str, ranks: Ranks,
               stop: StopRequest) -> dict:
    task = NodeTask(data, label_input=config.train.label_input)
    result = fit(data, task, config, folder, device, ranks, stop)
    return _summary(config, task.metric, result, command, device, ranks)


def _train_separately(config: Config, data: Data, parts: list[tuple[str, Data]], folder: Path, device: torch.device,
                      command: str, ranks: Ranks, stop: StopRequest) -> dict:
    """A model for each component that is large enough; the largest one's model predicts the nodes of the others."""
    logits = torch.zeros(data.num_nodes, data.out_channels)
    predicted = torch.zeros(data.num_nodes, dtype=torch.bool)
    summaries, largest = {}, None
    for number, part in parts:
        own = dataclasses.replace(config, data=dataclasses.replace(config.data, components=number))
        own_folder = folder / f"component_{number}"
        own_folder.mkdir(exist_ok=True)
        if ranks.is_first:
            _write_yaml(own_folder, own)
        log.info("component %s of %s nodes, in %s", number, f"{part.num_nodes:,}", own_folder)
        summaries[number] = _train_one(own, part, own_folder, device, command, ranks, stop)
        if not ranks.is_first:
            continue
        _write_json(own_folder / "summary.json", summaries[number])
        best = checkpoint.load(own_folder / "checkpoints" / "best.pt")
        task = NodeTask(part, label_input=config.train.label_input)
        model = build_model(config.model, part, task, kernel=config.kernel).to(device)
        model.load_state_dict(best["model"])
        nodes = part.n_id if "n_id" in part else torch.arange(data.num_nodes)
        logits[nodes] = predictor(model, task, ClusterLoader(part, device=device), own)(best["epoch"])
        predicted[nodes] = True
        largest = largest or partial(task.predict, model)
    if not ranks.is_first:
        return {}
    rest = (~predicted).nonzero().squeeze(1)
    if len(rest):
        logits[rest] = predict_exact(largest, graph.induced_subgraph(data, rest), device=device)
        log.info("%s nodes of small components are predicted by the model of the largest", f"{len(rest):,}")
    scores = NodeTask(data).scores(logits, data)
    each = list(summaries.values())
    return {**each[0], "best_epoch": None, "best_valid": scores["valid"], "train": scores["train"], "test": scores["test"],
            "weights_sha256": checkpoint.digest([s["weights_sha256"] for s in each]),
            "num_parameters": sum(s["num_parameters"] for s in each),
            "wall_seconds": sum(s["wall_seconds"] for s in each),
            "data_epochs": max(s["data_epochs"] for s in each),
            "peak_memory_bytes": max(s["peak_memory_bytes"] for s in each),
            "components": {number: {key: s[key] for key in ("best_epoch", "best_valid", "test")}
                           for number, s in summaries.items()}}


def _summary(config: Config, metric: str, result: Result, command: str, device: torch.device, ranks: Ranks) -> dict:
    return {
        "experiment": config.name,
        "metric": metric,
        "best_epoch": result.best_epoch + 1,
        "best_valid": result.best_scores["valid"],
        "test": result.best_scores["test"],
        "train": result.best_scores["train"],
        "num_parameters": result.num_parameters,
        "data_epochs": result.data_epochs,
        "epochs": result.epochs,
        "wall_seconds": round(result.wall_seconds, 2),
        "peak_memory_bytes": result.peak_memory_bytes,
        "num_ranks": ranks.num_ranks,
        "parallel": config.parallel.name,
        "lr_scaling": config.parallel.lr_scaling,
        "kernel": result.kernel,
        "seed": config.seed,
        "weights_sha256": result.weights_sha256,
        "versions": {name: metadata.version(name) for name in ("torch", "torch_geometric", "pymetis", "ogb", "hydra-core")}
        | {"python": platform.python_version()},
        "hardware": hardware(device),
        "command": command,
    }


def hardware(device: torch.device) -> str:
    """The GPU's name, or the processor's with its number of cores and the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name}, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def _rows(summary: dict) -> list[tuple[str, str]]:
    rows = [(f"{split} {summary['metric']}", f"{summary[key]:.4f}")
            for split, key in zip(SPLITS, ("train", "best_valid", "test"))]
    for number, part in summary.get("components", {}).items():
        rows.append((f"  component {number}", f"valid {part['best_valid']:.4f}, test {part['test']:.4f}, "
                                            f"best epoch {part['best_epoch']}"))
    if summary["best_epoch"] is not None:
        rows.append(("best epoch", f"{summary['best_epoch']} of {summary['epochs']}"))
    return rows + [
        ("ranks", f"{summary['num_ranks']} ({summary['parallel']}), {summary['data_epochs']} passes over the graph"),
        ("parameters", f"{summary['num_parameters']:,}"),
        ("aggregation", summary["kernel"]),
        ("wall time", f"{summary['wall_seconds']:.1f} s"),
        ("peak memory", f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"),
        ("weights", summary["weights_sha256"][:16]),
    ]


def _write_json(path: Path, value: dict) -> None:
    text = json.dumps(without_nan(value), indent=2) + "\n"
    checkpoint.write_atomically(path, lambda file: file.write(text.encode()))


def _write_yaml(folder: Path, config: Config) -> None:
    text = configuration.to_yaml(config)
    checkpoint.write_atomically(folder / "config.yaml", lambda file: file.write(text.encode()))


def resolve(config: Config, folder: Path, *, has_overrides: bool, continues: bool = False) -> Config:
    """The configuration to run in `folder`: the saved one if a run is resumed there.

    Args:
        continues: a run that the folder holds is meant to be continued, though `config.resume` does not say so.

    Raises:
        ValueError: the folder holds a run and none is resumed, the resumed one was configured otherwise (the message
            names the keys), or the folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to")
    if config.resume is None:
        if not any(folder.glob("**/checkpoints/*.pt")):
            return config
        if not continues:
            raise ValueError(f"{folder} already holds a run: continue it with resume={folder}, or choose another directory")
    saved = configuration.load(folder / "config.yaml")
    if not has_overrides:
        return saved
    free = FREE_TO_DIFFER + (("parallel.num_ranks", "parallel.threads_per_rank") if config.resume_allow_rescale else ())
    differing = [line for line in configuration.differences(saved, config)
                 if not line.startswith(tuple(f"{key}:" for key in free))]
    if differing:
        rescales = any(line.startswith("parallel.num_ranks:") for line in differing)
        hint = ". Another number of ranks draws other partitions: resume_allow_rescale=true allows it, with the learning " \
               "rate computed anew" if rescales else ""
        raise ValueError(f"{folder} was configured otherwise: {'; '.join(differing)}{hint}. Give the command that "
                         "started it, or resume=DIR alone")
    return config


def _finished(config: Config, folder: Path) -> dict | None:
    """The summary of a run that has nothing left to do."""
    path = folder / "summary.json"
    if not path.is_file() or not (folder / "config.yaml").is_file():
        return None
    return None if configuration.differences(configuration.load(folder / "config.yaml"), config) else json.loads(path.read_text())


def _agree(config: Config, ranks: Ranks) -> Config:
    """The number of ranks that torchrun has started, which need not be given again."""
    if config.parallel.num_ranks not in (1, ranks.num_ranks):
        raise ValueError(f"torchrun has started {ranks.num_ranks} ranks, parallel.num_ranks={config.parallel.num_ranks} asks "
                         "for others")
    parallel = dataclasses.replace(config.parallel, num_ranks=ranks.num_ranks)
    return dataclasses.replace(config, parallel=parallel)


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="config")
def main(cfg: DictConfig) -> float:
    with cli.readable_errors():
        config = configuration.to_object(cfg)
        settings = HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        has_overrides = any(not override.startswith("resume=") for override in settings.overrides.task)
        # Started again, a sweep trains what is missing, and a job that Slurm put back into its queue goes on.
        continues = settings.mode == RunMode.MULTIRUN or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        ranks = distributed.environment()
        if ranks is not None:
            config = _agree(config, ranks)
        if ranks is None or ranks.is_first:
            config = resolve(config, folder, has_overrides=has_overrides, continues=continues)
        if ranks is not None:
            distributed.join(device_of(config.device, ranks))
            config = ranks.broadcast(config)
        if continues and (summary := _finished(config, folder)) is not None:
            log.info("%s has been trained already", folder)
            return summary["best_valid"]
        # In a sweep, what runs this member alone.
        arguments = settings.overrides.task if settings.mode == RunMode.MULTIRUN else sys.argv[1:]
        command = shlex.join(["python", "-m", "pipeline.train", *arguments])
        log_config = OmegaConf.to_container(settings.job_logging, resolve=True)
        try:
            return run(config, folder, command, log_config=log_config).get("best_valid")
        except Stopped as stopped:
            log.info("%s; continue with resume=%s", stopped, folder)
            # Who started this process may have plans for the signal: submitit puts the job back into Slurm's queue.
            if callable(signal.getsignal(stopped.signum)):
                signal.raise_signal(stopped.signum)
            sys.exit(distributed.EXIT_TRY_AGAIN)


cli.register_schema()

if __name__ == "__main__":
    cli.run(main)
