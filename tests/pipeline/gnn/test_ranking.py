"""Ranks of all candidates, held against lists that are sorted one by one, and the simple methods that rank them."""

import math

import numpy as np
import pytest
import torch

from parallel_epochs.models.networks.common_neighbors import Neighborhoods
from parallel_epochs.models.networks.link_predictor import PREDICTORS, LinkModel
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.links import LinkSplit, divide_links
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.gnn.base import link_base, walks
from parallel_epochs.pipeline.gnn.predict import ranking
from parallel_epochs.pipeline.gnn.predict.ranking import (
    Direction,
    Links,
    choose_top,
    find_best,
    rank,
)
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import hits_at, ranking_metric
from parallel_epochs.pipeline.names import PAIRS, ranks_at
from parallel_epochs.pipeline.run.baseline_file import Baseline
from tests.helpers.graphs import random_graph

NODES = 30


@pytest.fixture(scope="module")
def problem():
    """Scores with many equal ones, answers, and known pairs that are none of them."""
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 5, (NODES, NODES), generator=rng).float()
    kind = torch.randint(0, 10, (NODES, NODES), generator=rng)
    kind.fill_diagonal_(9)
    return scores, (kind == 0).nonzero(), (kind == 1).nonzero()


def candidates_of(source: int, known: torch.Tensor) -> list[int]:
    taken = {target for own, target in known.tolist() if own == source}
    return [node for node in range(NODES) if node != source and node not in taken]


@pytest.mark.parametrize("numbers", [1, 100, 1 << 24])
def test_a_rank_is_the_mean_of_those_that_equal_scores_allow(problem, numbers, monkeypatch):
    monkeypatch.setattr(ranking, "NUMBERS", numbers)
    scores, answers, known = problem
    every = Direction(torch.arange(NODES), torch.arange(NODES))
    ranks = rank(lambda sources, targets: scores[sources][:, targets], answers, known, [every])
    for (source, target), found in zip(answers.tolist(), ranks.tolist(), strict=True):
        own = sorted(
            (scores[source, node].item() for node in candidates_of(source, known)), reverse=True
        )
        places = [place for place, score in enumerate(own, 1) if score == scores[source, target]]
        assert found == sum(places) / len(places)


@pytest.mark.parametrize("top", [1, 3, 200])
def test_the_best_candidates_are_those_of_a_sorted_list(problem, top):
    scores, _, known = problem
    every = Direction(torch.arange(NODES), torch.arange(NODES))
    asked = torch.tensor([7, 2, 29])
    best = find_best(lambda sources, targets: scores[sources][:, targets], asked, top, known, every)
    expected = [
        (source, node, place)
        for source in asked.tolist()
        for place, node in enumerate(
            sorted(
                candidates_of(source, known), key=lambda node: (-scores[source, node].item(), node)
            )[:top],
            1,
        )
    ]
    assert [
        *zip(best.sources.tolist(), best.targets.tolist(), best.ranks.tolist(), strict=True)
    ] == expected
    assert best.scores.equal(scores[best.sources, best.targets])
    assert not len(
        find_best(
            lambda sources, targets: scores[sources][:, targets], asked[:0], top, known, every
        ).ranks
    )


def test_equal_numbers_are_chosen_in_the_order_of_their_columns():
    scores = torch.tensor([[1.0, 2, 2, 2, 0], [3, 1, 1, 1, 3]])
    values, columns = choose_top(scores, 2)
    assert columns.tolist() == [[1, 2], [0, 4]] and values.tolist() == [[2, 2], [3, 3]]
    assert choose_top(scores, 9)[1].tolist() == [[1, 2, 3, 0, 4], [0, 4, 1, 2, 3]]


