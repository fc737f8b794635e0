"""The command `explain`: one explanation, or what explanations are worth."""

import numpy as np

from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.explain.scene import Removed
from parallel_epochs.pipeline.gnn.explain.shares import Explainer, Scoring
from parallel_epochs.pipeline.gnn.warm import Warm
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream

# Draws of random edges of a node, whose losses are averaged.
DRAWS = 5


def explain(run: SavedRun[GNNConfig], asked: ExplainConfig) -> None:
    """Explain a prediction of a run, and print or write it; or check explanations.

    Raises:
        ValueError: an id names nothing, or there is no such class.
    """
    warm = Warm(run, None, {})
    if asked.check:
        print(check(warm, asked))
        return
    found = warm.explain(asked.node if asked.pair is None else asked.pair.split(","), asked.top, asked.label)
    if asked.output is None:
        print(found)
    else:
        found.write(asked.output)
        print(f"{found.summary}\nwrote {asked.output}")


def check(warm: Warm, asked: ExplainConfig) -> str:
    """Measure what predictions of the test lose without the edges that are named, and without as many at random.

    Nodes with fewer than twice as many edges in what they read are left out: nearly all of their edges would be named.
    """
    rng, rows, num_few = stream("explanations", 0), list[tuple[float, float, float]](), 0
    for node in rng.permutation(warm.test_rows).tolist():
        if len(rows) == asked.num_checked:
            break
        found = compare(warm.explainer, node, asked.top, rng)
        num_few += found is None
        rows += [] if found is None else [found]
        pulse.renew()
    if not rows:
        return f"no row of the test reads {2 * asked.top} edges"
    before, named, drawn = np.array(rows).T
    losses = [float((before - after).mean()) for after in (named, drawn)]
    errors = [float((before - after).std(ddof=1) / len(rows)**0.5) if len(rows) > 1 else np.nan
              for after in (named, drawn)]
    return (f"{len(rows)} rows of the test that read at least {2 * asked.top} edges ({num_few} with fewer left out), "
            f"{asked.top} edges each\nprediction {before.mean():.4f}; without the named edges {named.mean():.4f}, "
            f"without random ones {drawn.mean():.4f}\nloss {losses[0]:.4f} (standard error {errors[0]:.4f}) against "
            f"{losses[1]:.4f} ({errors[1]:.4f}): {losses[0] / losses[1]:.1f} times")


def compare(explainer: Explainer, row: int, top: int, rng: np.random.Generator) -> tuple[float, float, float] | None:
    """Return a prediction, that without the edges that are named, and that without random ones; none with few edges."""
    scene = explainer.scene(row)
    if scene.num_links < 2 * top:
        return None
    score = Scoring(explainer, scene, row, None)
    links = explainer.name_links(scene, score, row, top)
    drawn = [rng.choice(scene.num_links, top, replace=False).tolist() for _ in range(DRAWS)]
    named, *others = (one.lowered for one in score.without(scene, [Removed(links=one) for one in (links, *drawn)]))
    return score.prediction, named, float(np.mean(others))
