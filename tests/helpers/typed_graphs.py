"""Small graphs with several types of nodes."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import HeteroData

COUNTS = {"user": 40, "item": 30, "tag": 6}


def hetero_graph(seed: int = 0) -> HeteroData:
    """Users who buy items of their kind and know each other, and items with a tag; tags have no features."""
    rng = np.random.default_rng(seed)
    data = HeteroData()
    kinds = {name: rng.integers(3, size=COUNTS[name]) for name in ("user", "item")}
    for name, kind in kinds.items():
        noise = rng.normal(size=(COUNTS[name], 3 + 2 * (name == "user")))
        data[name].x = torch.from_numpy(noise + np.eye(3)[kind] @ np.eye(3, noise.shape[1])).float()
    data["tag"].num_nodes = COUNTS["tag"]
    same = kinds["user"][:, None] == kinds["item"]
    buys = np.argwhere(same & (rng.random(same.shape) < 0.5))
    knows = rng.integers(COUNTS["user"], size=(90, 2))  # some to and fro, and some with themselves
    for (source, name, target), edges in {
            ("user", "buys", "item"): buys, ("user", "knows", "user"): np.vstack([knows, knows[:10, ::-1]]),
            ("item", "has", "tag"): np.stack([np.arange(30), rng.integers(6, size=30)], 1),
            ("user", "sees", "item"): buys[::3], ("user", "sees", "tag"): rng.integers(6, size=(20, 2))}.items():
        data[source, name, target].edge_index = torch.from_numpy(edges.T.copy())
    return data


def write_hetero(folder: Path) -> list[str]:
    """Write the graph for data=file, and return the overrides that read it."""
    torch.save(hetero_graph(), folder / "hetero.pt")
    return ["data=file", f"data.path={folder / 'hetero.pt'}"]


def write_typed_tables(folder: Path) -> list[str]:
    """Write users and items whose ids are the same numbers, with times of what is bought and without of who knows whom;
    return the overrides that read them.
    """
    rng, graph = np.random.default_rng(0), hetero_graph()
    pd.DataFrame({"id": range(40), "age": rng.integers(20, 60, 40)}).to_csv(folder / "users.csv", index=False)
    pd.DataFrame({"id": range(30), "price": rng.random(30).round(2)}).to_csv(folder / "items.csv", index=False)
    for name, target in (("buys", "item"), ("knows", "user")):
        source, other = graph["user", name, target].edge_index.numpy()
        pd.DataFrame({"source": source, "target": other, "day": rng.integers(1000, size=len(source))}).to_csv(
            folder / f"{name}.csv", index=False)
    (folder / "schema.yaml").write_text(
        "nodes:\n  user: {path: users.csv, features: [age]}\n  item: {path: items.csv, features: [price]}\n"
        "edges:\n  buys: {path: buys.csv, source: user, target: item, time: day}\n"
        "  knows: {path: knows.csv, source: user, target: user}\n")
    return ["data=tables", f"data.schema={folder / 'schema.yaml'}"]
