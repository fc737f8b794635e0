"""The keys of trainer=gnn. Nothing here imports torch, so that ``--help`` answers at once."""

import difflib
import importlib.util
import re
from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from parallel_epochs.models.networks import options
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import EvaluateConfig, ParallelConfig, RunConfig, TrainConfig
from parallel_epochs.pipeline.data.relation import check_wanted, show
from parallel_epochs.pipeline.keys import Rule, key

# Nothing is cut into clusters beside these loaders.
WITHOUT_CLUSTERS = {"loader.name": ("neighbor", "graph")}


@dataclass
class PartitionConfig:
    """How the graph is cut into clusters."""

    name: str = key(
        "random",
        "Method that draws the clusters of a round: random, metis, metis_random or whole.",
        unless=WITHOUT_CLUSTERS,
    )
    num_parts: keys.Number = key(
        keys.AUTO,
        "Number of clusters of a partition. auto: as few as fit into memory; 4 at least with METIS, with several "
        "ranks, and for a graph of more than 262,144 edges.",
        minimum=1,
        may_be_auto=True,
        unless={"partition.name": ("whole",), **WITHOUT_CLUSTERS},
    )
    clusters_per_step: int = key(
        1,
        "Number of clusters that are merged into one batch, with the edges between them.",
        minimum=1,
        unless=WITHOUT_CLUSTERS,
    )

    @property
    def num_clusters(self) -> int:
        """Number of clusters of a partition."""
        return 1 if self.name == "whole" else self.num_parts

    @property
    def is_cut(self) -> bool:
        """Tell whether METIS cuts the graph along its edges."""
        return self.name not in ("random", "whole")

    @property
    def is_random(self) -> bool:
        """Tell whether clusters are drawn without a look at the edges, so that an edge lies within one by chance."""
        return self.name == "random"


@dataclass
class ModelConfig:
    """Keys of every model.

    Attributes:
        is_foreign: whether others wrote the layers, which are then tried on a tiny graph before long work.
    """

    is_foreign: ClassVar[bool] = False
    name: str = key("", "Model.")
    num_layers: int = key(4, "Number of layers.")
    hidden_channels: int = key(64, "Number of channels of each layer.")


# Models by name: module of models/networks/, class, and the dataclass of its options.
MODELS = {
    "deepergcn": ("deepgcn", "DeeperGCN", options.DeeperGCNOptions),
    "revgnn": ("reversible", "RevGNN", options.RevGNNOptions),
    "rgcn": ("relational", "RGCN", options.RGCNOptions),
    "hgt": ("relational", "HGT", options.HGTOptions),
    "pyg": ("pyg", "PyGModel", options.PyGOptions),
    "custom": ("custom", "CustomModel", options.CustomOptions),
}
FOREIGN = ("pyg", "custom")


