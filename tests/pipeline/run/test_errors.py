"""Commands that errors name for packages that are missing."""

import errno
import re
import shlex
import tomllib

import pytest
from packaging.requirements import Requirement

import parallel_epochs
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.run.errors import install_command, one_line
from tests.helpers.running import ROOT

# The extras that errors name. The ones of trackers are named like the trackers.
NAMED = {
    "optuna",
    "layout",
    "parquet",
    "slurm",
    "tables",
    "molecules",
    "report",
    "tensorboard",
    "wandb",
    "mlflow",
    "ray",
    "serve",
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_checkout_installs_its_own_extra_from_wherever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install_command("optuna") == "pip install -c constraints.txt -e '.[optuna]'"
    monkeypatch.chdir(tmp_path)
    *start, constraints, option, target = shlex.split(install_command("optuna"))
    assert (start, option, target) == (["pip", "install", "-c"], "-e", f"{ROOT}[optuna]")
    assert constraints == str(ROOT / "constraints.txt")


@pytest.mark.parametrize("extra", sorted(NAMED))
def test_an_installation_names_the_packages_of_the_extra(extra, tmp_path, monkeypatch):
    monkeypatch.setattr(
        parallel_epochs, "__file__", str(tmp_path / "parallel_epochs" / "__init__.py")
    )
    assert shlex.split(install_command(extra))[:2] == ["pip", "install"]
    found = map(Requirement, shlex.split(install_command(extra))[2:])
    assert {(one.name, one.specifier, *one.extras) for one in found} == {
        (one.name, one.specifier, *one.extras) for one in map(Requirement, EXTRAS[extra])
    }


def test_every_extra_that_an_error_names_exists():
    source = "".join(
        file.read_text()
        for folder in ("pipeline", "scripts", "tools")
        for file in (ROOT / folder).rglob("*.py")
    )
    named = set(re.findall(r"install_command\([\"'](\w+)[\"']\)", source)) | {
        "tensorboard",
        "wandb",
        "mlflow",
    }
    assert named == NAMED <= set(EXTRAS)
    assert not re.search(r"pip install[^\n]*parallel-epochs\[[a-z]|pip install -e \.\[", source)


@pytest.mark.parametrize(
    "error, says",
    [
        (MemoryError("16 bytes"), r"may take 5 TB of addresses .*\(16 bytes\)"),
        (
            RuntimeError("CUDA out of memory. Tried"),
            r"raise partition.num_parts.* \(CUDA out of memory. Tried\)",
        ),
    ],
)
def test_a_limit_of_addresses_explains_no_gpu(error, says, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (5 * 10**12, 5 * 10**12))
    assert re.search(says, cli.explain(error))


def test_the_limit_of_open_files_is_raised_above_its_value(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (4096, 4096))
    assert one_line(OSError(errno.EMFILE, "")).endswith("ulimit -n 8192")
