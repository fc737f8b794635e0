import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import running
import shapes
import torch
from browser import Browser
from hydra import compose, initialize_config_dir
from hypothesis import settings
from torch_geometric.data import Data

from pipeline import cli, config as configuration
from pipeline.data.arithmetic import read as read_math
from pipeline.data.config import MathConfig
from pipeline.graph.edges import sort_edges

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

torch.set_num_threads(1)
if os.environ.get("CHECK_SHAPES", "1") == "1":
    shapes.check_packages("models", "pipeline.graph", "pipeline.data", "pipeline.loaders", "pipeline.tasks")
cli.register_schema()
running.start_server()
# The same examples every time; --hypothesis-profile=default looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A Chromium that nothing may make complain."""
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
        assert not browser.complaints


@pytest.fixture
def configure(tmp_path):
    """Compose a configuration as the command line would, with every cache under the test's folder."""
    def compose_config(*overrides: str, name: str = "config") -> configuration.Config:
        with initialize_config_dir(cli.CONF, version_base="1.3"):
            cfg = compose(name, [f"cache_dir={tmp_path / 'cache'}", *overrides])
        return configuration.to_object(cfg)

    return compose_config


def make_graph(edges, num_nodes: int, **attributes) -> Data:
    """A graph ready for the pipeline from a list of (source, destination)."""
    raw = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
    edge_index, perm = sort_edges(raw, num_nodes)
    if "edge_attr" in attributes:
        attributes["edge_attr"] = attributes["edge_attr"][perm.long()]
    masks = dict(train_mask=torch.ones(num_nodes, dtype=torch.bool),
                 valid_mask=torch.zeros(num_nodes, dtype=torch.bool),
                 test_mask=torch.zeros(num_nodes, dtype=torch.bool))
    if "y" in attributes:
        attributes["out_channels"] = attributes["y"].size(1)
    return Data(**{**masks, **dict(edge_index=edge_index, num_nodes=num_nodes, num_categories=0, metric="rocauc"),
                   **attributes})


def random_graph(num_nodes: int, num_pairs: int, seed: int, *, symmetric: bool = True, edge_dim: int = 3) -> Data:
    """A random multigraph with self-loops and, by chance, duplicates."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(num_nodes, size=(num_pairs, 2))
    attr = torch.from_numpy(rng.random((num_pairs, edge_dim), dtype=np.float32))
    if symmetric:
        pairs, attr = np.concatenate([pairs, pairs[:, ::-1]]), torch.cat([attr, attr])
    x = torch.from_numpy(rng.standard_normal((num_nodes, 5)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 2, (num_nodes, 2)).astype(np.float32))
    return make_graph(pairs.tolist(), num_nodes, edge_attr=attr, x=x, y=y)


def task_graph(train_nodes: list[int], num_nodes: int = 40) -> Data:
    """A random graph, of which these nodes are for training and all others for validation and test."""
    data = random_graph(num_nodes, 100, 0)
    data.train_mask = torch.zeros(num_nodes, dtype=torch.bool)
    data.train_mask[train_nodes] = True
    data.valid_mask, data.test_mask = ~data.train_mask, ~data.train_mask
    return data


def link_graph(num_nodes: int = 40, num_pairs: int = 90, seed: int = 0, **attributes) -> Data:
    """A random graph of different pairs; most are for training, and edges both ways round, the others to be found."""
    rng = np.random.default_rng(seed)
    every = np.array([(u, v) for u in range(num_nodes) for v in range(u)])
    order = torch.from_numpy(every[rng.permutation(len(every))])
    train, valid, test = order[:num_pairs - 20], order[num_pairs - 20:num_pairs - 10], order[num_pairs - 10:num_pairs]
    x = torch.from_numpy(rng.standard_normal((num_nodes, 8)).astype(np.float32))
    data = make_graph(torch.cat([train, train.flip(1)]).tolist(), num_nodes, x=x, metric="hits@5", train_pairs=train,
                      valid_pairs=valid, test_pairs=test, valid_negatives=order[-120:-60], test_negatives=order[-60:])
    for key, value in attributes.items():
        data[key] = value
    return data


def write_csv(path: Path, table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        pd.DataFrame(table).to_csv(file, header=False, index=False)


def write_triples(folder: Path) -> Path:
    """Write a small knowledge graph: arithmetic modulo 30."""
    data = read_math(MathConfig(num_entities=30, num_operands=4, num_train=400, num_valid=40, num_test=40))
    folder.mkdir(parents=True, exist_ok=True)
    for split, triples in zip(("train", "valid", "test"), data.triples.split(data.triple_ptr.diff().tolist())):
        (folder / f"{split}.txt").write_text("".join(f"{h}\trelation{r}\t{t}\n" for h, r, t in triples.tolist()))
    return folder


def write_packages(folder: Path) -> Path:
    """Write packages and their relations as the tables of Debian's are."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"package{number}" for number in range(40)]
    pd.DataFrame({
        "name": names, "section": ["libs", "games"] * 20, "split": (["train"] * 3 + ["valid", "test"]) * 8,
        "installed_size_kib": range(40), "tags": ["role::shared-lib", "role::program|use::gameplaying"] * 20,
        "description": ["a library", "a game"] * 20}).to_csv(folder / "packages.csv.gz", index=False)
    pd.DataFrame({"source": names[2:], "relation": "Depends", "target": names[:-2]}).to_csv(
        folder / "relations.csv.gz", index=False)
    return folder


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Write small numbers as MNIST's files have them."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
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


def write_links(folder: Path) -> Path:
    """Write a small folder in the layout of ogbl-collab."""
    data = link_graph(60, 240)
    raw, split = folder / "raw", folder / "split" / "time"
    write_csv(raw / "edge.csv.gz", data.train_pairs.numpy())
    write_csv(raw / "num-node-list.csv.gz", [60])
    write_csv(raw / "num-edge-list.csv.gz", [len(data.train_pairs)])
    write_csv(raw / "node-feat.csv.gz", data.x.numpy().round(3))
    split.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        arrays = {"edge": data[f"{part}_pairs"].numpy(), "weight": np.ones(len(data[f"{part}_pairs"]))}
        if part != "train":
            arrays["edge_neg"] = data[f"{part}_negatives"].numpy()
        torch.save(arrays, split / f"{part}.pt")
    return folder


@pytest.fixture
def ogb_toy(tmp_path):
    """Write a small folder in OGB's raw layout, in the manner of one of its datasets."""
    def write(name: str = "ogbn-proteins") -> Path:
        if name.startswith("ogbg"):
            from graph_toys import write_graphs  # which writes by this file's means
            return write_graphs(tmp_path / "toy" / name, name)
        rng = np.random.default_rng(0)
        folder, n, pairs = tmp_path / "toy" / name, 60, 300
        if name.startswith("ogbl"):
            return write_links(folder)
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

    return write


def needs_shared(name: str):
    folder = SHARED / name
    return pytest.mark.skipif(not folder.is_dir(), reason=f"the real dataset {name} is not beside this checkout")
