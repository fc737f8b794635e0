"""The wheel with compiled kernels, installed where there is no compiler: `make wheel` builds the same."""

import json
import os
import platform
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from parallel_epochs.models.kernels import native, shipped
from tests.helpers.installing import build_wheel, install_wheel, run
from tests.helpers.running import ROOT, TOY

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"),
        reason="wheels are for x86-64",
    ),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
]
SOURCES = [path for package in ("models", "pipeline") for path in (ROOT / package).rglob("*.cpp")]
LEVELS = list(native.SIMD_NEEDS)
LOAD_ALL = """
import importlib, json, pathlib, re
import parallel_epochs
from parallel_epochs.models.kernels import native

def find_openmp():
    return sorted(set(re.findall(r"/\\S*/lib[gi]?omp\\S*", pathlib.Path("/proc/self/maps").read_text())))

root = pathlib.Path(parallel_epochs.__file__).parent
modules = [importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
           for path in root.rglob("*.py") if "\\nLIBRARY = NativeLibrary(" in path.read_text()]
before = find_openmp()
for module in modules:
    assert module.LIBRARY.get() is not None, module.LIBRARY.missing()
print(json.dumps([native.builds(), before, find_openmp()]))
"""
# Its slow tests load kernels of each level by PARALLEL_EPOCHS_SIMD, and do not need the checkout.
KERNEL_TESTS = ("tests/models/kernels/test_native.py",)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel with the kernels that lie in build/, where they are kept as their names tell their sources."""
    return build_wheel(
        tmp_path_factory.mktemp("wheel"), PARALLEL_EPOCHS_KERNELS=str(ROOT / "build" / "kernels")
    )


@pytest.fixture(scope="module")
def install(wheel, tmp_path_factory) -> Path:
    return install_wheel(wheel, tmp_path_factory.mktemp("install") / "environment")


@pytest.fixture
def bare(install, tmp_path) -> dict[str, str]:
    """The environment variables of a machine without a compiler and with an empty cache, which stays empty."""
    environ = {
        "PATH": str(install),
        "CXX": "",
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
    }
    assert not any(
        shutil.which(name, path=environ["PATH"])
        for name in ("c++", "g++", "gcc", "clang", "clang++", "cc")
    )
    yield environ
    assert not (tmp_path / "extensions").exists()


def test_the_wheel_has_every_kernel_and_the_tag_of_its_libraries(wheel):
    with zipfile.ZipFile(wheel) as files:
        libraries = {
            Path(name).name: files.read(name) for name in files.namelist() if name.endswith(".so")
        }
        tops = {name.partition("/")[0] for name in files.namelist()}
    assert (
        len([top for top in tops if not top.endswith(".dist-info")]) == 1
        and "parallel_epochs" in tops
    )
    assert libraries.keys() == {
        shipped.path_of(source, level).name for source in SOURCES for level in LEVELS
    }
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    assert wheel.stat().st_size < 3_000_000
    for name, content in libraries.items():
        assert all(
            int(minor) <= int(tag[1]) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)
        ), name
        # Of a C++ library of 2018 or newer; and OpenMP is the one that torch brings.
        assert {b"GLIBCXX_3.4"} >= set(
            re.findall(rb"GLIBCXX_[\d.]+", content)
        ) and b"libgomp" not in content, name


def test_every_kernel_is_loaded_without_a_compiler_and_brings_no_openmp(install, bare, tmp_path):
    builds, before, after = json.loads(
        run(install / "python", "-c", LOAD_ALL, cwd=tmp_path, **bare).stdout
    )
    assert len(builds) == len(SOURCES)
    assert {(build["build"], build["level"]) for build in builds.values()} == {
        ("shipped", native.find_simd())
    }
    assert before == after and any("/torch/" in path for path in after)


@pytest.mark.parametrize("command", [["parallel-epochs"], ["python", "-m", "parallel_epochs"]])
def test_the_default_run_trains_without_a_compiler(command, install, bare, tmp_path):
    program, *arguments = command
    run(
        install / program,
        *arguments,
        "train",
        *([] if arguments else TOY),
        "hydra.run.dir=run",
        cwd=tmp_path,
        **bare,
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["kernel"] == f"fused-cpu ({native.find_simd()})"
    build = summary["libraries"]["fused aggregation"]
    assert build["build"] == "shipped" and build["level"] == native.find_simd()
    assert re.match(r"GCC \(|clang version ", build["compiler"])


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_passes_the_tests_of_kernels(level, install, bare, tmp_path):
    if LEVELS.index(level) > LEVELS.index(native.find_simd()):
        pytest.skip(f"this processor has no {level}")
    for folder in ("tests", "tools"):  # which the wheel has not
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.xz")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    builds, *_ = json.loads(
        run(
            install / "python", "-c", LOAD_ALL, cwd=tmp_path, PARALLEL_EPOCHS_SIMD=level, **bare
        ).stdout
    )
    assert {(build["build"], build["level"]) for build in builds.values()} == {("shipped", level)}
    broken = tmp_path / "broken-compiler"  # since the tests are skipped where there is none
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    said = run(
        install / "python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow",
        "-k",
        f"(other_widths or every_level) and {level}",
        *KERNEL_TESTS,
        cwd=tmp_path,
        **bare | {"CXX": str(broken), "PATH": os.environ["PATH"]},
    ).stdout
    assert int(re.search(r"(\d+) passed", said)[1]) >= 3, said
