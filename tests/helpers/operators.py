"""torch's checks of custom operators, for ours."""

import torch


def opcheck(operator, arguments: tuple, **options) -> None:
    """Check fake tensors, derivatives and compilation of a `models.kernels.operator.Operator`."""
    flat: list = []
    for kind, argument in zip(operator._kinds, arguments, strict=True):
        flat += [argument] if kind is None else argument
    torch.library.opcheck(operator.definition, tuple(flat), **options)
