"""The kernels that a wheel ships: which flags each level is compiled with, and which file holds a library.

This module imports only the standard library, since ``setup.py`` loads it where torch need not be installed.
"""

import hashlib
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# Flags of every library. Never -ffast-math: a NaN in the features has to reach the loss.
FLAGS = (
    "-O3",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-Wno-psabi",
)
# Flags of the libraries that a wheel ships, for each level of simd.h, by the kind of processor. They allow only the
# instructions that SIMD_NEEDS in native.py asks of a processor. The libraries leave OpenMP's functions undefined, so
# that the dynamic linker takes them from the OpenMP library that torch has loaded.
LEVEL_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "portable": (),
        "avx2": ("-mavx2", "-mfma"),
        "avx512": ("-mavx512f", "-mavx512dq", "-mavx2", "-mfma"),
    },
    "aarch64": {"neon": ()},
}
BASELINE: dict[str, tuple[str, ...]] = {"x86_64": ("-march=x86-64",), "aarch64": ()}
# Kind of this machine's processor. Windows and macOS have names of their own for the two above.
MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
SHIPPED_FLAGS = (*FLAGS, "-std=c++20", "-fPIC")
LINK_FLAGS = ("-shared", "-s")  # -fopenmp here would link the OpenMP library of the compiler
# Folder of the shipped libraries in an installed package. A checkout has none.
FOLDER = Path(__file__).with_name("libraries")


def flags_of(level: str, machine: str = MACHINE) -> tuple[str, ...]:
    """Return the flags of a shipped library, a level and a kind of processor, both keys of LEVEL_FLAGS."""
    return (*SHIPPED_FLAGS, *BASELINE[machine], *LEVEL_FLAGS[machine][level])


def openmp_flags(flags: Iterable[str], system: str = sys.platform) -> list[str]:
    """Return flags as the compiler of a system, ``linux`` or ``darwin``, takes them.

    Apple's clang knows OpenMP's directives, but not the flag ``-fopenmp``, which would also ask for a library.
    """
    return [
        part
        for flag in flags
        for part in (("-Xclang", flag) if system == "darwin" and flag == "-fopenmp" else (flag,))
    ]


def path_of(source: Path, level: str, folder: Path | None = None, machine: str = MACHINE) -> Path:
    """Return the path of a shipped library, which need not exist.

    Its name holds a hash of the C++ file, of every header that this includes in quotes, and of the flags. A library
    that was compiled from other sources therefore has another name.

    Args:
        source: the C++ file.
        level: a key of LEVEL_FLAGS[machine].
        folder: the folder of the libraries; by default that of the installed package.
        machine: the kind of processor.
    """
    flags = flags_of(level, machine) if machine in LEVEL_FLAGS else machine
    key = hash_sources(source, (flags, LINK_FLAGS))
    return (folder or FOLDER) / f"{source.stem}_{level}_{key}.so"


def hash_sources(source: Path, environment: object) -> str:
    """Compute 16 hexadecimal digits of a hash of a C++ file, its headers and the ``repr`` of `environment`."""
    sha256 = hashlib.sha256()
    for file in find_included(source):
        sha256.update(file.name.encode() + file.read_bytes())
    sha256.update(repr(environment).encode())
    return sha256.hexdigest()[:16]


def find_included(source: Path) -> list[Path]:
    """List a C++ file and all headers that it includes in quotes, directly or through others, each once."""
    files = [source.resolve()]
    for file in files:
        for name in re.findall(r'^#include "(.+)"', file.read_text(), flags=re.MULTILINE):
            header = (file.parent / name).resolve()
            if header not in files:
                files.append(header)
    return files


def find_compiler(library: Path) -> str:
    """Return the compiler of a library and its version, as the library's ``.comment`` section names them."""
    found = re.findall(rb"GCC: \([^)\0]*\) [\w.]+|clang version [\w.+~-]+", library.read_bytes())
    # The start-up files that clang links were compiled by GCC.
    named = next(
        (text for text in found if text.startswith(b"clang")), found[0] if found else b"unknown"
    )
    return named.decode(errors="replace").replace("GCC: (", "GCC (")
