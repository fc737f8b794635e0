"""Compiles C++ on first use through torch's extension loader and keeps the library in torch's extension cache."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.utils import cpp_extension

log = logging.getLogger(__name__)

# Never -ffast-math: a NaN in the features has to reach the loss.
FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-Wno-psabi")


class NativeLibrary:
    """A C++ file that exports C functions, compiled when the library is first asked for.

    The compiled library is kept under a key made of the file, every header it includes by name in quotes, the flags,
    torch's version and the processor.

    Args:
        name: name of the library in messages, and of its folder in the cache.
        source: the C++ file.
        otherwise: what runs if the library cannot be compiled; the warning says it.
        flags: compiler flags, after those that every library gets.
        structures: ctypes structures that the library takes, each under the name of the exported C function that
            returns the size of its C++ counterpart as an int64.
    """

    def __init__(self, name: str, source: Path, *, otherwise: str, flags: tuple[str, ...] = (),
                 structures: Mapping[str, type[ctypes.Structure]] | None = None):
        self.name, self.source, self.otherwise = name, source, otherwise
        native = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
        self.flags = [*FLAGS, *native, *flags]
        self.structures = structures or {}

    def get(self) -> ctypes.CDLL | None:
        """Return the library. If :meth:`missing` says why there is none, warn once and return none.

        Raises:
            RuntimeError: a ctypes structure and its C++ counterpart have different sizes.
        """
        return self._loaded[0]

    def missing(self) -> str:
        """Say why the library cannot be compiled; empty if it can."""
        return self._loaded[1]

    @functools.cached_property
    def _loaded(self) -> tuple[ctypes.CDLL | None, str]:
        reason = self._find_missing_tool()
        if not reason:
            try:
                if not self._path.exists():
                    self._build()
                library = ctypes.CDLL(str(self._path))
            except (RuntimeError, OSError) as error:
                reason = f"compiling failed: {error}"
            else:
                self._compare_sizes(library)
                return library, ""
        log.warning("%s is not available: %s; %s", self.name, reason, self.otherwise)
        return None, reason

    def _find_missing_tool(self) -> str:
        if os.name != "posix":
            return f"only built on POSIX systems, not on '{os.name}'"
        if self._path.exists():
            return ""
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler) is None:
            return f"no C++ compiler '{compiler}' (set CXX, or apt-get install g++)"
        if shutil.which("ninja", path=_path_with_scripts()) is None:
            return "no 'ninja' to run the compiler (pip install ninja)"
        return ""

    def _compare_sizes(self, library: ctypes.CDLL) -> None:
        for name, structure in self.structures.items():
            function = getattr(library, name)
            function.restype = ctypes.c_int64
            if function() != ctypes.sizeof(structure):
                raise RuntimeError(
                    f"{self.name}: {structure.__module__}.{structure.__qualname__} has {ctypes.sizeof(structure)} "
                    f"bytes, but {name}() of {self.source.name} returns {function()}; give both the same fields")

    def _build(self) -> None:
        import fcntl  # POSIX only

        root = self._path.parent.parent
        root.mkdir(parents=True, exist_ok=True)
        # The lock spares a second process the work and dies with its holder; the rename makes it safe without the lock.
        with open(root / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.exists():
                return
            start = time.perf_counter()
            folder = tempfile.mkdtemp(dir=root)
            search_path = os.environ.get("PATH", "")
            os.environ["PATH"] = _path_with_scripts()
            try:
                cpp_extension.load(
                    self._path.stem, [str(self.source)], extra_cflags=self.flags, extra_ldflags=["-fopenmp"],
                    build_directory=folder, is_python_module=False, with_cuda=False)
                os.replace(folder, self._path.parent)
            finally:
                os.environ["PATH"] = search_path
                shutil.rmtree(folder, ignore_errors=True)
            log.info("%s: compiled with %s in %.1f s to %s", self.name, " ".join(self.flags),
                     time.perf_counter() - start, self._path)

    @functools.cached_property
    def _path(self) -> Path:
        sha256 = hashlib.sha256()
        for file in find_included(self.source):
            sha256.update(file.name.encode() + file.read_bytes())
        environment = torch.__version__, os.environ.get("CXX"), platform.machine(), _cpu_flags()
        sha256.update(repr((self.flags, environment)).encode())
        root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
        folder, key = self.name.replace(" ", "_"), sha256.hexdigest()[:16]
        # torch's loader gives a second library of the same name in one process another file name.
        return Path(root) / f"deepgcn_{folder}" / key / f"{self.source.stem}_{key}.so"


def find_included(source: Path) -> list[Path]:
    """List a C++ file and the headers that it includes in quotes, directly or through others, each once."""
    files = [source.resolve()]
    for file in files:
        for name in re.findall(r'^#include "(.+)"', file.read_text(), flags=re.MULTILINE):
            header = (file.parent / name).resolve()
            if header not in files:
                files.append(header)
    return files


def _path_with_scripts() -> str:
    # Where pip puts ninja: not on the PATH of a Python that was called by its own path.
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def _cpu_flags() -> str:
    # -march=native means another library on another processor, and a home folder may be shared by several.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
