"""The keys of every trainer; see :mod:`pipeline.config` for how they are collected. Nothing here imports torch."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.keys import key


@dataclass
class TrainerConfig:
    """What a step is.

    Attributes:
        takes: what a dataset must hold for it: see :class:`pipeline.data.config.DataConfig`.
    """

    takes: ClassVar[tuple[str, ...]] = ("graph", "graphs")
    name: str = key("gnn", "the trainer")


@dataclass
class NodeEmbeddingConfig(TrainerConfig):
    """A vector for each node, learned from the edges alone."""

    takes: ClassVar[tuple[str, ...]] = ("graph",)
    name: str = key("node_embedding", "the trainer")
    model: str = key("deepwalk", "where pairs of nodes come from: deepwalk, random walks; node2vec, walks of second "
                     "order; line, short walks from edges; spectral, none: a factorisation alone",
                     choices=("deepwalk", "node2vec", "line", "spectral"))
    dim: int = key(128, "numbers of a node's vector", minimum=1, below=100_000)
    walk_length: int = key(40, "steps of a walk of deepwalk and node2vec", minimum=1, below=100_000)
    augmentation_distance: int = key(2, "steps between the two nodes of a pair, at most; line walks as many",
                                     minimum=1, below=1000)
    p: float = key(1.0, "of node2vec: a walk goes back with a probability in proportion to 1/p", above=0)
    q: float = key(1.0, "of node2vec: it goes away from the neighbours of the last node in proportion to 1/q", above=0)
    order: int = key(2, "of line: 2 tells a node from its context, 1 has one vector for both", minimum=1, below=3)
    init: str = key("random", "the first vectors: random, or spectral", choices=("random", "spectral"))
    propagation_steps: int = key(0, "terms of the spectral filter that the vectors go through at last (ProNE's); 0: "
                                 "none", minimum=0, below=1000)
    num_negatives: int = key(32, "contexts drawn at random for each tile of eight groups of pairs", minimum=1,
                             below=1024)
    negative_weight: float = key(5.0, "what they weigh together beside a pair", minimum=0)
    negative_exponent: float = key(0.75, "of the degree, in proportion to which they are drawn")
    optimizer: str = key("sgd", "of the vectors: adagrad and adam keep moments",
                         choices=("sgd", "adagrad", "adam"))
    weight_decay: float = key(0.0, "decay of the vectors, each time that one is used", minimum=0)
    last_lr: float = key(0.01, "the learning rate falls linearly from train.lr to this fraction of it", minimum=0)
    num_parts: int = key(8, "partitions of the nodes; of the blocks of two of them as many are trained at a time",
                         minimum=1, below=1024)
    tables: str = key("memory", "where the vectors lie while they are trained: memory; disk, files in cache_dir that "
                      "are mapped, for tables larger than memory", choices=("memory", "disk"), changes_numbers=False)
    episode_size: int = key(2_000_000, "pairs drawn at a time, at least one walk", minimum=1)
    metric: str | None = key(None, "micro_f1 or macro_f1 of a classifier of labels, auc of links held out; null: "
                             "micro_f1 where there are labels", choices=("micro_f1", "macro_f1", "auc"))
    portions: list[float] = key([0.1, 0.5, 0.9], "of the labelled nodes, to train classifiers; test is that of a half")
    num_draws: int = key(3, "draws of the labelled nodes, averaged", minimum=1, below=1000)
    holdout: float = key(0.02, "of auc: fraction of the edges that training does not see, half of them for "
                         "validation", above=0, below=1)


@dataclass
class KnowledgeConfig(TrainerConfig):
    """Vectors of the entities and relations of a knowledge graph."""

    takes: ClassVar[tuple[str, ...]] = ("triples",)
    name: str = key("knowledge", "the trainer")
    model: str = key("complex", "how a triple is scored: by distances (transe, rotate) or products (distmult, complex, "
                     "simple, quate)", choices=("transe", "distmult", "complex", "simple", "rotate", "quate"))
    dim: int = key(200, "real numbers of an entity's vector: two for each complex number of complex and rotate and for "
                   "each pair of simple, four for each quaternion of quate", minimum=1, below=1_000_000)
    loss: str = key("one_vs_all", "one_vs_all: cross-entropy of all entities, with reciprocal relations; negatives: "
                    "triples beside others with a head or tail drawn at random", choices=("one_vs_all", "negatives"))
    norm: int = key(1, "of transe: 1 sums the absolute differences, 2 takes their length", minimum=1, below=3)
    batch_size: int = key(1000, "triples of a step, of all ranks together; of one_vs_all answers, on average: each "
                          "triple has two", minimum=1)
    chunk_size: int = key(64, "of negatives: triples that share what is drawn", minimum=1)
    num_negatives: int = key(256, "of negatives: entities drawn for a chunk in place of its heads, and as many in "
                             "place of its tails", minimum=1)
    margin: float = key(9.0, "of negatives with transe or rotate: the distance beyond which a triple is rather false",
                        minimum=0)
    temperature: float = key(1.0, "of negatives: those with a high score count more, by the softmax of score / "
                             "temperature; 0: all alike", minimum=0)
    n3: float = key(0.0, "of models of products: weight of the cubes of the moduli of a triple's complex numbers, "
                    "quaternions, or pairs of simple", minimum=0)
    l3: float = key(0.0, "the same of their real numbers, as in GraphVite", minimum=0)
    init_scale: float = key(0.001, "of distmult, complex and simple: standard deviation of the first values", above=0)
    optimizer: str = key("adagrad", "of the vectors: adagrad and adam keep moments; of negatives those of other rows "
                         "rest", choices=("adagrad", "adam", "sgd"))
    relation_lr: float = key(1.0, "the learning rate of relations is this fraction of that of entities", minimum=0)
    last_lr: float = key(1.0, "the learning rate goes linearly from train.lr to this fraction of it", minimum=0)
    eval_sample: int = key(0, "validation triples that are ranked, always the same ones; the test is ranked whole; 0: "
                           "all", minimum=0)
    per_relation: bool = key(False, "the last time, score each relation of the test apart")


@dataclass
class LayoutConfig(TrainerConfig):
    """A place for each point in two or three dimensions, near those that it is like."""

    takes: ClassVar[tuple[str, ...]] = ("graph", "vectors")
    name: str = key("layout", "the trainer")
    dim: int = key(2, "dimensions of the layout: 2 or 3", minimum=2, below=4)
    num_neighbors: int = key(30, "of vectors: nearest neighbours of each that are pulled close", minimum=1,
                             below=10_000)
    perplexity: float = key(10.0, "of vectors: how many neighbours count, in a way: 2 to the entropy of their weights",
                            minimum=1)
    pca_dim: int = key(50, "of vectors: principal components among which neighbours are looked for; 0: all numbers",
                       minimum=0)
    neighbors: str = key("auto", "how they are found: exact, by all pairs; approximate, by faiss; auto: exact up to "
                         "50,000 points", choices=("auto", "exact", "approximate"))
    init: str = key("spectral", "the first places: spectral, smoothed over the neighbours; pca, the first principal "
                    "components, of vectors alone; random", choices=("spectral", "pca", "random"))
    early_attraction: float = key(4.0, "factor on what pulls neighbours together at the beginning", above=0)
    early_fraction: float = key(0.25, "of the epochs, for which it is", minimum=0, below=1)
    num_negatives: int = key(8, "points drawn at random for each tile of sixteen pairs", minimum=1, below=65)
    negative_weight: float = key(25.0, "what they weigh together beside a pair", minimum=0)
    negative_exponent: float = key(0.75, "of the summed weights of a point, in proportion to which it is drawn")
    smooth: float = key(1.0, "is added to a squared distance before what pushes apart is divided by it: LargeVis has "
                        "0.1, t-SNE 1", above=0)
    last_lr: float = key(0.0, "the learning rate falls linearly from train.lr to this fraction of it", minimum=0)
    num_parts: int = key(8, "partitions of the points, at most one for sixteen of them; of the blocks of two of them "
                         "half as many are trained at a time", minimum=1, below=1024)
    metric: str | None = key(None, "knn_acc, accuracy of the 10 nearest neighbours; trustworthiness, of vectors; auc, "
                             "of the links of a graph; null: the first that the data allow",
                             choices=("knn_acc", "trustworthiness", "auc"))
    score_sample: int = key(2000, "points, always the same ones, whose neighbours trustworthiness looks at; 0: all",
                            minimum=0)


# Trainers by name; those of other modules than `gnn` are built by pipeline/build_embedding.py.
TRAINER_SCHEMAS: dict[str, type[TrainerConfig]] = {"gnn": TrainerConfig, "node_embedding": NodeEmbeddingConfig,
                                                   "knowledge": KnowledgeConfig, "layout": LayoutConfig}
