"""Tasks: what is learned, its loss and its metric, from tensors alone."""
