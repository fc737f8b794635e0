"""Partitions, loaders and the exchange of gradients in a loop of one's own, beside what PyG does."""

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv
from torch_geometric.utils import grid, k_hop_subgraph

import parallel_epochs as pe


def small(num_nodes=80, num_edges=600, seed=0) -> Data:
    """Return a graph with attributes of nodes, of edges and of neither."""
    g = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 4, generator=g),
        y=torch.randint(3, (num_nodes,), generator=g),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=g),
        edge_attr=torch.rand(num_edges, 2, generator=g),
        name="small",
        level=torch.tensor([7.0]),
    )


def check_edges(data: Data, batch: Data) -> None:
    """Check that a batch has the edges and attributes of the graph that its numbers name."""
    ends = batch.n_id[batch.edge_index.as_tensor()]
    assert torch.equal(ends, data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id]) and torch.equal(
        batch.x, data.x[batch.n_id]
    )
    assert (
        torch.equal(batch.y, data.y[batch.n_id])
        and batch.name == "small"
        and batch.level.tolist() == [7.0]
    )


@pytest.mark.parametrize(
    "method, least, most",
    [("random", 0.7, 1.0), ("metis", 0.1, 0.4), ("metis_random", 0.4, 0.8), ("kaminpar", 0.1, 0.4)],
)
def test_a_graph_is_cut_into_clusters_of_about_the_same_size(method, least, most):
    if method == "kaminpar":
        pytest.importorskip("kaminpar")
    edges, _ = grid(12, 12)
    directed = edges[:, edges[0] < edges[1]]  # both directions count, whichever are given
    parts = pe.partition(directed, 6, method, seed=1)
    assert parts.dtype == torch.int64 and torch.bincount(parts, minlength=6).min() > 12
    assert torch.equal(parts, pe.partition(directed, 6, method, seed=1))
    cut = float((parts[edges[0]] != parts[edges[1]]).float().mean())
    assert least < cut < most


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_parts": 0}, "num_parts=0 must be a whole number from 1 to the 3 nodes"),
        ({"num_parts": 4}, "num_parts=4 must be a whole number from 1 to the 3 nodes"),
        (
            {"num_parts": 2, "method": "metiss"},
            "method='metiss' is unknown; choose one of random, metis",
        ),
        ({"num_parts": 2, "num_nodes": 2}, "edge_index names node 2, and there are 2 nodes"),
        (
            {"num_parts": 2, "edge_index": torch.tensor([[0, -1], [1, 2]])},
            "edge_index names node -1",
        ),
        (
            {"num_parts": 2, "edge_index": torch.rand(2, 3)},
            "edge_index must hold integers of shape",
        ),
        (
            {"num_parts": 2, "edge_index": torch.tensor([0, 1])},
            "edge_index must hold integers of shape",
        ),
        (
            {"num_parts": 2, "edge_index": torch.tensor([[True], [False]])},
            "edge_index must hold integers of shape",
        ),
        (
            {"num_parts": 2, "edge_index": small()},
            "edge_index must hold integers of shape .*, not a Data",
        ),
        ({"num_parts": 1.5}, "num_parts=1.5 must be a whole number"),
        ({"num_parts": 2, "seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"num_parts": 2, "num_nodes": "3"}, "num_nodes='3' must be a whole number of at least 0"),
    ],
)
def test_wrong_partitions_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pe.partition(
            **{"edge_index": torch.tensor([[0, 1], [1, 2]]), "method": "random", **arguments}
        )


@pytest.mark.parametrize("batch_size", [1, 2])
def test_clusters_hold_every_node_once_and_the_edges_between_their_nodes(batch_size):
    data = small()
    loader = pe.ClusterLoader(data, 5, batch_size=batch_size, seed=3)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-5 // batch_size)
    assert torch.cat([batch.n_id for batch in batches]).sort().values.equal(torch.arange(80))
    for batch in batches:
        check_edges(data, batch)
        inside = torch.isin(data.edge_index, batch.n_id).all(0)
        assert batch.e_id.sort().values.equal(inside.nonzero().squeeze(1))
    other = next(iter(loader))  # of the next epoch
    assert not torch.equal(other.n_id, batches[0].n_id)
    loader.set_epoch(0)
    assert torch.equal(next(iter(loader)).n_id, batches[0].n_id)
    drawn = next(iter(pe.ClusterLoader(data, 5, batch_size=batch_size, seed=3, draw=1)))
    assert not torch.equal(drawn.n_id, batches[0].n_id)


