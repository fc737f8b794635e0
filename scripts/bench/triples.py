"""RotatE's scored triples a second of training, beside PyKEEN's (pip install pykeen)."""

import time

import torch

from models.embedding.triples import MODELS
from pipeline import build
from pipeline.build_knowledge import split_triples
from pipeline.config import Config
from scripts.bench.measure import assert_close, configure, say, write_row


def bench_triples(folder: str, dim: int, batch_size: int, num_negatives: int, num_steps: int, repeat: int) -> None:
    """Train both on as many batches of a knowledge graph, with Adam and self-adversarial negatives.

    Ours draws negatives for the triples of a chunk together, heads and tails; PyKEEN for each triple. Counted are
    scores: of a triple, and of each of its negatives.

    Args:
        folder: of train, valid and test.
        dim: complex numbers of an entity.
        num_negatives: of a triple.

    Raises:
        SystemExit: PyKEEN is not installed, or the two score triples differently.
        ValueError: the triples cannot be read.
    """
    try:
        from pykeen.models import RotatE
        from pykeen.training import SLCWATrainingLoop
        from pykeen.triples import CoreTriplesFactory
    except ImportError:
        raise SystemExit("PyKEEN, which this compares with, is not installed: pip install pykeen") from None
    config = configure("+experiment=rotate_fb15k237", f"data.folder={folder}", f"trainer.dim={2 * dim}",
                       f"trainer.batch_size={batch_size}", f"trainer.num_negatives={num_negatives // 2}")
    data = build.open_graph(config).data
    some = split_triples(data)["train"][:num_steps * batch_size]
    factory = CoreTriplesFactory(some, num_entities=data.num_nodes, num_relations=data.num_relations)
    theirs = RotatE(triples_factory=factory, embedding_dim=dim, loss="nssa", random_seed=0,
                    loss_kwargs={"margin": config.trainer.margin, "adversarial_temperature": 1.0})
    _compare(RotatE(triples_factory=factory, embedding_dim=1, random_seed=0), some[:1000])
    loop = SLCWATrainingLoop(model=theirs, triples_factory=factory, negative_sampler_kwargs={
        "num_negs_per_pos": num_negatives}, optimizer="adam", optimizer_kwargs={"lr": config.train.lr})
    loop.train(factory, num_epochs=1, batch_size=batch_size, use_tqdm=False)  # what is chosen or compiled at first
    scored, writer = len(some) * (1 + num_negatives), None
    for round_ in range(repeat):
        seconds = {"ours": _train_ours(config, data, num_steps)}
        start = time.perf_counter()
        loop.train(factory, num_epochs=1, batch_size=batch_size, use_tqdm=False)
        seconds["PyKEEN"] = time.perf_counter() - start
        for name, taken in seconds.items():
            say(f"round {round_ + 1}, {name}: {scored / taken / 1e6:.2f} M scored triples a second")
            writer = write_row(writer, {
                "bench": "triples", "what": name, "round": round_, "dim": dim, "num_negatives": num_negatives,
                "scored": scored, "seconds": round(taken, 3), "scored_per_second": round(scored / taken)})


def _compare(theirs: torch.nn.Module, triples: torch.Tensor) -> None:
    """Compare scores of one complex number: of several PyKEEN takes the length, ours, as the paper, adds the moduli."""
    with torch.no_grad():
        entities = torch.view_as_real(theirs.entity_representations[0](None)).flatten(1)
        turns = theirs.relation_representations[0](None)
        heads, relations, tails = triples.unbind(1)
        ours = MODELS["rotate"].score(entities[heads], turns.angle()[relations], entities[tails])
        assert_close({"scores": ours.unsqueeze(1)}, {"scores": theirs.score_hrt(triples)}, tolerance=1e-4)
    say("scores compared: both models score triples alike")


def _train_ours(config: Config, data, num_steps: int) -> float:
    with build.build_trainer(config, data, torch.device("cpu")) as trainer:
        steps = trainer.steps()
        next(steps)  # what is compiled
        start = time.perf_counter()
        for _ in range(num_steps):
            next(steps)
        return time.perf_counter() - start
