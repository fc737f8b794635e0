"""From the configuration of trainer=knowledge to what trains vectors of a knowledge graph."""

import logging
from functools import partial

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.embedding import distances
from parallel_epochs.models.embedding.triples import MODELS, TripleTables, first_rows
from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.knowledge.config import KnowledgeConfig, KnowledgeTrainerConfig
from parallel_epochs.pipeline.knowledge.ranking import TripleProbe
from parallel_epochs.pipeline.knowledge.steps import NegativeSteps, OneVsAllSteps, Penalty
from parallel_epochs.pipeline.knowledge.tables import TrainedTables
from parallel_epochs.pipeline.knowledge.trainer import KnowledgeTrainer, Steps
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import seed_torch
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)


# Triples that share their negatives.
CHUNK_SIZE = 64


def check(config: KnowledgeConfig) -> None:
    """Refuse what no knowledge graph can be trained with.

    Raises:
        ValueError: names the key.
    """
    options = config.trainer
    model = MODELS[options.model]
    if options.dim % model.parts:
        whole = -(-options.dim // model.parts) * model.parts
        raise ValueError(
            f"trainer.dim={options.dim} must be a multiple of {model.parts} for "
            f"trainer.model={options.model}, which uses {model.parts} real numbers per component: set it "
            f"to {whole}, for example"
        )
    if not model.is_distance:
        return
    if options.loss == "one_vs_all":
        raise ValueError(
            "trainer.loss=one_vs_all needs a model whose score is a product; this run has "
            f"trainer.model={options.model}, whose score is a distance. Set trainer.loss=negatives"
        )
    for name in ("n3", "l3"):
        if value := getattr(options, name):
            raise ValueError(
                f"trainer.{name}={keys.as_typed(value)} needs a model whose score is a product; this run "
                f"has trainer.model={options.model}. Leave trainer.{name} out"
            )


def describe(data: Data) -> str:
    """Say what there is to learn from, and which triples have entities or relations that training does not."""
    splits = split_triples(data)
    counts = " / ".join(f"{len(triples):,}" for triples in splits.values())
    text = (
        f"knowledge graph: {data.num_nodes:,} entities, {data.num_relations:,} relations, {counts} triples to "
        "train, validate and test"
    )
    known = torch.zeros(data.num_nodes, dtype=torch.bool)
    known[splits["train"][:, [0, 2]].flatten()] = True
    kinds = torch.zeros(data.num_relations, dtype=torch.bool)
    kinds[splits["train"][:, 1]] = True
    for split in SPLITS[1:]:
        triples = splits[split]
        strange, odd = ~known[triples[:, [0, 2]]].all(1), ~kinds[triples[:, 1]]
        for number, what in ((int(strange.sum()), "an entity"), (int(odd.sum()), "a relation")):
            if number:
                text += f"; {count(number, f'{split} triple')} with {what} that occurs in no training triple"
    return text


def split_triples(data: Data) -> dict[str, Tensor]:
    """Return the triples of each split, [num_triples, 3]."""
    sizes = data.triple_ptr.diff().tolist()
    return dict(zip(SPLITS, data.triples.split(sizes), strict=True))


def build_trainer(
    part: Part, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None
) -> KnowledgeTrainer:
    """Build what trains vectors of entities and relations, for this rank."""
    config, data, options = part.config, part.data, part.config.trainer
    model, splits, train = MODELS[options.model], split_triples(data), config.train
    penalty, one_vs_all = Penalty(n3=options.n3, l3=options.l3), options.loss == "one_vs_all"
    rows = first_rows(
        model,
        data.num_nodes,
        data.num_relations * (2 if one_vs_all else 1),
        options.dim,
        margin=options.margin,
        scale=options.init_scale,
        rng=seed_torch("triples", config.seed),
    )
    if model.comparison == "modulus":
        with ranks.first_then_others():  # what is compiled, the others find
            distances.LIBRARY.get()
    device = part.device
    tables = TripleTables(model, *rows, reciprocal=one_vs_all).to(device)
    build = partial(build_optimizer, options=options, lr=train.lr, is_sparse=not one_vs_all)
    steps: Steps
    if one_vs_all:
        steps = OneVsAllSteps(
            splits["train"].to(device),
            data.num_relations,
            batch_size=options.batch_size,
            penalty=penalty,
            seed=config.seed,
        )
    else:
        steps = NegativeSteps(
            splits["train"].to(device),
            data.num_nodes,
            batch_size=options.batch_size,
            chunk_size=CHUNK_SIZE,
            num_negatives=options.num_negatives,
            margin=options.margin if model.is_distance else 0.0,
            temperature=options.temperature,
            penalty=penalty,
            seed=config.seed,
        )
    trainer = KnowledgeTrainer(
        TrainedTables(tables, build),
        steps,
        num_epochs=train.epochs,
        lr=train.lr,
        last_lr=options.last_lr,
        eval_every=train.eval_every,
        probe=build_probe(config, data, ranks, stop, device),
        ranks=ranks,
        stop=stop,
    )
    begin = f", margin {options.margin:g}" if model.is_distance else ""
    if not model.is_distance and model.parts < 4:  # QuatE has first values of its own
        begin = f", initial deviation {options.init_scale:g}"
    log.info(
        "model: %s, %d numbers per entity and %d per relation%s, %s in all; loss %s, %s, learning rate %g%s; %s "
        "steps per epoch",
        options.model,
        options.dim,
        model.relation_dim(options.dim),
        ", both ways round" if one_vs_all else "",
        f"{trainer.about.num_parameters:,}",
        options.loss,
        options.optimizer,
        train.lr,
        begin,
        f"{trainer.about.num_steps:,}",
    )
    return trainer


def build_optimizer(
    tables: TripleTables, options: KnowledgeTrainerConfig, lr: float, *, is_sparse: bool
) -> torch.optim.Optimizer:
    """Build what moves the tables.

    Args:
        is_sparse: whether gradients have rows only where a step touches them.
    """
    groups: list = list(tables.parameters())
    if options.relation_lr != 1:  # otherwise one group, as checkpoints have it
        groups = [
            {"params": [tables.entities]},
            {"params": [tables.relations], "lr_factor": options.relation_lr},
        ]
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "adagrad": torch.optim.Adagrad,
        "sgd": torch.optim.SGD,
        "adam": torch.optim.SparseAdam if is_sparse else torch.optim.Adam,
    }
    return kinds[options.optimizer](groups, lr=lr)  # type: ignore[call-arg]


def build_probe(
    config: KnowledgeConfig,
    data: Data,
    ranks: Ranks = Ranks(),
    stop: StopRequest | None = None,
    device: torch.device = torch.device("cpu"),
) -> TripleProbe:
    """Build what ranks the triples of each split, on the device of the tables."""
    return TripleProbe(
        split_triples(data),
        data.num_nodes,
        data.num_relations,
        seed=config.seed,
        device=device,
        ranks=ranks,
        stop=stop,
    )


def relation_names(data: Data) -> list[str]:
    """Return the names of the relations."""
    return unpack_names(Data(names=data.relation_names, names_ptr=data.relation_names_ptr))
