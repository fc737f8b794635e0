"""Categories as inputs: each category of each column has a learned row, and the rows of all columns are summed."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer, Num
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.kernels.operator import is_transformed


class OneHot(torch.nn.Module):
    """Makes one-hot vectors of categories, those of all columns side by side. It has nothing to learn.

    Args:
        sizes: number of categories in each column.
    """

    limits: Tensor
    first_rows: Tensor

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        self.sizes = tuple(int(size) for size in sizes)
        limits = torch.tensor(self.sizes)
        self.register_buffer("limits", limits, persistent=False)
        self.register_buffer("first_rows", limits.cumsum(0) - limits, persistent=False)

    def forward(
        self, columns: Integer[Tensor, "num_rows num_columns"]
    ) -> Float[Tensor, "num_rows num_table_rows"]:
        """Return the vectors, float32; raises as :meth:`TableEncoder.forward` does."""
        return self._one_hot(columns, torch.float32)

    def _one_hot(self, columns: Tensor, dtype: torch.dtype) -> Tensor:
        rows = self._rows(columns)
        return rows.new_zeros(rows.size(0), sum(self.sizes), dtype=dtype).scatter_(1, rows, 1.0)

    def _rows(self, columns: Tensor) -> Tensor:
        columns = columns.long()
        if columns.device.type == "cpu" and not is_transformed():
            outside = (columns < 0) | (columns >= self.limits)
            if bool(outside.any()):
                row, column = outside.nonzero()[0].tolist()
                raise IndexError(
                    f"column {column} holds the category {int(columns[row, column])}, but its table has "
                    f"the rows 0 to {self.sizes[column] - 1}"
                )
        return columns + self.first_rows


class RelationColumns(torch.nn.Module):
    """Replaces the first column of edge features, the number of a relation, by one-hot columns. Nothing is learned."""

    def __init__(self, num_relations: int):
        super().__init__()
        self.one_hot = OneHot([num_relations])

    def forward(
        self, edge_attr: Num[Tensor, "num_edges columns"]
    ) -> Float[Tensor, "num_edges more_columns"]:
        """Return [num_edges, num_relations + columns - 1], float32; raises as :meth:`TableEncoder.forward` does."""
        return torch.cat([self.one_hot(edge_attr[:, :1].long()), edge_attr[:, 1:].float()], dim=1)


class TableEncoder(OneHot):
    """Looks up one row in the table of each column and sums them, like OGB's ``AtomEncoder`` and ``BondEncoder``.

    All tables are parts of one weight matrix, so the sum is a linear map of the columns' one-hot vectors. The fused
    aggregation can therefore use the tables of edge features as its edge encoder.

    Args:
        sizes: number of rows in the table of each column.
        channels: width of the rows.

    Attributes:
        weight: [sum(sizes), channels], each table initialised as in OGB (uniform, by Glorot and Bengio).
    """

    def __init__(self, sizes: Sequence[int], channels: int):
        super().__init__(sizes)
        self.weight = torch.nn.Parameter(torch.empty(sum(self.sizes), channels))
        with torch.no_grad():
            for table in self.weight.split(self.sizes):
                torch.nn.init.xavier_uniform_(table)

    def forward(
        self, columns: Integer[Tensor, "num_rows num_columns"]
    ) -> Float[Tensor, "num_rows channels"]:
        """Encode categories, which are numbered from 0 in each column.

        Raises:
            IndexError: a category is not in its table. A GPU does not check this, as a check would wait for the device:
                there the row of another table is read.
        """
        return F.embedding_bag(self._rows(columns), self.weight, mode="sum")

    def one_hot(
        self, columns: Integer[Tensor, "num_rows num_columns"]
    ) -> Float[Tensor, "num_rows num_table_rows"]:
        """Return the one-hot vectors whose product with `weight` is the encoding; raises as :meth:`forward` does."""
        return self._one_hot(columns, self.weight.dtype)
