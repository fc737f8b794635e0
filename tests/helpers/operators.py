"""torch's checks of custom operators, for ours."""

import torch


def opcheck(operator, arguments: tuple, **options) -> None:
    """Check fake tensors, derivatives and compilation of a `models.kernels.operator.Operator`."""
    torch.library.opcheck(operator.definition, arguments, **options)
