"""Edges expanded by relation, beside PyG's RGCNConv in float64, for dense and thin relations."""

import pytest
import torch
import torch_geometric.nn as pyg

from parallel_epochs.models.convs import relation_conv
from parallel_epochs.models.convs.expanded_edges import Relations, convolve
from tests.helpers.tensors import Largest

CHANNELS, OUT = 16, 24


def draw(num_nodes: int, num_edges: int, num_relations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw edges among all but the last three nodes, which stay isolated, and relations but for the second."""
    rng = torch.Generator().manual_seed(0)
    relation = torch.randint(num_relations, (num_edges,), generator=rng)
    relation[relation == 1] = 0
    ends = torch.randint(num_nodes - 3, (2, num_edges), generator=rng)
    # A hub on either side, so that each side is the smaller one for some relations.
    ends[0, relation % 3 == 0] %= 5
    ends[1, relation % 3 == 2] %= 5
    return ends, relation


def uniform(
    num_nodes: int, num_edges: int, num_relations: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw edges so that nearly every node has some of every relation."""
    rng = torch.Generator().manual_seed(1)
    return (
        torch.randint(num_nodes, (2, num_edges), generator=rng),
        torch.randint(num_relations, (num_edges,), generator=rng),
    )


CASES = {
    "dense": (uniform, 20, 400, 3),
    "thin": (draw, 40, 120, 7),
    "many": (draw, 30, 200, 3000),
    "single": (uniform, 15, 90, 1),
    "no edges": (uniform, 6, 0, 3),
}


def theirs(
    x: torch.Tensor, weight: torch.Tensor, edges: torch.Tensor, relation: torch.Tensor
) -> list[torch.Tensor]:
    """Return the output and gradients of PyG's layer in float64, which gets only the relations that occur."""
    used, renamed = relation.unique(return_inverse=True)
    conv = pyg.RGCNConv(CHANNELS, OUT, max(used.numel(), 1), root_weight=False, bias=False).double()
    with torch.no_grad():
        conv.weight[: used.numel()] = weight[used].double()
    wide = x.detach().double().requires_grad_()
    out = conv(wide, edges, renamed)
    of_x, of_weight = torch.autograd.grad(out, [wide, conv.weight], out.detach().cos())
    of_all = torch.zeros(weight.shape, dtype=torch.float64)
    of_all[used] = of_weight[: used.numel()]
    return [out, of_x, of_all]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kernel", ["fused", "reference", "float64"])
def test_output_and_gradients_are_those_of_pygs_layer(name, kernel):
    make, num_nodes, num_edges, num_relations = CASES[name]
    edges, relation = make(num_nodes, num_edges, num_relations)
    torch.manual_seed(0)
    dtype = torch.float64 if kernel == "float64" else torch.float32
    x = torch.randn(num_nodes, CHANNELS, dtype=dtype, requires_grad=True)
    weight = torch.randn(num_relations, CHANNELS, OUT, dtype=dtype, requires_grad=True)
    relations = Relations(edges, relation.float(), num_relations, num_nodes, num_nodes)
    assert relations.is_dense == (name in ("dense", "single"))
    out = convolve(x, weight, relations, kernel="reference" if kernel == "float64" else kernel)
    wanted = theirs(x, weight, edges, relation)
    found = [out, *torch.autograd.grad(out, [x, weight], wanted[0].detach().cos().to(dtype))]
    for ours, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            ours.double(),
            expected,
            **(
                dict(rtol=1e-10, atol=1e-10)
                if dtype == torch.float64 and name != "thin"
                else dict(rtol=1e-4, atol=1e-4)
            ),
        )


def test_each_relation_is_expanded_at_its_smaller_end():
    edges, relation = draw(40, 120, 7)
    relations = Relations(edges, relation, 7, 40, 40)
    sides, counts = relations.smaller, []
    for number in range(7):
        ends = edges[:, relation == number]
        counts.append((ends[0].unique().numel(), ends[1].unique().numel()))
    assert sides.sources.sizes == tuple(src if src < dst else 0 for src, dst in counts)
    assert sides.destinations.sizes == tuple(0 if src < dst else dst for src, dst in counts)
    assert min(sides.sources.num_pairs, sides.destinations.num_pairs) > 0


@pytest.mark.parametrize("name, num_nodes", [("dense", 200), ("thin", 400)])
def test_no_tensor_of_edges_x_channels_is_made(name, num_nodes):
    edges, relation = CASES[name][0](num_nodes, 6_000, 3)
    relations = Relations(edges, relation, 3, num_nodes, num_nodes)
    assert relations.is_dense == (name == "dense")
    x = torch.randn(num_nodes, 64, requires_grad=True)
    weight = torch.randn(3, 64, 64, requires_grad=True)
    with Largest() as largest:
        convolve(x, weight, relations, kernel="fused").sum().backward()
    assert largest.elements <= 3 * num_nodes * 64


def test_dense_pairs_of_sources_have_their_edges_in_both_orders():
    edges, relation = uniform(20, 400, 3)
    relations = Relations(edges, relation, 3, 20, 20)
    assert relations.is_dense
    found = relations.from_sources
    expected = sorted(zip((edges[0] * 3 + relation).tolist(), edges[1].tolist()))
    assert sorted(map(tuple, found.as_tensor().t().tolist())) == expected
    (rowptr, dst), perm = found.get_csr()
    by_source = found.as_tensor()[:, perm.long()]
    assert torch.equal(rowptr, torch.searchsorted(by_source[0].contiguous(), torch.arange(61)))
    assert torch.equal(by_source[1], dst)


def test_without_the_compiler_the_same_edges_are_found(monkeypatch):
    edges, relation = uniform(20, 400, 3)
    sorted_by_kernel = Relations(edges, relation, 3, 20, 20)._sorted
    monkeypatch.setattr("parallel_epochs.models.kernels.sorting.LIBRARY.get", lambda: None)
    for ours, expected in zip(
        Relations(edges, relation, 3, 20, 20)._sorted, sorted_by_kernel, strict=True
    ):
        assert torch.equal(ours, expected)


def test_wrong_relations_and_ends_are_errors():
    edges, relation = uniform(20, 40, 3)
    with pytest.raises(
        IndexError,
        match="^the relations of the edges have numbers from 0 to 2, but there are num_rel",
    ):
        Relations(edges, relation, 2, 20, 20)
    with pytest.raises(IndexError, match="from -1 to"):
        Relations(edges, relation - 1, 3, 20, 20)
    with pytest.raises(ValueError, match="must be whole numbers"):
        Relations(edges, relation / 2, 3, 20, 20)
    with pytest.raises(IndexError, match=r"^edge_index\[1\] has values from"):
        Relations(edges, relation, 3, 20, 5)


def test_a_layer_with_pygs_arguments_keeps_expanded_edges_until_the_relations_are_freed():
    edges, relation = uniform(20, 40, 3)
    relation[:4] = torch.tensor([5, -1, 5, 7])  # relations that the layer does not have
    conv, x = relation_conv.RGCNConv(CHANNELS, OUT, 3), torch.randn(20, CHANNELS)
    before = len(relation_conv._known)
    expected = conv(x, edges[:, 4:], relation[4:].clone())
    torch.testing.assert_close(conv(x, edges, relation), expected)
    torch.testing.assert_close(conv(x, edges, relation), expected)
    relation[:4] = 0
    assert not torch.allclose(conv(x, edges, relation), expected)
    assert len(relation_conv._known) == before + 1
    del relation
    assert len(relation_conv._known) == before
