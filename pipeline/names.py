"""Names that several rooms share."""

SPLITS = ("train", "valid", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
# Pairs of nodes of a link task, each [num_pairs, 2]: those to be linked, and those of an evaluation that are not.
PAIRS = ("train_pairs", "valid_pairs", "valid_negatives", "test_pairs", "test_negatives")
