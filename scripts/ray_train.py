"""`python -m scripts.ray_train`: train a run on a Ray cluster. Each worker of Ray Train is a rank.

Arguments that begin with ``ray.`` are those of this command, see :class:`Options`. All others are those of
`python -m pipeline.train`. When a worker or its machine is lost, Ray Train starts all workers again, and the run goes
on from its last checkpoint.
"""

import dataclasses
import logging.config
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, folder as run_folder
from parallel_epochs.pipeline.command.entry_points import check_new
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.run.errors import RankError, Stopped, install_command, printable
from parallel_epochs.pipeline.run.watchdog import LONG_FACTOR
from parallel_epochs.pipeline.run.words import count


@dataclass
class Options:
    """The arguments that begin with ``ray.``.

    Attributes:
        address: of the cluster. "local" begins one on this machine. "" is the one that runs here, or else as "local".
        num_workers: number of ranks.
        cpus: processors that each of them gets.
        gpus: GPUs that each of them gets. -1: one if the cluster has any, else none.
        max_failures: restarts after which the run ends with the last failure.
        wait: seconds to wait for enough machines to join the cluster.
    """

    address: str = ""
    num_workers: int = 1
    cpus: int = 1
    gpus: int = -1
    max_failures: int = 3
    wait: int = 0


def parse(given: list[str]) -> tuple[Options, list[str]]:
    """Split the arguments into those of this command and those of `pipeline.train`.

    Raises:
        ValueError: names the argument.
    """
    options, others = Options(), [argument for argument in given if not argument.startswith("ray.")]
    for argument in given:
        name, _, text = argument.removeprefix("ray.").partition("=")
        if argument in others:
            continue
        if name not in vars(options):
            raise ValueError(
                f"ray.{name} is no key of this command, whose keys are ray.{', ray.'.join(vars(options))}"
            )
        least = {"num_workers": 1, "cpus": 1, "gpus": -1}.get(name, 0)
        if name != "address" and not (text.removeprefix("-").isdecimal() and int(text) >= least):
            raise ValueError(f"ray.{name} must be a whole number of at least {least}, not {text}")
        setattr(options, name, text if name == "address" else int(text))
    if {"-m", "--multirun"} & {*others}:
        raise ValueError("-m: this command trains one run. Give it once for each run of a sweep")
    return options, others


