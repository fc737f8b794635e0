"""The Triton kernels of messages and attention. Those of the aggregation are compiled together with them."""

import pytest

from tests.helpers.triton_process import both_suites, needs_triton, run_cases

pytestmark = [pytest.mark.slow, needs_triton]


@both_suites
def test_cases_of_attention(chosen):
    run_cases("triton_attention_cases.py", chosen)


@both_suites
def test_cases_of_messages(chosen):
    run_cases("triton_messages_cases.py", chosen)
