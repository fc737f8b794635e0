"""Exports a run: a file of its own for this package (.pe), or its network as a program of torch."""

import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data.column_names import Channel
from parallel_epochs.pipeline.gnn.base import fusion
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.command import open_run, predict as save_predictions
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.programs import Program, write
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Nodes, at most, of the part of a graph on which a program is compared with its network.
MOST_NODES = 2000
# Nodes and edges of the graph that a program is traced with.
TRACED = 7, 11
# Sizes that vary, of each input.
SIZES = {
    "x": {0: "nodes"},
    "edge_index": {1: "edges"},
    "edge_attr": {0: "edges"},
    "ptr": {0: "graphs + 1"},
    "pairs": {0: "pairs"},
}
# Name and meaning of what a network returns.
RETURNED = {
    "classes": ("logits", "the softmax of a row holds the probabilities of the classes"),
    "binary tasks": ("logits", "the sigmoid of a number is the probability of 1 in its task"),
    "real values": ("values", "the values, in the unit of the labels"),
    "links": ("logits", "the sigmoid of a number is the probability of a link"),
}


def predict(run: SavedRun[GNNConfig], wanted: GNNPredictConfig) -> None:
    """Export a run if that is asked for, and save its predictions; see :func:`pipeline.gnn.predict.command.predict`."""
    if wanted.export is not None:
        export(run, Path(wanted.export), wanted)
    if wanted.export is None or wanted.predictions is not None or wanted.output is not None:
        save_predictions(run, wanted)


def export(run: SavedRun[GNNConfig], path: Path, asked: GNNPredictConfig | None = None) -> None:
    """Write a model to one file, without its data; the end of the file's name chooses what.

    Args:
        asked: names the data on which a program is compared with its network, if not those of the run.

    Raises:
        ValueError: the model cannot be exported, and the message says why.
    """
    if path.suffix != ".pt2":
        new_data.export(run, path)
        return
    if (share := fusion.share_of(run)) == 1:
        raise ValueError(
            f"export={path}: {run.folder} answers by its simple method alone, and a program holds the "
            "network alone. A file that ends with .pe holds both"
        )
    wanted = GNNPredictConfig(str(run.folder))
    wanted.data = wanted.data if asked is None else asked.data
    setup, dataset, *_ = open_run(run, wanted)
    network = setup.kind.network(setup.model.cpu(), setup.task)
    given, notes = setup.inputs(), _differences(setup, share)
    if setup.kind.takes_pairs:
        given.pairs = torch.from_numpy(
            stream("program", 0).integers(given.num_nodes, size=(100, 2))
        )
    checks = _part_of(given)
    inputs = {name: tensor for name, tensor in checks.items() if name in SIZES}
    output = RETURNED[setup.task.kind][0]
    if share:
        output = f"network_{output}"
    write(
        path,
        Program(
            _title(setup),
            network,
            _traced(inputs),
            {name: SIZES[name] for name in inputs},
            inputs,
            _describe(setup, dataset, inputs, output, notes),
        ),
    )
    for note in notes:
        log.warning("%s: %s", path, note)


def _as_columns(channels: list[Channel]) -> list[dict[str, Any]]:
    """Describe columns of ``x``: the column of the user, the value that is 1, or the mean and deviation of numbers."""
    return [
        {"column": own.column}
        | ({} if own.text is None else {"value": own.text})
        | ({} if own.scale is None else {"mean": own.shift, "std": own.scale})
        for own in channels
    ]


def _title(setup: Setup) -> str:
    encoder = setup.kind.encoder(setup.model)
    return str(getattr(encoder, "title", type(encoder).__name__))


def _differences(setup: Setup, share: float) -> list[str]:
    """Say why the answers of a run are not those of its network alone, if they are not."""
    found = []
    if share:
        found.append(
            f"the run answers by a mixture of its network and a simple method, whose share is {share:g}. The "
            "simple method is not in the program, so its output is called network_logits or network_values"
        )
    evaluation = setup.config.evaluation
    if setup.kind.is_one_graph and not evaluation.is_exact:
        found.append(
            f"the run predicts by evaluation={evaluation.method}, a part of the graph at a time. The "
            "program reads the graph that it is given at once, as evaluation=exact does"
        )
    return found


def _part_of(given: Data) -> dict[str, Tensor]:
    """Return the inputs of a network; of a large graph those of the first nodes, or of the first graphs.

    They are plain and contiguous, since a compiled program reads their memory.
    """
    inputs = {
        name: plain_edges(tensor).contiguous()
        for name, tensor in given.to_dict().items()
        if isinstance(tensor, Tensor)
    }
    count = min(len(inputs["x"]), MOST_NODES)
    if "ptr" in inputs:
        ptr = inputs["ptr"]
        inputs["ptr"] = ptr[: max(2, int(torch.searchsorted(ptr, count, right=True)))]
        count = int(inputs["ptr"][-1])
    nodes, edge_attr = torch.arange(count), inputs.get("edge_attr")
    inputs["edge_index"], kept = subgraph(
        nodes, inputs["edge_index"], edge_attr, num_nodes=len(inputs["x"])
    )
    inputs["x"] = inputs["x"][:count]
    if kept is not None:
        inputs["edge_attr"] = kept
    if "pairs" in inputs:
        inputs["pairs"] = inputs["pairs"] % count
    return inputs


def _traced(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make a small graph like another. A program of torch holds it, so it has nothing of the training data."""
    nodes, edges = TRACED
    found = {
        "edge_index": torch.arange(2 * edges).view(2, edges) * 5 % nodes,
        "ptr": torch.tensor([0, 3, nodes]),
        "pairs": torch.tensor([[0, 1], [2, 3], [1, 5]]),
    }
    rows = {"edge_attr": edges, "x": nodes}
    return {
        name: tensor.new_zeros(rows[name], *tensor.shape[1:]) if name in rows else found[name]
        for name, tensor in inputs.items()
    }


def _describe(
    setup: Setup,
    dataset: Data,
    inputs: dict[str, Tensor],
    output: str,
    notes: list[str],
) -> dict[str, Any]:
    """Describe a program, as JSON can hold it."""
    task = setup.task
    columns = [] if setup.kind.takes_pairs else [task.out_channels]
    described: dict[str, dict[str, Any]] = {
        name: {
            "shape": [SIZES[name].get(dim, size) for dim, size in enumerate(tensor.shape)],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for name, tensor in inputs.items()
    }
    channels = setup.channels(inputs["x"].size(1))
    described["x"]["columns"] = {
        name: _as_columns(own) for name, own in zip(setup.data.types.names, channels)
    }
    return {
        "format": 1,
        "versions": {
            name: metadata.version(name) for name in ("parallel-epochs", "torch", "torch_geometric")
        },
        "model": {"name": setup.config.model.name, "title": _title(setup)},
        "task": {"predicts": setup.kind.unit, "labels": task.kind, "metric": task.metric},
        "classes": labels_of(dataset, task.out_channels) if columns else None,
        "inputs": described,
        "output": {
            "name": output,
            "shape": [setup.kind.unit, *columns],
            "meaning": RETURNED[task.kind][1],
        },
        "not_in_the_program": notes,
    }
