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
from parallel_epochs.pipeline.knowledge.ranking import BLOCK, Answers
from parallel_epochs.pipeline.run import files

# Stands where an answer is asked for.
ASKED = "?"
# Stands before the number of a question that is in no file.
IN_MEMORY = "triples: entry"


class Questions(NamedTuple):
    """Triples of which some lack the head or the tail.

    Attributes:
        lines: where they stand in their file, from 1 [n], int64.
        triples: numbers of heads, relations and tails, -1 for what is asked [n, 3], int64.
    """

    lines: Tensor
    triples: Tensor


class Found(NamedTuple):
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
) -> Questions:
    """Find the entities and relations that questions name.

    Args:
        table: as :func:`read_questions` returns it.
        place: stands before the number of a question in messages.

    Raises:
        ValueError: names what the graph does not have, and the line.
    """
    columns = []
    for column in COLUMNS:
        what, names = ("relation", relations) if column == "relation" else ("entity", entities)
        known = {name: number for number, name in enumerate(names)}
        wanted = table[column]
        strange = wanted[~wanted.isin(known.keys()) & (wanted != ASKED)]
        if len(strange):
            name = strange.iloc[0]
            more = f"; so on {len(strange) - 1:,} more lines" if len(strange) > 1 else ""
            raise ValueError(
                f"{place} {strange.index[0]}: the graph has no {what} {name}"
                f"{suggest_name(name, known)}{more}"
            )
        # An entity that is called ? is not what a question mark stands for.
        columns.append(torch.tensor([-1 if name == ASKED else known[name] for name in wanted]))
    return Questions(torch.tensor(table.index.to_list()), torch.stack(columns, dim=1))


def answer(
    tables: TripleTables,
    questions: Questions,
    top: int,
    *,
    known: Tensor | None = None,
    on_question: Callable[[], None] = lambda: None,
) -> Found:
    """Find the entities that answer questions best, and score triples that lack nothing.

    Args:
        top: answers of a question, at most.
        known: triples whose answers are left out [num_known, 3]; none: nothing is.
        on_question: called after each question.

    Returns:
        In the order of the questions; equal scores in the order of the entities. The score of a whole triple is that
        of its tail.
    """
    triples = questions.triples
    whole = (triples >= 0).all(1).nonzero()[:, 0]
    scores = tables.score(*triples[whole].unbind(1))
    parts = [Found(whole, triples[whole], torch.zeros_like(whole), scores)]
    for anchor, asked in ((0, 2), (2, 0)):
        rows, answers = (triples[:, asked] < 0).nonzero()[:, 0], None
        if known is not None:
            answers = Answers(known[:, anchor], known[:, 1], known[:, asked], len(tables.relations))
        for part in rows.split(max(1, BLOCK // len(tables.entities))):
            anchors, relations = triples[part, anchor], triples[part, 1]
            scores = tables.score_all(anchors, relations, asked == 2)
            if answers is not None:
                _hide(scores, answers, anchors, relations)
            for own, row in zip(scores, part):
                parts.append(_best(row, own, triples[row], asked, top))
                on_question()
    rows, triples, places, scores = map(torch.cat, zip(*parts))
    order = rows.argsort(stable=True)
    return Found(rows[order], triples[order], places[order], scores[order])


def _hide(scores: Tensor, answers: Answers, anchors: Tensor, relations: Tensor) -> None:
    """Give known answers a score below all others, in place."""
    asked = answers.has(anchors, relations).nonzero()[:, 0]
    places, entities = answers.of(answers.find(anchors[asked], relations[asked]))
    scores[asked[places], entities] = -torch.inf


def _best(row: Tensor, scores: Tensor, triple: Tensor, asked: int, top: int) -> Found:
    """Choose the best of the scores of all entities [num_entities]; those of minus infinity are none."""
    chosen = scores.argsort(descending=True, stable=True)[:top]
    chosen = chosen[scores[chosen] > -torch.inf]
    triples = triple.repeat(len(chosen), 1)
    triples[:, asked] = chosen
    return Found(row.repeat(len(chosen)), triples, torch.arange(1, len(chosen) + 1), scores[chosen])
