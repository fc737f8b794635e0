"""Installed from a wheel and run from elsewhere, also beside a project that has a `models/` of its own."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.helpers.installing import build_wheel, install_wheel, run
from tests.helpers.running import ROOT, TOY, shell

# Files of tools/ whose names files of the package have too.
SAME = {"keys.py"}


@pytest.fixture(scope="module")
def install(tmp_path_factory) -> Path:
    """Build the wheel, and install it into an environment of its own that sees the dependencies of this one."""
    folder = tmp_path_factory.mktemp("install")
    wheel = build_wheel(folder)
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"parallel_epochs"}
    packed = {Path(name).name for name in names}
    assert (
        "ray_train.py" in packed
        and not packed & {path.name for path in (ROOT / "tools").glob("[!_]*.py")} - SAME
    )
    assert wheel.name.endswith("-py3-none-any.whl")
    return install_wheel(wheel, folder / "environment")


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """A folder with packages of the names that ours have."""
    for name in ("models", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the user'\n")
    return tmp_path


@pytest.mark.slow
def test_no_file_is_imported_under_two_names(tmp_path):
    done = shell(
        "tests.helpers.names_of_files",
        *TOY,
        "train.epochs=1",
        f"hydra.run.dir={tmp_path / 'run'}",
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "SEVERAL NAMES" not in done.stdout, done.stdout
    assert (tmp_path / "run" / "summary.json").exists()


def test_configurations_name_modules_by_the_packages_name():
    short = re.compile(r"^[^#\n]*[ :'\"](?:pipeline|models|scripts)\.\w.*$", re.MULTILINE)
    files = (ROOT / "conf").rglob("*.yaml")
    assert not {file.name: found for file in files if (found := short.findall(file.read_text()))}


def test_containers_name_extras_and_folders_that_there_are():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for file in sorted((ROOT / "deploy").glob("*.Dockerfile")):
        text = file.read_text()
        assert (
            set(re.search(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)[1].split(",")) <= extras.keys()
        )
        assert f"-f deploy/{file.name} " in text and "constraints.txt" in text
    needed = {
        "README.md",
        "LICENSE",
        "constraints.txt",
        "setup.py",
        "conf",
        "models",
        "parallel_epochs",
        "pipeline",
        "scripts",
    }
    assert not needed & set(ignored) and all((ROOT / name).exists() for name in needed)


def test_a_release_has_the_tag_of_its_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    check = [sys.executable, "-I", ROOT / ".ci" / "version.py"]
    assert subprocess.run([*check, f"v{version}"]).returncode == 0
    wrong = subprocess.run([*check, "v0.0"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert (
        wrong.stderr
        == f"the tag is v0.0, and pyproject.toml has version {version}: tag v{version}\n"
    )


@pytest.mark.slow
def test_the_console_command_trains_ranks_beside_a_models_folder(install, elsewhere):
    run(
        install / "parallel-epochs",
        "train",
        *TOY,
        "parallel.num_ranks=2",
        "hydra.run.dir=run",
        cwd=elsewhere,
    )
    assert json.loads((elsewhere / "run" / "summary.json").read_text())["num_ranks"] == 2
    evaluated = run(install / "parallel-epochs", "evaluate", "run=run", cwd=elsewhere)
    assert "test rocauc" in evaluated.stdout


@pytest.mark.slow
def test_layers_are_imported_beside_a_models_folder(install, elsewhere):
    (elsewhere / "program.py").write_text(
        "import torch, models\n"
        "from parallel_epochs.models import GENConv\n"
        "import parallel_epochs.models\n"
        "out = GENConv(4, 5)(torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]]))\n"
        "print(models.OWNER, tuple(out.shape), parallel_epochs.models.__file__)\n"
    )
    said = run(install / "python", "program.py", cwd=elsewhere).stdout
    assert said.startswith("the user (3, 5)") and str(install.parent) in said


@pytest.mark.slow
def test_modules_run_from_another_folder(install, tmp_path):
    run(
        install / "python",
        "-m",
        "parallel_epochs.pipeline.train",
        *TOY,
        "hydra.run.dir=run",
        cwd=tmp_path,
    )
    # The C++ sources were there to be compiled.
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["kernel"].startswith("fused" if shutil.which("c++") else "reference")
    packaged = run(
        install / "python",
        "-c",
        "from parallel_epochs.pipeline.command import cli; print(cli.CONF)",
        cwd=tmp_path,
    ).stdout.strip()
    assert packaged.endswith("parallel_epochs/conf") and Path(packaged, "config.yaml").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("arguments, status", [([], 1), (["fly"], 1), (["--help"], 0)])
def test_the_console_command_explains_itself(install, tmp_path, arguments, status):
    result = subprocess.run(
        [install / "parallel-epochs", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    said = result.stderr if status else result.stdout
    assert result.returncode == status and "usage: parallel-epochs init | train | evaluate" in said
