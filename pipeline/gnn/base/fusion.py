"""The answer of a run that begins at a simple method: this method, the network, or a mixture of both."""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.base import label_scores
from parallel_epochs.pipeline.gnn.base.fit import Base, apply
from parallel_epochs.pipeline.gnn.base.folds import halves, number_groups
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.metrics import KINDS
from parallel_epochs.pipeline.names import SPLITS, merit
from parallel_epochs.pipeline.run import checkpoint, files, read_back
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.setup import Setup

log = logging.getLogger(__name__)

# The file of a run that holds its simple method and the share of it.
FILE = "base.pt"
# Shares of the simple method in the mixture.
SHARES = tuple(tenths / 10 for tenths in range(11))
# Validation rows drawn with replacement for the error of a difference: how often, and how many at most.
DRAWS, MOST_DRAWN, MOST_CELLS = 50, 20_000, 500_000
# About so many rows tell whether a method scores as in the training.
NUM_SAMPLED = 200
# With fewer validation rows, no error can be told.
FEWEST_ROWS = 10


@dataclass(frozen=True)
class Answer:
    """The share of the simple method in the predictions of a run, chosen by the validation metric.

    Attributes:
        share: of the simple method in the mixture of logits or values: 1 for this method alone, 0 for the network.
        gain: validation metric above that of the simple method, a positive number for a better one. Each half of the
            validation rows is answered with the share that is the best for the other half.
        error: standard error of `gain`, as the same rows score both.
        network: metric of the network alone on each split.
        scores: metric of the answer on each split.
    """

    share: float
    gain: float
    error: float
    network: dict[str, float]
    scores: dict[str, float]

    def __str__(self) -> str:
        what = (
            f"a mixture of both, {self.share:g} of it the simple method"
            if 0 < self.share < 1
            else "the network alone"
            if not self.share
            else "the simple method alone, which is enough"
        )
        why = f"gain over the simple method in validation {self.gain:+.4f}, standard error {self.error:.4f}"
        if self.share == 1 and not self.error:
            why = "no mixture is better in validation"
        elif math.isinf(self.error):
            why = "there are too few validation rows to tell a gain"
        return f"{what} ({why})"


@dataclass(frozen=True)
class Kept:
    """The simple method that a run keeps, with its share.

    Attributes:
        name, title, reads_labels: of the method, as in :class:`Base`.
        share: of it in the predictions.
        moments: factor and constant that make scores of the columns that the network reads.
        fitted: what scores other data; empty if nothing can.
        sample: some of its scores for the graph of the training; none in runs of earlier versions.
        thresholds: those of the network alone, as in ``scores.json``; none where it has none.
    """

    name: str
    title: str
    share: float
    moments: list[float]
    reads_labels: bool
    fitted: dict[str, Any]
    sample: Float[Tensor, "num_sampled columns"] | None = None
    thresholds: list[float] | None = None


def finish(setup: "Setup", rows: Tensor, epoch: int, folder: Path) -> dict[str, Any]:
    """Choose what a run predicts with, when its network is trained, and keep the choice in the run directory.

    Args:
        rows: that the network predicts.
        epoch: of the network.

    Returns:
        What it adds to the summary.
    """
    task, base = cast(NodeTask, setup.task), cast(Base, setup.base)
    answer = choose(setup.data, task, rows, base)
    checkpoint.save(
        folder / FILE,
        asdict(
            Kept(
                base.name,
                base.title,
                answer.share,
                list(moments_of(setup.data, rows_of(base))),
                base.reads_labels,
                base.fitted,
                _sample(base),
                setup.kind.record(setup.data, task, setup.model, rows).get("thresholds"),
            )
        ),
    )
    rows = mix(rows, rows_of(base), answer.share)
    label_scores.write(setup, setup.model, rows, epoch, folder)
    log.info("answer: %s", answer)
    more = {name: score for name, score in answer.scores.items() if name not in SPLITS}
    # The default network of whole graphs is PyG's, too.
    is_own = setup.config.model.is_foreign and setup.kind.is_one_graph
    own = {"own_model": True} if is_own else {}
    return {**own, **({"scores": more} if more else {}), **summarise(answer, base, base.scores)}


