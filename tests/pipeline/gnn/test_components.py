"""A model for each component: whose model predicts which node."""

import types

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn import components
from parallel_epochs.pipeline.run.ranks import Ranks
from tests.helpers.graphs import random_graph


def test_nodes_of_no_component_with_a_model_are_predicted_by_the_largest_ones(
    monkeypatch, tmp_path
):
    """The model of component n predicts n for every node; of ten nodes three have none of their own."""
    data = random_graph(10, 20, 0)
    data.out_channels = 1
    parts = [
        types.SimpleNamespace(
            number=number,
            device=torch.device("cpu"),
            data=Data(n_id=torch.arange(number - 1, 7, 2), num_nodes=5 - number),
        )
        for number in (1, 2)
    ]
    seen = {}
    monkeypatch.setattr(
        components,
        "predict_part",
        lambda setup, folder: (
            torch.full((len(setup.data.n_id), 1), float(setup.number)),
            setup.number,
        ),
    )
    monkeypatch.setattr(
        components,
        "predict_exact",
        lambda predict, small, *, num_rows, **_: torch.full((num_rows, 1), float(predict)),
    )
    task = types.SimpleNamespace(
        scores=lambda model, rows: (
            seen.update(rows=rows) or {"train": 0.1, "valid": 0.2, "test": 0.3}
        )
    )
    monkeypatch.setattr(
        components, "kind_of", lambda config: types.SimpleNamespace(task=lambda data: task)
    )
    summary = {
        "best_epoch": 1,
        "best_valid": 0.5,
        "test": 0.5,
        "weights_sha256": "",
        "num_parameters": 3,
        "wall_seconds": 2.0,
        "data_epochs": 4,
        "peak_memory_bytes": 5,
    }
    opened = types.SimpleNamespace(data=data, parts=parts, config=None)

    def train_one(setup, folder):
        return {**summary, "data_epochs": 4 + setup.number, "peak_memory_bytes": 10 - setup.number}

    found = components.train_components(train_one, opened, tmp_path)
    assert seen["rows"].flatten().tolist() == [1, 2, 1, 2, 1, 2, 1, 1, 1, 1]
    assert (found["train"], found["best_valid"], found["test"]) == (0.1, 0.2, 0.3)
    assert (
        found["num_parameters"],
        found["wall_seconds"],
        found["data_epochs"],
        found["peak_memory_bytes"],
    ) == (6, 4.0, 6, 9)
    assert components.train_components(train_one, opened, tmp_path, ranks=Ranks(1, 2)) == {}
