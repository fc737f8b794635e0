"""A model class of the user, imported by its dotted path."""

import importlib
import inspect
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN

from parallel_epochs.models.networks.foreign import (
    FAILURES,
    check_output,
    choose_edge_argument,
    construct,
    name_edges,
    naming_failures,
    one_line,
)
from parallel_epochs.models.networks.hetero import HeteroView, make_schema
from parallel_epochs.models.networks.options import CustomOptions, takes_options

# Arguments of a constructor by which a class shows that it knows of relations.
RELATION_ARGUMENTS = {"schema", "metadata", "num_relations"}


class CustomModel(torch.nn.Module):
    """Any module that predicts nodes from ``(x, edge_index, edge_attr)``, or from dicts by type and by relation.

    Its constructor gets those of these arguments that it names: `in_channels` (columns of `x`, categories included),
    `out_channels`, `hidden_channels`, `num_layers` and `edge_dim`. Its forward gets edge features as ``edge_attr`` if
    it has an argument of this name, as ``edge_weight`` if it has that one and an edge has one feature, else as its
    third argument. Its weights are those of :attr:`model`.

    On a graph with several types of nodes its constructor may name `schema` (a :class:`GraphSchema`), `metadata` (as
    PyG's ``HeteroData.metadata()``), `num_relations` and `type_columns`, too. If its forward has the arguments
    ``x_dict`` and ``edge_index_dict``, it gets those of a :class:`HeteroView`, and ``edge_attr_dict`` if it has that
    argument; `in_channels` is then a dict by type, and `edge_dim` does not count the column of the relation. It
    returns a dict by type, or the tensor of the type with labels.

    Args:
        in_channels: Number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: Width of the layers, passed to the constructor if that has an argument hidden_channels.
        out_channels: Number of classes or tasks.
        num_layers: Number of layers, passed to the constructor if that has an argument num_layers.
        options: See :class:`models.networks.options.CustomOptions`, given as keywords.

    Raises:
        ValueError: the class cannot be imported, or does not take the arguments; the message begins with "path" or
            "kwargs".
    """

    @takes_options(CustomOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: CustomOptions,
    ):
        super().__init__()
        path, schema, type_columns = options.path, options.schema, options.type_columns
        edge_dim, num_categories, num_relations = (
            options.edge_dim,
            options.num_categories,
            options.num_relations,
        )
        make, self.title, self._out_channels = find(path), path, out_channels
        self._type_columns = type_columns or []
        self.schema = (
            None if schema is None else make_schema(schema, self._type_columns, edge_dim or 1)
        )
        self.takes_dicts = _takes_dicts(make, path, is_typed=schema is not None)
        known: dict[str, Any] = dict(
            in_channels=in_channels + num_categories,
            hidden_channels=hidden_channels,
            out_channels=out_channels,
            num_layers=num_layers,
            edge_dim=edge_dim,
        )
        if self.schema is not None:
            known |= dict(
                schema=self.schema,
                metadata=self.schema.metadata,
                num_relations=num_relations,
                type_columns=type_columns,
            )
        if self.schema is not None and self.takes_dicts:
            known |= dict(
                in_channels=self.schema.in_channels, edge_dim=self.schema.edge_dim or None
            )
        given = dict(options.kwargs or {})
        whole = issubclass(make, BasicGNN)
        reads_attr, reads_weight = (
            not whole or getattr(make, f"supports_edge_{what}") for what in ("attr", "weight")
        )
        if whole and reads_attr and edge_dim:
            given = {"edge_dim": edge_dim} | given  # it takes what its layers take
        self.model = construct(make, path, given, known)
        if not isinstance(self.model, torch.nn.Module):
            raise ValueError(
                f"path={path} returns a {type(self.model).__name__}; it must return a torch.nn.Module"
            )
        self._choose_edges(edge_dim, whole=whole, reads_attr=reads_attr, reads_weight=reads_weight)
        if (
            self.edge_argument
            and num_relations
            and not self.takes_dicts
            and not RELATION_ARGUMENTS & set(inspect.signature(make).parameters)
        ):
            raise ValueError(
                f"path={path} would read the number of an edge's relation as a feature. Let its forward "
                "take x_dict and edge_index_dict, or its constructor num_relations: column 0 of edge_attr "
                "holds the relation"
            )

    def _choose_edges(
        self, edge_dim: int | None, *, whole: bool, reads_attr: bool, reads_weight: bool
    ) -> None:
        """Choose how the model gets the features of edges.

        Args:
            whole: whether it is one of PyG's whole models.
            reads_attr, reads_weight: whether it uses arguments of these names.
        """
        parameters = inspect.signature(self.model.forward).parameters
        self._by_place = False
        if self.takes_dicts:
            self.edge_argument = "edge_attr_dict" if "edge_attr_dict" in parameters else ""
            return
        self.edge_argument = choose_edge_argument(
            parameters, edge_dim, attr=reads_attr, weight=reads_weight
        )
        positional = [
            p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        # A third argument by any other name.
        self._by_place = (
            not self.edge_argument
            and not whole
            and (
                len(positional) > 2
                and positional[2].name != "edge_weight"
                or any(p.kind == p.VAR_POSITIONAL for p in parameters.values())
            )
        )
        if self._by_place and edge_dim:
            self.edge_argument = positional[2].name if len(positional) > 2 else "a third argument"

    def forward(
        self,
        x: Float[Tensor, "num_nodes in_channels"],
        edge_index: Tensor,
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    ) -> Float[Tensor, "num_nodes out_channels"]:
        """Call the model, which must return logits or values [num_nodes, out_channels].

        Raises:
            ForeignError: the model fails, or returns something else.
        """
        with naming_failures(self.title, x, edge_index, edge_attr):
            if self.schema is not None and self.takes_dicts:
                assert edge_attr is not None
                view = HeteroView(self.schema, self._type_columns, x, edge_index, edge_attr)
                more = {"edge_attr_dict": view.edge_attr_dict} if self.edge_argument else {}
                out = self.model(x_dict=view.x_dict, edge_index_dict=view.edge_index_dict, **more)
                out = view.put_back(out, self.title, self._out_channels)
            else:
                out = (
                    self.model(x, edge_index, edge_attr)
                    if self._by_place
                    else self.model(x, edge_index, **name_edges(self.edge_argument, edge_attr))
                )
        return check_output(
            out,
            self.title,
            x,
            self._out_channels,
            is_trained=self.training and torch.is_grad_enabled(),
        )


def _takes_dicts(make: type[torch.nn.Module], path: str, *, is_typed: bool) -> bool:
    """Tell whether the forward of a class takes dicts by type and by relation.

    Raises:
        ValueError: it does, and the graph has one type of nodes.
    """
    takes = {"x_dict", "edge_index_dict"} <= set(inspect.signature(make.forward).parameters)
    if takes and not is_typed:
        raise ValueError(
            f"path={path} takes x_dict and edge_index_dict, and this graph has one type of nodes. Such "
            "models need several types: data=tables with data.schema, or data=file with a HeteroData"
        )
    return takes


def find(path: str) -> type[torch.nn.Module]:
    """Import a class of modules by its dotted path.

    Raises:
        ValueError: there is none; the message begins with "path".
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"path={path} does not name a class: give it as package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except FAILURES as error:
        # The missing module is this one or one of its packages, not a module that it imports.
        hint = (
            "; install it, or put it into the current folder or into PYTHONPATH"
            if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or " ")
            else ""
        )
        raise ValueError(f"path={path} cannot be imported: {one_line(error)}{hint}") from error
    found = getattr(module, name, None)
    # A function would be called as well, and os.system is one.
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise ValueError(
            f"path={path}: {module_name} has no {name}"
            if found is None
            else f"path={path} is not a torch.nn.Module: give the path of a class that extends it"
        )
    return found
