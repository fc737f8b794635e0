"""`data=file` opens what PyG's transforms, containers and ogb leave in a file."""

import warnings

import pytest
import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from parallel_epochs.pipeline.data import file


def graph() -> Data:
    ends = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    return Data(x=torch.rand(6, 3), edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.arange(6) % 2,
                pos=torch.rand(6, 3), norm=torch.rand(6, 3), edge_attr=torch.rand(14, 1))


def transformed(name: str) -> object:
    """Apply a transform with its defaults; None if it needs arguments, packages, or another graph."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return getattr(T, name)()(graph())
    except (TypeError, ValueError, ImportError, AttributeError, RuntimeError, AssertionError, IndexError):
        return None


def asked_for_kinds() -> Data:
    data = graph()
    assert data.is_node_attr("x") and data.is_edge_attr("edge_attr") and "y" in data.node_attrs()
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a", "to", "a"].edge_index = torch.rand(3, 2), torch.tensor([[0, 1], [1, 2]])
    data["a"].node_attrs()
    return T.ToUndirected()(data)


OBJECTS = {
    **{name: found for name in T.__all__ if (found := transformed(name)) is not None},
    "attributes by kind": asked_for_kinds(), "HeteroData": typed(), "dict": graph().to_dict(),
    "EdgeIndex": Data(x=torch.rand(2, 1), edge_index=EdgeIndex(
        [[0, 1], [1, 0]], sparse_size=(2, 2), sort_order="row").fill_cache_()),
    "InMemoryDataset": InMemoryDataset.collate([graph()]), "InMemoryDataset, saved by ogb": (graph(), None)}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_pyg_and_ogb_save_is_opened(name, tmp_path):
    torch.save(OBJECTS[name], tmp_path / "graph.pt")
    loaded, saved = file._load(tmp_path / "graph.pt"), OBJECTS[name]
    assert type(loaded) is type(saved)
    if isinstance(saved, Data):
        assert loaded.to_dict().keys() == saved.to_dict().keys()
        assert all(torch.equal(loaded[key], value) for key, value in saved.to_dict().items()
                   if isinstance(value, Tensor) and value.layout == torch.strided)


def test_most_transforms_are_tried():
    assert len(OBJECTS) > 30


@pytest.mark.parametrize("name", ["ToUndirected", "attributes by kind", "EdgeIndex", "InMemoryDataset, saved by ogb"])
def test_its_graph_is_read(name, tmp_path):
    torch.save(OBJECTS[name], tmp_path / "graph.pt")
    data = file.read(tmp_path / "graph.pt", needs_labels=False)
    assert data.x.size(0) == data.num_nodes and data.edge_index.size(0) == 2


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_another_pickle_protocol_is_read_or_named(protocol, tmp_path):
    torch.save((graph(), None), tmp_path / "graph.pt", pickle_protocol=protocol)
    if protocol == 3:
        assert file.read(tmp_path / "graph.pt", needs_labels=False).num_nodes == 6
    else:
        with pytest.raises(ValueError, match=r"another pickle protocol than 2.*save it again by torch.save\(data"):
            file.read(tmp_path / "graph.pt", needs_labels=False)
