"""The training loop: draw an epoch's clusters, take a step on each, now and then evaluate and save."""

import dataclasses
import logging
import math
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data

from models import DeeperGCN
from models.aggregate import backend
from pipeline import checkpoint
from pipeline.config import Config, ModelConfig
from pipeline.distributed import Agreement, GradientSync, Ranks, Stopped, StopRequest
from pipeline.loader import BackgroundEpochs, ClusterLoader
from pipeline.log import RunLog
from pipeline.metrics import predict_exact, predict_views
from pipeline.partition import Partitioner, describe, stream
from pipeline.schedule import Progress, Schedule
from pipeline.task import NodeTask

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run achieved; metrics are those of the best validation epoch, a wall epoch counted from 0."""

    best_epoch: int
    best_scores: dict[str, float]
    data_epochs: int
    epochs: int
    wall_seconds: float
    num_parameters: int
    kernel: str
    weights_sha256: str
    peak_memory_bytes: int


def device_of(name: str, ranks: Ranks = Ranks()) -> torch.device:
    """The device of a name; "auto" takes a GPU if there is one, and each rank of a machine its own.

    Raises:
        ValueError: there is no such device here, or fewer GPUs than ranks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"unknown device={name}; choose auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(f"device={name}: torch sees no GPU on this machine")
    if ranks.num_local == 1:
        return torch.device(name)
    if name != "cuda" or torch.cuda.device_count() < ranks.num_local:
        raise ValueError(f"device={name} for {ranks.num_local} ranks on a machine with {torch.cuda.device_count()} GPUs: "
                         "every rank needs one of its own. Set parallel.num_ranks or device=cpu")
    return torch.device("cuda", ranks.local_rank)


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


def partitioner_of(config: Config, data: Data) -> Partitioner:
    """What draws the partitions of a run.

    Raises:
        ValueError: the configured partition does not fit the graph.
    """
    return Partitioner(
        data.edge_index, name=config.partition.name, num_parts=config.partition.num_parts, seed=config.seed,
        num_micro_parts=config.partition.num_micro_parts, cache=Path(config.cache_dir) / "partitions")


