"""The number that an explanation is about, with its shares, and what it loses without edges, nodes or columns."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.pipeline.gnn.base import fusion
from parallel_epochs.pipeline.gnn.base.fit import SMOOTHED, Base, apply
from parallel_epochs.pipeline.gnn.explain.answer import LEAST_GAP, TOLERANCE
from parallel_epochs.pipeline.gnn.explain.view import link_keys, view_of, without
from parallel_epochs.pipeline.gnn.kinds.labels import labels_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask

# Numbers that all copies of a graph send along its edges together, and the steps of a method.
MOST_SENT, STEPS_OF, FEW_STEPS = 1 << 34, {"diffusion": 50}, 3
# The method is computed again if so many copies are allowed.
FEWEST_COPIES = 20
# Points of the path from the means to the features: four times as many until the shares add up, or the last number.
STEPS = (8, 32, 128)


class Tried(NamedTuple):
    """A thing that was taken out, what the score loses without it, and the prediction without it."""

    what: Any
    drop: float
    lowered: float


class Shares(NamedTuple):
    """Shares of features and of the simple method, and the score with the features as they are and at their means."""

    nodes: Float[Tensor, "num_nodes columns"]
    base: float
    score: float
    baseline: float


class Explained:
    """The data, the model and the simple method that all explanations of a run read.

    Args:
        setup: the run's data and model.
        kept: what the run keeps of a simple method; none without one.

    Attributes:
        bare: the graph without the columns of the simple method.
        rows: scores of the method for the graph of the training, as it learned them; none without a method of labels.
        part: of the method in the answers.
        x: what the network reads of each node.
    """

    def __init__(self, setup: Setup, kept: fusion.Kept | None):
        self.setup, self.kept, self.x = setup, kept, setup.inputs().x.detach()
        self.bare, self.task = setup.bare or setup.data, cast(NodeTask, setup.task)
        self.rows = setup.base.rows if isinstance(setup.base, Base) else None
        self.reads_base, self.part = setup.config.task.reads_base, 0.0
        if kept is not None and self.rows is not None:
            is_blind = kept.reads_labels and not bool(setup.data.train_mask.any())
            self.part = 0.0 if is_blind else kept.share

    @cached_property
    def num_copies(self) -> int:
        """Copies of the graph that an explanation may score by the method; 0 if it takes long, or cannot score others."""
        data, kept = self.bare, self.kept
        if kept is None or not kept.fitted or kept.name == SMOOTHED or "ptr" in data:
            return 0
        if self.rows is None or not (self.part or self.reads_base):
            return 0
        width = self.task.out_channels + (0 if data.x is None else data.x.size(1))
        sent = STEPS_OF.get(kept.name, FEW_STEPS) * width * max(data.num_edges, data.num_nodes)
        return found if (found := MOST_SENT // sent) >= FEWEST_COPIES else 0

    def type_of(self, nodes: Tensor) -> Tensor:
        """Return the number of the type of each node."""
        ends = torch.tensor(self.setup.data.types.counts).cumsum(0)
        return torch.searchsorted(ends, nodes.cpu(), right=True).clamp(max=len(ends) - 1)

    @cached_property
    def means(self) -> Tensor:
        """The means of what the network reads of the nodes of each type [num_types, columns]."""
        parts = self.x.double().split(list(self.setup.data.types.counts))
        return torch.stack([part.mean(0) for part in parts]).nan_to_num().float()

    @cached_property
    def encoder(self) -> TableEncoder | None:
        """Turns categories of nodes into vectors; none where ``x`` holds numbers."""
        tables = self.setup.data.get("x_tables")
        encoders = [each for each in self.setup.model.modules() if isinstance(each, TableEncoder)]
        return next((each for each in encoders if tables and len(each.sizes) == len(tables)), None)

    @property
    def columns_of_base(self) -> slice:
        """The columns that the network reads and that hold scores of the simple method."""
        data, types = self.bare, self.bare.types
        first = self.x.size(1) - self.setup.data.x.size(1)
        if types.homogeneous:
            first += data.x.size(1) - data.num_categories
        else:
            first += types.widths[types.names.index(str(types.labelled))]
        return slice(first, first + cast(Tensor, self.rows).size(1))

    @cached_property
    def edges(self) -> Tensor:
        """The edges of the whole graph."""
        return plain_edges(self.bare.edge_index).long()

    @cached_property
    def keys(self) -> Tensor:
        """The link of each edge of the whole graph."""
        return link_keys(self.bare, self.edges, self.bare.edge_attr)


class Score:
    """The number that is explained: the log odds of a class, the logit of a task, or a value.

    Args:
        run: what explanations of the run have in common.
        number: of a node or a graph.
        label: the class or task. None: the likeliest.

    Attributes:
        view: what the prediction reads.
        label: its name; none where there is one number.
        base: scores of the simple method, as it learned them; none without one.
        prediction: the probability, or the value.

    Raises:
        ValueError: there is no such class or task.
    """

    def __init__(self, run: Explained, number: int, label: str | None = None):
        self.run, self.number = run, number
        self.view = view_of(run.setup, run.x, number)
        self.base = None
        if run.rows is not None:
            self.base = run.rows[number].to(run.setup.device)
        self._kind, self._column = run.setup.task.kind, 0
        self.is_value = self._kind == "real values"
        with torch.no_grad():
            rows = self._answer(self.view.data, self.base)
        num = rows.size(1)
        names = labels_of(run.setup.data, num) or list(map(str, range(num)))
        if label is not None:
            if label not in names or num == 1:
                raise ValueError(
                    f"label={label} is no class or task of this run; choose one of {', '.join(names[:20])}"
                    if num > 1
                    else f"label={label}: there is one number. Leave it out"
                )
            self._column = names.index(label)
        elif not self.is_value:
            self._column = int(rows[0].argmax())
        self.label = None if num == 1 else names[self._column]
        self._score = self._of(rows)
        self.prediction = self._tried(None, rows).lowered

    def without(
        self, what: Any = None, links: Sequence[int] = (), nodes: Sequence[int] = ()
    ) -> Tried:
        """Take links, and all edges of nodes, out of the graph, and predict again what reads them."""
        view, run, base, x = self.view, self.run, self.base, self.view.data.x
        device, n_id = view.link.device, view.data.n_id.cpu()
        some = torch.tensor(nodes, dtype=torch.int64)
        gone = torch.isin(view.link, torch.tensor(links, dtype=torch.int64, device=device))
        if run.num_copies and (links or nodes):
            # At the border of the view, only one of an edge and its reverse edge is in it.
            attr = view.data.edge_attr
            keys = link_keys(
                run.bare,
                n_id[view.edges[:, gone].cpu()],
                None if attr is None else attr[gone].cpu(),
            )
            of_nodes = torch.isin(run.edges, n_id[some]).any(0)
            base, x = self._scored(without(run.bare, torch.isin(run.keys, keys) | of_nodes))
        batch = without(view.data, gone | torch.isin(view.edges, some.to(device)).any(0))
        batch.x = x
        with torch.no_grad():
            return self._tried(what, self._answer(batch, base))

    def without_column(self, name: str, channels: list[int], mean: Tensor) -> Tried:
        """Give channels of the node their mean, where the simple method alone answers."""
        data = copy.copy(self.run.bare)
        data.x = data.x.clone()
        data.x[self.number, channels] = mean[channels].to(data.x)
        return self._tried(name, self._answer(self.view.data, self._scored(data)[0]))

    def best(self, tried: Sequence[Tried]) -> list[Tried]:
        """Sort by what the score loses, the most first; of values, by what changes them most."""
        return sorted(tried, key=lambda one: -abs(one.drop) if self.is_value else -one.drop)

    def integrate(self) -> Shares:
        """Compute integrated gradients (https://arxiv.org/abs/1703.01365) from the means to the features.

        The share of the simple method is what the score loses first, if the method's scores have their mean.
        """
        run, x, encoder = self.run, self.view.data.x, self.run.encoder
        base = None
        if self.base is not None:
            base = cast(Tensor, run.rows).double().mean(0).to(self.base)
        if encoder is None:
            x = x.float()
            mean = run.means[run.type_of(self.view.data.n_id)].to(x)
        else:  # the vectors of categories
            with torch.no_grad():
                x, mean = encoder(x), encoder(run.x.to(x.device)).mean(0, keepdim=True)
        with torch.no_grad():
            score, middle, baseline = (
                float(self._vary(*ends))
                for ends in ((x, self.base), (x, base), (mean.expand_as(x), base))
            )
        shares = torch.zeros_like(x)
        if self._reads_network:
            for num_steps in STEPS:
                sums = torch.zeros_like(x)
                for step in range(num_steps):
                    given = x.lerp(mean, (step + 0.5) / num_steps).requires_grad_()
                    sums += torch.autograd.grad(self._vary(given, base), given)[0] / num_steps
                shares = (x - mean) * sums
                gap = abs(float(shares.sum()) - (middle - baseline))
                if gap <= max(TOLERANCE * abs(score - baseline), LEAST_GAP):
                    break
        if encoder is not None:  # the columns divide the shares of the vectors among them
            tables = encoder.weight.detach().split(encoder.sizes)
            columns = []
            for place, table in enumerate(tables):
                own, every = (
                    table[each[:, place].long()] for each in (self.view.data.x, run.x.to(x.device))
                )
                columns.append(((own - every.mean(0)) * sums).sum(1))
            shares = torch.stack(columns, 1)
        return Shares(shares, score - middle, score, baseline)

    @property
    def _reads_network(self) -> bool:
        return self.base is None or self.run.part < 1

    def _vary(self, x: Tensor, base: Tensor | None) -> Tensor:
        """Score with other features; those of nodes that have categories are the vectors of these."""
        encoder = self.run.encoder
        if encoder is None:
            batch = copy.copy(self.view.data)
            batch.x = x
            return self._of(self._answer(batch, base))
        handle = encoder.register_forward_hook(lambda *_: x)
        try:
            return self._of(self._answer(self.view.data, base))
        finally:
            handle.remove()

    def _answer(self, batch: Data, base: Tensor | None) -> Float[Tensor, "1 columns"]:
        """Answer as the run does; the network is not computed where it has no part in the answer."""
        if base is None or not self.run.part:
            return self._network(batch)
        own = base.unsqueeze(0)
        if not self._reads_network:
            return own
        return fusion.mix(self._network(batch), own, self.run.part)

    def _network(self, batch: Data) -> Tensor:
        return self.run.task.alone().predict(self.run.setup.model, batch)[1]

    def _of(self, rows: Float[Tensor, "1 columns"]) -> Tensor:
        own = rows[0, self._column]
        if self._kind != "classes":
            return own
        others = torch.arange(rows.size(1), device=rows.device) != self._column
        return own - rows[0, others].logsumexp(0)

    def _tried(self, what: Any, rows: Tensor) -> Tried:
        score = self._of(rows).detach()
        shown = score if self.is_value else score.double().sigmoid()
        return Tried(what, float(self._score - score), float(shown))

    def _scored(self, data: Data) -> tuple[Tensor, Tensor]:
        """Score a changed graph by the fitted method; returns its score of the row, and what the network reads.

        What the method sees of the change is added to its scores, which may be out of fold.
        """
        change, run = self._applied(data) - self._known, self.run
        base, x = cast(Tensor, self.base), self.view.data.x
        if run.reads_base:
            own, x = change[self.view.data.n_id.cpu()], x.clone()
            x[:, run.columns_of_base] += (own / cast(fusion.Kept, run.kept).moments[0]).to(x)
        return base + change[self.number].to(base), x

    @cached_property
    def _known(self) -> Tensor:
        return self._applied(self.run.bare)

    def _applied(self, data: Data) -> Tensor:
        asked = torch.zeros(len(data.y), dtype=torch.bool)
        asked[self.number] = True
        if self.run.reads_base:
            asked[self.view.data.n_id.cpu()] = True
        found = apply(cast(fusion.Kept, self.run.kept).fitted, data, self.run.task, asked)
        return found.masked_fill(~asked.unsqueeze(1), 0.0)
