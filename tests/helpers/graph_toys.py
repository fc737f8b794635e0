"""Small datasets of many graphs in OGB's raw layout."""

from pathlib import Path

import numpy as np

from tests.helpers.files import write_csv

ATOMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BONDS = (5, 6, 2)
SPLITS = {"ogbg-molhiv": "scaffold", "ogbg-molpcba": "scaffold", "ogbg-ppa": "species"}


def write_graphs(
    folder: Path, name: str = "ogbg-molhiv", *, num_graphs: int = 40, seed: int = 0
) -> Path:
    """Write random graphs in the manner of one of the datasets; some have one node and no edge."""
    rng = np.random.default_rng(seed)
    raw, num_nodes = folder / "raw", rng.integers(1, 9, num_graphs)
    num_edges = np.where(num_nodes > 1, num_nodes, 0)
    edges = [rng.integers(0, n, (e, 2)) for n, e in zip(num_nodes, num_edges)]
    write_csv(raw / "edge.csv.gz", np.concatenate(edges))
    write_csv(raw / "num-node-list.csv.gz", num_nodes)
    write_csv(raw / "num-edge-list.csv.gz", num_edges)
    total = int(num_edges.sum())
    if name == "ogbg-ppa":
        write_csv(raw / "edge-feat.csv.gz", rng.random((total, 7)).round(3))
        write_csv(raw / "graph-label.csv.gz", rng.integers(0, 3, num_graphs))
    else:
        write_csv(raw / "node-feat.csv.gz", rng.integers(0, ATOMS, (num_nodes.sum(), len(ATOMS))))
        write_csv(raw / "edge-feat.csv.gz", rng.integers(0, BONDS, (total, len(BONDS))))
        labels = rng.integers(0, 2, (num_graphs, 1 if name == "ogbg-molhiv" else 4)).astype(float)
        if name == "ogbg-molpcba":
            labels[rng.random(labels.shape) < 0.3] = np.nan
            write_csv(raw / "graph-label.csv.gz", labels)
        else:
            write_csv(raw / "graph-label.csv.gz", labels.astype(int))
    order = rng.permutation(num_graphs)
    for part, graphs in zip(
        ("train", "valid", "test"), np.split(order, [int(0.6 * num_graphs), int(0.8 * num_graphs)])
    ):
        write_csv(folder / "split" / SPLITS[name] / f"{part}.csv.gz", graphs)
    return folder
