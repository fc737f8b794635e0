"""Names of splits, masks, pairs, metrics and devices that several packages share."""

import re

SPLITS = ("train", "valid", "test")
# The split that a name means, of a folder, a file or a cell of a table.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
MASKS = tuple(f"{split}_mask" for split in SPLITS)
# Pairs of nodes of a link task, each [num_pairs, 2]: those to be linked, and those of an evaluation that are not.
PAIRS = ("train_pairs", "valid_pairs", "valid_negatives", "test_pairs", "test_negatives")
# The times of the training pairs, followed by those of the validation pairs, where pairs are divided by time.
PAIR_TIMES = "pair_times"
# Columns of a table of pairs of nodes.
PAIR_COLUMNS = ("source", "target")
# Stands between the id and the time in the name of a row of a label table.
ROW_SEPARATOR = "\x1f"
# The array of a prepared graph with the snapshot of each row of a label table, if it has one.
SNAPSHOT = "snapshot"
# The array of such a graph with the time of each row, and the time at which its label is known.
ROW_TIMES = "row_times"
# The value of a prepared graph with a node that was a source of an edge before reverse edges were added.
FIRST_SOURCE = "first_source"
# The value of a prepared graph with the number of the first column of ``x`` that holds scores of texts, one for each
# class or column of labels.
TEXT_SCORES = "text_scores"
# Arrays of a prepared graph: TF-IDF of the texts of its nodes, the sparse matrix that linear models read.
TERMS = ("text_ptr", "text_terms", "text_weights")
# Values of a graph that is a part of another one: the sums of the weights of all edges that end at its nodes there, and
# the mean label there.
WHOLE_DEGREE, WHOLE_MEAN = "whole_degree", "whole_mean"
# Value of a graph with the columns of x that hold the scores of a simple method.
BASE_COLUMNS = "base_columns"
# An opened graph says under this name which columns mark the empty cells of others: of the nodes of each type, and of
# the edges of each relation but the reverse ones.
# Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = ("mae", "rmse")
# With @K, metrics of links that rank all candidates of a source. They have no value for links that are known.
RANKING_METRICS = ("recall", "ndcg", "hit", "mrr")
# The file of a run directory with the scores of each class or task at the best epoch. Of more of them it has none.
SCORES, MAX_LABELS = "scores.json", 200


def check_device(name: str) -> None:
    """Refuse a device that has no name of a device's. Whether it is there is known when torch is imported.

    Raises:
        ValueError: names the key and those that are known.
    """
    if not isinstance(name, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"device={name} is unknown; choose auto, cpu, cuda or cuda:N")


def ranks_at(metric: str) -> int:
    """Read K of a metric that ranks all candidates of a source; 0 for others."""
    found = re.fullmatch(rf"(?:{'|'.join(RANKING_METRICS)})@([1-9]\d{{0,8}})", metric)
    return int(found[1]) if found else 0


def merit(metric: str, value: float) -> float:
    """Return a metric's value with the sign for which higher is better. Applied twice, it returns the value."""
    return -value if metric in LOWER_IS_BETTER else value