def summarise(answer: Answer, base: Base, scores: dict[str, float]) -> dict[str, Any]:
    """Return what a run with a simple method adds to its summary.

    Args:
        scores: of the simple method.
    """
    return {
        "best_valid": answer.scores["valid"],
        "test": answer.scores["test"],
        "train": answer.scores["train"],
        "network": answer.network,
        "base": {"name": base.name, "title": base.title, "seconds": base.seconds, **scores},
        "answer": {
            "share": answer.share,
            "gain": answer.gain,
            "error": answer.error,
            "text": str(answer),
        },
    }


def choose(
    data: Data, task: NodeTask, rows: Float[Tensor, "num_rows columns"], base: Base
) -> Answer:
    """Choose the share of a simple method in the predictions of a run, see :func:`choose_share`.

    Args:
        rows: logits or values that the network predicts.
    """
    own, (y, chosen) = rows_of(base), task.labels_of("valid")
    groups = number_groups(data, task, chosen)

    def score(share: float, picked: Tensor) -> float:
        mixed = mix(rows[chosen[picked]], own[chosen[picked]], share)
        return merit(task.metric, KINDS[task.kind][task.metric](y[picked], mixed))

    share, gain, error = choose_share(
        score,
        len(chosen),
        lambda share: error_of_difference(task, mix(rows, own, share), own, groups),
    )
    return Answer(
        share, gain, error, task.scores(None, rows), task.scores(None, mix(rows, own, share))
    )


def choose_share(
    score: Callable[[float, Tensor], float], num_values: int, error_of: Callable[[float], float]
) -> tuple[float, float, float]:
    """Choose the share of a simple method by the validation metric; of equal ones the largest.

    The simple method alone is left only for a gain of more than one standard error of the paired difference. Each half
    of the values has the share that is the best for the other half, so that the gain is measured on values that did not
    choose it.

    Args:
        score: returns the metric of the mixture with a share on some of the values; the larger, the better.
        num_values: number of the values, each of which adds to the metric.
        error_of: returns the standard error of the gain of a share.

    Returns:
        The share, the gain and its standard error.
    """

    def best(picked: Tensor) -> float:
        valid = {share: score(share, picked) for share in SHARES}
        return max(
            reversed(SHARES),
            key=lambda each: valid[each] if valid[each] == valid[each] else -math.inf,
        )

    share = best(torch.ones(num_values, dtype=torch.bool))
    if share == 1:
        return 1.0, 0.0, 0.0
    gain = sum((score(best(~half), half) - score(1.0, half)) / 2 for half in halves(num_values))
    error = error_of(share) if num_values >= FEWEST_ROWS else math.inf
    return share if gain > error else 1.0, gain, error


def mix(rows: Tensor, base: Tensor, share: float) -> Tensor:
    """Mix logits or values of a network with those of a simple method; a share of 0 or 1 leaves one as it is."""
    return rows if not share else base if share == 1 else rows.lerp(base, share)