def _folder_of(package: str) -> Path:
    """Find the folder of a package without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, package
    return Path(spec.submodule_search_locations[0])


def _model_schema(name: str) -> type[ModelConfig]:
    """Make the keys of a model from its options; those that it shares with other models come last."""
    module, class_name, kind = MODELS[name]
    shared = {
        option.name for base in kind.__bases__ if is_dataclass(base) for option in fields(base)
    }
    declared = sorted(
        (option for option in fields(kind) if option.metadata["is_key"]),
        key=lambda option: option.name in shared,
    )
    schema = make_dataclass(
        f"{class_name}Config",
        [("name", str, key(name, "Model.")), *map(_as_key, declared)],
        bases=(ModelConfig,),
        namespace={
            "__doc__": f"The options of :class:`models.networks.{module}.{class_name}`.",
            "is_foreign": name in FOREIGN,
        },
    )
    schema.__module__ = __name__  # where ranks find it
    return schema


def _as_key(option: Field) -> tuple[str, Any, Field]:
    """Turn an option of a model into a key, as :func:`dataclasses.make_dataclass` takes it."""
    allowed = dict(option.metadata["allowed"])
    when = {f"model.{name}": values for name, values in allowed.pop("when", {}).items()}
    is_mapping = option.type == dict | None
    return (
        option.name,
        dict[str, Any] if is_mapping else option.type,
        key({} if is_mapping else option.default, option.metadata["text"], when=when, **allowed),
    )


@dataclass
class AutoModelConfig(ModelConfig):
    """The keys that all models have which model=auto compares."""

    name: str = key("auto", "Model.")
    num_layers: int = key(3, "Number of layers.", minimum=1)


MODEL_SCHEMAS: dict[str, type[ModelConfig]] = {name: _model_schema(name) for name in MODELS} | {
    "auto": AutoModelConfig
}
globals().update({schema.__name__: schema for schema in MODEL_SCHEMAS.values()})

LINK = {"task.name": ("link",)}


@dataclass
class TaskConfig:
    """The task: what is learned."""

    name: str = key(
        "node",
        "Task: node for labels of nodes, edge for labels of edges, graph for labels of whole "
        "graphs, or link.",
    )
    type: str | None = key(
        None,
        "Type of the nodes whose labels are learned (graphs with several types of nodes). "
        "Default: the only type with labels. Of edges with labels (task=edge): their name in "
        "data.schema.",
        when={"task.name": ("node", "edge")},
    )
    relation: Any = key(
        None,
        "Relation whose links are learned (graphs with several types of nodes): its name, or the "
        "type of the source, its name and the type of the target, as in [user,buys,item].",
        when=LINK,
    )
    metric: str | None = key(
        None,
        "Metric: rocauc, ap, micro_f1 or macro_f1 for binary tasks; acc, macro_f1 or "
        "balanced_acc for classes; mae or rmse for real values; hits@K with any K, mrr, rocauc or "
        "ap for links; recall@K, ndcg@K, hit@K or mrr@K for links, which rank all candidates of a "
        "source. Default: the dataset's metric; rocauc for links that the program made from "
        "edges.",
    )
    threshold: str = key(
        "f1",
        "Threshold above which a binary task is predicted to be positive. f1: the one with the "
        "best F1 of the validation labels, for each task. cost:C: the one with the least cost, where "
        "a missed positive costs C times as much as a false alarm. A number in (0, 1): this "
        "probability. none: there is none.",
        before="none",
        changes_numbers=False,
    )
    class_weights: Any = key(
        None,
        "Weights of the labels in the loss: balanced, or a list with one weight per class "
        "(per binary task: of the positive label).",
    )
    text_scores: float = key(
        0.0,
        "Weight of the scores of texts that are added to the logits. The model then learns "
        "what the scores miss (data.nodes.text_features=scores). 0: scores are features only.",
        minimum=0,
        when={"task.name": ("node",)},
    )
    base: str = key(
        "auto",
        "Simple method that the run begins at: none, a name (propagation, linear, trees, ...), or "
        "auto for the best one by validation, where one fits the run and its data. A network reads its "
        "scores and begins at them, and the run predicts with the simple method, the network or a mixture "
        "of both, whichever validation favours.",
        before="none",
    )
    base_seconds: float = key(
        60.0,
        "Number of seconds that all simple methods together may take, by an estimate. The log names each method that "
        "needs more.",
        minimum=0,
        when={"task.base": ("auto",)},
    )
    candidate: str = key(
        keys.AUTO,
        "How the network uses the simple method. network: not at all. offset: its scores "
        "are inputs and the start of the logits. inputs: its scores are inputs. auto: network and "
        "offset are trained in turn, and the better one is kept.",
        choices=(keys.AUTO, "network", "offset", "inputs"),
        may_be_auto=True,
        unless={"task.base": ("none",)},
    )
    pool: str = key(
        "mean",
        "How the rows of a graph's nodes are pooled into one row.",
        choices=("mean", "sum", "max"),
        when={"task.name": ("graph",)},
    )
    pairs_per_step: int = key(65_536, "Number of training pairs in a batch.", minimum=1, when=LINK)
    num_negatives: int = key(
        1, "Number of negative pairs drawn for each training pair.", minimum=1, when=LINK
    )
    hide_pairs: bool = key(
        False, "Remove the training pairs of a batch from the edges of the batch.", when=LINK
    )
    valid_edges: bool | None = key(
        None,
        "Add the validation pairs as edges when the test split is evaluated. Default: "
        "where the dataset allows it, as ogbl-collab does.",
        before=False,
        when=LINK,
    )
    predictor: str = key(
        "mlp",
        "mlp: MLP that reads the product of the embeddings of two nodes. residual: it has "
        "layer norms, and each hidden layer adds the product to its output. bilinear: inner product "
        "of a linear map of the source and one of the target, which scores all pairs fast and knows "
        "their direction.",
        choices=("mlp", "residual", "bilinear"),
        when=LINK,
    )
    common_neighbors: bool = key(
        False,
        "Add to the logit of a pair a learned multiple of the logarithm of 1 + 100 r, "
        "where r is the sum of 1 / degree over the common neighbours.",
        when=LINK,
    )
    predictor_layers: int = key(
        3, "Number of linear layers of the predictor.", minimum=1, below=1000, when=LINK
    )

    @property
    def reads_base(self) -> bool:
        """Tell whether the scores of the simple method are inputs."""
        return self.candidate in ("offset", "inputs")


@dataclass
class LoaderConfig:
    """The loader: what a batch is."""

    name: str = key(
        "cluster",
        "Loader: cluster for the subgraphs of a partition's clusters, neighbor for training "
        "nodes with sampled neighbours, graph for whole graphs.",
    )
    # Hydra merges no mapping into a list: the default is none.
    num_neighbors: Any = key(
        None,
        "Largest number of neighbours sampled for a node, for each hop. -1: all. Or such "
        "numbers for each relation, as in {buys: [10,5], default: [5,5]} (graphs with several "
        "types of nodes). Default: 15, 10, and 5 for each further layer of the model.",
        when={"loader.name": ("neighbor",), "evaluation.method": ("neighbor",)},
    )
    batch_size: int = key(
        1024,
        "Number of training nodes (neighbor) or graphs (graph) in a batch.",
        minimum=1,
        when={"loader.name": ("neighbor", "graph"), "evaluation.method": ("neighbor",)},
    )


TABLE = {"features.name": ("embedding",)}


@dataclass
class FeaturesConfig:
    """The node features that a model reads."""

    name: str = key(
        "data",
        "data: the features of the nodes, or those that data.node_features makes from the edges. "
        "embedding: a learned table with a row for each node.",
    )
    channels: int = key(64, "Number of columns of the table.", minimum=1, when=TABLE)
    concat: bool = key(
        False,
        "Concatenate the table and the features of the data. false: the table replaces them.",
        when=TABLE,
    )
    types: list[str] | None = key(
        None,
        "Types of nodes that have a row in the table (graphs with several types of "
        "nodes). Default: all.",
        when=TABLE,
    )
    init: str = key(
        "normal",
        "Initial values of the table. normal: normal distribution with standard deviation "
        "0.1. orthogonal: orthonormal columns, as of torch.nn.init.orthogonal_.",
        choices=("normal", "orthogonal"),
        when=TABLE,
    )
    lr: float = key(
        0.003,
        "Learning rate of the table. It is scaled, warmed up and lowered like train.lr.",
        above=0,
        when=TABLE,
    )
    dropout: float = key(
        0.5,
        "Fraction of a batch's nodes whose rows are zero in a training step.",
        minimum=0,
        below=1,
        when=TABLE,
    )


PLATEAU = {"train.schedule": ("plateau",)}


@dataclass
class GNNTrainConfig(TrainConfig):
    """How the model is trained."""

    epochs: keys.Number = key(
        500,
        "Number of passes over the graph, summed over the ranks. auto: about 10,000 steps, "
        "in 8 to 500 epochs.",
        minimum=1,
        changes_numbers=False,
        may_be_auto=True,
    )
    optimizer: str = key("adam", "Optimizer of the model.", choices=("adam", "adamw", "rmsprop"))
    weight_decay: float = key(0.0, "Weight decay of the optimizer.", minimum=0)
    accumulate: int = key(
        1, "Number of batches whose gradients a rank adds up in one step.", minimum=1
    )
    ema: keys.Number = key(
        0.0,
        "Evaluate and save an exponential moving average of the weights, to which each step "
        "adds 1 - ema of the new weights. 0: none. auto: over about an epoch, 10 steps at least and "
        "1,000 at most.",
        minimum=0.0,
        below=1.0,
        may_be_auto=True,
    )
    warmup_steps: keys.Number = key(
        0,
        "Number of steps in which the learning rate rises linearly, from lr / "
        "warmup_steps to lr. auto: those of an epoch.",
        minimum=0,
        may_be_auto=True,
    )
    schedule: str = key(
        "none",
        "How the learning rate changes after the warm-up. none: not at all. linear, cosine: it "
        "falls until the end of the run. plateau: it falls when the validation metric stops "
        "improving, as with torch's ReduceLROnPlateau.",
        choices=("none", "linear", "cosine", "plateau"),
    )
    plateau_factor: float = key(
        0.1, "Factor by which the learning rate falls.", above=0, below=1, when=PLATEAU
    )
    plateau_patience: int = key(
        10,
        "The learning rate falls when more than this number of evaluations in a row bring "
        "no better validation metric.",
        minimum=0,
        when=PLATEAU,
    )
    clip_grad_norm: float = key(0.0, "Largest norm of the gradient. 0: no clipping.", minimum=0)
    label_input: float = key(
        0.0,
        "Fraction of the training labels that are inputs during training. 0: none.",
        minimum=0,
        below=1,
    )
    init: str | None = key(
        None,
        "Directory of a run, or file that predict export= wrote, with whose weights the model "
        "begins. Tables are prepared as those of that run were, and new classes get places behind "
        "its own.",
        is_path=True,
    )
    precision: str = key(
        "fp32",
        "Precision: fp32; bf16 by autocast; fp16 by autocast with a dynamic loss scale.",
        choices=("fp32", "bf16", "fp16"),
    )


@dataclass
class GNNParallelConfig(ParallelConfig):
    """The ranks that train, and how the learning rate follows their number."""

    lr_scaling: str = key(
        "linear",
        "Factor by which train.lr is multiplied if n ranks train in a step. none: 1. "
        "sqrt: the square root of n. linear: n.",
        choices=("none", "sqrt", "linear"),
    )


@dataclass
class EvaluationConfig:
    """How every node is predicted."""

    method: str = key(
        "exact",
        "exact: the whole graph, layer by layer. views: the average over random partitions. "
        "neighbor: the average over sampled neighbours.",
        choices=("views", "exact", "neighbor"),
    )
    num_views: int = key(
        1,
        "Number of random partitions, or of draws of neighbours, whose logits are averaged.",
        minimum=1,
        below=10_000,
        when={"evaluation.method": ("views", "neighbor")},
    )
    num_parts: int = key(
        5, "Number of clusters of a view.", minimum=1, when={"evaluation.method": ("views",)}
    )
    num_neighbors: Any = key(
        None,
        "Largest number of neighbours sampled for a node, for each hop, or for each "
        "relation and hop. Default: as in loader.num_neighbors.",
        when={"evaluation.method": ("neighbor",)},
    )

    @property
    def is_exact(self) -> bool:
        """Tell whether the whole graph is predicted at once."""
        return self.method == "exact"

    @property
    def samples(self) -> bool:
        """Tell whether neighbours are sampled."""
        return self.method == "neighbor"


@dataclass
class TuneConfig:
    """How validation chooses a model."""

    seconds: Any = key(
        keys.AUTO,
        "Number of seconds in which models are compared by validation. The best one is then "
        "trained as the other keys say. 0: none are compared. auto: 600 for model=auto, and where neither a "
        "model, a key of it, a number of epochs nor an experiment is named and the graph has at most 100,000 edges; "
        "otherwise 0.",
        minimum=0.0,
        may_be_auto=True,
        changes_numbers=False,
        before=600.0,
    )


def _is_set(value: object) -> bool:
    return bool(value)


# The least positive number without loss of digits.
SMALLEST_FLOAT32 = 1.2e-38
WHOLE_GRAPHS = {"task.name": ("graph",)}
# A method that is named, rather than chosen where one fits.
BASE = {"task.base": lambda name: name not in ("none", "auto")}
RULES = (
    Rule(WHOLE_GRAPHS, "evaluation.method", ("exact",), "whole graphs fit into a batch"),
    Rule(
        WHOLE_GRAPHS,
        "model.name",
        lambda name: name != "custom",
        "the model must pool the nodes of each graph",
        "model=" + " or ".join(name for name in MODELS if name != "custom"),
    ),
    Rule(
        WHOLE_GRAPHS,
        "features.name",
        ("data",),
        "a learned table has rows for the nodes of one graph only",
    ),
    Rule(
        {"task.name": ("graph", "link")},
        "train.label_input",
        (0.0,),
        "labels of graphs and links are no inputs of nodes",
    ),
    Rule(
        LINK,
        "loader.name",
        ("cluster",),
        "training pairs lie within clusters. evaluation=neighbor predicts links "
        "from sampled neighbours",
    ),
    Rule(
        {"task.name": ("edge", "link")},
        "data.components",
        ("all",),
        "pairs of nodes may lie in several components",
    ),
    Rule(
        TABLE,
        "train.init",
        (None,),
        "vectors that another run learned of its nodes are not those of other nodes",
    ),
    Rule(TABLE, "train.ema", (0.0,), "most rows of a learned table rest in most steps"),
    Rule(LINK, "task.class_weights", (None,), "it is for labels of nodes and graphs"),
    Rule({"task.text_scores": _is_set}, "task.name", ("node",), "scores are of the texts of nodes"),
    Rule(
        TABLE | {"task.text_scores": _is_set},
        "features.concat",
        (True,),
        "the table replaces the scores",
    ),
    *(
        Rule(
            when,
            "data.components",
            lambda value: value != "separate",
            why,
            "data.components=all, largest or a number",
        )
        for when, why in (
            ({"model.name": ("auto",)}, "one model is chosen"),
            (BASE, "one simple method is fitted to all nodes"),
        )
    ),
    Rule(
        {"task.candidate": lambda name: name != keys.AUTO},
        "task.base",
        lambda name: name != "none",
        "it says how a network uses the simple method",
        "task.base=auto, or the name of a method",
    ),
    Rule(BASE, "task.name", ("node", "edge", "graph"), "simple methods are fitted to labels"),
    Rule(BASE, "data.on_disk", (False,), "simple methods are fitted in memory"),
    Rule(
        BASE | {"task.candidate": ("offset", "inputs")},
        "task.name",
        ("node", "edge"),
        "graphs have no columns of their own",
        "task.candidate=network",
    ),
    Rule(
        LINK,
        "task.candidate",
        (keys.AUTO, "network"),
        "a network of links does not read the simple method",
    ),
    Rule(TABLE, "train.precision", ("fp32", "bf16"), "sparse gradients cannot be unscaled"),
    Rule({"kernel": ("pyg",)}, "model.name", ("pyg",), "other models have no layers of PyG's"),
)


@dataclass
class GNNConfig(RunConfig):
    """A run of trainer=gnn."""

    takes: ClassVar[tuple[str, ...]] = ("graph", "graphs")
    explains: ClassVar[bool] = True
    members: ClassVar[dict[str, tuple[str, dict[str, type]]]] = {
        **RunConfig.members,
        "model": ("name", MODEL_SCHEMAS),
    }  # type: ignore[dict-item]
    rules: ClassVar[tuple[Rule, ...]] = (*RunConfig.rules, *RULES)

    kernel: str = key(
        "auto",
        "Kernel that aggregates messages. auto: fused where it can run. fused: the run ends "
        "with an error where it cannot. reference: plain torch. pyg: PyG's own layers (model=pyg).",
        choices=("auto", "fused", "reference", "pyg"),
    )
    train: GNNTrainConfig = field(default_factory=GNNTrainConfig)
    parallel: GNNParallelConfig = field(default_factory=GNNParallelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=MODEL_SCHEMAS["deepergcn"])
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)

    def __post_init__(self) -> None:
        if self.task.type is not None and hasattr(self.data, "label_type"):
            self.data.label_type = self.task.type
        if hasattr(self.data, "hide_labelled"):
            self.data.hide_labelled = {"edge": True}.get(self.task.name)

    def with_model(self, options: dict[str, Any]) -> "GNNConfig":
        """Return the configuration with another model, of as many channels, and layers unless they are an option.

        Args:
            options: keys of the model, its name among them, and the learning rate that fits it. Numbers of layers and
                learning rates give way to those that are not usual.
        """
        own, usual = {"num_layers": self.model.num_layers}, type(self.model)().num_layers
        lr = (
            self.train.lr
            if self.train.lr != GNNTrainConfig().lr
            else options.get("lr", self.train.lr)
        )
        options = own | options if self.model.num_layers == usual else options | own
        options = {name: value for name, value in options.items() if name != "lr"}
        model = MODEL_SCHEMAS[options["name"]](
            hidden_channels=self.model.hidden_channels, **options
        )
        return replace(self, model=model, train=replace(self.train, lr=lr))

    def read_as(self, named: Collection[str]) -> "GNNConfig":
        """Return the configuration as it is meant: a model that is named is compared with no other one.

        Args:
            named: keys and groups that the command names. With a number of epochs there is no comparison either.
        """
        is_named = bool({"model", "experiment"} & {name.split(".")[0] for name in named})
        if self.model.name == keys.AUTO or self.tune.seconds != keys.AUTO and is_named:
            return self
        if self.tune.seconds == keys.AUTO:
            is_named |= "train.epochs" in named
            return replace(self, tune=TuneConfig(0.0)) if is_named else self
        return replace(self, model=AutoModelConfig()) if self.tune.seconds else self

    @property
    def chooses_model(self) -> bool:
        """Tell whether validation may choose the model."""
        return keys.AUTO in (self.model.name, self.tune.seconds)

    @property
    def representative(self) -> "GNNConfig":
        """The configuration that a run is checked with before its model is chosen; itself for other models."""
        is_open = self.model.name == keys.AUTO
        return self.with_model({"name": "deepergcn"}) if is_open else self

    @property
    def learned_channels(self) -> int:
        """Columns of the learned table of node features; 0 without one."""
        return self.features.channels if self.features.name == "embedding" else 0

    def why_no_base(self) -> str | None:
        """Say why task.base=auto chooses no simple method for this run; none if it may choose one."""
        if self.data.components == "separate":
            return "one simple method is fitted to all nodes (data.components=separate)"
        return "the graph stays on the disk (data.on_disk=true)" if self.data.on_disk else None

    @property
    def begins_at_scores(self) -> bool:
        """Tell whether the logits begin at scores, so that the head of the model begins at zero."""
        return self.task.text_scores > 0 or self.task.candidate == "offset"

    @property
    def fan_outs(self) -> Any:
        """Numbers of neighbours for each hop: a list, or lists by the names of relations."""
        usual = [15, 10, *[5] * (self.model.num_layers - 2)][: self.model.num_layers]
        return usual if self.loader.num_neighbors is None else self.loader.num_neighbors

    @property
    def evaluation_fan_outs(self) -> Any:
        """Numbers of neighbours of an evaluation that samples, as in :attr:`fan_outs`."""
        return self.evaluation.num_neighbors or self.fan_outs

    @property
    def predicts_links(self) -> bool:
        return self.task.name == "link"

    @property
    def lr_scaling(self) -> str:
        return self.parallel.lr_scaling

    def check_components(self) -> None:
        parts = (
            self.data.holds == "graphs",
            self.task.name == "graph",
            self.loader.name == "graph",
        )
        if any(parts) and not all(parts):
            raise ValueError(
                f"data={self.data.source}, task={self.task.name} and loader={self.loader.name} do not fit "
                "each other. Labels of whole graphs need task=graph, loader=graph and a dataset of many "
                "graphs (data=ogb_graph, graph_files or smiles); others need none of them"
            )
        components = self.data.components
        if components not in ("all", "largest", "separate") and not (
            components.isdecimal() and int(components) >= 1
        ):
            raise ValueError(
                f"data.components={components} is unknown. Choose all, largest, separate, or a number K "
                "for the K-th largest component"
            )

    def check(self) -> None:
        super().check()
        if self.predicts_links:
            check_wanted(self.task.relation)
            self.data.check_links(self.task.relation)
        else:
            checks = {"node": self.data.check_labels, "edge": self.data.check_edges}
            checks.get(self.task.name, lambda: None)()
        _check_types(self.task, self.data)
        if self.task.text_scores and not self.data.may_have_text_scores:
            raise ValueError(
                f"task.text_scores={self.task.text_scores:g} needs scores of texts among the features: "
                "data=tables with data.nodes.text_features=scores. Leave it out"
            )
        _check_class_weights(self.task.class_weights)
        if conv := getattr(self.model, "conv", ""):
            _check_conv(conv)
        if self.loader.name == "neighbor":
            _check_num_neighbors("loader", self.fan_outs, self.model.num_layers)
        if self.evaluation.samples:
            _check_num_neighbors(
                "evaluation" if self.evaluation.num_neighbors else "loader",
                self.evaluation_fan_outs,
                self.model.num_layers,
            )


def _check_types(task: TaskConfig, data: Any) -> None:
    """Refuse to choose a type of nodes, or a relation, of data that has only one."""
    for name, reader in (("type", "label_type"), ("relation", "reverse_relations")):
        value = getattr(task, name)
        if value is None or hasattr(data, reader):
            continue
        if data.source != "store":
            raise ValueError(
                f"task.{name}={show(value)} is for graphs with several types of nodes, and data="
                f"{data.source} has one. Leave it out"
            )
        if name == "type":
            raise ValueError(
                f"task.type={value} chooses among labels when a graph is prepared, and a store has those "
                "of one type. Leave it out"
            )


def _check_conv(name: str) -> None:
    """Refuse a layer that neither ``torch_geometric.nn`` names nor models/convs/recipe_convs.py.

    The files are read, since importing them takes seconds.

    Raises:
        ValueError: names the layer that was probably meant.
    """
    known = {
        word
        for file in (_folder_of("torch_geometric") / "nn").glob("*/__init__.py")
        for word in re.findall(r"\b[A-Z]\w+", file.read_text())
    }
    recipes = (_folder_of("parallel_epochs.models") / "convs" / "recipe_convs.py").read_text()
    known.update(re.findall(r"^class (\w+Conv)\b", recipes, re.MULTILINE))
    if name not in known:
        lower = {word.lower(): word for word in known if word.endswith("Conv")}
        near = difflib.get_close_matches(name.lower(), lower, n=1)
        raise ValueError(
            f"model.conv={name} is not a convolution of torch_geometric.nn"
            f"{f'; did you mean {lower[near[0]]}?' if near else ': choose one such as GATv2Conv'}"
        )


def _check_class_weights(value: object) -> None:
    """Refuse what is neither nothing nor "balanced" nor a list of positive numbers.

    Raises:
        ValueError: names the key and the wrong number.
    """
    if value in (None, "balanced"):
        return
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"task.class_weights={value} is unknown. Choose balanced, or give a list of one positive "
            "number for each class or binary task, as in task.class_weights=[1,2.5,1]"
        )
    for place, weight in enumerate(value, start=1):
        if (
            type(weight) not in (int, float)
            or not SMALLEST_FLOAT32 <= weight <= keys.LARGEST_FLOAT32
        ):
            raise ValueError(
                f"task.class_weights: number {place} of {len(value)} is {weight}. Give positive numbers "
                "of float32 only"
            )


def _check_num_neighbors(part: str, num_neighbors: object, num_layers: int) -> None:
    """Refuse what is neither a list of numbers of neighbours for each layer, nor such lists by the names of relations.

    Raises:
        ValueError: names the key.
    """
    key = f"{part}.num_neighbors"
    if not isinstance(num_neighbors, dict):
        _check_hops(key, num_neighbors, num_layers, least=1)
        return
    if not num_neighbors:
        raise ValueError(
            f"{key}={{}} names no relation. Give a list, as in {key}=[15,10], or {{default: [15,10]}}"
        )
    for name, numbers in num_neighbors.items():
        _check_hops(f"{key}.{name}", numbers, num_layers, least=0)
    for hop, numbers in enumerate(zip(*num_neighbors.values(), strict=True), start=1):
        if not any(numbers):
            raise ValueError(
                f"{key}: no relation has neighbours in hop {hop}. Give one of them at least 1, or -1 for "
                "all of them"
            )


def _check_hops(key: str, numbers: object, num_layers: int, *, least: int) -> None:
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ValueError(
            f"{key}={numbers} is not a list of whole numbers. Give one for each layer, as in "
            f"{key}=[15,10]"
        )
    name = f"{key}=[{','.join(map(str, numbers))}]"
    if len(numbers) != num_layers:
        example = (
            "15,10,..."
            if num_layers > 8
            else ",".join(["15", "10", *["5"] * (num_layers - 2)][:num_layers])
        )
        raise ValueError(
            f"{name} has {len(numbers)} numbers, and model.num_layers={num_layers} needs one for each "
            f"layer, as in {key}=[{example}]"
        )
    if wrong := [number for number in numbers if number < least and number != -1]:
        raise ValueError(
            f"{name}: {wrong[0]} neighbours cannot be sampled. Give at least {least}, or -1 for all of "
            "them"
        )


@dataclass
class NewTableConfig:
    """Another table than that of a run."""

    path: str | None = key(
        None,
        "Path of another table, in place of that of the run (data=tables). It is prepared as "
        "that of the training was.",
        is_path=True,
    )


@dataclass
class NewDataConfig:
    """Other data than those that a run was trained on."""

    path: str | None = key(
        None,
        "File of another graph, or table of other molecules, in place of the data of the run "
        "(data=file, data=smiles). It is prepared as the training data were.",
        is_path=True,
    )
    folder: str | None = key(
        None,
        "Folder of other graphs, in place of the data of the run (data=graph_files), or "
        "to which the paths of its tables are relative (data=tables).",
        is_path=True,
    )
    schema: str | None = key(
        None, "Schema of other tables, in place of that of the run (data=tables).", is_path=True
    )
    label_table: str | None = key(
        None,
        "Label table, with or without labels, in place of that of the run (data=tables).",
        is_path=True,
    )
    unknown: str | None = key(
        None,
        "What is done with categories and relations that the training did not see "
        "(data=tables). error: refuse the table. empty: take the cell for empty and log how "
        "many. Default: as in the run.",
        choices=("error", "empty"),
    )
    known_labels: str = key(
        "none",
        "Labels of other tables that are known, and inputs where the model or its simple "
        "method reads labels of neighbours. none: labels are not read. all: those of all rows "
        "that have one. old: those of rows whose id the training had; evaluate then scores the "
        "others (data=tables).",
        choices=("none", "all", "old"),
    )
    nodes: NewTableConfig = field(default_factory=NewTableConfig)
    edges: NewTableConfig = field(default_factory=NewTableConfig)


@dataclass
class GNNEvaluateConfig(EvaluateConfig):
    """The keys of `evaluate` for a run of trainer=gnn."""

    data: NewDataConfig = field(default_factory=NewDataConfig)
    method: str | None = key(
        None,
        "How nodes are predicted. Default: as in the run.",
        choices=("views", "exact", "neighbor"),
    )
    num_views: int | None = key(
        None, "Number of views that are averaged. Default: as in the run.", minimum=1, below=10_000
    )
    num_parts: int | None = key(
        None, "Number of clusters of a view. Default: as in the run.", minimum=1
    )
    num_neighbors: Any = key(
        None,
        "Largest number of neighbours sampled for a node, for each hop, or for each "
        "relation and hop. Default: as in the run.",
    )
    output: str | None = key(
        None,
        "Table to write. It has a row for each node or graph: its id, its split, the "
        "prediction and the scores; or a row for each pair: source, target and the probability "
        "of a link. The name ends with .parquet, .csv, .csv.gz, .tsv or .tsv.gz.",
        is_path=True,
    )
    output_type: str | None = key(
        None,
        "Type of the nodes that output holds, or all, with a column type (graphs with "
        "several types of nodes). Default: the type with labels.",
    )
    output_nodes: str | None = key(
        None,
        "Table with a column id: the nodes that output holds, in this order. Default: all nodes.",
        is_path=True,
    )
    embeddings: bool = key(
        False,
        "Write the embeddings of the nodes to output too: the inputs of the model's last "
        "linear layer.",
    )
    columns: str = key(
        "all",
        "Columns of output for classes. class: the likeliest one and its probability. top3: the "
        "three likeliest and their probabilities. all: the likeliest one and the probability of each.",
        choices=("class", "all", "top3"),
    )
    pairs: str | None = key(
        None,
        "Table with the pairs to predict: its columns source and target hold ids of nodes. "
        "Default: the pairs of the test split (task=link).",
        is_path=True,
    )

    def keys_of_nodes(self) -> dict[str, Any]:
        """Return the keys of tables that have a row for each node, with their values."""
        return {
            "output_nodes": self.output_nodes,
            "output_type": self.output_type,
            "embeddings": self.embeddings,
        }


@dataclass
class GNNPredictConfig(GNNEvaluateConfig):
    """The keys of `predict` for a run of trainer=gnn."""

    calibrate: bool = key(
        False,
        "Divide the logits by a temperature that the validation labels choose, so that "
        "probabilities say how often predictions are right (classes and binary tasks).",
    )
    top: int | None = key(
        None,
        "Number of the likeliest targets of each source that output holds (task=link). It has "
        "the columns source, target, score and rank. The sources are those of output_nodes. Default: "
        "output holds pairs.",
        minimum=1,
    )
    filtered: bool = key(
        True, "Leave out targets that the source is linked to in the data (with top)."
    )
    candidates: str | None = key(
        None,
        "Table with a column id: the nodes that can be targets. Default: all nodes of "
        "their side or type (with top).",
        is_path=True,
    )
    export: str | None = key(
        None,
        "File to write the model to, without the data. NAME.pe holds it for run=FILE, which "
        "then predicts other data. NAME.pt2 holds its network as a program of torch "
        "that runs without this package.",
        is_path=True,
    )
