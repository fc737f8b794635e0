import dataclasses
import gc
import multiprocessing.util
import os
import signal
import tempfile
from pathlib import Path

import pytest

# A shell lets what it starts in its background ignore Ctrl-C, and a process inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The slow tests that take minutes. They begin first: a worker that begins one at the end leaves the others idle.
LONG = {
    "test_kernels_compile_for_hopper_without_a_gpu",
    "test_the_examples_train",
    "test_the_console_command_trains_ranks_beside_a_models_folder",
}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name.partition("[")[0] not in LONG)


def pytest_configure(config):
    """Prepare a process that runs tests; the one that only hands them out does not wait for torch."""
    if config.getoption("dist", "no") == "no":
        prepare(config)


def prepare(config) -> None:
    """Import what tests need, and change what holds for all of them."""
    if config.option.markexpr != "gpu" and "TESTS_SEE_GPUS" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these tests know the CPU's numbers
    import torch
    from hypothesis import settings

    from parallel_epochs.pipeline.command import cli
    from tests.helpers import composing, running, shapes
    from tests.helpers.kill_runs import fork_rank_server

    torch.set_num_threads(1)
    if os.environ.get("CHECK_SHAPES", "1") == "1":
        shapes.check_packages(
            *(
                f"parallel_epochs.{name}"
                for name in (
                    "models",
                    "pipeline.graph",
                    "pipeline.data",
                    "pipeline.gnn.loaders",
                    "pipeline.gnn.tasks",
                )
            )
        )
    cli.register_schema()
    composing.remember_choices()
    multiprocessing.util.spawnv_passfds = fork_rank_server  # here and in what is forked from here
    config.add_cleanup(running.start_server().close)
    # The same examples every time, however long they take; --hypothesis-profile=default looks for new ones.
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.load_profile("repeatable")
    gc.freeze()  # the collector leaves alone what is imported, until the end: nanobind reports what is left there
    config.add_cleanup(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory):
    """Keep what this process and those that it starts leave behind in the folder of the test run."""
    from parallel_epochs.pipeline.run.launch import start_rank_server

    multiprocessing.util.get_temp_dir()  # of sockets, from now on: their paths must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr(tempfile, "tempdir", None)
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        # Kernels are compiled once, and not in each test run.
        patch.setenv(
            "TORCH_EXTENSIONS_DIR",
            os.environ.get("TORCH_EXTENSIONS_DIR") or str(caches / "torch_extensions"),
        )
        patch.setenv(
            "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home"))
        )  # of the classes that commands name
        start_rank_server()  # before any test has changed this process
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A Chromium that nothing may make complain."""
    from tests.helpers.browser import Browser

    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
        assert not browser.complaints


@pytest.fixture
def importable(monkeypatch):
    """Let processes that a test starts find the tests' modules in this checkout."""
    from tests.helpers.running import ROOT

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def configure(tmp_path):
    """Compose a configuration as the command line would, with every cache under the test's folder."""
    from tests.helpers import composing

    def compose_config(*overrides: str, name: str = "config"):
        config = composing.compose_config(overrides, name)
        if any(override.startswith("cache_dir=") for override in overrides):
            return config
        return dataclasses.replace(config, cache_dir=str(tmp_path / "cache"))

    return compose_config


@pytest.fixture
def ogb_toy(tmp_path):
    """Write a small folder in OGB's raw layout, in the manner of one of its datasets."""
    from tests.helpers.files import write_ogb

    def write(name: str = "ogbn-proteins") -> Path:
        return write_ogb(tmp_path / "toy" / name, name)

    return write
