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
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import seed_torch
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Largest share of triples whose entities another relation links the other way round by accident.
COPIED = 0.5

# Triples that share their negatives.
CHUNK_SIZE = 64
# Tables beside the rows: what the optimizer keeps of each number, and the gradient where it is dense.
MOMENTS = {"sgd": 0, "adagrad": 1, "adam": 2}


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


def check_data(config: KnowledgeConfig, data: Data) -> None:
    """Refuse tables that the machine cannot hold, and a step that it cannot.

    Raises:
        ValueError: names the key.
    """
    options, available = config.trainer, machine_memory()
    tables, step = estimate_bytes(config, data)
    needed = tables * config.parallel.num_ranks
    if needed > available:
        raise ValueError(
            f"trainer.dim={options.dim}: tables of {data.num_nodes:,} entities and {data.num_relations:,} "
            f"relations, with their optimizer, take {format_bytes(needed)}, but this machine has "
            f"{format_bytes(available)}: lower it"
        )
    if step > available:
        mend = "trainer.batch_size" + (
            "" if options.loss == "one_vs_all" else " or trainer.num_negatives"
        )
        raise ValueError(
            f"trainer.batch_size={options.batch_size:,}: a step takes {format_bytes(step)}, but this "
            f"machine has {format_bytes(available)}: lower {mend}"
        )


def estimate_bytes(config: KnowledgeConfig, data: Data) -> tuple[int, int]:
    """Estimate the bytes of the tables with their optimizer, and those of a step at least."""
    options = config.trainer
    model, one_vs_all = MODELS[options.model], options.loss == "one_vs_all"
    num_relations = data.num_relations * (2 if one_vs_all else 1)
    numbers = data.num_nodes * options.dim + num_relations * model.relation_dim(options.dim)
    copies = 1 + MOMENTS[options.optimizer] + (2 if one_vs_all else 0)
    batch = min(options.batch_size, int(data.triple_ptr[1]) * (2 if one_vs_all else 1))
    # one_vs_all holds at most a row of scores for each query; negatives hold the rows drawn, and their gradients.
    chunks = -(-batch // CHUNK_SIZE)
    each = 2 * options.num_negatives * (2 * options.dim * chunks + 2 * batch)
    return 4 * numbers * copies, 4 * (data.num_nodes * batch if one_vs_all else each)


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
        text += _describe_known(split, splits["train"], triples, data.num_nodes, data.num_relations)
    return text


def _describe_known(
    split: str, train: Tensor, triples: Tensor, num_nodes: int, num_relations: int
) -> str:
    """Say how many triples of a split training tells: the same ones, and those of entities linked the other way round."""
    if not len(triples) or not len(train):
        return ""
    pairs, place = (triples[:, 0] * num_nodes + triples[:, 2]).unique(return_inverse=True)

    def find(keys: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.searchsorted(pairs, keys).clamp(max=len(pairs) - 1)
        is_there = pairs[found] == keys
        return found[is_there], is_there

    found, is_there = find(train[:, 0] * num_nodes + train[:, 2])
    same = torch.isin(
        place * num_relations + triples[:, 1], found * num_relations + train[is_there, 1]
    )
    turned = torch.isin(place, find(train[:, 2] * num_nodes + train[:, 0])[0]) & (
        triples[:, 0] != triples[:, 2]
    )
    text, share = "", float(turned.double().mean())
    if number := int(same.sum()):
        text = f"; {count(number, f'{split} triple')} among those of training too, which flatters the metric"
    if share > COPIED:
        text += (
            f"; {share:.0%} of the {split} triples link two entities that a training triple links the other way "
            "round, as inverse relations do, which flatters the metric"
        )
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