def test_neighbours_are_drawn_from_the_graph():
    data, seeds = small(), torch.tensor([3, 50, 7, 21, 60])
    loader = pe.NeighborLoader(data, [2, 1], input_nodes=seeds, batch_size=2, shuffle=True, seed=1)
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [2, 2, 1] and len(loader) == 3
    assert torch.cat([batch.input_id for batch in batches]).sort().values.equal(torch.arange(5))
    for batch in batches:
        check_edges(data, batch)
        assert torch.equal(batch.n_id[: batch.batch_size], seeds[batch.input_id])
        assert (
            torch.bincount(batch.edge_index[1], minlength=batch.batch_size)[
                : batch.batch_size
            ].max()
            <= 2
        )
    loader.set_epoch(0)
    assert all(
        torch.equal(one.e_id, other.e_id) for one, other in zip(loader, batches, strict=True)
    )
    assert not all(
        torch.equal(one.n_id, other.n_id) for one, other in zip(loader, batches, strict=True)
    )


def test_all_neighbours_are_those_of_pyg():
    data, mask = small(), torch.zeros(80, dtype=torch.bool)
    mask[[5, 9]] = True
    (batch,) = pe.NeighborLoader(data, [-1, -1], input_nodes=mask, batch_size=2)
    nodes, *_ = k_hop_subgraph([5, 9], 2, data.edge_index)
    assert batch.n_id.sort().values.equal(nodes)
    module = GCNConv(4, 3)
    torch.testing.assert_close(
        module(batch.x, batch.edge_index.as_tensor())[:2].shape, torch.Size([2, 3])
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda data, share: pe.ClusterLoader(data, 5, share=share),
        lambda data, share: pe.NeighborLoader(data, [3], batch_size=20, shuffle=True, share=share),
    ],
)
def test_ranks_share_the_batches_of_an_epoch(make):
    data = small()
    whole, parts = list(make(data, (0, 1))), [list(make(data, (rank, 2))) for rank in range(2)]
    assert [len(make(data, (rank, 2))) for rank in range(2)] == [len(part) for part in parts]
    for number, batch in enumerate(whole):
        assert torch.equal(batch.n_id, parts[number % 2][number // 2].n_id)


HETERO = HeteroData(
    {
        "user": {"x": torch.ones(3, 1)},
        ("user", "knows", "user"): {"edge_index": torch.tensor([[0], [1]])},
    }
)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data": HETERO}, r"data is a HeteroData, .* Give data.to_homogeneous\(\)"),
        ({"data": None}, "data is a NoneType, and must be a torch_geometric.data.Data"),
        ({"data": small().edge_index}, "data is a Tensor, and must be"),
        ({"data": Data(x=torch.ones(3, 1))}, "data has no edge_index"),
        ({"share": (2, 2)}, r"share=\(2, 2\) must be \(rank, ranks\)"),
        ({"share": 1}, "share=1 must be"),
        ({"share": (0, 1, 2)}, "must be .rank, ranks."),
        ({"share": (0.0, 1.0)}, "must be .rank, ranks."),
        ({"seed": None}, "seed=None must be a whole number"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number of at least 1"),
        ({"batch_size": 1.5}, "batch_size=1.5 must be a whole number"),
    ],
)
@pytest.mark.parametrize("loader, second", [(pe.ClusterLoader, 2), (pe.NeighborLoader, [2])])
def test_wrong_loaders_are_refused(loader, second, changes, message):
    with pytest.raises(ValueError, match=message):
        loader(
            **{"data": small(), "num_parts" if second == 2 else "num_neighbors": second, **changes}
        )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_parts": 81}, "num_parts=81 must be a whole number from 1 to the 80 nodes"),
        ({"num_parts": True}, "num_parts=True must be a whole number"),
        ({"method": "whole"}, "method='whole' is unknown"),
        ({"draw": -1}, "draw=-1 must be a whole number of at least 0"),
    ],
)
def test_wrong_clusters_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pe.ClusterLoader(small(), **{"num_parts": 2, **changes})


