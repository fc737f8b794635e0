"""From the configuration of trainer=layout to what places points in two or three dimensions."""

import io
import logging
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.embedding import layout, spectral
from parallel_epochs.models.embedding.layout import Drawn, LayoutOptions
from parallel_epochs.pipeline.block_training.open import describe_graph
from parallel_epochs.pipeline.data.join_types import edge_features
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.graph import neighbors, walks
from parallel_epochs.pipeline.graph.edges import check_weight, choose_weight, weight_matrix
from parallel_epochs.pipeline.graph.node_parts import (
    BlockEdges,
    NodeParts,
    deal_nodes,
    sort_into_blocks,
)
from parallel_epochs.pipeline.layout.config import LayoutConfig, LayoutTrainerConfig
from parallel_epochs.pipeline.layout.nearest import keep_neighbors
from parallel_epochs.pipeline.layout.probe import (
    LayoutProbe,
    compare_links,
    sample_links,
    sample_points,
    trust,
    vote,
)
from parallel_epochs.pipeline.layout.trainer import LayoutPlan, LayoutTrainer
from parallel_epochs.pipeline.metrics import VALUE_METRICS
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run import checkpoint, files
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Standard deviation of the first places along an axis, from which layouts grow, and of what tells equal ones apart.
SPREAD, JITTER = 0.1, 1e-4
# Characters of a name in layout.npz, at most.
LONGEST_NAME = 200
# Points for which trustworthiness is computed, always the same ones.
SCORED_POINTS = 2000
# Points of a partition, at least.
MIN_PART = 16


def check(config: LayoutConfig) -> None:
    """Refuse a machine that cannot place points or find their neighbours.

    Raises:
        ValueError: names what is missing.
    """
    walks.library()


def check_data(config: LayoutConfig, data: Data) -> None:
    """Refuse points that cannot be placed as asked for.

    Raises:
        ValueError: names the key.
    """
    options, num_points = config.trainer, data.num_nodes
    allowed = _metrics(data)
    if options.metric is not None and options.metric not in allowed:
        raise ValueError(
            f"trainer.metric={options.metric} cannot be computed for {config.data.origin()}: choose one "
            f"of {', '.join(allowed)}"
        )
    if data.edge_index is not None:
        if not bool((data.edge_index[0] != data.edge_index[1]).any()):
            raise ValueError(
                f"{config.data.origin()} has no edges between different nodes, but a layout of a graph "
                "needs some. Choose another dataset, or data=vectors"
            )
        check_weight(edge_features(data), config.data.origin())
        return
    if options.num_neighbors >= num_points:
        raise ValueError(
            f"trainer.num_neighbors={options.num_neighbors} must be less than the {num_points:,} points "
            f"of {config.data.origin()}: set it to {num_points - 1} at most, and trainer.perplexity to "
            "less"
        )
    neighbors.choose_search(num_points)


def _metrics(data: Data) -> list[str]:
    """List the metrics that can be computed, the first being that of the run."""
    classes = classes_of(data)
    return [
        *(["knn_acc"] if classes is not None and (classes >= 0).sum() > 1 else []),
        "trustworthiness" if data.edge_index is None else "auc",
    ]


def classes_of(data: Data) -> np.ndarray | None:
    """Return the class of each point [num_points], int64, -1 for none; of several labels the first; none without any."""
    y = data.get("y")
    if y is None or data.get("metric") in VALUE_METRICS:
        return None
    if y.is_floating_point():
        has = (y > 0).numpy()
        return np.where(has.any(1), has.argmax(1), -1)
    classes = y[:, 0].numpy().astype(np.int64)
    if MASKS[0] in data:  # outside of the splits anything may stand for no label
        classes = np.where(torch.stack([data[mask] for mask in MASKS]).any(0).numpy(), classes, -1)
    return classes


def describe(data: Data) -> str:
    """Describe the graph, or the vectors, that a layout places."""
    if data.edge_index is not None:
        return describe_graph(data)
    text, classes = f"vectors: {data.num_nodes:,} of {data.x.size(1):,} numbers", classes_of(data)
    if classes is not None:
        text += f"; {int((classes >= 0).sum()):,} have labels, of {len(np.unique(classes[classes >= 0])):,} kinds"
    return text


