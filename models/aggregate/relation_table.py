"""Relations of edges: whole numbers in column 0 of the edge features, each with a learned row of a table."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.kernels.operator import is_transformed


def encode_edges(
    edge_attr: Float[Tensor, "num_edges edge_columns"],
    weight: Float[Tensor, "channels num_features"] | None,
    bias: Float[Tensor, " channels"] | None,
    table: Float[Tensor, "num_relations channels"],
) -> Float[Tensor, "num_edges channels"]:
    """Add each relation's row of the table to the linear map of the other columns, for all edges at once.

    Args:
        edge_attr: the number of the relation, then the features.
        weight: linear map of the features. None: there are none, and `bias` is not read.
        bias: its bias, or none.
        table: a row for each relation.

    Raises:
        IndexError: a relation is not in the table. A GPU stops by an assertion.
    """
    weight, bias, table = drop_features(weight, bias, table)
    rows = look_up(edge_attr, table)
    return rows if weight is None else rows + F.linear(edge_attr[:, 1:], weight, bias)


def drop_features(
    weight: Tensor | None, bias: Tensor | None, table: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return weight, bias and table; where the weight has no columns, the bias becomes a part of the table."""
    if weight is None or weight.size(1):
        return weight, bias, table
    return None, None, table if bias is None else table + bias


def look_up(
    edge_attr: Float[Tensor, "num_edges edge_columns"],
    table: Float[Tensor, "num_relations channels"],
) -> Float[Tensor, "num_edges channels"]:
    """Return the row of each edge's relation; raises as :func:`encode_edges` does."""
    check_all(edge_attr, table)
    return F.embedding(edge_attr[:, 0].detach().long(), table)


def check_all(edge_attr: Tensor | None, table: Tensor | None) -> None:
    """Check the relations in column 0 of the features of all edges, if there is a table; see :func:`check`."""
    if table is not None:
        check(edge_attr[:, 0].detach(), table.size(0))


def check(number: Float[Tensor, " num_edges"], num_relations: int) -> None:
    """Raise an IndexError unless all numbers are whole and in [0, num_relations). A GPU asserts it without waiting."""
    if is_transformed():  # the lookup itself checks bounds
        return
    right = ~_find_wrong(number, num_relations)
    if number.device.type != "cpu":
        torch._assert_async(
            right.all(),
            f"column 0 of edge_attr holds a relation outside of 0 to {num_relations - 1}",
        )
    elif not bool(right.all()):
        raise IndexError(describe_wrong(number, num_relations))


def describe_wrong(number: Float[Tensor, " num_edges"], num_relations: int) -> str:
    """Describe the first number that is not whole or not in [0, num_relations)."""
    number = number.detach()
    edge = int(_find_wrong(number, num_relations).nonzero()[0])
    return (
        f"column 0 of edge_attr holds the relation {number[edge].item():g} at edge {edge}, but relations are the "
        f"whole numbers 0 to {num_relations - 1}, the rows of the table"
    )


def _find_wrong(number: Tensor, num_relations: int) -> Bool[Tensor, " num_edges"]:
    # NaN is neither at least 0 nor whole.
    return ~((number >= 0) & (number < num_relations) & (number == number.floor()))


def count_exactly(dtype: torch.dtype) -> int:
    """Return the largest n such that a floating-point dtype holds every whole number from 0 to n."""
    return int(2 / torch.finfo(dtype).eps)