def test_metrics_are_means_over_sources():
    ranks, sources = torch.tensor([1.0, 4, 12, 2], dtype=torch.float64), torch.tensor([5, 5, 5, 8])
    assert ranking_metric("recall@10", ranks, sources) == pytest.approx((2 / 3 + 1) / 2)
    assert ranking_metric("hit@1", ranks, sources) == 0.5
    assert ranking_metric("mrr@3", ranks, sources) == pytest.approx((1 + 1 / 2) / 2)
    gain = (1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / math.log2(4))
    assert ranking_metric("ndcg@10", ranks, sources) == pytest.approx((gain + 1 / math.log2(3)) / 2)
    assert ranking_metric("ndcg@1", ranks, sources) == pytest.approx(0.5)
    assert math.isnan(ranking_metric("recall@10", ranks[:0], sources[:0]))
    assert [
        ranks_at(name) for name in ("recall@10", "mrr@5", "mrr", "hits@5", "recall", "recall@0")
    ] == [10, 5, 0, 0, 0, 0]
    assert hits_at("recall@10") == 0
    with pytest.raises(
        ValueError, match="the metric recall of links is unknown; .* or recall@K, ndcg@K, hit@K"
    ):
        hits_at("recall")


def shop(*, both: bool = True) -> Graph:
    """Users 10 to 29 link to items 0 to 9."""
    rng = np.random.default_rng(3)
    edges = torch.from_numpy(np.stack([rng.integers(10, 30, 90), rng.integers(0, 10, 90)]))
    data = prepare(Graph(edge_index=edges, num_nodes=NODES), origin="shop", to_undirected=both)
    return divide_links(data, LinkSplit("random", 0.6, 0.2, 0, "sum"), "shop")


@pytest.mark.parametrize("both", [True, False])
def test_the_sources_of_a_bipartite_graph_are_those_of_its_edges(both):
    data = shop(both=both)
    links = Links(data)
    assert [len(one.sources) for one in links.directions] == [20, 10]
    assert len(links.answered) == 1
    for split in ("train", "valid", "test"):
        answers = links.answers(split)
        assert len(answers) == len(data[f"{split}_pairs"]) and bool((answers[:, 0] >= 10).all())
    assert len(links.known("test")) == 2 * len(torch.cat([data.train_pairs, data.valid_pairs]))
    assert not len(links.known("train"))
    del data.first_source
    links = Links(data)
    assert len(links.answers("valid")) == 2 * len(data.valid_pairs) and len(links.directions) == 2


def test_both_sides_of_a_bipartite_graph_are_ranked_where_the_sources_are_not_known():
    swap = torch.randperm(
        NODES, generator=torch.Generator().manual_seed(0)
    )  # the numbers of both sides are mixed
    data = shop()
    for name in PAIRS:
        data[name] = swap[data[name]]
    del data.first_source
    links, table = (
        Links(data),
        torch.randint(0, 5, (NODES, NODES), generator=torch.Generator().manual_seed(1)).float(),
    )
    answers, known = links.answers("valid"), links.known("valid")
    other = {
        int(source): one.candidates.tolist() for one in links.directions for source in one.sources
    }
    ranks = rank(
        lambda sources, targets: table[sources][:, targets], answers, known, links.answered
    )
    for (source, target), found in zip(answers.tolist(), ranks.tolist(), strict=True):
        own = [
            table[source, node] for node in candidates_of(source, known) if node in other[source]
        ]
        assert (
            found
            == sum(score > table[source, target] for score in own)
            + (sum(score == table[source, target] for score in own) + 1) / 2
        )
    for method in scored(data, "mrr@5"):
        assert 0 < method.scores["valid"] <= 1, method.name


def test_no_candidate_is_no_target(problem):
    found = find_best(
        lambda sources, targets: torch.zeros(len(sources), len(targets)),
        torch.arange(3),
        2,
        problem[2],
        Direction(torch.arange(5), torch.arange(0)),
    )
    assert not len(found.sources)


def test_both_ends_of_a_link_without_direction_are_sources():
    data = divide_links(
        random_graph(NODES, 80, 2), LinkSplit("random", 0.6, 0.2, 0, "sum"), "graph"
    )
    links = Links(data)
    assert len(links.directions) == 1 and len(links.answers("valid")) == 2 * len(data.valid_pairs)


def dense(links: Links) -> np.ndarray:
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(links.answers("train").numpy().T)] = 1
    return matrix


