"""From a dataset as it was read to a graph that is ready for training."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import add_remaining_self_loops, to_undirected as add_reverse

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data.check import as_float32, check, check_vectors
from parallel_epochs.pipeline.data.encodings import LEVELS, as_levels, encode
from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.incident import incident_features
from parallel_epochs.pipeline.data.join_types import refuse_untyped_edges
from parallel_epochs.pipeline.data.learned import Learned, check_inputs
from parallel_epochs.pipeline.graph.edges import sort_edges, transpose, with_reverse
from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS
from parallel_epochs.pipeline.names import FIRST_SOURCE, MASKS, PAIRS, SPLITS

# Keys of many graphs in one: where each begins, and the number of categories in the columns of nodes and edges.
GRAPH_KEYS = ("ptr", "x_tables", "edge_tables")
# Keys of a graph whose nodes have names: see pipeline/data/node_names.py.
NAME_KEYS = ("names", "names_ptr", "label_names", "label_names_ptr")


def prepare(
    data: Graph,
    *,
    origin: str,
    holds: str = "graph",
    to_undirected: bool = False,
    add_self_loops: bool = False,
    node_features: str = "sum",
    random_walk: int | None = None,
    learned: Learned | None = None,
    densify: Callable[[Tensor], Tensor] = Tensor.to_dense,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Graph:
    """Check a graph, sort its edges by destination, and give every node features.

    Args:
        origin: where the graph comes from, for messages.
        holds: what `data` is; see :class:`pipeline.data.base_config.DataConfig`, as for the next three.
        to_undirected: add the missing reverse edges.
        add_self_loops: add the missing self-loops.
        node_features: how a graph without node features gets them, see :func:`incident_features`.
        random_walk: steps of a random walk in each of many graphs, whose probabilities to return are features, too.
        learned: of the graph that a model was trained on, in place of what this one would tell.
        densify: makes a sparse ``x`` dense.
        on_stage: called with the name of each stage when it begins.

    Returns:
        The graph, with ``x_source``: where its ``x`` is from, "data", "edges" or "degree". Triples and
        vectors stay as they are.

    Raises:
        ValueError: see :func:`check`; the message begins with where the graph comes from.
    """
    on_stage("checking")
    _check_read(
        data, origin, holds, learned, to_undirected=to_undirected, add_self_loops=add_self_loops
    )
    if holds in ("triples", "vectors"):
        return data  # no edges to sort, and no features
    on_stage("sorting edges")
    num_nodes, edge_index, edge_attr = data.num_nodes, data.edge_index, data.edge_attr
    if edge_attr is not None and "edge_tables" not in data:
        converted = as_float32(f"{origin}: edge_attr", edge_attr)
        if not edge_attr.is_floating_point():
            edge_attr = converted  # others are converted when the means of equal edges are known
    if to_undirected and edge_attr is None:
        edge_index = with_reverse(plain_edges(edge_index), num_nodes)
    elif to_undirected:
        edge_index, edge_attr = add_reverse(
            plain_edges(edge_index).long(), edge_attr, num_nodes, reduce="mean"
        )
    if add_self_loops:
        edge_index, edge_attr = add_remaining_self_loops(
            plain_edges(edge_index).long(), edge_attr, "mean", num_nodes
        )
    if not isinstance(edge_index, EdgeIndex):
        edge_index, perm = sort_edges(edge_index, num_nodes)
        if edge_attr is not None:
            edge_attr = edge_attr.float() if edge_attr.is_floating_point() else edge_attr
            edge_attr = edge_attr.index_select(0, perm)
    on_stage("building node features")
    x, num_categories, x_source = _node_features(
        data, edge_index, edge_attr, node_features, learned
    )
    if x.is_sparse:
        x = densify(x.coalesce())
    kept = {key: data[key] for key in (*GRAPH_KEYS, *NAME_KEYS, "types") if key in data}
    if "ptr" in kept:
        kept["by_source"] = transpose(edge_index).get_csr()[1]
    if random_walk:
        x = _with_walks(x, kept, edge_index, random_walk)
    if data.kind is DataKind.GRAPH and data.edge_index.size(1):
        kept[FIRST_SOURCE] = int(plain_edges(data.edge_index)[0].min())
    if "edge_time" in data:
        kept["edge_time"] = times_of(edge_index, data.edge_index, data.edge_time, num_nodes)
    return Graph(
        x=x,
        edge_index=edge_index,
        edge_attr=edge_attr,
        num_nodes=num_nodes,
        metric=data.get("metric"),
        num_categories=num_categories,
        x_source=x_source,
        **kept,
        **_take_targets(data),
    )


def _check_read(
    data: Graph,
    origin: str,
    holds: str,
    learned: Learned | None,
    *,
    to_undirected: bool,
    add_self_loops: bool,
) -> None:
    """Check a graph as it was read; arguments are those of :func:`prepare`."""
    try:
        check_vectors(data) if holds == "vectors" else check(data)
        if not data.types.homogeneous:
            refuse_untyped_edges(to_undirected=to_undirected, add_self_loops=add_self_loops)
        if learned is not None:
            check_inputs(learned, data)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None


def _node_features(
    data: Graph, edge_index: EdgeIndex, edge_attr: Tensor | None, kind: str, learned: Learned | None
) -> tuple[Tensor, int, str]:
    """Give every node features: its own or those of its edges, and its species.

    Args:
        edge_index, edge_attr: sorted by destination.
        kind: how those of the edges are made, see :func:`incident_features`.
        learned: see :func:`prepare`.

    Returns:
        The features, perhaps sparse; the number of species, their last columns; and where the others are from.
    """
    if not data.types.homogeneous:
        x, x_source = data.x if data.x is not None else torch.empty(data.num_nodes, 0), "data"
    elif data.x is not None:
        x, x_source = data.x if "x_tables" in data else as_float32("x", data.x), "data"
    else:
        x_source = "degree" if edge_attr is None else "edges"
        x = incident_features(
            edge_index.get_csc()[0][0], edge_attr, kind, None if learned is None else learned.edges
        )
    if "species" not in data:
        return x, 0, x_source
    num_categories = int(data.species.max()) + 1 if learned is None else learned.num_categories
    one_hot = torch.nn.functional.one_hot(data.species.long(), num_categories).float()
    return (
        torch.cat([x, one_hot.to_sparse() if x.is_sparse else one_hot], dim=1),
        num_categories,
        x_source,
    )


def _with_walks(x: Tensor, union: dict, edge_index: EdgeIndex, num_steps: int) -> Tensor:
    """Add the encoding by random walks to the features of the nodes of many graphs."""
    found = encode(edge_index, union["ptr"], num_steps)
    if "x_tables" in union:
        found = as_levels(found).to(x.dtype)
        union["x_tables"] = [*union["x_tables"], *[LEVELS] * num_steps]
    return torch.cat([x, found], dim=1)


def _take_targets(data: Graph) -> dict:
    """Take the pairs of a link task, or labels with their splits, if there are any."""
    if data.kind is DataKind.PAIRS:
        pairs = {key: data[key] for key in PAIRS}
        own = {key: data[key] for key in ("negatives_per_pair",) if key in data}
        return {**pairs, **own, **masks_of_pairs(pairs, data.num_nodes)}
    if "y" not in data:
        return {}
    masks = {key: data[key].bool() for key in MASKS}
    if data.metric in CLASS_METRICS:
        # Outside of the splits anything may stand for no label.
        in_split = torch.stack(list(masks.values())).any(0).unsqueeze(1)
        y = torch.where(in_split, data.y, 0).long()
        return {"y": y, "out_channels": int(y.max()) + 1, **masks}
    y = as_float32("y", data.y) if data.metric in VALUE_METRICS else data.y
    return {"y": y, "out_channels": y.size(1), **masks}


def masks_of_pairs(pairs: dict[str, Tensor], num_nodes: int) -> dict[str, Tensor]:
    """Return the masks of a link task: the nodes of a split are those of the pairs that are to be linked."""
    masks = {}
    for mask, split in zip(MASKS, SPLITS):
        masks[mask] = torch.zeros(num_nodes, dtype=torch.bool)
        masks[mask][pairs[f"{split}_pairs"].reshape(-1)] = True
    return masks


def times_of(
    edge_index: EdgeIndex, edges: Int[Tensor, "2 num_rows"], times: Tensor, num_nodes: int
) -> Float[Tensor, " num_edges"]:
    """Return the earliest time of the rows between the two nodes of each edge, in either direction.

    Args:
        edge_index: of the prepared graph, all of whose edges but added self-loops are among the rows.
        edges: the rows that were read.
        times: of each row.

    Returns:
        [num_edges], float64; infinite for added self-loops.
    """

    def number(ends: Tensor) -> Tensor:
        return torch.minimum(*ends) * num_nodes + torch.maximum(*ends)

    known, row_of = number(plain_edges(edges).long()).unique(return_inverse=True)
    first = torch.full((len(known) + 1,), torch.inf, dtype=torch.float64)
    first.scatter_reduce_(0, row_of, times.double().reshape(-1), "amin")
    wanted = number(edge_index.as_tensor().long())
    place = torch.searchsorted(known, wanted)
    there = known[place.clamp(max=max(len(known) - 1, 0))] == wanted
    return first[torch.where(there, place, len(known))]
