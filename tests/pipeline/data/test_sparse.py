"""Sparse node features: the graph is that of the dense ones; matrices that are none are refused."""

import resource
import warnings

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data import cache, sparse
from parallel_epochs.pipeline.data.config import FileConfig
from tests.helpers.running import forked, status_of

DENSE = torch.tensor([[0, 1.5, 0], [0, 0, 0], [-2, 0, 3], [0, 0, 1]])
PLACES = torch.tensor([[2, 0, 3, 2, 2], [0, 1, 2, 2, 0]])  # in no order, and one of them twice
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])


def coo(values: Tensor, num_columns: int) -> Tensor:
    return torch.sparse_coo_tensor(PLACES, values, (4, num_columns), check_invariants=True)


def load(folder, x: Tensor, *, on_disk: bool = False, **attributes) -> Data:
    torch.save(Data(x=x, edge_index=EDGES, num_nodes=4, **attributes), folder / "graph.pt")
    return cache.load(FileConfig(path=str(folder / "graph.pt"), on_disk=on_disk), folder / "cache")


def compressed(layout: torch.layout, **options) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DENSE.to_sparse(layout=layout, **options)


@pytest.mark.parametrize(
    "x",
    [
        coo(torch.tensor([-1, 1.5, 1, 3, -1]), 3),
        compressed(torch.sparse_csr),
        compressed(torch.sparse_csc),
        compressed(torch.sparse_bsr, blocksize=(2, 1)),
        DENSE.double().to_sparse(),
    ],
    ids=["coo", "csr", "csc", "bsr", "double"],
)
def test_the_graph_is_that_of_dense_features(tmp_path, monkeypatch, x):
    monkeypatch.setattr(sparse, "BLOCK", 24)  # two rows
    data = load(tmp_path, x)
    assert (
        torch.equal(data.x, DENSE)
        and data.x.dtype == torch.float32
        and not list(tmp_path.glob("cache/*.*"))
    )


def outside(layout: torch.layout) -> Tensor:
    """A matrix that names a column it does not have, at an address that is none of the process's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if layout == torch.sparse_coo:
            return torch.sparse_coo_tensor(
                torch.tensor([[3], [1 << 40]]), torch.ones(1), (4, 3), check_invariants=False
            )
        ptr, other = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([1 << 40])
        return torch.sparse_compressed_tensor(
            ptr[: 5 if layout == torch.sparse_csr else 4],
            other,
            torch.ones(1),
            (4, 3),
            layout=layout,
            check_invariants=False,
        )


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            outside(torch.sparse_coo),
            "x is no sparse matrix that can be read: .*index 1099511627776",
        ),
        (outside(torch.sparse_csr), "x is no sparse matrix that can be read: .*col_indices"),
        (outside(torch.sparse_csc), "x is no sparse matrix that can be read: "),
        (DENSE.to_sparse(1), "x is sparse in 1 of 2 dimensions; .*: save x.to_dense"),
        ((DENSE * 1j).to_sparse(), "x holds complex numbers"),
        (DENSE[:3].to_sparse(), "num_nodes is 4, but x has 3 rows"),
        ((DENSE * 3e38).to_sparse(), "x is not finite: row 0, column 1 holds inf"),
        (
            (DENSE.double() * 1e300).to_sparse(),
            "x is not finite in float32, .*: row 0, column 1 holds 1.5e.300",
        ),
        (
            coo(torch.ones(5), 1 << 50),
            r"graph.pt: x is sparse, 4 numbers of 4 nodes x "
            r"1,125,899,906,842,624 columns, .* dense: cache_dir needs twice as much .* TruncatedSVD",
        ),
    ],
    ids=[
        "coo",
        "csr",
        "csc",
        "hybrid",
        "complex",
        "rows",
        "infinite",
        "beyond",
        "wide",
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, x, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, x)


def test_our_check_comes_before_that_of_torch(tmp_path):
    """With invariants checked, every version of torch checks what it loads; since 2.14 it always does."""
    with (
        torch.sparse.check_sparse_tensor_invariants(),
        pytest.raises(ValueError, match="x is no sparse matrix"),
    ):
        load(tmp_path, outside(torch.sparse_coo))


def test_a_disk_that_holds_the_rows_once_is_refused(tmp_path, monkeypatch):
    """The rows are written twice: to a file without a name, and to the graph that is kept."""
    monkeypatch.setattr(sparse, "free_space", lambda folder: 96)
    assert torch.equal(sparse.densify(DENSE.to_sparse(), tmp_path, "g"), DENSE)
    monkeypatch.setattr(sparse, "free_space", lambda folder: 95)
    with pytest.raises(
        ValueError, match="48 B dense: cache_dir needs twice as much .* its disk has 95 B"
    ):
        sparse.densify(DENSE.to_sparse(), tmp_path, "g")


def densify_in_little_memory(folder) -> None:
    """Make 80 MB of rows, in a process that may allocate 20 MB."""
    x = torch.eye(1000).to_sparse()
    tall = torch.sparse_coo_tensor(
        x.indices() * torch.tensor([[20], [1]]), x.values(), (20_000, 1000), check_invariants=True
    ).coalesce()
    data = next(
        int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")
    )
    resource.setrlimit(resource.RLIMIT_DATA, ((data << 10) + 20_000_000,) * 2)
    dense = sparse.densify(tall, folder, "g")
    assert dense[40, 2] == 1 and dense[41, 2] == 0 and dense.sum() == 1000


def test_dense_rows_take_no_memory(tmp_path):
    assert status_of(forked(densify_in_little_memory, tmp_path)) == 0


class SparseTensor:
    """A class of the name that torch_sparse gives its matrices."""
