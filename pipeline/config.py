"""Every key of conf/ with its type, default and meaning. After composition the program sees only these classes.

Nothing here imports torch, so that ``--help`` answers at once.
"""

import dataclasses
import importlib.util
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import keys
from pipeline.data.config import DATA_SCHEMAS, DataConfig, SyntheticProteinsConfig
from pipeline.keys import key
from pipeline.run import files
from pipeline.run.errors import DamagedFile, one_line
from pipeline.trainers.config import TRAINER_SCHEMAS, TrainerConfig


@dataclass
class PartitionConfig:
    """How the graph is cut into clusters."""

    name: str = key("random", "how clusters are drawn")
    num_parts: Any = key(4, "clusters of a partition; auto: as few as memory holds", minimum=1, may_be_auto=True)
    clusters_per_step: int = key(1, "clusters merged into one batch, with the edges between them", minimum=1)
    num_micro_parts: int = key(0, "clusters that metis_random and kaminpar_random regroup into num_parts each round; "
                               "0: 20 x num_parts", minimum=0)
    scale_sums: bool = key(False, "scale sums over a node's neighbours in its cluster up to all that it has")
    prefetch: int = key(2, "batches drawn ahead in the background", minimum=1, below=1000, changes_numbers=False)


@dataclass
class ModelConfig:
    """Keys of every model."""

    name: str = key("", "the model")
    num_layers: int = key(4, "layers")
    hidden_channels: int = key(64, "channels of a layer")


SIZES = {"num_layers": ModelConfig.num_layers, "hidden_channels": ModelConfig.hidden_channels}
# Models by name: module and class. The options of a model are those of its constructor, written and checked there.
MODELS = {"deepergcn": ("models.deepgcn", "DeeperGCN"), "revgnn": ("models.reversible", "RevGNN"),
          "equilibrium": ("models.equilibrium", "EquilibriumGNN"),
          "pyg": ("models.pyg", "PyGModel"), "custom": ("models.custom", "CustomModel")}
# Those whose layers others wrote: they are tried on a tiny graph before long work.
FOREIGN = ("pyg", "custom")
# What a constructor takes that is no key of a configuration: it depends on the graph, or has a key elsewhere.
NO_KEYS = ("edge_dim", "num_categories", "node_tables", "edge_tables", "pool", "fold_edge_encoder", "kernel")


def _model_schema(name: str) -> type[ModelConfig]:
    module, class_name = MODELS[name]
    package, _, file = module.partition(".")
    source = Path(importlib.util.find_spec(package).submodule_search_locations[0], f"{file}.py")
    fields = keys.keys_of_constructor(source, class_name, leave_out=NO_KEYS, sizes=SIZES)
    schema = make_dataclass(f"{class_name}Config", [("name", str, key(name, "the model")), *fields],
                            bases=(ModelConfig,),
                            namespace={"__doc__": f"The options of :class:`{module}.{class_name}`."})
    schema.__module__ = __name__  # where ranks find it
    return schema


MODEL_SCHEMAS = {name: _model_schema(name) for name in MODELS}
globals().update({schema.__name__: schema for schema in MODEL_SCHEMAS.values()})


@dataclass
class TaskConfig:
    """What is learned."""

    name: str = key("node", "the task: labels of nodes (node), labels of whole graphs (graph), or links (link)")
    metric: str | None = key(None, "rocauc, ap or micro_f1 of binary tasks, acc of classes, mae or rmse of real "
                                   "values, hits@K for any K or mrr of links; null: that of the dataset")
    pool: str = key("mean", "of graph: what makes one row of the nodes of each graph", choices=("mean", "sum", "max"))
    pairs_per_step: int = key(65_536, "of link: training pairs of a batch", minimum=1)
    num_negatives: int = key(1, "of link: pairs drawn at random for each training pair", minimum=1)
    strict_negatives: bool = key(False, "of link: draw no training pair, and no node with itself")
    hide_pairs: bool = key(False, "of link: leave the training pairs of a batch out of its own edges")
    valid_edges: bool = key(False, "of link: take the validation pairs for edges where the test is evaluated")
    predictor_layers: int = key(3, "of link: linear layers of the predictor", minimum=1, below=1000)


