"""Small graphs with several types of nodes and several relations."""

from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData

from parallel_epochs.pipeline.data.join_types import NodesOfType, join_parts
from parallel_epochs.pipeline.data.prepare import prepare


def typed_graph(**options) -> Data:
    """Four users, three items and two tags in two components: users 0, 1 and 2 with items 0 and 1 and tag 0.

    Args:
        options: of :func:`pipeline.data.join_types.join_parts`.
    """
    mask = torch.arange(4)
    labels = dict(
        y=torch.tensor([[0], [1], [0], [1]]),
        train_mask=mask < 2,
        valid_mask=mask == 2,
        test_mask=mask == 3,
    )
    parts = {
        "user": NodesOfType(
            4, torch.tensor([[1.0, 5.0], [1.0, 6.0], [1.0, 7.0], [1.0, 8.0]]), labels
        ),
        "item": NodesOfType(3, torch.tensor([[3.0], [4.0], [5.0]])),
        "tag": NodesOfType(2),
    }
    buys = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])
    edges = {
        ("user", "buys", "item"): (buys, torch.tensor([[0.1], [0.2], [0.3], [0.4]])),
        ("user", "knows", "user"): (torch.tensor([[0], [2]]), None),
        ("item", "has", "tag"): (torch.tensor([[0, 1, 2], [0, 0, 1]]), None),
    }
    return prepare(
        join_parts(
            parts,
            edges,
            **dict(origin="toy", add_reverse=True, averages=False, metric="acc") | options,
        ),
        origin="toy",
    )


def hetero_data(num_users: int = 40, *, seed: int = 0) -> HeteroData:
    """Users that buy items of their own kind, and tags of items; the kind of a user is its class."""
    rng = torch.Generator().manual_seed(seed)
    data, num_items = HeteroData(), num_users // 2
    kind, of_item = torch.arange(num_users) % 2, torch.arange(num_items) % 2
    data["user"].x, data["user"].y = torch.rand(num_users, 3, generator=rng), kind
    data["item"].x = torch.stack([of_item.float(), torch.rand(num_items, generator=rng)], dim=1)
    data["tag"].num_nodes = 4
    ends = torch.stack(
        [
            torch.arange(num_users).repeat(4),
            torch.randint(num_items, (4 * num_users,), generator=rng),
        ]
    )
    kept = kind[ends[0]] == of_item[ends[1]]
    data["user", "buys", "item"].edge_index = ends[:, kept]
    data["user", "buys", "item"].edge_attr = torch.rand(int(kept.sum()), 1, generator=rng)
    data["user", "knows", "user"].edge_index = torch.randint(
        num_users, (2, num_users), generator=rng
    )
    data["item", "has", "tag"].edge_index = torch.stack(
        [torch.arange(num_items), torch.arange(num_items) % 4]
    )
    place = torch.randperm(num_users, generator=rng)
    for mask, low, high in (
        ("train_mask", 0, 0.5),
        ("val_mask", 0.5, 0.75),
        ("test_mask", 0.75, 1),
    ):
        data["user"][mask] = (place >= low * num_users) & (place < high * num_users)
    return data


def save_hetero(folder: Path, **options) -> Path:
    """Save :func:`hetero_data` in a file, as its users have it."""
    path = folder / "hetero.pt"
    torch.save(hetero_data(**options), path)
    return path