@pytest.mark.parametrize(
    "num_neighbors, input_nodes, message",
    [
        ([], None, "num_neighbors must hold integers"),
        ([0], None, r"num_neighbors=\[0\] must be positive numbers"),
        ([-2], None, "must be positive numbers, or -1"),
        (5, None, "num_neighbors must hold integers of shape .num_hops."),
        ([2.5], None, "num_neighbors must hold integers"),
        ({"user": [1]}, None, "num_neighbors .* not a dict"),
        ([1], torch.tensor([1, 1]), "input_nodes names a node twice"),
        ([1], [80], "input_nodes names node 80"),
        ([1], torch.tensor([-1]), "input_nodes names node -1, and there are 80"),
        (
            [1],
            torch.ones(5, dtype=torch.bool),
            "input_nodes is a mask of 5 nodes, and there are 80",
        ),
        ([1], torch.rand(3), "input_nodes must hold integers"),
        ([1], "train_mask", "input_nodes .* not a str"),
    ],
)
def test_wrong_seeds_and_neighbours_are_refused(num_neighbors, input_nodes, message):
    with pytest.raises(ValueError, match=message):
        pe.NeighborLoader(small(), num_neighbors, input_nodes=input_nodes)


@pytest.mark.parametrize("epoch", [-1, 1.5, "2"])
def test_an_epoch_is_a_whole_number(epoch):
    with pytest.raises(ValueError, match="must be a whole number of at least 0"):
        pe.NeighborLoader(small(), [1]).set_epoch(epoch)


@pytest.mark.parametrize(
    "model, loss, count, message",
    [
        (
            torch.nn.ReLU(),
            None,
            0,
            "model is a ReLU, and must be a torch.nn.Module with parameters",
        ),
        (None, None, 0, "model is a NoneType"),
        (GCNConv(4, 3), torch.ones(3), 1, "loss_sum must be a tensor of one number"),
        (GCNConv(4, 3), 1.5, 1, "loss_sum must be a tensor"),
        (GCNConv(4, 3), torch.tensor(1.0), -1, "count=-1 must be"),
    ],
)
def test_a_wrong_loss_is_refused(model, loss, count, message):
    with pytest.raises(ValueError, match=message):
        pe.GradientSync(model)(loss, count)


def test_other_processes_build_the_same_batches():
    data = small()
    loader = pe.NeighborLoader(data, [2], batch_size=16, shuffle=True)
    plain = [list(loader), list(loader)]
    for epoch, wanted in enumerate(plain):
        loader.set_epoch(epoch)
        batches = list(DataLoader(loader, batch_size=None, num_workers=2))
        assert [batch.n_id.tolist() for batch in batches] == [
            batch.n_id.tolist() for batch in wanted
        ]
    assert plain[0][0].n_id.tolist() != plain[1][0].n_id.tolist()


def train_a_step(model: torch.nn.Module, parts: list[Data]) -> float:
    """Take one step on some batches, none for a rank without any."""
    sync, loss, count = pe.GradientSync(model), None, 0
    for batch in parts:
        own = torch.nn.functional.cross_entropy(
            model(batch.x, batch.edge_index.as_tensor()), batch.y, reduction="sum"
        )
        own.backward()
        loss, count = own if loss is None else loss + own, count + len(batch.y)
    return sync(loss, count)


def work(rank: int, folder: str, num_parts: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = GCNConv(4, 3)
    loss = train_a_step(model, list(pe.ClusterLoader(small(), num_parts, seed=3, share=(rank, 2))))
    torch.save([loss, *(parameter.grad for parameter in model.parameters())], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [3, 1])  # of one part, the second rank has no batch
def test_two_ranks_with_unequal_batches_take_the_step_of_one(num_parts, tmp_path):
    mp.start_processes(work, (str(tmp_path), num_parts), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    model = GCNConv(4, 3)
    loss = train_a_step(model, list(pe.ClusterLoader(small(), num_parts, seed=3)))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found[0] == pytest.approx(loss, rel=1e-6)
        for gradient, parameter in zip(found[1:], model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_is_not_finite_is_refused():
    model = GCNConv(4, 3)
    (batch,) = pe.ClusterLoader(small(), 1)
    batch.x[0] = torch.nan
    with pytest.raises(FloatingPointError, match="the loss or a gradient of rank 0 is not finite"):
        train_a_step(model, [batch])
