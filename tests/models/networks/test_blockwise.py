"""A model on a whole graph a block of nodes at a time: the predictions of one forward."""

import pytest
import torch

from parallel_epochs.models import DeeperGCN, RevGNN
from parallel_epochs.models.networks import blockwise
from parallel_epochs.models.networks.blockwise import InBlocks
from parallel_epochs.pipeline.run.storage import zeros_on_disk
from tests.helpers.graphs import random_graph

SIZES = [(1000, 10**9), (16, 100), (7, 1)]
OPTIONS = [
    {"edge_dim": None},
    {"edge_dim": 3, "norm": "batch"},
    {"edge_dim": 3, "aggr": "add", "num_categories": 2},
    {"edge_dim": 3, "encode_x": False},
    {"edge_dim": 3, "kernel": "reference"},
]


@pytest.mark.parametrize("num_rows, num_edges", SIZES)
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_predictions_are_those_of_one_forward(options, num_rows, num_edges, tmp_path):
    data = random_graph(30, 120, 0)
    torch.manual_seed(0)
    columns = 5 - options.get("num_categories", 0)
    hidden = 5 if options.get("encode_x") is False else 8
    model = DeeperGCN(columns, hidden, 2, 3, **options).eval()
    edge_attr = data.edge_attr if options["edge_dim"] else None
    with torch.no_grad():
        expected = model(data.x, data.edge_index, edge_attr)
    called = []
    in_blocks = InBlocks(
        model,
        num_rows=num_rows,
        num_edges=num_edges,
        before_block=lambda: called.append(1),
        allocate=lambda *shape: zeros_on_disk(tmp_path, *shape),
    ).eval()
    torch.testing.assert_close(
        in_blocks(data.x, data.edge_index, edge_attr), expected, rtol=1e-4, atol=1e-5
    )
    assert len(called) >= 5 * -(-30 // num_rows)


@pytest.mark.parametrize(
    "model, says",
    [
        (RevGNN(5, 8, 2, 2), "RevGNN has layers that read all nodes at once"),
        (DeeperGCN(5, 8, 2, 2, virtual_node="mean"), "a virtual node reads all nodes"),
        (DeeperGCN(5, 8, 2, 2, pool="mean"), "model.pool reads all nodes of a graph"),
        (DeeperGCN(5, 8, 2, 2), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_needs_all_nodes_is_named(model, says):
    assert blockwise.why_not(model) == says
