"""The Triton kernels of messages and attention. Those of the aggregation are compiled together with them."""

import pytest

from tests.helpers.triton_process import needs_triton, run_cases

pytestmark = [pytest.mark.slow, needs_triton]


def test_cases_of_attention():
    run_cases("triton_attention_cases.py")


def test_cases_of_messages():
    run_cases("triton_messages_cases.py")
