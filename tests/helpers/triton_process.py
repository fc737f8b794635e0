"""Processes of their own for tests of Triton, which decides when it is imported whether it compiles or interprets."""

import importlib.util
import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import torch

from tests.helpers.running import ROOT

HELPERS = ROOT / "tests" / "helpers"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="no Triton (pip install parallel-epochs[triton])",
)


def run(*command: str, **environment: str) -> None:
    """Run a module or a file of this folder."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        **environment,
    }
    result = subprocess.run(
        [sys.executable, *command], cwd=HELPERS, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def both_suites(function):
    """Run a test in the slow suite, and once more for what its cases leave to the exhaustive one; see :func:`more`."""
    return pytest.mark.parametrize(
        "chosen", ["not exhaustive", pytest.param("exhaustive", marks=pytest.mark.exhaustive)]
    )(function)


def more(*values):
    """Mark parameters of a case as those of the exhaustive suite: other ones take the same ways through the kernels."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive
        )
        for value in values
    ]


def run_cases(file: str, chosen: str) -> None:
    """Run cases on the GPU, or under Triton's interpreter.

    Args:
        chosen: an expression of pytest's marks.
    """
    is_interpreted = not torch.cuda.is_available()
    mode = (
        {"TRITON_INTERPRET": "1"} if is_interpreted else {"TESTS_SEE_GPUS": "1"}
    )  # see conftest.py
    version = metadata.version("triton")
    if (
        is_interpreted
        and version.startswith("3.6.")
        and np.lib.NumpyVersion(np.__version__) >= "2.4.0"
    ):
        pytest.skip(f"Triton {version} cannot interpret loops with numpy {np.__version__}; 3.7 can")
    # The interpreter computes with numpy, which warns of the infinities in lanes that are masked out, and of how Triton
    # 3.6 reads an array of one number.
    run(
        "-m",
        "pytest",
        "-x",
        "-W",
        "ignore::RuntimeWarning",
        "-W",
        "ignore:Conversion of an array:DeprecationWarning",
        "-m",
        chosen,
        file,
        **mode,
    )


def choose_device(*modules) -> str:
    """Return "cuda" where there is a GPU; else "cpu", where the kernels of modules are then interpreted."""
    if torch.cuda.is_available():
        for module in modules:
            module.register()
        return "cuda"
    interpret_faster()
    for module in modules:
        module.register("cpu")
    return "cpu"


def interpret_faster() -> None:
    """Keep the interpreter from replacing the functions of triton.language at every call of a device function.

    Once for each module is enough, as a kernel replaces those that its own module sees.
    """
    from triton.runtime import interpreter

    if not hasattr(interpreter.InterpretedFunction, "rewrite"):
        return
    replaced = set()

    def call(self, *args, **options):
        if self.fn.__module__ not in replaced:
            replaced.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **options)

    interpreter.InterpretedFunction.__call__ = call
