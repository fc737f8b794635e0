"""Trains as configured: starts the ranks, opens the graph, fits, and writes the run directory."""

import contextlib
import logging
import logging.config
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from parallel_epochs.models.kernels.native import builds, check_simd
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import ParallelConfig, RunConfig, settings, write_config
from parallel_epochs.pipeline.data import inspection
from parallel_epochs.pipeline.data.opened import OpenData, Part, download
from parallel_epochs.pipeline.loop import fit
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.products import PRODUCTS, product_of
from parallel_epochs.pipeline.run import (
    baseline_file,
    files,
    pulse,
    ranks as rank_tools,
    summary as summaries,
)
from parallel_epochs.pipeline.run.contract import Trainer
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.launch import launch, start_rank_server
from parallel_epochs.pipeline.run.log import format_score, format_table
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory
from parallel_epochs.pipeline.run.ranks import Ranks, choose_device
from parallel_epochs.pipeline.run.session import Session
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.storage import free_space
from parallel_epochs.pipeline.run.threads import restored_threads, threads_per_rank, use_threads
from parallel_epochs.pipeline.run.tracker import find_tracker
from parallel_epochs.pipeline.run.watchdog import Limits, watch
from parallel_epochs.pipeline.run.words import command_of, count

log = logging.getLogger(__name__)


# Memory of a process with torch; most of it is shared with the other ranks.
BYTES_PER_RANK = 50_000_000


def check(config: RunConfig) -> None:
    """Refuse what the configuration and the machine rule out, before anything is opened or written.

    Raises:
        ValueError: names the key, the file or the environment variable.
    """
    check_simd()
    find_tracker(config.tracker.name, config.tracker.path)
    files.check_folder("cache_dir", Path(config.cache_dir))
    num_ranks, available = config.parallel.num_ranks, machine_memory()
    if num_ranks * BYTES_PER_RANK > available:
        raise ValueError(
            f"parallel.num_ranks={num_ranks}: a rank takes at least {format_bytes(BYTES_PER_RANK)}, but "
            f"this machine has {format_bytes(available)}"
        )
    product_of(config).check(config)


def check_new(config: RunConfig) -> None:
    """Refuse what no new run can have, its device included, before any directory is made; see :func:`check`.

    Raises:
        ValueError: names the key, the file or the environment variable.
    """
    if config.resumes:
        return  # what else it takes is known when the run's own configuration is read
    check(config)
    choose_device(
        config.device_name,
        rank_tools.from_environment()
        or Ranks(num_ranks=config.parallel.num_ranks, num_local=config.parallel.num_ranks),
    )


def prepare(config: RunConfig) -> None:
    """Fill the caches for a configuration: dataset, prepared graph, partitions by METIS, nearest neighbours.

    Raises:
        ValueError: the dataset is inconsistent, or the partition impossible.
        OSError: a download failed.
    """
    download(config.data)
    product = product_of(config)
    for part in product.open_data(config, choose_device(config.device_name)).parts:
        product.prepare(part)


def describe_data(config: RunConfig) -> str:
    """Open the dataset of a configuration as a run would, and say what was found; nothing is trained.

    Returns:
        A table: what there is of the data and what is odd, the memory that training takes where that is known, and the
        free disk.

    Raises:
        ValueError: the configuration or the dataset is wrong.
    """
    opened = open_data(config, choose_device(config.device_name))
    largest = max(opened.parts, key=lambda part: part.data.num_nodes)
    rows = inspection.describe(opened.data)
    if memory := product_of(config).memory_of(largest):
        rows.append(("memory", memory))
    folder = Path(config.cache_dir)
    rows.append(("free disk", f"{format_bytes(free_space(folder))} at cache_dir={folder}"))
    return format_table(rows, f"{opened.config.data.origin()}, for trainer={config.trainer.name}")


