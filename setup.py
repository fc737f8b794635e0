"""Packs compiled kernels into the wheel, for ``make wheel``; pyproject.toml has everything else.

Where the environment variable PARALLEL_EPOCHS_KERNELS names a folder, every kernel is compiled into it for each level
of vector instructions, unless the library is there already. The wheel then has these libraries and the tag of the
systems that can load them. Without the variable, setuptools builds a wheel of Python and C++ files for every system.
"""

import concurrent.futures
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VARIABLE = "PARALLEL_EPOCHS_KERNELS"
# The oldest glibc that a manylinux tag for x86-64 of this form names.
OLDEST_GLIBC = 2, 17


def load_shipped():
    """Load models/kernels/shipped.py by its path, since importing the package needs torch."""
    spec = importlib.util.spec_from_file_location("shipped", ROOT / "models" / "kernels" / "shipped.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_kernels(folder: Path) -> list[Path]:
    """Compile what is missing in a folder, and return the paths of all libraries.

    Raises:
        SystemExit: this is no Linux on x86-64, or the compiler failed.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"{VARIABLE} needs Linux on x86_64, and this is {platform.system()} on {platform.machine()}")
    shipped = load_shipped()
    sources = sorted(path for package in ("models", "pipeline") for path in (ROOT / package).rglob("*.cpp"))
    paths = {(source, level): shipped.path_of(source, level, folder) for source in sources
             for level in shipped.LEVEL_FLAGS}
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = [pool.submit(compile_library, source, (*shipped.SHIPPED_FLAGS, *shipped.LEVEL_FLAGS[level]),
                            shipped.LINK_FLAGS, path)
                for (source, level), path in paths.items() if not path.exists()]
        for job in jobs:
            job.result()
    return list(paths.values())


def compile_library(source: Path, flags: tuple[str, ...], link_flags: tuple[str, ...], target: Path) -> None:
    """Compile and link a C++ file. The library appears under its name when it is whole."""
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, linked = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        for command in ([compiler, *flags, "-c", source, "-o", compiled],
                        [compiler, *link_flags, compiled, "-o", linked]):
            if subprocess.run(command).returncode:
                sys.exit(f"this command failed: {' '.join(map(str, command))}")
        linked.chmod(0o755)
        linked.rename(target)


def find_tag(libraries: list[Path]) -> str:
    """Return the manylinux tag of the oldest glibc that has every symbol version that the libraries ask for."""
    versions = [tuple(map(int, version.split(b"."))) for path in libraries
                for version in re.findall(rb"GLIBC_(\d+\.\d+)", path.read_bytes())]
    major, minor = max([OLDEST_GLIBC, *versions])
    return f"manylinux_{major}_{minor}_x86_64"


class Build(build_py):
    """Copies the kernels next to the modules, but never into a checkout."""

    def run(self):
        super().run()
        if KERNELS and not self.editable_mode:
            folder = Path(self.build_lib, "parallel_epochs", "models", "kernels", "libraries")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for path in compile_kernels(KERNELS):
                shutil.copy2(path, folder)


class Wheel(bdist_wheel):
    """Gives a wheel with kernels the tag of any Python 3 on the systems that can load them."""

    def get_tag(self):
        return ("py3", "none", find_tag(compile_kernels(KERNELS))) if KERNELS else super().get_tag()


class WithKernels(Distribution):
    """Tells setuptools whether the wheel has compiled files."""

    def has_ext_modules(self):
        return KERNELS is not None or super().has_ext_modules()


KERNELS = Path(os.environ[VARIABLE]).resolve() if os.environ.get(VARIABLE) else None

if __name__ == "__main__":
    setup(distclass=WithKernels, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
