"""LargeVis layouts of vectors with labels, compared with PaCMAP, UMAP and openTSNE in one run."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.layout.build import build_trainer, classes_of
from parallel_epochs.pipeline.layout.probe import trust, vote
from parallel_epochs.scripts.bench.measure import configure, say, train_to_the_end, write_row

# For fewer than 4,096 points UMAP compares all pairs, and would compile its search for neighbours within its time.
WARM = 5_000


def bench_layout(
    path: str,
    labels: str = "",
    peers: tuple[str, ...] = ("pacmap", "umap-learn", "openTSNE"),
    repeat: int = 1,
) -> None:
    """Measure time and quality of layouts of vectors, beside PaCMAP's, UMAP's and openTSNE's.

    Packages that are not installed are named and left out. Everything is compiled before the time is taken. No seed is
    given to PaCMAP and UMAP, which take other and slower ways with one.

    Args:
        path: file of vectors, or a folder of images and labels like MNIST.
        labels: file of the labels, if they are not in the file of the vectors.
        peers: packages to compare with.

    Raises:
        ValueError: the vectors cannot be read.
    """
    config = configure(
        "+experiment=largevis_mnist",
        f"data.path={path}",
        *([] if not labels else [f"data.labels={labels}"]),
    )
    data = training.open_data(config).data
    x, classes = data.x.numpy(), classes_of(data)
    places = {"ours": lambda seed: _lay_out(config, data, seed)}
    for name in peers:
        module, function = PEERS[name]
        if importlib.util.find_spec(module) is None:
            say(f"{name} is not installed: pip install {name}")
        else:
            peer = importlib.import_module(module)
            places[name] = lambda seed, function=function, peer=peer: function(peer, x, seed)
            function(peer, x[:WARM], 0)
    _lay_out(config, data, 0)  # compiles the kernels, as the first calls of the others above do
    for round_ in range(repeat):
        ours = None
        for name, lay_out in places.items():
            began, start = time.process_time(), time.perf_counter()
            positions = np.asarray(lay_out(round_), np.float32)
            seconds, busy = time.perf_counter() - start, time.process_time() - began
            ours = ours or (seconds, busy)
            accuracy = vote(positions, classes) if classes is not None else float("nan")
            kept = trust(positions, x, np.arange(len(x)))
            say(
                f"round {round_ + 1}, {name}: {seconds:.2f} s, {busy:.2f} s of processor time; accuracy of 10 "
                f"neighbours {accuracy:.4f}, trustworthiness {kept:.4f}"
            )
            write_row(
                {
                    "bench": "layout",
                    "what": name,
                    "round": round_,
                    "points": len(x),
                    "seconds": round(seconds, 3),
                    "processor_seconds": round(busy, 3),
                    "ratio": round(seconds / ours[0], 3),
                    "processor_ratio": round(busy / ours[1], 3),
                    "knn_acc": round(accuracy, 4),
                    "trustworthiness": round(kept, 4),
                }
            )


def _lay_out(config, data, seed: int) -> np.ndarray:
    """Compute a layout from the vectors, including the search for neighbours."""
    config.seed = seed
    fresh = data.clone()
    del fresh.content_hash  # nothing is kept of the neighbours
    return train_to_the_end(build_trainer, config, fresh)[2]


# Module of each package, by its name for pip, and the layout that it computes of vectors with a seed.
PEERS: dict[str, tuple[str, Callable[[Any, np.ndarray, int], np.ndarray]]] = {
    "pacmap": ("pacmap", lambda pacmap, x, seed: pacmap.PaCMAP(n_components=2).fit_transform(x)),
    "umap-learn": ("umap", lambda umap, x, seed: umap.UMAP().fit_transform(x)),
    "openTSNE": (
        "openTSNE",
        lambda opentsne, x, seed: opentsne.TSNE(
            n_jobs=torch.get_num_threads(), random_state=seed
        ).fit(x),
    ),
}