def find_baselines(config: RunConfig, whose: str = "") -> str:
    """Fit simple methods to the dataset of a configuration, and keep their scores in the cache, where runs find them.

    Args:
        whose: names the run that the configuration is of, for messages; "" for one of the command line.

    Returns:
        A table: the metric of each method on each split.

    Raises:
        ValueError: the configuration or the dataset is wrong, or no simple method is known for it.
    """
    find = product_of(config).baselines
    if find is None:
        raise ValueError(
            f"{whose}no simple method is known for trainer={config.trainer.name}: baselines is for "
            + " and ".join(
                f"trainer={name}"
                for name, known in PRODUCTS.items()
                if product_of(known.config()).baselines
            )
        )
    part = open_data(config, torch.device("cpu")).parts[0]
    if part.number is not None or part.data.on_disk:
        key = "data.on_disk=true" if part.number is None else "data.components=separate"
        mend = (
            "Give the keys of its data in place of run=DIR, without this one"
            if whose
            else "Leave the key out"
        )
        raise ValueError(f"{whose}{key}: baselines needs one graph, in memory. {mend}")
    found = []
    metric, baselines = find(part)
    for baseline in baselines:
        log.info("%s: %.1f s", baseline.name, baseline.seconds)
        found.append(baseline)
    path = baseline_file.path_of(config.cache_dir, part.data.content_hash, metric)
    baseline_file.save(path, metric, {baseline.name: baseline.scores for baseline in found})
    best = baseline_file.load_best(path)
    rows = []
    for baseline in found:
        shown = {
            split: "-" if score != score else format_score(score)
            for split, score in baseline.scores.items()
        }
        mark = "  best validation" if best and baseline.name == best["name"] else ""
        rows.append(
            (baseline.name, "  ".join(f"{split} {shown[split]:<6}" for split in SPLITS) + mark)
        )
    return format_table(rows, f"{metric} of simple methods on {config.data.origin()}")


