"""`data=file` opens what PyG's transforms, containers and ogb leave in a file."""

import warnings

import pytest
import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.readers import saved_graph as file
from parallel_epochs.pipeline.names import MASKS


def graph() -> Data:
    ends = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    return Data(
        x=torch.rand(6, 3),
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        y=torch.arange(6) % 2,
        pos=torch.rand(6, 3),
        norm=torch.rand(6, 3),
        edge_attr=torch.rand(14, 1),
    )


def read(path, needs_labels: bool = True, **keys):
    return file.read(FileConfig(path=str(path), **keys), needs_labels)


def transformed(name: str) -> object:
    """Apply a transform with its defaults; None if it needs arguments, packages, or another graph."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return getattr(T, name)()(graph())
    except (
        TypeError,
        ValueError,
        ImportError,
        AttributeError,
        RuntimeError,
        AssertionError,
        IndexError,
    ):
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
    "attributes by kind": asked_for_kinds(),
    "HeteroData": typed(),
    "dict": graph().to_dict(),
    "EdgeIndex": Data(
        x=torch.rand(2, 1),
        edge_index=EdgeIndex([[0, 1], [1, 0]], sparse_size=(2, 2), sort_order="row").fill_cache_(),
    ),
    "InMemoryDataset": InMemoryDataset.collate([graph()]),
    "InMemoryDataset, saved by ogb": (graph(), None),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_pyg_and_ogb_save_is_opened(name, tmp_path):
    torch.save(OBJECTS[name], tmp_path / "graph.pt")
    loaded, saved = file._load(tmp_path / "graph.pt"), OBJECTS[name]
    assert type(loaded) is type(saved)
    if isinstance(saved, Data):
        assert loaded.to_dict().keys() == saved.to_dict().keys()
        assert all(
            torch.equal(loaded[key], value)
            for key, value in saved.to_dict().items()
            if isinstance(value, Tensor) and value.layout == torch.strided
        )


def test_most_transforms_are_tried():
    assert len(OBJECTS) > 30


@pytest.mark.parametrize(
    "name", ["ToUndirected", "attributes by kind", "EdgeIndex", "InMemoryDataset, saved by ogb"]
)
def test_its_graph_is_read(name, tmp_path):
    torch.save(OBJECTS[name], tmp_path / "graph.pt")
    data = read(tmp_path / "graph.pt", needs_labels=False)
    assert data.x.size(0) == data.num_nodes and data.edge_index.size(0) == 2


def test_a_column_of_masks_is_one_of_several_splits(tmp_path):
    data, masks = graph(), torch.eye(3, dtype=torch.bool).repeat(2, 1)
    data.update(dict(zip(MASKS, (masks, masks.roll(1, 1), masks.roll(2, 1)))))
    torch.save(data, tmp_path / "graph.pt")
    assert torch.equal(read(tmp_path / "graph.pt", mask_column=1).valid_mask, masks[:, 0])
    with pytest.raises(ValueError, match="has 3 columns.*data.mask_column=0 to 2"):
        read(tmp_path / "graph.pt", mask_column=3)


@pytest.mark.parametrize("protocol", [4, 5])
def test_another_pickle_protocol_is_named(protocol, tmp_path):
    """ogb saves what it has processed with protocol 4."""
    torch.save(graph().to_dict(), tmp_path / "graph.pt", pickle_protocol=protocol)
    with pytest.raises(ValueError, match="graph.pt has another pickle protocol than 2: load it in"):
        read(tmp_path / "graph.pt")


@pytest.mark.parametrize("weighted", [False, True])
def test_a_transposed_adjacency_matrix_stands_for_edges(weighted, tmp_path):
    data = graph()
    weights = {"edge_weight": data.edge_attr[:, 0]} if weighted else {}
    del data.edge_attr
    with warnings.catch_warnings(action="ignore"):
        transpose = T.ToSparseTensor(
            attr="edge_weight", layout=torch.sparse_csr
        )  # with torch_sparse too
        torch.save(transpose(Data(**data.to_dict(), **weights)), tmp_path / "adj_t.pt")
        torch.save(
            HeteroData(
                {
                    "a": {"num_nodes": 6},
                    ("a", "to", "a"): {
                        "adj_t": torch.load(tmp_path / "adj_t.pt", weights_only=False).adj_t
                    },
                }
            ),
            tmp_path / "typed.pt",
        )
    torch.save(Data(**data.to_dict(), **weights), tmp_path / "edges.pt")
    found, wanted = (read(tmp_path / name, needs_labels=False) for name in ("adj_t.pt", "edges.pt"))

    def weight_of(graph) -> dict:
        values = [1] * 14 if graph.edge_attr is None else graph.edge_attr[:, 0].tolist()
        return dict(zip(map(tuple, graph.edge_index.t().tolist()), values))

    assert weight_of(found) == weight_of(wanted) and (found.edge_attr is None) != weighted
    typed = read(tmp_path / "typed.pt", reverse_relations=False, needs_labels=False)
    assert weight_of(typed).keys() == weight_of(wanted).keys()
    torch.save({"x": data.x, "adj_t": torch.eye(6)}, tmp_path / "dense.pt")
    with pytest.raises(
        ValueError, match="there is no edge_index, and adj_t is .*, not a sparse tensor"
    ):
        read(tmp_path / "dense.pt")
