"""Speed of RotatE's training in scored triples per second, compared with PyKEEN (pip install pykeen)."""

import contextlib
import time

import torch

from parallel_epochs.models.embedding.triples import MODELS
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.knowledge.build import build_trainer, split_triples
from parallel_epochs.pipeline.knowledge.config import KnowledgeConfig
from parallel_epochs.pipeline.training import open_data
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    configure,
    import_peer,
    say,
    write_row,
)


def bench_triples(
    folder: str,
    dim: int = 100,
    batch_size: int = 1024,
    num_negatives: int = 512,
    num_steps: int = 8,
    repeat: int = 3,
) -> None:
    """Measure RotatE's training in scored triples per second, beside PyKEEN's.

    Both train on the same number of batches of a knowledge graph, with Adam and self-adversarial negatives.
    Our trainer draws common negatives for the heads and tails of a chunk of triples, PyKEEN draws them for each triple.
    The scores of triples and of negatives are counted. On both sides the time begins after the first batch, and what
    comes before is the set-up.

    Args:
        folder: folder of a knowledge graph with train, valid and test.
        dim: number of complex numbers of an entity.
        batch_size: number of triples of a batch.
        num_negatives: number of negatives of a triple.
        num_steps: number of training steps of a round.

    Raises:
        SystemExit: PyKEEN is not installed, or the two score triples differently.
        ValueError: the triples cannot be read.
    """
    models, training, triples, callbacks = (
        import_peer(f"pykeen.{part}", "pykeen")
        for part in ("models", "training", "triples", "training.callbacks")
    )
    config = configure(
        "+experiment=rotate_fb15k237",
        f"data.folder={folder}",
        f"trainer.dim={2 * dim}",
        f"trainer.batch_size={batch_size}",
        f"trainer.num_negatives={num_negatives // 2}",
    )
    data = open_data(config).data
    some = split_triples(data)["train"][: (num_steps + 1) * batch_size]
    factory = triples.CoreTriplesFactory(
        some, num_entities=data.num_nodes, num_relations=data.num_relations
    )
    theirs = models.RotatE(
        triples_factory=factory,
        embedding_dim=dim,
        loss="nssa",
        random_seed=0,
        loss_kwargs={"margin": config.trainer.margin, "adversarial_temperature": 1.0},
    )
    _compare(models.RotatE(triples_factory=factory, embedding_dim=1, random_seed=0), some[:1000])
    scored = num_steps * batch_size * (1 + num_negatives)
    for round_ in range(repeat):
        ends: list[float] = []

        class Clock(callbacks.TrainingCallback):
            def post_batch(self, *args, ends=ends, **kwargs) -> None:
                ends.append(time.perf_counter())

        start = time.perf_counter()
        # A loop that has trained an epoch would take num_epochs=1 as done, and train nothing.
        loop = training.SLCWATrainingLoop(
            model=theirs,
            triples_factory=factory,
            negative_sampler_kwargs={"num_negs_per_pos": num_negatives},
            optimizer="adam",
            optimizer_kwargs={"lr": config.train.lr},
        )
        loop.train(
            factory,
            num_epochs=1,
            batch_size=batch_size,
            use_tqdm=False,
            drop_last=True,
            callbacks=Clock,
        )
        assert len(ends) == num_steps + 1, ends
        seconds = {
            "ours": _train_ours(config, data, num_steps),
            "PyKEEN": (ends[0] - start, ends[-1] - ends[0]),
        }
        for name, (setup, taken) in seconds.items():
            say(
                f"round {round_ + 1}, {name}: {scored / taken / 1e6:.2f} M scored triples per second, after "
                f"{setup:.2f} s of set-up"
            )
            write_row(
                {
                    "bench": "triples",
                    "what": name,
                    "round": round_,
                    "dim": dim,
                    "num_negatives": num_negatives,
                    "scored": scored,
                    "setup_seconds": round(setup, 3),
                    "seconds": round(taken, 3),
                    "scored_per_second": round(scored / taken),
                }
            )


def _compare(theirs: torch.nn.Module, triples: torch.Tensor) -> None:
    """Compare scores of entities of one complex number; with more, PyKEEN does not sum the moduli but takes a norm."""
    with torch.no_grad():
        entities = torch.view_as_real(theirs.entity_representations[0](None)).flatten(1)
        turns = theirs.relation_representations[0](None)
        heads, relations, tails = triples.unbind(1)
        ours = MODELS["rotate"].score(entities[heads], turns.angle()[relations], entities[tails])
        assert_close(
            {"scores": ours.unsqueeze(1)}, {"scores": theirs.score_hrt(triples)}, tolerance=1e-4
        )
    say("scores compared: both models score triples alike")


def _train_ours(config: KnowledgeConfig, data, num_steps: int) -> tuple[float, float]:
    """Return the seconds until the end of the first step, and those of the next steps."""
    began = time.perf_counter()
    with contextlib.closing(build_trainer(Part(config, data, torch.device("cpu")))) as trainer:
        steps = trainer.steps()
        next(steps)
        start = time.perf_counter()
        for _ in range(num_steps):
            next(steps)
        return start - began, time.perf_counter() - start
