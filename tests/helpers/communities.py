"""A small graph of three communities with names and labels, for trainers of vectors."""

from pathlib import Path

import numpy as np
import torch

NAMES = [f"n{number}" for number in range(90)]
SMALL = [
    "trainer=node_embedding",
    "data=edges",
    "trainer.dim=12",
    "trainer.walk_length=10",
    "trainer.num_parts=4",
    "trainer.episode_size=20000",
    "train.epochs=150",
    "train.eval_every=150",
    "train.lr=0.1",
    "trainer.num_draws=2",
]


def write_communities(folder: Path) -> Path:
    """Three communities with names, some links between them; two labels, the second of half of a community."""
    rng = np.random.default_rng(0)
    rows = [
        (a, b)
        for a in range(90)
        for b in range(a)
        if rng.random() < (0.3 if a // 30 == b // 30 else 0.01)
    ]
    lines = [f"{NAMES[a]}\t{NAMES[b]}\n" for a, b in rows]
    folder.joinpath("edges.tsv").write_text("# source\ttarget\n" + "".join(lines))
    folder.joinpath("labels.tsv").write_text(
        "".join(f"{NAMES[a]} {'abc'[a // 30]}{' half' if a % 60 < 15 else ''}\n" for a in range(90))
    )
    return folder


def small_run(folder: Path) -> list[str]:
    """Return overrides of a run of seconds."""
    return [*SMALL, f"data.path={folder / 'edges.tsv'}", f"data.labels={folder / 'labels.tsv'}"]


def assert_chances(drawn, parts, expected) -> None:
    """Check that alias tables draw the rows of each partition in proportion to what is expected of nodes."""
    for first, last in zip(parts.ptr[:-1].tolist(), parts.ptr[1:].tolist()):
        rows, size = slice(first, last), last - first
        accept, alias = drawn.accept[rows].double(), drawn.alias[rows].long()
        chance = (accept / size).index_add(0, alias, (1 - accept) / size)
        own = expected[parts.node[rows]]
        torch.testing.assert_close(chance, own / own.sum(), atol=1e-6, rtol=1e-5)
