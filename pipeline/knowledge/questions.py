"""Questions to a knowledge graph, (ada, likes, ?) or (?, likes, ada), and their best answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables
from parallel_epochs.pipeline.data.node_names import suggest_name
from parallel_epochs.pipeline.data.readers.triples import COLUMNS, parse_triples
from parallel_epochs.pipeline.knowledge.ranking import BLOCK, KnownAnswers
from parallel_epochs.pipeline.run import files

# Stands where an answer is asked for.
ASKED = "?"
# Stands before the number of a question that is in no file.
IN_MEMORY = "triples: entry"


class FoundAnswers(NamedTuple):
    """Answers, those of a question one behind the other, the best first.

    Attributes:
        rows: the question of each, from 0 [n], int64.
        triples: whole [n, 3].
        places: from 1; 0 for a triple that was whole before [n].
        scores: [n], float32; more is better.
    """

    rows: Tensor
    triples: Tensor
    places: Tensor
    scores: Tensor


def read_questions(path: Path) -> pd.DataFrame:
    """Read a table of questions: head, relation and tail a line, of which a head or a tail may be a question mark.

    Returns:
        Columns ``head``, ``relation`` and ``tail`` of texts; the index holds the numbers of the lines, from 1.

    Raises:
        ValueError: there is none, it is empty, or a line is no question; the message names it.
    """
    content = files.read_bytes(path) if files.is_there(path) else b""
    if not content.strip():
        raise ValueError(
            f"triples={path} {'is empty' if path.exists() else 'does not exist'}: write a head, a relation "
            f"and a tail in each line, with {ASKED} for what is asked"
        )
    table = parse_triples(content, f"triples={path}")
    table.index += 1
    _check_questions(table, f"triples={path}, line")
    return table


def questions_of(triples: object) -> pd.DataFrame:
    """Turn questions in memory into such a table as :func:`read_questions` returns; its index begins with 0.

    Args:
        triples: a list of (head, relation, tail), or a table with these three columns.

    Raises:
        ValueError: they are neither, or one is no question.
    """
    try:
        given = cast(Any, triples)
        table = (
            given if isinstance(given, pd.DataFrame) else pd.DataFrame(list(given), columns=COLUMNS)
        )
        table = table[list(COLUMNS)].map(str).reset_index(drop=True)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            "triples is a list of (head, relation, tail), as [('ada', 'likes', '?')], or a table with "
            f"the columns {', '.join(COLUMNS)}"
        ) from None
    if table.empty:
        raise ValueError("triples has no entry: name a head, a relation and a tail")
    _check_questions(table, IN_MEMORY)
    return table


def _check_questions(table: pd.DataFrame, place: str) -> None:
    """Refuse what asks for a relation, or for both ends; `place` and the index name the question in the message."""
    heads, relations, tails = (table[column] == ASKED for column in COLUMNS)
    for wrong, mend in (
        (relations, "relations are not asked for; name it, and ask for the head or the tail"),
        (heads & tails, "name the head or the tail; one of them can be asked for"),
    ):
        if wrong.any():
            raise ValueError(f"{place} {wrong.idxmax()}: {mend}")


def number_questions(
    table: pd.DataFrame, place: str, entities: list[str], relations: list[str]
) -> Tensor:
    """Find the entities and relations that questions name.

    Args:
        table: as :func:`read_questions` returns it.
        place: stands before the number of a question in messages.

    Returns:
        Numbers of heads, relations and tails, -1 for what is asked [num_questions, 3], int64.

    Raises:
        ValueError: names what the graph does not have, and the line.
    """
    columns = []
    for column, names in zip(COLUMNS, (entities, relations, entities), strict=True):
        known = {name: number for number, name in enumerate(names)}
        wanted = table[column]
        strange = wanted[~wanted.isin(known.keys()) & (wanted != ASKED)]
        if len(strange):
            what = "relation" if names is relations else "entity"
            more = f"; so on {len(strange) - 1:,} more lines" if len(strange) > 1 else ""
            raise ValueError(
                f"{place} {strange.index[0]}: the graph has no {what} {strange.iloc[0]}"
                f"{suggest_name(strange.iloc[0], known)}{more}"
            )
        # An entity that is called ? is not what a question mark stands for.
        columns.append(torch.tensor([-1 if name == ASKED else known[name] for name in wanted]))
    return torch.stack(columns, dim=1)


def answer(
    tables: TripleTables,
    triples: Tensor,
    top: int,
    *,
    known: Tensor | None = None,
    on_question: Callable[[], None] = lambda: None,
) -> FoundAnswers:
    """Find the entities that answer questions best, and score triples that lack nothing.

    Args:
        triples: questions, as :func:`number_questions` returns them.
        top: answers of a question, at most.
        known: triples whose answers are left out [num_known, 3]; none: nothing is.
        on_question: called after each question.

    Returns:
        In the order of the questions; equal scores in the order of the entities. The score of a whole triple is that
        of its tail.
    """
    whole = (triples >= 0).all(1).nonzero()[:, 0]
    scores = tables.score(*triples[whole].unbind(1))
    parts = [FoundAnswers(whole, triples[whole], torch.zeros_like(whole), scores)]
    for anchor, asked in ((0, 2), (2, 0)):
        answers = None
        if known is not None:
            answers = KnownAnswers(
                known[:, anchor], known[:, 1], known[:, asked], len(tables.relations)
            )
        rows = (triples[:, asked] < 0).nonzero()[:, 0]
        for part in rows.split(max(1, BLOCK // len(tables.entities))):
            query = triples[part, anchor], triples[part, 1]
            scores = tables.score_all(*query, asked == 2)
            if answers is not None:  # known answers get a score below all others
                hides = answers.has(*query).nonzero()[:, 0]
                places, entities = answers.of(answers.find(*(ends[hides] for ends in query)))
                scores[hides[places], entities] = -torch.inf
            for own, row in zip(scores, part):
                chosen = own.argsort(descending=True, stable=True)[:top]
                chosen = chosen[own[chosen] > -torch.inf]
                found = triples[row].repeat(len(chosen), 1)
                found[:, asked] = chosen
                places = torch.arange(1, len(chosen) + 1)
                parts.append(FoundAnswers(row.repeat(len(chosen)), found, places, own[chosen]))
                on_question()
    rows, triples, places, scores = map(torch.cat, zip(*parts))
    order = rows.argsort(stable=True)
    return FoundAnswers(rows[order], triples[order], places[order], scores[order])
