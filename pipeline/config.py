"""Every key of conf/ with its type, default and meaning. After composition the program sees only these classes.

Nothing here imports torch, so that ``--help`` answers at once.
"""

import dataclasses
import importlib.util
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import keys
from pipeline.data.config import DATA_SCHEMAS, DataConfig, SyntheticProteinsConfig
from pipeline.keys import key
from pipeline.run.errors import one_line


@dataclass
class PartitionConfig:
    """How the graph is cut into clusters."""

    name: str = key("random", "how clusters are drawn")
    num_parts: int = key(4, "clusters of a partition", minimum=1)
    clusters_per_step: int = key(1, "clusters merged into one batch, with the edges between them", minimum=1)
    num_micro_parts: int = key(0, "METIS clusters of metis_random, regrouped into num_parts each round; "
                               "0: 20 x num_parts", minimum=0)
    prefetch: int = key(2, "batches drawn ahead in the background", minimum=1, changes_numbers=False)


@dataclass
class ModelConfig:
    """Keys of every model."""

    name: str = key("", "the model")
    num_layers: int = key(4, "layers")
    hidden_channels: int = key(64, "channels of a layer")


SIZES = {"num_layers": ModelConfig.num_layers, "hidden_channels": ModelConfig.hidden_channels}
# Models by name: module and class. The options of a model are those of its constructor, written and checked there.
MODELS = {"deepergcn": ("models.deepgcn", "DeeperGCN")}
# What a constructor takes that is no key of a configuration: it depends on the graph, or has a key elsewhere.
NO_KEYS = ("edge_dim", "num_categories", "fold_edge_encoder", "kernel")


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

    name: str = key("node", "the task")


@dataclass
class LoaderConfig:
    """What a batch is."""

    name: str = key("cluster", "the loader of the batches")


@dataclass
class TrainerConfig:
    """What a step is."""

    name: str = key("gnn", "the trainer")


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
    precision: str = key("fp32", "fp32, or bf16 by autocast", choices=("fp32", "bf16"))
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
                                "torch's own number for a single process or under torchrun", minimum=0)
    check_every: int = key(100, "steps between two checks that all ranks have the same weights", minimum=1,
                           changes_numbers=False)


@dataclass
class EvaluationConfig:
    """How every node is predicted."""

    method: str = key("exact", "exact: the whole graph, layer by layer; views: random partitions, averaged",
                      choices=("views", "exact"))
    num_views: int = key(1, "random partitions whose logits are averaged", minimum=1)
    num_parts: int = key(5, "clusters of a view", minimum=1)


@dataclass
class Config:
    """A run."""

    name: str = key("default", "of the experiment")
    seed: int = key(0, "of every random number", minimum=0, below=2**63)
    device: str = key("auto", "auto, cpu, cuda or cuda:N")
    kernel: str = key("auto", "what aggregates messages: fused where it can run, see models/aggregate",
                      choices=("auto", "fused", "reference"))
    resume: str | None = key(None, "a run directory to continue in place", changes_numbers=False)
    resume_allow_rescale: bool = key(False, "resume with another number of ranks, the learning rate computed anew",
                                     changes_numbers=False)
    cache_dir: str = key(".cache", "folder of prepared graphs and METIS clusters", changes_numbers=False)
    tensorboard: bool = key(False, "write event files for TensorBoard", changes_numbers=False)
    data: DataConfig = field(default_factory=SyntheticProteinsConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=MODEL_SCHEMAS["deepergcn"])
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass
class EvaluateConfig:
    """Keys of `python -m pipeline.evaluate` and `python -m pipeline.predict`."""

    run: str = key(..., "a run directory")
    checkpoint: str = key("best", "the checkpoint", choices=("best", "last"))
    method: str | None = key(None, "views or exact; that of the run if not given")
    num_views: int | None = key(None, "views to average; those of the run if not given")
    num_parts: int | None = key(None, "clusters of a view; those of the run if not given")
    predictions: str | None = key(None, "a file to save the logits to, in node order")
    device: str = key("auto", "auto, cpu, cuda or cuda:N")


def open_schema() -> DictConfig:
    """Return the schema with places for any dataset and model, for Hydra to compose into."""
    schema = OmegaConf.structured(Config)
    schema.data, schema.model = DataConfig, ModelConfig
    return schema


def keys_without_effect() -> set[str]:
    """Return the keys that change where things lie and how long a run trains, not what a step computes."""
    configs = [dataclasses.replace(Config(), data=schema()) for schema in DATA_SCHEMAS.values()]
    return {entry.name for config in configs for entry in keys.entries(config) if not entry.meaning.changes_numbers}


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
    try:
        merged = OmegaConf.merge(schema, OmegaConf.to_container(cfg, resolve=True))
        if missing := OmegaConf.missing_keys(merged):
            raise ValueError(f"no value for {', '.join(sorted(missing))}: give it on the command line")
        config = cast(Config, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    check(config)
    return config


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


def to_yaml(config: Config) -> str:
    """Write the configuration as YAML, for :func:`load`."""
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
    if not isinstance(cfg, DictConfig):
        raise ValueError(f"{path} is not a configuration: it holds a list")
    return to_object(cfg)
