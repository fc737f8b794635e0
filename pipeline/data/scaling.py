"""Columns of features at mean 0 and variance 1."""

import torch
from torch import Tensor

# A column is constant, but for rounding, if its deviation is a smaller part of its mean.
LEAST_DEVIATION = 1e-6
# Columns that are brought to mean 0 and variance 1 at a time.
AT_ONCE = 16


def standardise(x: Tensor, moments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Bring columns to mean 0 and variance 1, by their own moments or by those of another graph [2, channels].

    A column with the same value everywhere becomes 0.

    Returns:
        The columns, and the moments that were used, float64.
    """
    out, found = torch.empty_like(x), []
    for place, (values, scaled) in enumerate(
        zip(x.split(AT_ONCE, dim=1), out.split(AT_ONCE, dim=1))
    ):
        values = values.double()
        first = place * AT_ONCE
        found.append(
            _moments(values) if moments is None else moments[:, first : first + values.size(1)]
        )
        mean, deviation = found[-1]
        is_constant = deviation <= LEAST_DEVIATION * mean.abs()
        scaled.copy_((values - mean).div_(deviation).masked_fill_(is_constant, 0.0))
    return out, torch.cat(found, dim=1)


def _moments(values: Tensor) -> Tensor:
    return torch.stack([values.mean(0), values.std(0, correction=0)])
