import os

import pytest
import torch
from jaxtyping import TypeCheckError

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.aggregate import aggregate
from parallel_epochs.models.convs.activation import norm_relu_dropout
from parallel_epochs.models.edge_index import from_csc
from tests.helpers import shapes


@pytest.mark.skipif(os.environ.get("CHECK_SHAPES", "1") != "1", reason="CHECK_SHAPES=0")
def test_wrong_shapes_are_found():
    edge_index = torch.tensor([[0, 1], [1, 1]])
    calls = (
        lambda: aggregate(
            torch.ones(2, 3), edge_index, torch.ones(2, 4), torch.ones(5, 4)
        ),  # 5 channels, x has 3
        lambda: aggregate(torch.ones(2, 3), edge_index.float()),
        lambda: norm_relu_dropout(torch.ones(3), torch.nn.LayerNorm(3)),
        lambda: from_csc(edge_index, torch.zeros(3)),
        lambda: DeeperGCN(3, 4, 2, 1)(torch.ones(2, 3, 1), edge_index),
    )
    for call in calls:
        with pytest.raises(TypeCheckError):
            call()
    with shapes.unchecked(), pytest.raises(ValueError, match="weight has shape"):
        calls[0]()
