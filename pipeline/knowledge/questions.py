"""Questions to a knowledge graph, (ada, likes, ?) or (?, likes, ada), and their best answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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


@dataclass(frozen=True)
class Questions:
    """Triples of which some lack the head or the tail.

    Attributes:
        lines: where they stand in their file, from 1 [n], int64.
        triples: numbers of heads, relations and tails, -1 for what is asked [n, 3], int64.
    """

    lines: Tensor
    triples: Tensor


@dataclass(frozen=True)
class Found:
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
    if not files.is_there(path):
        raise ValueError(
            f"triples={path} does not exist: save questions there, a head, a relation and "
            f"a tail a line, with {ASKED} for what is asked"
        )
    content = files.read_bytes(path)
    if not content.strip():
        raise ValueError(
            f"triples={path} is empty: write a head, a relation and a tail in each line, with {ASKED} for "
            "what is asked"
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
    numbers = {
        "entity": {name: number for number, name in enumerate(entities)},
        "relation": {name: number for number, name in enumerate(relations)},
    }
    columns = []
    for column in COLUMNS:
        what = "relation" if column == "relation" else "entity"
        known = numbers[what]
        wanted = table[column]
        strange = wanted[~wanted.isin(known.keys()) & (wanted != ASKED)]
        if len(strange):
            name, more = (
                strange.iloc[0],
                f"; so on {len(strange) - 1:,} more lines" if len(strange) > 1 else "",
            )
            raise ValueError(
                f"{place} {strange.index[0]}: the graph has no {what} {name}"
                f"{suggest_name(name, known)}{more}"
            )
        columns.append(torch.tensor([known.get(name, -1) for name in wanted]))
    # An entity that is called ? is not what a question mark stands for.
    triples = torch.stack(columns, dim=1)
    for position, column in enumerate(COLUMNS):
        triples[torch.from_numpy((table[column] == ASKED).to_numpy(copy=True)), position] = -1
    return Questions(torch.tensor(table.index.to_list()), triples)


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
    triples, parts = questions.triples, []
    whole = (triples >= 0).all(1).nonzero()[:, 0]
    if len(whole):
        parts.append(
            Found(
                whole,
                triples[whole],
                torch.zeros_like(whole),
                tables.score(*triples[whole].unbind(1)),
            )
        )
    for is_tail in (True, False):
        anchor, asked = (0, 2) if is_tail else (2, 0)
        rows, answers = (triples[:, asked] < 0).nonzero()[:, 0], None
        if known is not None:
            answers = Answers(known[:, anchor], known[:, 1], known[:, asked], len(tables.relations))
        for part in rows.split(max(1, BLOCK // len(tables.entities))):
            anchors, relations = triples[part, anchor], triples[part, 1]
            scores = tables.score_all(anchors, relations, is_tail)
            if answers is not None:
                _hide(scores, answers, anchors, relations)
            for place, row in enumerate(part):
                parts.append(_best(row, scores[place], triples[row], asked, top))
                on_question()
    order = torch.cat([part.rows for part in parts]).argsort(stable=True)
    return Found(
        *(
            torch.cat([getattr(part, name) for part in parts])[order]
            for name in ("rows", "triples", "places", "scores")
        )
    )


def _hide(scores: Tensor, answers: Answers, anchors: Tensor, relations: Tensor) -> None:
    """Give known answers a score below all others, in place."""
    asked = answers.has(anchors, relations).nonzero()[:, 0]
    places, entities = answers.of(answers.find(anchors[asked], relations[asked]))
    scores[asked[places], entities] = -torch.inf


def _best(row: Tensor, scores: Tensor, triple: Tensor, asked: int, top: int) -> Found:
    """Choose the best of the scores of all entities [num_entities]; those of minus infinity are none."""
    last = scores.topk(min(top, len(scores))).values[-1]
    chosen = ((scores >= last) & (scores > -torch.inf)).nonzero()[
        :, 0
    ]  # where many are equal, more than `top`
    chosen = chosen[scores[chosen].argsort(descending=True, stable=True)][:top]
    triples = triple.repeat(len(chosen), 1)
    triples[:, asked] = chosen
    return Found(row.repeat(len(chosen)), triples, torch.arange(1, len(chosen) + 1), scores[chosen])
