"""A network whose program prepares the cells of a table itself: it scales numbers and tells categories apart."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from parallel_epochs.pipeline.data.column_names import Channel


class RawNetwork(torch.nn.Module):
    """A network that reads numbers and categories as a table holds them.

    Args:
        network: reads ``x`` and other inputs, as :class:`pipeline.gnn.network.Network`.
        channels: the columns of ``x``.

    Attributes:
        numbers: the names of the columns of numbers.
        categories: the values of each column of categories.
        others: the columns of ``x`` that are made of something else, such as dates, texts and degrees.
    """

    def __init__(self, network: torch.nn.Module, channels: list[Channel]):
        super().__init__()
        self.network, self.categories = network, dict[str, list[str]]()
        plain = [
            place
            for place, own in enumerate(channels)
            if own.text is None and own.scale is not None
        ]
        self.numbers = [channels[place].column for place in plain]
        marks = [
            place
            for place, own in enumerate(channels)
            if own.text == "empty" and own.column in self.numbers
        ]
        groups = dict[str, list[int]]()
        for place, own in enumerate(channels):
            if own.text is not None and place not in marks:
                self.categories.setdefault(own.column, []).append(own.text)
                groups.setdefault(own.column, []).append(place)
        self._groups = list(groups.values())
        ready = plain + marks + [place for group in self._groups for place in group]
        rest = sorted(set(range(len(channels))) - set(ready))
        self.others = [channels[place] for place in rest]
        self._plain, self._marks, self._rest = (
            torch.tensor(plain),
            torch.tensor(marks, dtype=torch.int64),
            rest,
        )
        self._marked = torch.tensor(
            [self.numbers.index(channels[place].column) for place in marks], dtype=torch.int64
        )
        self._order = torch.tensor(ready + rest).argsort()
        self._mean = torch.tensor([channels[place].shift for place in plain], dtype=torch.float64)
        self._std = torch.tensor([channels[place].scale for place in plain], dtype=torch.float64)

    def prepare(
        self,
        numbers: Float[Tensor, "nodes numbers"] | None,
        categories: Int64[Tensor, "nodes columns"] | None,
        prepared: Float[Tensor, "nodes others"] | None,
    ) -> Float[Tensor, "nodes channels"]:
        """Return ``x``."""
        parts = []
        if numbers is not None:
            is_empty = numbers.isnan()
            parts += [
                torch.where(is_empty, 0.0, (numbers - self._mean) / self._std).float(),
                is_empty[:, self._marked].float(),
            ]
        if categories is not None:
            parts += [
                (categories[:, [place]] == torch.arange(len(group))).float()
                for place, group in enumerate(self._groups)
            ]
        return torch.cat(parts if prepared is None else [*parts, prepared], 1)[:, self._order]

    def forward(
        self,
        numbers: Tensor | None = None,
        categories: Tensor | None = None,
        prepared: Tensor | None = None,
        *,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        ptr: Tensor | None = None,
    ) -> Tensor:
        """Compute what the network does; see :meth:`prepare`."""
        return self.network(self.prepare(numbers, categories, prepared), edge_index, edge_attr, ptr)

    def raw(self, x: Float[Tensor, "nodes channels"]) -> dict[str, Tensor]:
        """Return inputs that become ``x``.

        Raises:
            ValueError: none do, since a node has two values of a category.
        """
        numbers = x[:, self._plain].double() * self._std + self._mean
        numbers[:, self._marked] = numbers[:, self._marked].where(x[:, self._marks] == 0, torch.nan)
        categories = [
            torch.where(x[:, group].any(1), x[:, group].argmax(1), -1) for group in self._groups
        ]
        found = {
            "numbers": numbers if self.numbers else None,
            "prepared": x[:, self._rest] if self._rest else None,
            "categories": torch.stack(categories, 1) if categories else None,
        }
        if not torch.allclose(self.prepare(**found), x, atol=1e-5):
            raise ValueError(
                "the cells of the tables cannot be told from what they were prepared to"
            )
        return {name: tensor for name, tensor in found.items() if tensor is not None}
