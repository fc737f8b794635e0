"""The likeliest targets of sources: what `predict top=K` asks of a model of links, and the table of its answers."""

import logging
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.links import LinkRelation
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.predict.ids import find_nodes, read_ids
from parallel_epochs.pipeline.gnn.predict.ranking import (
    Best,
    BlockScorer,
    Direction,
    Links,
    find_best,
    with_pairs,
)
from parallel_epochs.pipeline.gnn.predict.table import Table
from parallel_epochs.pipeline.names import PAIR_COLUMNS
from parallel_epochs.pipeline.run.tables import Columns
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """The tables of a question: ids of sources and of candidates, none for all."""

    sources: list[str] | None
    candidates: list[str] | None


@dataclass(frozen=True)
class Question:
    """Sources whose likeliest targets are asked for.

    Attributes:
        sources: numbers of nodes, each once, in the order of the answer.
        directions: which candidates each may have.
        known: pairs that are left out, sorted by source.
        top: targets of a source, at most.
    """

    sources: Int[Tensor, " num_sources"]
    directions: list[Direction]
    known: Int[Tensor, "num_known 2"]
    top: int

    def answer(self, score: BlockScorer) -> Best:
        """Find the likeliest targets of each source, in the order of the sources."""
        parts = []
        for direction in self.directions:
            own = self.sources[torch.isin(self.sources, direction.sources)]
            parts.append(find_best(score, own, self.top, self.known, direction))
        found = (torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Best))
        return Best(*found).in_order_of(self.sources)


def read(asked: GNNPredictConfig, run: str) -> Asked:
    """Read the tables of a question, before any long work.

    Raises:
        ValueError: a table cannot be read, or a key does not go with ``top``.
    """
    if asked.output is None:
        raise ValueError(f"top={asked.top} needs a table for the targets. Give output=TABLE")
    for name, value in vars(asked).items():
        if value and name in ("pairs", "predictions", "output_type", "embeddings"):
            raise ValueError(
                f"{name}={value} does not go with top={asked.top}, which writes a table of the likeliest "
                f"targets of each source for {run}. Leave one of them out"
            )
    return Asked(
        *(
            None if path is None else read_ids(path, name)
            for name, path in (
                ("output_nodes", asked.output_nodes),
                ("candidates", asked.candidates),
            )
        )
    )


def links_of(data: Data) -> Links:
    """Return the links of a graph with pairs; one without any is a new one, whose edges are its links."""
    return Links(with_pairs(data))


def find(given: Asked, links: Links, ids: np.ndarray, asked: GNNPredictConfig) -> Question:
    """Find the sources and the candidates that a question names.

    Args:
        ids: of all nodes.

    Raises:
        ValueError: an id names no node, or no source or no candidate is left.
    """
    own, directions = links.relation, links.directions
    if given.candidates is not None:
        chosen = _numbers(
            given.candidates,
            ids,
            own,
            "target",
            asked.candidates,
            "candidates",
        )
        directions = [
            Direction(one.sources, one.candidates[torch.isin(one.candidates, chosen)])
            for one in directions
        ]
    targets = torch.cat([one.candidates for one in directions]).unique()
    if num_new := int((~torch.isin(targets, links.everything)).sum()):
        log.warning(
            "%s of %s have no link here: only a network, or a simple method that reads columns, can rank "
            "them above others",
            f"{num_new:,}",
            count(len(targets), "candidate"),
        )
    sources = directions[0].sources
    if given.sources is not None:
        name, key = (
            ("sources",) * 2
            if asked.output_nodes is None
            else ("output_nodes", f"output_nodes={asked.output_nodes}")
        )
        sources = _numbers(given.sources, ids, own, "source", asked.output_nodes, name)
        has_side = torch.isin(sources, torch.cat([one.sources for one in directions]))
        if not bool(has_side.any()):
            raise ValueError(
                f"{key}: none of the {len(sources):,} nodes has a link, so "
                "that their side of the bipartite graph is not known"
            )
        if num_lost := int((~has_side).sum()):
            log.warning(
                "%s: %s without a link left out: their side of the bipartite graph is not known",
                name,
                count(num_lost, "node"),
            )
        sources = sources[has_side]
    ranked = torch.cat([one.sources for one in directions if len(one.candidates)] or [sources[:0]])
    if given.candidates is not None and not bool(torch.isin(sources, ranked).any()):
        key = "candidates" if asked.candidates is None else f"candidates={asked.candidates}"
        raise ValueError(
            f"{key} names no node that can be a target of the "
            f"{count(len(sources), 'source')}, which are on the other side of the links"
        )
    known = links.everything if asked.filtered else links.everything[:0]
    return Question(sources, directions, known, asked.top or 0)


def _numbers(
    wanted: list[str],
    ids: np.ndarray,
    own: LinkRelation | None,
    end: str,
    path: str | None,
    name: str,
) -> Int[Tensor, " num_found"]:
    """Return the numbers of nodes with some ids, among those at one end of a relation if there is one."""
    nodes, whose = range(len(ids)), "the run"
    if own is not None:
        nodes, whose = getattr(own, end), f"the type of the {end}s of {own.name}"
    return nodes.start + torch.from_numpy(
        find_nodes(wanted, ids[nodes.start : nodes.stop], path, name=name, whose=whose)
    )


def table_of(ids: np.ndarray, best: Best, num_sources: int) -> Table:
    """Return a table with a row for each target: source, target, the probability of a link, and the rank from 1."""

    def columns(part: slice) -> Columns:
        ends = (ids[ends[part].numpy()] for ends in (best.sources, best.targets))
        return dict(zip(PAIR_COLUMNS, ends, strict=True)) | {
            "score": best.scores[part].double().sigmoid().float().numpy(),
            "rank": best.ranks[part].numpy(),
        }

    return Table(
        f"{len(best.targets):,} targets of {count(num_sources, 'source')}",
        len(best.targets),
        1,
        columns,
    )
