"""How many neighbours are sampled: one number for each hop, or one for each hop and relation."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.node_names import suggest_name

# The numbers of relations that a mapping does not name.
DEFAULT = "default"
# As keys give it: numbers for each hop, or such numbers by the names of relations.
NumNeighbors = Sequence[int] | Mapping[str, Sequence[int]]


def fan_outs_of(
    num_neighbors: NumNeighbors, data: Data
) -> list[int] | Int[Tensor, "num_hops num_relations"]:
    """Return the largest number of neighbours for each hop, and for each relation if they are given by relation.

    Args:
        num_neighbors: a list; or a mapping of relations to lists of the same length. A relation is named by its name,
            or as user.buys.item, which goes before. ``default`` is for those that are not named.
        data: the graph.

    Raises:
        ValueError: the graph has no relations, there is no relation of a name, or one has no numbers.
    """
    if not isinstance(num_neighbors, Mapping):
        return list(num_neighbors)
    if data.types.homogeneous:
        raise ValueError(
            f"num_neighbors={show(num_neighbors)} names relations, and this graph has one type of nodes. "
            "Give a list, as in [15,10]"
        )
    num_neighbors = {
        str(name): numbers for name, numbers in num_neighbors.items()
    }  # YAML reads some as numbers
    _refuse_unknown(num_neighbors, data.types)
    rows, missing = [], []
    for number, (source, name, target) in enumerate(data.types.relations):
        given = (
            num_neighbors[key]
            for key in (f"{source}.{name}.{target}", name, DEFAULT)
            if key in num_neighbors
        )
        if (row := next(given, None)) is None:
            missing.append(data.types.name_of(number))
        else:
            rows.append(list(row))
    if missing:
        raise ValueError(
            f"num_neighbors={show(num_neighbors)} has no numbers for the relation {missing[0]}"
            f"{f' and {len(missing) - 1:,} more' if len(missing) > 1 else ''}. Add them, or {DEFAULT} for "
            "all that are not named"
        )
    return torch.tensor(rows, dtype=torch.int64).t().contiguous()


def show(num_neighbors: NumNeighbors) -> str:
    """Write numbers of neighbours as a key takes them."""
    if isinstance(num_neighbors, Mapping):
        return (
            f"{{{','.join(f'{name}:{show(numbers)}' for name, numbers in num_neighbors.items())}}}"
        )
    return f"[{','.join(map(str, num_neighbors))}]"


def _refuse_unknown(num_neighbors: Mapping[str, Sequence[int]], types: GraphTypes) -> None:
    """Refuse names of no relation."""
    names = {name for _, name, _ in types.relations}
    known = names | {".".join(relation) for relation in types.relations}
    for name in num_neighbors:
        if name != DEFAULT and name not in known:
            raise ValueError(
                f"num_neighbors={show(num_neighbors)}: there is no relation {name}"
                f"{suggest_name(name, sorted(known)) or '; there are ' + ', '.join(sorted(names)[:20])}"
            )
