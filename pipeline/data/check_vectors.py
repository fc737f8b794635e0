"""Refuses vectors that no layout could be made of."""

import torch
from torch_geometric.data import Data


def check_vectors(data: Data) -> None:
    """Check that there are two vectors at least, of finite numbers.

    Raises:
        ValueError: says which number is none.
    """
    x = data.x
    if len(x) < 2:
        raise ValueError(f"there {'is 1 vector' if len(x) == 1 else 'are no vectors'}: two at least have a layout")
    if not x.size(1):
        raise ValueError("the vectors have no numbers")
    wrong = ~torch.isfinite(x)
    if bool(wrong.any()):
        row, column = (int(place) for place in wrong.nonzero()[0])
        raise ValueError(f"{int(wrong.any(1).sum()):,} vectors are not finite in float32: row {row}, column {column} "
                         f"holds {x[row, column]:g}; leave such rows out, or fill them")
