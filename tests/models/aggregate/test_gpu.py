"""The Triton kernels of the aggregation."""

import pytest

from tests.helpers.triton_process import needs_triton, run, run_cases

pytestmark = [pytest.mark.slow, needs_triton]


def test_cases():
    run_cases("triton_cases.py")


def test_kernels_compile_for_hopper_without_a_gpu(tmp_path):
    run("triton_compile.py", TRITON_CACHE_DIR=str(tmp_path))
