"""PyG's ``HeteroData`` as one graph with types of nodes and relations, see :mod:`pipeline.data.join_types`."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from parallel_epochs.models.edge_index import INT32_END, plain_edges
from parallel_epochs.pipeline.data.check import as_float32, check, check_edge_index, check_tensor
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.join_types import NodesOfType, Relation, join_parts
from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.data.sparse import with_edges
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.read_back import shown

log = logging.getLogger(__name__)

LABELS = ("y", *MASKS)
# Makes a Data of the attributes of a type: called with its name, the attributes, and whether its labels are needed.
ReadType = Callable[[str, dict, bool], Graph]


def join_hetero(
    origin: str,
    saved: HeteroData | Mapping,
    read_type: ReadType,
    *,
    reverse_relations: bool,
    featureless: str,
    label_type: str | None,
    needs_labels: bool,
) -> Graph:
    """Make one graph of a ``HeteroData``, or of the dict that it gives.

    Args:
        origin: where it comes from, for messages.
        read_type: makes a ``Data`` of the attributes of one type of nodes.
        reverse_relations: whether each relation gets a reverse one.
        featureless: "mean" to give types without features the means of their neighbours' features; "none" not to.
        label_type: the type whose labels are learned; none: the only one that has some. If several have some, none are
            read, and the schema names these types.
        needs_labels: whether to read labels.

    Returns:
        See :func:`pipeline.data.join_types.join_parts`.

    Raises:
        ValueError: a type or a relation is wrong; the message names it.
    """
    stores = saved.to_dict() if isinstance(saved, HeteroData) else dict(saved)
    stores.pop("_global_store", None)
    for name, store in stores.items():
        if not all(map(_is_name, name if isinstance(name, tuple) and len(name) == 3 else (name,))):
            raise ValueError(
                f"{origin}: {name!r:.80} is neither the name of a type of nodes nor a (source, relation, "
                "target)"
            )
        if not isinstance(store, Mapping):
            raise ValueError(
                f"{origin}: {name!r:.80} holds {shown(store)}, and must hold the attributes of a type "
                "or of a relation by their names"
            )
    nodes = {name: _given(store) for name, store in stores.items() if isinstance(name, str)}
    edges = {name: _given(store) for name, store in stores.items() if not isinstance(name, str)}
    if not nodes:
        raise ValueError(
            f"{origin} holds a HeteroData without types of nodes. Save one with nodes and edges"
        )
    found = [name for name, store in nodes.items() if "y" in store]
    labelled = choose_labelled(found, label_type, nodes, origin) if needs_labels else None
    parts, metric = dict[str, NodesOfType](), None
    for name, store in nodes.items():
        _require_count(origin, name, store)
        is_labelled = name == labelled
        data = read_type(
            name, store | {"edge_index": torch.empty(2, 0, dtype=torch.int64)}, is_labelled
        )
        try:
            check(data)
        except ValueError as error:
            raise ValueError(f"{origin}: {name}: {error}") from None
        parts[name] = NodesOfType(
            data.num_nodes, data.x, {key: data[key] for key in LABELS if key in data}
        )
        metric = data.metric if is_labelled else metric
    read = {name: _read_edges(origin, name, store) for name, store in edges.items()}
    out = join_parts(
        parts,
        _leave_reversed(origin, read) if reverse_relations else read,
        origin=origin,
        add_reverse=reverse_relations,
        averages=featureless == "mean",
        metric=metric,
    )
    if needs_labels and labelled is None:
        out.types = replace(out.types, unread=found)
    return out


def _leave_reversed(
    origin: str, edges: dict[Relation, tuple[Tensor, Tensor | None]]
) -> dict[Relation, tuple[Tensor, Tensor | None]]:
    """Leave out the reverse relations that PyG's ToUndirected has added, as they are added to all relations."""

    def rows_of(index: Tensor, attr: Tensor | None) -> tuple[Tensor, Tensor]:
        columns = index.t().double() if attr is None else torch.cat([index.t(), attr.double()], 1)
        return columns.unique(dim=0, return_counts=True)

    relations, left = list(edges), dict(edges)
    for number, reversed_ in reverses_of(relations).items():
        name, other = relations[number], relations[reversed_]
        index, attr = edges[name]
        if all(map(torch.equal, rows_of(index.flip(0), attr), rows_of(*edges[other]))):
            del left[name]
            log.info(
                "%s: %s holds the edges of %s in reverse, as data.reverse_relations=true adds them to every "
                "relation",
                origin,
                name[1],
                other[1],
            )
    return left


