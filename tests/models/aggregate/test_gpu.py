"""The Triton kernels of the aggregation."""

import pytest

from tests.helpers.triton_process import both_suites, needs_triton, run, run_cases

pytestmark = [pytest.mark.slow, needs_triton]


@both_suites
def test_cases(chosen):
    run_cases("triton_cases.py", chosen)


@pytest.mark.parametrize("chosen", ["some", pytest.param("rest", marks=pytest.mark.exhaustive)])
def test_kernels_compile_for_hopper_without_a_gpu(chosen, tmp_path):
    run("triton_compile.py", chosen, TRITON_CACHE_DIR=str(tmp_path))
