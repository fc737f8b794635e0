"""Predictions of some nodes from their neighbourhood are those from the whole graph."""

import pytest
import torch

from parallel_epochs.pipeline.gnn.predict import neighborhood
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor
from tests.helpers.building import open_graph, part_of

# About two neighbours a node: three hops around a node hold a few of them.
SPARSE = [
    "data.num_nodes=900",
    "data.num_edges=1800",
    "data.num_groups=30",
    "data.num_species=3",
    "model.num_layers=3",
    "model.hidden_channels=8",
    "train.epochs=1",
]
PYG = ["model=pyg", "model.norm=batch"]
NODES = torch.tensor([700, 3, 41, 899])


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["model.norm=batch", "train.label_input=0.5"],
        ["features=embedding"],
        [*PYG, "model.conv=GATv2Conv"],
        [*PYG, "model.conv=EdgeConv"],
    ],
    ids=["default", "labels", "learned", "gatv2", "edgeconv"],
)
def test_some_nodes_are_predicted_as_from_the_whole_graph(keys, configure):
    config = configure(*SPARSE, *keys)
    setup = part_of(config, open_graph(config).data)
    for name, tensor in setup.model.state_dict().items():  # norms that do something
        if name.endswith("running_mean"):
            tensor.normal_(generator=torch.Generator().manual_seed(1))
    expected = build_predictor(setup)(0)[NODES]
    assert expected.std() > 0.01
    cut = neighborhood.take(setup.data, NODES, 3)
    batch = cut if setup.table is None else setup.table.attach(cut, setup.device)
    with torch.no_grad():
        some = setup.task.predict(setup.model.eval(), batch)[1]
    torch.testing.assert_close(some, expected, rtol=1e-5, atol=1e-6)
    assert cut.num_nodes < 90 and torch.equal(cut.n_id[cut.target], NODES)
