"""The training loop: draw an epoch's clusters, take a step on each, now and then evaluate and save."""

import logging
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data

from models import DeeperGCN
from models.aggregate import backend
from pipeline import checkpoint
from pipeline.config import Config, ModelConfig
from pipeline.loader import BackgroundEpochs, ClusterLoader
from pipeline.log import RunLog
from pipeline.metrics import predict_exact, predict_views
from pipeline.partition import Partitioner, describe, stream
from pipeline.task import NodeTask

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run achieved; metrics are those of the best validation epoch, counted from 0."""

    best_epoch: int
    best_scores: dict[str, float]
    epochs: int
    wall_seconds: float
    num_parameters: int
    kernel: str
    weights_sha256: str
    peak_memory_bytes: int


def device_of(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU if there is one.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device={name}; choose auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name}: torch sees no GPU on this machine")
    return device


def build_model(config: ModelConfig, data: Data, task: NodeTask, *, kernel: str = "auto") -> DeeperGCN:
    """A model with the sizes that the graph and the task ask for.

    Raises:
        ValueError: an unknown name or an impossible size.
    """
    return DeeperGCN(
        task.in_channels, config.hidden_channels, task.out_channels, config.num_layers,
        edge_dim=None if data.edge_attr is None else data.edge_attr.size(1), num_categories=data.num_categories,
        block=config.block, aggr=config.aggr, t=config.t, learn_t=config.learn_t, p=config.p, learn_p=config.learn_p,
        y=config.y, learn_y=config.learn_y, msg_norm=config.msg_norm, learn_msg_scale=config.learn_msg_scale,
        norm=config.norm, num_mlp_layers=config.num_mlp_layers, dropout=config.dropout,
        gradient_checkpointing=config.gradient_checkpointing, kernel=kernel)


def predictor(model: torch.nn.Module, task: NodeTask, loader: ClusterLoader, config: Config,
              device: torch.device) -> Callable[[int], torch.Tensor]:
    """A function from the epoch to the logits of every node, by the method of the configuration."""
    evaluation = config.evaluation

    def predict(epoch: int) -> torch.Tensor:
        model.eval()
        with torch.autocast(device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
            if evaluation.method == "exact":
                return predict_exact(partial(task.predict, model), loader.data, device=device)
            return predict_views(partial(task.predict, model), loader, num_views=evaluation.num_views,
                                 num_parts=evaluation.num_parts, seed=config.seed, epoch=epoch, device=device,
                                 prefetch=config.partition.prefetch)

    return predict


def fit(data: Data, task: NodeTask, config: Config, folder: Path, device: torch.device) -> Result:
    """Train on a graph, from the last checkpoint in `folder` if there is one.

    Every random number is a function of (seed, epoch): a run that was killed and resumed ends with the same bits.

    Args:
        data: a graph as :func:`pipeline.data.load` returns it.
        folder: the run directory, which exists.

    Raises:
        ValueError: the configuration does not fit the graph.
        FloatingPointError: a loss or a gradient is not finite; the weights have not moved.
    """
    train, seed = config.train, config.seed
    partitioner = Partitioner(
        data.edge_index, name=config.partition.name, num_parts=config.partition.num_parts, seed=seed,
        num_micro_parts=config.partition.num_micro_parts, cache=Path(config.cache_dir) / "partitions")
    clusters_per_step = config.partition.clusters_per_step
    steps_per_epoch = math.ceil(partitioner.num_parts / clusters_per_step)

    def draw(epoch: int):
        return partitioner.draw(epoch).merge(clusters_per_step)

    # Compiled here, on first use, rather than in the middle of the first step.
    kernel = backend(torch.empty(1, 1, device=device), torch.empty(2, 0, dtype=torch.int64, device=device),
                     kernel=config.kernel)
    torch.manual_seed(seed)
    model = build_model(config.model, data, task, kernel=config.kernel).to(device)
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train.optimizer]
    optimizer = optimizer_class(model.parameters(), lr=train.lr, weight_decay=train.weight_decay)
    num_parameters = sum(p.numel() for p in model.parameters())
    log.info("model: %d layers x %d channels, %s parameters, on %s",
             config.model.num_layers, config.model.hidden_channels, f"{num_parameters:,}", device)

    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    first_epoch, best_epoch, best_scores, wall_seconds = 0, None, {}, 0.0
    saved = checkpoint.load_last(checkpoints)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch, wall_seconds = saved["epoch"] + 1, saved["wall_seconds"]
        best_epoch, best_scores = saved["best_epoch"], saved["best_scores"]
        log.info("resumed after epoch %d of %d", first_epoch, train.epochs)

    loader = ClusterLoader(data, pin_memory=device.type == "cuda")
    predict = predictor(model, task, loader, config, device)
    last_epoch = first_epoch - 1
    begun = time.perf_counter() - wall_seconds
    with RunLog(folder, metric=task.metric, first_epoch=first_epoch, tensorboard=config.tensorboard) as run_log:
        start = time.perf_counter()
        partition = draw(first_epoch)
        quality = describe(data.edge_index, partition, time.perf_counter() - start)
        log.info("partition: %s, %s", config.partition.name, quality)
        run_log.record("partition", name=config.partition.name, metric=task.metric, epoch=first_epoch, sizes=quality.sizes,
                       kept_edges=quality.kept_edges, num_edges=quality.num_edges, cut=quality.cut,
                       imbalance=quality.imbalance, seconds=quality.seconds)

        with BackgroundEpochs(loader, draw, first_epoch, train.epochs, prefetch=config.partition.prefetch) as epochs:
            for epoch in range(first_epoch, train.epochs):
                if _out_of_patience(epoch, best_epoch, config):
                    log.info("no better validation metric in %d evaluations: stopping", train.patience)
                    break
                start = time.perf_counter()
                torch.manual_seed(int(stream("dropout", seed, epoch).integers(2**63)))
                model.train()
                total_loss = total_count = 0.0
                for index, batch in enumerate(run_log.progress(epochs.epoch(epoch), steps_per_epoch)):
                    step = epoch * steps_per_epoch + index
                    for group in optimizer.param_groups:
                        group["lr"] = train.lr * min(1, (step + 1) / max(train.warmup_steps, 1))

                    batch = batch.to(device, non_blocking=True)
                    with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
                        loss_sum, count = task.loss(model, batch)
                    # A cluster without a label has a gradient of zero, not of NaN.
                    loss = loss_sum / count.clamp(min=1)
                    if not torch.isfinite(loss):
                        raise _not_finite("loss", loss, epoch, index, batch)
                    optimizer.zero_grad()
                    loss.backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip_grad_norm or math.inf)
                    if not torch.isfinite(norm):
                        raise _not_finite("gradient norm", norm, epoch, index, batch)
                    optimizer.step()
                    total_loss += float(loss_sum.detach())
                    total_count += float(count)
                last_epoch = epoch
                seconds, hidden = time.perf_counter() - start, epochs.hidden

                # Once in a while: evaluate and save.
                scores = None
                if (epoch + 1) % train.eval_every == 0 or epoch + 1 == train.epochs:
                    scores = task.scores(predict(epoch), data)
                    better = best_epoch is None or not scores["valid"] <= best_scores["valid"]
                    if better:
                        best_epoch, best_scores = epoch, scores
                        checkpoint.save(checkpoints / "best.pt", {
                            "model": model.state_dict(), "epoch": epoch, "scores": scores})
                    wall_seconds = time.perf_counter() - begun
                    checkpoint.save_last(checkpoints, {
                        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch,
                        "best_epoch": best_epoch, "best_scores": best_scores, "wall_seconds": wall_seconds})

                mean_loss = total_loss / max(total_count, 1)
                run_log.record("epoch", epoch=epoch, data_epochs=epoch + 1, step=(epoch + 1) * steps_per_epoch,
                               loss=mean_loss, lr=optimizer.param_groups[0]["lr"], grad_norm=float(norm),
                               seconds=seconds, wall_seconds=time.perf_counter() - begun, hidden=hidden,
                               draw_seconds=epochs.busy_seconds, **(scores or {}))
                run_log.epoch_line(epoch=epoch, epochs=train.epochs, loss=mean_loss, seconds=seconds, hidden=hidden,
                                   scores=scores, best_epoch=best_epoch)

    return Result(best_epoch=best_epoch, best_scores=best_scores, epochs=last_epoch + 1, wall_seconds=wall_seconds,
                  num_parameters=num_parameters, kernel=kernel, weights_sha256=checkpoint.digest(model.state_dict()),
                  peak_memory_bytes=peak_memory_bytes(device))


def _out_of_patience(epoch: int, best_epoch: int | None, config: Config) -> bool:
    patience, every = config.train.patience, config.train.eval_every
    return patience > 0 and best_epoch is not None and epoch // every - (best_epoch + 1) // every >= patience


def _not_finite(what: str, value: torch.Tensor, epoch: int, step: int, batch: Data) -> FloatingPointError:
    return FloatingPointError(f"{what} is {float(value.detach())} in epoch {epoch + 1}, step {step + 1}, cluster "
                              f"{batch.cluster + 1} ({batch.num_nodes:,} nodes); the weights have not moved. Try a lower "
                              "train.lr, train.clip_grad_norm or train.precision=fp32.")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory in use so far: of the process, or of its tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