def run(
    config: RunConfig,
    folder: Path,
    command: str,
    *,
    log_config: dict | None = None,
    beside: Callable[[StopRequest], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> dict:
    """Train as configured and write the run directory, in this process or in one for each rank.

    Args:
        folder: the run directory, which exists; a run that it holds is continued.
        command: what the user typed, for the summary.
        log_config: for :func:`logging.config.dictConfig` in the processes of the ranks.
        beside: goes on in this process while the run does, and may ask it to stop.

    Returns:
        The content of ``summary.json``, perhaps empty on other ranks of torchrun than the first.

    Raises:
        ValueError: the configuration or the dataset is wrong, or another process uses the directory.
        FloatingPointError: the training diverged.
        RankError: a rank failed.
        Stopped: a signal asked for it, or the watchdog ended it; there is a checkpoint if training had begun.
    """
    parallel, began = config.parallel, time.time()
    with StopRequest() as stop, beside(stop):
        ranks = rank_tools.from_environment()  # torchrun's, who has started the others as well
        if ranks is None or ranks.is_first:
            getattr(find_tracker(config.tracker.name, config.tracker.path), "check", lambda: None)()
        if ranks is not None or parallel.num_ranks == 1:
            ranks = ranks or Ranks()
            with restored_threads(), _watched(parallel, folder, ranks):
                if parallel.threads_per_rank:
                    use_threads(parallel.threads_per_rank)
                return train_as_rank(ranks, stop, config, folder, command, began=began)
        with _watched(parallel, folder, None):
            return _launch_ranks(config, folder, command, stop, log_config, began)


@contextlib.contextmanager
def _watched(parallel: ParallelConfig, folder: Path, ranks: Ranks | None) -> Iterator[None]:
    """Send heartbeats, and start the watchdog of this machine's ranks.

    Args:
        ranks: the ranks that this process is one of; None if it is the launcher.
    """
    if ranks is None:
        board, place, rank = pulse.Board.create(parallel.num_ranks + 1), parallel.num_ranks, -1
    else:
        board, place, rank = rank_tools.share_board(ranks), ranks.local_rank, ranks.rank
    with contextlib.ExitStack() as stack:
        pulse.join(board, place, rank)
        stack.callback(pulse.leave)
        if ranks is None or ranks.local_rank == 0:
            limits = Limits(parallel.timeout / 20, parallel.timeout, parallel.stop_timeout)
            stack.enter_context(watch(board, folder, limits, launches=ranks is None))
        yield


def _launch_ranks(
    config: RunConfig,
    folder: Path,
    command: str,
    stop: StopRequest,
    log_config: dict | None,
    began: float,
) -> dict:
    """Check everything once, then start the ranks on this machine and wait for them."""
    num_ranks = config.parallel.num_ranks
    start_rank_server()
    # Here rather than in every rank: what is wrong with the data, and the caches that the ranks share.
    device = choose_device(config.device_name, Ranks(num_ranks=num_ranks, num_local=num_ranks))
    opened = open_data(config, device)
    config = opened.config
    with files.lock(folder):
        _write_start(folder, opened)
        threads = threads_per_rank(num_ranks, config.parallel.threads_per_rank)
        log.info("starting %d ranks of %s", num_ranks, count(threads, "thread"))
        with pulse.waiting("waiting for the ranks"):
            summary = launch(
                _train_launched,
                num_ranks,
                threads,
                stop,
                config,
                folder,
                command,
                opened.data.content_hash,
                log_config,
                began,
            )
    if summary is None:
        raise Stopped(stop.signum or signal.SIGTERM)
    return summary


def _train_launched(
    ranks: Ranks,
    stop: StopRequest,
    config: RunConfig,
    folder: Path,
    command: str,
    content_hash: str,
    log_config: dict | None,
    began: float,
) -> dict | None:
    """Train in a process that :func:`run` has started; none if it was stopped."""
    if log_config is not None:
        logging.config.dictConfig(log_config)
    try:
        return train_as_rank(
            ranks, stop, config, folder, command, content_hash=content_hash, began=began
        )
    except Stopped:
        return None


def train_as_rank(
    ranks: Ranks,
    stop: StopRequest,
    config: RunConfig,
    folder: Path,
    command: str,
    *,
    content_hash: str | None = None,
    began: float,
) -> dict:
    """Train as one of the ranks.

    Args:
        content_hash: of the graph, where another process has opened it and wrote what is known at the start.
        began: time at which the command began.

    Returns:
        The content of ``summary.json``.
    """
    if not ranks.is_first:
        logging.getLogger().setLevel(logging.WARNING)
    device = choose_device(config.device_name, ranks)
    if ranks.num_ranks > 1:
        rank_tools.join(device, config.parallel.timeout)
    with contextlib.ExitStack() as stack:
        if opens := ranks.is_first and content_hash is None:
            stack.enter_context(files.lock(folder))
            opened = open_data(config, device)
            config = opened.config
            _write_start(folder, opened)
        content_hash, config = ranks.broadcast(
            (opened.data.get("content_hash") if opens else content_hash, config)
        )
        if not opens:
            opened = open_data(config, device, content_hash=content_hash)
        opening = time.time() - began
        train = partial(_train_one, root=folder, command=command, ranks=ranks, stop=stop)
        summary = product_of(config).train_parts(train, opened, folder, ranks=ranks)
        pulse.beat("summing up")
        if ranks.is_first:
            best = baseline_file.load_best(
                baseline_file.path_of(
                    config.cache_dir, opened.parts[0].data.get("content_hash"), summary["metric"]
                )
            )
            summary |= ({"baseline": best} if best else {}) | summaries.of_trials(folder)
            summary |= {"opening_seconds": opening, "command_seconds": time.time() - began}
            files.write_json(folder / "summary.json", summary)
            log.info(
                "%s",
                format_table(summaries.tabulate(summary), f"result of {config.name}, in {folder}"),
            )
            _say_what_next(config, folder, is_compared=best is not None or "base" in summary)
    ranks.wait()
    return summary


def _say_what_next(config: RunConfig, folder: Path, *, is_compared: bool) -> None:
    quoted = shlex.quote(str(folder))
    written = (
        "output=FILE.csv"
        if hasattr(PRODUCTS[config.trainer.name].predict, "output")
        else "predictions=FILE.npy"
    )
    log.info(
        "next: %s %s, %s run=%s %s",
        command_of("report"),
        quoted,
        command_of("predict"),
        quoted,
        written,
    )
    if product_of(config).baselines and not is_compared:
        log.info("is a simple method as good? %s run=%s tells", command_of("baselines"), quoted)


def open_data(
    config: RunConfig,
    device: torch.device = torch.device("cpu"),
    *,
    content_hash: str | None = None,
) -> OpenData:
    """Open the dataset of a run by its product, after :func:`check`.

    Args:
        content_hash: of the data, where another process has opened them a moment ago and told of them in the log.

    Raises:
        ValueError: the configuration is wrong, or the dataset is, or they do not fit each other.
    """
    check(config)
    return product_of(config).open_data(config, device, content_hash=content_hash)


def _write_start(folder: Path, opened: OpenData) -> None:
    """Write what is known before the first step; config.yaml alone says how the run is continued."""
    write_config(opened.config, folder)
    if opened.components is not None:
        files.write_json(folder / "components.json", opened.components.record())
    product_of(opened.config).write_start(opened.parts[0], folder)


def _train_one(
    part: Part, folder: Path, *, root: Path, command: str, ranks: Ranks, stop: StopRequest | None
) -> dict:
    """Train one model; one of several, of a component for example, in a run directory of its own below that of the run."""
    train = partial(train_part, part, folder, command=command, ranks=ranks, stop=stop)
    if folder == root:
        return train()
    files.own_folder(folder)
    if ranks.is_first:
        write_config(part.config, folder)
    summary = train()
    if ranks.is_first:
        files.write_json(folder / "summary.json", summary)
    return summary


def train_part(
    part: Part,
    folder: Path,
    *,
    command: str,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> dict:
    """Train one model, from the last checkpoint in `folder` if there is one.

    Returns:
        The content of ``summary.json``.
    """
    config, product, began = part.config, product_of(part.config), time.perf_counter()
    pulse.beat("preparing the training", pulse.State.LONG)
    if ranks.is_first:
        product.report(part)
    with (
        contextlib.closing(product.build(part, ranks=ranks, stop=stop)) as trainer,
        build_session(part, trainer, folder, ranks=ranks, stop=stop, began=began) as session,
    ):
        result = fit(trainer, session)
        ended = time.perf_counter()
        if ranks.is_first:
            product.write_results(part, folder)
        more = product.finish(part, trainer, folder, ranks=ranks, stop=stop)
    seconds = result["wall_seconds"] + time.perf_counter() - ended
    summary = result | summaries.describe(
        experiment=config.name,
        parallel=config.parallel.name,
        lr_scaling=config.lr_scaling,
        seed=config.seed,
        command=command,
        device=part.device,
        ranks=ranks,
        libraries=builds(),
    )
    if "scores" in more:
        more["scores"] = summary.get("scores", {}) | more["scores"]
    return summary | {"wall_seconds": round(seconds, 2)} | more


def build_session(
    part: Part,
    trainer: Trainer,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
    began: float | None = None,
) -> Session:
    """Build what keeps a run in its directory; see :class:`Session`."""
    config, tracker = part.config, find_tracker(part.config.tracker.name, part.config.tracker.path)
    product = product_of(config)
    open_tracker = (
        None
        if tracker is None
        else partial(
            tracker,
            folder,
            name="/".join(folder.resolve().parts[-2:]),
            best="min" if trainer.about.lower_is_better else "max",
            settings={entry.name: entry.value for entry in keys.entries(config)},
        )
    )
    return Session(
        folder,
        data_hash=part.data.get("content_hash"),
        settings=settings(config),
        patience=config.train.patience,
        allow_rescale=config.resume_allow_rescale,
        open_tracker=open_tracker,
        on_best=partial(product.write_best, part, trainer, folder),
        ranks=ranks,
        stop=stop,
        began=began,
    )
