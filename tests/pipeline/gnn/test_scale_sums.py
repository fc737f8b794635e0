"""Sums over the neighbours in a cluster, scaled up to those of the whole graph."""

import pytest
import torch

from parallel_epochs.models import DeeperGCN, GENConv
from parallel_epochs.models.convs.gen_conv import SUMS
from parallel_epochs.pipeline.config import explain_idle_keys
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.partition import random_partition
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers import rank_cases
from tests.helpers.graphs import random_graph
from tests.helpers.running import TOY

SCALED = [*TOY, "partition.scale_sums=true", "model.aggr=softmax_sum", "model.learn_y=true"]


def test_a_batch_knows_the_degrees_of_the_graph():
    data = random_graph(40, 240, 0, symmetric=False)
    degree = torch.bincount(data.edge_index[1].long(), minlength=40)
    seen = 0
    for batch in ClusterLoader(data, scale_sums=True).batches_of(
        random_partition(40, 3, stream("test", 0))
    ):
        kept = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        expected = [
            whole / part if part else 1.0
            for whole, part in zip(degree[batch.n_id].tolist(), kept.tolist())
        ]
        assert (
            batch.degree_ratio.tolist() == pytest.approx(expected)
            and batch.degree_ratio.dtype == torch.float32
        )
        seen += sum(ratio > 1 for ratio in expected)
    assert seen > 20
    (whole,) = ClusterLoader(
        data, Partitioner(data.edge_index, name="whole", num_parts=1), scale_sums=True
    ).batches_of(random_partition(40, 1, stream("test", 0)))
    assert "degree_ratio" not in whole and "degree_ratio" not in next(
        ClusterLoader(data).batches_of(random_partition(40, 3, stream("test", 0)))
    )


@pytest.mark.parametrize("aggr", [*SUMS, "softmax", "mean"])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_where_half_of_equal_neighbours_are_missing_nothing_changes(aggr, kernel):
    # Twelve neighbours with the same features, of which a part sees the first six.
    torch.manual_seed(0)
    conv = (
        GENConv(4, 4, aggr, y=0.7, kernel=kernel)
        if aggr in SUMS[1:]
        else GENConv(4, 4, aggr, kernel=kernel)
    )
    x = torch.cat([torch.randn(1, 4), torch.randn(1, 4).expand(12, 4)])
    edges = torch.stack([torch.arange(1, 13), torch.zeros(12, dtype=torch.int64)])
    ratio = torch.ones(13)
    ratio[0] = 2
    whole, part = conv(x, edges)[0], conv(x, edges[:, :6])[0]
    torch.testing.assert_close(conv(x, edges[:, :6], degree_ratio=ratio)[0], whole)
    assert torch.allclose(part, whole) == (aggr not in SUMS)


def test_the_gradient_of_y_knows_the_ratio():
    torch.manual_seed(0)
    conv = GENConv(3, 3, "softmax_sum", y=0.3, learn_y=True).double()
    x, edges = (
        torch.randn(5, 3, dtype=torch.float64),
        torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]),
    )
    ratio = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)

    def f(y):
        conv.y.data = y.detach()
        return conv(x, edges, degree_ratio=ratio).square().sum()

    f(torch.tensor([0.3], dtype=torch.float64)).backward()
    step = 1e-5
    expected = f(torch.tensor([0.3 + step], dtype=torch.float64)) - f(
        torch.tensor([0.3 - step], dtype=torch.float64)
    )
    assert conv.y.grad.item() == pytest.approx(expected.item() / (2 * step), rel=1e-6)


@pytest.mark.parametrize("recompute", [False, True])
def test_every_layer_of_a_model_is_scaled(recompute):
    torch.manual_seed(0)
    model = DeeperGCN(3, 4, 2, 3, aggr="add", dropout=0.0, gradient_checkpointing=recompute)
    data, seen = random_graph(20, 60, 1), []
    for conv in model.convs:
        conv.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs.get("degree_ratio")), with_kwargs=True
        )
    x, ratio = torch.randn(20, 3), torch.full((20,), 2.0)
    plain = model(x, data.edge_index)
    scaled = model(x, data.edge_index, degree_ratio=ratio)
    assert (
        seen[:3] == [None] * 3
        and all(given is ratio for given in seen[3:6])
        and not torch.equal(plain, scaled)
    )
    torch.testing.assert_close(model(x, data.edge_index, degree_ratio=torch.ones(20)), plain)


def test_sizes_that_do_not_fit_are_refused():
    conv, edges = GENConv(3, 3, "add"), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"degree_ratio has shape \(1,\), but must be \[2\]"):
        conv(torch.ones(2, 3), edges, degree_ratio=torch.ones(1))
    with pytest.raises(
        ValueError, match="degree_ratio works without PyG's own code only, .*: x does not have 2"
    ):
        conv(torch.ones(4, 2, 3), edges, degree_ratio=torch.ones(2))


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["model=revgnn"], "model=revgnn"),
        (["model=pyg"], "model=pyg"),
        (["task=link", "data=ogb_link"], "task=link"),
    ],
)
def test_what_it_does_not_go_with_is_refused(overrides, message, configure):
    with pytest.raises(
        ValueError, match=f"partition.scale_sums=true needs .*this run has {message}"
    ):
        configure("partition.scale_sums=true", *overrides)


def test_batches_of_neighbours_have_views_without_it(configure):
    data, neighbor = (
        random_graph(60, 300, 0),
        ["loader=neighbor", "loader.num_neighbors=[4,3]", "evaluation=views"],
    )
    rows = [
        rank_cases.predict(
            configure(*SCALED, *neighbor, f"partition.scale_sums={scaled}"), data, Ranks()
        )
        for scaled in (True, False)
    ]
    assert torch.equal(*rows)


def test_it_says_where_it_does_nothing(configure):
    said = explain_idle_keys(configure(*TOY, "partition.scale_sums=true"))
    assert said == "without effect: partition.scale_sums=True with model.aggr=softmax"
    assert explain_idle_keys(configure(*SCALED)) is None
