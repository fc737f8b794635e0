"""Neighbours sampled by relation: what is drawn, how often, and which numbers are refused."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.loaders.fan_outs import fan_outs_of
from parallel_epochs.pipeline.graph.sampling import NeighborSampler
from parallel_epochs.scripts.report.document import page
from parallel_epochs.scripts.report.runs import read_run
from tests.helpers.building import open_graph
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.running import train
from tests.helpers.typed_graphs import write_hetero
from tests.pipeline.gnn.loaders.test_neighbor import floyd


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The prepared graph; nothing may change it."""
    folder = tmp_path_factory.mktemp("typed")
    write_hetero(folder)
    return load(FileConfig(path=str(folder / "hetero.pt")), folder)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(0, 150),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**6),
)
def test_a_node_draws_so_many_edges_of_each_relation(
    num_nodes, num_pairs, num_relations, num_hops, wide, key, seed
):
    rng = torch.manual_seed(seed)
    whole = random_graph(num_nodes, num_pairs, seed).edge_index
    whole = from_csc(
        whole.as_tensor().to(torch.int64 if wide else torch.int32), whole.get_csc()[0][0]
    )
    attr = torch.rand(whole.size(1), 3, generator=rng)  # the numbers are a column among others
    attr[:, 0] = torch.randint(num_relations, (whole.size(1),), generator=rng).float()
    most = torch.randint(-1, 4, (num_hops, num_relations), generator=rng)
    seeds = torch.randperm(num_nodes, generator=rng)[: 1 + num_nodes // 3]
    sampler = NeighborSampler(whole, most, relation=attr[:, 0])
    edge_index, nodes, position = sampler.sample(seeds, key)
    edge_index.validate()
    assert torch.equal(nodes[edge_index.as_tensor()], whole.as_tensor()[:, position].long())
    assert len(position.unique()) == len(position)
    all_ptr, (ptr, _) = whole.get_csc()[0][0], edge_index.get_csc()[0]
    first, last = 0, len(seeds)
    for hop, limits in enumerate(most):
        for local in range(first, last):
            drawn, node = position[ptr[local] : ptr[local + 1]], int(nodes[local])
            entering = torch.bincount(
                attr[all_ptr[node] : all_ptr[node + 1], 0].long(), minlength=num_relations
            )
            assert torch.equal(
                torch.bincount(attr[drawn, 0].long(), minlength=num_relations),
                torch.where(limits < 0, entering, torch.minimum(entering, limits)),
            )
            assert bool((drawn.diff() > 0).all())
            for number, limit in enumerate(limits.tolist()):
                own = (attr[all_ptr[node] : all_ptr[node + 1], 0] == number).nonzero()[:, 0]
                if 0 <= limit < len(own):
                    places = floyd(len(own), limit, node | number + 1 << 32, key, hop)
                    expected = (all_ptr[node] + own[places]).tolist()
                    assert drawn[attr[drawn, 0] == number].tolist() == expected
        first, last = (
            last,
            max(last, int(edge_index.as_tensor()[0, : ptr[last]].max()) + 1 if ptr[last] else last),
        )
    assert last == len(nodes) and ptr[first] == len(position)


def test_every_set_of_edges_of_a_relation_is_equally_likely_and_relations_are_independent():
    num_centres = 2000  # each with four edges of relation 0 and five of relation 1
    edges = make_graph(
        [(i, 9 + centre) for centre in range(num_centres) for i in range(9)], 9 + num_centres
    ).edge_index
    relation = (edges.as_tensor()[0] >= 4).float()
    sampler = NeighborSampler(edges, torch.tensor([[1, 2]]), relation=relation)
    drawn = sampler.sample(9 + torch.arange(num_centres), 7)[2].view(num_centres, 3) % 9
    assert bool((drawn[:, 0] < 4).all() and (drawn[:, 1] >= 4).all())
    pairs = 5 * (drawn[:, 1] - 4) + drawn[:, 2] - 4
    cells = torch.bincount(25 * drawn[:, 0] + pairs, minlength=100).view(4, 5, 5)[
        :, *torch.triu_indices(5, 5, 1)
    ]
    assert int(cells.sum()) == num_centres and chisquare(cells.flatten()).pvalue > 0.01


def test_numbers_of_a_relation_are_found_by_its_name_by_all_three_and_by_default(typed):
    schema = typed.types
    found = fan_outs_of(
        {"buys": [10, -1], "user.sees.tag": [0, 3], "sees": [4, 4], "default": [2, 1]}, typed
    )
    assert [found[:, number].tolist() for number in range(5)] == [
        [10, -1],
        [2, 1],
        [2, 1],
        [4, 4],
        [0, 3],
    ]
    assert found.shape == (2, len(schema.relations)) and bool(
        (found[:, 5:] == torch.tensor([[2], [1]])).all()
    )
    assert fan_outs_of([3, 2], typed) == [3, 2]


@pytest.mark.parametrize(
    "given, error",
    [
        (
            {"bays": [3, 3], "default": [1, 1]},
            r"num_neighbors={bays:\[3,3\],default:\[1,1\]}: there is no relation bays; "
            "did you mean buys?",
        ),
        (
            {"buys": [3, 3]},
            "has no numbers for the relation knows and 8 more. Add them, or default for all",
        ),
    ],
)
def test_numbers_that_fit_no_relation_are_refused(given, error, typed):
    with pytest.raises(ValueError, match=error):
        fan_outs_of(given, typed)
    with pytest.raises(
        ValueError, match="names relations, and this graph has one type of nodes. Give a list"
    ):
        fan_outs_of(given, Graph(num_nodes=3))


def test_a_run_draws_by_relation_and_says_so_in_the_log_and_in_the_report(
    configure, tmp_path, caplog
):
    caplog.set_level("INFO")
    config = configure(
        *write_hetero(tmp_path),
        "loader=neighbor",
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=2",
        "loader.batch_size=4",
        "loader.num_neighbors={buys: [4,3], default: [2,2]}",
        "evaluation=neighbor",
        "evaluation.num_neighbors={user.buys.item: [-1,-1], default: [5,5]}",
    )
    train(config, tmp_path / "first")
    assert "num_neighbors={buys:[4,3],default:[2,2]}, 3 batches of 4 of 10 seeds" in caplog.text
    assert "4, 3 (buys); 2, 2 (default) neighbours of a node at each hop" in page(
        [read_run(tmp_path / "first")]
    )


@pytest.mark.parametrize(
    "value, error",
    [
        ("{}", "names no relation"),
        ("{buys: 4}", "loader.num_neighbors.buys=4 is not a list of whole numbers"),
        (
            "{buys: [4,3,2]}",
            r"loader.num_neighbors.buys=\[4,3,2\] has 3 numbers, and model.num_layers=2 needs one",
        ),
        ("{buys: [4,-2]}", "-2 neighbours cannot be sampled. Give at least 0, or -1"),
        ("{buys: [4,0], default: [0,0]}", "no relation has neighbours in hop 2"),
    ],
)
def test_impossible_numbers_of_relations_are_refused_by_name(value, error, configure):
    with pytest.raises(cli.USER_ERRORS, match=error):
        configure("loader=neighbor", "model.num_layers=2", f"loader.num_neighbors={value}")


def test_an_evaluation_of_relations_that_are_not_there_is_refused_when_the_data_are_opened(
    configure, tmp_path
):
    config = configure(
        *write_hetero(tmp_path),
        "task=link",
        "task.relation=buys",
        "model.num_layers=2",
        "evaluation=neighbor",
        "evaluation.num_neighbors={buy: [2,2], default: [1,1]}",
    )
    with pytest.raises(ValueError, match="there is no relation buy; did you mean"):
        open_graph(config)


@pytest.mark.parametrize(
    "num_layers, fan_outs", [(1, [15]), (2, [15, 10]), (4, [15, 10, 5, 5]), (5, [15, 10, 5, 5, 5])]
)
def test_as_many_numbers_are_usual_as_there_are_layers(configure, num_layers, fan_outs):
    config = configure("loader=neighbor", "evaluation=neighbor", f"model.num_layers={num_layers}")
    assert config.fan_outs == config.evaluation_fan_outs == fan_outs
