"""Cases for the kernel that gathers rows, run by tests/models/kernels/test_gather.py: on a GPU, or interpreted."""

import pytest
import torch

from parallel_epochs.models.kernels.gather import gather_rows
from parallel_epochs.pipeline.graph.resident import HeldRows
from tests.helpers.triton_process import choose_device

DEVICE = torch.device(choose_device())


@pytest.mark.parametrize("columns", [1, 8, 100, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("num_near", [0, 7, 40])
def test_rows(columns, dtype, num_near):
    values = torch.arange(40 * columns).view(40, columns).to(dtype)
    rows = torch.randint(40, (333,), generator=torch.Generator().manual_seed(columns))
    expected, held = values[rows], HeldRows(values, torch.randperm(40)[:num_near], DEVICE)
    if num_near:  # near rows are not read from afar
        held.values[held._slot.cpu() >= 0] = 0
    found = gather_rows(held.values, held._near, held._slot, rows.to(DEVICE))
    assert torch.equal(found.cpu(), expected)
    if DEVICE.type == "cuda":
        assert held.values.is_pinned() and torch.equal(held.take(rows.to(DEVICE)), found)


def test_no_rows():
    values = torch.ones(3, 2)
    assert gather_rows(
        values, None, None, torch.empty(0, dtype=torch.int64, device=DEVICE)
    ).shape == (0, 2)