def weigh(
    config: LayoutConfig, data: Data, kept: dict | None
) -> tuple[sp.csr_array, NodeParts, Tensor | None]:
    """Weigh the pairs that attract each other.

    Args:
        kept: of vectors, as :func:`keep_neighbors` returns it; None for a graph.

    Returns:
        Their matrix; partitions of the points; the principal components of vectors, None for a graph.
    """
    if kept is None:
        matrix = neighbors.symmetrise(
            weight_matrix(data.edge_index, choose_weight(edge_features(data)))
        )
    else:
        matrix = neighbors.link_both_ways(kept["neighbors"].numpy(), kept["weight"].numpy())
    mass = np.asarray(matrix.sum(1)).ravel()
    num_parts = max(1, min(config.trainer.num_parts, data.num_nodes // MIN_PART))
    return (
        matrix,
        deal_nodes(torch.from_numpy(mass), num_parts),
        None if kept is None else kept["components"],
    )


def build_trainer(
    part: Part, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None
) -> LayoutTrainer:
    """Build what places points, for this rank."""
    config, data = part.config, part.data
    options, train = config.trainer, config.train
    if config.device.startswith("cuda"):
        log.warning("device=%s: the CPU trains, as layouts have no kernel for GPUs", config.device)
    with ranks.first_then_others():  # what is compiled or found, the others find
        walks.library(), layout.LIBRARY.get()
        kept = prepare(part)
    matrix, parts, components = weigh(config, data, kept)
    mass = np.asarray(matrix.sum(1)).ravel()
    mass = torch.from_numpy(np.where(mass > 0, mass, 0)[parts.node.numpy()])

    def make_blocks() -> tuple[BlockEdges, Drawn]:
        edges = sort_into_blocks(matrix, parts)
        return edges, Drawn(
            edges.edges,
            *walks.alias_tables(edges.ptr, edges.weight),
            *walks.negative_tables(parts.ptr, mass),
        )

    positions = _first_places(options, matrix, components, config.seed)
    plan = LayoutPlan(
        num_epochs=train.epochs,
        lr=train.lr,
        last_lr=options.last_lr,
        eval_every=train.eval_every,
        early_attraction=options.early_attraction,
    )
    probe = build_probe(config, data)
    trainer = LayoutTrainer(
        positions[parts.node].contiguous(),
        parts,
        make_blocks,
        LayoutOptions(
            num_negatives=options.num_negatives,
            negative_weight=options.negative_weight,
            smooth=options.smooth,
        ),
        plan,
        score=probe,
        metric=probe.metric,
        seed=config.seed,
        ranks=ranks,
        stop=stop,
    )
    log.info(
        "model: layout of %s in %d dimensions, from %s places; %s weighted pairs an epoch, %s, %s an epoch",
        count(data.num_nodes, "point"),
        options.dim,
        options.init,
        f"{matrix.nnz:,}",
        count(parts.num_parts, "partition"),
        count(trainer.about.num_steps, "step"),
    )
    return trainer


def _first_places(
    options: LayoutTrainerConfig, matrix: sp.csr_array, components: Tensor | None, seed: int
) -> Tensor:
    """Place points for the first time [num_points, dim]."""
    rng, num_points = stream("first places", seed), matrix.shape[0]
    if options.init == "spectral":
        positions = spectral.diffuse(matrix, options.dim, rng=rng)
    elif components is not None and options.init == "pca":
        positions = components.numpy()[:, : options.dim].astype(np.float64)
        positions = np.pad(positions, ((0, 0), (0, options.dim - positions.shape[1])))
        positions = positions / max(positions[:, 0].std(), 1e-30)
    else:
        positions = rng.standard_normal((num_points, options.dim))
    positions = SPREAD * (positions + JITTER * rng.standard_normal(positions.shape))
    return torch.from_numpy(positions.astype(np.float32))


def build_probe(config: LayoutConfig, data: Data) -> LayoutProbe:
    """Build what scores layouts: all that the data allow."""
    options, seed = config.trainer, config.seed
    allowed, scores = _metrics(data), {}
    if "knn_acc" in allowed and (classes := classes_of(data)) is not None:
        scores["knn_acc"] = partial(vote, labels=classes)
    if "trustworthiness" in allowed:
        points = sample_points(data.num_nodes, SCORED_POINTS, seed)
        scores["trustworthiness"] = partial(trust, x=data.x.numpy(), points=points)
    if "auc" in allowed:
        ends = data.edge_index.as_tensor().long().numpy()
        links = ends[:, ends[0] != ends[1]].T
        links, others = sample_links(links, data.num_nodes, seed)
        scores["auc"] = partial(compare_links, links=links, others=others)
    return LayoutProbe(scores, options.metric or allowed[0])


def prepare(part: Part) -> dict | None:
    """Find the nearest neighbours of vectors, or read them from the cache; None for a graph."""
    return None if part.data.edge_index is not None else keep_neighbors(part.config, part.data)


def write_results(part: Part, folder: Path) -> None:
    """Write ``layout.npz``, what draws layouts reads: ``position``, ``names``, ``labels``, ``label_names``, ``title``.

    Args:
        folder: of a run that has ended; the places are those of its best checkpoint.
    """
    config, data = part.config, part.data
    best = checkpoint.load(folder / "checkpoints" / "best.pt")
    classes, label_names = classes_of(data), np.array([], "U1")
    if classes is None:
        classes = np.full(data.num_nodes, -1)
    elif "label_names" in data:
        label_names = np.array(unpack_names(data, "label_names"), str)
    else:
        label_names = np.arange(int(classes.max(initial=-1)) + 1).astype(str)
    path = getattr(config.data, "path", None) or getattr(config.data, "folder", None)
    title = config.data.source if path is None else Path(path).resolve().name.split(".")[0]
    file = io.BytesIO()
    # An array of texts has room for the longest of them in each place.
    names = np.array([name[:LONGEST_NAME] for name in unpack_names(data)], str)
    np.savez_compressed(
        file,
        position=best["model"]["embedding"].numpy().astype(np.float32),
        names=names,
        labels=classes.astype(np.int64),
        label_names=label_names,
        title=np.array(title),
    )
    files.write_atomically(folder / "layout.npz", lambda out: out.write(file.getbuffer()))
    log.info("wrote the layout of %s points to %s", f"{data.num_nodes:,}", folder / "layout.npz")
