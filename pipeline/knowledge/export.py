"""Exports the scores of a knowledge graph as a program of torch or of ONNX."""

from importlib import metadata
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.knowledge.predictions import predict as save_predictions, restore
from parallel_epochs.pipeline.programs import Program, suffix_of, write
from parallel_epochs.pipeline.run.saved import SavedRun

# More names of entities are left out of the description.
MOST_NAMES = 100_000
SIZES = {name: {0: "triples"} for name in ("heads", "relations", "tails")} | {
    "candidates": {0: "candidates"}
}


class TripleNetwork(torch.nn.Module):
    """Scores triples by the numbers of their entities and relations.

    Args:
        tables: the vectors and the model.
    """

    def __init__(self, tables: TripleTables):
        super().__init__()
        self.tables = tables

    def forward(
        self,
        heads: Int64[Tensor, " n"],
        relations: Int64[Tensor, " n"],
        tails: Int64[Tensor, " n"],
        candidates: Int64[Tensor, " m"],
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n m"]]:
        """Score each triple, and each candidate as the tail of each pair of a head and a relation. More is better."""
        model, entities = self.tables.model, self.tables.entities
        h, r = entities[heads], self.tables.relations[relations]
        return model.score(h, r, entities[tails]), model.score_tails(h, r, entities[candidates])


def predict(run: SavedRun[KnowledgeConfig], asked: AnswersConfig) -> None:
    """Export a run if that is asked for, and save answers or vectors; see :func:`predictions.predict`."""
    if asked.export is not None:
        export(run, Path(asked.export))
    if asked.export is None or asked.predictions is not None:
        save_predictions(run, asked)


def export(run: SavedRun[KnowledgeConfig], path: Path, asked: AnswersConfig | None = None) -> None:
    """Write the vectors and the scores of a run as a program.

    Raises:
        ValueError: they cannot be written, and the message says why.
    """
    if not suffix_of(path):
        raise ValueError(
            f"export={path}: {run.folder} learned vectors, which a file for this package would hold no "
            "better than the run. Give a name that ends with .onnx or .pt2, or save the vectors by "
            "predictions=FILE"
        )
    restored = restore(run)
    tables, name = restored.tables.cpu(), run.config.trainer.model
    num_entities, num_relations = len(tables.entities), len(tables.relations)
    numbers = torch.arange(5), torch.arange(5), torch.arange(5), torch.arange(7)
    sizes = num_entities, num_relations, num_entities, num_entities
    inputs = {key: own % size for key, own, size in zip(SIZES, numbers, sizes, strict=True)}
    checks = inputs | {"candidates": torch.arange(min(num_entities, 10_000))}
    questions = (
        f"relations from {num_relations // 2} on are those from tail to head: the candidates are then heads"
        if tables.reciprocal
        else "candidates are tails"
    )
    write(
        path,
        Program(
            f"trainer.model={name}",
            TripleNetwork(tables),
            inputs,
            SIZES,
            ("scores", "candidate_scores"),
            checks,
            {
                "format": 1,
                "versions": {own: metadata.version(own) for own in ("parallel-epochs", "torch")},
                "model": {"name": name, "title": f"{name}, {tables.entities.size(1)} dimensions"},
                "task": {"name": "knowledge", "metric": "mrr"},
                "inputs": {
                    key: {"shape": list(SIZES[key].values()), "dtype": "int64"} for key in SIZES
                },
                "outputs": {
                    "scores": {
                        "shape": ["triples"],
                        "meaning": "the score of each triple; more is better",
                    },
                    "candidate_scores": {
                        "shape": ["triples", "candidates"],
                        "meaning": f"the score of each candidate with each head; {questions}",
                    },
                },
                "not_in_the_program": ["known triples are not left out of the candidates"],
                "entities": restored.names if num_entities <= MOST_NAMES else None,
                "relations": restored.relation_names,
            },
        ),
    )
