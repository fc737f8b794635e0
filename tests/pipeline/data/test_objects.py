"""Graphs of other libraries become attributes and files; one test for what no run would show."""

import io

import networkx
import pandas as pd
import pytest
import torch
from pyarrow import parquet

from parallel_epochs.pipeline.data import objects


@pytest.mark.parametrize(
    "edges, message",
    [
        ([(0, 1, {"weight": -1.5})], "the NetworkX graph: .*-1.5.*negative"),
        ([(0, 1, {"weight": "x"})], "the NetworkX graph"),
        ([(1, "1", {})], "two nodes that are called '1' as text"),
    ],
)
def test_networkx_is_refused_as_its_file_is(edges, message):
    with pytest.raises(ValueError, match=message):
        objects.attributes_of(networkx.Graph(edges))


def test_categories_of_pandas_are_their_values():
    plain = pd.DataFrame({"id": ["a", "b"], "kind": ["x", "y"]})
    found = parquet.read_table(
        io.BytesIO(objects._to_parquet(plain.astype({"kind": "category"}), "nodes"))
    )
    assert found.to_pandas().equals(plain) and "string" in str(found.schema.field("kind").type)


def test_sparse_tensors_with_the_same_values_elsewhere_are_other_data(tmp_path):
    def path_of(place):
        x = torch.sparse_coo_tensor(
            torch.tensor([[place], [0]]), torch.ones(1), (3, 1), check_invariants=True
        )
        return objects.keys_of({"edge_index": torch.tensor([[0], [1]]), "x": x}, tmp_path, {})[
            "data.path"
        ]

    assert path_of(0) == path_of(0) != path_of(1)
