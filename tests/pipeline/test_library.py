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
    [("random", 0.7, 1.0), ("metis", 0.1, 0.4), ("metis_random", 0.4, 0.8)],
)
def test_a_graph_is_cut_into_clusters_of_about_the_same_size(method, least, most):
    edges, _ = grid(12, 12)
    directed = edges[:, edges[0] < edges[1]]  # both directions count, whichever are given
    parts = pe.partition(directed, 6, method, seed=1)
    assert parts.dtype == torch.int64 and torch.bincount(parts, minlength=6).min() > 12
    assert torch.equal(parts, pe.partition(directed, 6, method, seed=1))
    cut = float((parts[edges[0]] != parts[edges[1]]).float().mean())
    assert least < cut < most


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


HETERO = HeteroData({"user": {"x": torch.ones(3, 1)}})
EDGES = torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: pe.partition(EDGES, 0), "num_parts=0 must be a whole number of at least 1"),
        (lambda: pe.partition(EDGES, 4), "num_parts=4, and there are 3 nodes"),
        (lambda: pe.partition(EDGES, 2, "metiss"), "method='metiss' is unknown; choose one of"),
        (lambda: pe.partition(EDGES, 2, num_nodes=2), "edge_index names node 2, and there are 2"),
        (lambda: pe.partition(EDGES.float(), 2), "edge_index must hold integers"),
        (lambda: pe.partition(EDGES[0], 2), "edge_index must hold integers of shape"),
        (lambda: pe.ClusterLoader(HETERO, 2), "data is a HeteroData, .* data.to_homogeneous"),
        (lambda: pe.ClusterLoader(Data(x=torch.ones(3, 1)), 2), "data has no edge_index"),
        (lambda: pe.ClusterLoader(small(), 2, share=(2, 2)), r"share=\(2, 2\) must be"),
        (lambda: pe.ClusterLoader(small(), 2, seed=-1), "seed=-1 must be a whole number"),
        (lambda: pe.NeighborLoader(small(), [0]), r"num_neighbors=\[0\] must be positive numbers"),
        (lambda: pe.NeighborLoader(small(), [1], batch_size=0), "batch_size=0 must be a whole"),
        (lambda: pe.NeighborLoader(small(), [1], input_nodes=[1, 1]), "names a node twice"),
        (lambda: pe.NeighborLoader(small(), [1], input_nodes=[80]), "names node 80, and there are"),
        (lambda: pe.NeighborLoader(small(), [1]).set_epoch(-1), "epoch=-1 must be a whole number"),
        (lambda: pe.GradientSync(GCNConv(4, 3))(torch.ones(3), 1), "a tensor of one number"),
        (lambda: pe.GradientSync(GCNConv(4, 3))(torch.tensor(1.0), -1), "count=-1 must be"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "make",
    [
        lambda data: pe.ClusterLoader(data, 4),
        lambda data: pe.NeighborLoader(data, [3], batch_size=10),
    ],
)
def test_names_are_selected_and_labels_of_edges_are_left_whole(make):
    data = small()
    data.names = [f"n{number}" for number in range(80)]
    data.edge_label_index, data.edge_label = data.edge_index.flip(1), torch.ones(600)
    for batch in make(data):
        assert batch.names == [f"n{number}" for number in batch.n_id.tolist()]
        assert torch.equal(batch.edge_label_index, data.edge_label_index)
        assert torch.equal(batch.edge_label, data.edge_label)


def test_other_processes_build_the_same_batches():
    data = small()
    loader = pe.NeighborLoader(data, [2], batch_size=16, shuffle=True)
    plain = [list(loader), list(loader)]
    workers = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        found, wanted = ([b.n_id.tolist() for b in each] for each in (workers, plain[epoch]))
        assert found == wanted
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
    model.unused = torch.nn.Parameter(torch.ones(1))
    loss = train_a_step(model, list(pe.ClusterLoader(small(), num_parts, seed=3, share=(rank, 2))))
    assert model.unused.grad is None
    del model.unused
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
