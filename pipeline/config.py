"""The schema of conf/: every key, its type, unit and default. After composition the program sees only these classes."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from models.aggregate import AGGREGATIONS, KERNELS
from models.deepgcn import BLOCKS, NORMS


@dataclass
class DataConfig:
    """Keys of every dataset."""

    source: str = MISSING  # synthetic_proteins | digits | ogb | file
    components: str = "all"  # all | largest | K (the K-th largest, from 1) | separate
    min_component_size: int = 100  # nodes; smaller components get no model of their own under `separate`
    to_undirected: bool = False  # add the missing reverse edges
    add_self_loops: bool = False
    node_features: str = "sum"  # of a graph without any: sum | log_sum of the incident edges' features


@dataclass
class SyntheticProteinsConfig(DataConfig):
    """A generated graph with the schema of ogbn-proteins."""

    source: str = "synthetic_proteins"
    num_nodes: int = 8000
    num_edges: int = 400_000  # directed, twice the number of pairs
    num_species: int = 8
    num_groups: int = 100  # planted communities
    num_tasks: int = 16
    graph_seed: int = 0


@dataclass
class DigitsConfig(DataConfig):
    """The k-nearest-neighbour graph of scikit-learn's 1,797 handwritten digits."""

    source: str = "digits"
    num_neighbors: int = 8
    train_fraction: float = 0.6
    valid_fraction: float = 0.2
    graph_seed: int = 0


@dataclass
class OGBConfig(DataConfig):
    """A node dataset of the Open Graph Benchmark, or any folder in its raw CSV layout."""

    source: str = "ogb"
    name: str = MISSING  # ogbn-proteins | ogbn-arxiv | ogbn-products
    root: str = "dataset"  # where `prepare` downloads to
    folder: str | None = None  # a folder with raw/ and split/, instead of root/name


@dataclass
class FileConfig(DataConfig):
    """A `torch_geometric.data.Data` saved by torch.save."""

    source: str = "file"
    path: str = MISSING


@dataclass
class PartitionConfig:
    name: str = "random"  # random | metis | metis_random | whole
    num_parts: int = 10  # clusters in an epoch
    clusters_per_step: int = 1  # merged into one batch, with the edges between them
    num_micro_parts: int = 0  # of metis_random, regrouped into num_parts each epoch; 0: 20 x num_parts
    prefetch: int = 2  # batches drawn ahead in the background


@dataclass
class ModelConfig:
    name: str = "deepergcn"
    num_layers: int = 7
    hidden_channels: int = 64
    block: str = "res+"  # res+ | res | plain | dense
    aggr: str = "softmax"  # softmax | softmax_sg | softmax_sum | power | power_sum | powermean | mean | max | add
    t: float = 1.0
    learn_t: bool = False
    p: float = 1.0
    learn_p: bool = False
    y: float = 0.0
    learn_y: bool = False
    msg_norm: bool = False
    learn_msg_scale: bool = False
    norm: str = "layer"  # layer | batch
    num_mlp_layers: int = 2
    dropout: float = 0.1
    gradient_checkpointing: bool = False


@dataclass
class TrainConfig:
    epochs: int = 100  # passes over the graph, summed over the ranks
    lr: float = 1e-3  # of one rank, see parallel.lr_scaling
    optimizer: str = "adam"  # adam | adamw
    weight_decay: float = 0.0
    warmup_steps: int = 0  # linear, from lr / warmup_steps
    clip_grad_norm: float = 0.0  # 0: no clipping
    label_input: float = 0.0  # fraction of the training labels shown as inputs in training; 0: labels are no inputs
    precision: str = "fp32"  # fp32 | bf16 (autocast)
    eval_every: int = 1  # passes over the graph; a checkpoint is saved at each evaluation
    patience: int = 0  # evaluations without a better validation metric before the run stops; 0: never


