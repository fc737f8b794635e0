import re

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import compress, fill_csr, flip, from_csc
from tests.helpers.running import ROOT

EDGES = torch.tensor([[2, 0, 1, 3, 0], [0, 1, 1, 1, 2]])  # 4 sources, 3 destinations


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_filled_orders_are_pygs(dtype):
    edge_index = from_csc(EDGES.to(dtype), torch.tensor([0, 1, 4, 5]), num_src=4)
    perm = torch.tensor([1, 4, 2, 0, 3], dtype=dtype)
    src, dst = EDGES.to(dtype)[:, perm]
    rowptr = torch.tensor([0, 2, 3, 4, 5], dtype=dtype)
    assert fill_csr(edge_index, perm=perm, src=src, dst=dst, rowptr=rowptr) is edge_index
    edge_index.validate()
    theirs = EdgeIndex(EDGES.to(dtype), sparse_size=(4, 3), sort_order="col")
    for by in ("col", "row"):
        pairs = zip(
            _flatten(compress(edge_index, by=by)), _flatten(compress(theirs, by=by)), strict=True
        )
        for ours, expected in pairs:
            assert expected is None and ours is None or torch.equal(ours, expected.to(ours.dtype))
        assert compress(edge_index, by=by)[0][0].dtype == dtype


@pytest.mark.parametrize("filled", [True, False])
def test_flipped_edges_keep_their_orders(filled):
    edge_index = from_csc(EDGES, torch.tensor([0, 1, 4, 5]), num_src=4)
    if filled:
        perm = torch.tensor([1, 4, 2, 0, 3])
        src, dst = EDGES[:, perm]
        fill_csr(edge_index, perm=perm, src=src, dst=dst, rowptr=torch.tensor([0, 2, 3, 4, 5]))
    theirs = EdgeIndex(EDGES.flip(0), sparse_size=(3, 4), sort_order="row")
    for ours in (flip(edge_index), flip(flip(flip(edge_index)))):
        ours.validate()
        assert torch.equal(ours.as_tensor(), theirs.as_tensor()) and ours.sparse_size() == (3, 4)
        for by in ("col", "row"):
            for mine, expected in zip(
                _flatten(compress(ours, by=by)), _flatten(compress(theirs, by=by)), strict=True
            ):
                assert expected is None and mine is None or torch.equal(mine, expected)
    assert torch.equal(flip(EDGES), EDGES.flip(0))


def _flatten(compressed):
    (indptr, nodes), perm = compressed
    return indptr, nodes, perm


@pytest.mark.parametrize("order, by", [("col", "row"), ("row", "col"), ("col", "col")])
def test_ends_that_are_not_in_the_graph_are_refused_before_pointers_are_made(order, by):
    edges = torch.tensor([[0, 1, 9_000_000], [0, 1, 9_000_000]])
    side = 1 if by == "col" else 0
    with pytest.raises(
        IndexError,
        match=rf"edge_index\[{side}\] has values from 0 to 9000000, but there are 3 such",
    ):
        compress(EdgeIndex(edges, sparse_size=(3, 3), sort_order=order), by=by)


def test_one_file_knows_the_private_fields_of_edge_index():
    private = re.compile(r"\._(indptr|T_perm|T_index|T_indptr)\b")
    files = [
        file.name for file in (ROOT / "models").rglob("*.py") if private.search(file.read_text())
    ]
    assert files == ["edge_index.py"]
