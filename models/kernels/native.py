"""Loads C++: a library that the wheel ships, or one that torch's extension loader compiles on first use.

Compiled libraries are kept in torch's extension cache.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from parallel_epochs.models.kernels import shipped

log = logging.getLogger(__name__)

# Names the level of vector instructions that kernels use. By default it is the highest of the processor.
SIMD_VARIABLE = "PARALLEL_EPOCHS_SIMD"
# Features that a processor needs for each level of simd.h, and the flags that remove those above it from -march=native.
_NEEDS: dict[str, dict[str, set[str]]] = {
    "x86_64": {
        "portable": set(),
        "avx2": {"avx2", "fma"},
        "avx512": {"avx512f", "avx512dq", "avx2", "fma"},
    },
    "aarch64": {"neon": set()},
}
SIMD_NEEDS = _NEEDS.get(shipped.MACHINE, {"portable": set()})
SIMD_FLAGS = {"portable": ["-mno-avx"], "avx2": ["-mno-avx512f"], "avx512": []}


@dataclasses.dataclass(frozen=True)
class Build:
    """A library as it was loaded.

    Attributes:
        level: level of vector instructions, a key of SIMD_NEEDS.
        build: "shipped" in the wheel, or "compiled" on this machine.
        compiler: name and version of the compiler.
    """

    level: str
    build: str
    compiler: str


_builds: dict[str, Build] = {}


def builds() -> dict[str, dict[str, str]]:
    """Return the fields of :class:`Build` of each library that this process has loaded, by the library's name."""
    return {name: dataclasses.asdict(build) for name, build in sorted(_builds.items())}


