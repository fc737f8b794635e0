"""The part of a graph that one prediction reads, and copies of it that are changed and predicted together."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc, plain_edges
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.link_predictor import LinkModel
from parallel_epochs.models.networks.reach import count_hops
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.gnn import neighborhood
from parallel_epochs.pipeline.gnn.loaders.snapshots import take_snapshot
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph.edges import transpose
from parallel_epochs.pipeline.names import SNAPSHOT

# Nodes, edges and numbers of features that copies have together, at most.
MOST_NODES, MOST_EDGES, MOST_NUMBERS = 1 << 17, 1 << 20, 1 << 25


@dataclass(frozen=True)
class Removed:
    """Links, by their numbers, and nodes with all of their edges, that a copy lacks."""

    links: Sequence[int] = ()
    nodes: Sequence[int] = ()


@dataclass(frozen=True)
class Scene:
    """The nodes and edges that one prediction reads.

    Attributes:
        data: its nodes and edges; ``x`` is what the model reads.
        edges: sources and destinations.
        link: number of the link that each edge belongs to: both directions of an undirected edge are one link.
        targets: the nodes that are predicted, or that are the ends of the pair; all nodes of a graph.
        hop: steps from a target to each node, against the edges.
        is_exact: whether the nodes are all that the prediction reads. Otherwise it is the whole graph.
        encoder: turns categories into vectors; none where ``x`` holds numbers.
        rows: computes the network's answer of each copy [num_copies, columns], in the labels' own unit.
        is_graph: whether it is one of many graphs, and its nodes have no ids.
        is_pair: whether the targets are the two ends of a link.
    """

    data: Data
    edges: Int[Tensor, "2 num_edges"]
    link: Int[Tensor, " num_edges"]
    targets: Int[Tensor, " num_targets"]
    hop: Int[Tensor, " num_nodes"]
    is_exact: bool
    encoder: TableEncoder | None
    rows: Callable[[Data, int], Tensor]
    is_graph: bool
    is_pair: bool

    @property
    def num_links(self) -> int:
        """Number of links."""
        return int(self.link.max()) + 1 if len(self.link) else 0

    @property
    def hop_of_links(self) -> Int[Tensor, " num_links"]:
        """Steps from a target to the nearer end of each link: 0 for those that enter a target."""
        far = torch.full((self.num_links,), self.data.num_nodes, device=self.link.device)
        return far.scatter_reduce(0, self.link, self.hop[self.edges[1]], "amin")

    @property
    def copies_at_once(self) -> int:
        """Copies that are predicted in one forward; one where the model reads a whole graph at once."""
        if not self.is_exact:
            return 1
        size = max(
            self.data.num_nodes / MOST_NODES,
            len(self.link) / MOST_EDGES,
            self.data.x.numel() / MOST_NUMBERS,
        )
        return max(1, int(1 / size))

    def vary(
        self,
        x: Float[Tensor, "num_copies num_nodes channels"],
        edge_attr: Float[Tensor, "num_copies num_edges columns"] | None,
    ) -> Float[Tensor, "num_copies columns"]:
        """Predict copies with other features.

        Args:
            x: of the nodes; where they have categories, the vectors of these.
            edge_attr: of the edges. None: as they are.
        """
        num_copies = len(x)
        batch = self._copies([Removed()] * num_copies)
        if edge_attr is not None:
            batch.edge_attr = edge_attr.flatten(0, 1)
        if self.encoder is None:
            batch.x = x.flatten(0, 1)
            return self.rows(batch, num_copies)
        handle = self.encoder.register_forward_hook(lambda *_: x.flatten(0, 1))
        try:
            return self.rows(batch, num_copies)
        finally:
            handle.remove()

    @torch.no_grad()
    def without(self, removed: Sequence[Removed]) -> Float[Tensor, "num_copies columns"]:
        """Predict copies that lack something."""
        parts = [
            removed[first : first + self.copies_at_once]
            for first in range(0, len(removed), self.copies_at_once)
        ]
        return torch.cat([self.rows(self._copies(part), len(part)) for part in parts])

    def _copies(self, removed: Sequence[Removed]) -> Data:
        """Make one disjoint graph of copies, each without what it lacks."""
        data, device, num = self.data, self.edges.device, len(removed)
        kept_edges = torch.ones(num, self.edges.size(1), dtype=torch.bool, device=device)
        kept = torch.ones(num, data.num_nodes, dtype=torch.bool, device=device)
        for row, one in enumerate(removed):
            if len(one.links):
                kept_edges[row] = ~torch.isin(self.link, torch.tensor(one.links, device=device))
            if len(one.nodes):
                kept[row, torch.tensor(one.nodes, device=device)] = False
                kept_edges[row] &= kept[row][self.edges].all(0)
        place = kept.flatten().cumsum(0) - 1
        nodes, positions = (
            (mask.flatten().nonzero().squeeze(1) % mask.size(1)) for mask in (kept, kept_edges)
        )
        offset = torch.arange(num, device=device).view(1, -1, 1) * data.num_nodes
        edges = place[(self.edges.unsqueeze(1) + offset).flatten(1)[:, kept_edges.flatten()]]
        indptr = torch.zeros(len(nodes) + 1, dtype=torch.int64, device=device)
        indptr[1:] = torch.bincount(edges[1], minlength=len(nodes)).cumsum(0)
        batch = Data(edge_index=transpose(from_csc(edges, indptr)), num_nodes=len(nodes))
        for key in ("x", "train_mask", "target"):
            if key in data:
                batch[key] = data[key][nodes]
        batch.edge_attr = None if data.edge_attr is None else data.edge_attr[positions]
        batch.n_id, batch.sizes = torch.arange(len(nodes), device=device), kept.sum(1)
        batch.places = place.view(num, -1)[:, self.targets]
        return batch


class LinkKeys:
    """Tells apart the links of a graph, of which both directions of an undirected edge are one.

    Args:
        data: the graph.
        is_undirected: whether both edges between two nodes of one type are one link. None: if each edge has a reverse.
    """

    def __init__(self, data: Graph, *, is_undirected: bool | None = None):
        self._data, reverse = data, reverses_of(data.types.relations)
        self._forward = torch.tensor(
            [reverse.get(number, number) for number in range(len(data.types.relations))]
        )
        if data.types.homogeneous and is_undirected is None:
            src, dst = plain_edges(data.edge_index).long()
            first, second = (a * data.num_nodes + b for a, b in ((src, dst), (dst, src)))
            is_undirected = torch.equal(first.sort()[0], second.sort()[0])
        self._is_undirected = is_undirected

    def of(
        self, edges: Int[Tensor, "2 num_edges"], edge_attr: Tensor | None, num_nodes: int
    ) -> Int[Tensor, " num_edges"]:
        """Return the number of the link of each edge, which an edge shares with its reverse edge."""
        src, dst = edges
        relation = torch.zeros_like(src)
        if not self._data.types.homogeneous:
            relation = cast(Tensor, edge_attr)[:, 0].long()
            forward = self._forward.to(src.device)[relation]
            turned = forward != relation
            src, dst, relation = (
                torch.where(turned, dst, src),
                torch.where(turned, src, dst),
                forward,
            )
        elif self._is_undirected:
            src, dst = torch.minimum(src, dst), torch.maximum(src, dst)
        return (relation * num_nodes + src) * num_nodes + dst


def of_node(setup: Setup, node: int, keys: LinkKeys) -> Scene:
    """Take what the prediction of a node reads."""
    data, task = setup.data, cast(NodeTask, setup.task)
    if SNAPSHOT in data:  # a row of a label table reads the graph of its time
        first = data.types.nodes_of(cast(str, data.types.labelled)).start
        view = take_snapshot(data, int(data[SNAPSHOT][node - first]))
        node, data = int((view.n_id == node).nonzero()), view
    alone, model = task.alone(), setup.model

    def rows(batch: Data, num: int) -> Tensor:
        return alone.predict(model, batch)[1]

    scene = _take(setup, data, [node], rows, keys)
    scene.data.x = task.inputs(scene.data, scene.data.train_mask)
    if data is not setup.data:
        scene.data.n_id = data.n_id[scene.data.n_id]
    return scene


def of_pair(setup: Setup, pair: Sequence[int], keys: LinkKeys) -> Scene:
    """Take what the prediction of a link reads."""
    task, model = cast(LinkTask, setup.task), cast(LinkModel, setup.model)

    def rows(batch: Data, num: int) -> Tensor:
        h = model(batch.x, batch.edge_index, batch.edge_attr)
        paths = model.find_paths(task.links_of(batch, model), batch.num_nodes)
        return answer(model.decode(h, batch.places, paths)).unsqueeze(1)

    def answer(logits: Tensor) -> Tensor:
        """Mix in the score of the simple method, which stays as it is."""
        return (
            logits
            if not simple
            else cast(Any, task.mixture).answer(
                lambda: logits,
                lambda scorer: scorer.of_pairs(torch.tensor([pair])).to(logits),
                of_test=True,
            )
        )

    simple = task.mixture is not None and 0 < task.mixture.share < 1
    data = setup.data if task.test_data is None else task.test_data
    return _take(setup, data, list(pair), rows, keys, reads_all=model.predictor.reads_index)


def of_graph(setup: Setup, number: int) -> Scene:
    """Take one of many graphs."""
    data, alone, model = setup.data, cast(NodeTask, setup.task).alone(), setup.model
    nodes = torch.arange(*data.ptr[number : number + 2].tolist())
    indptr = data.edge_index.get_csc()[0][0]
    position = (
        torch.arange(int(indptr[nodes[0]]), int(indptr[nodes[-1] + 1])) if len(nodes) else nodes
    )
    edges = plain_edges(data.edge_index)[:, position].long() - nodes[:1].view(1, -1)
    local = Data(
        num_nodes=len(nodes),
        x=data.x[nodes],
        n_id=nodes,
        edge_attr=None if data.edge_attr is None else data.edge_attr[position],
    )

    def rows(batch: Data, num: int) -> Tensor:
        batch.ptr = torch.cat([batch.sizes.new_zeros(1), batch.sizes.cumsum(0)])
        batch.graph_id, batch.target = (
            torch.arange(num, device=batch.x.device),
            batch.x.new_ones(num).bool(),
        )
        batch.train_mask = batch.target
        return alone.predict(model, batch)[1]

    return _scene(
        setup,
        local,
        edges,
        list(range(len(nodes))),
        rows,
        LinkKeys(data, is_undirected=True),
        is_exact=True,
    )


def _take(
    setup: Setup,
    data: Data,
    nodes: list[int],
    rows: Callable[[Data, int], Tensor],
    keys: LinkKeys,
    *,
    reads_all: bool = False,
) -> Scene:
    """Take the neighbourhood of some nodes, or the whole graph where it has no bound."""
    encoder = setup.kind.encoder(setup.model)
    num_hops, reason = count_hops(encoder)
    if reads_all or reason:
        local = copy.copy(data)
        local.n_id = torch.arange(data.num_nodes)
        local.target = torch.isin(local.n_id, torch.tensor(nodes))
    else:
        local = cast(Data, neighborhood.take(data, torch.tensor(nodes), num_hops))
        nodes = list(range(len(nodes)))
    local.edge_index = plain_edges(local.edge_index).long()
    if setup.table is not None:
        local = setup.table.attach(local, setup.device)
    return _scene(
        setup, local, local.edge_index, nodes, rows, keys, is_exact=not (reads_all or reason)
    )


def _scene(
    setup: Setup,
    local: Data,
    edges: Tensor,
    nodes: list[int],
    rows: Callable[[Data, int], Tensor],
    keys: LinkKeys,
    *,
    is_exact: bool,
) -> Scene:
    model, tables = setup.model.eval(), setup.data.get("x_tables")
    encoder = (
        None
        if tables is None
        else next(
            module
            for module in model.modules()
            if isinstance(module, TableEncoder) and len(module.sizes) == len(tables)
        )
    )
    local.edge_index = None
    local, edges = local.to(setup.device), edges.to(setup.device)
    targets = torch.tensor(nodes, device=setup.device)
    link = _number(keys.of(edges, local.edge_attr, local.num_nodes))
    return Scene(
        local,
        edges,
        link,
        targets,
        _hops(edges, targets, local.num_nodes),
        is_exact,
        encoder,
        rows,
        is_graph="ptr" in setup.data,
        is_pair=setup.kind.takes_pairs,
    )


def _number(key: Int[Tensor, " num_edges"]) -> Int[Tensor, " num_edges"]:
    """Number the links, in the order in which their first edges enter the nodes."""
    _, number = key.unique(return_inverse=True)
    first = torch.full((len(key),), len(key), device=key.device).scatter_reduce(
        0, number, torch.arange(len(key), device=key.device), "amin"
    )
    order = first.argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank[number]


def _hops(edges: Tensor, targets: Tensor, num_nodes: int) -> Tensor:
    """Count the steps from the targets to each node, against the edges; those that none reaches have as many as nodes."""
    hop = torch.full((num_nodes,), num_nodes, device=edges.device)
    hop[targets] = 0
    for step in range(num_nodes):
        found = edges[0][hop[edges[1]] == step]
        found = found[hop[found] > step + 1]
        if not len(found):
            break
        hop[found] = step + 1
    return hop
