"""Keys that no run reads any more, with the values under which a saved run still means the same; none: any value."""

from typing import Any

# Version 0.6.0 reads a run with any other value.
LAST_VERSION = "0.6.0"
KEYS: dict[str, tuple] = {
    "baselines.seconds": (),
    "data.dangling": ("drop",),
    "data.device": (),
    "data.header": (None,),
    "data.laplacian": (None,),
    "data.link_negatives": ("sides",),
    "data.min_component_size": (100,),
    "data.nodes.char_lengths": ([2, 4],),
    "data.nodes.labels": ([],),
    "data.nodes.log_label": (False,),
    "data.nodes.max_categories": (),
    "data.nodes.quantiles": ([],),
    "data.nodes.table": (None,),
    "data.nodes.tag_separator": ("|",),
    "data.nodes.text_words": (1,),
    "data.num_neighbors": (8,),
    "data.num_workers": (),
    "data.propagate": (0,),
    "data.propagate_scale": ("each",),
    "data.edges.labels": ([],),
    "data.edges.table": (None,),
    "data.empty": ("zero",),
    "data.events.any": (None,),
    "data.events.count": (None,),
    "data.events.of": ("source",),
    "data.events.within": (None,),
    "data.memory_limit": (),
    "data.rows.id": ("id",),
    "data.rows.label": ("label",),
    "data.rows.table": (None,),
    "data.rows.time": ("time",),
    "data.score_folds": ("groups",),
    "data.skip_invalid": (),
    "data.split_column": (None, "split"),
    "data.smiles_column": ("smiles",),
    "data.snapshots": (0,),
    "data.summaries": (0,),
    "data.threads": (),
    "evaluation.smooth": (),
    "features.device": (),
    "features.optimizer": ("sparse_adam",),
    "loader.backend": ("native",),
    "loader.pack": ("graphs",),
    "model.block": ("res+",),
    "model.jk": ("none",),
    "model.knn": (0,),
    "model.knn_dilation": (1,),
    "model.knn_epsilon": (0.0,),
    "model.learn_msg_scale": (False,),
    "model.learn_p": (False,),
    "model.learn_t": (),
    "model.learn_y": (False,),
    "model.msg_norm": (False,),
    "model.num_groups": (2,),
    "model.p": (),
    "model.reversible": (),
    "model.tolerance": (0.001,),
    "model.y": (0.0,),
    "tensorboard": (),
    "parallel.check_every": (),
    "parallel.warn_after": (),
    "partition.num_micro_parts": (0,),
    "partition.prefetch": (),
    "partition.scale_sums": (False,),
    "partition.stratify": (False,),
    "task.focal_gamma": (0.0,),
    "task.hide_labelled": (True,),
    "task.label_smoothing": (0.0,),
    "task.strict_negatives": (False,),
    "tracker.project": (),
    "task.three_hops": (),
    "train.cuda_graph": (),
    "train.decay_vectors": (True,),
    "train.last_lr": (0.0,),
    "train.step_epochs": (),
    "train.step_factor": (),
    "trainer.chunk_size": (),
    "trainer.early_fraction": (0.25,),
    "trainer.eval_sample": (0,),
    "trainer.holdout_negatives": ("unlinked",),
    "trainer.negative_exponent": (0.75,),
    "trainer.neighbors": ("auto",),
    "trainer.norm": (1,),
    "trainer.per_relation": (),
    "trainer.propagation": (),
    "trainer.relation_weight": (0.0,),
    "trainer.score_sample": (2000,),
    "trainer.tables": (),
}
# Values that a key has no more.
VALUES = {
    "data.node_features": ("counts",),
    "model.aggr": ("power", "power_sum", "powermean"),
    "partition.name": ("kaminpar", "kaminpar_random"),
}


# Keys that one value of another key has no more, and others have.
OF_ONE = (
    (("trainer.name", "knowledge"), "trainer.num_parts"),
    (("data.source", "file"), "data.time_column"),
)


def leave_out(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out gone keys of a saved configuration that have the values that are fixed now.

    Args:
        values: of all keys, by their full names.

    Raises:
        ValueError: a gone key has another value, or a key has a gone one.
    """
    wrong = [name for name, gone in VALUES.items() if values.get(name) in gone]
    wrong += [
        name for name, fixed in KEYS.items() if fixed and values.get(name, fixed[0]) not in fixed
    ]
    for owner, name in OF_ONE:
        if values.get(owner[0]) == owner[1] and values.get(name) not in (None, 1, "auto"):
            wrong.append(name)
    is_divided = values.get("task.name") == "link" and values.get("data.source") != "ogb_link"
    # Versions without that key drew pairs of any two nodes; train.last_lr tells their runs from those of today.
    if is_divided and "data.link_negatives" not in values and "train.last_lr" in values:
        values["data.link_negatives"] = "all"
        wrong.append("data.link_negatives")
    if values.get("model.learn_t") is False and values["model.aggr"] in ("softmax", "softmax_sum"):
        wrong.append("model.learn_t")
    for name in wrong:
        raise ValueError(
            f"{name}={values[name]} is a key of version {LAST_VERSION} and before, which opens this run: "
            f"pip install parallel-epochs=={LAST_VERSION}"
        )
    if values.get("task.base_seconds") == "auto":  # no method was chosen
        del values["task.base_seconds"]
    return {name: value for name, value in values.items() if name not in KEYS}
