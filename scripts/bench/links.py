"""Hits@K of a link recipe, compared with common neighbours and with the same model of PyG's modules."""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models import LinkModel
from parallel_epochs.models.networks.common_neighbors import CommonNeighbors, Neighborhoods
from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.pair_scores import COUNTS
from parallel_epochs.pipeline.gnn.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.metrics import link_metric
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import seed_torch
from parallel_epochs.scripts.bench.measure import assert_close, configure, say, write_row
from parallel_epochs.scripts.bench.pyg_model import PyGBlocks

# Scores of pairs without training, which the models are compared with.
HEURISTICS = {name: COUNTS[name] for name in ("common neighbours", "resource allocation")}


def bench_links(
    folder: str,
    epochs: int = 1,
    num_parts: int = 64,
    pairs_per_step: int = 4096,
    seeds: int = 3,
    cache_dir: str = ".cache",
) -> None:
    """Measure Hits@50 of the ogbl-collab recipe, of common neighbours and of PyG's modules.

    Our model and PyG's begin with the same weights and train on the same batches.

    Args:
        folder: link dataset in OGB's raw layout.
        pairs_per_step: number of training pairs of a step.
        cache_dir: folder of prepared graphs.

    Raises:
        SystemExit: the first outputs of the two models differ, so nothing is trained.
        ValueError: there is no link dataset in `folder`.
    """
    whole = num_parts == 1
    config = configure(
        "+experiment=ogbl_collab",
        f"data.folder={folder}",
        f"partition={'whole' if whole else 'metis'}",
        f"partition.num_parts={num_parts}",
        f"task.pairs_per_step={pairs_per_step}",
        f"cache_dir={cache_dir}",
    )
    data = training.open_data(config).data
    for name, count in HEURISTICS.items():
        for more, graph in (
            ("", data),
            (", validation edges in the test graph", _with_valid_edges(data)),
        ):
            start = time.process_time()
            scores = {
                split: _rank(data, split, count, graph if split == "test" else data)
                for split in ("valid", "test")
            }
            _write(name + more, 0, 0, time.process_time() - start, scores)
    for seed in range(seeds):
        config.seed = seed
        ours = _build(config, data)
        theirs = _build(config, data)
        theirs.encoder = PyGBlocks(theirs.encoder)
        if seed == 0:
            _compare(ours, theirs, data)
        for name, model in (("ours", ours), ("PyG's modules", theirs)):
            start = time.process_time()
            num_steps = _train(model, config, data, epochs)
            seconds = time.process_time() - start
            _write(name, seed, num_steps, seconds, _evaluate(model, config, data))


def _build(config: GNNConfig, data: Data) -> LinkModel:
    return Setup(config, data, torch.device("cpu")).model  # type: ignore[return-value]


def _compare(ours: LinkModel, theirs: LinkModel, data: Data) -> None:
    edge_index = data.edge_index.as_tensor().long()
    with torch.no_grad():
        assert_close(
            {"embeddings": ours.train()(data.x, data.edge_index)},
            {"embeddings": theirs.train()(data.x, edge_index)},
            tolerance=1e-3,
        )
    say("outputs compared: both models compute the same embeddings")


def _train(model: LinkModel, config: GNNConfig, data: Data, epochs: int) -> int:
    """Train as the recipe says; returns the number of steps."""
    setup = Setup(config, data, torch.device("cpu"))
    task, loader = setup.task, setup.loader
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.lr, fused=True)
    for epoch in range(epochs):
        model.train()
        for step, batch in enumerate(loader.batches(epoch, Share())):
            optimizer.zero_grad()
            total, count = task.loss(
                model, batch, seed_torch("dropout", config.seed, epoch, step, 0)
            )
            (total / count.clamp(min=1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_grad_norm)
            optimizer.step()
    return epochs * loader.num_batches


def _evaluate(model: LinkModel, config: GNNConfig, data: Data) -> dict[str, float]:
    setup = Setup(config, data, torch.device("cpu"))
    setup.model = model
    return setup.task.scores(model, build_predictor(setup)(0))


def _with_valid_edges(data: Data) -> Data:
    return LinkTask(data, hidden_channels=1, valid_edges=True).test_data  # type: ignore[return-value]


def _rank(data: Data, split: str, count: Callable[[CommonNeighbors], Tensor], graph: Data) -> float:
    """Rank the pairs of a split by the neighbours that their nodes share in a graph."""
    neighborhoods = Neighborhoods.of(graph.edge_index, data.num_nodes)
    return link_metric(
        data.metric,
        *(
            count(neighborhoods.common(data[key]))
            for key in (f"{split}_pairs", f"{split}_negatives")
        ),
    )


def _write(name: str, seed: int, num_steps: int, seconds: float, scores: dict[str, float]) -> None:
    say(
        f"{name}, seed {seed}: valid {scores['valid']:.4f}, test {scores['test']:.4f} after {num_steps} steps, "
        f"{seconds:.1f} s of processor time"
    )
    write_row(
        {
            "bench": "links",
            "model": name,
            "seed": seed,
            "steps": num_steps,
            "processor_s": round(seconds, 1),
            "valid": round(scores["valid"], 4),
            "test": round(scores["test"], 4),
        }
    )
