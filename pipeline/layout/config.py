"""The keys of trainer=layout. Nothing here imports torch, so that ``--help`` answers at once."""

from dataclasses import dataclass, field
from typing import ClassVar

from parallel_epochs.pipeline.config import RunConfig, TrainerConfig
from parallel_epochs.pipeline.keys import key

VECTORS = {"data.source": ("vectors",)}


@dataclass
class LayoutTrainerConfig(TrainerConfig):
    """A position for each point in two or three dimensions, close to the points that it is like."""

    name: str = key("layout", "Layouts: a position for each point in two or three dimensions.")
    dim: int = key(2, "Dimension of the layout: 2 or 3.", minimum=2, below=4)
    num_neighbors: int = key(
        30,
        "Number of nearest neighbours of each point, which attract it.",
        minimum=1,
        below=10_000,
        when=VECTORS,
    )
    perplexity: float = key(
        10.0,
        "Perplexity, as in t-SNE: the effective number of neighbours of each point.",
        minimum=1,
        when=VECTORS,
    )
    pca_dim: int = key(
        50,
        "Number of principal components in which neighbours are searched. 0: search with the "
        "vectors themselves.",
        minimum=0,
        when=VECTORS,
    )
    init: str = key(
        "spectral",
        "Initial positions. spectral: smooth functions on the graph of neighbours. pca: the "
        "first principal components (data=vectors). random: random "
        "numbers.",
        choices=("spectral", "pca", "random"),
    )
    early_attraction: float = key(
        4.0, "Factor of the attraction in the first epochs (early exaggeration).", above=0
    )
    num_negatives: int = key(
        8, "Number of negative points drawn for each tile of sixteen pairs.", minimum=1, below=65
    )
    negative_weight: float = key(
        25.0,
        "Weight of all negatives of a pair together. The pair itself has the weight 1.",
        minimum=0,
    )
    smooth: float = key(
        1.0,
        "Constant added to a squared distance in the repulsion: 0.1 in LargeVis, 1 in t-SNE.",
        above=0,
    )
    last_lr: float = key(
        0.0,
        "Final learning rate as a fraction of train.lr. The learning rate falls linearly.",
        minimum=0,
    )
    num_parts: int = key(
        8,
        "Number of partitions P of the points. P/2 blocks of pairs are trained at a time, no two "
        "sharing a partition. P is lowered if a partition would have fewer than sixteen "
        "points.",
        minimum=1,
        below=1024,
    )
    metric: str | None = key(
        None,
        "Metric. knn_acc: accuracy of the 10 nearest neighbours (needs labels). "
        "trustworthiness: needs vectors. auc: needs the links of a graph. Default: the first of "
        "these that the data allow.",
        choices=("knn_acc", "trustworthiness", "auc"),
    )


@dataclass
class LayoutConfig(RunConfig):
    """A run of trainer=layout."""

    takes: ClassVar[tuple[str, ...]] = ("graph", "vectors")
    auto_device: ClassVar[str] = "cpu"

    trainer: LayoutTrainerConfig = field(default_factory=LayoutTrainerConfig)

    def check(self) -> None:
        super().check()
        options = self.trainer
        if self.data.holds == "vectors" and options.perplexity >= options.num_neighbors:
            raise ValueError(
                f"trainer.perplexity={options.perplexity:g} must be less than trainer.num_neighbors="
                f"{options.num_neighbors}: a third of it is usual"
            )
        if self.data.holds != "vectors" and options.init == "pca":
            raise ValueError(
                "trainer.init=pca needs data=vectors, since a graph has no principal components; this run "
                f"has data={self.data.source}. Set trainer.init=spectral or random"
            )
