"""Encodes new rows and their edges by the code that encodes tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import open_other
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.in_memory import written
from parallel_epochs.pipeline.names import TERMS
from parallel_epochs.pipeline.run.saved import SavedRun

Row = Mapping[str, Any]


@dataclass(frozen=True)
class NewNodes:
    """New nodes with edges to a graph, all of them behind its own.

    Attributes:
        ids: of the nodes.
        x: features of the new nodes, without degrees, float32.
        edges: ends of the edges, sorted by destination, then source, int64; a new node is at one end or both.
        edge_attr: features of the edges, float32; none without them.
        terms: where the terms of each new node begin, and these with their TF-IDF; none where no model reads them.
    """

    ids: list[str]
    x: Float[Tensor, "num_new channels"]
    edges: Int[Tensor, "2 num_edges"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None
    terms: tuple[Tensor, Tensor, Tensor] | None


def encode(
    run: SavedRun[GNNConfig],
    learned: Learned,
    known: dict[str, int],
    columns: dict[str, dict[str, Any]],
    rows: Sequence[Row],
    edges: Sequence[Row],
    *,
    has_terms: bool,
) -> NewNodes:
    """Encode new rows and their edges by the code that encodes tables.

    Args:
        run: a run on one table of nodes and one of edges.
        learned: what it learned of its tables.
        known: the number of each node of the training, by its id.
        columns: see :class:`pipeline.gnn.predict.newcomers.Newcomers`.
        has_terms: whether a model reads the terms of texts.

    Raises:
        ValueError: a row lacks a column, a cell is wrong, an id is known already or names nothing.
    """
    # DuckDB, which other runs do not need.
    from parallel_epochs.pipeline.data.tables import new_rows as tables

    for what, given in (("rows", rows), ("edges", edges)):
        tables.check(what, given, columns[what])
    id_column, (source, target, *_) = next(iter(columns["rows"])), columns["edges"]
    ids = [tables.text_of(row[id_column]) or "" for row in rows]
    if "" in ids:
        raise ValueError(
            f"rows[{ids.index('')}]: {id_column} is empty; give the new row an id that no node has"
        )
    if len(set(ids)) < len(ids) or not ids:
        raise ValueError("rows must have different ids, and there must be one row at least")
    if old := [id for id in ids if id in known]:
        raise ValueError(
            f"rows: {old[0]!r} is known already; ask for it by ids, or give the new row another id"
        )
    place_of = {id: len(known) + place for place, id in enumerate(ids)}
    for place, edge in enumerate(edges):
        ends = [cast(str, tables.text_of(edge[end])) for end in (source, target)]
        if lost := [end for end in ends if end not in place_of and end not in known]:
            raise ValueError(
                f"edges[{place}]: {lost[0]!r:.100} is neither a known id nor that of a new row"
            )
        if all(end in known for end in ends):
            raise ValueError(
                f"edges[{place}]: neither {ends[0]!r:.100} nor {ends[1]!r:.100} is a new row, and edges "
                "between known nodes are those of the training"
            )
        place_of |= {end: known[end] for end in ends if end in known}
    # The known ends of edges need a row too; its features are not read.
    fillers = [{**rows[0], id_column: id} for id in list(place_of)[len(ids) :]]
    both = (
        tables.to_table([*rows, *fillers], columns["rows"]),
        tables.to_table(edges, columns["edges"]),
    )
    source = cast(Any, run.config.data)
    with written(source.with_tables(*both), source, run.folder, {}) as found:
        asked = keys.replaced(GNNPredictConfig(str(run.folder)), found)
        config = keys.replaced(run.config, new_data.choose(run, asked.data)).data
        config.leave_labels()
        part = open_other(config, learned, run.config.cache_dir)
    ends = torch.tensor(list(place_of.values()))[plain_edges(part.edge_index).long()]
    is_own = (ends >= len(known)).any(0)  # not a self-loop of a known node
    order = np.lexsort(ends[:, is_own].numpy())
    attr = None if part.edge_attr is None else part.edge_attr[is_own][order]
    terms = None
    if has_terms:
        ptr = part[TERMS[0]][: len(ids) + 1]
        terms = ptr, *(part[name][: int(ptr[-1])] for name in TERMS[1:])
    return NewNodes(ids, part.x[: len(ids)].clone(), ends[:, is_own][:, order], attr, terms)