@dataclass
class ParallelConfig:
    name: str = "epochs"  # epochs (each rank its own partition) | split (one partition shared out) | single
    num_ranks: int = 1  # processes, one per GPU or CPU processes
    lr_scaling: str = "linear"  # none | sqrt | linear: factor on train.lr for this many partitions at a time
    threads_per_rank: int = 0  # 0: the machine's processors divided among its ranks
    check_every: int = 100  # steps between two checks that all ranks have the same weights


@dataclass
class EvaluationConfig:
    method: str = "views"  # views | exact
    num_views: int = 1  # random partitions whose logits are averaged
    num_parts: int = 5  # clusters of a view


@dataclass
class Config:
    name: str = "default"
    seed: int = 0
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    kernel: str = "auto"  # auto | fused | reference: what aggregates messages, see models/aggregate
    resume: str | None = None  # a run directory to continue in place
    resume_allow_rescale: bool = False  # with another number of ranks, the learning rate computed anew
    cache_dir: str = ".cache"
    tensorboard: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass
class EvaluateConfig:
    """Keys of `python -m pipeline.evaluate`."""

    run: str = MISSING  # a run directory
    checkpoint: str = "best"  # best | last
    method: str | None = None  # views | exact; that of the run if not given
    num_views: int | None = None
    num_parts: int | None = None
    predictions: str | None = None  # a file to save the logits to, in node order
    device: str = "auto"


DATA_SCHEMAS = {
    schema.source: schema for schema in (SyntheticProteinsConfig, DigitsConfig, OGBConfig, FileConfig)
}


def to_object(cfg: DictConfig) -> Config:
    """The composed configuration as plain dataclasses, every interpolation resolved.

    Raises:
        ValueError: the dataset is unknown, or a key is missing, unknown or of the wrong type; the message names it.
    """
    source = OmegaConf.select(cfg, "data.source")
    if source not in DATA_SCHEMAS:
        raise ValueError(f"unknown dataset: data.source={source}; choose one of {', '.join(DATA_SCHEMAS)}")
    schema = OmegaConf.structured(Config)
    schema.data = OmegaConf.structured(DATA_SCHEMAS[source])
    try:
        merged = OmegaConf.merge(schema, OmegaConf.to_container(cfg, resolve=True))
        if missing := OmegaConf.missing_keys(merged):
            raise ValueError(f"no value for {', '.join(sorted(missing))}: give it on the command line")
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    check(config)
    return config


