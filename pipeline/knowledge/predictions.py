"""A trained knowledge graph again: its metrics, answers to questions, and its vectors in the formats of the field."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.embedding.triples import MODELS, TripleTables
from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.data.readers.triples import COLUMNS
from parallel_epochs.pipeline.knowledge.build import (
    build_probe,
    describe,
    relation_names,
    split_triples,
)
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.knowledge.questions import (
    IN_MEMORY,
    answer,
    number_questions,
    questions_of,
    read_questions,
)
from parallel_epochs.pipeline.knowledge.trainer import KnowledgeTrainer
from parallel_epochs.pipeline.run import files, pulse, tables
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.progress import Bar
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.session import load_best
from parallel_epochs.pipeline.run.stop import StopRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """A trained knowledge graph: the graph, its tables and its names.

    Attributes:
        config: of the run.
        data: the graph.
        epoch: passes over the triples when the checkpoint was saved.
        names, relation_names: of the entities and relations, in the order of the rows; with reciprocal relations there
            are twice as many rows as names.
    """

    config: KnowledgeConfig
    data: Data
    tables: TripleTables
    epoch: int
    names: list[str]
    relation_names: list[str]


def restore(run: SavedRun) -> Restored:
    """Load the tables of a checkpoint.

    Raises:
        ValueError: no such checkpoint, a damaged one, or another dataset.
    """
    state, part = vectors.open_run(run, lambda *_: None, describe)
    with fitting(state):
        trainer, rows = run.config.trainer, state["model" if run.is_best else "tables"]
        tables = TripleTables(
            MODELS[trainer.model],
            rows["entities"],
            rows["relations"],
            reciprocal=trainer.loss == "one_vs_all",
        )
        epoch = int(state["epoch"] if run.is_best else state["progress"]["epochs"])
    return Restored(
        run.config, part.data, tables, epoch, unpack_names(part.data), relation_names(part.data)
    )


def finish(
    part: Part,
    trainer: KnowledgeTrainer,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Rank the test with the best checkpoint when training has ended; an evaluation does not.

    Returns:
        What it adds to the summary.

    Raises:
        Stopped: on all ranks, if one of them was asked to stop.
    """
    pulse.beat("ranking the test", pulse.State.LONG)
    best = load_best(folder, ranks)
    with fitting(best):
        trainer.load_weights(best["model"])
    log.info("ranking the test with the checkpoint of epoch %d", best["epoch"])
    scores = trainer.test()
    return {"test": scores.pop("test"), "scores": scores}


def evaluate(run: SavedRun[KnowledgeConfig], asked: EvaluateConfig) -> dict[str, float]:
    """Compute the filtered ranks of a checkpoint, and save its vectors if asked to.

    Returns:
        See :class:`pipeline.knowledge.ranking.TripleProbe`.

    Raises:
        ValueError: see :func:`restore`; a format that nothing writes.
    """
    if asked.predictions is not None:
        vectors.check_predictions(run, asked.predictions)
        _check_relations(run, Path(asked.predictions))
    restored = restore(run)
    probe, score_all = build_probe(restored.config, restored.data), restored.tables.score_all
    scores = probe(score_all) | probe.test(score_all)
    vectors.log_scores(f"{run.title(restored.epoch)}, filtered ranks", scores, "mrr")
    if asked.predictions is not None:
        save_vectors(Path(asked.predictions), restored)
    return scores


def predict(run: SavedRun[KnowledgeConfig], asked: AnswersConfig) -> None:
    """Save the answers to questions, or vectors.

    Raises:
        ValueError: see :func:`restore`; questions that cannot be read or name what the graph does not have, a format
            that is unknown or not installed.
    """
    path = vectors.check_predictions(run, asked.predictions)
    if asked.triples is not None:
        tables.format_of("predictions", path)
        questions = read_questions(Path(asked.triples))
        place = f"triples={asked.triples}, line"
        table = find_answers(questions, place, restore(run), asked.top, asked.filtered)
        tables.write(path, [{name: table[name].to_numpy() for name in table}])
        is_answer = table["place"] > 0
        log.info(
            "wrote %s answers to %s questions, and the scores of %s triples, to %s",
            f"{is_answer.sum():,}",
            f"{table['line'][is_answer].nunique():,}",
            f"{(~is_answer).sum():,}",
            path,
        )
        return
    _check_relations(run, path)
    save_vectors(path, restore(run))


