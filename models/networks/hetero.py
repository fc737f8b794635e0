"""Views of a batch of a typed graph as PyG's models of several types of nodes have them: dicts by type and by relation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.convs.typed_linear import NodeTypes
from parallel_epochs.models.networks.foreign import ForeignError

Relation = tuple[str, str, str]


@dataclass(frozen=True)
class GraphSchema:
    """The node types and relations of a graph, as a model may know them.

    Attributes:
        types: names of the types of nodes.
        relations: type of the source, name and type of the destination of each relation.
        in_channels: number of columns of each type in ``x_dict``. A type without features has one column of ones.
        edge_dim: number of features of an edge, its relation not counted.
        labelled: type of the nodes with labels; None if all nodes need rows, as for links.
    """

    types: tuple[str, ...]
    relations: tuple[Relation, ...]
    in_channels: dict[str, int]
    edge_dim: int
    labelled: str | None

    @property
    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Return what ``HeteroData.metadata()`` returns in PyG, for ``to_hetero`` and other constructors."""
        return list(self.types), list(self.relations)


def make_schema(
    names: Mapping[str, Any], type_columns: Sequence[Sequence[tuple[int, int]]], edge_dim: int
) -> GraphSchema:
    """Make the schema that a model sees.

    Args:
        names: ``types``, ``relations`` and ``labelled``, as :class:`GraphSchema` has them.
        type_columns: for each type the ranges [first, end) of the columns of `x` that its nodes have.
        edge_dim: number of columns of the edge features, that of the relation included.
    """
    types = tuple(names["types"])
    widths = [sum(end - first for first, end in ranges) for ranges in type_columns]
    return GraphSchema(
        types,
        tuple((source, name, target) for source, name, target in names["relations"]),
        {name: max(width, 1) for name, width in zip(types, widths, strict=True)},
        edge_dim - 1,
        names["labelled"],
    )


class HeteroView:
    """A batch as dicts; the nodes of a type, and the edges of a relation, keep their order.

    Args:
        schema: of the graph.
        type_columns: as for :func:`make_schema`.
        x: [num_nodes, in_channels + num_types], the last columns the one-hot type.
        edge_index: [2, num_edges], between nodes of the types that their relations have.
        edge_attr: [num_edges, 1 + edge_dim], the first column the number of the relation.

    Attributes:
        x_dict: features of the nodes of each type [num_nodes_of_type, columns]; a batch need not have nodes of each.
        edge_index_dict: edges of each relation [2, num_edges_of_relation], numbered within the types; a batch need not
            have edges of each.
        edge_attr_dict: features of these edges [num_edges_of_relation, edge_dim].
    """

    def __init__(
        self,
        schema: GraphSchema,
        type_columns: Sequence[Sequence[tuple[int, int]]],
        x: Float[Tensor, "num_nodes columns"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Float[Tensor, "num_edges edge_columns"],
    ):
        self._schema = schema
        num_types, num_relations = len(schema.types), len(schema.relations)
        self._types = NodeTypes.read(x, num_types)
        counts = self._types.sizes
        first = torch.tensor([sum(counts[:number]) for number in range(num_types)], device=x.device)
        local = self._types.place - first[self._types.types]
        self.x_dict: dict[str, Tensor] = {}
        for number, (name, ranges) in enumerate(zip(schema.types, type_columns, strict=True)):
            own = [
                self._types.take(x[:, begin:end], number) for begin, end in ranges if end > begin
            ]
            self.x_dict[name] = torch.cat(own, dim=1) if own else x.new_ones(counts[number], 1)
        relation = edge_attr[:, 0].long()
        by_relation = relation.argsort(stable=True)
        groups = by_relation.split(torch.bincount(relation, minlength=num_relations).tolist())
        ends = local[edge_index.as_subclass(Tensor).long()]
        self.edge_index_dict = {
            name: ends.index_select(1, edges)
            for name, edges in zip(schema.relations, groups, strict=True)
        }
        self.edge_attr_dict = {
            name: edge_attr[:, 1:].index_select(0, edges)
            for name, edges in zip(schema.relations, groups, strict=True)
        }

    def put_back(
        self, out: Any, name: str, out_channels: int
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Put what a model returns of each type into rows of the batch; nodes of types without output get zeros.

        Args:
            out: a dict of tensors [num_nodes_of_type, out_channels]; or that of the type with labels alone.
            name: of the model, for messages.
            out_channels: number of classes or tasks.

        Raises:
            ForeignError: a type lacks, or a tensor has another shape.
        """
        schema = self._schema
        wanted = [schema.labelled] if schema.labelled is not None else list(schema.types)
        found = (
            {schema.labelled: out}
            if isinstance(out, Tensor) and schema.labelled is not None
            else out
        )
        if not isinstance(found, Mapping) or not all(
            isinstance(found.get(kind), Tensor) for kind in wanted
        ):
            has = (
                f"a dict of {', '.join(map(str, found)) or 'nothing'}"
                if isinstance(found, Mapping)
                else f"a {type(out).__name__}"
            )
            raise ForeignError(
                f"{name} returns {has}; it must return a dict with a tensor for {', '.join(wanted)}"
            )
        for kind, count in zip(schema.types, self._types.sizes, strict=True):
            value = found.get(kind)
            if isinstance(value, Tensor) and (
                list(value.shape) != [count, out_channels] and kind in wanted
            ):
                raise ForeignError(
                    f"{name} returns {list(value.shape)} for {count} nodes of the type {kind}; it must "
                    f"return [num_nodes, {out_channels}], a column for each class or task"
                )
        example = found[wanted[0]]
        rows = [
            found[kind] if kind in wanted else example.new_zeros(count, out_channels)
            for kind, count in zip(schema.types, self._types.sizes, strict=True)
        ]
        return self._types.put_back(torch.cat(rows))
