"""Names that several rooms share."""

SPLITS = ("train", "valid", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
