"""Names that several rooms share."""

SPLITS = ("train", "valid", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
PARTITIONS = ("random", "metis", "metis_random", "whole")
