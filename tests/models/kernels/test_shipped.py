"""Libraries that a wheel ships are loaded before any compiler is asked, and only if they are of the same sources."""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys

import pytest

from parallel_epochs.models.kernels import native, shipped
from parallel_epochs.models.kernels.native import NativeLibrary
from tests.helpers.running import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)
LEVELS = list(native.SIMD_NEEDS)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> dict[str, bytes]:
    """A small library for each level, whose function number() returns the place of the level in LEVELS."""
    folder = tmp_path_factory.mktemp("numbers")
    for place, level in enumerate(LEVELS):
        (folder / "number.c").write_text(f"int number() {{ return {place}; }}\n")
        subprocess.run(
            [os.environ.get("CXX", "c++"), "-x", "c", "number.c", "-shared", "-fPIC", "-o", level],
            cwd=folder,
            check=True,
        )
    return {level: (folder / level).read_bytes() for level in LEVELS}


@pytest.fixture
def number(numbers, tmp_path, monkeypatch):
    """Makes a library whose package ships all levels, on a machine without a compiler and with an empty cache."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "libraries")
    monkeypatch.setattr(native, "_builds", {})
    shipped.FOLDER.mkdir()
    source = tmp_path / "number.cpp"
    source.write_text('#include "number.h"\n')
    source.with_name("number.h").write_text("int number();\n")
    for level, library in numbers.items():
        shipped.path_of(source, level).write_bytes(library)
    return lambda: NativeLibrary("number", source, otherwise="none is told")


@pytest.mark.parametrize(
    "flags, level",
    [
        ("sse2", "portable"),
        ("avx2 fma", "avx2"),
        ("avx2 fma avx512f", "avx2"),
        ("avx2 fma avx512f avx512dq", "avx512"),
    ],
)
def test_the_highest_level_of_the_processor_is_loaded(flags, level, number, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "_cpu_flags", lambda: flags)
    monkeypatch.delenv(native.SIMD_VARIABLE, raising=False)
    library = number()
    assert library.get().number() == LEVELS.index(level) and library.missing() == ""
    build = native.builds()["number"]
    assert (
        build["level"] == level
        and build["build"] == "shipped"
        and not (tmp_path / "cache").exists()
    )
    assert re.fullmatch(r"GCC \(.+\) \d+\.\d+.*|clang version .+", build["compiler"])


@pytest.mark.parametrize("name", ["number.cpp", "number.h"])
def test_a_library_of_older_sources_is_not_loaded(name, number, tmp_path):
    assert number().get() is not None
    with open(tmp_path / name, "a") as file:
        file.write("// changed\n")
    library = number()
    assert library.get() is None and "no C++ compiler 'no-such-compiler'" in library.missing()


def test_a_shipped_library_that_cannot_be_loaded_is_compiled(number, numbers, monkeypatch, caplog):
    for path in shipped.FOLDER.iterdir():
        path.write_bytes(b"\x7fELF")
    monkeypatch.delenv("CXX")

    def compile_at_once(self, folder):
        (folder / "number.so").write_bytes(numbers["portable"])

    monkeypatch.setattr(NativeLibrary, "_run_compiler", compile_at_once)
    assert number().get().number() == 0 and native.builds()["number"]["build"] == "compiled"
    assert (
        "number: the library that the package ships cannot be loaded, so it is compiled: "
        in caplog.text
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="the name of the folder is that of wheels for Linux"
)
def test_a_library_finds_openmp_where_torch_keeps_it_for_itself(tmp_path, monkeypatch):
    # So do wheels of torch for Linux on aarch64.
    compiler = [os.environ.get("CXX", "c++"), "-x", "c", "-shared", "-fPIC", "-o"]
    openmp = tmp_path / "torch.libs" / "libgomp-0.so.1"
    openmp.parent.mkdir()
    for source, target in (
        ("int hidden_function() { return 7; }", openmp),
        ("int hidden_function(); int number() { return hidden_function(); }", tmp_path / "a.so"),
    ):
        subprocess.run([*compiler, target, "-"], input=source, text=True, check=True)
    private = ctypes.CDLL(str(openmp), os.RTLD_LOCAL)
    with pytest.raises(OSError, match="hidden_function"):
        ctypes.CDLL(str(tmp_path / "a.so"), os.RTLD_NOW)
    monkeypatch.setattr(native.torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    native._share_openmp.__wrapped__()
    assert (
        ctypes.CDLL(str(tmp_path / "a.so"), os.RTLD_NOW).number() == private.hidden_function() == 7
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@pytest.mark.parametrize("level", LEVELS)
def test_the_flags_of_a_level_give_its_vectors(level, tmp_path):
    source = tmp_path / "name.cpp"
    source.write_text(f'#include "{ROOT}/models/kernels/simd.h"\nSIMD_NAME\n')
    flags = shipped.flags_of(level)
    text = subprocess.run(
        [os.environ.get("CXX", "c++"), *flags, "-E", "-P", source],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert text.splitlines()[-1] == f'"{level}"'


@pytest.fixture(scope="module")
def setup():
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_has_the_tag_of_the_newest_glibc_that_its_libraries_need(setup, tmp_path):
    libraries = [tmp_path / "a.so", tmp_path / "b.so"]
    for path, versions in zip(
        libraries, (b"GLIBC_2.2.5\0GLIBC_2.28\0", b"GLIBC_2.9\0GLIBC_2.14\0"), strict=True
    ):
        path.write_bytes(b"\x7fELF\0" + versions)
    assert setup.find_tag(libraries) == "manylinux_2_28_x86_64"
    assert setup.find_tag(libraries[1:]) == "manylinux_2_17_x86_64"
    assert setup.find_tag(libraries[1:], "linux", "aarch64") == "manylinux_2_17_aarch64"
    assert setup.find_tag([], "darwin", "aarch64") == "macosx_11_0_arm64"
