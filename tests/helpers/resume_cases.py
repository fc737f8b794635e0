"""The runs of test_resume.py, and what interrupts them at a chosen step; the processes of ranks import it by name."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.gnn.config import GNNConfig as Config
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.session import Session
from parallel_epochs.pipeline.run.stop import StopRequest
from tests.helpers.communities import small_run, write_communities
from tests.helpers.files import write_links
from tests.helpers.graph_toys import write_graphs
from tests.helpers.payments import write_payments
from tests.helpers.purchases import write_purchases
from tests.helpers.running import TOY
from tests.helpers.typed_graphs import write_hetero

DROPPED = ["model.input_dropout=0.2", "model.edge_dropout=0.3"]
NEIGHBOR = [*TOY, "loader=neighbor", "loader.num_neighbors=[4,3]", "loader.batch_size=40"]
TABLE = [*TOY, "features=embedding", "features.channels=6"]
LINK = [
    "data=ogb_link",
    "task=link",
    "partition=random",
    "partition.num_parts=2",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "task.pairs_per_step=60",
    "train.patience=0",
]
GRAPH = [
    "+experiment=ogbg_molpcba",
    "model.num_layers=2",
    "model.hidden_channels=16",
    "loader.batch_size=7",
]
TRIPLES = [
    "trainer=knowledge",
    "data=math",
    "data.num_entities=60",
    "data.num_operands=6",
    "data.num_train=800",
    "data.num_valid=40",
    "data.num_test=40",
    "trainer.dim=8",
    "trainer.batch_size=200",
    "trainer.num_negatives=10",
    "train.eval_every=1",
]
DRAWN, ALL = [*TRIPLES, "trainer.loss=negatives"], [*TRIPLES, "trainer.loss=one_vs_all"]
LAYOUT = [
    "trainer=layout",
    "data=vectors",
    "trainer.num_neighbors=8",
    "trainer.perplexity=3",
    "trainer.num_parts=3",
]


def write_vectors(folder: Path) -> list[str]:
    """Write three clouds of points, and return the overrides that read them."""
    x = 6 * np.eye(3, 8)[np.arange(60) % 3] + np.random.default_rng(0).standard_normal((60, 8))
    np.save(folder / "x.npy", x.astype(np.float32))
    (folder / "labels.txt").write_text("".join(f"kind {number % 3}\n" for number in range(60)))
    return [f"data.path={folder / 'x.npy'}", f"data.labels={folder / 'labels.txt'}"]


def write_tables(folder: Path) -> list[str]:
    """Write tables of nodes and edges, and return the overrides that read them."""
    rng, ids = np.random.default_rng(0), np.array([f"node-{number}" for number in range(60)])
    a = np.where(np.arange(60) % 7, rng.normal(size=60).round(3), np.nan)  # some cells are empty
    pd.DataFrame(
        {
            "id": ids,
            "a": a,
            "b": rng.integers(0, 100, 60),
            "kind": rng.choice(["libs", "games"], 60),
            "country": np.array(["DE", "FR", ""])[np.arange(60) % 3],
            "even": np.arange(60) % 2,
            "split": rng.choice(["train", "val", "test"], 60),
        }
    ).to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame({"from": rng.choice(ids, 300), "to": rng.choice(ids, 300)}).to_csv(
        folder / "edges.csv", index=False
    )
    return [
        "data=tables",
        f"data.folder={folder}",
        "data.nodes.path=nodes.csv",
        "data.nodes.features=[a,b]",
        "data.nodes.categories=[country]",
        "data.nodes.label=kind",
        "data.nodes.split_column=split",
        "data.edges.path=edges.csv",
        "data.edges.source=from",
        "data.edges.target=to",
        "model.num_layers=2",
        "model.hidden_channels=8",
    ]


# The data of some rows, written on first use.
WRITE: dict[str, Callable[[Path], list[str]]] = {
    "link": lambda folder: [*LINK, f"data.folder={write_links(folder)}"],
    "typed links": lambda folder: [*LINK[1:], *write_hetero(folder), "task.relation=buys"],
    "links of edges": lambda folder: [
        *LINK[1:],
        "data=edges",
        f"data.path={write_communities(folder) / 'edges.tsv'}",
        "data.train_fraction=0.8",
        "data.valid_fraction=0.1",
    ],
    "graph": lambda folder: [*GRAPH, f"data.folder={write_graphs(folder, 'ogbg-molpcba')}"],
    "tables": write_tables,
    "edges": lambda folder: [*write_payments(folder), "data.edges.label=fraud"],
    "rows": lambda folder: write_purchases(folder),
    "layout": lambda folder: [*LAYOUT, *write_vectors(folder)],
    "layout of a graph": lambda folder: [
        "trainer=layout",
        "data=edges",
        f"data.path={write_communities(folder) / 'edges.tsv'}",
        "trainer.num_parts=3",
    ],
    "node embedding": lambda folder: [
        *small_run(write_communities(folder)),
        "trainer.episode_size=3000",
    ],
}

# Each row is a run: the product, whose data may have to be written, and a few overrides.
ROWS: dict[str, list[str]] = {
    "cluster": TOY,
    "cluster: epochs without an evaluation": [*TOY, "train.eval_every=2"],
    "cluster: METIS": [*TOY, "partition=metis", "train.schedule=plateau"],
    "cluster: two clusters a step": [
        *TOY,
        "partition.clusters_per_step=2",
        "partition.num_parts=8",
        "train.schedule=linear",
        "train.warmup_steps=3",
    ],
    "cluster: views": [*TOY, "evaluation=views", "evaluation.num_views=2", "train.schedule=cosine"],
    "cluster: AdamW, warm-up, plateau and clipping": [
        *TOY,
        "train.optimizer=adamw",
        "train.weight_decay=0.1",
        "train.warmup_steps=3",
        "train.clip_grad_norm=0.1",
        "train.schedule=plateau",
        "train.plateau_factor=0.5",
        "train.plateau_patience=0",
        "train.accumulate=2",
        *DROPPED,
    ],
    "cluster: batch norm": [*TOY, "model.norm=batch", "train.ema=0.8"],
    "cluster: fp16": [*TOY, "train.precision=fp16", *DROPPED],
    "cluster: weighted labels": [
        *TOY,
        "task.class_weights=balanced",
        "train.label_input=0.3",
    ],
    "cluster: softmax_sum, checkpointing": [
        *TOY,
        "model.aggr=softmax_sum",
        "model.gradient_checkpointing=true",
    ],
    "cluster: on disk": [*TOY, "data.on_disk=true", "evaluation=views"],
    "cluster: the reference's kernel": [*TOY, "kernel=reference"],
    "revgnn": [*TOY, "model=revgnn", *DROPPED],
    "rgcn": [*TOY, "model=rgcn", *DROPPED],
    "hgt": [*TOY, "model=hgt", *DROPPED],
    "pyg": [*TOY, "model=pyg", "model.kwargs.heads=2", "model.norm=batch", *DROPPED],
    "pyg: AGDN": [
        *TOY,
        "model=pyg",
        "model.conv=AGDNConv",
        "model.kwargs.heads=2",
        "model.feed_forward=true",
        *DROPPED,
    ],
    "custom": [*TOY, "model=custom", "model.path=tests.helpers.nets.Net"],
    "neighbor": NEIGHBOR,
    "neighbor: label inputs, sampled evaluation": [
        *NEIGHBOR,
        "train.label_input=0.5",
        "evaluation=neighbor",
        "train.precision=bf16",
        *DROPPED,
    ],
    "table": TABLE,
    "table: hidden rows": [
        *TABLE,
        "features.dropout=0.5",
        "features.concat=true",
    ],
    "table: neighbor": [*TABLE, *NEIGHBOR[len(TOY) :]],
    "link": [],
    "link: validation edges, MRR": [
        "task.valid_edges=true",
        "task.metric=mrr",
        "task.predictor_layers=1",
    ],
    "link: sampled evaluation": ["evaluation=neighbor", "loader.num_neighbors=[3,3]"],
    "link: hidden pairs, batch norm": [
        "task.hide_pairs=true",
        "model.norm=batch",
    ],
    "link: revgnn": ["model=revgnn"],
    "link: GCN autoencoder with common neighbours": [
        "model=pyg",
        "model.conv=GCNConv",
        "model.num_layers=3",
        "model.tied=true",
        "model.activation=none",
        "model.norm_last=false",
        "model.encode_x=false",
        "model.residual=false",
        "features=embedding",
        "features.channels=8",
        "features.init=orthogonal",
        "task.predictor=residual",
        "task.common_neighbors=true",
        "task.valid_edges=true",
        "task.hide_pairs=true",
        "task.num_negatives=3",
        "train.schedule=linear",
    ],
    "links of edges": [],
    "typed links": [
        "task.hide_pairs=true",
        "task.valid_edges=true",
        "evaluation=neighbor",
        "evaluation.num_neighbors={buys: [3,2], default: [1,1]}",
    ],
    "graph": [],
    "graph: encodings": [
        "data.random_walk=3",
        *DROPPED,
    ],
    "tables": [],
    "edges": [],
    "rows": ["partition=random", "partition.num_parts=2", "train.accumulate=2"],
    "rows: sampling": ["loader=neighbor", "loader.batch_size=16", "loader.num_neighbors=[4,4]"],
    "tables: borders of times": [
        "data.nodes.split_column=null",
        "data.split=time",
        "data.time_column=b",
        "data.train_until=50",
        "data.valid_until=75",
    ],
    "tables: logits at the scores": [
        "data.nodes.text_chars=[id]",
        "data.nodes.text_features=scores",
        "data.nodes.text_neighbors=true",
        "task.text_scores=2",
        "train.label_input=0.5",
    ],
    "tables: terms, thresholds": [
        "data.nodes.text_chars=[id]",
        "data.nodes.text_features=svd",
        "data.nodes.label=even",
        "data.metric=rocauc",
        "task.threshold=cost:3",
        "task.base=linear",
        "task.candidate=offset",
    ],
    "tables: weighted classes": ["task.class_weights=balanced"],
    "node embedding": [],
    "node embedding: LINE, Adam": [
        "trainer.optimizer=adam",
        "trainer.model=line",
        "trainer.order=1",
    ],
    "node embedding: AdaGrad": ["trainer.optimizer=adagrad"],
    "node embedding: links held out": ["trainer.metric=auc", "trainer.holdout=0.2"],
    "knowledge: sparse Adam": [*DRAWN, "trainer.optimizer=adam", "train.lr=0.02"],
    "knowledge: sparse AdaGrad": [*DRAWN, "trainer.optimizer=adagrad", "trainer.l3=0.001"],
    "knowledge: AdaGrad": [*ALL, "trainer.n3=0.1"],
    "knowledge: Adam": [*ALL, "trainer.optimizer=adam", "train.lr=0.01", "trainer.last_lr=0.1"],
    "knowledge: SGD": [
        *DRAWN,
        "trainer.optimizer=sgd",
        "train.lr=50",
        "trainer.init_scale=0.1",
        "trainer.relation_lr=0.5",
    ],
    "layout": [],
    "layout of a graph": [],
}


def product(row: str) -> str:
    return row.partition(":")[0]


def after_step(number: int, do: Callable[[], object]) -> None:
    """Change this process: it calls ``do()`` when a run has taken this step, from 1, and nothing knows of it yet."""
    before = Session.after_step

    def changed(self, trainer, step):
        if step.number == number:
            do()
        before(self, trainer, step)

    Session.after_step = changed


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ask_to_stop() -> None:
    signal.raise_signal(signal.SIGTERM)


def die_before_a_checkpoint(number: int) -> None:
    """Change this process: it is killed when the record of a round is written and its checkpoint, of this number, is
    not.
    """
    save_last, saves = checkpoint.save_last, []

    def changed(*args):
        saves.append(args)
        if len(saves) == number:
            kill_this_process()
        save_last(*args)

    checkpoint.save_last = changed


def train_interrupted(
    victim: int,
    number: int,
    how: str,
    ranks: Ranks,
    stop: StopRequest,
    config: Config,
    folder: Path,
    *args,
) -> dict | None:
    """Train as a rank; one of the ranks is stopped or killed when it has taken a step."""
    if ranks.rank == victim:
        after_step(
            number,
            kill_this_process if how == "killed" else lambda: stop._note(signal.SIGTERM, None),
        )
    return training._train_launched(ranks, stop, config, folder, *args)
