"""Clusters with the same share of every type of nodes, as a run draws them."""

import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers import building as build
from tests.helpers.running import TOY, train
from tests.helpers.typed_graphs import write_hetero


def test_every_cluster_of_a_run_has_the_same_share_of_every_type(configure, tmp_path):
    config = configure(*write_hetero(tmp_path), "partition.num_parts=5", "partition.stratify=true")
    data = build.open_graph(config).data
    loader = build.build_loader(config, data)
    drawn = [loader.draw(round_, Share(draw=draw)) for round_, draw in ((0, 0), (0, 1), (1, 0))]
    for partition in drawn:
        kinds = [data.x[partition.nodes(part), -3:].sum(0).tolist() for part in range(5)]
        assert sorted(kinds) == [[8, 6, 1]] * 4 + [[8, 6, 2]]
    assert len({tuple(partition.nodes(0).tolist()) for partition in drawn}) == 3
    assert not torch.equal(
        build.build_loader(configure(*write_hetero(tmp_path), "partition.num_parts=5"), data)
        .draw(0, Share())
        .perm,
        drawn[0].perm,
    )


def test_a_graph_with_one_type_is_refused(configure, tmp_path):
    with pytest.raises(
        ValueError, match="partition.stratify=true .* data=synthetic_proteins has one type of nodes"
    ):
        train(configure(*TOY, "partition.stratify=true"), tmp_path / "run")


@pytest.mark.parametrize(
    "overrides, error",
    [
        (
            ["partition=metis"],
            "partition.stratify=true needs partition=random, since other clusters follow the edges",
        ),
        (["partition=whole"], "this run has partition=whole"),
        (
            ["loader=neighbor", "loader.num_neighbors=[2,2,2,2]"],
            "partition.stratify=true needs loader=cluster",
        ),
        (["data.components=largest"], "partition.stratify=true needs data.components=all"),
    ],
)
def test_what_makes_no_random_clusters_of_the_whole_graph_is_refused(overrides, error, configure):
    with pytest.raises(cli.USER_ERRORS, match=error):
        configure(*overrides, "partition.stratify=true")
