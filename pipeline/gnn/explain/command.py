"""The command `explain`: one explanation, some for the report, or what explanations are worth."""

import numpy as np
import torch

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.explain.explainer import Explainer
from parallel_epochs.pipeline.gnn.explain.scene import Removed
from parallel_epochs.pipeline.gnn.explain.score import Score
from parallel_epochs.pipeline.gnn.warm import Warm
from parallel_epochs.pipeline.names import WHY
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream

# Draws of random edges of a row, whose losses are averaged.
DRAWS = 5


def explain(run: SavedRun[GNNConfig], asked: ExplainConfig) -> None:
    """Explain predictions of a run, and print or write them; or check explanations.

    Raises:
        ValueError: an id names nothing, or there is no such class.
    """
    warm = Warm(run, None, {})
    if asked.check:
        print(check(warm, asked))
        return
    if asked.examples is not None:
        files.write_json(run.folder / WHY, explain_examples(warm, asked))
        print(f"wrote {run.folder / WHY}, which the report of the run shows")
        return
    found = warm.explain(
        asked.node if asked.pair is None else asked.pair.split(","),
        asked.top,
        asked.label,
        "node" if asked.pair is None else "pair",
    )
    if asked.output is None:
        print(found)
    else:
        found.write(asked.output)
        print(f"{found.summary}\nwrote {asked.output}")


def explain_examples(warm: Warm, asked: ExplainConfig) -> dict[str, list[dict]]:
    """Explain predictions of test rows that are drawn: some that are right, and some that are wrong.

    Of values, those with the smallest and with the largest errors are taken. A row of several tasks is right if the
    likeliest task is.
    """
    rows = stream("explanations", 0).permutation(warm.test_rows)
    error = warm.errors(torch.from_numpy(rows))
    rows, error = rows[~np.isnan(error)], error[~np.isnan(error)]
    order, is_value = np.argsort(error, kind="stable"), warm.explainer.tables.are_values
    num_right = len(rows) // 2 if is_value else int((error == 0).sum())
    chosen = {"right": order[:num_right], "wrong": order[num_right:][::-1]}
    return {
        which: [
            _example(warm.explainer, row, asked) for row in rows[places[: asked.examples]].tolist()
        ]
        for which, places in chosen.items()
    }


def _example(explainer: Explainer, row: int, asked: ExplainConfig) -> dict:
    pulse.renew()
    found = explainer.explain(row, str(explainer.tables.ids[row]), top=asked.top, label=asked.label)
    return found.to_dict() | {"truth": explainer.tables.label_of(row)}


def check(warm: Warm, asked: ExplainConfig) -> str:
    """Measure what predictions of the test lose without the edges that are named, and without as many at random.

    The harder comparison draws edges that are as many steps from the row as those that are named. Rows with fewer than
    twice as many edges of their own are left out: nearly all of these would be named.
    """
    rng, rows, num_few, data = (
        stream("explanations", 0),
        list[list[float]](),
        0,
        warm.explainer.setup.data,
    )
    enough = (
        torch.bincount(plain_edges(data.edge_index)[1].long(), minlength=data.num_nodes)
        >= 2 * asked.top
    )
    for row in rng.permutation(warm.test_rows).tolist():
        if len(rows) == asked.num_checked:
            break
        found = (
            compare(warm.explainer, row, asked.top, rng) if "ptr" in data or enough[row] else None
        )
        num_few += found is None
        rows += [] if found is None else [found]
        pulse.renew()
    if not rows:
        return f"no row of the test has {2 * asked.top} edges: give a smaller top"
    before, *others = np.array(rows).T
    losses = [before - after for after in others]
    if warm.explainer.tables.are_values:
        losses = [abs(loss) for loss in losses]
    lines = [
        f"{len(rows)} rows of the test that have at least {2 * asked.top} edges ({num_few} with fewer left out), "
        f"{asked.top} edges each; prediction {before.mean():.4f}"
    ]
    for what, loss in zip(
        ("the named edges", "random edges as near to the row", "random edges of all that it reads"),
        losses,
        strict=True,
    ):
        error = loss.std(ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else np.nan
        lines.append(f"loss without {what} {loss.mean():.4g} (standard error {error:.2g})")
        if loss is not losses[0] and loss.mean() > 0:
            lines[-1] += f": the named lose {losses[0].mean() / loss.mean():.1f} times as much"
    return "\n".join(lines)


def compare(
    explainer: Explainer, row: int, top: int, rng: np.random.Generator
) -> list[float] | None:
    """Return a prediction, that without the edges that are named, without random ones that are as near to the row, and
    without random ones of all that it reads; none if the row has few edges.
    """
    scene = explainer.scene(row)
    hop = scene.hop_of_links.cpu().numpy()
    if (hop == 0).sum() < 2 * top:
        return None
    score = Score(explainer.setup, explainer.simple, scene, row)
    links = explainer.name_links(score, top)
    near = [
        [
            link
            for step, number in zip(*np.unique(hop[links], return_counts=True))
            for link in rng.choice(np.flatnonzero(hop == step), number, replace=False).tolist()
        ]
        for _ in range(DRAWS)
    ]
    all_ = [rng.choice(len(hop), top, replace=False).tolist() for _ in range(DRAWS)]
    lowered = [
        one.lowered for one in score.without([Removed(links=one) for one in (links, *near, *all_)])
    ]
    return [
        score.prediction,
        lowered[0],
        float(np.mean(lowered[1 : 1 + DRAWS])),
        float(np.mean(lowered[1 + DRAWS :])),
    ]
