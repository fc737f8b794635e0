"""Predictions of some nodes from their neighbourhood: those from the whole graph, or a line that says why not."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.gnn.predict import neighborhood
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor, predict_nodes
from tests.helpers.building import EvaluateConfig, open_graph, part_of, predict
from tests.helpers.running import train

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
        ["model.norm=batch", "train.label_input=0.5", "data.propagate=2"],
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
    expected = build_predictor(setup, embeddings=True)(0)[NODES]
    some = predict_nodes(setup, NODES, embeddings=True)
    assert expected.std() > 0.01
    torch.testing.assert_close(some, expected, rtol=1e-5, atol=1e-6)
    cut = neighborhood.take(setup.data, NODES, 3)
    assert cut.num_nodes < 90 and torch.equal(cut.n_id[cut.target], NODES)


@pytest.mark.parametrize(
    "keys, says",
    [
        (["model=revgnn"], "the whole graph is predicted, as it is not known how far RevGNN reads"),
        (
            [*PYG, "model.conv=LGConv"],
            "layers of LGConv x 8 channels) read more of the graph than the edges that enter",
        ),
        (
            ["data.num_edges=20000"],
            "as the 3 hops around these nodes hold more than half of its edges, or than a batch",
        ),
        (["evaluation=views"], ""),
    ],
    ids=["revgnn", "lg", "dense", "views"],
)
def test_the_whole_graph_is_predicted_where_a_neighbourhood_is_not_enough(
    keys, says, configure, caplog
):
    config = configure(*SPARSE, *keys)
    setup = part_of(config, open_graph(config).data)
    caplog.set_level("INFO", "parallel_epochs.pipeline.gnn.predict.predictor")
    assert predict_nodes(setup, NODES) is None
    assert says in caplog.text and ("output_nodes" in caplog.text) == bool(says)


def test_neighbourhoods_are_counted_against_the_edges(monkeypatch):
    """Node 0 has ten sources, each of which has one; node 50 has none."""
    ptr = torch.tensor([0, 10, *range(11, 21), *[20] * 180])
    src = torch.cat([torch.arange(1, 11), torch.arange(11, 21)])
    edges = from_csc(
        torch.stack([src, torch.repeat_interleave(torch.arange(ptr.numel() - 1), ptr.diff())]), ptr
    )
    data = Data(edge_index=edges, num_nodes=191)
    for nodes, hops, num_edges in (
        ([50], 9, 0),
        ([7, 50], 2, 1),
        ([1, 2, 3], 1, 3),
        ([0], 1, 10),
        ([0], 2, 20),
    ):
        nodes = torch.tensor(nodes)
        assert neighborhood.take(data, nodes, hops, num_edges).num_edges == num_edges
        assert neighborhood.take(data, nodes, hops, num_edges - 1) is None
    assert [neighborhood.most_edges(size) for size in (20, 1 << 20, 1 << 30)] == [
        1 << 14,
        1 << 19,
        1 << 22,
    ]


def test_a_table_of_some_nodes_needs_no_more_than_their_neighbourhood(configure, tmp_path, caplog):
    caplog.set_level("INFO")
    train(configure(*SPARSE), tmp_path / "run")
    (tmp_path / "ids.csv").write_text("id\n700\n3\n41\n")
    asked = dict(run=str(tmp_path / "run"), device="cpu", output_nodes=str(tmp_path / "ids.csv"))
    predict(EvaluateConfig(**asked, output=str(tmp_path / "some.csv")))
    assert "output_nodes: predicted from the " in caplog.text
    caplog.clear()
    predict(
        EvaluateConfig(
            **asked, output=str(tmp_path / "all.csv"), predictions=str(tmp_path / "all.pt")
        )
    )
    assert "output_nodes" not in caplog.text, "logits of all nodes are asked for"
    some, whole = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("some", "all"))
    assert some["id"].tolist() == [700, 3, 41] and list(some) == list(whole)
    assert some["split"].tolist() == whole["split"].tolist()
    np.testing.assert_allclose(
        some.filter(like="probability"), whole.filter(like="probability"), rtol=1e-5
    )
    with pytest.raises(
        ValueError,
        match="no node has the id '007' of row 1; the 900 nodes of the run are called 0, 1",
    ):
        (tmp_path / "ids.csv").write_text("id\n007\n")
        predict(EvaluateConfig(**asked, output=str(tmp_path / "some.csv")))
