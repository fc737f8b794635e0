"""Trains as configured: starts the ranks, opens the graph, fits, and writes the run directory."""

import contextlib
import logging
import logging.config
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
from torch_geometric.data import Data

from pipeline import build, build_embedding, folder as run_folder, footprint, separate
from pipeline.config import Config, ParallelConfig
from pipeline.loop import fit
from pipeline.run import files, pulse, ranks as rank_tools, summary as summaries
from pipeline.run.errors import Stopped
from pipeline.run.launch import launch, start_rank_server
from pipeline.run.log import format_table
from pipeline.run.ranks import Ranks
from pipeline.run.stop import StopRequest
from pipeline.run.threads import restored_threads, threads_per_rank, use_threads
from pipeline.run.watchdog import Limits, watch

log = logging.getLogger(__name__)


def run(config: Config, folder: Path, command: str, *, log_config: dict | None = None) -> dict:
    """Train as configured and write the run directory, in this process or in one for each rank.

    Args:
        folder: the run directory, which exists; a run that it holds is continued.
        command: what the user typed, for the summary.
        log_config: for :func:`logging.config.dictConfig` in the processes of the ranks.

    Returns:
        The content of ``summary.json``, perhaps empty on other ranks of torchrun than the first.

    Raises:
        ValueError: the configuration or the dataset is wrong, or another process uses the directory.
        FloatingPointError: the training diverged.
        RankError: a rank failed.
        Stopped: a signal asked for it, or the watchdog ended it; there is a checkpoint if training had begun.
    """
    parallel = config.parallel
    with StopRequest() as stop:
        ranks = rank_tools.from_environment()  # torchrun's, who has started the others as well
        if ranks is None or ranks.is_first:
            build.check_tracker(config)
        if ranks is not None or parallel.num_ranks == 1:
            ranks = ranks or Ranks()
            with restored_threads(), _watched(parallel, folder, ranks):
                if parallel.threads_per_rank:
                    use_threads(parallel.threads_per_rank)
                return train_as_rank(ranks, stop, config, folder, command)
        with _watched(parallel, folder, None):
            return _launch_ranks(config, folder, command, stop, log_config)


@contextlib.contextmanager
def _watched(parallel: ParallelConfig, folder: Path, ranks: Ranks | None) -> Iterator[None]:
    """Give signs of life, and have the ranks of this machine watched.

    Args:
        ranks: this process among them; none if it starts them.
    """
    launches = ranks is None
    if launches:
        board, place, rank = pulse.Board.create(parallel.num_ranks + 1), parallel.num_ranks, -1
    else:
        board, place, rank = rank_tools.share_board(ranks), ranks.local_rank, ranks.rank
    with contextlib.ExitStack() as stack:
        pulse.join(board, place, rank)
        stack.callback(pulse.leave)
        if launches or ranks.local_rank == 0:
            limits = Limits(parallel.warn_after, parallel.timeout, parallel.stop_timeout)
            stack.enter_context(watch(board, folder, limits, launches=launches))
        yield


def _launch_ranks(config: Config, folder: Path, command: str, stop: StopRequest, log_config: dict | None) -> dict:
    """Check everything once, then start the ranks on this machine and wait for them."""
    num_ranks = config.parallel.num_ranks
    start_rank_server()
    # Here rather than in every rank: what is wrong with the data, and the caches that the ranks share.
    device = build.choose_device(config.device, Ranks(num_ranks=num_ranks, num_local=num_ranks))
    graph = build.open_graph(config)
    config = footprint.resolve(config, graph, device)
    with files.lock(folder):
        run_folder.write_start(folder, config, graph.components)
        threads = threads_per_rank(num_ranks, config.parallel.threads_per_rank)
        log.info("starting %d ranks of %d threads", num_ranks, threads)
        stop.defer()  # the ranks obey it
        with pulse.waiting("waiting for the ranks"):
            summary = launch(_train_launched, num_ranks, threads, stop, config, folder, command,
                             graph.data.content_hash, log_config)
    if summary is None:
        raise Stopped(stop.signum or signal.SIGTERM)
    return summary


def _train_launched(ranks: Ranks, stop: StopRequest, config: Config, folder: Path, command: str, content_hash: str,
                    log_config: dict | None) -> dict | None:
    """Train in a process that :func:`run` has started; none if it was stopped."""
    if log_config is not None:
        logging.config.dictConfig(log_config)
    try:
        return train_as_rank(ranks, stop, config, folder, command, content_hash=content_hash)
    except Stopped:
        return None


def train_as_rank(ranks: Ranks, stop: StopRequest, config: Config, folder: Path, command: str, *,
                  content_hash: str | None = None) -> dict:
    """Train as one of the ranks.

    Args:
        content_hash: of the graph, where another process has opened it and wrote what is known at the start.

    Returns:
        The content of ``summary.json``.
    """
    if not ranks.is_first:
        logging.getLogger().setLevel(logging.WARNING)
    device = build.choose_device(config.device, ranks)
    if ranks.num_ranks > 1:
        rank_tools.join(device, config.parallel.timeout)
    with contextlib.ExitStack() as stack:
        if opens := ranks.is_first and content_hash is None:
            stack.enter_context(files.lock(folder))
            graph = build.open_graph(config)
            config = footprint.resolve(config, graph, device)
            run_folder.write_start(folder, config, graph.components)
        content_hash, config = ranks.broadcast((graph.data.get("content_hash") if opens else content_hash, config))
        if not opens:
            graph = build.open_graph(config, content_hash=content_hash)
        if config.data.components == "separate":
            summary = separate.train_components(train_one, config, graph, folder, device, command, ranks=ranks,
                                                stop=stop)
        else:
            summary = train_one(config, graph.parts[0][1], folder, device, command, ranks=ranks, stop=stop)
        pulse.beat("summing up")
        if ranks.is_first:
            files.write_json(folder / "summary.json", summary)
            log.info("%s", format_table(summaries.tabulate(summary), f"result of {config.name}, in {folder}"))
    ranks.wait()
    return summary


def train_one(config: Config, data: Data, folder: Path, device: torch.device, command: str, *, ranks: Ranks = Ranks(),
              stop: StopRequest | None = None) -> dict:
    """Train one model on a graph, from the last checkpoint in `folder` if there is one.

    Returns:
        The content of ``summary.json``.
    """
    if ranks.is_first:
        footprint.report(config, data, device)
    with build.build_trainer(config, data, device, ranks=ranks, stop=stop) as trainer, \
            build.build_session(config, folder, data, ranks=ranks, stop=stop) as session:
        result = fit(trainer, session)
        if ranks.is_first:
            build_embedding.write_results(config, data, folder)
    return summaries.summarise(
        result, experiment=config.name, metric=trainer.metric, parallel=config.parallel.name,
        lr_scaling=config.parallel.lr_scaling, seed=config.seed, command=command, device=device, ranks=ranks)
