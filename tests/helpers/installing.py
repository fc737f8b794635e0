"""Builds wheels of this project, and installs them into environments without a compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.helpers.running import ROOT

ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "OMP_NUM_THREADS": "1"
}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def build_wheel(folder: Path, **environ: str) -> Path:
    """Build the wheel in a folder of its own.

    Args:
        environ: environment variables in addition to those of this process.
    """
    # A copy: setuptools leaves build/ behind, and would pack what an older one left there.
    source = shutil.copytree(
        ROOT,
        folder / "source",
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".*", "build", "dist", "outputs", "multirun", "dataset", "*.egg-info", "__pycache__"
        ),
    )
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source],
        check=True,
        env=ENVIRON | environ,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, environment: Path) -> Path:
    """Install a wheel into a new environment that sees the dependencies of this one, and return its folder bin/."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run(
        [
            *PIP,
            "--python",
            environment / "bin" / "python",
            "install",
            "--no-deps",
            "--no-index",
            wheel,
        ],
        check=True,
        env=ENVIRON,
    )
    # A path in a .pth file is not searched for .pth files itself, so that this checkout stays out of sight.
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def run(*command, cwd: Path, **environ: str) -> subprocess.CompletedProcess:
    """Run a command that must succeed."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=ENVIRON | environ,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result