def test_simple_methods_are_products_of_matrices():
    links = Links(shop())
    sparse, x = walks.matrix_of(links.answers("train"), NODES), dense(links)
    users, items = torch.arange(10, 30), torch.arange(10)
    degree_of = [np.maximum(x.sum(axis), 1) for axis in (0, 1)]
    expected = {
        walks.by_popularity: np.broadcast_to(x.sum(0), x.shape),
        walks.by_cosine: x @ ((x / np.sqrt(degree_of[0])).T @ (x / np.sqrt(degree_of[0]))),
        walks.allocate_in_three_hops: x / degree_of[0] @ (x.T / degree_of[1]) @ x,
    }
    for build, whole in expected.items():
        found = build(sparse)(users, items)
        torch.testing.assert_close(found, torch.from_numpy(whole[10:, :10].astype(np.float32)))
    own = x[:, :10]
    inverse = np.linalg.inv(own.T @ own + 30 * np.eye(10))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    found = walks.ease(sparse, links.directions[0], 30)
    torch.testing.assert_close(
        found(users, items), torch.from_numpy((own @ weights)[10:].astype(np.float32))
    )
    assert found(users, items[[2, 5]]).equal(found(users, items)[:, [2, 5]])


def scored(data, metric: str, **options) -> list[Baseline]:
    data.x = torch.zeros(NODES, 0)
    task = LinkTask(data, hidden_channels=4, metric=metric)
    return [*link_base.score_each(data, task, **options)]


def test_paths_of_two_links_are_taken_both_ways_round():
    links = torch.tensor([[0, 1], [1, 2], [3, 1]])
    found = walks.allocate_in_two_hops(walks.matrix_of(links, NODES))(
        torch.tensor([0]), torch.arange(4)
    )
    torch.testing.assert_close(found, torch.tensor([[1 / 3, 0, 1 / 3, 1 / 3]]))


def test_each_method_is_scored_by_the_metric_and_left_out_where_it_takes_too_long():
    links = Links(shop())
    named = [baseline.name for baseline in scored(shop(), "recall@3")]
    assert named == [
        "popularity",
        "item cosine",
        "resource allocation over three hops",
        "EASE (penalty 300)",
        "EASE (penalty 30)",
        "EASE (penalty 100)",
        "EASE (penalty 1000)",
    ]
    (first,) = scored(shop(), "recall@3", seconds=1e-9)
    answers, popular = links.answers("valid"), dense(links).sum(0)
    hits = {}
    known = {*map(tuple, links.known("valid").tolist())}
    for source, target in answers.tolist():
        own = [popular[node] for node in range(10) if (source, node) not in known]
        place = (
            sum(score > popular[target] for score in own)
            + (sum(score == popular[target] for score in own) + 1) / 2
        )
        hits.setdefault(source, []).append(place <= 3)
    assert first.scores["valid"] == pytest.approx(
        np.mean([np.mean(each) for each in hits.values()])
    )
    assert math.isnan(first.scores["train"])


@pytest.mark.parametrize("kind", PREDICTORS)
@pytest.mark.parametrize("paths", ["none", "common neighbours"])
def test_all_pairs_have_the_logits_of_each_pair(kind, paths):
    torch.manual_seed(0)
    graph = random_graph(NODES, 90, 1)
    model = LinkModel(
        torch.nn.Linear(4, 8),
        8,
        kind=kind,
        reads_index=paths != "none",
    ).eval()
    h, found = torch.randn(NODES, 8), model.find_paths(graph.edge_index, NODES)
    assert isinstance(found, Neighborhoods) == (paths != "none")
    sources, targets = torch.tensor([4, 1, 9]), torch.arange(NODES)
    every = model.decode_all(h, sources, targets, found)
    each = model.decode(h, torch.cartesian_prod(sources, targets), found).view(3, NODES)
    torch.testing.assert_close(every, each)
    flipped = model.decode(h, torch.cartesian_prod(sources, targets).flip(1), found).view(3, NODES)
    assert torch.allclose(each, flipped, atol=1e-5) == (kind != "bilinear")