class NativeLibrary:
    """A C++ file that exports C functions.

    On its first use, the library that the installed package ships is loaded if it was compiled from the same sources;
    see :mod:`models.kernels.shipped`. Otherwise the library in the cache is loaded, and compiled before if there is
    none. Both use the highest level of vector instructions that the processor has, or the one that the environment
    variable ``PARALLEL_EPOCHS_SIMD`` names.

    The key of a compiled library is a hash of the file, of every header that it includes in quotes, of the flags, of
    torch's version and of the processor. As its code runs in this process, a library is loaded only if its checksum is
    the recorded one and nobody else can have written either of the two. Otherwise it is compiled again.

    Args:
        name: name of the library in messages, and of its folder in the cache.
        source: the C++ file.
        otherwise: text of the warning that says what runs if the library cannot be compiled.
    """

    def __init__(self, name: str, source: Path, *, otherwise: str):
        self.name, self.source, self.otherwise = name, source, otherwise

    def get(self) -> ctypes.CDLL | None:
        """Return the library, or None with one warning if :meth:`missing` gives a reason.

        Raises:
            ValueError: ``PARALLEL_EPOCHS_SIMD`` names no level, or one that this processor lacks.
        """
        return self._loaded[0]

    def require(self, what: str, way_out: str = "") -> ctypes.CDLL:
        """Return the library.

        Args:
            what: is done by it, as in "walks are drawn", for the message.
            way_out: a last sentence of the message.

        Raises:
            ValueError: it cannot be compiled here; the message says why.
        """
        library = self.get()
        if library is None:
            raise ValueError(f"{what} by C++, and it cannot be compiled: {self.missing()}{way_out}")
        return library

    def missing(self) -> str:
        """Return the reason why the library is neither shipped nor can be compiled, or an empty text."""
        return self._loaded[1]

    def find_simd(self) -> str:
        """Return the level of vector instructions that a library was compiled for, if its C++ includes simd.h."""
        function = self.get().simd_name
        function.restype = ctypes.c_char_p
        return function().decode()

    @functools.cached_property
    def flags(self) -> list[str]:
        """The flags of a library that is compiled on this machine."""
        if shipped.MACHINE != "x86_64":
            return shipped.openmp_flags(shipped.FLAGS)
        cap = SIMD_FLAGS[choose_simd()] if os.environ.get(SIMD_VARIABLE) else []
        return [*shipped.FLAGS, "-march=native", *cap]

    @functools.cached_property
    def _loaded(self) -> tuple[ctypes.CDLL | None, str]:
        library, reason = self._load_shipped(), ""
        if library is None:
            reason = "" if may_load(self._path) else self._find_missing_tool()
        if library is None and not reason:
            try:
                library = self._load()
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                output = [
                    str(error),
                    (getattr(error, "output", None) or b"").decode(errors="replace"),
                ]
                reason = f"compiling failed: {self._explain(output)}"
        if library is None:
            log.warning("%s is not available: %s; %s", self.name, reason, self.otherwise)
        return library, reason

    def _load_shipped(self) -> ctypes.CDLL | None:
        """Load the library that the installed package ships, if it was compiled from these sources."""
        path = shipped.path_of(self.source, choose_simd())
        if not path.exists():
            return None
        try:
            return self._open(path, "shipped")
        except OSError as error:
            log.warning(
                "%s: the library that the package ships cannot be loaded, so it is compiled: %s",
                self.name,
                error,
            )
            return None

    def _load(self) -> ctypes.CDLL:
        path = self._path
        if may_load(path) or self._has_own_cache() and self._build():
            return self._open(path, "compiled")
        log.warning(
            "%s: others may write to %s, so no library there is loaded and every process compiles its own. Set "
            "TORCH_EXTENSIONS_DIR to a folder that only you can write to",
            self.name,
            path.parents[2],
        )
        with tempfile.TemporaryDirectory() as folder:
            return self._open(self._compile(Path(folder)), "compiled")

    def _open(self, path: Path, build: str) -> ctypes.CDLL:
        _share_openmp()
        library = ctypes.CDLL(str(path))
        _builds[self.name] = Build(choose_simd(), build, shipped.find_compiler(path))
        return library

    def _find_missing_tool(self) -> str:
        if os.name != "posix":
            return f"it needs a POSIX system, and this is '{os.name}'"
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler) is None:
            return f"there is no C++ compiler '{compiler}' (set CXX, or apt-get install g++)"
        if shutil.which("ninja", path=_path_with_scripts()) is None:
            return "there is no 'ninja', which runs the compiler (pip install ninja)"
        if importlib.util.find_spec("setuptools") is None:
            return "there is no 'setuptools', which torch's extension loader imports (pip install setuptools)"
        return ""

    def _explain(self, output: list[str]) -> str:
        """Find the line that says why the compiler failed, and write all lines to a file."""
        lines = [
            line.strip()
            for text in output
            for line in text.splitlines()
            if line.strip() and not line.startswith("ninja:")
        ]
        reason = next(
            (line for line in reversed(lines) if "error" in line.lower()),
            lines[-1] if lines else "",
        )
        if len(lines) > 1:
            try:
                path = self._path.parents[1] / "compiler.log"
                path.write_text("\n".join(lines))
                reason += f" (output of the compiler: {path})"
            except OSError:
                pass
        return reason

    def _has_own_cache(self) -> bool:
        """Make the library's folder in the cache, and tell whether only this user can write to it."""
        root = self._path.parents[1]
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        mode = root.lstat().st_mode
        if root.lstat().st_uid == os.geteuid() and mode & 0o022:
            root.chmod(
                stat.S_IMODE(mode) & ~0o022
            )  # earlier versions let others write to it if the umask did
        return _is_own(root) and _is_safe(root.parent)

    def _build(self) -> bool:
        """Compile into the cache, unless another process has just done so."""
        import fcntl  # POSIX only

        root, target = self._path.parents[1], self._path.parent
        # The lock spares a second process the work and ends with its holder. Even without it the rename would be safe.
        with open(root / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if may_load(self._path):
                return True
            if _record_of(self._path).exists():
                log.warning(
                    "%s: %s was changed, or others may write to it; compiling it again",
                    self.name,
                    self._path,
                )
            folder, old = (Path(tempfile.mkdtemp(dir=root)) for _ in range(2))
            log.info("%s: compiling, which happens once on this machine", self.name)
            try:
                self._compile(folder)
                if target.exists():
                    os.replace(target, old)
                os.replace(folder, target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(old, ignore_errors=True)
        return True

    def _compile(self, folder: Path) -> Path:
        """Compile into an empty folder, and record the checksum."""
        start = time.perf_counter()
        self._run_compiler(folder)
        (built,) = folder.glob(
            "*.so"
        )  # torch's loader gives a second library of a process another name
        built = built.rename(folder / self._path.name)
        record = _record_of(built)
        record.write_bytes(_checksum(built))
        built.chmod(0o755)
        record.chmod(0o644)
        log.info(
            "%s: compiled with %s in %.1f s to %s",
            self.name,
            " ".join(self.flags),
            time.perf_counter() - start,
            self._path.parents[1],
        )
        return built

    def _run_compiler(self, folder: Path) -> None:
        search_path = os.environ.get("PATH", "")
        os.environ["PATH"] = _path_with_scripts()
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # warnings about a compiler without a known version
                _extension_loader().load(
                    self._path.stem,
                    [str(self.source)],
                    extra_cflags=self.flags,
                    extra_ldflags=[] if sys.platform == "darwin" else ["-fopenmp"],
                    build_directory=str(folder),
                    is_python_module=False,
                    with_cuda=False,
                )
        finally:
            os.environ["PATH"] = search_path

    @functools.cached_property
    def _path(self) -> Path:
        environment = torch.__version__, os.environ.get("CXX"), platform.machine(), _cpu_flags()
        key = shipped.hash_sources(self.source, (self.flags, environment))
        # The second is get_default_build_root() of torch's extension loader, which is imported only to compile.
        root = os.environ.get("TORCH_EXTENSIONS_DIR") or importlib.import_module(
            "torch._appdirs"
        ).user_cache_dir("torch_extensions")
        folder = self.name.replace(" ", "_")
        # The key is part of the file name because torch's loader renames a second library of the same name.
        return Path(root) / f"deepgcn_{folder}" / key / f"{self.source.stem}_{key}.so"


@functools.cache
def _share_openmp() -> None:
    """Let libraries take OpenMP's functions from the library that torch has loaded, if torch keeps them for itself."""
    folder = Path(torch.__file__).parent
    for name in ("libgomp*", "libiomp*", "libomp*"):
        for path in (*folder.glob(f"lib/{name}"), *folder.parent.glob(f"torch.libs/{name}")):
            with contextlib.suppress(OSError):  # it is not loaded
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _extension_loader() -> Any:
    """Import torch's extension loader, without its warning about a CUDA folder on a machine that has no GPU."""
    name = "torch.utils.cpp_extension"
    logging.getLogger(name).addFilter(_has_news)
    return importlib.import_module(name)


def _has_news(record: logging.LogRecord) -> bool:
    return "No CUDA runtime is found" not in record.getMessage()


def choose_simd() -> str:
    """Name the level of vector instructions that kernels use: the processor's highest, or PARALLEL_EPOCHS_SIMD.

    Raises:
        ValueError: ``PARALLEL_EPOCHS_SIMD`` names no level, or one that this processor lacks.
    """
    check_simd()
    level, has = os.environ.get(SIMD_VARIABLE), find_simd()
    if level:
        _say_level(level, has)
    return level or has


@functools.cache
def _say_level(level: str, has: str) -> None:
    log.info("kernels: %s, as %s=%s and this processor has %s", level, SIMD_VARIABLE, level, has)


def check_simd() -> None:
    """Refuse a level of vector instructions that does not exist or that this processor lacks.

    Raises:
        ValueError: names the environment variable.
    """
    level, has, levels = os.environ.get(SIMD_VARIABLE), find_simd(), list(SIMD_NEEDS)
    if level and level not in levels:
        raise ValueError(f"{SIMD_VARIABLE}={level} is unknown; choose one of {', '.join(levels)}")
    if level and levels.index(level) > levels.index(has):
        raise ValueError(
            f"{SIMD_VARIABLE}={level} needs a processor with {level}, and this one has {has}; choose "
            f"{' or '.join(levels[: levels.index(has) + 1])}, or unset it"
        )


def find_simd() -> str:
    """Name the highest level of vector instructions that this processor has."""
    flags = set(_cpu_flags().split())
    return [level for level, needs in SIMD_NEEDS.items() if needs <= flags][-1]


def may_load(path: Path) -> bool:
    """Tell whether a library has its recorded checksum and nobody else can have written either of the two."""
    try:
        own = [_is_own(entry) for entry in (path.parents[1], path.parent, path, _record_of(path))]
        return (
            all(own)
            and _is_safe(path.parents[2])
            and _checksum(path) == _record_of(path).read_bytes()
        )
    except OSError:
        return False


def _is_own(path: Path) -> bool:
    """Tell whether a file or folder belongs to this user or to root, and nobody else may write to it."""
    status = path.lstat()
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def _is_safe(folder: Path) -> bool:
    """Tell whether nobody else can rename or replace the files of a user in a folder."""
    status = folder.stat()
    return status.st_uid in (0, os.geteuid()) and (
        not status.st_mode & 0o002 or bool(status.st_mode & stat.S_ISVTX)
    )


def _record_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _checksum(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def _path_with_scripts() -> str:
    # The folder of pip's scripts, with ninja, is not in PATH if Python was called by its full path.
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def _cpu_flags() -> str:
    # -march=native gives another library on another processor, and several machines may share a home folder.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's data for a C function. The tensor must live until the function returns."""
    return ctypes.c_void_p(tensor.data_ptr())
