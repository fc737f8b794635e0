"""Layers over nearest neighbours: the neighbours themselves, dilated, and models that use them."""

import copy

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks import nearest
from parallel_epochs.models.networks.nearest import dilated_neighbors
from tests.helpers import building as build
from tests.helpers.running import TOY

H = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)) + 100
STAGES = dict(in_channels=5, hidden_channels=5, out_channels=2, num_layers=3, dropout=0.0, knn=4)


def rows_of(edge_index, num_nodes=len(H)):
    """The neighbours of each node, in order."""
    (indptr, src), _ = edge_index.get_csc()
    assert indptr.numel() == num_nodes + 1
    return [src[begin:end].tolist() for begin, end in zip(indptr[:-1], indptr[1:])]


def sorted_by_distance(h, k):
    return NearestNeighbors(n_neighbors=k).fit(h.double().numpy()).kneighbors(return_distance=False)


@pytest.mark.parametrize("dilation", [1, 3, 7])
@pytest.mark.parametrize("block", [2**24, 130])
def test_every_so_many_th_of_the_nearest(dilation, block, monkeypatch):
    monkeypatch.setattr(nearest, "MAX_DISTANCES", block)
    edge_index = dilated_neighbors(H, 4, dilation=dilation)
    assert rows_of(edge_index) == sorted_by_distance(H, 4 * dilation)[:, ::dilation].tolist()
    assert edge_index.dtype == torch.int32 and edge_index.is_sorted_by_col
    edge_index.validate()


def test_neighbours_are_of_the_same_graph():
    ptr = torch.tensor([0, 1, 3, 3, 13, 60])
    rows = rows_of(dilated_neighbors(H, 4, dilation=3, ptr=ptr))
    assert rows[:3] == [[], [2], [1]], "a graph of fewer nodes is linked completely"
    # Nine others are four times two, and four times three for the last graph.
    for (begin, end), dilation in (((3, 13), 2), ((13, 60), 3)):
        expected = sorted_by_distance(H[begin:end], 4 * dilation)[:, ::dilation] + begin
        assert rows[begin:end] == expected.tolist()


def test_a_node_is_not_its_own_neighbour_where_all_others_are_few():
    # Eleven others are four times two, though twelve nodes are four times three.
    assert (
        rows_of(dilated_neighbors(H[:12], 4, dilation=3), 12)
        == sorted_by_distance(H[:12], 8)[:, ::2].tolist()
    )
    for _ in range(20):
        rows = rows_of(dilated_neighbors(H[:12], 4, dilation=3, epsilon=1.0), 12)
        assert all(node not in row for node, row in enumerate(rows))


def test_random_ones_of_the_dilated_neighbourhood():
    torch.manual_seed(0)
    regular, all_near = (
        torch.tensor(sorted_by_distance(H, 12).tolist())[:, ::step] for step in (3, 1)
    )
    for epsilon, least, most in ((0.0, 0, 0), (0.5, 15, 45), (1.0, 55, 60)):
        rows = torch.tensor(rows_of(dilated_neighbors(H, 4, dilation=3, epsilon=epsilon)))
        assert least <= int((rows != regular).any(1).sum()) <= most
        places = (rows.unsqueeze(2) == all_near.unsqueeze(1)).nonzero()[:, 2].view(len(H), 4)
        assert bool((places.diff(dim=1) > 0).all()), "distinct, the nearer first"
    undilated = dilated_neighbors(H, 4, epsilon=1.0)
    assert torch.equal(undilated.as_tensor(), dilated_neighbors(H, 4).as_tensor())


def test_no_gradient_and_full_precision_under_autocast():
    h = H.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        edge_index = dilated_neighbors(h, 4)
    assert (
        rows_of(edge_index) == sorted_by_distance(H, 4).tolist()
        and not edge_index.as_tensor().requires_grad
    )


@pytest.mark.parametrize("block", ["res+", "res", "plain", "dense"])
def test_each_layer_takes_the_neighbours_of_its_own_input(block, monkeypatch):
    torch.manual_seed(0)
    model = DeeperGCN(**STAGES, block=block, knn_dilation=2, encode_x=False)
    seen, find = [], dilated_neighbors
    monkeypatch.setattr(
        "parallel_epochs.models.networks.deepgcn.dilated_neighbors",
        lambda h, k, **options: seen.append((h, k, options)) or find(h, k, **options),
    )
    out = model(H, torch.empty(2, 0, dtype=torch.int64))
    assert [(k, options["dilation"]) for _, k, options in seen] == [(4, 1), (4, 2), (4, 2)]
    assert torch.equal(seen[0][0], H) and not torch.equal(seen[1][0][:, :5], H) == (
        block != "dense"
    )
    # The same by hand: a model of given edges, one layer after the other.
    given = DeeperGCN(**{**STAGES, "knn": 0}, block=block, encode_x=False)
    given.load_state_dict(model.state_dict())
    h = H
    for layer in range(3):
        h = given.apply_layer(layer, h, find(h, 4, dilation=min(layer + 1, 2)), None)
    torch.testing.assert_close(
        out, given.head(torch.relu(given.norms[-1](h)) if block == "res+" else h)
    )


def test_recomputed_layers_draw_the_same_neighbours():
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = DeeperGCN(
            **STAGES, knn_dilation=3, knn_epsilon=0.5, gradient_checkpointing=recompute
        )
        torch.manual_seed(1)
        model(H, torch.empty(2, 0, dtype=torch.int64)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other)


def test_random_neighbours_are_for_training_alone():
    model = DeeperGCN(**STAGES, knn_dilation=3, knn_epsilon=1.0)
    none = torch.empty(2, 0, dtype=torch.int64)
    assert not torch.equal(model(H, none), model(H, none))
    model.eval()
    assert torch.equal(model(H, none), model(H, none))


def test_what_is_refused(configure):
    config = configure("data=digits", "model.knn=2")
    for key, value, message in (
        ("knn", -1, "model.knn must be at least 0, not -1"),
        ("knn_dilation", 0, "model.knn_dilation must be at least 1, not 0"),
        ("knn_epsilon", 1.5, r"model.knn_epsilon must be in \[0, 1\], not 1.5"),
    ):
        changed = copy.deepcopy(config)
        setattr(changed.model, key, value)
        with pytest.raises(ValueError, match=message):
            build.check(changed)
    with pytest.raises(ValueError, match="neighbours are found by features, not along edges"):
        build.check(configure("data=digits", "model.knn=2", "evaluation=neighbor"))
    with pytest.raises(
        ValueError, match="the 8 features of the edges of data=synthetic_proteins would"
    ):
        build.open_graph(configure("model.knn=2", *TOY[:5]))
