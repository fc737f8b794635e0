"""From a configuration to what trains vectors of a knowledge graph."""

import dataclasses
import logging
from typing import cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from models.embedding import distances
from models.embedding.triples import MODELS, TripleModel, TripleTables, first_rows
from pipeline.config import Config
from pipeline.data.node_names import unpack_names
from pipeline.names import SPLITS
from pipeline.ranking import TripleProbe
from pipeline.run.memory import format_bytes, machine_memory
from pipeline.run.ranks import Ranks
from pipeline.run.seeds import seed_torch
from pipeline.run.stop import StopRequest
from pipeline.trainers.config import KnowledgeConfig
from pipeline.trainers.knowledge import KnowledgeTrainer, Steps
from pipeline.trainers.triple_steps import NegativeSteps, OneVsAllSteps, Penalty

log = logging.getLogger(__name__)

# Tables beside the rows: what the optimizer keeps of each number, and the gradient where it is dense.
MOMENTS = {"sgd": 0, "adagrad": 1, "adam": 2}


def choose_model(options: KnowledgeConfig) -> TripleModel:
    """Return the scoring function of a configuration."""
    model = MODELS[options.model]
    return dataclasses.replace(model, comparison=f"l{options.norm}") if options.model == "transe" else model


def check(config: Config) -> None:
    """Refuse what no knowledge graph can be trained with.

    Raises:
        ValueError: names the key.
    """
    options = cast(KnowledgeConfig, config.trainer)
    model = choose_model(options)
    if config.device.startswith("cuda"):
        raise ValueError(f"device={config.device}: trainer=knowledge runs on the CPU alone; leave device out")
    if options.dim % model.parts:
        whole = -(-options.dim // model.parts) * model.parts
        raise ValueError(f"trainer.dim={options.dim} must be a multiple of {model.parts} for "
                         f"trainer.model={options.model}, whose numbers are {model.parts} real ones each: set it "
                         f"to {whole}, say")
    if not model.is_distance:
        return
    if options.loss == "one_vs_all":
        raise ValueError(f"trainer.loss=one_vs_all with trainer.model={options.model}: scores of all entities are a "
                         "matrix product, and these are distances; set trainer.loss=negatives")
    for name in ("n3", "l3"):
        if value := getattr(options, name):
            raise ValueError(f"trainer.{name}={value:g} with trainer.model={options.model}: it is a penalty for models "
                             "of products; leave it out")


def check_data(config: Config, data: Data) -> None:
    """Refuse tables that the machine cannot hold, and a step that it cannot.

    Raises:
        ValueError: names the key.
    """
    options = cast(KnowledgeConfig, config.trainer)
    model, one_vs_all = choose_model(options), options.loss == "one_vs_all"
    num_relations = data.num_relations * (2 if one_vs_all else 1)
    numbers = data.num_nodes * options.dim + num_relations * model.relation_dim(options.dim)
    copies = 1 + MOMENTS[options.optimizer] + (2 if one_vs_all else 0)
    needed, available = 4 * numbers * copies * config.parallel.num_ranks, machine_memory()
    if needed > available:
        raise ValueError(f"trainer.dim={options.dim}: tables of {data.num_nodes:,} entities and {data.num_relations:,} "
                         f"relations, with their optimizer, take {format_bytes(needed)}, this machine has "
                         f"{format_bytes(available)}: lower it")
    num_train = int(data.triple_ptr[1])
    batch = min(options.batch_size, num_train * (2 if one_vs_all else 1))
    # Of one_vs_all a row of scores for each query, at most; of negatives the rows drawn, and their gradients.
    chunks = -(-batch // options.chunk_size)
    each = data.num_nodes * batch if one_vs_all else 2 * options.num_negatives * (2 * options.dim * chunks + 2 * batch)
    if 4 * each > available:
        mend = "trainer.batch_size" + ("" if one_vs_all else " or trainer.num_negatives")
        raise ValueError(f"trainer.batch_size={options.batch_size:,}: a step takes {format_bytes(4 * each)}, this "
                         f"machine has {format_bytes(available)}: lower {mend}")


def describe(data: Data) -> str:
    """Say what there is to learn from, and which triples have entities or relations that training does not."""
    splits = split_triples(data)
    counts = " / ".join(f"{len(triples):,}" for triples in splits.values())
    text = (f"knowledge graph: {data.num_nodes:,} entities, {data.num_relations:,} relations, {counts} triples to "
            "train, validate and test")
    known = torch.zeros(data.num_nodes, dtype=torch.bool)
    known[splits["train"][:, [0, 2]].flatten()] = True
    kinds = torch.zeros(data.num_relations, dtype=torch.bool)
    kinds[splits["train"][:, 1]] = True
    for split in SPLITS[1:]:
        triples = splits[split]
        strange, odd = ~known[triples[:, [0, 2]]].all(1), ~kinds[triples[:, 1]]
        for count, what in ((int(strange.sum()), "an entity"), (int(odd.sum()), "a relation")):
            if count:
                text += (f"; {count:,} {split} triple{'s' if count > 1 else ''} with {what} that training does not "
                         "have, ranked with its first values")
    return text


def split_triples(data: Data) -> dict[str, Tensor]:
    """Return the triples of each split, [num_triples, 3]."""
    sizes = data.triple_ptr.diff().tolist()
    return dict(zip(SPLITS, data.triples.split(sizes), strict=True))


def build_knowledge(config: Config, data: Data, device: torch.device, ranks: Ranks,
                    stop: StopRequest | None) -> KnowledgeTrainer:
    """Build what trains vectors of entities and relations, on the CPU."""
    options = cast(KnowledgeConfig, config.trainer)
    model, splits, train = choose_model(options), split_triples(data), config.train
    penalty, one_vs_all = Penalty(n3=options.n3, l3=options.l3), options.loss == "one_vs_all"
    rows = first_rows(model, data.num_nodes, data.num_relations * (2 if one_vs_all else 1), options.dim,
                      margin=options.margin, scale=options.init_scale, rng=seed_torch("triples", config.seed))
    if model.comparison == "modulus":
        with ranks.first_then_others():  # what is compiled, the others find
            distances.LIBRARY.get()
    tables = TripleTables(model, *rows, reciprocal=one_vs_all)
    steps: Steps
    if one_vs_all:
        steps = OneVsAllSteps(splits["train"], data.num_relations, batch_size=options.batch_size, penalty=penalty,
                              seed=config.seed)
    else:
        steps = NegativeSteps(splits["train"], data.num_nodes, batch_size=options.batch_size,
                              chunk_size=options.chunk_size, num_negatives=options.num_negatives,
                              margin=options.margin if model.is_distance else 0.0, temperature=options.temperature,
                              penalty=penalty, seed=config.seed)
    optimizer = build_optimizer(tables, options, train.lr, is_sparse=steps.is_sparse)
    trainer = KnowledgeTrainer(tables, steps, optimizer, num_epochs=train.epochs, lr=train.lr, last_lr=options.last_lr,
                               eval_every=train.eval_every, score=build_probe(config, data, ranks, stop), ranks=ranks,
                               stop=stop)
    log.info("model: %s, %d numbers an entity and %d a relation%s, %s in all; %s steps an epoch", options.model,
             options.dim, model.relation_dim(options.dim), ", both ways round" if one_vs_all else "",
             f"{trainer.num_parameters:,}", f"{trainer.num_steps:,}")
    return trainer


def build_optimizer(tables: TripleTables, options: KnowledgeConfig, lr: float, *,
                    is_sparse: bool) -> torch.optim.Optimizer:
    """Build what moves the tables.

    Args:
        is_sparse: whether gradients have rows only where a step touches them.
    """
    groups: list = list(tables.parameters())
    if options.relation_lr != 1:  # otherwise one group, as checkpoints have it
        groups = [{"params": [tables.entities]}, {"params": [tables.relations], "lr_factor": options.relation_lr}]
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD,
        "adam": torch.optim.SparseAdam if is_sparse else torch.optim.Adam}
    return kinds[options.optimizer](groups, lr=lr)  # type: ignore[call-arg]


def build_probe(config: Config, data: Data, ranks: Ranks = Ranks(), stop: StopRequest | None = None) -> TripleProbe:
    """Build what ranks the triples of each split."""
    options = cast(KnowledgeConfig, config.trainer)
    return TripleProbe(split_triples(data), data.num_nodes, data.num_relations, valid_sample=options.eval_sample,
                       relation_names=relation_names(data) if options.per_relation else None, seed=config.seed,
                       ranks=ranks, stop=stop)


def relation_names(data: Data) -> list[str]:
    """Return the names of the relations."""
    return unpack_names(Data(names=data.relation_names, names_ptr=data.relation_names_ptr))
