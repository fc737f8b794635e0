"""Batches from a graph on a device equal those from the CPU, bit by bit, for every loader and its options."""

from functools import partial

import pytest
import torch
import yaml

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.gnn import placement
from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.resident import put_on
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.building import open_graph
from tests.helpers.graph_toys import write_graphs
from tests.helpers.pretend_device import DEVICE, pretended
from tests.helpers.purchases import write_purchases
from tests.helpers.running import TOY, train
from tests.helpers.typed_tables import SCHEMA, write_tables

LINKS = ["data=edges", "task=link", "task.pairs_per_step=40", "partition.num_parts=2"]
MOLECULES = ["+experiment=ogbg_molhiv", "loader.batch_size=9"]


def assert_same_batches(config):
    """Compare all batches of two rounds of a configuration, drawn on the CPU and on the pretended device."""
    expected = [
        [
            batch.to_dict()
            for batch in open_graph(config).parts[0].loader.batches(round_, Share(1, round_, 2))
        ]
        for round_ in range(2)
    ]
    assert expected[0]
    loader = open_graph(config).parts[0].loader
    with pretended() as waited:
        loader.place(partial(put_on, device=DEVICE))
        drawn = loader.draw(0, Share())
        loader.measure(drawn, 0.0)
        for round_, batches in enumerate(expected):
            found = list(loader.batches(round_, Share(1, round_, 2)))
            assert len(found) == len(batches)
            for batch, other in zip(found, batches, strict=True):
                assert batch.edge_index.device == batch.n_id.device == batch.target.device == DEVICE
                batch = batch.to(torch.device("cpu")).to_dict()
                assert batch.keys() == other.keys()
                for key, value in other.items():
                    if isinstance(value, torch.Tensor):
                        torch.testing.assert_close(
                            plain_edges(batch[key]),
                            plain_edges(value),
                            rtol=0,
                            atol=0,
                            equal_nan=True,
                            msg=key,
                        )
                csr = [edges["edge_index"]._T_perm for edges in (batch, other)]
                assert torch.equal(*csr)
    return waited


@pytest.mark.parametrize(
    "overrides",
    [
        ["partition=random", "partition.num_parts=4"],
        ["partition=metis", "partition.num_parts=4", "partition.clusters_per_step=2"],
        ["partition=metis_random", "partition.num_parts=3"],
        ["partition=whole"],
        [
            "loader=neighbor",
            "loader.num_neighbors=[3,-1]",
            "model.num_layers=2",
            "loader.batch_size=32",
        ],
    ],
)
def test_labels_of_nodes(overrides, configure):
    assert_same_batches(configure(*TOY, *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["task.hide_pairs=true"],
        ["partition=whole", "task.hide_pairs=true"],
        ["data.link_negatives=all", "task.num_negatives=3"],
    ],
)
def test_links(overrides, configure, tmp_path):
    (tmp_path / "edges.csv").write_text(
        "\n".join(f"{a},{b}" for a in range(40) for b in range(a) if a * b % 7 == 1)
    )
    assert_same_batches(configure(*LINKS, f"data.path={tmp_path / 'edges.csv'}", *overrides))


@pytest.mark.parametrize("overrides", [[], ["data.laplacian=2"]])
def test_whole_graphs(overrides, configure, tmp_path):
    assert_same_batches(
        configure(*MOLECULES, f"data.folder={write_graphs(tmp_path)}", *overrides),
    )


def test_several_types(configure, tmp_path):
    pytest.importorskip("duckdb")
    write_tables(tmp_path)
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    assert_same_batches(
        configure(
            "data=tables",
            f"data.schema={tmp_path / 'graph.yaml'}",
            f"data.folder={tmp_path}",
            "model=rgcn",
            "task.base=none",
            "task=link",
            "task.relation=buys",
            "task.pairs_per_step=20",
            "task.hide_pairs=true",
            "partition.num_parts=2",
        ),
    )


def test_snapshots(configure, tmp_path):
    sampled = ["loader=neighbor", "loader.batch_size=16", "loader.num_neighbors=[4,4]"]
    assert_same_batches(configure(*write_purchases(tmp_path), *sampled, "model.num_layers=2"))


def test_a_run_ends_with_the_same_weights(configure, tmp_path, monkeypatch):
    """A model on the CPU trains on batches from the pretended device; what it reads comes from there alone."""
    config = configure(
        *TOY,
        "train.epochs=2",
        "partition.num_parts=3",
        "evaluation=views",
        "evaluation.num_views=2",
        "train.label_input=0.5",
    )
    expected = train(config, tmp_path / "cpu")
    make_rounds = BackgroundRounds._make_rounds

    def place(setup, *, trains):
        if setup.put is None:
            setup.put = partial(put_on, device=DEVICE)
            setup.loader.place(setup.put)

    def make_there(self):
        with pretended():
            make_rounds(self)

    def take(self, round_, share):
        placed.append(self.graph.edge_index.device)
        return batches(self, round_, share)

    placed, batches = [], ClusterLoader.batches
    monkeypatch.setattr(placement, "place", place)
    monkeypatch.setattr(BackgroundRounds, "_make_rounds", make_there)
    monkeypatch.setattr(ClusterLoader, "batches", take)
    with pretended():
        found = train(config, tmp_path / "there")
    assert set(placed) == {DEVICE}
    assert (
        found["weights_sha256"] == expected["weights_sha256"]
        and found["best_valid"] == expected["best_valid"]
    )
