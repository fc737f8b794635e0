"""Small graphs with several types of nodes."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import HeteroData

COUNTS = {"user": 40, "item": 30, "tag": 6}


def hetero_graph(seed: int = 0) -> HeteroData:
    """Users who buy items of their kind and know each other, and items with a tag; tags have no features. The labels of
    users are their kinds.
    """
    rng = np.random.default_rng(seed)
    data = HeteroData()
    kinds = {name: rng.integers(3, size=COUNTS[name]) for name in ("user", "item")}
    for name, kind in kinds.items():
        noise = rng.normal(size=(COUNTS[name], 3 + 2 * (name == "user")))
        data[name].x = torch.from_numpy(noise + np.eye(3)[kind] @ np.eye(3, noise.shape[1])).float()
    data["tag"].num_nodes = COUNTS["tag"]
    data["user"].y = torch.from_numpy(kinds["user"])
    for split, mask in enumerate(("train_mask", "val_mask", "test_mask")):
        data["user"][mask] = torch.arange(COUNTS["user"]) % 4 == split
    same = kinds["user"][:, None] == kinds["item"]
    buys = np.argwhere(same & (rng.random(same.shape) < 0.5))
    knows = rng.integers(COUNTS["user"], size=(90, 2))  # some to and fro, and some with themselves
    for (source, name, target), edges in {
        ("user", "buys", "item"): buys,
        ("user", "knows", "user"): np.vstack([knows, knows[:10, ::-1]]),
        ("item", "has", "tag"): np.stack([np.arange(30), rng.integers(6, size=30)], 1),
        ("user", "sees", "item"): buys[::3],
        ("user", "sees", "tag"): rng.integers(6, size=(20, 2)),
    }.items():
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
    pd.DataFrame({"id": range(40), "age": rng.integers(20, 60, 40)}).to_csv(
        folder / "users.csv", index=False
    )
    pd.DataFrame({"id": range(30), "price": rng.random(30).round(2)}).to_csv(
        folder / "items.csv", index=False
    )
    for name, target in (("buys", "item"), ("knows", "user")):
        source, other = graph["user", name, target].edge_index.numpy()
        pd.DataFrame(
            {"source": source, "target": other, "day": rng.integers(1000, size=len(source))}
        ).to_csv(folder / f"{name}.csv", index=False)
    (folder / "schema.yaml").write_text(
        "nodes:\n  user: {path: users.csv, features: [age]}\n  item: {path: items.csv, features: [price]}\n"
        "edges:\n  buys: {path: buys.csv, source: user, target: item, time: day}\n"
        "  knows: {path: knows.csv, source: user, target: user}\n"
    )
    return ["data=tables", f"data.schema={folder / 'schema.yaml'}"]


def write_table(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def write_mag(folder) -> None:
    """Write a small folder in the layout of ogbn-mag."""
    rng, raw, split = np.random.default_rng(0), folder / "raw", folder / "split" / "time"
    counts = {"paper": 30, "author": 12, "institution": 3, "field_of_study": 6}
    relations = {
        ("author", "writes", "paper"): 40,
        ("paper", "cites", "paper"): 50,
        ("author", "affiliated_with", "institution"): 12,
        ("paper", "has_topic", "field_of_study"): 60,
    }
    write_table(raw / "num-node-dict.csv.gz", [counts, counts.values()])
    write_table(raw / "triplet-type-list.csv.gz", relations)
    for name in ("feat", "label"):
        write_table(
            raw / f"nodetype-has-{name}.csv.gz", [counts, [kind == "paper" for kind in counts]]
        )
    write_table(split / "nodetype-has-split.csv.gz", [counts, [kind == "paper" for kind in counts]])
    for (source, name, target), num in relations.items():
        ends = zip(
            rng.integers(counts[source], size=num),
            rng.integers(counts[target], size=num),
            strict=True,
        )
        write_table(raw / "relations" / "___".join((source, name, target)) / "edge.csv.gz", ends)
        write_table(
            raw / "relations" / "___".join((source, name, target)) / "num-edge-list.csv.gz", [[num]]
        )
    write_table(raw / "node-feat" / "paper" / "node-feat.csv.gz", rng.random((30, 4)).round(4))
    write_table(raw / "node-label" / "paper" / "node-label.csv.gz", rng.integers(3, size=(30, 1)))
    for place, part in enumerate(("train", "valid", "test")):
        write_table(
            split / "paper" / f"{part}.csv.gz",
            [[node] for node in range(place * 10, place * 10 + 10)],
        )
