"""DeepWalk on a graph with labels, compared with gensim on walks of the same distribution, in one run."""

import tempfile
import time

import numpy as np
import torch

from parallel_epochs.models.embedding.skipgram import GROUP
from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.graph.walks import WalkSampler
from parallel_epochs.pipeline.node_embedding.build import build_trainer
from parallel_epochs.pipeline.node_embedding.probe import LabelProbe
from parallel_epochs.scripts.bench.machine import measure
from parallel_epochs.scripts.bench.measure import (
    configure,
    import_peer,
    say,
    train_to_the_end,
    write_row,
)


def bench_embedding(path: str, dim: int = 128, distance: int = 2, repeat: int = 3) -> None:
    """Measure speed and quality of DeepWalk on a graph with labels, beside gensim's.

    Both are scored on the same splits of the labels.

    gensim reads its walks from a file of text, which it documents as its fastest way (`corpus_file`). The time to draw
    them and to write the file is not counted, while ours includes the walks.

    The column `of_machine` is the least arithmetic of these pairs as a share of what the machine can do.

    Args:
        path: table of edges, or a .mat file with network and group.
        distance: largest distance of the two nodes of a pair in a walk.

    Raises:
        SystemExit: gensim is not installed.
        ValueError: the graph cannot be read.
    """
    gensim = import_peer("gensim.models", "gensim")
    config = configure(
        "+experiment=deepwalk_blogcatalog",
        f"data.path={path}",
        f"trainer.dim={dim}",
        f"trainer.augmentation_distance={distance}",
    )
    data = training.open_data(config).data
    probe = LabelProbe(
        data.y.numpy(),
        metric="micro_f1",
        portions=config.trainer.portions,
        num_draws=3,
        num_threads=torch.get_num_threads(),
    )
    machine, _ = measure(lambda: None, rounds=4)
    # A pair or a negative costs a dot product and two updates of a vector, each with two operations per number. A full
    # group of pairs shares its negatives; gensim draws five for each pair.
    operations = {
        "ours": 6 * dim * (1 + config.trainer.num_negatives / GROUP),
        "gensim": 6 * dim * (1 + 5),
    }
    say(
        f"the machine does {machine.peak / 1e9:.0f} G operations per second on {torch.get_num_threads()} threads; "
        "operations per pair are at least "
        + ", ".join(f"{number:,.0f} ({name})" for name, number in operations.items())
    )
    sampler = WalkSampler(data.edge_index, length=config.trainer.walk_length)
    for round_ in range(repeat):
        config.seed = round_
        seconds, num_pairs, vectors = train_to_the_end(
            build_trainer, config, data
        )  # the time includes the walks
        rows = {"ours": (seconds, num_pairs, vectors)}
        # As many walks as ours had. Both look equally far to both sides.
        num_walks = -(-num_pairs // (2 * distance * config.trainer.walk_length))
        walks = sampler.draw(0, num_walks, key=round_, num_threads=torch.get_num_threads())
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(" ".join(map(str, walk)) + "\n" for walk in walks.tolist())
            file.flush()
            start = time.perf_counter()
            model = gensim.Word2Vec(
                corpus_file=file.name,
                vector_size=dim,
                window=distance,
                shrink_windows=False,
                sg=1,
                negative=5,
                min_count=0,
                sample=0,
                workers=torch.get_num_threads(),
                epochs=1,
                seed=round_ + 1,
            )
            seconds = time.perf_counter() - start
        rows["gensim"] = (
            seconds,
            num_pairs,
            np.stack(
                [
                    model.wv[str(node)] if str(node) in model.wv else np.zeros(dim)
                    for node in range(data.num_nodes)
                ]
            ),
        )
        for name, (taken, pairs, found) in rows.items():
            scores = probe(found)
            say(
                f"round {round_ + 1}, {name}: {taken:.2f} s, {pairs / taken / 1e6:.2f} M pairs per second, micro-F1 "
                + ", ".join(
                    f"{scores[f'micro_f1@{portion:g}']:.4f}" for portion in config.trainer.portions
                )
            )
            write_row(
                {
                    "bench": "embedding",
                    "what": name,
                    "round": round_,
                    "dim": dim,
                    "distance": distance,
                    "pairs": pairs,
                    "seconds": round(taken, 3),
                    "pairs_per_second": round(pairs / taken),
                    "of_machine": round(pairs / taken * operations[name] / machine.peak, 3),
                    **{
                        f"micro_f1_{portion:g}": round(scores[f"micro_f1@{portion:g}"], 4)
                        for portion in config.trainer.portions
                    },
                }
            )
