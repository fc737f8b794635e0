"""Names of splits, masks, pairs and metrics that several packages share."""

SPLITS = ("train", "valid", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
# Pairs of nodes of a link task, each [num_pairs, 2]: those to be linked, and those of an evaluation that are not.
PAIRS = ("train_pairs", "valid_pairs", "valid_negatives", "test_pairs", "test_negatives")
# Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = ("mae", "rmse")


def merit(metric: str, value: float) -> float:
    """Return a metric's value with the sign for which higher is better. Applied twice, it returns the value."""
    return -value if metric in LOWER_IS_BETTER else value
