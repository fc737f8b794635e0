"""`python -m pipeline.train`: compose a run, train it, write down what came of it."""

import dataclasses
import json
import logging
import os
import platform
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch_geometric.data import Data

from pipeline import checkpoint, cli, config as configuration, graph
from pipeline.config import Config
from pipeline.data import load
from pipeline.log import table
from pipeline.loop import Result, build_model, device_of, fit, predictor
from pipeline.loader import ClusterLoader
from pipeline.metrics import predict_exact
from pipeline.task import SPLITS, NodeTask

log = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: they change where things lie and how long it trains, not the numbers.
FREE_TO_DIFFER = ("resume", "cache_dir", "tensorboard", "partition.prefetch", "train.epochs", "data.root")


def run(config: Config, folder: Path, command: str) -> dict:
    """Train as configured and write the run directory.

    Args:
        folder: the run directory, which exists and holds no other run.

    Returns:
        The content of ``summary.json``.

    Raises:
        ValueError: the configuration or the dataset is wrong, or the directory cannot be used.
        FloatingPointError: the training diverged.
    """
    device = device_of(config.device)
    configuration.save(config, folder / "config.yaml")
    whole = load(config.data, config.cache_dir)
    log.info("graph: %s", graph.structure(whole.edge_index))
    components = graph.connected_components(whole)
    log.info("%s", components)
    checkpoint.write_atomically(folder / "components.json", lambda f: f.write(json.dumps(components.record()).encode()))
    if config.data.components == "separate":
        summary = _train_separately(config, whole, components, folder, device, command)
    else:
        data = graph.select(whole, components, config.data.components)
        summary = _train_one(config, data, folder, device, command)
    log.info("%s", table(_rows(summary), f"result of {config.name}, in {folder}"))
    return summary


def _train_one(config: Config, data: Data, folder: Path, device: torch.device, command: str) -> dict:
    task = NodeTask(data, label_input=config.train.label_input)
    summary = _summary(config, task.metric, fit(data, task, config, folder, device), command)
    _write_json(folder / "summary.json", summary)
    return summary


def _train_separately(config: Config, data: Data, components: graph.Components, folder: Path, device: torch.device,
                      command: str) -> dict:
    """A model for each component that is large enough; the largest one's model predicts the nodes of the others."""
    task = NodeTask(data, label_input=config.train.label_input)
    logits = torch.full((data.num_nodes, task.out_channels), float("nan"))
    summaries = {}
    for rank, component in enumerate(components.components, start=1):
        if rank > 1 and (component.num_nodes < config.data.min_component_size or component.num_train == 0):
            continue
        part = graph.select(data, components, str(rank))
        own = dataclasses.replace(config, data=dataclasses.replace(config.data, components=str(rank)))
        own_folder = folder / f"component_{rank}"
        own_folder.mkdir(exist_ok=True)
        configuration.save(own, own_folder / "config.yaml")
        log.info("component %d of %d nodes, in %s", rank, component.num_nodes, own_folder)
        part_task = NodeTask(part, label_input=config.train.label_input)
        result = fit(part, part_task, own, own_folder, device)
        summaries[rank] = _summary(own, task.metric, result, command)
        _write_json(own_folder / "summary.json", summaries[rank])
        best = checkpoint.load(own_folder / "checkpoints" / "best.pt")
        model = build_model(config.model, part, part_task, kernel=config.kernel).to(device)
        model.load_state_dict(best["model"])
        nodes = part.n_id if "n_id" in part else torch.arange(data.num_nodes)
        logits[nodes] = predictor(model, part_task, ClusterLoader(part), own, device)(best["epoch"])
        if rank == 1:
            largest = partial(part_task.predict, model)
    rest = logits.isnan().all(1).nonzero().squeeze(1)
    if len(rest):
        logits[rest] = predict_exact(largest, graph.induced_subgraph(data, rest), device=device)
        log.info("%s nodes of small components are predicted by the model of the largest", f"{len(rest):,}")
    scores = task.scores(logits, data)
    summary = {**summaries[1], "best_epoch": None, "best_valid": scores["valid"], "train": scores["train"],
               "test": scores["test"], "weights_sha256": checkpoint.digest([s["weights_sha256"] for s in summaries.values()]),
               "num_parameters": sum(s["num_parameters"] for s in summaries.values()),
               "wall_seconds": sum(s["wall_seconds"] for s in summaries.values()),
               "data_epochs": max(s["data_epochs"] for s in summaries.values()),
               "components": {str(rank): {key: s[key] for key in ("best_epoch", "best_valid", "test")}
                              for rank, s in summaries.items()}}
    _write_json(folder / "summary.json", summary)
    return summary