@dataclass
class LoaderConfig:
    """What a batch is."""

    name: str = key("cluster", "cluster: what the clusters of partition induce; neighbor: training nodes with sampled "
                               "neighbours; graph: whole graphs")
    num_neighbors: list[int] = key([15, 10, 5, 5], "neighbours drawn at most for a node, at each hop of neighbor; "
                                                   "-1: all")
    batch_size: int = key(1024, "nodes of a batch of neighbor that count, or graphs of a batch of graph", minimum=1)
    pack: str = key("graphs", "of graph: what the batches hold equally many of, graphs or nodes",
                    choices=("graphs", "nodes"))
    backend: str = key("native", "what draws the neighbours: native, or PyG's NeighborLoader with pyg-lib or "
                                 "torch_sparse, which does not repeat its draws", choices=("native", "pyg"))


@dataclass
class FeaturesConfig:
    """What a model gets to see of the nodes."""

    name: str = key("data", "data: the features that they have, or that data.node_features makes of their edges; "
                            "embedding: a learned table with a row for each node")
    channels: int = key(64, "columns of the table", minimum=1)
    concat: bool = key(False, "the table beside the features of data, instead of in their place")
    lr: float = key(0.003, "learning rate of the table, scaled and warmed up as train.lr is", above=0)
    dropout: float = key(0.5, "fraction of the nodes that a step sees without their rows", minimum=0, below=1)
    optimizer: str = key("sparse_adam", "of the table: sparse_adam, or sgd, which keeps no moments")
    device: str = key("auto", "where the table lies: auto, with the model; cpu, in the memory of the machine",
                      choices=("auto", "cpu"))


@dataclass
class TrainConfig:
    """How the model is trained."""

    epochs: int = key(30, "passes over the graph, summed over the ranks", minimum=1, changes_numbers=False)
    lr: float = key(0.005, "learning rate of one rank, see parallel.lr_scaling", above=0)
    optimizer: str = key("adam", "the optimizer", choices=("adam", "adamw"))
    weight_decay: float = key(0.0, "weight decay of the optimizer", minimum=0)
    warmup_steps: int = key(0, "steps in which the learning rate rises linearly from lr / warmup_steps", minimum=0)
    clip_grad_norm: float = key(0.0, "largest norm of the gradient; 0: no clipping", minimum=0)
    label_input: float = key(0.0, "fraction of the training labels shown as inputs in training; "
                             "0: labels are no inputs", minimum=0, below=1)
    precision: str = key("fp32", "fp32; bf16 by autocast; fp16 by autocast with a scaled loss, whose scale is found as "
                                    "training goes", choices=("fp32", "bf16", "fp16"))
    eval_every: int = key(1, "passes over the graph between two evaluations; each saves a checkpoint", minimum=1)
    patience: int = key(0, "evaluations without a better validation metric before the run stops; 0: never", minimum=0)


@dataclass
class ParallelConfig:
    """Which ranks train, and on what."""

    name: str = key("epochs", "epochs: each rank draws its own partition; split: one partition is shared out; "
                    "single: one process", choices=("epochs", "split", "single"))
    num_ranks: int = key(1, "processes that train together, one per GPU, or CPU processes", minimum=1)
    lr_scaling: str = key("linear", "factor on train.lr for this many partitions at a time",
                          choices=("none", "sqrt", "linear"))
    threads_per_rank: int = key(0, "threads of each rank; 0: the machine's processors divided among its ranks, and "
                                "torch's own number for a single process or under torchrun", minimum=0, below=1024)
    check_every: int = key(100, "steps between two checks that all ranks have the same weights", minimum=1,
                           changes_numbers=False)
    warn_after: float = key(30.0, "seconds without a sign of life of a rank after which the log names it; ten times as "
                                  "many in phases that may take minutes", above=0, changes_numbers=False)
    timeout: float = key(600.0, "seconds without a sign of life of a rank, or ten times as many in phases that may "
                                "take minutes, after which the run is ended, with the rank's traceback and status 75",
                         above=0, changes_numbers=False)
    stop_timeout: float = key(12.0, "seconds from a signal to stop until the run is ended even if the step in hand "
                                    "is not; the last checkpoint remains", above=0, changes_numbers=False)