def choose_labelled(
    found: list[str], wanted: str | None, types: Mapping[str, Any], origin: str
) -> str | None:
    """Choose the type of nodes whose labels are learned.

    Args:
        found: types that have labels.
        wanted: the one that the configuration names, if it does.
        types: all of them, by their names.

    Returns:
        The type; none if there are several and none is named, or there is none.

    Raises:
        ValueError: the named one has no labels.
    """
    if wanted is not None and wanted not in types:
        raise ValueError(
            f"task.type={wanted}: {origin} has no such type of nodes; there are {', '.join(types)}"
        )
    if wanted is not None and wanted not in found:
        has = f"only {', '.join(found)} has" if found else "no type has"
        raise ValueError(
            f"task.type={wanted}: the nodes of this type have no labels in {origin}; {has} some"
        )
    return wanted or (found[0] if len(found) == 1 else None)


def _is_name(name: object) -> bool:
    """Tell whether a message and a table can hold a name in one line."""
    return (
        isinstance(name, str)
        and name.splitlines() in ([], [name])
        and name.encode(errors="ignore").decode() == name
    )


def _given(store: Mapping) -> dict[str, Any]:
    return {key: value for key, value in store.items() if value is not None}


def _require_count(origin: str, name: str, store: dict[str, Any]) -> None:
    """Refuse a type whose number of nodes nothing tells, and add the number that only its labels tell."""
    if not {"x", "y", "num_nodes"} & set(store):
        raise ValueError(
            f"{origin}: the type {name} has neither x nor num_nodes, so that nobody knows how many nodes "
            f"there are: set data[{name!r}].num_nodes before saving"
        )
    if not {"x", "num_nodes"} & set(store):  # labels that are not learned are not read
        try:
            check_tensor("y", store["y"])
        except ValueError as error:
            raise ValueError(f"{origin}: {name}: {error}") from None
        store["num_nodes"] = len(store["y"])
    number = store.get("num_nodes", 0)
    if isinstance(number, Tensor) and number.numel() == 1 and not number.is_meta:
        number = number.item()
    if type(number) is not int or not 0 <= number < INT32_END:
        raise ValueError(
            f"{origin}: {name}: num_nodes is {shown(store['num_nodes'])}, and must be a whole number of "
            "nodes below 2^31"
        )


def _read_edges(origin: str, name: Relation, store: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the edges of a relation and their features."""
    where = f"{origin}: {'.'.join(name)}"
    try:
        store = with_edges(store, where)
        if "edge_index" not in store:
            raise ValueError(f"there is no edge_index; it has {', '.join(store) or 'nothing'}")
        check_tensor("edge_index", store["edge_index"])
        edge_index = plain_edges(store["edge_index"])
        check_edge_index(edge_index)
        edge_attr = store.get("edge_attr", store.get("edge_weight"))
        if edge_attr is None:
            return edge_index.detach(), None
        check_tensor("edge_attr", edge_attr)
        if edge_attr.dim() > 2:
            raise ValueError(
                f"edge_attr must have 2 dimensions, not the shape {list(edge_attr.shape)}"
            )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    columns = edge_attr.detach().view(len(edge_attr), *edge_attr.shape[1:] or (1,))
    return edge_index.detach(), as_float32(f"{where}: edge_attr", columns)