def error_of_difference(
    task: NodeTask, first: Tensor, second: Tensor, groups: Int[Tensor, " num_labelled"]
) -> float:
    """Estimate the standard error of the difference of two predictions' validation metrics, by the bootstrap.

    Both are scored on the same drawn groups of rows (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    chapters 6 and 8).

    Args:
        groups: number of each validation row's group, from 0 on.
    """
    (y, chosen), differences = task.labels_of("valid"), []
    order, sizes = groups.argsort(stable=True), groups.bincount()
    ends, most = sizes.cumsum(0), min(MOST_DRAWN, max(MOST_CELLS // y.size(1), FEWEST_ROWS))
    drawn = max(min(len(sizes), most * len(sizes) // len(chosen)), 1)
    for number in range(DRAWS):
        group = torch.from_numpy(stream("answer", 0, number).integers(0, len(sizes), drawn))
        last = sizes[group].cumsum(0)
        place = torch.arange(int(last[-1])) + (ends[group] - last).repeat_interleave(sizes[group])
        picked, score = order[place], KINDS[task.kind][task.metric]
        scores = [score(y[picked], rows[chosen[picked]]) for rows in (first, second)]
        differences.append(scores[0] - scores[1])
    known = torch.tensor([each for each in differences if math.isfinite(each)], dtype=torch.float64)
    if len(known) < 2:
        return math.inf  # nothing can be said
    return float(known.std()) * math.sqrt(drawn / len(sizes))


def read_kept(run: SavedRun) -> Kept | None:
    """Read what a run keeps of its simple method; none if it has none.

    Raises:
        ValueError: the run has not ended, or the file is damaged.
    """
    path, task = run.folder / FILE, run.config.task
    if task.base == "none" or task.base == "auto" and run.config.why_no_base():
        return None
    if run.shared is not None:
        if "base" not in run.shared and task.base == "auto":
            return None
        with checkpoint.fitting(run.shared):
            return _checked(run.folder, dict(run.shared["base"]))
    if not files.is_there(path):
        if task.base == "auto" and files.is_there(run.folder / "summary.json"):
            return None
        raise ValueError(
            f"{path} is not there: what the run answers with is chosen when it ends. Resume it, or train "
            "with task.base=none"
        )
    with checkpoint.fitting(content := checkpoint.load(path)):
        return _checked(path, content)


def share_of(run: SavedRun) -> float:
    """Return the share of the simple method in what a run answers; 0 without one."""
    kept = read_kept(run)
    return 0.0 if kept is None else kept.share


def _checked(path: Path, content: dict) -> Kept:
    """Build what is kept; refuse a share and moments that no run has."""
    kept = read_back.build(path, Kept, content)
    if (
        not 0 <= kept.share <= 1
        or len(kept.moments) != 2
        or not all(map(math.isfinite, kept.moments))
        or kept.moments[0] <= 0
    ):
        raise DamagedFile(
            f"{path} is damaged: its share is {kept.share:g}, and its moments are {kept.moments}"
        )
    for own in kept.fitted.get("models", []):
        for side in own.keys() & {"left", "right"}:  # of trees: children follow their parent
            if bool(((own[side] != 0) & (own[side] <= torch.arange(len(own[side])))).any()):
                raise DamagedFile(f"{path} is damaged: nodes of its trees are in a circle")
    return replace(kept, fitted=checkpoint.Content(path, kept.fitted))


def _sample(base: Base) -> Tensor:
    return rows_of(base)[:: max(len(rows_of(base)) // NUM_SAMPLED, 1)].clone()


def score_other(kept: Kept, data: Graph, task: NodeTask) -> Base:
    """Score other data than those of the training by the simple method of a run.

    Raises:
        ValueError: it cannot score them.
    """
    if not kept.fitted:
        raise ValueError(
            f"{kept.title} cannot score other data, and the run answers with it. Train with "
            "task.base=none, or with another simple method"
        )
    with checkpoint.fitting(kept.fitted):
        rows = apply(kept.fitted, data, task)
    return Base(kept.name, kept.title, rows, {}, kept.reads_labels, 0.0, kept.fitted)


def mix_in(predicted: Predicted, base: Base, kept: Kept) -> Predicted:
    """Mix the predictions of a network with those of the simple method of its run.

    A method that reads labels knows nothing of a graph without training labels: the network answers alone there.

    Args:
        base: scores of the simple method for all rows.
        kept: what the run keeps of it.

    Raises:
        ValueError: these are other scores than in the training.
    """
    if (
        base.scores
        and kept.sample is not None
        and (
            kept.sample.shape != (own := _sample(base)).shape
            or not torch.allclose(kept.sample, own, rtol=1e-2, atol=1e-2)
        )
    ):
        raise ValueError(
            f"{kept.title}: its scores are no longer in cache_dir, and this version fits it otherwise. "
            "Use the versions that summary.json names, or train again"
        )
    share = kept.share
    if base.reads_labels and share and not bool(predicted.graph.train_mask.any()):
        log.warning(
            "the network answers alone, since %s reads labels, and none are known here. Give a table with the "
            "known ones too, and data.known_labels=all",
            kept.title,
        )
        share = 0.0
        if kept.thresholds is not None:
            predicted = replace(
                predicted, thresholds=torch.tensor(kept.thresholds, dtype=torch.float64)
            )
    own = rows_of(base)
    if not predicted.is_whole and predicted.chosen is not None:
        own = own[predicted.chosen]
    return replace(predicted, rows=mix(predicted.rows, own, share))


def moments_of(data: Graph, rows: Float[Tensor, "num_rows columns"]) -> tuple[float, float]:
    """Return the deviation and the mean of all scores of the training rows, which are out of fold.

    All columns have the same ones, since they are compared with each other.
    """
    known = rows[data.train_mask].double()
    deviation = float(known.std(correction=0))
    return (deviation if deviation > 1e-6 else 1.0), float(known.mean())


def rows_of(base: Base) -> Float[Tensor, "num_rows columns"]:
    """Return the scores of a simple method of labels."""
    assert base.rows is not None
    return base.rows
