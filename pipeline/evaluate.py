"""`python -m pipeline.evaluate run=DIR`: the metrics of a checkpoint, by views or exactly, and its predictions."""

import dataclasses
import logging
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from pipeline import checkpoint, cli, config as configuration, graph
from pipeline.config import EvaluateConfig
from pipeline.data import load
from pipeline.loader import ClusterLoader
from pipeline.log import table
from pipeline.loop import build_model, device_of, predictor
from pipeline.task import NodeTask

log = logging.getLogger(__name__)


def run(options: EvaluateConfig) -> dict[str, float]:
    """Evaluate a checkpoint of a run.

    Returns:
        The metric of each split.

    Raises:
        ValueError: no such run or checkpoint, a damaged checkpoint, or an unknown method.
    """
    folder = Path(options.run)
    config = configuration.load(folder / "config.yaml")
    if config.data.components == "separate":
        raise ValueError(f"{folder} holds a model for each component: evaluate one of "
                         f"{', '.join(sorted(str(path) for path in folder.glob('component_*')))}")
    if options.checkpoint not in ("best", "last"):
        raise ValueError(f"unknown checkpoint={options.checkpoint}; choose best or last")
    given = {key: getattr(options, key) for key in ("method", "num_views", "num_parts") if getattr(options, key) is not None}
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
    configuration.check(config)
    state = checkpoint.load(folder / "checkpoints" / f"{options.checkpoint}.pt")

    data = load(config.data, config.cache_dir)
    data = graph.select(data, graph.connected_components(data), config.data.components)
    device = device_of(options.device)
    task = NodeTask(data, label_input=config.train.label_input)
    model = build_model(config.model, data, task, kernel=config.kernel).to(device)
    model.load_state_dict(state["model"])
    logits = predictor(model, task, ClusterLoader(data, device=device), config)(state["epoch"])
    scores = task.scores(logits, data, official=True)
    rows = [(f"{split} {task.metric}", f"{score:.4f}") for split, score in scores.items()]
    log.info("%s", table(rows, f"{options.checkpoint} checkpoint of {folder}, epoch {state['epoch'] + 1}, by {config.evaluation.method}"))
    if options.predictions is not None:
        predictions = {"logits": logits}
        if "n_id" in data:
            predictions["n_id"] = data.n_id
        path = Path(options.predictions)
        checkpoint.write_atomically(path, lambda file: torch.save(predictions, file))
        log.info("logits of %s nodes in %s", f"{len(logits):,}", path)
    return scores


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    with cli.readable_errors():
        if OmegaConf.is_missing(cfg, "run"):
            raise ValueError("which run? python -m pipeline.evaluate run=DIR")
        run(OmegaConf.to_object(cfg))


cli.register_schema()

if __name__ == "__main__":
    cli.run(main)
