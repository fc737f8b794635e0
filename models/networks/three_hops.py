"""Paths of three links from a source to a target."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.aggregate import aggregate
from parallel_epochs.models.edge_index import from_csc, plain_edges

# Numbers that are held at a time.
NUMBERS = 1 << 24


@dataclass(frozen=True)
class ThreeHops:
    """Links from sources to targets, and how much each source passes on to each target over three of them.

    A source gives each of its targets 1; a target gives its sources equal parts of what it has, and these their targets
    (Zhou et al., https://arxiv.org/abs/0707.0540). A link between the two ends of a pair counts: leave it out where it
    is to be predicted.

    Attributes:
        forward, backward: the links, and the same from target to source, sorted by their ends.
        out_degree, in_degree: number of links of each node as a source and as a target, at least 1 [num_nodes].
    """

    forward: Int[Tensor, "2 num_links"]
    backward: Int[Tensor, "2 num_links"]
    out_degree: Float[Tensor, " num_nodes"]
    in_degree: Float[Tensor, " num_nodes"]

    @classmethod
    def of(cls, edge_index: Int[Tensor, "2 num_edges"], num_nodes: int) -> "ThreeHops":
        """Sort links, each of which counts once, and from a node to itself not at all.

        Args:
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, in any order.
        """
        edges = plain_edges(edge_index)
        source, target = edges[:, edges[0] != edges[1]].long()
        forward, backward = (
            _sort(*ends, num_nodes) for ends in ((source, target), (target, source))
        )
        degrees = (
            torch.bincount(edges[1], minlength=num_nodes).clamp(min=1).float()
            for edges in (backward, forward)
        )
        return cls(forward, backward, *degrees)

    def allocate_to(
        self, sources: Int[Tensor, " num_sources"], targets: Int[Tensor, " num_targets"]
    ) -> Float[Tensor, "num_sources num_targets"]:
        """Compute what all pairs of some sources and targets have."""
        size = max(1, NUMBERS // max(len(self.in_degree), 1))
        parts = [self._spread(block)[targets].t() for block in sources.split(size)]
        return torch.cat(parts) if parts else self.in_degree.new_empty(0, len(targets))

    def allocate_to_pairs(self, pairs: Int[Tensor, "num_pairs 2"]) -> Float[Tensor, " num_pairs"]:
        """Compute what pairs of a source and a target have."""
        sources, place = pairs[:, 0].unique(return_inverse=True)
        order = place.argsort(stable=True)
        found, size = (
            self.in_degree.new_empty(len(pairs)),
            max(1, NUMBERS // max(len(self.in_degree), 1)),
        )
        ends = torch.searchsorted(
            place[order], torch.arange(0, len(sources) + size, size, device=place.device)
        )
        for number, block in enumerate(sources.split(size) if len(sources) else ()):
            own = order[int(ends[number]) : int(ends[number + 1])]
            found[own] = self._spread(block)[pairs[own, 1], place[own] - number * size]
        return found

    def _spread(self, sources: Tensor) -> Float[Tensor, "num_nodes num_sources"]:
        """Compute what each node gets from each source."""
        start = torch.zeros(len(self.in_degree), len(sources), device=sources.device)
        start[sources, torch.arange(len(sources), device=sources.device)] = 1
        at_targets = _sum(start, self.forward) / self.in_degree[:, None]
        at_sources = _sum(at_targets, self.backward) / self.out_degree[:, None]
        return _sum(at_sources, self.forward)


def _sort(source: Tensor, target: Tensor, num_nodes: int) -> Int[Tensor, "2 num_links"]:
    """Sort links by their target; those that are there twice count once."""
    keys = (target * num_nodes + source).unique()
    target, source = keys // max(num_nodes, 1), keys % max(num_nodes, 1)
    ptr = torch.searchsorted(target, torch.arange(num_nodes + 1, device=keys.device))
    return from_csc(torch.stack([source, target]), ptr)


def _sum(x: Tensor, edges: Tensor) -> Tensor:
    """Sum the rows, which are not negative, of the sources of the edges of each node."""
    return aggregate(x, edges, aggr="add", eps=0.0)
