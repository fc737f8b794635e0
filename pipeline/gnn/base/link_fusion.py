"""The answer of a run on links that begins at a simple method: this method, the network, or a mixture of both."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base import label_scores
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.base.fusion import (
    FILE,
    SHARES,
    Answer,
    Kept,
    choose_share,
    mix,
    summarise,
)
from parallel_epochs.pipeline.gnn.base.link_base import Trial, scorer_of, try_out
from parallel_epochs.pipeline.gnn.base.walks import Scorer
from parallel_epochs.pipeline.gnn.predict.ranking import BlockScorer, Links
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import checkpoint, read_back
from parallel_epochs.pipeline.run.errors import DamagedFile

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.setup import Setup

log = logging.getLogger(__name__)

# Pairs without a link that tell what the probability of a link is, for each pair with one.
MOST_NEGATIVES = 10
# A run keeps this of a sum of walks. The numbers, but for the constant of `logit`, are between 1 / LARGEST and LARGEST.
TYPES = {
    "weights": dict[str, float],
    "units": dict[str, float],
    "scales": list[float],
    "logit": list[float],
}
LARGEST = 1e24


@dataclass(frozen=True)
class Network:
    """The scores of a trained network, in the form of a simple method's."""

    of_all: BlockScorer
    of_pairs: Callable[[Tensor], Tensor]

    def __call__(self, sources: Tensor, candidates: Tensor) -> Tensor:
        return self.of_all(sources, candidates)


class Mixture:
    """Mixes the scores of a network with those of a simple method.

    Args:
        base: the simple method.
        share: of it in the mixture.
        scales: what the scores of the network and of the simple method are divided by.
        logit: factor and constant that make logits of mixtures.
        data, task: the graph that is predicted.
    """

    def __init__(
        self,
        base: Base,
        share: float,
        scales: list[float],
        logit: list[float],
        data: Data,
        task: LinkTask,
    ):
        self.share, self._scales, self._logit = share, scales, logit
        self._build = partial(scorer_of, base, data, task)
        self._built: dict[bool, Scorer] = {}

    def answer(
        self, network: Callable[[], Tensor], simple: Callable[[Scorer], Tensor], *, of_test: bool
    ) -> Tensor:
        """Mix scores of the same pairs; what has no part in it is not computed.

        Args:
            network: returns those of the network.
            simple: returns those of the simple method, given what computes them.
        """
        if not self.share:
            return network()
        if of_test not in self._built:
            self._built[of_test] = self._build(of_test=of_test)
        own = simple(self._built[of_test]) / self._scales[1]
        mixed = own if self.share == 1 else mix(network() / self._scales[0], own, self.share)
        return mixed * self._logit[0] + self._logit[1]


def finish(setup: "Setup", rows: Tensor, epoch: int, folder: Path) -> dict[str, Any]:
    """Choose what a run on links answers with, when its network is trained; see :func:`pipeline.gnn.base.fusion.finish`."""
    task, base, model = cast(LinkTask, setup.task), cast(Base, setup.base), setup.model
    alone, links = task.scores(model, rows), Links(setup.data)
    scorers: list[Scorer] = [
        Network(task.score_by(model, rows), partial(task.decode, model, rows)),
        scorer_of(base, setup.data, task, of_test=False),
    ]
    trial = try_out(task, links, scorers)
    scales = [max(float(column.std(correction=0)), 1e-6) for column in trial.columns.t()]
    share, gain, error = choose(Trial(trial.columns / torch.tensor(scales), trial.values))
    fitted: dict[str, Any] = {**base.fitted, "scales": scales, "logit": [1.0, 0.0]}
    kept = Kept(base.name, base.title, share, [1.0, 0.0], False, fitted)
    answer_with(task, kept, setup.data)
    fitted["logit"] = _fit_logit(task, model, rows)
    checkpoint.save(folder / FILE, asdict(kept))
    answer_with(task, kept, setup.data)
    answer = Answer(share, gain, error, alone, task.scores(model, rows))
    label_scores.write(setup, model, rows, epoch, folder)
    log.info("answer: %s", answer)
    return summarise(answer, base, {split: base.scores[split] for split in SPLITS[1:]})


def answer_with(task: LinkTask, kept: Kept, data: Data) -> None:
    """Let a task answer with what a run keeps."""
    task.mixture = Mixture(
        base_of(kept), kept.share, kept.fitted["scales"], kept.fitted["logit"], data, task
    )


def base_of(kept: Kept) -> Base:
    """Return the simple method that a run keeps.

    Raises:
        DamagedFile: its numbers are none that a run has.
    """
    own, path = kept.fitted, getattr(kept.fitted, "path", Path(FILE))
    read_back.check_values(path, own, TYPES)
    numbers = [*own["weights"].values(), *own["units"].values(), *own["scales"], *own["logit"][:1]]
    if (
        not all(1 / LARGEST < number < LARGEST for number in numbers)
        or not own["weights"].keys() <= own["units"].keys()
        or not len(own["scales"]) == len(own["logit"]) == 2
        or not abs(own["logit"][1]) < LARGEST
    ):
        raise DamagedFile(f"{path} is damaged: no simple method has such {', '.join(TYPES)}")
    return Base(kept.name, kept.title, None, {}, False, 0.0, kept.fitted)


def choose(trial: Trial) -> tuple[float, float, float]:
    """Choose the share of a simple method, its gain and the standard error, see :func:`choose_share`.

    Args:
        trial: of the network and the simple method.
    """
    network, simple = trial.columns.unbind(1)
    values = {share: trial.values(mix(network, simple, share)) for share in SHARES}
    num_values = len(values[1.0])
    sources = torch.arange(num_values) if trial.sources is None else trial.sources
    group = sources.unique(return_inverse=True)[1]
    num_groups = int(group.max()) + 1

    def error_of(share: float) -> float:
        gains = (values[share] - values[1.0]).double()
        sums = torch.zeros(num_groups, dtype=gains.dtype)
        sums.index_add_(0, group, gains - gains.mean())
        # A single source tells nothing of others: 0 / 0.
        return float((sums.square().sum() * num_groups / (num_groups - 1)).sqrt()) / num_values

    return choose_share(
        lambda share, picked: float(values[share][picked].mean()), num_values, error_of
    )


def _fit_logit(
    task: LinkTask, model: torch.nn.Module, rows: Float[Tensor, "num_rows columns"]
) -> list[float]:
    """Fit a logistic regression that tells validation links from pairs without a link, as if they were equally many.

    Returns:
        Factor and constant; 1 and 0 where more is not likelier, or where there is nothing to compare.
    """
    pairs, others = task.pairs_of("valid_pairs"), task.pairs_of("valid_negatives")
    others = others[:: max(1, len(others) // max(MOST_NEGATIVES * len(pairs), 1))]
    if not len(pairs) or not len(others):
        return [1.0, 0.0]
    from sklearn.linear_model import LogisticRegression

    scores = task.decode(model, rows, torch.cat([pairs, others])).double().numpy()[:, None]
    truth = (torch.arange(len(scores)) < len(pairs)).numpy()
    fitted = LogisticRegression(class_weight="balanced").fit(scores, truth)
    factor, constant = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    return [factor, constant] if factor > 0 else [1.0, 0.0]
