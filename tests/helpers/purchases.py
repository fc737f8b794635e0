"""Tables of users, items, orders with times, and labels that say who orders in the next 20 days."""

from pathlib import Path

import numpy as np
import pandas as pd

SCHEMA = """nodes:
  user: {path: users.csv, features: [age], standardize: true}
  item: {path: items.csv, features: [price]}
edges:
  orders: {path: orders.csv, source: {type: user, column: user}, target: {type: item, column: item}, time: day,
           features: [paid], standardize: true}
"""
KEYS = [
    "data=tables",
    "data.label_table=labels.csv",
    "data.rows.type=user",
    "data.rows.within=20",
    "data.metric=rocauc",
    "data.train_until=60",
    "data.valid_until=80",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "partition=whole",
    "train.patience=0",
    "train.epochs=2",
    "task.base=none",
]
# Rows ask at these times, of which the last is for the test. What is later than the last but one is the future.
TIMES, FUTURE = (20, 40, 60, 80, 100), 80


def make_orders(num_users: int = 30, num_orders: int = 160, seed: int = 0) -> pd.DataFrame:
    """Make orders in 120 days; some users order much, and paid follows the user."""
    rng = np.random.default_rng(seed)
    user = (num_users * rng.random(num_orders) ** 2).astype(int)
    return pd.DataFrame(
        {
            "user": [f"u{number}" for number in user],
            "item": [f"i{number}" for number in rng.integers(0, 10, num_orders)],
            "paid": (user + rng.gamma(2, 5, num_orders)).round(2),
            "day": np.sort(rng.integers(0, 120, num_orders)),
        }
    )


def make_labels(orders: pd.DataFrame) -> pd.DataFrame:
    """Ask of each user at each time whether an order follows within 20 days."""
    return pd.DataFrame(
        [
            (
                f"u{number}",
                time,
                int(
                    (
                        (orders.user == f"u{number}")
                        & (orders.day > time)
                        & (orders.day <= time + 20)
                    ).any()
                ),
            )
            for time in TIMES
            for number in range(30)
        ],
        columns=["id", "time", "label"],
    )


def change_future(orders: pd.DataFrame, labels: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give the future other orders, which pay much more, and the test other labels."""
    later = orders.day >= FUTURE
    orders = orders.assign(
        paid=np.where(later, 1000 * orders.paid, orders.paid),
        user=np.where(later, orders.user[::-1], orders.user),
        item=np.where(later, "i0", orders.item),
    )
    more = pd.DataFrame({"user": "u29", "item": "i9", "paid": -5.0, "day": range(FUTURE, 119)})
    return pd.concat([orders, more]), labels.assign(
        label=np.where(labels.time > FUTURE, 1 - labels.label, labels.label)
    )


def write_purchases(
    folder: Path, orders: pd.DataFrame | None = None, labels: pd.DataFrame | None = None
) -> list[str]:
    """Write the tables, and return the overrides that read them."""
    orders = make_orders() if orders is None else orders
    folder.mkdir(exist_ok=True, parents=True)
    pd.DataFrame(
        {
            "id": [f"u{number}" for number in range(30)],
            "age": np.arange(30) % 7,
            "since": np.arange(30) * 2,
        }
    ).to_csv(folder / "users.csv", index=False)
    pd.DataFrame({"id": [f"i{number}" for number in range(10)], "price": range(10)}).to_csv(
        folder / "items.csv", index=False
    )
    orders.to_csv(folder / "orders.csv", index=False)
    (make_labels(orders) if labels is None else labels).to_csv(folder / "labels.csv", index=False)
    (folder / "schema.yaml").write_text(SCHEMA)
    return [*KEYS, f"data.folder={folder}", f"data.schema={folder / 'schema.yaml'}"]
