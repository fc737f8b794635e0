"""Predictions for graphs in memory, by the ways of those in files."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.data.objects import attributes_of
from parallel_epochs.pipeline.gnn.new_data import Others
from parallel_epochs.pipeline.run.saved import SavedRun


def predict_in_memory(run: SavedRun, data: Any, pairs: Any) -> tuple[Tensor, str]:
    """Predict rows with a trained model.

    Args:
        data: what :func:`attributes_of` takes, a list of SMILES or of graphs, a path; none for the data of the
            training.
        pairs: of nodes, for models of links [num_pairs, 2]; none for others.

    Returns:
        Logits or values [num_rows, columns], of links [num_pairs]; and the kind of the labels, see
        :data:`pipeline.metrics.KINDS`.

    Raises:
        ValueError: the data are not like those of the training, or `pairs` does not fit the model.
    """
    from parallel_epochs.pipeline.gnn.predictions import Asked, restore  # which imports this module
    if run.config.predicts_links != (pairs is not None):
        raise ValueError("pairs= is for models of links (task=link)" if pairs is not None else
                         "this model predicts links: name the pairs of nodes by pairs=")
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked() if data is None else Asked(data=_name(data, run, Path(folder)))
        restored = restore(run, asked)
        task = restored.setup.task
        if pairs is not None:
            pairs = torch.as_tensor(pairs)
            task.check_pairs(pairs)
        found = task.predictions(restored.setup.model, restored.rows, pairs)
    return found["values" if "values" in found else "logits"], getattr(task, "kind", "binary tasks")


def _name(data: Any, run: SavedRun, folder: Path) -> Others:
    """Name the files of data, which are written into a folder if they are in memory."""
    if isinstance(data, (str, Path)):
        return Others(folder=str(data)) if Path(data).is_dir() else Others(path=str(data))
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, str) for item in data):
        path = folder / "molecules.csv"
        path.write_text("\n".join([getattr(run.config.data, "smiles_column", "smiles"), *data, ""]))
        return Others(path=str(path))
    if isinstance(data, (list, tuple)):
        for number, graph in enumerate(data):
            torch.save(attributes_of(graph), folder / f"{number}.pt")
        return Others(folder=str(folder))
    if (source := run.config.data.source) != "file":
        raise ValueError(f"{run.folder} was trained on data={source}: give a path, or a list of SMILES or of graphs")
    torch.save(attributes_of(data), folder / "graph.pt")
    return Others(path=str(folder / "graph.pt"))