def _summary(config: Config, metric: str, result: Result, command: str) -> dict:
    return {
        "experiment": config.name,
        "metric": metric,
        "best_epoch": result.best_epoch + 1,
        "best_valid": result.best_scores["valid"],
        "test": result.best_scores["test"],
        "train": result.best_scores["train"],
        "num_parameters": result.num_parameters,
        "data_epochs": result.epochs,
        "wall_seconds": round(result.wall_seconds, 2),
        "peak_memory_bytes": result.peak_memory_bytes,
        "num_ranks": 1,
        "kernel": result.kernel,
        "seed": config.seed,
        "weights_sha256": result.weights_sha256,
        "versions": {name: metadata.version(name) for name in ("torch", "torch_geometric", "pymetis", "ogb", "hydra-core")}
        | {"python": platform.python_version()},
        "command": command,
    }


def _rows(summary: dict) -> list[tuple[str, str]]:
    rows = [(f"{split} {summary['metric']}", f"{summary[key]:.4f}")
            for split, key in zip(SPLITS, ("train", "best_valid", "test"))]
    for rank, part in summary.get("components", {}).items():
        rows.append((f"  component {rank}", f"valid {part['best_valid']:.4f}, test {part['test']:.4f}, "
                                            f"best epoch {part['best_epoch']}"))
    if summary["best_epoch"] is not None:
        rows.append(("best epoch", f"{summary['best_epoch']} of {summary['data_epochs']}"))
    return rows + [
        ("parameters", f"{summary['num_parameters']:,}"),
        ("aggregation", summary["kernel"]),
        ("wall time", f"{summary['wall_seconds']:.1f} s"),
        ("peak memory", f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"),
        ("weights", summary["weights_sha256"][:16]),
    ]


def _write_json(path: Path, value: dict) -> None:
    # NaN is not JSON; a metric that is undefined is null.
    value = {k: None if isinstance(v, float) and v != v else v for k, v in value.items()}
    checkpoint.write_atomically(path, lambda file: file.write(json.dumps(value, indent=2).encode() + b"\n"))


def resolve(config: Config, folder: Path, *, has_overrides: bool) -> Config:
    """The configuration to run in `folder`: the saved one if a run is resumed there.

    Raises:
        ValueError: the folder holds a run and none is resumed, the resumed one was configured otherwise (the message
            names the keys), or the folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to")
    if config.resume is None:
        if (folder / "config.yaml").exists():
            raise ValueError(f"{folder} already holds a run: continue it with resume={folder}, or choose another directory")
        return config
    saved = configuration.load(folder / "config.yaml")
    if not has_overrides:
        return saved
    differing = [line for line in configuration.differences(saved, config) if not line.startswith(
        tuple(f"{key}:" for key in FREE_TO_DIFFER))]
    if differing:
        raise ValueError(f"resume={config.resume} was configured otherwise: {'; '.join(differing)}. Give the command that "
                         "started it, or resume=DIR alone")
    return config


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="config")
def main(cfg: DictConfig) -> float:
    with cli.readable_errors():
        config = configuration.to_object(cfg)
        settings = HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        has_overrides = any(not override.startswith("resume=") for override in settings.overrides.task)
        config = resolve(config, folder, has_overrides=has_overrides)
        command = " ".join(["python -m pipeline.train", *sys.argv[1:]])
        return run(config, folder, command)["best_valid"]


cli.register_schema()

if __name__ == "__main__":
    cli.run(main)
