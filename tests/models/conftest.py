"""Fixtures of the tests of models."""

import pytest
import torch

from parallel_epochs.models import notice


@pytest.fixture
def said(monkeypatch):
    """What was logged as a warning, once each."""
    notice._said.clear()
    lines = []
    monkeypatch.setattr(notice.log, "warning", lambda form, line: lines.append(line))
    return lines


@pytest.fixture
def poisoned_memory():
    """Fill what torch.empty returns with NaN, so that an element nobody writes cannot pass for a result."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
