"""The types of nodes and the relations of a graph."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from parallel_epochs.pipeline.data.relation import Relation, reverses_of
from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.read_back import check_values

# The value of a store, and of what a run keeps, that holds the types of a graph with several.
SCHEMA = "schema"
# The fields of the types of a graph as JSON holds them; the first four are always there.
KINDS = {
    "types": list[str],
    "counts": list[int],
    "widths": list[int],
    "relations": list[tuple[str, str, str]],
    "labelled": str | None,
    "averaged": list[str],
    "unread": list[str],
    "edge_columns": list[tuple[int, int]],
    "degrees": list[int],
}
# Names of the only type of nodes and the only relation of a homogeneous graph.
NODE, EDGE = "node", "edge"


@dataclass(frozen=True)
class GraphTypes:
    """The types of nodes and the relations of a graph.

    The nodes of a type are consecutive. If there are several types, the last columns of ``x`` are the one-hot type, the
    others are those of the type with zeros behind them, and the first column of ``edge_attr`` is the number of the
    relation.

    Attributes:
        names: names of the types of nodes, in the order of their nodes.
        counts: number of nodes of each type.
        widths: number of the first columns of ``x`` that each type has.
        relations: type of the source, name and type of the destination of each relation, in the order of their numbers.
        labelled: type of the nodes with labels; none without labels.
        averaged: types whose features are the means of those of their neighbours.
        unread: types with labels, if there are several of which none was chosen.
        degrees: number of the last of these columns that are degrees; none without such columns.
        edge_columns: first column of ``edge_attr`` and number of columns of the features of each relation that is not a
            reverse one; none if they are not known.
        homogeneous: whether ``x`` and ``edge_attr`` have no columns for types and relations, as there is one of each.
    """

    names: list[str]
    counts: list[int]
    widths: list[int]
    relations: list[Relation]
    labelled: str | None = None
    averaged: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    edge_columns: list[list[int]] = field(default_factory=list)
    degrees: list[int] = field(default_factory=list)
    homogeneous: bool = False

    def to_value(self) -> dict[str, Any]:
        """Return what JSON can hold, for :meth:`from_value`."""
        value = {
            "types": self.names,
            **vars(self),
            "relations": [list(relation) for relation in self.relations],
        }
        return {
            name: value[name]
            for name in value
            if name not in ("names", "homogeneous") and (name != "degrees" or self.degrees)
        }  # as earlier versions wrote it

    @classmethod
    def from_value(cls, value: object) -> "GraphTypes":
        """Return what :meth:`to_value` was called for.

        Raises:
            ValueError: it is something else; the message names the field.
        """
        fields = _check_value(value)
        return cls(
            **{"names" if name == "types" else name: content for name, content in fields.items()}
            | {"relations": [tuple(relation) for relation in fields["relations"]]}
        )

    def nodes_of(self, name: str) -> range:
        """Return the numbers of the nodes of a type."""
        place = self.names.index(name)
        first = sum(self.counts[:place])
        return range(first, first + self.counts[place])

    def restricted_to(self, nodes: Int[Tensor, " num_selected"]) -> "GraphTypes":
        """Return the types of the subgraph of some nodes. A type without nodes stays, with a count of 0.

        Args:
            nodes: in ascending order, so that the nodes of a type stay consecutive.
        """
        first = torch.tensor(
            [self.nodes_of(name).start for name in self.names] + [sum(self.counts)]
        )
        return replace(self, counts=torch.searchsorted(nodes, first).diff().tolist())

    def name_of(self, relation: int) -> str:
        """Return the name of a relation, with its types where another one has the same name."""
        source, name, target = self.relations[relation]
        is_unique = sum(other == name for _, other, _ in self.relations) == 1
        return name if is_unique else f"{source}.{name}.{target}"

    @property
    def reverse(self) -> Set[int]:
        """The numbers of the relations that are the reverse of another one."""
        return reverses_of(self.relations).keys()

    def __str__(self) -> str:
        types = ", ".join(
            f"{count:,} {name}" for name, count in zip(self.names, self.counts, strict=True)
        )
        num_reverse = len(self.reverse)
        relations = words.count(len(self.relations) - num_reverse, "relation")
        return (
            f"{words.count(len(self.names), 'type')} of nodes ({types}), {relations}"
            + f" and {words.count(num_reverse, 'reverse one')}" * (num_reverse > 0)
        )


def _check_value(value: object) -> Mapping[str, Any]:
    """Refuse what is not the types of a graph, as JSON holds them."""
    needed, known = list(KINDS)[:4], list(KINDS)
    if not isinstance(value, Mapping) or not set(needed) <= set(value) <= set(known):
        found = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)
        raise ValueError(
            f"schema must have {', '.join(needed)}, and may have {', '.join(known[len(needed) :])}; it has "
            f"{found or 'nothing'}"
        )
    check_values(Path("schema"), value, KINDS)
    types, labelled = value["types"], value.get("labelled")
    if not types or len(set(types)) < len(types):
        raise ValueError(f"schema: types is {types!r}; it must have names that differ")
    for name in [*value.get("averaged", []), *([] if labelled is None else [labelled])]:
        if name not in types:
            raise ValueError(
                f"schema: there is no type {name!r}; the types of nodes are {', '.join(types)}"
            )
    return value