def predictor(model: torch.nn.Module, task: NodeTask, loader: ClusterLoader, config: Config,
              ranks: Ranks = Ranks()) -> Callable[[int], torch.Tensor]:
    """A function from the epoch to the logits of every node, by the method of the configuration."""
    evaluation = config.evaluation

    def predict(epoch: int) -> torch.Tensor:
        model.eval()
        with torch.autocast(loader.device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
            if evaluation.method == "exact":
                return predict_exact(partial(task.predict, model), loader.data, device=loader.device, ranks=ranks)
            return predict_views(partial(task.predict, model), loader, out_channels=task.out_channels,
                                 num_views=evaluation.num_views, num_parts=evaluation.num_parts, seed=config.seed,
                                 epoch=epoch, prefetch=config.partition.prefetch, ranks=ranks)

    return predict


def fit(data: Data, task: NodeTask, config: Config, folder: Path, device: torch.device, ranks: Ranks = Ranks(),
        stop: StopRequest | None = None) -> Result:
    """Train on a graph, from the last checkpoint in `folder` if there is one.

    Every random number is a function of (seed, epoch, step, rank): a run that was killed and resumed on the same
    machine with as many threads and ranks ends with the same bits.

    Args:
        data: a graph as :func:`pipeline.data.load` returns it.
        folder: the run directory, which exists.
        ranks: all of which call this together; the first writes the run directory.
        stop: looked at after every step.

    Raises:
        ValueError: the configuration does not fit the graph, or the checkpoint is of another dataset or number of
            ranks.
        FloatingPointError: a loss or a gradient is not finite; the weights have not moved.
        RankError: the ranks' weights differ.
        Stopped: `stop` asked for it; the checkpoint is saved.
    """
    train, seed = config.train, config.seed
    stop = stop or StopRequest()
    partitioner = partitioner_of(config, data)
    schedule = Schedule(config, partitioner, ranks)

    # Compiled here, on first use, rather than in the middle of the first step.
    with ranks.first_then_others():
        kernel = backend(torch.empty(1, 1, device=device), torch.empty(2, 0, dtype=torch.int64, device=device),
                         kernel=config.kernel)
    torch.manual_seed(seed)
    model = build_model(config.model, data, task, kernel=config.kernel).to(device)
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train.optimizer]
    optimizer = optimizer_class(model.parameters(), lr=train.lr, weight_decay=train.weight_decay, fused=True)
    sync = GradientSync(model, ranks)
    num_parameters = sum(p.numel() for p in model.parameters())
    log.info("model: %d layers x %d channels, %s parameters, on %s",
             config.model.num_layers, config.model.hidden_channels, f"{num_parameters:,}", device)
    log.info("%s", schedule.describe())

    # Sums are rounded differently by another device, and by another number of threads outside of the fused kernel.
    arithmetic = f"{device.type}, {torch.get_num_threads()} threads, {kernel}"
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    at = Progress()
    with ranks.first_then_others():
        saved = checkpoint.load_last(checkpoints)
    if saved is not None:
        if saved["num_ranks"] != ranks.num_ranks and not config.resume_allow_rescale:
            raise ValueError(f"{folder} was trained by {saved['num_ranks']} ranks, not {ranks.num_ranks}: their number "
                             "decides on the partitions and the learning rate. resume_allow_rescale=true goes on from the "
                             "checkpoint with the learning rate of the new number")
        if saved["content_hash"] != data.get("content_hash"):
            raise ValueError(f"{folder}: the dataset is not the one that this run was started with; restore it, or start "
                             "a new run")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        at = Progress(**saved["progress"])
        if saved["num_ranks"] != ranks.num_ranks and at.steps_in_epoch:
            log.warning("the wall epoch that had begun starts again with the new number of ranks")
            at = dataclasses.replace(at, steps_in_epoch=0, loss_sum=0.0, loss_count=0.0)
        log.info("resumed after %d of %d epochs%s", at.data_epochs, train.epochs,
                 f" and {at.steps_in_epoch} steps" if at.steps_in_epoch else "")
        if saved["arithmetic"] != arithmetic:
            log.warning("started on %s, continued on %s: the last bits of the result may differ", saved["arithmetic"],
                        arithmetic)

    def save() -> None:
        if ranks.is_first:
            at.wall_seconds = time.perf_counter() - begun
            checkpoint.save_last(checkpoints, {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": max(at.epoch - 1, 0),
                "progress": dataclasses.asdict(at), "num_ranks": ranks.num_ranks, "content_hash": data.get("content_hash"),
                "arithmetic": arithmetic})

    def stopped() -> Stopped:
        save()
        ranks.wait()  # who starts the ranks may end them all when the first of them has ended
        return Stopped(stop.signum or signal.SIGTERM)

    def assert_same_weights() -> None:
        if ranks.num_ranks > 1:
            ranks.assert_equal(checkpoint.digest(model.state_dict()), "the weights")

    loader = ClusterLoader(data, device=device)
    predict = predictor(model, task, loader, config, ranks)
    begun = time.perf_counter() - at.wall_seconds
    assert_same_weights()
    with RunLog(folder if ranks.is_first else None, metric=task.metric, first_epoch=at.epoch,
                tensorboard=config.tensorboard) as run_log:
        start = time.perf_counter()
        with ranks.first_then_others():  # METIS leaves its cut in the cache
            partition, _ = schedule.draw(at.epoch, at.data_epochs)
        if ranks.is_first:
            quality = describe(data.edge_index, partition, time.perf_counter() - start)
            log.info("partition: %s, %s", config.partition.name, quality)
            run_log.record("partition", name=config.partition.name, metric=task.metric, epoch=at.epoch,
                           sizes=quality.sizes, kept_edges=quality.kept_edges, num_edges=quality.num_edges,
                           cut=quality.cut, imbalance=quality.imbalance, seconds=quality.seconds)

        with BackgroundEpochs(loader, schedule.remaining(at), prefetch=config.partition.prefetch) as epochs:
            while at.data_epochs < train.epochs:
                if 0 < train.patience <= at.evaluations:
                    log.info("no better validation metric in %d evaluations: stopping", train.patience)
                    break
                start, sync.seconds = time.perf_counter(), 0.0
                model.train()
                batches = _padded(epochs.epoch(at.epoch), schedule.num_steps - at.steps_in_epoch)
                for batch in run_log.progress(batches, schedule.num_steps, at.steps_in_epoch):
                    torch.manual_seed(int(stream("dropout", seed, at.epoch, at.steps_in_epoch, ranks.rank).integers(2**63)))
                    rate = schedule.learning_rate(at.step, at.data_epochs)
                    for group in optimizer.param_groups:
                        group["lr"] = rate

                    optimizer.zero_grad()
                    loss_sum = count = None
                    if batch is not None:
                        batch = batch.to(device, non_blocking=True)
                        with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
                            loss_sum, count = task.loss(model, batch)
                        loss_sum.backward()
                    agreed = sync(loss_sum, count, stop.signum != 0)
                    # Clusters without a label have a gradient of zero, not of NaN.
                    scale = 1 / max(agreed.count, 1)
                    torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], scale)
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip_grad_norm or math.inf)
                    if not math.isfinite(agreed.loss_sum) or not torch.isfinite(norm):
                        raise _not_finite(agreed, norm, at, batch, ranks)
                    optimizer.step()
                    at.step += 1
                    at.steps_in_epoch += 1
                    at.loss_sum += agreed.loss_sum
                    at.loss_count += agreed.count
                    if at.step % config.parallel.check_every == 0:
                        assert_same_weights()
                    if agreed.stop and at.steps_in_epoch < schedule.num_steps:
                        raise stopped()
                seconds, hidden = time.perf_counter() - start, epochs.hidden
                before, epoch = at.data_epochs, at.epoch
                mean_loss = at.loss_sum / max(at.loss_count, 1)
                at.data_epochs += schedule.num_data_epochs(at.data_epochs)
                at.epoch, at.steps_in_epoch, at.loss_sum, at.loss_count = at.epoch + 1, 0, 0.0, 0.0

                scores, evaluates = None, schedule.evaluates(at.data_epochs, before)
                if evaluates:
                    assert_same_weights()
                    logits = predict(epoch)
                    scores = ranks.broadcast(task.scores(logits, data) if ranks.is_first else None)
                    at.evaluations += 1
                    if at.best_epoch is None or not scores["valid"] <= at.best_scores["valid"]:
                        at.best_epoch, at.best_scores, at.evaluations = epoch, scores, 0
                        if ranks.is_first:
                            checkpoint.save(checkpoints / "best.pt", {
                                "model": model.state_dict(), "epoch": epoch, "scores": scores})

                run_log.record("epoch", epoch=epoch, data_epochs=at.data_epochs, step=at.step, loss=mean_loss, lr=rate,
                               grad_norm=float(norm), seconds=seconds, wall_seconds=time.perf_counter() - begun,
                               hidden=hidden, draw_seconds=epochs.busy_seconds, sync_seconds=sync.seconds, **(scores or {}))
                run_log.epoch_line(epoch=at.data_epochs, epochs=train.epochs, loss=mean_loss, seconds=seconds, hidden=hidden,
                                   synced=sync.seconds / seconds if ranks.num_ranks > 1 else None, scores=scores,
                                   is_best=at.best_epoch == epoch)
                # After the record: a resumed run drops the records behind its checkpoint, and could not add one.
                if evaluates:
                    save()
                if agreed.stop and at.data_epochs < train.epochs:
                    raise stopped()

    return Result(best_epoch=at.best_epoch, best_scores=at.best_scores, data_epochs=at.data_epochs, epochs=at.epoch,
                  wall_seconds=time.perf_counter() - begun, num_parameters=num_parameters, kernel=kernel,
                  weights_sha256=checkpoint.digest(model.state_dict()), peak_memory_bytes=peak_memory_bytes(device))


def _padded(batches: Iterator[Data], num_steps: int) -> Iterator[Data | None]:
    """The batches, and nothing for each step without one."""
    count = 0
    for count, batch in enumerate(batches, start=1):
        yield batch
    yield from [None] * (num_steps - count)


def _not_finite(agreed: Agreement, norm: torch.Tensor, at: Progress, batch: Data | None, ranks: Ranks) -> FloatingPointError:
    what, value = ("gradient norm", norm) if math.isfinite(agreed.loss_sum) else ("loss", agreed.loss_sum)
    where = f"epoch {at.epoch + 1}, step {at.steps_in_epoch + 1}"
    if ranks.num_ranks > 1:
        where += f", of rank {', '.join(map(str, agreed.broken))}"
    elif batch is not None:
        where += f", cluster {batch.cluster + 1} ({batch.num_nodes:,} nodes)"
    return FloatingPointError(f"{what} is {float(value)} in {where}; the weights have not moved. Try a lower train.lr, "
                              "train.clip_grad_norm or train.precision=fp32.")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory in use so far: of the process, or of its tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
