"""Graphs of 2**31 edges and more, which nobody can hold in a test: one row of a tensor, seen as often as it takes."""

import pytest
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import (
    INT32_END,
    check_int32,
    choose_dtype,
    compress,
    from_csc,
)
from parallel_epochs.models.structure import find_structure
from parallel_epochs.pipeline.graph import metis, structure
from tests.helpers.shapes import unchecked


def edges(num_edges: int, dtype=torch.int32) -> torch.Tensor:
    """As many edges from node 0 to itself, in a few bytes."""
    return torch.zeros(2, 1, dtype=dtype).expand(2, num_edges)


@pytest.mark.parametrize(
    "call",
    [
        lambda many: from_csc(many, torch.zeros(3, dtype=torch.int64)),
        lambda many: find_structure(many, 1, 1, by_source=True),
        check_int32,
    ],
)
def test_too_many_edges_for_int32_are_refused(call):
    with pytest.raises(
        ValueError,
        match="edge_index is int32, which cannot count to 2,147,483,648, .*: make it int64",
    ):
        call(edges(INT32_END))


def test_sorted_edges_of_too_many_are_refused(monkeypatch):
    many = EdgeIndex(torch.zeros(2, 5, dtype=torch.int32), sparse_size=(1, 1), sort_order="col")
    # PyG's class takes no tensor that is expanded.
    monkeypatch.setattr("parallel_epochs.models.edge_index.INT32_END", 5)
    with pytest.raises(ValueError, match="edge_index is int32, which cannot count to 5"):
        compress(many, by="col")


def test_too_many_nodes_for_int32_are_refused():
    with pytest.raises(ValueError, match="cannot count to 3,000,000,000"):
        check_int32(edges(5), 3_000_000_000)
    check_int32(edges(INT32_END - 1), INT32_END - 1)
    check_int32(edges(INT32_END, torch.int64), INT32_END)
    assert (
        choose_dtype(INT32_END - 1, 3) == torch.int32 and choose_dtype(3, INT32_END) == torch.int64
    )


def test_metis_refuses_what_it_cannot_count():
    with pytest.raises(
        ValueError, match="METIS counts in int32, but the graph has .* Set partition=random"
    ):
        metis.check_counts(5, INT32_END)
    metis.check_counts(5, INT32_END - 1)


def test_a_digest_does_not_cut_numbers_off(monkeypatch):
    indptr, src = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    narrow = structure.hash_structure(from_csc(torch.stack([src, src]), indptr))
    monkeypatch.setattr(structure, "choose_dtype", lambda *counts: torch.int64)
    shifted = from_csc(torch.stack([src + 2**32, src]), indptr)
    with unchecked():
        assert (
            len(
                {
                    narrow,
                    structure.hash_structure(shifted),
                    structure.hash_structure(from_csc(torch.stack([src, src]), indptr)),
                }
            )
            == 3
        )
