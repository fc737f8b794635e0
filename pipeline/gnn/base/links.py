"""Scores of pairs of nodes that need no training."""

import logging
import time
from collections.abc import Iterator

from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.predict.pair_scores import PAIR_SCORES
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.names import PAIRS
from parallel_epochs.pipeline.run.baseline_file import Baseline

log = logging.getLogger(__name__)


def of_links(data: Data, task: LinkTask) -> Iterator[Baseline]:
    """Score pairs by their common neighbours and by spectral vectors."""
    alike = []
    for name, scorer in PAIR_SCORES.items():
        began = time.perf_counter()
        score = scorer(data)
        found = {key: score(task.pairs_of(key)) for key in PAIRS}
        scores = task.rank_pairs(found.__getitem__)
        if not any(bool(rows.any()) for rows in found.values()):
            alike.append(name)
        yield Baseline(name, scores, time.perf_counter() - began)
    if alike:
        log.info(
            "baselines: %s: 0 for every pair, as the ends of no pair have a common neighbour. So it is in a "
            "bipartite graph, whose links join its two sides",
            ", ".join(alike),
        )