def count_room(nodes: list[dict], cpus: int, gpus: int) -> int:
    """Return how many workers fit on the machines of a cluster, as :func:`ray.nodes` describes them."""
    found = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(
        min(
            int(has.get(name, 0) // needed)
            for name, needed in (("CPU", cpus), ("GPU", gpus))
            if needed
        )
        for has in found
    )


def train_rank(job: dict[str, Any]) -> dict[str, Any]:
    """Train as the rank that this worker of Ray Train is.

    Ray has connected the ranks before, and calls this in a thread, where no signal arrives: it kills workers. It starts
    all workers again after an error, so an error that would come again is returned, and not raised.
    """
    os.chdir(job["cwd"])  # paths are relative to where the command was given
    cli.register_schema()
    from parallel_epochs.pipeline import training
    from parallel_epochs.pipeline.run import ranks as rank_tools

    try:
        config, summary = run_folder.begin_together(
            job["config"],
            job["folder"],
            rank_tools.from_environment(),
            named=job["named"],
            is_named=True,
            in_sweep=False,
        )
        logging.config.dictConfig(cli.log_config(job["folder"]))
        return {"summary": summary or training.run(config, job["folder"], job["command"])}
    except (ValueError, FloatingPointError) as error:
        problem = rank_tools.share_problem(cli.explain(error))
    except (Stopped, RankError, SystemExit) as error:
        if (problem := rank_tools.share_problem(None)) is None:
            raise RuntimeError(str(error)) from None  # one that Ray can send to another process
    return {"problem": problem}


def begin(options: Options, given: list[str]) -> dict[str, Any] | None:
    """Compose the run and make its directory; None if nothing is left to do there.

    Raises:
        ValueError: the directory holds another run, or one that is not to be continued.
    """
    with initialize_config_dir(cli.CONF, version_base="1.3"):
        folder = Path(compose("config", given, return_hydra_config=True).hydra.run.dir).absolute()
    config, named = (
        run_folder.with_ranks_of(cli.compose_config(given), options.num_workers),
        cli.named_keys(given),
    )
    folder.mkdir(parents=True, exist_ok=True)
    config, summary = run_folder.begin_or_continue(
        config, folder, named=named | {"parallel.num_ranks"}, is_named=True, in_sweep=False
    )
    if summary is not None:
        print(f"{folder} has been trained already")
        return None
    command = shlex.join(
        ["python", "-m", "scripts.ray_train", f"ray.num_workers={options.num_workers}", *given]
    )
    return {
        "config": dataclasses.replace(config, resume=keys.AUTO),
        "folder": folder,
        "named": named,
        "cwd": os.getcwd(),
        "command": command,
    }


def find_room(options: Options, config: RunConfig) -> None:
    """Choose the number of GPUs, and wait for enough machines.

    Raises:
        ValueError: the cluster has too few.
    """
    import ray

    if options.gpus < 0:
        options.gpus = int(
            config.device_name != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        )
    end = time.monotonic() + options.wait
    while (room := count_room(ray.nodes(), options.cpus, options.gpus)) < options.num_workers:
        if time.monotonic() >= end:
            needed = f"{options.cpus} CPU" + f" and {options.gpus} GPU" * (options.gpus > 0)
            raise ValueError(
                f"the Ray cluster has room for {count(room, 'worker')} of {needed} each, and ray.num_workers="
                f"{options.num_workers}. Lower it, let more machines join, or set ray.wait=SECONDS to wait for them"
            )
        time.sleep(1)


def train(options: Options, given: list[str]) -> None:
    """Train on a cluster until the run has ended.

    Raises:
        ValueError: what `pipeline.train` refuses, a cluster that is not there or too small, or too many failures.
    """
    import ray
    from ray.train import FailureConfig, RunConfig as RayRun, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    if (job := begin(options, given)) is None:
        return
    try:
        ray.init(address=options.address or None, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ValueError(
            f"ray.address={options.address}: no Ray cluster answers there ({error})"
        ) from None
    find_room(options, job["config"])
    resources = {"CPU": options.cpus} | ({"GPU": options.gpus} if options.gpus else {})
    trainer = TorchTrainer(
        train_rank,
        train_loop_config=job,
        torch_config=TorchConfig(
            "cpu:gloo,cuda:nccl" if options.gpus else "gloo",
            timeout_s=int(job["config"].parallel.timeout * LONG_FACTOR),
        ),
        scaling_config=ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=options.gpus > 0,
            resources_per_worker=resources,
        ),
        run_config=RayRun(
            name=".ray",
            storage_path=str(job["folder"]),
            failure_config=FailureConfig(
                max_failures=options.max_failures, controller_failure_limit=options.max_failures
            ),
        ),
    )
    try:
        result = trainer.fit().return_value
    except TrainingFailedError as error:
        find_room(dataclasses.replace(options, wait=0), job["config"])
        last = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"Ray Train has ended the run after ray.max_failures={options.max_failures} restarts: {last}. "
            f"The same command with resume=auto and hydra.run.dir={job['folder']} goes on"
        ) from None
    if "problem" in result:
        raise ValueError(result["problem"])


def main() -> None:
    try:
        options, sys.argv[1:] = parse(sys.argv[1:])
        import ray.train.torch  # noqa: F401
    except ValueError as error:
        sys.exit(printable(f"error: {error}"))
    except ImportError as error:
        sys.exit(f"error: this command needs Ray ({error}): {install_command('ray')}")
    if {"--help", "-h"} & {*sys.argv}:
        print(f"{__doc__}\n{Options.__doc__}")

    def start() -> None:
        from parallel_epochs.scripts import (
            ray_train,
        )  # whose functions Ray names, and does not copy

        ray_train.train(options, sys.argv[1:])

    cli.call(start, check=check_new, needs_data=True)


if __name__ == "__main__":
    main()