class OpenTriples(vectors.OpenVectors):
    """A trained knowledge graph that stays open; see :class:`vectors.OpenVectors`.

    Args:
        run: the run.
        data, given: none; other data than those of the training have other entities.
    """

    def __init__(self, run: SavedRun[KnowledgeConfig], data: object, given: Mapping[str, object]):
        def read(opened: SavedRun) -> tuple[Tensor, list[str]]:
            self._restored = restore(opened)
            return self._restored.tables.entities.detach(), self._restored.names

        super().__init__(run, data, given, read)

    def answers(self, triples: object, *, top: int, filtered: bool) -> pd.DataFrame:
        """Answer questions, and score whole triples; see :meth:`pipeline.model.Model.predict`.

        Raises:
            ValueError: names the question that cannot be answered.
        """
        questions = questions_of(triples)
        return find_answers(questions, IN_MEMORY, self._restored, top, filtered)


def find_answers(
    questions: pd.DataFrame, place: str, restored: Restored, top: int, filtered: bool
) -> pd.DataFrame:
    """Find the best answers to questions, and the scores of whole triples.

    Args:
        questions: see :func:`read_questions`.
        place: stands before the number of a question in messages.
        top: answers of a question, at most.
        filtered: leave out answers that are training triples.

    Returns:
        A table, whose columns are the line of the question, the three names of the triple, the
        part that was asked for ("" for a triple without a question mark), the rank from 1 (0 for such a triple), and
        the score.
    """
    names, relation_names = restored.names, restored.relation_names
    asked = number_questions(questions, place, names, relation_names)
    train = split_triples(restored.data)["train"]
    named = asked[:, [0, 2]]
    unseen = (named >= 0) & ~torch.isin(named, train[:, [0, 2]])
    if count := int(unseen.any(1).sum()):
        log.warning(
            "%s lines name an entity that occurs in no training triple, so their scores mean "
            "little",
            f"{count:,}",
        )
    known = train if filtered else None
    with Bar("answering", int((asked < 0).any(1).sum()), "questions") as bar:
        found = answer(restored.tables, asked, top, known=known, on_question=bar.advance)
    # The part that was asked for; the last name stands for none.
    part = (asked < 0).int().argmax(1) + 3 * (asked >= 0).all(1)
    columns = zip(COLUMNS, (names, relation_names, names), found.triples.T, strict=True)
    return pd.DataFrame(
        {
            "line": questions.index[found.rows.numpy()],
            **{column: np.array(known, object)[own.numpy()] for column, known, own in columns},
            "asked": np.array([*COLUMNS, ""], object)[part[found.rows].numpy()],
            "place": found.places.numpy(),
            "score": found.scores.numpy(),
        }
    )


def _check_relations(run: SavedRun, path: Path) -> None:
    """Refuse vectors of relations in a file that must not be replaced.

    Raises:
        ValueError: nothing writes such a file, or it cannot be written.
    """
    vectors.writer_of(path)
    if path.suffix != ".pt":
        run.check_output("predictions", _relations_beside(path))


def _relations_beside(path: Path) -> Path:
    """Return the file for the vectors of relations, where the format has no place for them."""
    return path.with_name(f"{path.stem}.relations{path.suffix}")


def name_reciprocals(names: list[str]) -> list[str]:
    """Name the reciprocals of relations NAME^-1, or NAME^-1^-1 and so on where a relation is called so."""
    mark = "^-1"
    while set(names) & {name + mark for name in names}:
        mark += "^-1"
    if mark != "^-1":
        log.info(
            "the reciprocal of a relation is called NAME%s, since one of the relations is called NAME^-1",
            mark,
        )
    return [name + mark for name in names]


def save_vectors(path: Path, restored: Restored) -> None:
    """Save the vectors of entities, and those of relations: in the same file if that is a .pt, else in one beside it."""
    entities, relations = (
        table.detach() for table in (restored.tables.entities, restored.tables.relations)
    )
    names = restored.relation_names
    if restored.tables.reciprocal:
        names = [*names, *name_reciprocals(names)]
    if path.suffix == ".pt":
        files.write_atomically(
            path,
            lambda file: torch.save(
                {
                    "embedding": entities,
                    "names": restored.names,
                    "relations": relations,
                    "relation_names": names,
                },
                file,
            ),
        )
        log.info(
            "wrote %s vectors of entities and %s of relations to %s",
            f"{len(entities):,}",
            f"{len(relations):,}",
            path,
        )
        return
    vectors.save(path, entities, restored.names)
    vectors.save(_relations_beside(path), relations, names)
