"""Simple methods that rank all candidates of a source, each scored by itself."""

import time
from collections.abc import Iterator

from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base.fit import SECONDS
from parallel_epochs.pipeline.gnn.base.walks import find_walks, matrix_of, seconds_of_ease
from parallel_epochs.pipeline.gnn.predict.ranking import Links, score_split
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run.baseline_file import Baseline


def of_rankings(
    links: Links, metric: str, data: Data | None = None, seconds: float = SECONDS
) -> Iterator[Baseline]:
    """Rank by each simple method, and score it; the methods know the training links alone.

    Args:
        data: the graph, for methods that read more than the links.
        seconds: that a method may take, by an estimate that does not depend on the machine.
    """
    matrix, left = matrix_of(links.answers("train"), links.num_nodes), seconds
    num_sources = sum(len(links.answers(split)[:, 0].unique()) for split in SPLITS[1:])
    for name, build in find_walks(links, matrix, data).items():
        if name.startswith("EASE") and (left := left - seconds_of_ease(links)) < 0:
            continue
        began = time.perf_counter()
        if (score := build()).seconds(num_sources) > seconds and not name.startswith(
            ("popularity", "item", "res")
        ):
            continue
        scores = {split: score_split(links, score, metric, split) for split in SPLITS}
        yield Baseline(name, scores, time.perf_counter() - began)
