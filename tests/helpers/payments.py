"""Tables of accounts and of payments between them, whose labels follow the target and the amount."""

from pathlib import Path

import numpy as np
import pandas as pd

KEYS = [
    "task=edge",
    "data=tables",
    "data.nodes.path=accounts.csv",
    "data.nodes.id=account",
    "data.nodes.features=[age]",
    "data.edges.path=payments.csv",
    "data.edges.features=[amount]",
    "data.edges.categories=[channel]",
    "data.edges.standardize=true",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "partition.num_parts=2",
    "train.patience=0",
    "task.base=none",
]


def make_payments(num_accounts: int = 40, num_payments: int = 300, seed: int = 0) -> pd.DataFrame:
    """Make payments in the order of their days; some targets get fraud, and the first two rows have the same ends."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(num_accounts, size=(2, num_payments))
    source[1], target[1] = source[0], target[0]
    amount = rng.gamma(2, 20, num_payments).round(2)
    fraud = ((target % 3 == 0) & (amount > 25)).astype(int)
    fraud[:2] = 0, 1
    return pd.DataFrame(
        {
            "source": [f"a{number}" for number in source],
            "target": [f"a{number}" for number in target],
            "amount": amount,
            "channel": rng.choice(["web", "app"], num_payments),
            "fraud": fraud,
            "late": rng.integers(0, 2, num_payments),
            "rating": (amount / 10 + rng.normal(size=num_payments)).round(3),
            "day": np.sort(rng.integers(0, 100, num_payments)),
        }
    )


def write_payments(folder: Path, payments: pd.DataFrame | None = None) -> list[str]:
    """Write the tables, and return the overrides that read them; a key of the labels is missing."""
    payments = make_payments() if payments is None else payments
    folder.mkdir(exist_ok=True, parents=True)
    names = [f"a{number}" for number in range(40)]
    pd.DataFrame({"account": names, "age": np.arange(40) % 7}).to_csv(
        folder / "accounts.csv", index=False
    )
    payments.to_csv(folder / "payments.csv", index=False)
    return [*KEYS, f"data.folder={folder}"]
