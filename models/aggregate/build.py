"""Compiles the C++ kernels on first use and keeps the library in torch's extension cache."""

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

SOURCES = ("fused_cpu.cpp", "forward.h", "backward.h", "norm.h", "problem.h", "kinds.h", "encode.h", "tiles.h", "simd.h")
# Never -ffast-math: a NaN in the features has to reach the loss.
FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-Wno-psabi")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or none if :func:`missing` names what is missing."""
    if missing():
        log.warning("fused aggregation is not available: %s; the reference aggregation runs instead", missing())
        return None
    return _load()[0]


@functools.cache
def missing() -> str:
    """What keeps the kernels from being compiled, empty if nothing does."""
    if os.name != "posix":
        return f"only built on POSIX systems, not on '{os.name}'"
    if _cached_path().exists():
        return ""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"no C++ compiler '{compiler}' (set CXX, or apt-get install g++)"
    if shutil.which("ninja", path=_path_with_scripts()) is None:
        return "no 'ninja' to run the compiler (pip install ninja)"
    return _load()[1]


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    path = _cached_path()
    if not path.exists():
        try:
            _build(path)
        except (RuntimeError, OSError) as error:
            return None, f"compiling failed: {error}"
    kernels = ctypes.CDLL(str(path))
    kernels.fused_simd.restype = ctypes.c_char_p
    return kernels, ""


def _build(path: Path) -> None:
    import fcntl  # POSIX only

    path.parent.parent.mkdir(parents=True, exist_ok=True)
    # The lock spares a second process the work and dies with its holder; the rename makes it safe without the lock.
    with open(path.parent.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        start = time.perf_counter()
        folder = tempfile.mkdtemp(dir=path.parent.parent)
        search_path = os.environ.get("PATH", "")
        os.environ["PATH"] = _path_with_scripts()
        try:
            cpp_extension.load(
                path.stem, [str(Path(__file__).with_name("fused_cpu.cpp"))], extra_cflags=_flags(),
                extra_ldflags=["-fopenmp"], build_directory=folder, is_python_module=False, with_cuda=False)
            os.replace(folder, path.parent)
        finally:
            os.environ["PATH"] = search_path
            shutil.rmtree(folder, ignore_errors=True)
        log.info("fused aggregation: compiled with %s in %.1f s to %s", " ".join(_flags()),
                 time.perf_counter() - start, path)


def _flags() -> list[str]:
    native = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*FLAGS, *native]


def _path_with_scripts() -> str:
    # Where pip puts ninja: not on the PATH of a Python that was called by its own path.
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


@functools.cache
def _cached_path() -> Path:
    key = hashlib.sha256()
    for name in SOURCES:
        key.update(Path(__file__).with_name(name).read_bytes())
    key.update(repr((_flags(), torch.__version__, os.environ.get("CXX"), platform.machine(), _cpu_flags())).encode())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return Path(root) / "deepgcn_aggregate" / key.hexdigest()[:16] / "fused_cpu.so"


def _cpu_flags() -> str:
    # -march=native means another library on another processor, and a home folder may be shared by several.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
