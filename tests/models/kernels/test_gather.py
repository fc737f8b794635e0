"""The kernel that gathers rows, in a process of its own: on a GPU, or interpreted."""

import pytest

from tests.helpers.triton_process import needs_triton, run_cases

pytestmark = [pytest.mark.slow, needs_triton]


def test_rows_are_gathered():
    run_cases("triton_gather_cases.py", "not exhaustive")
