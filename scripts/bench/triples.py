"""Speed of RotatE's training in scored triples per second, compared with PyKEEN (pip install pykeen)."""

import contextlib
import time

import torch

from parallel_epochs.models.embedding.triples import MODELS
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.knowledge.build import build_trainer, split_triples
from parallel_epochs.pipeline.knowledge.config import KnowledgeConfig
from parallel_epochs.scripts.bench.measure import assert_close, configure, import_peer, say, write_row


def bench_triples(folder: str, dim: int, batch_size: int, num_negatives: int, num_steps: int, repeat: int) -> None:
    """Train both on the same number of batches of a knowledge graph, with Adam and self-adversarial negatives.

    Our trainer draws common negatives for the heads and tails of a chunk of triples, PyKEEN draws them for each triple.
    The scores of triples and of negatives are counted.

    Args:
        folder: folder with train, valid and test.
        dim: number of complex numbers of an entity.
        num_negatives: number of negatives of a triple.

    Raises:
        SystemExit: PyKEEN is not installed, or the two score triples differently.
        ValueError: the triples cannot be read.
    """
    models, training, triples = (import_peer(f"pykeen.{part}", "pykeen") for part in ("models", "training", "triples"))
    config = configure("+experiment=rotate_fb15k237", f"data.folder={folder}", f"trainer.dim={2 * dim}",
                       f"trainer.batch_size={batch_size}", f"trainer.num_negatives={num_negatives // 2}")
    data = training.open_data(config).data
    some = split_triples(data)["train"][:num_steps * batch_size]
    factory = triples.CoreTriplesFactory(some, num_entities=data.num_nodes, num_relations=data.num_relations)
    theirs = models.RotatE(triples_factory=factory, embedding_dim=dim, loss="nssa", random_seed=0,
                    loss_kwargs={"margin": config.trainer.margin, "adversarial_temperature": 1.0})
    _compare(models.RotatE(triples_factory=factory, embedding_dim=1, random_seed=0), some[:1000])
    loop = training.SLCWATrainingLoop(model=theirs, triples_factory=factory, negative_sampler_kwargs={
        "num_negs_per_pos": num_negatives}, optimizer="adam", optimizer_kwargs={"lr": config.train.lr})
    loop.train(factory, num_epochs=1, batch_size=batch_size, use_tqdm=False)  # warm-up
    scored, writer = len(some) * (1 + num_negatives), None
    for round_ in range(repeat):
        seconds = {"ours": _train_ours(config, data, num_steps)}
        start = time.perf_counter()
        loop.train(factory, num_epochs=1, batch_size=batch_size, use_tqdm=False)
        seconds["PyKEEN"] = time.perf_counter() - start
        for name, taken in seconds.items():
            say(f"round {round_ + 1}, {name}: {scored / taken / 1e6:.2f} M scored triples per second")
            writer = write_row(writer, {
                "bench": "triples", "what": name, "round": round_, "dim": dim, "num_negatives": num_negatives,
                "scored": scored, "seconds": round(taken, 3), "scored_per_second": round(scored / taken)})


def _compare(theirs: torch.nn.Module, triples: torch.Tensor) -> None:
    """Compare scores of entities of one complex number; with more, PyKEEN does not sum the moduli but takes a norm."""
    with torch.no_grad():
        entities = torch.view_as_real(theirs.entity_representations[0](None)).flatten(1)
        turns = theirs.relation_representations[0](None)
        heads, relations, tails = triples.unbind(1)
        ours = MODELS["rotate"].score(entities[heads], turns.angle()[relations], entities[tails])
        assert_close({"scores": ours.unsqueeze(1)}, {"scores": theirs.score_hrt(triples)}, tolerance=1e-4)
    say("scores compared: both models score triples alike")


def _train_ours(config: KnowledgeConfig, data, num_steps: int) -> float:
    with contextlib.closing(build_trainer(Part(config, data, torch.device("cpu")))) as trainer:
        steps = trainer.steps()
        next(steps)  # warm-up
        start = time.perf_counter()
        for _ in range(num_steps):
            next(steps)
        return time.perf_counter() - start
