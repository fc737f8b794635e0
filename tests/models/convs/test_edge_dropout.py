"""Edge and input dropout: what is dropped, when, and what the layers of each model see of it."""

import functools

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models import DeeperGCN, RevGNN
from parallel_epochs.models.convs.edge_dropout import draw_kept, drop_edges
from parallel_epochs.models.edge_index import keep_edges
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.pipeline.graph.edges import transpose
from tests.helpers.graphs import random_graph

DATA = random_graph(40, 400, 0)
MODELS = {
    "deepergcn": DeeperGCN,
    "checkpointed": functools.partial(DeeperGCN, gradient_checkpointing=True),
    "revgnn": RevGNN,
    "pyg": functools.partial(PyGModel, conv="GINEConv"),
    "PyG's attention": functools.partial(
        PyGModel, conv="GATConv", kernel="pyg", kwargs={"add_self_loops": False}
    ),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_kept_edges_keep_both_sorted_orders(dtype):
    whole = DATA.edge_index.as_tensor().to(dtype)
    edge_index = EdgeIndex(whole, sparse_size=(40, 40), sort_order="col")
    edge_index.get_csc()
    kept = torch.rand(whole.size(1), generator=torch.Generator().manual_seed(0)) < 0.7
    without_csr = keep_edges(edge_index, kept)
    assert without_csr._indptr is not None and without_csr._T_perm is None
    ours = keep_edges(transpose(edge_index), kept)
    theirs = transpose(EdgeIndex(whole[:, kept], sparse_size=(40, 40), sort_order="col"))
    ours.validate()
    assert (
        torch.equal(ours.as_tensor(), theirs.as_tensor())
        and ours._indptr is not None
        and ours._T_perm is not None
    )
    for order in ("get_csc", "get_csr"):
        (pointers, nodes), perm = getattr(ours, order)()
        (expected_pointers, expected_nodes), expected_perm = getattr(theirs, order)()
        assert torch.equal(pointers, expected_pointers) and torch.equal(nodes, expected_nodes)
        assert perm is None and expected_perm is None or torch.equal(perm, expected_perm)
        assert pointers.dtype == nodes.dtype == dtype
    by_row = EdgeIndex(whole.flip(0), sparse_size=(40, 40), sort_order="row")
    assert (
        keep_edges(by_row, kept).sort_order == by_row.sort_order
        and keep_edges(by_row, kept).validate() is not None
    )


def test_edges_are_dropped_by_a_hash_of_the_seed_and_their_number():
    seed, threshold = 2**61 + 12345, 0.3 * 2**24
    by_hand = [mix(seed + number * GOLDEN & MASK) >> 40 >= threshold for number in range(1000)]
    assert (
        draw_kept(torch.tensor([seed]), 1000, 0.3).tolist() == by_hand and 650 < sum(by_hand) < 750
    )
    edges, attr = torch.arange(2000).view(2, 1000), torch.arange(1000.0).unsqueeze(1)
    assert drop_edges(edges, attr, dropout=0.3, training=False) == (edges, attr)
    assert drop_edges(edges, attr, dropout=0.0, training=True) == (edges, attr)
    torch.manual_seed(0)
    (first, features), (second, _) = (
        drop_edges(edges, attr, dropout=0.3, training=True) for _ in range(2)
    )
    assert torch.equal(first[0].float(), features.squeeze(1)) and not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(drop_edges(edges, None, dropout=0.3, training=True)[0], first)


def edges_of_layers(model) -> list[list]:
    """The edges that each convolution sees in one forward, as lists of pairs."""
    seen = []

    def see(_, args, keywords):
        seen.append(
            (keywords["edge_index"] if "edge_index" in keywords else args[1])
            .as_tensor()
            .long()
            .t()
            .tolist()
        )

    for module in model.modules():
        if module.__class__.__name__.endswith("Conv"):
            module.register_forward_pre_hook(see, with_kwargs=True)
    torch.manual_seed(1)
    model(DATA.x, DATA.edge_index, DATA.edge_attr)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_layers_see_some_edges_in_training_and_all_in_evaluation(name):
    torch.manual_seed(0)
    model = MODELS[name](5, 8, 2, 3, edge_dim=3, dropout=0.0, edge_dropout=0.4)
    every = DATA.edge_index.as_tensor().long().t().tolist()
    seen = edges_of_layers(model)
    assert all(0.4 * len(every) < len(edges) < 0.8 * len(every) for edges in seen)
    # Layers that are applied again and again, or inverted, have one draw in common.
    assert (len({str(edges) for edges in seen}) == 1) == (name == "revgnn")
    assert edges_of_layers(model)[:3] == seen[:3], "the draw is a function of torch's random state"
    assert all(edges == every for edges in edges_of_layers(model.eval()))
