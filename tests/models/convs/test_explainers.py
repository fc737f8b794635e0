"""An explainer of PyG's leaves no layer on PyG's own code, which takes 2 to 14 times as long."""

import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import conv as pyg

from parallel_epochs import models

ARGUMENTS = {
    "GENConv": {"aggr": "softmax"},
    "GATConv": {"heads": 2},
    "GATv2Conv": {"heads": 2},
    "SAGEConv": {},
    "GCNConv": {},
    "GraphConv": {},
    "TransformerConv": {},
    "ResGatedGraphConv": {},
}


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if hasattr(models, name)])
@pytest.mark.filterwarnings("ignore:.*PyG's own code runs")
def test_the_fused_code_runs_after_an_explanation(name):
    getattr(pyg, name)(
        6, 6, **ARGUMENTS[name]
    )  # what PyG's class leaves behind must not reach ours
    conv = getattr(models, name)(6, 6, **ARGUMENTS[name]).eval()
    x, edge_index = torch.randn(10, 6), torch.randint(10, (2, 40))
    before = conv(x, edge_index)
    assert not conv.pygs_reason
    explain = Explainer(
        conv,
        GNNExplainer(epochs=1),
        explanation_type="model",
        node_mask_type="object",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    explain(x, edge_index, index=2)
    assert conv.pygs_reason == "an explainer's mask"
    conv.kernel = "fused"  # which is refused where PyG's own code has to run
    torch.testing.assert_close(conv(x, edge_index), before)
    assert not conv.pygs_reason
