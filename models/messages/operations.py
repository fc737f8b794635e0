"""Combines two operands of an edge into a message, by the name in ``u_NAME_v``."""

from collections.abc import Callable

import torch
from torch import Tensor

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda left, right: (left * right).sum(-1, keepdim=True),
}
# Those of the kernels, in the order of problem.h; "dot" is a product there. Others run their reference.
KERNELS = ("copy", "add", "sub", "mul", "div", "exp")
