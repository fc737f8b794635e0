"""Predictions that are smoothed along the edges of the graph, beside those of the model itself."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from parallel_epochs.models.networks.propagation import NormalizedAdjacency, correct_and_smooth
from parallel_epochs.pipeline.gnn import fusion
from parallel_epochs.pipeline.gnn.inference import stopped_together
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import fit_base
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.log import format_score
from parallel_epochs.pipeline.run.progress import Bar
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.threads import borrowed_threads

log = logging.getLogger(__name__)

NUM_STEPS = 50
# Each alpha is one of these; 0 leaves the predictions as they are.
ALPHAS = (0.0, 0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Smoothed:
    """Smoothed predictions, and what they are worth.

    Attributes:
        method: a value of ``evaluation.smooth``.
        alphas: by their names, as chosen by the validation metric.
        scores: metric of the validation and the test split.
        rows: numbers of every class, [num_nodes, num_classes], of which the largest predicts, not quite probabilities;
            with two_step_propagation, logits of classes or binary tasks.
    """

    method: str
    alphas: dict[str, float]
    scores: dict[str, float]
    rows: Tensor

    def record(self) -> dict[str, Any]:
        """Return what summary.json says of them."""
        return {"method": self.method, **self.alphas, **self.scores}


def smooth(setup: Setup, predicted: Predicted) -> Predicted:
    """Smooth predictions by the method of the configuration, in addition to those of the model itself."""
    smoothed = smooth_rows(setup, predicted.rows)
    assert smoothed is not None  # on the first of several ranks, or the only one
    return replace(predicted, smoothed=smoothed.rows, smoothed_scores=smoothed.scores)


def smooth_rows(
    setup: Setup, logits: Tensor, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None
) -> Smoothed | None:
    """Smooth predictions by the method of the configuration; none on other ranks than the first.

    The alphas are those with the best metric of the validation split. Of equal ones the smallest are chosen.

    Args:
        logits: of all nodes, [num_nodes, out_channels].

    Raises:
        Stopped: a rank was asked to stop; all ranks raise it.
    """
    start, task, method = (
        time.perf_counter(),
        cast(NodeTask, setup.task),
        setup.config.evaluation.smooth,
    )
    pulse.beat("smoothing the predictions", pulse.State.LONG)
    with stopped_together(stop, ranks) as look:
        if not ranks.is_first:
            return None
        best: tuple[float, dict[str, float], Tensor] | None = None
        with borrowed_threads(ranks.num_local):
            for alphas, rows in (
                _try_mixtures(setup, logits, look)
                if method == "two_step_propagation"
                else _try_alphas(setup, logits.softmax(1), look)
            ):
                valid = task.score("valid", rows)
                if best is None or valid > best[0]:
                    best = valid, alphas, rows
        assert best is not None
        _, alphas, rows = best
        scores = {split: task.score(split, rows) for split in ("valid", "test")}
    smoothed = Smoothed(method, alphas, scores, rows)
    chosen = ", ".join(f"{name} {alpha:g}" for name, alpha in alphas.items())
    log.info(
        "%s: %s, chosen by the valid %s; %s, %.1f s",
        method,
        chosen,
        task.metric,
        ", ".join(
            f"{split} {format_score(task.score(split, logits))} -> {format_score(score)}"
            for split, score in scores.items()
        ),
        time.perf_counter() - start,
    )
    return smoothed


def _try_mixtures(
    setup: Setup, logits: Tensor, look: Callable[[], object]
) -> Iterator[tuple[dict[str, float], Tensor]]:
    """Mix logits with those of the labels one and two steps away, with a growing share of these."""
    base = fit_base(setup.data, cast(NodeTask, setup.task), "propagation")
    for share in fusion.SHARES:
        look()
        yield {"propagation_share": share}, fusion.mix(logits, base.rows, share)


def _try_alphas(
    setup: Setup, probabilities: Tensor, look: Any
) -> Iterator[tuple[dict[str, float], Tensor]]:
    """Smooth predictions with each choice of the alphas, the smallest first; yields the alphas and the result."""
    config, data = setup.config, setup.data
    corrections = ALPHAS if config.evaluation.smooth == "correct_and_smooth" else (None,)
    # With views, a GPU need not hold the whole graph.
    device = setup.device if config.evaluation.is_exact else torch.device("cpu")
    adjacency = NormalizedAdjacency(
        data.edge_index.to(device),
        data.num_nodes,
        kernel="auto" if config.kernel == "pyg" else config.kernel,
    )
    probabilities, y, mask = (
        tensor.to(device) for tensor in (probabilities, data.y[:, 0], data.train_mask)
    )
    num_passes = (len(ALPHAS) - 1) * (1 + len(ALPHAS) if len(corrections) > 1 else 1)
    with Bar("smoothing", num_passes * NUM_STEPS, "steps") as bar:

        def advance() -> None:
            look()
            bar.advance()

        for correction, alpha, rows in correct_and_smooth(
            adjacency, probabilities, y, mask, corrections, ALPHAS, NUM_STEPS, before_step=advance
        ):
            corrected = {} if correction is None else {"correction_alpha": correction}
            yield {**corrected, "smoothing_alpha": alpha}, rows.cpu()
