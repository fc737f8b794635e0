"""HGTConv for packed nodes and edges, beside PyG's with the same weights."""

import pytest
import torch
import torch_geometric.nn as pyg

from parallel_epochs.models.convs.expanded_edges import Relations
from parallel_epochs.models.convs.hgt_conv import HGTConv
from parallel_epochs.models.convs.typed_linear import NodeTypes, TypedLinear

CHANNELS, HEADS = 16, 4
SIZES = {"a": 11, "b": 7, "c": 4}
# Source and destination types of each relation. The last one has no edges, and nothing ends at "c".
KINDS = (("a", "b"), ("b", "b"), ("a", "a"), ("c", "a"), ("c", "b"))


def typed_edges(num_edges: int) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Draw edges of each relation; returns them packed, in a random order, with their relations, and as PyG's dict."""
    rng, first = torch.Generator().manual_seed(0), {"a": 0, "b": 11, "c": 18}
    edges, relation, by_type = [], [], {}
    for number, (src, dst) in enumerate(KINDS):
        count = 0 if number == 4 else num_edges
        ends = torch.stack(
            [torch.randint(SIZES[kind], (count,), generator=rng) for kind in (src, dst)]
        )
        by_type[src, f"r{number}", dst] = ends
        edges.append(ends + torch.tensor([[first[src]], [first[dst]]]))
        relation.append(torch.full((count,), number))
    order = torch.randperm(4 * num_edges, generator=rng)
    return torch.cat(edges, 1)[:, order], torch.cat(relation)[order], by_type


def copy(theirs: pyg.HGTConv, ours: HGTConv) -> None:
    """Give our layer the weights of PyG's."""
    num_relations, width = len(KINDS), CHANNELS // HEADS
    with torch.no_grad():
        for mine, other in ((ours.kqv_lin, theirs.kqv_lin), (ours.out_lin, theirs.out_lin)):
            for number, name in enumerate(SIZES):
                mine.weight[number] = other.lins[name].weight.t()
                mine.bias[number] = other.lins[name].bias
        for mine, other in ((ours.k_rel, theirs.k_rel), (ours.v_rel, theirs.v_rel)):
            mine.copy_(other.weight.view(HEADS, num_relations, width, width).transpose(0, 1))
        for number, (src, dst) in enumerate(KINDS):
            ours.p_rel[number] = theirs.p_rel[f"{src}__r{number}__{dst}"][0]
        for number, name in enumerate(SIZES):
            ours.skip[number] = theirs.skip[name]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kernel", ["fused", "reference"])
@pytest.mark.parametrize("num_edges", [9, 400], ids=["thin", "many edges"])
@pytest.mark.parametrize("in_channels", [CHANNELS, 6], ids=["skip", "no skip"])
def test_output_and_gradients_are_those_of_pygs_layer(kernel, num_edges, in_channels):
    torch.manual_seed(0)
    edges, relation, by_type = typed_edges(num_edges)
    theirs = pyg.HGTConv(in_channels, CHANNELS, (list(SIZES), list(by_type)), HEADS).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter))
    ours = HGTConv(in_channels, CHANNELS, 3, len(KINDS), HEADS, kernel=kernel)
    ours = ours.double() if kernel == "reference" else ours
    copy(theirs, ours)
    x = torch.randn(22, in_channels, dtype=torch.float64)
    parts = {
        name: part.requires_grad_() for name, part in zip(SIZES, x.split(list(SIZES.values())))
    }
    expected = theirs(parts, by_type)
    expected = torch.cat([expected["a"], expected["b"]])
    grad_x = torch.autograd.grad(
        expected.square().sum(),
        [*parts.values(), theirs.k_rel.weight, theirs.v_rel.weight, *theirs.p_rel.values()],
    )
    mine = x.to(ours.skip.dtype).requires_grad_()
    types = NodeTypes.of(torch.arange(3).repeat_interleave(torch.tensor(list(SIZES.values()))), 3)
    out = ours(mine, Relations(edges, relation, len(KINDS), 22, 22), types)[:18]
    found = torch.autograd.grad(out.square().sum(), [mine, ours.k_rel, ours.v_rel, ours.p_rel])
    wanted = [
        torch.cat(grad_x[:3]),
        *(grad.view(HEADS, len(KINDS), 4, 4).transpose(0, 1) for grad in grad_x[3:5]),
        torch.cat(grad_x[5:]),
    ]
    tolerance = 1e-10 if kernel == "reference" else 1e-4
    for ours_, theirs_ in zip([out, *found], [expected, *wanted], strict=True):
        assert (ours_.double() - theirs_).abs().max() <= tolerance * theirs_.abs().max()


def test_a_single_type_needs_no_types():
    layer, (edges, relation, _) = HGTConv(6, CHANNELS, 1, 5, HEADS), typed_edges(30)
    relations, x = Relations(edges, relation, 5, 22, 22), torch.randn(22, 6)
    types = NodeTypes.of(torch.zeros(22, dtype=torch.int64), 1)
    torch.testing.assert_close(layer(x, relations), layer(x, relations, types))


def test_heads_must_divide_the_channels():
    with pytest.raises(ValueError, match="^heads=3 does not divide 16 channels"):
        HGTConv(16, 16, 1, 1, 3)


@pytest.mark.parametrize("types", [[2, 0, 2, 2, 0], [0, 0, 2, 2, 2]])
def test_typed_linear_maps_each_node_by_its_type(types):
    lin, x = TypedLinear(3, 5, 4), torch.randn(5, 5)
    expected = torch.stack(
        [row @ lin.weight[number] + lin.bias[number] for row, number in zip(x, types)]
    )
    out = lin(x, NodeTypes.of(torch.tensor(types), 3))
    torch.testing.assert_close(out, expected)
    grads = [
        torch.autograd.grad(result.square().sum(), lin.parameters()) for result in (out, expected)
    ]
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted)
