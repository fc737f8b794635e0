"""The parts of link prediction: metrics, pairs and their negatives, the loader, the predictor."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from parallel_epochs.models import DeeperGCN, LinkModel, LinkPredictor
from parallel_epochs.pipeline.data.cache import prepare_as
from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.links import LinkSplit, divide_links, sides_of
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.pairs import PairLoader
from parallel_epochs.pipeline.graph.pairs import (
    PairSet,
    sort_by_cluster,
    without_pairs,
)
from parallel_epochs.pipeline.graph.partition import random_partition
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.metrics import hits_at, link_metric
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers import official
from tests.helpers.graphs import link_graph


def loader_of(data, num_parts=1, **options) -> PairLoader:
    name = "whole" if num_parts == 1 else "random"
    clusters = ClusterLoader(
        data, Partitioner(data.edge_index, name=name, num_parts=num_parts, seed=3)
    )
    return PairLoader(clusters, **{"pairs_per_step": 1000, "seed": 3, **options})


def bipartite(num_left=12, num_right=9) -> Graph:
    """A divided graph whose links go from the first nodes to the others; the last node has none."""
    left, right = torch.meshgrid(
        torch.arange(num_left), torch.arange(num_left, num_left + num_right), indexing="ij"
    )
    edges = torch.stack([left.flatten(), right.flatten()])[:, (left + right).flatten() % 3 == 0]
    graph = prepare_as(
        EdgesConfig(path=""), Graph(edge_index=edges, num_nodes=num_left + num_right + 1)
    )
    return divide_links(graph, LinkSplit("random", 0.8, 0.1, 0, "log_sum"), "the graph")


@pytest.mark.parametrize("num_parts", [1, 2])
def test_negatives_of_a_bipartite_graph_join_its_sides(num_parts):
    data = bipartite()
    loader, first = (
        loader_of(data, num_parts, side=sides_of(data)),
        loader_of(data, num_parts),
    )
    for batch, other in zip(
        loader.batches(0, Share(0, 0, 1)), first.batches(0, Share(0, 0, 1)), strict=True
    ):
        pairs = named(batch, "negatives")
        assert len(pairs) == len(batch.pairs) > 0 and torch.equal(batch.pairs, other.pairs)
        assert all(source < 12 <= target < 21 for source, target in pairs)
        assert not all(source < 12 <= target < 21 for source, target in named(other, "negatives"))


def test_a_complete_bipartite_graph_has_no_sides_to_draw_across():
    data = bipartite()
    for part in ("train", "valid", "test"):
        data[f"{part}_pairs"] = torch.cartesian_prod(torch.arange(12), torch.arange(12, 21))
    assert sides_of(data) is None
    data.train_pairs = torch.cat([data.train_pairs, torch.tensor([[0, 1]])])
    assert sides_of(data) is None  # and neither has one that is not bipartite


def named(batch, key) -> list[tuple[int, int]]:
    """The pairs of a batch by the numbers that their nodes have in the graph."""
    return [tuple(pair) for pair in batch.n_id[batch[key]].tolist()]


def unordered(pairs) -> set[frozenset]:
    return {frozenset(pair) for pair in pairs}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(5, 60),
    st.integers(1, 12),
    st.sampled_from(["hits@1", "hits@5", "mrr"]),
)
def test_metrics_are_those_of_ogbs_evaluator(seed, num_positive, num_negative, num_values, metric):
    rng = torch.Generator().manual_seed(seed)  # few different values: many ties
    positive, negative = (
        torch.randint(num_values, (n,), generator=rng).float() for n in (num_positive, num_negative)
    )
    expected = official.score_pairs(metric, positive, negative)
    assert link_metric(metric, positive, negative) == pytest.approx(expected)


def test_metrics_by_hand():
    positive, negative = torch.tensor([4.0, 2.0, 0.0]), torch.tensor([3.0, 2.0, 1.0])
    assert link_metric("hits@1", positive, negative) == pytest.approx(1 / 3)
    assert link_metric("hits@2", positive, negative) == pytest.approx(1 / 3)  # a tie does not count
    assert link_metric("hits@3", positive, negative) == pytest.approx(2 / 3)
    assert link_metric("mrr", positive, negative) == pytest.approx((1 + 1 / 2.5 + 1 / 4) / 3)
    assert hits_at("mrr") == 0 and hits_at("hits@50") == 50
    for wrong in ("hits@0", "hits@", "hits@-1", "hits@5 ", "auc"):
        with pytest.raises(ValueError, match="choose mrr or hits@K"):
            hits_at(wrong)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 20), st.integers(0, 60), st.integers(0, 10**6))
def test_a_set_of_pairs_knows_its_own_either_way_round(num_nodes, num_pairs, seed):
    pairs = torch.from_numpy(np.random.default_rng(seed).integers(num_nodes, size=(num_pairs, 2)))
    known, linked = unordered(p for p in pairs.tolist() if p[0] != p[1]), PairSet(pairs, num_nodes)
    every = torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes))
    assert linked.contains(every).tolist() == [frozenset(pair) in known for pair in every.tolist()]
    assert len(linked) == len(known) and unordered(linked.nodes().tolist()) == known
    assert linked.is_complete == (len(known) == num_nodes * (num_nodes - 1) // 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_pairs_within_clusters_are_found_and_keep_their_order(num_parts, seed):
    rng = np.random.default_rng(seed)
    pairs = torch.from_numpy(rng.integers(20, size=(50, 2)))
    partition, order = random_partition(20, num_parts, rng), torch.from_numpy(rng.permutation(50))
    found = sort_by_cluster(pairs, partition, order)
    for cluster in range(num_parts):
        nodes = set(partition.nodes(cluster).tolist())
        assert found.of(cluster).tolist() == [
            i for i in order.tolist() if set(pairs[i].tolist()) <= nodes
        ]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 15))
def test_hidden_pairs_leave_no_edge_and_all_others_stay(seed, num_hidden):
    edge_index = link_graph(20, 60, seed).edge_index
    pairs = torch.from_numpy(np.random.default_rng(seed).integers(20, size=(num_hidden, 2)))
    left, kept = without_pairs(edge_index, pairs)
    hidden, edges = unordered(pairs.tolist()), edge_index.as_tensor().t().tolist()
    expected = [i for i, edge in enumerate(edges) if frozenset(edge) not in hidden]
    assert kept.tolist() == expected and left.as_tensor().t().tolist() == [
        edges[i] for i in expected
    ]
    left.validate()
    (rowptr, dst), perm = left.get_csr()
    src = torch.repeat_interleave(torch.arange(20), rowptr.long().diff())
    assert left.as_tensor()[:, perm.long()].tolist() == [src.tolist(), dst.tolist()]


@pytest.mark.parametrize(
    "num_parts, pairs_per_step, sizes",
    [(1, 1000, [35, 35]), (1, 40, [40, 30]), (1, 32, [32, 32, 6]), (3, 1000, None), (2, 10, None)],
)
def test_at_most_half_of_a_clusters_pairs_are_hidden_where_they_fit_into_one_step(
    num_parts, pairs_per_step, sizes
):
    loader = loader_of(link_graph(), num_parts, pairs_per_step=pairs_per_step, hide=True)
    batches = list(loader.batches(0, Share()))
    assert len(batches) == loader.num_batches >= 2 * num_parts
    assert sizes is None or [len(batch.pairs) for batch in batches] == sizes
    whole = list(
        loader_of(link_graph(), num_parts, pairs_per_step=pairs_per_step).batches(0, Share())
    )
    for cluster in range(num_parts):
        within = sum(len(batch.pairs) for batch in whole[cluster::num_parts])
        assert sum(len(batch.pairs) for batch in batches[cluster::num_parts]) == within
        assert all(batch.num_edges > 0 for batch in batches[cluster::num_parts])


@pytest.mark.parametrize(
    "num_parts, pairs_per_step, sizes",
    [(1, 1000, [70]), (1, 32, [32, 32, 6]), (1, 35, [35, 35]), (3, 1000, None), (2, 10, None)],
)
def test_every_training_pair_within_a_cluster_is_in_one_batch(num_parts, pairs_per_step, sizes):
    data = link_graph()
    loader = loader_of(data, num_parts, pairs_per_step=pairs_per_step)
    share, partition = Share(draw=1), loader.draw(4, Share(draw=1))
    batches = list(loader.batches(4, share))
    assert len(batches) == loader.num_batches and (
        sizes is None or [len(b.pairs) for b in batches] == sizes
    )
    clusters = [set(partition.nodes(i).tolist()) for i in range(num_parts)]
    within = sorted(
        tuple(p) for p in data.train_pairs.tolist() if any(set(p) <= nodes for nodes in clusters)
    )
    assert sorted(pair for batch in batches for pair in named(batch, "pairs")) == within
    assert all(
        len(b.negatives) == len(b.pairs)
        and not any(key in b for key in ("train_pairs", "test_negatives"))
        for b in batches
    )
    assert pairs_per_step > 10 or len(batches) > num_parts


def test_negatives_are_fresh_for_each_round_draw_and_batch_and_repeat():
    data = link_graph()
    keys = [(round_, draw) for round_ in (0, 1) for draw in (0, 1)]
    drawn = {}
    for round_, draw in keys:
        first, again = (
            list(loader_of(data, pairs_per_step=35).batches(round_, Share(draw=draw)))
            for _ in range(2)
        )
        for step, (a, b) in enumerate(zip(first, again, strict=True)):
            assert torch.equal(a.negatives, b.negatives) and torch.equal(a.pairs, b.pairs)
            drawn[round_, draw, step] = (tuple(named(a, "negatives")), tuple(named(a, "pairs")))
    assert (
        len({negatives for negatives, _ in drawn.values()})
        == len({pairs for _, pairs in drawn.values()})
        == 8
    )
    other = next(iter(loader_of(data, pairs_per_step=35, seed=4).batches(0, Share())))
    assert tuple(named(other, "negatives")) not in {negatives for negatives, _ in drawn.values()}


def test_hidden_pairs_are_those_of_the_step_alone():
    data = link_graph(edge_attr=None)
    data.edge_attr = (
        data.edge_index.as_tensor().t().float().contiguous()
    )  # tells which edge it belongs to
    for hide in (True, False):
        for num_parts, pairs_per_step in ((1, 20), (3, 1000)):
            for batch in loader_of(
                data, num_parts, pairs_per_step=pairs_per_step, hide=hide
            ).batches(0, Share()):
                edges = batch.n_id[batch.edge_index.as_tensor()].t()
                assert torch.equal(batch.edge_attr.long(), edges)
                shown = unordered(edges.tolist())
                assert (
                    not shown & unordered(named(batch, "pairs"))
                    if hide
                    else shown >= unordered(named(batch, "pairs"))
                )
                assert not (hide and num_parts == 1) or len(edges) == data.num_edges - 2 * len(
                    batch.pairs
                )


def test_a_cluster_without_pairs_is_named_and_a_partition_without_any_refused(caplog):
    data = link_graph()
    data.train_pairs = data.train_pairs[:2]
    with pytest.raises(
        ValueError, match="none of the 2 training pairs lies within one of 40 clusters"
    ):
        loader = loader_of(data, 40)
        loader.measure(loader.draw(0, Share()), 0.0)
    partition = random_partition(40, 3, stream("test", 0))
    data.train_pairs = torch.stack([partition.nodes(0)[:2], partition.nodes(0)[2:4]])
    assert loader_of(data, 3).measure(partition, 0.0)["pairs"]["num_clusters_without"] == 2
    assert "2 of 3 clusters hold no training pair" in caplog.text


def test_the_published_sizes_and_a_predictor_by_hand():
    encoder = DeeperGCN(
        128, 128, 128, 7, norm="batch", num_mlp_layers=1, dropout=0.0, encode_x=False
    )
    model = LinkModel(encoder, 128)
    count = [sum(p.numel() for p in part.parameters()) for part in (model.encoder, model.predictor)]
    assert count == [117_383, 33_153] and model.takes_int32_edges
    predictor = LinkPredictor(2, num_layers=2)
    with torch.no_grad():
        predictor.lins[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        predictor.lins[0].bias.zero_()
        predictor.lins[1].weight.copy_(torch.tensor([[2.0, 1.0]]))
        predictor.lins[1].bias.fill_(0.5)
    a, b = torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0, -4.0]])
    assert predictor(a, b).item() == predictor(b, a).item() == 2 * 6 + 4 + 0.5
    for wrong in (dict(channels=0), dict(channels=2, num_layers=0), dict(channels=2, dropout=1.0)):
        with pytest.raises(ValueError, match="a link predictor needs"):
            LinkPredictor(**wrong)
    with pytest.raises(
        ValueError, match="a link predictor of kind=dot is unknown; choose one of mlp, residual"
    ):
        LinkPredictor(2, kind="dot")
    with pytest.raises(
        ValueError, match="encode_x=false needs an x of hidden_channels=4 columns, but x has 8"
    ):
        DeeperGCN(8, 4, 4, 2, encode_x=False)


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_the_residual_predictor_is_that_of_the_paper_with_the_index_in_addition(num_layers):
    torch.manual_seed(0)
    predictor = LinkPredictor(
        6, num_layers=num_layers, dropout=0.3, kind="residual", reads_index=True
    )
    x_i, x_j = torch.randn(2, 9, 6, requires_grad=True)
    index = torch.rand(9) * (torch.arange(9) % 3 > 0)

    def by_hand() -> torch.Tensor:
        product = h = F.layer_norm(
            x_i * x_j, [6], predictor.norms[0].weight, predictor.norms[0].bias
        )
        for lin, norm in zip(predictor.lins[:-1], predictor.norms[1:], strict=True):
            h = F.linear(h, lin.weight, lin.bias) + product
            h = F.dropout(F.layer_norm(h, [6], norm.weight, norm.bias).clamp(min=0), 0.3)
        out = (h * predictor.lins[-1].weight).sum(1) + predictor.lins[-1].bias
        return out + predictor.index_weight * torch.log(1 + 100 * index)

    outputs = []
    for call in (lambda: predictor(x_i, x_j, index), by_hand):
        torch.manual_seed(1)  # the same elements are dropped
        outputs.append(call())
    torch.testing.assert_close(*outputs)
    weights = dict(predictor.named_parameters())
    ours, theirs = (
        torch.autograd.grad(out.square().mean(), [x_i, x_j, *weights.values()]) for out in outputs
    )
    for name, a, b in zip(["x_i", "x_j", *weights], ours, theirs, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(predictor.eval()(x_i, x_j, index), predictor(x_j, x_i, index))