@dataclass
class EvaluationConfig:
    """How every node is predicted."""

    method: str = key("exact", "exact: the whole graph, layer by layer; views: random partitions, averaged; neighbor: "
                               "sampled neighbours, averaged", choices=("views", "exact", "neighbor"))
    num_views: int = key(1, "random partitions, or draws of neighbours, whose logits are averaged", minimum=1,
                         below=10_000)
    num_parts: int = key(5, "clusters of a view", minimum=1)
    num_neighbors: list[int] = key([], "of evaluation=neighbor, as loader.num_neighbors; []: the same as there")


@dataclass
class TrackerConfig:
    """What the numbers of every round go to, beside metrics.jsonl."""

    name: str = key("none", "the tracker", changes_numbers=False)
    project: str = key("parallel-epochs", "project of Weights & Biases, experiment of MLflow", changes_numbers=False)


@dataclass
class Config:
    """A run."""

    name: str = key("default", "of the experiment")
    seed: int = key(0, "of every random number", minimum=0, below=2**63)
    device: str = key("auto", "auto, cpu, cuda or cuda:N")
    kernel: str = key("auto", "what aggregates messages: fused where it can run, see models/aggregate",
                      choices=("auto", "fused", "reference"))
    memory: str | None = key(None, "what a GPU, or a machine for all its ranks, gives to training, as in 12GB; null: "
                                   "80 % of what it has", changes_numbers=False)
    resume: str | None = key(None, "a run directory to continue in place", changes_numbers=False, is_path=True)
    resume_allow_rescale: bool = key(False, "resume with another number of ranks, the learning rate computed anew",
                                     changes_numbers=False)
    cache_dir: str = key(".cache", "folder of prepared graphs and cuts", changes_numbers=False,
                          is_path=True)
    data: DataConfig = field(default_factory=SyntheticProteinsConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=MODEL_SCHEMAS["deepergcn"])
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)


@dataclass
class EvaluateConfig:
    """Keys of `python -m pipeline.evaluate` and `python -m pipeline.predict`."""

    run: str = key(..., "a run directory", is_path=True)
    checkpoint: str = key("best", "the checkpoint", choices=("best", "last"))
    method: str | None = key(None, "that of the run if not given", choices=("views", "exact", "neighbor"))
    num_views: int | None = key(None, "views to average; those of the run if not given", minimum=1, below=10_000)
    num_parts: int | None = key(None, "clusters of a view; those of the run if not given", minimum=1)
    num_neighbors: list[int] | None = key(None, "neighbours drawn at each hop; those of the run if not given")
    predictions: str | None = key(None, "a file to save the logits to, in the order of nodes or pairs; of vectors also "
                                  ".npy, .parquet, or .txt as word2vec's; of answers .tsv or .json", is_path=True)
    output: str | None = key(None, "of task=node, a table to write, a row for each node with its id, its split, what "
                             "is predicted and the scores: .parquet, .csv, .csv.gz, .tsv or .tsv.gz", is_path=True)
    output_nodes: str | None = key(None, "a table with a column id: the nodes that output shall hold, in this order; "
                                   "all nodes if not given", is_path=True)
    embeddings: bool = key(False, "embeddings of the nodes too in output: what the model's last linear layer reads")
    pairs: str | None = key(None, "of task=link and of vectors, a file with the pairs to predict, [num_pairs, 2] by "
                            "torch.save; those of the test if not given", is_path=True)
    neighbors: int = key(0, "of vectors: save as many nearest nodes of each in their place", minimum=0)
    triples: str | None = key(None, "of knowledge graphs, a table of questions: head, relation and tail a line, ? for "
                              "what is asked; or all three, to be scored", is_path=True)
    top: int = key(10, "answers of each question", minimum=1)
    filtered: bool = key(True, "leave out answers that training has")
    device: str = key("auto", "auto, cpu, cuda or cuda:N")


