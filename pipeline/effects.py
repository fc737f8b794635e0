"""Which keys of a configuration change numbers, which are given, and which do nothing beside the others."""

import dataclasses
from typing import Any

from pipeline import keys
from pipeline.config import Config, TaskConfig
from pipeline.data.config import DATA_SCHEMAS


def keys_without_effect(config: Config | None = None) -> set[str]:
    """Return the keys that change where things lie and how long a run trains, not what a step computes.

    Args:
        config: of a run; then those that its loader does not look at are among them.
    """
    configs = [dataclasses.replace(Config(), data=schema()) for schema in DATA_SCHEMAS.values()]
    names = {entry.name for config in configs for entry in keys.entries(config) if not entry.meaning.changes_numbers}
    if config is not None and config.loader.name in ("neighbor", "graph"):
        names |= {f"partition.{field.name}" for field in dataclasses.fields(config.partition)}
    return names


# What another number of ranks may change; a checkpoint says how many there were.
RESCALED = {"parallel.num_ranks", "parallel.threads_per_rank"}


def settings(config: Config) -> dict[str, Any]:
    """Return the keys that change numbers, for the checkpoints of a run: who edits its config.yaml is told.

    Not those that say where files lie, whose content is compared, nor those of the ranks, whose number is.
    """
    left_out = keys_without_effect(config) | RESCALED
    return {entry.name: entry.value for entry in keys.entries(config)
            if entry.name not in left_out and not entry.meaning.names_files}


def changed_keys(config: Config) -> set[str]:
    """Return the keys that have another value than in the default run."""
    default = dataclasses.replace(Config(), data=type(config.data)(), model=type(config.model)(),
                                  trainer=type(config.trainer)())
    values = {entry.name: entry.value for entry in keys.entries(config)}
    chosen = {name for name, part, usual in (("data.source", config.data, Config().data),
                                             ("model.name", config.model, Config().model))
              if type(part) is not type(usual)}
    return chosen | {entry.name for entry in keys.entries(default) if values[entry.name] != entry.value}


# Keys that count only where another has one of some values.
COUNTS_WHERE: dict[str, tuple[str, tuple]] = {
    "partition.num_micro_parts": ("partition.name", ("metis_random", "kaminpar_random")),
    "partition.scale_sums": ("model.aggr", ("add", "softmax_sum", "power_sum")),
    "loader.backend": ("loader.name", ("neighbor",)),
    "loader.pack": ("loader.name", ("graph",)),
    "task.pool": ("task.name", ("graph",)),
    **{f"task.{field.name}": ("task.name", ("link",)) for field in dataclasses.fields(TaskConfig)
       if field.name not in ("name", "metric", "pool")},
    **{f"features.{name}": ("features.name", ("embedding",))
       for name in ("channels", "concat", "lr", "dropout", "optimizer", "device")},
    "evaluation.num_views": ("evaluation.method", ("views", "neighbor")),
    "evaluation.num_neighbors": ("evaluation.method", ("neighbor",)),
    "evaluation.num_parts": ("evaluation.method", ("views",)),
    "data.min_component_size": ("data.components", ("separate",)),
    "model.t": ("model.aggr", ("softmax", "softmax_sg", "softmax_sum")),
    "model.p": ("model.aggr", ("power", "power_sum", "powermean")),
    "model.learn_p": ("model.aggr", ("power", "power_sum", "powermean")),
    "model.y": ("model.aggr", ("softmax_sum", "power_sum")),
    "model.learn_y": ("model.aggr", ("softmax_sum", "power_sum")),
    "model.learn_msg_scale": ("model.msg_norm", (True,)),
}
WALKED = ("deepwalk", "node2vec", "line")
# The same for keys of a trainer, by its name: two of them may have keys of one name.
COUNTS_WHERE_OF: dict[str, dict[str, tuple[str, tuple]]] = {
    "node_embedding": {
        "trainer.p": ("trainer.model", ("node2vec",)),
        "trainer.q": ("trainer.model", ("node2vec",)),
        "trainer.walk_length": ("trainer.model", ("deepwalk", "node2vec")),
        "trainer.order": ("trainer.model", ("line",)),
        **{f"trainer.{name}": ("trainer.model", WALKED)
           for name in ("augmentation_distance", "init", "num_negatives", "negative_weight", "negative_exponent",
                        "optimizer", "weight_decay", "last_lr", "num_parts", "episode_size")},
        "trainer.portions": ("trainer.metric", ("micro_f1", "macro_f1", None)),
        "trainer.num_draws": ("trainer.metric", ("micro_f1", "macro_f1", None)),
        "trainer.holdout": ("trainer.metric", ("auc", None)),
    },
    "knowledge": {
        "trainer.norm": ("trainer.model", ("transe",)),
        **{f"trainer.{name}": ("trainer.loss", ("negatives",))
           for name in ("chunk_size", "num_negatives", "temperature")},
        "trainer.margin": ("trainer.model", ("transe", "rotate")),
        "trainer.init_scale": ("trainer.model", ("distmult", "complex", "simple")),
    },
    "layout": {f"trainer.{name}": ("data.source", ("vectors",))
               for name in ("perplexity", "num_neighbors", "neighbors", "pca_dim", "score_sample")},
}
# Parts of a configuration that only trainer=gnn looks at.
PARTS_OF_GNN = ("model.", "task.", "loader.", "partition.", "features.", "evaluation.", "kernel", "parallel.lr_scaling",
                *(f"train.{name}" for name in ("optimizer", "weight_decay", "warmup_steps", "clip_grad_norm",
                                               "label_input", "precision")))


def explain_idle_keys(config: Config) -> str | None:
    """Name the keys that have been given a value and do nothing, and why; none if there are none."""
    values, changed = {entry.name: entry.value for entry in keys.entries(config)}, changed_keys(config)
    where = COUNTS_WHERE | COUNTS_WHERE_OF.get(config.trainer.name, {})
    idle = [f"{name}={values[name]} with {other}={values[other]}" for name, (other, counts) in where.items()
            if name in changed and values[other] not in counts]
    if "graphs" not in config.trainer.takes:
        idle += [f"{name}={values[name]} with trainer.name={config.trainer.name}" for name in sorted(changed)
                 if name.startswith(PARTS_OF_GNN)]
        return f"without effect: {', '.join(idle)}" if idle else None
    unused: set[str] = set()
    if config.loader.name in ("neighbor", "graph"):
        unused = {name for name in changed if name.startswith("partition.")} - {"partition.prefetch"}
        if config.loader.name == "graph":
            unused |= changed & {"loader.num_neighbors"}
    elif config.loader.name == "cluster" and config.evaluation.method != "neighbor":
        unused = changed & {"loader.num_neighbors", "loader.batch_size"}
    idle += [f"{name}={values[name]} with loader.name={config.loader.name}" for name in sorted(unused)]
    if config.partition.name == "whole" and config.partition.num_parts != 1:
        idle.append(f"partition.num_parts={config.partition.num_parts} with partition.name=whole")
    return f"without effect: {', '.join(idle)}" if idle else None
