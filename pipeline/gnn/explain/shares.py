"""Shares of single predictions: integrated gradients of features, and what is lost without an edge or a neighbour."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.pipeline.data.column_names import Channel, name_edges, name_nodes
from parallel_epochs.pipeline.gnn import fusion
from parallel_epochs.pipeline.gnn.explain import scene as scenes
from parallel_epochs.pipeline.gnn.explain.answer import Explanation
from parallel_epochs.pipeline.gnn.explain.scene import Removed, Scene
from parallel_epochs.pipeline.gnn.explain.simple import SimpleMethod
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import Base
from parallel_epochs.pipeline.names import MASKS

# Points of the path from the means to the features: four times as many until the shares add up, or the last number.
STEPS = (8, 32, 128)
# Edges and nodes of all copies without a link together; links that are tried, for each that is named and at most.
BUDGET, LEAST_TRIED, MOST_TRIED = 1 << 21, 3, 256
# Columns of a neighbour or of an edge that are named.
NAMED = 3


class Explainer:
    """Explains predictions of a run.

    Args:
        setup: the run's data and model.
        kept: what the run keeps of a simple method; none without one.
        ids: of all nodes of the graph.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept | None, ids: np.ndarray):
        self.setup, self._kept, self._ids = setup, kept, ids
        self._has_labels = setup.kind.has_labels
        self._base = setup.base.rows if isinstance(setup.base, Base) else None
        self.part = 0.0 if kept is None or self._base is None or (
            kept.reads_labels and not bool(setup.data.train_mask.any())) else kept.share
        self.simple = None if kept is None or not self.part else SimpleMethod(
            setup, kept, is_undirected=self.is_undirected)
        # Copies of which the simple method is computed again.
        self.num_copies = 0 if self.simple is None else self.simple.num_copies

    def scene(self, number: int | Sequence[int]) -> Scene:
        """Take what the prediction of a node, a graph or a pair reads."""
        if isinstance(number, Sequence):
            return scenes.of_pair(self.setup, number, is_undirected=self.is_undirected)
        if "ptr" in self.setup.data:
            return scenes.of_graph(self.setup, number)
        return scenes.of_node(self.setup, number, is_undirected=self.is_undirected)

    def explain(self, number: int | Sequence[int], title: str, *, top: int, label: str | None = None) -> Explanation:
        """Explain a prediction.

        Args:
            number: of a node or a graph, or those of the two nodes of a pair.
            title: names it for people.
            top: rows of each table, at most.
            label: the class or task. None: the likeliest.

        Raises:
            ValueError: there is no such class or task.
        """
        scene = self.scene(number)
        base = self.base_of(number)
        score = Scoring(self, scene, number, label)
        nodes, edges, of_base, ends = self._integrate(scene, base, score)
        tried = self.try_links(scene, score, nodes.sum(1), top)
        links = [one.number for one in tried]
        columns = self._columns(scene, nodes) if self.part < 1 else self._columns_of_simple(scene, score, number)
        found = {"columns": columns[:top], "edges": self._edges(scene, tried[:top], edges),
                 "neighbours": self._neighbours(scene, score, links, nodes, top)}
        own = torch.isin(torch.arange(len(nodes), device=nodes.device), scene.targets)
        totals = {"columns": float(nodes[own].sum()), "neighbours": float(nodes[~own].sum()),
                  "edges": float(edges.sum())}
        method = {}
        if self._kept is not None and self.part:
            method = {"method": self._kept.title, "part": self._kept.share, "share": of_base}
            totals["simple method"] = of_base
        without = score.without(scene, [Removed(links=links[:top])])[0].lowered if links else None
        return Explanation(title, score.label, score.unit, score.prediction, *ends, base=method,
                           totals=totals, without=without, notes=self._notes(scene, len(links)), **found)

    def name_links(self, scene: Scene, score: "Scoring", number: int, top: int) -> list[int]:
        """Return the links that :meth:`explain` names."""
        nodes, *_ = self._integrate(scene, self.base_of(number), score, STEPS[:1])
        return [one.number for one in self.try_links(scene, score, nodes.sum(1), top)[:top]]

    def base_of(self, number: int | Sequence[int]) -> Tensor | None:
        """Return the scores of the simple method for a row, as it learned them; none without one."""
        return None if self._base is None or isinstance(number, Sequence) else self._base[number].to(self.setup.device)

    def answer(self, rows: Float[Tensor, "num_copies columns"], base: Tensor | None) -> Tensor:
        """Mix the network's answers of copies with that of the simple method, as the run does."""
        if base is None or not self.part:
            return rows
        return fusion.mix(rows, cast(Any, self.setup.task).from_learned(base).expand_as(rows), self.part)

    def base_without(self, number: int | Sequence[int], scene: Scene, removed: Sequence[Removed]) -> Tensor | None:
        """Return the scores of the simple method on graphs that lack something; as they are where it takes too long."""
        base = self.base_of(number)
        if base is None or self.simple is None or not self.num_copies:
            return base
        return base + self.simple.changes(cast(int, number), scene, removed).to(base)

    def try_links(self, scene: Scene, score: "Scoring", share: Tensor, top: int) -> list["Tried"]:
        """Take links out one by one; returns those that were tried, that without which the score loses most first.

        Links that enter a target come first, then those whose both ends have large shares.

        Args:
            share: of the features of each node.
        """
        if not scene.num_links:
            return []
        src, dst = scene.edges
        strength, hop = share.abs() + share.abs().mean() * 1e-3, scene.hop[dst]
        if self.part == 1:  # no node has a share; labels count more than others
            strength = 1.0 + torch.isin(scene.data.n_id, self.setup.data.train_mask.nonzero().to(src)).float()
        promise = torch.where(hop == 0, 1.0, strength[dst] / strength.max()) * strength[src] / (1.0 + hop)
        best = promise.new_zeros(scene.num_links).scatter_reduce(0, scene.link, promise, "amax")
        entering = best.new_zeros(scene.num_links).scatter_reduce(0, scene.link, (hop == 0).to(best), "amax")
        most = max(LEAST_TRIED * top, min(BUDGET // (len(src) + len(share)), MOST_TRIED))
        most = min(most, self.num_copies // 2) if self.num_copies else most
        order = np.lexsort((-best.cpu().numpy(), -entering.cpu().numpy()))
        first = order[:int(entering.sum())][:-(-most * 2 // 3) if len(order) > most else most]
        tried = np.concatenate([first, np.setdiff1d(np.argsort(-best.cpu().numpy(), kind="stable"), first,
                                                    assume_unique=True)])[:most].tolist()
        found = score.without(scene, [Removed(links=[link]) for link in tried])
        return sorted(found, key=score.rank)

    @cached_property
    def is_undirected(self) -> bool:
        """Tell whether each edge of a graph with one type of nodes has a reverse."""
        data = self.setup.data
        if getattr(self.setup.config.data, "to_undirected", False):
            return True
        src, dst = plain_edges(data.edge_index).long()
        first, second = (a * data.num_nodes + b for a, b in ((src, dst), (dst, src)))
        return torch.equal(first.sort()[0], second.sort()[0])

    def _integrate(self, scene: Scene, base: Tensor | None,
                   score: "Scoring", steps: Sequence[int] = STEPS) -> tuple[Tensor, Tensor, float, tuple[float, float]]:
        """Compute integrated gradients along the line from the means.

        Returns:
            Shares of the features of nodes [num_nodes, columns] and of edges [num_links, columns], that of the simple
            method, and the scores at both ends.
        """
        x, x_mean = self._ends_of_nodes(scene)
        edge_attr = scene.data.edge_attr
        if edge_attr is not None and not edge_attr.is_floating_point():
            edge_attr = None  # categories, which no line joins
        edge_mean = None if edge_attr is None else self._edge_means[self._relations(scene)].to(x.device)
        base_mean = None if self._base is None or base is None else self._base.double().mean(0).to(base)

        def at(places: Tensor, *, grad: bool) -> tuple[Tensor, list[Tensor | None]]:
            def between(last: Tensor | None, first: Tensor | None) -> Tensor | None:
                if last is None or first is None:
                    return None
                weight = places.to(last.device).view(-1, *[1] * last.dim())
                return (first + weight * (last - first)).requires_grad_(grad)

            given = [between(x, x_mean), between(edge_attr, edge_mean), between(base, base_mean)]
            return score.of(scene.vary(cast(Tensor, given[0]), given[1]), given[2]), given

        with torch.no_grad():
            start, end = (float(at(torch.full((1,), place), grad=False)[0]) for place in (0.0, 1.0))
        for num_steps in steps:
            sums: list[Any] = [0.0, 0.0, 0.0]
            for places in ((torch.arange(num_steps) + 0.5) / num_steps).split(scene.copies_at_once):
                found, given = at(places, grad=True)
                named = [place for place, one in enumerate(given) if one is not None]
                grads = torch.autograd.grad(found.sum(), [cast(Tensor, given[place]) for place in named],
                                            allow_unused=True)
                for place, grad in zip(named, grads, strict=True):
                    sums[place] = sums[place] + (0.0 if grad is None else grad.sum(0) / num_steps)
            nodes = (x - x_mean) * sums[0]
            edges = x.new_zeros(scene.num_links, 1)
            if edge_attr is not None:
                edges = x.new_zeros(scene.num_links, edge_attr.size(1)).index_add_(
                    0, scene.link, (edge_attr - cast(Tensor, edge_mean)) * sums[1])
            of_base = 0.0 if base is None else float(((base - cast(Tensor, base_mean)) * sums[2]).sum())
            if abs(float(nodes.sum() + edges.sum()) + of_base - (end - start)) <= max(0.02 * abs(end - start), 0.01):
                break
        if scene.encoder is not None:
            nodes = self._by_table(scene, cast(Tensor, sums[0]))
        return nodes, edges, of_base, (end, start)

    def _ends_of_nodes(self, scene: Scene) -> tuple[Tensor, Tensor]:
        """Return the features of the nodes, or the vectors of their categories, and their means."""
        x = scene.data.x
        if scene.encoder is not None:
            with torch.no_grad():
                weight = scene.encoder.weight
                return scene.encoder(x), (self._frequencies.to(weight) @ weight).expand(len(x), -1)
        return x.float(), self._node_means[self._types_of(scene.data.n_id)].to(x.device)

    def _by_table(self, scene: Scene, grad: Tensor) -> Tensor:
        """Divide the shares of vectors of categories among the columns of these."""
        encoder, found = cast(TableEncoder, scene.encoder), []
        with torch.no_grad():
            ends = np.cumsum(encoder.sizes).tolist()
            for column, (end, size) in enumerate(zip(ends, encoder.sizes, strict=True)):
                rows = encoder.weight[end - size:end]
                mean = self._frequencies[end - size:end].to(rows) @ rows
                found.append(((rows[scene.data.x[:, column].long()] - mean) * grad).sum(1))
        return torch.stack(found, 1)

    @cached_property
    def _frequencies(self) -> Tensor:
        """How often each category of each column of the nodes occurs, a fraction."""
        data = self.setup.data
        return torch.cat([torch.bincount(data.x[:, column].long(), minlength=size)[:size] / len(data.x)
                          for column, size in enumerate(data["x_tables"])])

    @cached_property
    def _node_means(self) -> Tensor:
        """The means of what a model reads of the nodes of each type; labels that are inputs are unknown there."""
        setup, types = self.setup, self.setup.data.types
        whole = Data(x=setup.data.x, n_id=torch.arange(setup.data.num_nodes), num_nodes=setup.data.num_nodes)
        if setup.table is not None:
            whole = setup.table.attach(whole, torch.device("cpu"))
        means = torch.stack([whole.x[types.nodes_of(name).start:types.nodes_of(name).stop].double().mean(0)
                             for name in types.names]).nan_to_num().float()
        num_labels = 0 if not self._has_labels else cast(Any, setup.task).in_channels + \
            setup.data.num_categories - setup.data.x.size(1)
        return torch.cat([means.new_zeros(len(means), num_labels), means], 1)

    @cached_property
    def _edge_means(self) -> Tensor:
        data = self.setup.data
        if data.types.homogeneous:
            return data.edge_attr.double().mean(0, keepdim=True).float()
        relation = data.edge_attr[:, 0].long()
        sums = torch.zeros(len(data.types.relations), data.edge_attr.size(1), dtype=torch.float64)
        sums.index_add_(0, relation, data.edge_attr.double())
        return (sums / torch.bincount(relation, minlength=len(sums)).clamp(min=1).unsqueeze(1)).float()

    def _relations(self, scene: Scene) -> Tensor:
        attr = scene.data.edge_attr
        return attr[:, 0].long().cpu() if not self.setup.data.types.homogeneous else torch.zeros(
            len(scene.link), dtype=torch.int64)

    def _types_of(self, nodes: Tensor) -> Tensor:
        counts = self.setup.data.types.counts
        return torch.searchsorted(torch.tensor(counts).cumsum(0), nodes.cpu(), right=True).clamp(max=len(counts) - 1)

    @cached_property
    def _channels(self) -> list[list[Channel]]:
        """The channels of what the model reads of the nodes of each type."""
        setup, width = self.setup, self._node_means.size(1) if "x_tables" not in self.setup.data else 0
        bare, config = setup.bare or setup.data, setup.config
        found = name_nodes(config.data, bare)
        if "x_tables" in setup.data:
            return found
        own = width - setup.data.x.size(1)
        num_table = 0 if setup.table is None else setup.table.weight.size(1)
        num_labels = own - num_table
        front = [Channel("known label")] * num_labels + [Channel("learned vector")] * num_table
        if self._base is not None and config.task.reads_base:
            place = 0 if bare.types.homogeneous else bare.types.names.index(cast(str, bare.types.labelled))
            first = bare.x.size(1) - bare.num_categories if bare.types.homogeneous else bare.types.widths[place]
            found[place][first:first] = [Channel("simple method")] * self._base.size(1)
        return [(front + names + [Channel("")] * width)[:width] for names in found]

    def _columns(self, scene: Scene, nodes: Tensor) -> pd.DataFrame:
        """Sum the shares of the columns of the targets."""
        rows = []
        for place, target in enumerate(scene.targets.tolist()):
            of = ("source: ", "target: ")[place] if scene.is_pair else ""
            rows += [(of + column, value, share) for column, value, share in self._named(scene, target, nodes[target])]
        found = pd.DataFrame(rows, columns=["column", "value", "share"])
        if scene.is_graph:
            found["value"] = ""
        found = found.groupby(["column", "value"], as_index=False, sort=False)["share"].sum()
        return found.sort_values("share", key=lambda own: -own.abs(), kind="stable", ignore_index=True)

    def _columns_of_simple(self, scene: Scene, score: "Scoring", number: int | Sequence[int]) -> pd.DataFrame:
        """Say what the score of the simple method loses if a column of the node has its mean."""
        rows, base = list[tuple[str, str, float]](), self.base_of(number)
        if base is not None and self.simple is not None and self.num_copies and isinstance(number, int):
            data, kind = self.setup.bare or self.setup.data, int(self._types_of(torch.tensor([number])))
            channels = name_nodes(self.setup.config.data, data)[kind]
            nodes = data.types.nodes_of(data.types.names[kind])
            mean = data.x[nodes.start:nodes.stop].float().mean(0)
            values = data.x[number].tolist()
            for name in list(dict.fromkeys(one.column for one in channels if one.column))[:self.num_copies]:
                own = [place for place, one in enumerate(channels) if one.column == name]
                lowered = base + self.simple.without_column(number, own, mean).to(base)
                whole, changed = (float(score.of(one.unsqueeze(0), one)) for one in (base, lowered))
                (_, text, _), = sum_by_column([channels[place] for place in own], [values[place] for place in own],
                                              [1.0] * len(own))
                rows.append((name, text, whole - changed))
        found = pd.DataFrame([row for row in rows if row[2]], columns=["column", "value", "drop"])
        return found.sort_values("drop", key=lambda own: -own.abs(), kind="stable", ignore_index=True)

    def _named(self, scene: Scene, node: int, shares: Tensor) -> list[tuple[str, str, float]]:
        """Return each column of a node with its value, where that is known, and its share."""
        channels = self._channels[int(self._types_of(scene.data.n_id[node]))]
        return sum_by_column(channels, scene.data.x[node].tolist(), shares.tolist())

    def _neighbours(self, scene: Scene, score: "Scoring", links: list[int], nodes: Tensor, top: int) -> pd.DataFrame:
        """Take neighbours out one by one, those of the best links and those with large shares first."""
        strength, is_graph = nodes.sum(1), scene.is_graph
        may = torch.ones(len(strength), dtype=torch.bool) if is_graph and len(strength) > 1 else torch.isin(
            torch.arange(len(strength)), scene.targets.cpu(), invert=True)
        order = torch.argsort(-strength.abs(), stable=True).cpu()
        ends = [end for link in links[:2 * top] for end in scene.edges[:, scene.link == link][:, 0].tolist()]
        tried = [node for node in dict.fromkeys([*ends, *order[:2 * top].tolist()]) if bool(may[node])]
        tried = tried[:self.num_copies // 2] if self.num_copies else tried
        best = sorted(score.without(scene, [Removed(nodes=[node]) for node in tried]), key=score.rank)[:top]
        rows, data, types = [], self.setup.data, self.setup.data.types
        for node, drop, lowered in best:
            number = int(scene.data.n_id[node])
            direct = torch.isin(scene.edges[1], scene.targets) & (scene.edges[0] == node)
            type_ = int(self._types_of(torch.tensor(number)))
            rows.append({"id": self._name(scene, node), "type": types.names[type_],
                         "hops": 0 if is_graph else int(scene.hop[node]),
                         "relation": self._relation_names(scene, direct),
                         "label": "" if is_graph else self._label_of(data, number),
                         "share": float(strength[node]), "drop": drop, "prediction": lowered,
                         "columns": text_of(self._named(scene, node, nodes[node]))})
        found = pd.DataFrame(rows, columns=["id", "type", "hops", "relation", "label", "share", "drop", "prediction",
                                            "columns"])
        return found.drop(columns=["type"] * types.homogeneous + ["label"] * (not self._has_labels or is_graph)
                          + ["hops"] * is_graph + ["columns", "share"] * (self.part == 1)
                          + ["relation"] * (is_graph or not any(found["relation"])))

    def _edges(self, scene: Scene, tried: list["Tried"], shares: Tensor) -> pd.DataFrame:
        rows, of_relation = [], name_edges(self.setup.config.data, self.setup.data)
        for link, drop, lowered in tried:
            is_own = scene.link == link
            edge = int(is_own.nonzero()[0])
            source, target = scene.edges[:, edge].tolist()
            relation = int(self._relations(scene)[edge]) if scene.data.edge_attr is not None else 0
            attr = [] if scene.data.edge_attr is None else scene.data.edge_attr[edge].tolist()
            named = sum_by_column(of_relation[relation], attr, shares[link].tolist()) if attr else []
            rows.append({"source": self._name(scene, source), "target": self._name(scene, target),
                         "relation": self._relation_names(scene, is_own),
                         "hops": int(scene.hop[scene.edges[1, is_own]].min()) + 1, "share": float(shares[link].sum()),
                         "drop": drop, "prediction": lowered, "columns": text_of(named)})
        found = pd.DataFrame(rows, columns=["source", "target", "relation", "hops", "share", "drop", "prediction",
                                            "columns"])
        return found.drop(columns=["relation"] * self.setup.data.types.homogeneous + ["hops"] * scene.is_graph
                          + ["columns", "share"] * (not any(found["columns"])))

    def _relation_names(self, scene: Scene, edges: Tensor) -> str:
        """Name the relations of some edges."""
        types = self.setup.data.types
        if types.homogeneous:
            return ""
        numbers = dict.fromkeys(scene.data.edge_attr[edges, 0].long().tolist())
        return ", ".join(types.name_of(number) for number in numbers)

    def _label_of(self, data: Data, node: int) -> str:
        """Return the label of a node in a split."""
        if not self._has_labels or "y" not in data or not any(
                bool(data[mask][node]) for mask in MASKS):
            return ""
        y, form = data.y[node], self.setup.task.kind
        if form == "real values":
            return f"{float(y[0]):.4g}"
        names = labels_of(data, cast(Any, self.setup.task).out_channels)
        on = [int(own) for own in y if own >= 0] if form == "classes" else (y == 1).nonzero().flatten().tolist()
        return ", ".join(str(label) if names is None else names[label] for label in on[:NAMED])

    def _name(self, scene: Scene, node: int) -> str:
        return str(node if scene.is_graph else self._ids[int(scene.data.n_id[node])])

    def _notes(self, scene: Scene, num_tried: int) -> list[str]:
        found = []
        if not scene.num_links:
            found.append("it has no neighbours: only its own columns carry the prediction")
        elif num_tried < scene.num_links:
            found.append(f"{num_tried:,} of the {scene.num_links:,} edges that the prediction reads were taken out, "
                         + ("those nearest to it, with known labels first" if self.part == 1 else
                            "those with the largest shares"))
        if self.part == 1 and self.num_copies:
            found.append("the simple method alone answers: its columns, neighbours and edges have no shares, and each "
                         "drop is what its score loses without them")
        elif self.part == 1:
            found.append("the simple method alone answers, and it cannot be computed again here in a short time: "
                         "neither its columns nor its neighbours are told apart, and every drop is 0. Train with "
                         "task.base=none for an explanation of the network")
        elif self.part and not self.num_copies:
            found.append("the scores of the simple method stay as they are when an edge is taken out")
        if scene.is_pair and self._kept is not None and self._kept.share:
            part = "alone" if self._kept.share == 1 else f"for {self._kept.share:.0%} of its score"
            found.append("this explains the network alone, and its probability is not that of the run, which answers "
                         f"with the simple method {part}: {self._kept.title}")
        return found


class Scoring:
    """The number that is explained: the log odds of a class, the logit of a task or link, or a value.

    Args:
        explainer: mixes in the simple method.
        scene, number: of the prediction.
        label: as of :meth:`Explainer.explain`.

    Attributes:
        label: its name; none where there is one number.
        unit: for people.
        prediction: the probability, or the value.

    Raises:
        ValueError: there is no such class or task.
    """

    def __init__(self, explainer: Explainer, scene: Scene, number: int | Sequence[int], label: str | None):
        self._explainer, self._number, setup = explainer, number, explainer.setup
        base = explainer.base_of(number)
        self._kind, self._column = setup.task.kind, 0
        whole = scene.without([Removed()])
        rows = explainer.answer(whole, base)
        names = [str(number) for number in range(rows.size(1))]
        if not scene.is_pair:
            names = labels_of(setup.data, rows.size(1)) or names
        if label is not None and (label not in names or rows.size(1) == 1):
            raise ValueError(f"label={label} is no class or task of this run; " + (
                f"choose one of {', '.join(names[:20])}{', ...' * (len(names) > 20)}" if rows.size(1) > 1
                else "leave it out, since there is one number"))
        if label is not None:
            self._column = names.index(label)
        elif self._kind != "real values":
            self._column = int(rows[0].argmax())
        self.label = None if rows.size(1) == 1 else names[self._column]
        self.unit = "value" if self._kind == "real values" else "log odds"
        self.prediction = float(self.shown(self.of(whole, base)))

    def of(self, rows: Float[Tensor, "num_copies columns"], base: Tensor | None) -> Float[Tensor, " num_copies"]:
        """Score the network's answers of copies."""
        rows = self._explainer.answer(rows, base)
        own = rows[:, self._column]
        if self._kind != "classes":
            return own
        others = torch.arange(rows.size(1), device=rows.device) != self._column
        return own - rows[:, others].logsumexp(1)

    def shown(self, scores: Float[Tensor, " num_copies"]) -> Float[Tensor, " num_copies"]:
        """Turn scores into probabilities, or values."""
        return scores if self.unit == "value" else scores.double().sigmoid()

    def rank(self, tried: "Tried") -> float:
        """Return less for what the score loses more without; of values, for what changes them more."""
        return -abs(tried.drop) if self.unit == "value" else -tried.drop

    def without(self, scene: Scene, removed: list[Removed]) -> list["Tried"]:
        """Predict without each of these, and say what the score loses."""
        if not removed:
            return []
        every = [Removed(), *removed]
        scores = self.of(scene.without(every), self._explainer.base_without(self._number, scene, every))
        drops, lowered = (scores[0] - scores[1:]).tolist(), self.shown(scores[1:]).tolist()
        return [Tried([*one.links, *one.nodes][0], drop, low) for one, drop, low in zip(removed, drops, lowered)]


class Tried(NamedTuple):
    """The number of a link or node that was taken out, what the score loses, and the prediction without it."""

    number: int
    drop: float
    lowered: float


def sum_by_column(channels: list[Channel], values: list[float], shares: list[float]) -> list[tuple[str, str, float]]:
    """Sum the shares of the channels of each column, and say what is in it; the largest share first."""
    found: dict[str, list] = {}
    for channel, value, share in zip(channels, values, shares, strict=False):
        if not channel.column:
            continue
        own = found.setdefault(channel.column, ["", 0.0])
        own[1] += share
        if channel.text is not None and value > 0.5:
            own[0] = channel.text
        elif channel.scale is not None:
            own[0] = f"{value * channel.scale + channel.shift:.4g}"
    return sorted(((name, text, share) for name, (text, share) in found.items() if share),
                  key=lambda one: -abs(one[2]))


def text_of(named: list[tuple[str, str, float]]) -> str:
    """Write the columns with the largest shares in a line."""
    return ", ".join(f"{name}{'=' * bool(value)}{value} {share:+.2g}" for name, value, share in named[:NAMED])
