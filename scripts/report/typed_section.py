"""The section of a page about a graph with several types of nodes: its schema, what is cut, and scores by neighbours."""

from parallel_epochs.scripts.report import words
from parallel_epochs.scripts.report.elements import (
    Cell,
    Column,
    escape,
    number,
    paragraph,
    table,
    text,
)
from parallel_epochs.scripts.report.label_section import MAX_OPEN


def typed_section(record: dict, partition: dict | None) -> str:
    """Build the tables of types and relations, and the scores by neighbours.

    Args:
        record: the scores of a run on a typed graph.
        partition: the record of its first partition, if there is one.
    """
    typed = record["typed"]
    shown = [relation for relation in typed["relations"] if not relation["is_reverse"]]
    num_reverse = len(typed["relations"]) - len(shown)
    told = f"{words.count(len(typed['types']), 'type')} of nodes and {words.count(len(shown), 'relation')}."
    if num_reverse:
        told += (
            f" {words.count(num_reverse, 'reverse relation has', 'reverse relations have')} the same edges the "
            "other way round; they are left out here."
        )
    tables = f"<div>{_types(typed)}</div><div>{_relations(typed, _cut(typed, partition))}</div>"
    return paragraph(told) + f'<div class="pair">{tables}</div>' + _scores(record)


def _types(typed: dict) -> str:
    columns = [
        Column("Type"),
        Column("Nodes", True),
        Column("Features", True, "columns that the type has"),
    ]
    rows = [
        [
            _name(kind["name"] + " (labelled)" * (kind["name"] == typed["labelled"])),
            number(kind["nodes"], words.count(kind["nodes"])),
            number(kind["columns"], words.count(kind["columns"])),
        ]
        for kind in typed["types"]
    ]
    return table(columns, rows, label="Types of nodes")


def _cut(typed: dict, partition: dict | None) -> list[float] | None:
    """Return the share of the edges of each relation that a partition cuts, if its record tells."""
    found = (partition or {}).get("relations")
    if not isinstance(found, dict) or len((partition or {}).get("sizes", [])) < 2:
        return None
    edges, kept = found.get("edges"), found.get("kept")
    if not all(
        isinstance(part, list)
        and len(part) == len(typed["relations"])
        and all(type(value) is int for value in part)
        for part in (edges, kept)
    ):
        return None
    return [1 - a / max(b, 1) if b else 0.0 for a, b in zip(kept, edges, strict=True)]


def _relations(typed: dict, cut: list[float] | None) -> str:
    columns = [Column("Relation"), Column("From"), Column("To"), Column("Edges", True)]
    if cut is not None:
        columns.append(
            Column("Cut", True, "share of the edges between clusters of the first partition")
        )
    rows = []
    for place, relation in enumerate(typed["relations"]):
        if relation["is_reverse"]:
            continue
        row = [
            _name(relation["name"]),
            text(words.shortened(relation["source"])),
            text(words.shortened(relation["target"])),
            number(relation["edges"], words.count(relation["edges"])),
        ]
        rows.append(row + ([] if cut is None else [number(cut[place], f"{cut[place]:.1%}")]))
    return _folded(table(columns, rows, label="Relations"), rows)


def _scores(record: dict) -> str:
    """Build the table of test scores of nodes with and without a neighbour by each relation."""
    typed, metric = record["typed"], words.metric_name(record["metric"])
    if not typed["neighbours"]:
        return ""
    columns = [
        Column("Neighbour"),
        Column("By relation"),
        Column(f"Test {metric} with", True),
        Column("Nodes", True),
        Column(f"Test {metric} without", True),
        Column("Nodes", True),
    ]
    rows = []
    for near in typed["neighbours"]:
        relation = typed["relations"][near["relation"]]
        cells = [
            [
                number(near[which]["score"], words.score(near[which]["score"])),
                number(near[which]["rows"], words.count(near[which]["rows"])),
            ]
            for which in ("with", "without")
        ]
        rows.append(
            [
                _name(relation["source"]),
                text(words.shortened(relation["name"])),
                *cells[0],
                *cells[1],
            ]
        )
    note = (
        f"Test nodes of the type {typed['labelled']} with at least one such neighbour, and those without. Reverse "
        "relations count as well: they are what brings messages back."
    )
    return f"<h3>Test {escape(metric)} by neighbours</h3>{paragraph(note, 'note')}" + _folded(
        table(columns, rows, label="Test score by neighbours"), rows
    )


def _folded(shown: str, rows: list) -> str:
    """Close a long table at first."""
    if len(rows) <= MAX_OPEN:
        return shown
    return f"<details><summary>All {len(rows):,} relations</summary>{shown}</details>"


def _name(name: str) -> Cell:
    return Cell(escape(words.shortened(name)), name)
