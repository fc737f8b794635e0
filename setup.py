"""Packs compiled kernels into the wheel, for ``make wheel``; pyproject.toml has everything else.

Where the environment variable PARALLEL_EPOCHS_KERNELS names a folder, every kernel is compiled into it for each level
of vector instructions, unless the library is there already. The wheel then has these libraries and the tag of the
systems that can load them. PARALLEL_EPOCHS_TARGET names the system: ``linux-x86_64``, ``linux-aarch64`` or
``darwin-aarch64``. Without the first variable, setuptools builds a wheel of Python and C++ files for every system.
"""

import concurrent.futures
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = (
    ROOT / "parallel_epochs"
)  # where the sources lie in a checkout, by links, and in a package of the sources
VARIABLE = "PARALLEL_EPOCHS_KERNELS"
TARGET_VARIABLE = "PARALLEL_EPOCHS_TARGET"
# The oldest glibc that a manylinux tag of this form names.
OLDEST_GLIBC = 2, 17
OLDEST_MACOS = "11.0"
# The compiler of each target on this machine, and on another one. torch's wheels for Linux have GCC's OpenMP library,
# which clang's code cannot use; those for macOS have clang's.
COMPILERS = {
    "linux-x86_64": ("c++", "x86_64-linux-gnu-g++"),
    "linux-aarch64": ("c++", "aarch64-linux-gnu-g++"),
    "darwin-aarch64": (
        f"c++ -mmacosx-version-min={OLDEST_MACOS}",
        f"{shlex.quote(sys.executable)} -m ziglang c++ -target aarch64-macos.{OLDEST_MACOS}",
    ),
}


def load_shipped():
    """Load models/kernels/shipped.py by its path, since importing the package needs torch."""
    spec = importlib.util.spec_from_file_location(
        "shipped", PACKAGE / "models" / "kernels" / "shipped.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_target() -> tuple[str, str]:
    """Return the system and the kind of processor that the kernels are compiled for: by default, this machine's.

    Raises:
        SystemExit: the kernels have no levels there.
    """
    here = f"{sys.platform}-{SHIPPED.MACHINE}"
    target = os.environ.get(TARGET_VARIABLE) or here
    if target not in COMPILERS:
        sys.exit(
            f"{VARIABLE} compiles for {', '.join(COMPILERS)}, and this is {target}; set {TARGET_VARIABLE}"
        )
    if os.path.exists("/etc/alpine-release") and target == here:
        sys.exit(f"{VARIABLE} needs glibc, and this system has musl, for which torch has no wheels")
    system, _, machine = target.partition("-")
    return system, machine


def find_compiler() -> list[str]:
    """Return the compiler of the target, with the arguments that choose it."""
    here, elsewhere = COMPILERS["-".join(find_target())]
    return shlex.split(
        os.environ.get("CXX")
        or (here if find_target() == (sys.platform, SHIPPED.MACHINE) else elsewhere)
    )


def compile_kernels(folder: Path) -> list[Path]:
    """Compile what is missing in a folder, and return the paths of all libraries.

    Raises:
        SystemExit: there is no such target, or the compiler failed.
    """
    system, machine = find_target()
    folder = folder / system
    sources = sorted(
        path for package in ("models", "pipeline") for path in (PACKAGE / package).rglob("*.cpp")
    )
    paths = {
        (source, level): SHIPPED.path_of(source, level, folder, machine)
        for source in sources
        for level in SHIPPED.LEVEL_FLAGS[machine]
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open(folder / "lock", "w") as lock,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = [
            pool.submit(
                compile_library,
                source,
                SHIPPED.openmp_flags(SHIPPED.flags_of(level, machine), system),
                path,
            )
            for (source, level), path in paths.items()
            if not path.exists()
        ]
        for job in jobs:
            job.result()
    return list(paths.values())


def compile_library(source: Path, flags: list[str], target: Path) -> None:
    """Compile and link a C++ file. The library appears under its name when it is whole."""
    compiler = find_compiler()
    # On macOS too, OpenMP's functions are looked up when the library is loaded.
    link_flags = (
        ("-shared", "-Wl,-undefined,dynamic_lookup")
        if find_target()[0] == "darwin"
        else SHIPPED.LINK_FLAGS
    )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, linked = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        for command in (
            [*compiler, *flags, "-c", source, "-o", compiled],
            [*compiler, *link_flags, compiled, "-o", linked],
        ):
            try:
                failed = subprocess.run(command).returncode
            except FileNotFoundError:
                sys.exit(f"there is no compiler '{compiler[0]}' (set CXX)")
            if failed:
                sys.exit(f"this command failed: {' '.join(map(str, command))}")
        linked.chmod(0o755)
        linked.rename(target)


def find_tag(libraries: list[Path], system: str = "linux", machine: str = "x86_64") -> str:
    """Return the tag of the oldest systems that have all that the libraries ask for.

    For Linux it is that of the oldest glibc that has every symbol version.
    """
    if system == "darwin":
        return f"macosx_{OLDEST_MACOS.replace('.', '_')}_arm64"
    versions = [
        tuple(map(int, version.split(b".")))
        for path in libraries
        for version in re.findall(rb"GLIBC_(\d+\.\d+)", path.read_bytes())
    ]
    major, minor = max([OLDEST_GLIBC, *versions])
    return f"manylinux_{major}_{minor}_{machine}"


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
    """Gives a wheel with kernels the tag of any Python 3 on its systems."""

    def get_tag(self):
        return (
            ("py3", "none", find_tag(compile_kernels(KERNELS), *find_target()))
            if KERNELS
            else super().get_tag()
        )


class WithKernels(Distribution):
    """Tells setuptools whether the wheel has compiled files."""

    def has_ext_modules(self):
        return KERNELS is not None or super().has_ext_modules()


SHIPPED = load_shipped()
KERNELS = Path(os.environ[VARIABLE]).resolve() if os.environ.get(VARIABLE) else None

if __name__ == "__main__":
    setup(distclass=WithKernels, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
