"""What a dataset is, told by what its readers write."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import (
    DigitsConfig,
    FileConfig,
    GraphFilesConfig,
    MathConfig,
    OGBGraphConfig,
    OGBLinkConfig,
    VectorsConfig,
)
from parallel_epochs.pipeline.data.graph import DataKind
from tests.helpers.files import write_links
from tests.helpers.graph_toys import write_graphs


def write_files(folder: Path) -> Path:
    """Write graphs whose nodes have numbers, no categories."""
    for number in range(10):
        torch.save(
            Data(
                x=torch.rand(3, 2),
                edge_index=torch.tensor([[0, 1], [1, 2]]),
                y=torch.tensor(number % 2),
            ),
            folder / f"{number}.pt",
        )
    return folder


@pytest.mark.parametrize(
    "kind, config_of",
    [
        (DataKind.GRAPH, lambda path: DigitsConfig()),
        (DataKind.TRIPLES, lambda path: MathConfig(num_train=100)),
        (DataKind.GRAPHS, lambda path: OGBGraphConfig(folder=str(write_graphs(path)))),
        (DataKind.GRAPHS, lambda path: GraphFilesConfig(folder=str(write_files(path)))),
        (DataKind.PAIRS, lambda path: OGBLinkConfig(folder=str(write_links(path)))),
        (DataKind.VECTORS, lambda path: VectorsConfig(path=str(path / "x.csv"))),
    ],
)
def test_a_dataset_is_what_its_reader_says(kind, config_of, tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3,4\n5,7\n")
    config = config_of(tmp_path)
    assert load(config, tmp_path / "cache").kind is kind
    # A graph whose links are given is a graph by its configuration.
    assert config.holds == ("graph" if kind is DataKind.PAIRS else kind)


def test_links_that_are_made_of_edges_are_pairs(tmp_path):
    torch.save(
        Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 5, 3, 5]]), num_nodes=6),
        tmp_path / "graph.pt",
    )
    config = FileConfig(path=str(tmp_path / "graph.pt"), train_fraction=0.5, valid_fraction=0.2)
    assert load(config, tmp_path / "cache").kind is DataKind.GRAPH
    assert load_links(config, tmp_path / "cache").kind is DataKind.PAIRS