def check(config: Config) -> None:
    """Refuse values that no run can have.

    Raises:
        ValueError: names the key.
    """

    def choose(key: str, value: str, *choices: str) -> None:
        if value not in choices:
            raise ValueError(f"unknown {key}={value}; choose one of {', '.join(choices)}")

    def at_least(key: str, value: float, minimum: float) -> None:
        if value < minimum:
            raise ValueError(f"{key} must be at least {minimum}, not {value}")

    choose("kernel", config.kernel, *KERNELS)
    choose("model.name", config.model.name, "deepergcn")
    choose("model.block", config.model.block, *BLOCKS)
    choose("model.aggr", config.model.aggr, *AGGREGATIONS)
    choose("model.norm", config.model.norm, *NORMS)
    choose("partition.name", config.partition.name, "random", "metis", "metis_random", "whole")
    choose("train.optimizer", config.train.optimizer, "adam", "adamw")
    choose("train.precision", config.train.precision, "fp32", "bf16")
    choose("parallel.name", config.parallel.name, "epochs", "split", "single")
    choose("parallel.lr_scaling", config.parallel.lr_scaling, "none", "sqrt", "linear")
    choose("evaluation.method", config.evaluation.method, "views", "exact")
    choose("data.node_features", config.data.node_features, "sum", "log_sum")
    if config.data.components not in ("all", "largest", "separate") and not (
            config.data.components.isdecimal() and int(config.data.components) >= 1):
        raise ValueError(f"data.components={config.data.components}; choose all, largest, separate, "
                         "or a number K for the K-th largest component")
    at_least("model.num_layers", config.model.num_layers, 1)
    at_least("model.hidden_channels", config.model.hidden_channels, 1)
    at_least("model.num_mlp_layers", config.model.num_mlp_layers, 1)
    if not 0 <= config.model.dropout < 1:
        raise ValueError(f"model.dropout must be in [0, 1), not {config.model.dropout}")
    at_least("partition.num_parts", config.partition.num_parts, 1)
    at_least("partition.clusters_per_step", config.partition.clusters_per_step, 1)
    at_least("partition.num_micro_parts", config.partition.num_micro_parts, 0)
    at_least("partition.prefetch", config.partition.prefetch, 1)
    at_least("train.epochs", config.train.epochs, 1)
    at_least("train.eval_every", config.train.eval_every, 1)
    at_least("train.patience", config.train.patience, 0)
    at_least("train.warmup_steps", config.train.warmup_steps, 0)
    at_least("train.clip_grad_norm", config.train.clip_grad_norm, 0)
    at_least("parallel.num_ranks", config.parallel.num_ranks, 1)
    at_least("parallel.threads_per_rank", config.parallel.threads_per_rank, 0)
    at_least("parallel.check_every", config.parallel.check_every, 1)
    if config.parallel.name == "single" and config.parallel.num_ranks > 1:
        raise ValueError(f"parallel=single is one rank, not parallel.num_ranks={config.parallel.num_ranks}")
    at_least("evaluation.num_views", config.evaluation.num_views, 1)
    at_least("evaluation.num_parts", config.evaluation.num_parts, 1)
    if not 0 <= config.train.label_input < 1:
        raise ValueError(f"train.label_input must be in [0, 1), not {config.train.label_input}")
    if not 0 < config.train.lr < math.inf:
        raise ValueError(f"train.lr must be positive, not {config.train.lr}")
    at_least("train.weight_decay", config.train.weight_decay, 0)
    if config.model.p == 0:
        raise ValueError("model.p must not be 0: the power mean divides by it")
    if config.model.aggr == "softmax_sg" and config.model.learn_t:
        raise ValueError("model.aggr=softmax_sg has no gradient for t: set model.learn_t=false")
    if not 0 <= config.seed < 2**63:
        raise ValueError(f"seed must be between 0 and 2^63 - 1, not {config.seed}")


def to_yaml(config: Config) -> str:
    """The configuration as YAML, for :func:`load`."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def load(path: Path) -> Config:
    """Read what :func:`to_yaml` wrote.

    Raises:
        ValueError: there is no such file, or it is not a configuration.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    try:
        cfg = OmegaConf.load(path)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not a configuration: {one_line(error)}") from error
    return to_object(cfg)


def differences(saved: object, given: object, prefix: str = "") -> list[str]:
    """The keys whose values differ, as "key: saved -> given", in the order of the schema."""
    if type(saved) is not type(given):
        return [f"{prefix.rstrip('.')}: {type(saved).__name__} -> {type(given).__name__}"]
    lines = []
    for f in fields(saved):
        a, b, key = getattr(saved, f.name), getattr(given, f.name), f"{prefix}{f.name}"
        if hasattr(a, "__dataclass_fields__"):
            lines += differences(a, b, f"{key}.")
        elif a != b:
            lines.append(f"{key}: {a} -> {b}")
    return lines


def one_line(error: BaseException) -> str:
    """The message of an error and of what caused it, without the lines that only a programmer can use."""
    if isinstance(error.__cause__, OSError):
        return one_line(error.__cause__)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    noise = ("object_type=", "reference_type=", "full_key:", "To append", "provider=", "Config search path")
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error.__cause__, OmegaConfBaseException):
        lines += one_line(error.__cause__).splitlines()
    lines = [line.removeprefix("ValueError raised while resolving interpolation: ") for line in lines]
    return " ".join(line for line in lines if line and not line.startswith(noise))
