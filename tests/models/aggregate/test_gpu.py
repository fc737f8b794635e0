"""The Triton kernels. Triton decides when it is imported whether it compiles or interprets: hence other processes."""

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
pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                                   reason="no Triton (pip install parallel-epochs[triton])")]


def run(*command: str, **environment: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                   **environment}
    result = subprocess.run([sys.executable, *command], cwd=HELPERS, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_cases():
    mode = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    version = metadata.version("triton")
    if mode and version.startswith("3.6.") and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip(f"Triton {version} cannot interpret loops with numpy {np.__version__}; 3.7 can")
    # The interpreter computes with numpy, which warns of the infinities in lanes that are masked out.
    run("-m", "pytest", "-x", "-W", "ignore::RuntimeWarning", "triton_cases.py", **mode)


def test_kernels_compile_for_hopper_without_a_gpu(tmp_path):
    run("triton_compile.py", TRITON_CACHE_DIR=str(tmp_path))