def open_schema() -> DictConfig:
    """Return the schema with places for any dataset, model and trainer, for Hydra to compose into."""
    schema = OmegaConf.structured(Config)
    schema.data, schema.model, schema.trainer = DataConfig, ModelConfig, TrainerConfig
    return schema


def open_mappings(schema: type) -> DictConfig:
    """Return a schema whose mappings, such as model.kwargs, take any names."""
    node = OmegaConf.structured(schema)
    for name in node:
        if isinstance(node._get_node(name), DictConfig):
            OmegaConf.set_struct(node._get_node(name), False)
    return node


def all_keys() -> set[str]:
    """Return the names of the keys of all datasets, models and trainers."""
    configs = [dataclasses.replace(Config(), data=schema()) for schema in DATA_SCHEMAS.values()]
    configs += [dataclasses.replace(Config(), model=schema()) for schema in MODEL_SCHEMAS.values()]
    configs += [dataclasses.replace(Config(), trainer=schema()) for schema in TRAINER_SCHEMAS.values()]
    return {entry.name for config in configs for entry in keys.entries(config)}


def to_object(cfg: DictConfig) -> Config:
    """Turn the composed configuration into plain dataclasses, every interpolation resolved.

    Raises:
        ValueError: the dataset is unknown, or a key is missing, unknown or of the wrong type; the message names it.
    """
    schema = OmegaConf.structured(Config)
    for part, name, schemas in (("data", "source", DATA_SCHEMAS), ("model", "name", MODEL_SCHEMAS)):
        chosen = OmegaConf.select(cfg, f"{part}.{name}")
        if chosen not in schemas:
            raise ValueError(f"{part}.{name}={chosen} is unknown; choose one of {', '.join(schemas)}")
        schema[part] = OmegaConf.structured(schemas[chosen])
    schema.trainer = OmegaConf.structured(TRAINER_SCHEMAS.get(OmegaConf.select(cfg, "trainer.name"), TrainerConfig))
    try:
        merged = OmegaConf.merge(schema, OmegaConf.to_container(cfg, resolve=True))
        if missing := OmegaConf.missing_keys(merged):
            raise ValueError(f"no value for {', '.join(sorted(missing))}: give it on the command line")
        config = cast(Config, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    check(config)
    return keys.expand_paths(config)


def check(config: Config) -> None:
    """Refuse values that no run can have.

    Raises:
        ValueError: names the key.
    """
    keys.check(config)
    components = config.data.components
    if components not in ("all", "largest", "separate") and not (components.isdecimal() and int(components) >= 1):
        raise ValueError(f"data.components={components}; choose all, largest, separate, or a number K for the K-th "
                         "largest component")
    if config.parallel.name == "single" and config.parallel.num_ranks > 1:
        raise ValueError(f"parallel=single is one rank, not parallel.num_ranks={config.parallel.num_ranks}")
    if config.data.holds not in config.trainer.takes:
        fitting = [name for name, schema in DATA_SCHEMAS.items() if getattr(schema, "holds") in config.trainer.takes]  # noqa: B009
        raise ValueError(f"trainer={config.trainer.name} does not take what data={config.data.source} holds; choose "
                         f"one of data={', '.join(fitting)}")
    if "graphs" not in config.trainer.takes:
        if components == "all":
            return  # none of the other parts takes part
        raise ValueError(f"data.components={components}: trainer={config.trainer.name} trains on all of the data; "
                         "leave it out")
    _check_graphs(config)
    _check_features(config)
    knn = getattr(config.model, "knn", 0)
    if knn and "neighbor" in (config.loader.name, config.evaluation.method):
        raise ValueError(f"model.knn={knn} finds neighbours by features, not along edges: set loader=cluster, and "
                         "evaluation=exact or evaluation=views")
    if config.partition.scale_sums and (config.model.name != "deepergcn" or config.task.name != "node" or knn):
        raise ValueError("partition.scale_sums=true is for model=deepergcn with task=node, along the graph's edges, "
                         f"not for model={config.model.name}, task={config.task.name}, model.knn={knn}")
    if config.loader.name == "neighbor":
        _check_num_neighbors("loader", config.loader.num_neighbors, config.model.num_layers)
    if config.evaluation.method == "neighbor":
        part = "evaluation" if config.evaluation.num_neighbors else "loader"
        _check_num_neighbors(part, getattr(config, part).num_neighbors, config.model.num_layers)


def _check_graphs(config: Config) -> None:
    whole = {"task": config.task.name == "graph", "loader": config.loader.name == "graph",
             "data": config.data.holds == "graphs"}
    if not any(whole.values()):
        return
    if not all(whole.values()):
        given = f"data={config.data.source}, task={config.task.name} and loader={config.loader.name}"
        raise ValueError(f"{given} do not fit each other: labels of whole graphs need task=graph, loader=graph and a "
                         "dataset of many graphs (data=ogb_graph, graph_files or smiles), labels of nodes none of them")
    if config.partition.name.startswith(("metis", "kaminpar")):
        raise ValueError(f"partition={config.partition.name}: whole graphs are not cut; leave it out")
    if config.evaluation.method != "exact":
        raise ValueError(f"evaluation={config.evaluation.method}: whole graphs are predicted exactly; set "
                         "evaluation=exact")
    if config.model.name in FOREIGN:
        raise ValueError(f"model={config.model.name}: nothing pools the nodes of each graph for it")
    if config.features.name != "data":
        raise ValueError(f"features={config.features.name}: the nodes of other graphs are others, which a table has no "
                         "rows for; leave it out")
    if config.train.label_input:
        raise ValueError(f"train.label_input={config.train.label_input:g}: labels of graphs are no inputs of nodes; "
                         "leave it out")


def _check_features(config: Config) -> None:
    features, dense = config.features, config.train.optimizer
    if features.optimizer in TrainConfig.__dataclass_fields__["optimizer"].metadata["meaning"].choices:
        raise ValueError(f"features.optimizer={features.optimizer} is a dense optimizer: it takes no sparse gradients, "
                         "and would move every row of the table at every step. Choose sparse_adam or sgd; "
                         f"train.optimizer={dense} is that of the model")
    if features.optimizer not in ("sparse_adam", "sgd"):
        raise ValueError(f"features.optimizer={features.optimizer} is unknown; choose one of sparse_adam, sgd")
    if features.name == "embedding" and config.train.precision == "fp16":
        raise ValueError("train.precision=fp16 scales the loss, and features=embedding has sparse gradients that no "
                         "scaler takes: set train.precision=bf16 or fp32")


def _check_num_neighbors(part: str, num_neighbors: list[int], num_layers: int) -> None:
    name = f"{part}.num_neighbors=[{','.join(map(str, num_neighbors))}]"
    if len(num_neighbors) != num_layers:
        example = "15,10,..." if num_layers > 8 else ",".join(["15", "10", *["5"] * (num_layers - 2)][:num_layers])
        raise ValueError(f"{name} has {len(num_neighbors)} numbers for model.num_layers={num_layers}: give one for "
                         f"each layer, as in {part}.num_neighbors=[{example}]")
    if wrong := [number for number in num_neighbors if not (isinstance(number, int) and (number > 0 or number == -1))]:
        raise ValueError(f"{name}: {wrong[0]} neighbours cannot be drawn; give at least 1, or -1 for all of them")


def to_yaml(config: Config) -> str:
    """Write the configuration as YAML, for :func:`load`."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def load(path: Path) -> Config:
    """Read what :func:`to_yaml` wrote.

    Raises:
        ValueError: there is no such file, or it is not a configuration.
    """
    if not files.is_there(path):
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    try:
        cfg = OmegaConf.create(files.read_text(path))
        if not isinstance(cfg, DictConfig) or not cfg:
            raise ValueError("it holds no keys")
        if cfg.pop("tensorboard", False):  # the key of version 0.2.0
            cfg.tracker = {"name": "tensorboard"}
        return to_object(cfg)
    except DamagedFile:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError, AssertionError) as error:
        reason = one_line(error) or "it holds no keys"  # OmegaConf asserts that without a word
        raise ValueError(f"{path} is not the configuration of a run: {reason}") from error
