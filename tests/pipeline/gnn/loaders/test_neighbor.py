"""Neighbour sampling: what is drawn, how often, and batches of it."""

import contextlib

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2, chi2_contingency, chisquare

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, folder
from parallel_epochs.pipeline.config import explain_idle_keys
from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader, SeedOrder
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.sampling import NeighborSampler
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Schedule, Share
from parallel_epochs.scripts.report.document import page
from parallel_epochs.scripts.report.runs import read_run
from tests.helpers import building as build, rank_cases
from tests.helpers.graphs import make_graph, random_graph, task_graph
from tests.helpers.running import TOY, rounds_of, train
from tests.helpers.tensors import threads


def floyd(degree: int, count: int, number: int, key: int, hop: int) -> list[int]:
    """The places of a row, identified by a number, that are drawn in a hop."""
    state = mix(mix(number) ^ mix(key + (hop + 1) * GOLDEN & MASK))
    found: list[int] = []
    for j, last in enumerate(range(degree - count, degree)):
        place = mix(state + (j + 1) * GOLDEN & MASK) * (last + 1) >> 64
        found.append(last if place in found else place)
    return sorted(found)


def of_dtype(edge_index, dtype):
    return from_csc(edge_index.as_tensor().to(dtype), edge_index.get_csc()[0][0])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(0, 150),
    st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([torch.int32, torch.int64]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**6),
)
def test_what_is_drawn_are_edges_of_the_graph_and_as_many_as_asked_for(
    num_nodes, num_pairs, num_neighbors, symmetric, dtype, key, graph_seed
):
    data = random_graph(num_nodes, num_pairs, graph_seed, symmetric=symmetric)
    whole = of_dtype(data.edge_index, dtype)
    seeds = torch.randperm(num_nodes, generator=torch.manual_seed(graph_seed))[: 1 + num_nodes // 3]
    edge_index, nodes, position = NeighborSampler(whole, num_neighbors).sample(seeds, key)
    edge_index.validate()
    assert torch.equal(nodes[: len(seeds)], seeds) and len(nodes.unique()) == len(nodes)
    assert torch.equal(nodes[edge_index.as_tensor()], whole.as_tensor()[:, position].long())
    assert len(position.unique()) == len(position)

    # Hop by hop, a node draws in the hop after the one that reached it, and each hop's nodes follow the ones before.
    degree, src = whole.get_csc()[0][0].diff(), whole.as_tensor()[0]
    (ptr, _), _ = edge_index.get_csc()
    reached, first = len(seeds), 0
    for hop, most in enumerate(num_neighbors):
        last = reached
        for local in range(first, last):
            node = int(nodes[local])
            drawn = position[ptr[local] : ptr[local + 1]]
            assert len(drawn) == (degree[node] if most < 0 else min(int(degree[node]), most))
            if len(drawn) < degree[node]:
                begin = int(whole.get_csc()[0][0][node])
                places = floyd(int(degree[node]), most, node, key, hop)
                assert drawn.tolist() == [begin + place for place in places]
            else:
                assert torch.equal(drawn, drawn.sort().values)
        new = [
            n
            for n in src[position[ptr[first] : ptr[last]]].tolist()
            if n not in set(nodes[:last].tolist())
        ]
        reached += len(set(new))
        assert nodes[last:reached].tolist() == list(dict.fromkeys(new))
        first = last
    assert reached == len(nodes) and ptr[first] == ptr[-1] or first == len(nodes)


def star(degree: int, num_centres: int):
    """Nodes with the same neighbours, which are others and come first."""
    return make_graph(
        [(i, degree + centre) for centre in range(num_centres) for i in range(degree)],
        num_centres + degree,
    ).edge_index


def draw_of_centres(degree: int, num_centres: int, count: int, *, key: int = 0) -> torch.Tensor:
    """What each centre of a star draws, [num_centres, count], ascending."""
    sampler = NeighborSampler(star(degree, num_centres), [count])
    return (
        sampler.sample(degree + torch.arange(num_centres), key)[2].view(num_centres, count) % degree
    )


def test_every_neighbour_and_every_set_of_neighbours_is_equally_likely():
    first, second = draw_of_centres(6, 3000, 2).T
    pairs = torch.bincount(6 * first + second, minlength=36).view(6, 6)
    assert int(pairs.tril().sum()) == 0  # without replacement
    assert chisquare(pairs[tuple(torch.triu_indices(6, 6, 1))]).pvalue > 0.01
    times = torch.bincount(draw_of_centres(40, 2000, 15).flatten(), minlength=40)
    # Without replacement the counts vary less than those of independent draws.
    expected = 2000 * 15 / 40
    statistic = float(((times - expected) ** 2 / expected).sum()) / ((40 - 15) / 39)
    assert 0.01 < chi2.cdf(statistic, 39) < 0.99


def p_value_of_independence(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(
        chi2_contingency(torch.bincount(4 * a + b, minlength=16).view(4, 4).numpy()).pvalue
    )


def test_draws_of_nodes_hops_and_keys_are_independent():
    first, second = (draw_of_centres(4, 20000, 1, key=key).flatten() for key in (1, 2))
    assert (
        p_value_of_independence(first[:-1], first[1:]) > 0.01
        and p_value_of_independence(first, second) > 0.01
    )
    # The same nodes, neighbours in one batch and seeds in another, draw otherwise.
    num_centres = 2000
    edges = [(i, 4 + centre) for centre in range(num_centres) for i in range(4)]
    edges += [(4 + centre, 4 + num_centres + centre) for centre in range(num_centres)]
    whole = make_graph(edges, 4 + 2 * num_centres).edge_index
    hop_1 = NeighborSampler(whole, [1]).sample(4 + torch.arange(num_centres), 3)[2]
    hop_2 = NeighborSampler(whole, [1, 1]).sample(4 + num_centres + torch.arange(num_centres), 3)[
        2
    ][num_centres:]
    assert not torch.equal(hop_1, hop_2) and p_value_of_independence(hop_1 % 4, hop_2 % 4) > 0.01


def test_a_draw_depends_on_nothing_but_key_hop_and_node():
    data = random_graph(300, 6000, 0)
    sampler = NeighborSampler(data.edge_index, [4, 3])
    together = sampler.sample(torch.arange(100), 7)
    for number in (1, 3):
        with threads(number):
            again = sampler.sample(torch.arange(100), 7)
        assert all(torch.equal(a, b) for a, b in zip(together, again))
    backwards = NeighborSampler(data.edge_index, [4]).sample(torch.arange(100).flip(0), 7)
    of_node = [
        set(p.tolist()) for p in backwards[2].split(backwards[0].get_csc()[0][0].diff().tolist())
    ][:100]
    (ptr, _), _ = together[0].get_csc()
    assert of_node[::-1] == [set(together[2][ptr[i] : ptr[i + 1]].tolist()) for i in range(100)]


def batches(loader, round_=0, share=Share()):
    return list(loader.batches(round_, share))


def same(a, b) -> bool:
    return all(
        torch.equal(a[key], b[key]) for key in ("n_id", "target", "edge_attr", "x", "y")
    ) and torch.equal(a.edge_index.as_tensor(), b.edge_index.as_tensor())


def test_a_batch_is_a_part_of_the_graph_whose_seeds_alone_count():
    data = task_graph(list(range(0, 40, 2)))
    for batch in batches(NeighborLoader(data, [3, 2], batch_size=6)):
        batch.edge_index.validate()
        assert batch.edge_index.dtype == torch.int64 and batch.edge_index._T_indptr is not None
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(
            batch.train_mask, data.train_mask[batch.n_id]
        )
        assert not batch.target[int(batch.target.sum()) :].any()
        there = {
            (u, v, *a)
            for u, v, a in zip(*data.edge_index.as_tensor().tolist(), data.edge_attr.tolist())
        }
        edges = batch.n_id[batch.edge_index.as_tensor()]
        assert {(u, v, *a) for u, v, a in zip(*edges.tolist(), batch.edge_attr.tolist())} <= there


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_epoch_goes_through_every_training_node_once(dtype):
    data = task_graph(list(range(3, 26)))
    data.edge_index = of_dtype(data.edge_index, dtype)
    loader = NeighborLoader(data, [2], batch_size=6)
    epochs = [
        [batch.n_id[batch.target].tolist() for batch in batches(loader, round_)]
        for round_ in (0, 1)
    ]
    for epoch in epochs:
        assert [len(seeds) for seeds in epoch] == [6, 6, 6, 5] and loader.num_batches == 4
        assert sorted(sum(epoch, [])) == list(range(3, 26))
    assert epochs[0] != epochs[1]


def test_ranks_share_out_the_seeds_or_go_through_their_own_order():
    loader = NeighborLoader(task_graph(list(range(3, 26))), [2, 2], batch_size=5)

    def of(rank, split):
        schedule = Schedule(
            num_epochs=6, num_batches=loader.num_batches, rank=rank, num_ranks=2, split=split
        )
        return schedule, batches(loader, 4, schedule.share(0))

    whole = batches(loader, 4)
    (schedule, first), (_, second) = of(0, True), of(1, True)
    # Five batches, the last of three seeds: rank 1 has none in the third step.
    assert schedule.num_steps == 3 and len(first) == 3 and len(second) == 2
    assert all(
        same(a, b)
        for a, b in zip(whole, [first[0], second[0], first[1], second[1], first[2]], strict=True)
    )
    (schedule, first), (_, second) = of(0, False), of(1, False)
    assert schedule.num_steps == len(first) == len(second) == 5
    orders = [[batch.n_id[batch.target].tolist() for batch in each] for each in (first, second)]
    assert orders[0] != orders[1] and sorted(sum(orders[0], [])) == sorted(sum(orders[1], []))


def test_batches_are_a_function_of_seed_round_and_share():
    data = task_graph(list(range(30)))
    loader = NeighborLoader(data, [2, 2], batch_size=8, seed=5)
    whole = batches(loader, 3, Share(draw=1))
    rest = batches(NeighborLoader(data, [2, 2], batch_size=8, seed=5), 3, Share(draw=1, first=2))
    assert len(whole) == 4 and all(same(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_the_order_of_the_seeds_is_another_for_each_seed_purpose_round_and_draw():
    def order(seed, purpose, round_, draw):
        loader = NeighborLoader(
            task_graph(list(range(30))), [2], batch_size=8, seed=seed, purpose=purpose
        )
        return tuple(loader.draw(round_, Share(draw=draw)).seeds.tolist())

    paths = [
        (5, "train", 3, 1),
        (6, "train", 3, 1),
        (5, "evaluation", 3, 1),
        (5, "train", 2, 1),
        (5, "train", 3, 0),
    ]
    assert len({order(*path) for path in paths}) == 5 and order(*paths[0]) == order(*paths[0])


def test_a_node_that_several_batches_reach_draws_anew_in_each():
    edges = [(0, seed) for seed in range(1, 9)] + [(other, 0) for other in range(9, 29)]
    data, seeds = (
        make_graph(edges, 29, x=torch.ones(29, 2), y=torch.zeros(29, 1)),
        torch.arange(1, 9),
    )

    def drawn(path=(3, 1), **options):
        loader = NeighborLoader(data, [1, 3], batch_size=1, nodes=seeds, **options)
        return [
            tuple(sorted(batch.n_id[2:].tolist()))
            for batch in loader.batches_of(SeedOrder(seeds, path), range(8))
        ]

    assert all(len(nodes) == 3 for nodes in drawn()) and len(set(drawn())) > 5
    # The same seeds in the same order, of another rank, round, run or purpose.
    others = [drawn((3, 0)), drawn((2, 1)), drawn(seed=1), drawn(purpose="evaluation")]
    assert drawn() == drawn() and all(len(set(drawn()) & set(other)) < 4 for other in others)


def test_rounds_of_several_loaders_may_be_drawn_at_the_same_time():
    loader = NeighborLoader(task_graph(list(range(30))), [3, 3], batch_size=8)
    alone = [batches(loader, 0), batches(loader, 1)]
    together = zip(*(loader.batches(round_, Share()) for round_ in (0, 1)))
    for number, pair in enumerate(together):
        assert all(same(alone[round_][number], batch) for round_, batch in enumerate(pair))


def test_isolated_nodes_are_batches_without_edges():
    data = make_graph([(0, 1)], 6, x=torch.ones(6, 2), y=torch.zeros(6, 1))
    (batch,) = batches(NeighborLoader(data, [2, 2], batch_size=6))
    assert batch.num_nodes == 6 and batch.num_edges == 1
    batch = batches(NeighborLoader(data, [2], batch_size=1, nodes=torch.tensor([4])))[0]
    assert batch.num_nodes == 1 and batch.num_edges == 0 and batch.n_id.tolist() == [4]


def test_a_graph_without_training_nodes_is_refused():
    with pytest.raises(
        ValueError, match="draws the neighbours of training nodes, but the graph has no training"
    ):
        NeighborLoader(task_graph([]), [2, 2], batch_size=4)


def test_what_a_draw_holds_is_measured(caplog):
    caplog.set_level("INFO")
    loader = NeighborLoader(task_graph(list(range(30))), [2, 2], batch_size=7)
    (record,) = loader.measure(loader.draw(0, Share()), 0.0).values()
    measured = batches(loader)[:4]
    assert record["mean_nodes"] == sum(b.num_nodes for b in measured) / 4
    assert record["mean_edges"] == sum(b.num_edges for b in measured) / 4
    assert "num_neighbors=[2, 2], 5 batches of 7 of 30 seeds, with " in caplog.text


NEIGHBOR = [
    *TOY,
    "loader=neighbor",
    "loader.num_neighbors=[4,3]",
    "loader.batch_size=24",
    "task.base=none",
]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["loader.num_neighbors=[4,3,2]"],
            r"loader.num_neighbors=\[4,3,2\] has 3 numbers, and model.num_layers=2 needs "
            r"one for each layer, as in loader.num_neighbors=\[15,10\]",
        ),
        (
            ["loader.num_neighbors=[]"],
            r"loader.num_neighbors=\[\] has 0 numbers, and model.num_layers=2",
        ),
        (
            ["loader.num_neighbors=[4,0]"],
            r"num_neighbors=\[4,0\]: 0 neighbours cannot be sampled. Give at least 1",
        ),
        (["loader.num_neighbors=[-2,4]"], "-2 neighbours cannot be sampled"),
        (["loader.batch_size=0"], "loader.batch_size must be at least 1, not 0"),
        (
            ["evaluation=neighbor", "evaluation.num_neighbors=[3]"],
            r"evaluation.num_neighbors=\[3\] has 1 numbers, and "
            "model.num_layers=2",
        ),
        (
            ["loader=cluster", "evaluation=neighbor", "loader.num_neighbors=[1]"],
            r"num_neighbors=\[1\] has 1 numbers",
        ),
    ],
)
def test_impossible_numbers_of_neighbours_are_refused_by_name(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        configure(*NEIGHBOR, *overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four epochs, which nothing may change."""
    path = tmp_path_factory.mktemp("trained")
    train(
        cli.compose_config(
            [*NEIGHBOR, "partition.num_parts=100000", f"cache_dir={path / 'cache'}"]
        ),
        path / "run",
    )
    return path / "run"


def test_a_partition_that_no_batch_comes_from_is_not_looked_at(trained, configure):
    impossible = "partition.num_parts=100000"
    assert (
        explain_idle_keys(configure(*NEIGHBOR, impossible))
        == "without effect: partition.num_parts=100000 with loader.name=neighbor"
    )
    assert "loader.batch_size=24 with loader.name=cluster" in explain_idle_keys(
        configure(*NEIGHBOR, "loader=cluster")
    )
    with pytest.raises(ValueError, match=r"loader.num_neighbors: \[4, 3\] -> \[4, 4\]"):
        folder.resolve(
            configure(*NEIGHBOR, "loader.num_neighbors=[4,4]", f"resume={trained}"), trained
        )
    resumed = configure(*NEIGHBOR, "partition=metis", f"resume={trained}")
    assert folder.resolve(resumed, trained).partition.name == "metis"
    data, digests = build.open_graph(configure(*NEIGHBOR)).data, []
    for config in (configure(*NEIGHBOR), resumed, configure(*NEIGHBOR, impossible)):
        with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
            list(trainer.steps())
            digests.append(checkpoint.digest(trainer.weights()))
    assert len(set(digests)) == 1


def test_steps_of_an_epoch_and_what_is_recorded(trained, configure):
    config = configure(*NEIGHBOR)
    num_train = int(load(config.data, config.cache_dir).train_mask.sum())
    steps = -(-num_train // 24)
    assert [record["step"] for record in rounds_of(trained)] == [
        steps * epoch for epoch in (1, 2, 3, 4)
    ]
    (record,) = [r for r in read_records(trained / "metrics.jsonl") if r["kind"] == "sampling"]
    assert (
        record["num_batches"] == steps
        and record["num_seeds"] == num_train
        and record["mean_nodes"] > 24
    )
    assert "Neighbour sampling" in page([read_run(trained)])


def test_label_input_never_shows_a_seed_its_own_label():
    data = task_graph(list(range(30)))
    task, seen = NodeTask(data, label_input=0.5), []

    class Model(torch.nn.Module):
        def forward(self, x, edge_index, edge_attr):
            seen.append(x[:, 2] == 1)
            self.logits = torch.zeros(len(x), 2, requires_grad=True)
            return self.logits

    model, num_learned = Model(), 0
    for batch in batches(NeighborLoader(data, [3, 3], batch_size=8)):
        loss_sum, _count = task.loss(model, batch, torch.Generator().manual_seed(0))
        loss_sum.backward()
        learned = (model.logits.grad != 0).any(1)
        assert not bool((learned & ~batch.target).any()) and not bool((learned & seen[-1]).any())
        assert bool((seen[-1] & ~batch.target).any())  # neighbours show theirs
        num_learned += int(learned.sum())
    assert 5 < num_learned < 25


def test_evaluation_by_all_neighbours_is_exact(configure):
    data, config = random_graph(60, 300, 0), configure(*NEIGHBOR, "evaluation=neighbor")

    def predict(**evaluation):
        changes = {f"evaluation.{key}": value for key, value in evaluation.items()}
        return rank_cases.predict(keys.replaced(config, changes), data, Ranks())

    exact = predict(method="exact")
    torch.testing.assert_close(predict(num_neighbors=[-1, -1]), exact, rtol=1e-4, atol=1e-5)
    sampled = predict(num_views=2)
    assert torch.equal(sampled, predict(num_views=2)) and not torch.allclose(
        sampled, exact, atol=1e-3
    )


def test_views_are_the_same_whatever_the_loader(configure):
    data = random_graph(60, 300, 0)
    views = [
        rank_cases.predict(configure(*overrides, "evaluation=views"), data, Ranks())
        for overrides in (TOY, NEIGHBOR)
    ]
    assert torch.equal(*views)
