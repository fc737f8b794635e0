"""Compiles C++ on first use through torch's extension loader and keeps the library in torch's extension cache."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

log = logging.getLogger(__name__)

# Never -ffast-math: a NaN in the features has to reach the loss.
FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-Wno-psabi")


class NativeLibrary:
    """A C++ file with C functions, compiled when it is first asked for.

    Args:
        name: of the folder in the cache, and in messages.
        source: the file to compile.
        headers: names of the files beside it that it includes.
        otherwise: what runs where the library cannot be compiled, for the warning.
    """

    def __init__(self, name: str, source: Path, headers: tuple[str, ...] = (), *, otherwise: str):
        self.name, self.source, self.otherwise = name, source, otherwise
        self._files = [source, *(source.with_name(header) for header in headers)]

    def get(self) -> ctypes.CDLL | None:
        """The library, or none, with one warning, if :meth:`missing` names what is missing."""
        return self._loaded[0]

    def missing(self) -> str:
        """What keeps the library from being compiled, empty if nothing does."""
        return self._loaded[1]

    @functools.cached_property
    def _loaded(self) -> tuple[ctypes.CDLL | None, str]:
        obstacle = self._obstacle()
        if not obstacle:
            try:
                if not self._path.exists():
                    self._build()
                return ctypes.CDLL(str(self._path)), ""
            except (RuntimeError, OSError) as error:
                obstacle = f"compiling failed: {error}"
        log.warning("%s is not available: %s; %s", self.name, obstacle, self.otherwise)
        return None, obstacle

    def _obstacle(self) -> str:
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
                    self._path.stem, [str(self.source)], extra_cflags=_flags(), extra_ldflags=["-fopenmp"],
                    build_directory=folder, is_python_module=False, with_cuda=False)
                os.replace(folder, self._path.parent)
            finally:
                os.environ["PATH"] = search_path
                shutil.rmtree(folder, ignore_errors=True)
            log.info("%s: compiled with %s in %.1f s to %s", self.name, " ".join(_flags()),
                     time.perf_counter() - start, self._path)

    @functools.cached_property
    def _path(self) -> Path:
        key = hashlib.sha256()
        for file in self._files:
            key.update(file.read_bytes())
        key.update(repr((_flags(), torch.__version__, os.environ.get("CXX"), platform.machine(), _cpu_flags())).encode())
        root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
        folder = self.name.replace(" ", "_")
        return Path(root) / f"deepgcn_{folder}" / key.hexdigest()[:16] / f"{self.source.stem}.so"


def _flags() -> list[str]:
    native = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*FLAGS, *native]


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
