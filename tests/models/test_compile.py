"""Models under torch.compile: the same numbers as without it, and nothing that it has to leave to Python."""

import os
import shutil

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks.pyg import PyGModel
from tests.models.aggregate.test_fused import graph

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)


@pytest.mark.slow
@pytest.mark.parametrize("edges, precision", [("filled col", "bf16"), ("plain", "fp32")])
def test_compile_without_a_graph_break(edges, precision):
    torch._dynamo.reset()
    model = DeeperGCN(8, 16, 3, 2, edge_dim=8, dropout=0.0)
    edge_index, inputs, _ = graph(40, 40, 500)
    attr = inputs["edge_attr"]
    if edges != "plain":
        sorted_ = EdgeIndex(edge_index, sparse_size=(40, 40)).sort_by(edges.split()[-1])
        edge_index, attr = sorted_.values, attr[sorted_.indices]
        if "filled" in edges:
            edge_index.fill_cache_()
    arguments = inputs["x"].detach()[:, :8], edge_index, attr.detach()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        expected = model(*arguments)
        expected.float().sum().backward()
        gradients = [p.grad for p in model.parameters()]
        model.zero_grad()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        out = compiled(*arguments)
    assert out.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    # The compiler keeps products in float32 that eager rounds to bf16.
    tolerance = dict(rtol=0.05, atol=0.05) if precision == "bf16" else dict(rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected, **tolerance)
    out.float().sum().backward()
    for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True):
        error = (p.grad - gradient).norm()
        assert error <= (0.1 if precision == "bf16" else 1e-5) * gradient.norm(), name


@pytest.mark.parametrize(
    "model",
    [
        DeeperGCN(8, 16, 3, 2, edge_dim=8),
        *(PyGModel(8, 16, 3, 2, conv=conv) for conv in ("GATv2Conv", "GCNConv", "SAGEConv")),
    ],
    ids=lambda model: getattr(model, "title", "DeeperGCN"),
)
def test_export_of_edges_that_know_one_order(model):
    """PyG would fill in the other order meanwhile, which ends in KeyError: '_T_perm'."""
    edge_index, inputs, _ = graph(40, 40, 500)
    edges, order = EdgeIndex(edge_index, sparse_size=(40, 40)).sort_by("col")
    edges.get_csc()
    arguments = inputs["x"].detach()[:, :8], edges, inputs["edge_attr"].detach()[order]
    program = torch.export.export(model.eval(), arguments)
    assert edges._T_perm is None
    torch.testing.assert_close(program.module()(*arguments), model(*arguments))
