"""The keys of trainer=node_embedding. Nothing here imports torch, so that ``--help`` answers at once."""

from dataclasses import dataclass, field
from typing import ClassVar

from parallel_epochs.pipeline.config import RunConfig, TrainerConfig
from parallel_epochs.pipeline.keys import key

WALKED = {"trainer.model": ("deepwalk", "node2vec", "line")}
HELD_OUT = {"trainer.metric": ("auc", None)}
LABELLED = {"trainer.metric": ("micro_f1", "macro_f1", None)}


@dataclass
class NodeEmbeddingTrainerConfig(TrainerConfig):
    """A vector for each node, learned from the edges alone."""

    name: str = key("node_embedding", "Node embeddings: a vector for each node.")
    model: str = key(
        "deepwalk",
        "Model. deepwalk: pairs of nodes come from random walks. node2vec: from second-order "
        "walks. line: from short walks that start at edges. spectral: a matrix is factorised, without "
        "pairs.",
        choices=("deepwalk", "node2vec", "line", "spectral"),
    )
    dim: int = key(128, "Dimension of the vectors.", minimum=1, below=100_000)
    walk_length: int = key(
        40,
        "Number of steps of a walk.",
        minimum=1,
        below=100_000,
        when={"trainer.model": ("deepwalk", "node2vec")},
    )
    augmentation_distance: int = key(
        2,
        "Largest number of steps between the two nodes of a pair. The walks of line "
        "have this length.",
        minimum=1,
        below=1000,
        when=WALKED,
    )
    p: float = key(
        1.0,
        "Return parameter: a walk returns to the previous node with a probability proportional to "
        "1/p.",
        above=0,
        when={"trainer.model": ("node2vec",)},
    )
    q: float = key(
        1.0,
        "In-out parameter: a walk moves away from the previous node with a probability proportional to "
        "1/q.",
        above=0,
        when={"trainer.model": ("node2vec",)},
    )
    order: int = key(
        2,
        "Order of LINE's proximity. 1: a node has a single vector, which is also its context vector. "
        "2: it has a separate context vector.",
        minimum=1,
        below=3,
        when={"trainer.model": ("line",)},
    )
    init: str = key(
        "random", "Initial values of the vectors.", choices=("random", "spectral"), when=WALKED
    )
    propagation_steps: int = key(
        0,
        "Number of terms of ProNE's spectral filter, which is applied to the trained vectors if "
        "their validation metric is better with it, and memory has room. 0: no filter.",
        minimum=0,
        below=1000,
    )
    num_negatives: int = key(
        32,
        "Number of negative contexts drawn for each tile of eight groups of pairs.",
        minimum=1,
        below=1024,
        when=WALKED,
    )
    negative_weight: float = key(
        5.0,
        "Weight of all negatives of a pair together. The pair itself has the weight 1.",
        minimum=0,
        when=WALKED,
    )
    optimizer: str = key(
        "sgd",
        "Optimizer of the vectors; adagrad and adam keep moments.",
        choices=("sgd", "adagrad", "adam"),
        when=WALKED,
    )
    weight_decay: float = key(
        0.0, "Weight decay of a vector, applied each time that it is used.", minimum=0, when=WALKED
    )
    last_lr: float = key(
        0.01,
        "Final learning rate as a fraction of train.lr. The learning rate falls linearly.",
        minimum=0,
        when=WALKED,
    )
    num_parts: int = key(
        8,
        "Number of node partitions P. The P x P blocks of pairs are trained P at a time, no two "
        "sharing a partition.",
        minimum=1,
        below=1024,
        when=WALKED,
    )
    episode_size: int = key(
        2_000_000,
        "Number of pairs in an episode, which are drawn together. At least one walk is drawn.",
        minimum=1,
        when=WALKED,
    )
    metric: str | None = key(
        None,
        "Metric: micro_f1 or macro_f1 of a classifier of the labels, or auc of held-out "
        "links. Default: micro_f1 if there are labels, otherwise "
        "auc.",
        choices=("micro_f1", "macro_f1", "auc"),
    )
    score: str = key(
        "cosine",
        "Score of a pair of nodes. dot: the product of their vectors. auto: dot or cosine, the "
        "one with the larger validation AUC of held-out links; cosine if the metric is of labels.",
        choices=("auto", "dot", "cosine"),
    )
    portions: list[float] = key(
        [0.1, 0.5, 0.9],
        "Fractions of the labelled nodes to which a classifier is fitted, for "
        "the scores of summary.json. The test metric always uses 0.5.",
        when=LABELLED,
    )
    num_draws: int = key(
        3,
        "Number of random draws of labelled nodes over which scores are averaged.",
        minimum=1,
        below=1000,
        when=LABELLED,
    )
    holdout: float = key(
        0.02,
        "Fraction of the edges that are held out of training. Half of them are for validation, "
        "half for the test.",
        above=0,
        below=1,
        when=HELD_OUT,
    )


@dataclass
class NodeEmbeddingConfig(RunConfig):
    """A run of trainer=node_embedding."""

    takes: ClassVar[tuple[str, ...]] = ("graph",)
    # On a small graph, 100 epochs took 1.3 s on two cores and 46 s on an H200, where torch trains the blocks.
    auto_device: ClassVar[str] = "cpu"

    trainer: NodeEmbeddingTrainerConfig = field(default_factory=NodeEmbeddingTrainerConfig)

    def check(self) -> None:
        super().check()
        options = self.trainer
        if wrong := [portion for portion in options.portions if not 0 < portion < 1]:
            raise ValueError(
                f"trainer.portions: {wrong[0]} of the labelled nodes cannot be trained on. Give fractions "
                "between 0 and 1"
            )
