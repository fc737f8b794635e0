"""Small datasets in files, as users have them; and the real ones, where they lie beside the checkout."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.data.cache import read
from parallel_epochs.pipeline.data.config import MathConfig
from tests.helpers.graphs import link_graph
from tests.helpers.running import ROOT

SHARED = ROOT.parent / "shared" / "data"


def write_csv(path: Path, table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        pd.DataFrame(table).to_csv(file, header=False, index=False)


def write_triples(folder: Path) -> Path:
    """Write a small knowledge graph: arithmetic modulo 30."""
    data = read(
        MathConfig(num_entities=30, num_operands=4, num_train=400, num_valid=40, num_test=40)
    )
    folder.mkdir(parents=True, exist_ok=True)
    for split, triples in zip(
        ("train", "valid", "test"), data.triples.split(data.triple_ptr.diff().tolist())
    ):
        (folder / f"{split}.txt").write_text(
            "".join(f"{h}\trelation{r}\t{t}\n" for h, r, t in triples.tolist())
        )
    return folder


def write_packages(folder: Path) -> Path:
    """Write packages and their relations as the tables of Debian's are."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"package{number}" for number in range(40)]
    pd.DataFrame(
        {
            "name": names,
            "section": ["libs", "games"] * 20,
            "split": (["train"] * 3 + ["valid", "test"]) * 8,
            "installed_size_kib": range(40),
            "tags": ["role::shared-lib", "role::program|use::gameplaying"] * 20,
            "description": ["a library", "a game"] * 20,
        }
    ).to_csv(folder / "packages.csv.gz", index=False)
    pd.DataFrame({"source": names[2:], "relation": "Depends", "target": names[:-2]}).to_csv(
        folder / "relations.csv.gz", index=False
    )
    return folder


def write_typed_packages(folder: Path) -> Path:
    """Write packages, their sources, maintainers and tags in two folders as the tables of Debian's are."""
    names = pd.read_csv(write_packages(folder / "debian") / "packages.csv.gz")["name"]
    ends = {
        "built_from": ("source", "s"),
        "maintained_by": ("maintainer", "m"),
        "tagged": ("tag", "t"),
    }
    (folder / "debian_typed").mkdir()
    tables = {
        name: pd.DataFrame(
            {"package": names, column: [f"{letter}{number % 7}" for number in range(40)]}
        )
        for name, (column, letter) in ends.items()
    }
    tables["sources"] = pd.DataFrame(
        {"source": [f"s{number}" for number in range(7)], "homepage_host": "example.org"}
    )
    tables["maintainers"] = pd.DataFrame(
        {
            "maintainer": [f"m{number}" for number in range(7)],
            "is_team": [0, 1, 0, 1, 1, 0, 0],
            "domain": "debian.org",
        }
    )
    for name, table in tables.items():
        table.to_csv(folder / "debian_typed" / f"{name}.csv.gz", index=False)
    return folder


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Write small numbers as MNIST's files have them."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(
        int(size).to_bytes(4, "big") for size in array.shape
    )
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_images(folder: Path) -> Path:
    """Write a small folder of images and labels in the manner of MNIST."""
    rng = np.random.default_rng(0)
    kind = np.arange(90) % 3
    images = rng.integers(60, size=(90, 6, 6))
    images[np.arange(90), kind] += 150
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", images)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", kind)
    return folder


OGB_LINK_SPLITS = {
    "ogbl-collab": "time",
    "ogbl-ppa": "throughput",
    "ogbl-ddi": "target",
    "ogbl-citation2": "time",
}
# Negatives of each pair of the toy of ogbl-citation2.
OWN_NEGATIVES = 20


def write_links(folder: Path, name: str = "ogbl-collab") -> Path:
    """Write a small folder in the layout of one of OGB's link datasets. That of ogbl-ddi has no features."""
    data = link_graph(60, 240)
    raw, split = folder / "raw", folder / "split" / OGB_LINK_SPLITS[name]
    write_csv(raw / "edge.csv.gz", data.train_pairs.numpy())
    write_csv(raw / "num-node-list.csv.gz", [60])
    write_csv(raw / "num-edge-list.csv.gz", [len(data.train_pairs)])
    if name != "ogbl-ddi":
        write_csv(raw / "node-feat.csv.gz", data.x.numpy().round(3))
    split.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        pairs = data[f"{part}_pairs"].numpy()
        arrays = {"edge": pairs, "weight": np.ones(len(pairs))}
        if name == "ogbl-citation2":
            arrays = {"source_node": pairs[:, 0], "target_node": pairs[:, 1]}
            if part != "train":
                drawn = np.random.default_rng(len(part)).integers(
                    60, size=(len(pairs), OWN_NEGATIVES)
                )
                arrays["target_node_neg"] = drawn
        elif part != "train":
            # Those of ogbl-ppa twice: its metric, Hits@100, asks for more than a hundred.
            arrays["edge_neg"] = np.tile(
                data[f"{part}_negatives"].numpy(), (2 if name == "ogbl-ppa" else 1, 1)
            )
        torch.save(arrays, split / f"{part}.pt")
    return folder


def needs_shared(name: str):
    folder = SHARED / name
    return pytest.mark.skipif(
        not folder.is_dir(), reason=f"the real dataset {name} is not beside this checkout"
    )


def write_ogb(folder: Path, name: str) -> Path:
    """Write a small folder in OGB's raw layout, in the manner of one of its datasets."""
    if name.startswith("ogbg"):
        from tests.helpers.graph_toys import write_graphs  # which writes by this file's means

        return write_graphs(folder, name)
    rng = np.random.default_rng(0)
    n, pairs = 60, 300
    if name.startswith("ogbl"):
        return write_links(folder, name)
    raw = folder / "raw"
    edge = np.array([(u, v) for u, v in rng.integers(n, size=(2 * pairs, 2)) if u != v][:pairs])
    write_csv(raw / "edge.csv.gz", edge)
    write_csv(raw / "num-node-list.csv.gz", [n])
    write_csv(raw / "num-edge-list.csv.gz", [pairs])
    if name == "ogbn-proteins":
        write_csv(raw / "edge-feat.csv.gz", rng.random((pairs, 8)).round(3))
        write_csv(raw / "node_species.csv.gz", rng.choice([3702, 4932, 9606], n))
        write_csv(raw / "node-label.csv.gz", rng.integers(0, 2, (n, 5)))
        split = "species"
    else:
        write_csv(raw / "node-feat.csv.gz", rng.random((n, 6)).round(3))
        write_csv(raw / "node-label.csv.gz", rng.integers(0, 4, n))
        split = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking"}[name]
    order = rng.permutation(n)
    for part, nodes in zip(("train", "valid", "test"), np.split(order, [36, 48])):
        write_csv(folder / "split" / split / f"{part}.csv.gz", nodes)
    return folder
