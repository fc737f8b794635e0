"""The keys of trainer=knowledge. Nothing here imports torch, so that ``--help`` answers at once."""

from dataclasses import dataclass, field
from typing import ClassVar

from parallel_epochs.pipeline.config import EvaluateConfig, RunConfig, TrainerConfig
from parallel_epochs.pipeline.keys import Number, key

NEGATIVES = {"trainer.loss": ("negatives",)}
DISTANCES = {"trainer.model": ("transe", "rotate")}


@dataclass
class KnowledgeTrainerConfig(TrainerConfig):
    """Vectors of the entities and relations of a knowledge graph."""

    name: str = key("knowledge", "Knowledge graph embeddings: vectors of entities and relations.")
    model: str = key(
        "complex",
        "Model. The score of a triple is a distance (transe, rotate) or a product (distmult, "
        "complex, simple, quate).",
        choices=("transe", "distmult", "complex", "simple", "rotate", "quate"),
    )
    dim: int = key(
        200,
        "Number of real numbers in an entity's vector. complex, rotate and simple use two for each "
        "component, quate uses four.",
        minimum=1,
        below=1_000_000,
    )
    loss: str = key(
        "one_vs_all",
        "Loss. one_vs_all: cross-entropy over all entities, with reciprocal relations. "
        "negatives: each triple is compared with triples whose head or tail is drawn at random.",
        choices=("one_vs_all", "negatives"),
    )
    batch_size: int = key(
        1000,
        "Number of triples in a step, over all ranks. With one_vs_all: average number of "
        "answers in a step; each triple has two, its head and its tail.",
        minimum=1,
    )
    num_negatives: int = key(
        256,
        "Number of entities drawn for 64 triples to replace their heads. As many are drawn to "
        "replace their tails.",
        minimum=1,
        when=NEGATIVES,
    )
    margin: float = key(
        9.0, "Distance beyond which a triple counts as false.", minimum=0, when=DISTANCES
    )
    temperature: float = key(
        1.0,
        "Temperature of self-adversarial weights: negatives are weighted by the softmax of "
        "score / temperature. 0: equal weights.",
        minimum=0,
        when=NEGATIVES,
    )
    n3: Number = key(
        0.0,
        "Weight of the N3 penalty: the cubed moduli of a triple's components (models whose score is "
        "a product). auto: the best of 0, 0.01 and 0.05 by validation; 0.05 for more than 100,000 "
        "triples.",
        minimum=0.0,
        may_be_auto=True,
    )
    l3: float = key(
        0.0,
        "Weight of the L3 penalty: the cubed real numbers of a triple, as in GraphVite (models whose "
        "score is a product).",
        minimum=0,
    )
    init_scale: float = key(
        0.001,
        "Standard deviation of the initial values.",
        above=0,
        when={"trainer.model": ("distmult", "complex", "simple")},
    )
    optimizer: str = key(
        "adagrad",
        "Optimizer of the vectors; adagrad and adam keep moments. With "
        "trainer.loss=negatives, a step updates only the rows that it "
        "uses.",
        choices=("adagrad", "adam", "sgd"),
    )
    relation_lr: float = key(
        1.0, "Learning rate of the relations, as a fraction of that of the entities.", minimum=0
    )
    last_lr: float = key(
        1.0,
        "Final learning rate as a fraction of train.lr. The learning rate changes linearly.",
        minimum=0,
    )


@dataclass
class KnowledgeConfig(RunConfig):
    """A run of trainer=knowledge."""

    takes: ClassVar[tuple[str, ...]] = ("triples",)
    auto_device: ClassVar[str] = "cpu"

    trainer: KnowledgeTrainerConfig = field(default_factory=KnowledgeTrainerConfig)


@dataclass
class AnswersConfig(EvaluateConfig):
    """The keys of `predict` for a run that learned a knowledge graph."""

    triples: str | None = key(
        None,
        "Table of questions with a head, a relation and a tail in each line, ? for what is "
        "asked. A line without ? is scored.",
        is_path=True,
    )
    top: int = key(10, "Number of answers to each question.", minimum=1)
    filtered: bool = key(True, "Leave out answers that are training triples.")
