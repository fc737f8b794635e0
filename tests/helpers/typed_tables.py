"""Tables of three types of nodes, and the schema that names them."""

import numpy as np
import pandas as pd

SCHEMA = {
    "nodes": {
        "user": {
            "path": "users.csv",
            "features": ["age", "visits"],
            "label": "kind",
            "split_column": "split",
        },
        "item": {"path": "items.csv", "features": ["price"]},
        "shop": {},
    },
    "edges": {
        "acts": {
            "path": "acts.csv",
            "source": {"type": "user", "column": "user"},
            "target": {"type": "item", "column": "item"},
            "relation": "what",
            "weight": "times",
        },
        "knows": {
            "path": "knows.csv",
            "source": {"type": "user", "column": "a"},
            "target": {"type": "user", "column": "b"},
            "features": ["years"],
        },
        "sold_by": {
            "path": "sold.csv",
            "source": {"type": "item", "column": "item"},
            "target": {"type": "shop", "column": "shop"},
        },
    },
}


def write_tables(folder, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Write tables in which ids of one type occur in others, and rows occur twice."""
    rng = np.random.default_rng(seed)
    users, items, shops = (
        [f"n{i}" for i in rng.permutation(40)],
        [f"n{i}" for i in range(25)],
        ["n3", "n1", "n2"],
    )
    tables = {
        "users": pd.DataFrame(
            {
                "id": users,
                "age": rng.integers(9, 99, 40),
                "visits": rng.random(40).round(3),
                "kind": rng.choice(["a", "b", "c"], 40),
                "split": (["train", "valid", "test"] * 14)[:40],
            }
        ),
        "items": pd.DataFrame({"id": items, "price": rng.random(25).round(3)}),
        "acts": pd.DataFrame(
            {
                "user": rng.choice(users, 150),
                "item": rng.choice(items, 150),
                "what": rng.choice(["buys", "sees"], 150),
                "times": rng.integers(1, 5, 150),
            }
        ),
        "knows": pd.DataFrame(
            {
                "a": rng.choice(users, 60),
                "b": rng.choice(users, 60),
                "years": rng.random(60).round(3),
            }
        ),
        "sold": pd.DataFrame({"item": items, "shop": rng.choice(shops, 25)}),
    }
    tables["acts"] = pd.concat([tables["acts"], tables["acts"].iloc[:20]], ignore_index=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return tables
