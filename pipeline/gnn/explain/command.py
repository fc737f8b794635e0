"""The command `explain`: one explanation, some for the report, or what explanations are worth."""

import numpy as np
import torch

from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.explain.explainer import Explainer
from parallel_epochs.pipeline.gnn.explain.score import STEPS, Score
from parallel_epochs.pipeline.gnn.predict.warm import Warm
from parallel_epochs.pipeline.names import WHY
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream

# Draws of random edges of a row, whose losses are averaged.
DRAWS = 5
# Rows of the test that check=true explains, at most.
NUM_CHECKED = 100


def explain(run: SavedRun[GNNConfig], asked: ExplainConfig) -> None:
    """Explain predictions of a run, and print or write them; or check explanations.

    Raises:
        ValueError: an id names nothing, or there is no such class.
    """
    warm = Warm(run, None, {})
    if asked.check:
        print(check(warm, asked))
    elif asked.examples is not None:
        files.write_json(run.folder / WHY, explain_examples(warm, asked))
        print(f"wrote {run.folder / WHY}, which the report of the run shows")
    else:
        of_pair = asked.pair is not None
        id = asked.pair.split(",") if asked.pair is not None else asked.node
        found = warm.explain(id, asked.top, asked.label, "pair" if of_pair else "node")
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
    explainer = warm.explainer
    rows = stream("explanations", 0).permutation(warm.test_rows)
    error = warm.errors(torch.from_numpy(rows))
    rows, error = rows[~np.isnan(error)], error[~np.isnan(error)]
    order = rows[np.argsort(error, kind="stable")]
    num_right = len(rows) // 2 if explainer.are_values else int((error == 0).sum())
    found = dict[str, list[dict]]()
    for which, chosen in (("right", order[:num_right]), ("wrong", order[num_right:][::-1])):
        found[which] = []
        for row in chosen[: asked.examples].tolist():
            pulse.renew()
            one = explainer.explain(row, str(explainer.ids[row]), top=asked.top, label=asked.label)
            found[which].append(one.to_dict() | {"truth": explainer.label_of(row)})
    return found


def check(warm: Warm, asked: ExplainConfig) -> str:
    """Measure what predictions of the test lose without the edges that are named, and without random ones as near.

    Rows with fewer than twice as many edges of their own are left out: nearly all of these would be named.
    """
    rng, top, rows, num_few = stream("explanations", 0), asked.top, list[tuple](), 0
    for row in rng.permutation(warm.test_rows).tolist():
        if len(rows) == NUM_CHECKED:
            break
        pulse.renew()
        found = compare(warm.explainer, row, top, rng)
        if found is None:
            num_few += 1
        else:
            rows.append(found)
    if not rows:
        return f"no row of the test has {2 * top} edges: give a smaller top"
    predicted, named, near = np.array(rows).T
    lines = [
        f"{len(rows)} rows of the test that have at least {2 * top} edges ({num_few} with fewer left out), "
        f"{top} edges each; prediction {predicted.mean():.4f}"
    ]
    for what, after in (("the named edges", named), ("random edges as near to the row", near)):
        loss = predicted - after
        if warm.explainer.are_values:
            loss = np.abs(loss)
        error = loss.std(ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else np.nan
        lines.append(f"loss without {what} {loss.mean():.4g} (standard error {error:.2g})")
    return "\n".join(lines)


def compare(
    explainer: Explainer, row: int, top: int, rng: np.random.Generator
) -> tuple[float, float, float] | None:
    """Return a prediction, that without the named edges, and the mean without random ones that are as many steps away;
    none if the row has few edges.
    """
    score = Score(explainer.run, row)
    hop = score.view.hop_of_links.cpu().numpy()
    if (hop == 0).sum() < 2 * top:
        return None
    tried = explainer.try_links(score, score.integrate(STEPS[:1]).nodes.sum(1), top)
    links = [one.what for one in tried[:top]]
    near = list[float]()
    for _ in range(DRAWS):
        drawn = [
            rng.choice(np.flatnonzero(hop == step), number, replace=False)
            for step, number in zip(*np.unique(hop[links], return_counts=True))
        ]
        near.append(score.without(links=np.concatenate(drawn).tolist()).lowered)
    return score.prediction, score.without(links=links).lowered, float(np.mean(near))
