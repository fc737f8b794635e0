"""Linear maps of nodes of several types: one for each type."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.convs.expanded_edges import multiply_segments
from parallel_epochs.models.kernels.operator import is_transformed


@dataclass(frozen=True)
class NodeTypes:
    """The nodes of each type.

    Attributes:
        order: nodes sorted by type [num_nodes].
        place: where `order` has each node [num_nodes].
        types: type of each node [num_nodes].
        sizes: number of nodes of each type.
        are_sorted: whether the nodes are sorted by type already, as those of a whole graph and of its clusters are.
    """

    order: Int[Tensor, " num_nodes"]
    place: Int[Tensor, " num_nodes"]
    types: Int[Tensor, " num_nodes"]
    sizes: tuple[int, ...]
    are_sorted: bool

    @classmethod
    def read(cls, x: Float[Tensor, "num_nodes columns"], num_types: int) -> "NodeTypes":
        """Read the types that the last `num_types` columns of `x` hold one-hot.

        Raises:
            ValueError: a row has no one-hot type. A GPU does not check this, as a check would wait for the device:
                there such a node has the type with the largest number.
        """
        one_hot = x[:, x.size(1) - num_types :]
        if x.device.type == "cpu" and not is_transformed():
            wrong = ((one_hot != 0).sum(1) != 1) | (one_hot.sum(1) != 1)
            if bool(wrong.any()):
                node = int(wrong.nonzero()[0])
                raise ValueError(
                    f"node {node} has no one-hot type: the last {num_types} columns of x are "
                    f"{one_hot[node].tolist()}, but must be one 1 and otherwise 0"
                )
        return cls.of(one_hot.argmax(1), num_types)

    @classmethod
    def of(cls, types: Int[Tensor, " num_nodes"], num_types: int) -> "NodeTypes":
        """Sort nodes by their types, numbers in [0, num_types). An exported program sorts nothing: see :meth:`choose`."""
        if torch.compiler.is_exporting():
            return cls(types, types, types, (), True)
        order = types.argsort(stable=True)
        place = torch.empty_like(order).scatter_(
            0, order, torch.arange(order.numel(), device=order.device)
        )
        return cls(
            order,
            place,
            types,
            tuple(torch.bincount(types, minlength=num_types).tolist()),
            bool((types[1:] >= types[:-1]).all()),
        )

    def take(
        self, values: Shaped[Tensor, "num_nodes *rest"], number: int
    ) -> Shaped[Tensor, "num_of_type *rest"]:
        """Take the rows of the nodes of a type."""
        if self.are_sorted:
            return values.split(self.sizes)[number]
        return values.index_select(0, self.order.split(self.sizes)[number])

    def sort(self, values: Shaped[Tensor, "num_nodes *rest"]) -> Shaped[Tensor, "num_nodes *rest"]:
        """Sort rows of nodes by type."""
        return values if self.are_sorted else values.index_select(0, self.order)

    def put_back(
        self, values: Shaped[Tensor, "num_nodes *rest"]
    ) -> Shaped[Tensor, "num_nodes *rest"]:
        """Put rows that are sorted by type into the order of the nodes."""
        return values if self.are_sorted else values.index_select(0, self.place)

    def choose(
        self, of_types: Iterable[Float[Tensor, "num_nodes channels"]]
    ) -> Float[Tensor, "num_nodes channels"]:
        """Choose the row of each node from what the map of its type computed, given what those of all types did."""
        found, *others = of_types
        for number, rows in enumerate(others, 1):
            found = torch.where((self.types == number).unsqueeze(1), rows, found)
        return found


class TypedLinear(torch.nn.Module):
    """A linear map for each type of node.

    Args:
        num_types: number of types.
        in_channels: number of inputs.
        out_channels: number of outputs.

    Attributes:
        weight: [num_types, in_channels, out_channels], initialised as that of ``torch.nn.Linear``.
        bias: [num_types, out_channels], likewise.
    """

    def __init__(self, num_types: int, in_channels: int, out_channels: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(num_types, in_channels, out_channels))
        self.bias = torch.nn.Parameter(torch.empty(num_types, out_channels))
        bound = max(in_channels, 1) ** -0.5
        for parameter in (self.weight, self.bias):
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, x: Float[Tensor, "num_nodes in_channels"], types: NodeTypes | None = None
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Map nodes. `types` may be none if there is one type."""
        if types is None:
            return F.linear(x, self.weight[0].t(), self.bias[0])
        if torch.compiler.is_exporting():
            return types.choose(
                x @ weight + bias for weight, bias in zip(self.weight, self.bias, strict=True)
            )
        return types.put_back(multiply_segments(types.sort(x), self.weight, types.sizes, self.bias))
