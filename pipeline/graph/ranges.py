"""Checks of numbers from files that are places in other arrays: compiled functions would read outside of these."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from parallel_epochs.pipeline.names import PAIRS
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.words import count

# Numbers that are checked at a time.
CHECKED = 1 << 26
# Stands for a bound that only another file knows.
UNBOUNDED = 2**63
# Arrays of names of nodes, of their labels and of relations; of each, NAME_ptr says where the names begin.
NAMES = ("names", "label_names", "relation_names")
# The arrays of a graph whose numbers are places in other arrays, and those that bound the numbers.
GRAPH_ARRAYS = (
    "edges",
    "indptr",
    "ptr",
    "by_source",
    "n_id",
    *PAIRS,
    *NAMES,
    *(f"{name}_ptr" for name in NAMES),
)


def check_graph(path: Path, packed: Mapping) -> None:
    """Check a graph or triples, as :func:`pipeline.data.graph.pack` takes them apart.

    Args:
        path: the store or the file that they were read from.

    Raises:
        DamagedFile: names the array and the number.
    """
    num_nodes = packed.get("num_nodes")
    if "edges" in packed:
        num_nodes = check_edges(path, packed)
    for name in NAMES:
        if name in packed:
            check_ends(path, f"{name}_ptr", packed.get(f"{name}_ptr"), len(packed[name]), "bytes")
    if "triples" in packed:
        triples = _integers(path, "triples", packed["triples"], 2)
        check_ends(path, "triple_ptr", packed.get("triple_ptr"), len(triples), "triples")
        check_numbers(path, "triples", triples[:, ::2], cast(int, num_nodes), "node")
        check_numbers(path, "triples", triples[:, 1], packed["num_relations"], "relation")


def check_edges(path: Path, packed: Mapping) -> int:
    """Check the edges of a graph, and what else has numbers of its nodes and edges; return the number of nodes."""
    edges = _integers(path, "edges", packed["edges"], 2)
    indptr = _integers(path, "indptr", packed.get("indptr"))
    if edges.size(0) != 2 or not len(indptr):
        raise _damage(
            path,
            "edges",
            "edges must have the shape [2, num_edges], not "
            f"{list(edges.shape)}, and indptr [num_nodes + 1], not {list(indptr.shape)}",
        )
    num_nodes, num_edges = len(indptr) - 1, edges.size(1)
    check_ends(path, "indptr", indptr, num_edges, "edges")
    check_numbers(path, "edges", edges, num_nodes, "node")
    if "ptr" in packed:  # of many graphs in one
        check_ends(path, "ptr", packed["ptr"], num_nodes, "nodes")
    for name, num, bound, one in (
        ("by_source", num_edges, num_edges, "edge"),
        ("n_id", num_nodes, UNBOUNDED, "node"),  # the numbers that the nodes have in a larger graph
    ):
        if name in packed:
            if len(_integers(path, name, packed[name])) != num:
                raise _damage(
                    path, name, f"it has {len(packed[name]):,} numbers for {num:,} {one}s"
                )
            check_numbers(path, name, packed[name], bound, one)
    for name in PAIRS:
        if name in packed:
            check_numbers(path, name, packed[name], num_nodes, "node")
    return num_nodes


def check_ends(path: Path, name: str, ptr: object, end: int, what: str) -> None:
    """Refuse ends of ranges that do not go from 0 to their number without falling."""
    ptr = _integers(path, name, ptr)
    if not len(ptr) or int(ptr[0]) or int(ptr[-1]) != end:
        found = f"goes from {int(ptr[0]):,} to {int(ptr[-1]):,}" if len(ptr) else "is empty"
        raise _damage(path, name, f"it {found}, but there are {end:,} {what}")
    for first in range(0, len(ptr) - 1, CHECKED):
        if bool((ptr[first : first + CHECKED + 1].diff() < 0).any()):
            raise _damage(path, name, "its numbers must not decrease")
        pulse.renew()


def check_numbers(path: Path, name: str, values: Tensor, num: int, one: str) -> None:
    """Refuse numbers of nodes, edges or others that there are not."""
    for part in _integers(path, name, values, values.dim()).reshape(-1).split(CHECKED):
        low, high = (int(bound) for bound in torch.aminmax(part)) if part.numel() else (0, -1)
        if low < 0 or high >= num:
            bounds = "from 0 on" if num == UNBOUNDED else f"0 to {num - 1:,}"
            found = f"it names {one} {low if low < 0 else high:,}"
            raise _damage(path, name, f"{found}, the graph has {one}s {bounds}")
        pulse.renew()


def check_order(path: Path, name: str, values: Tensor, num: int, one: str) -> None:
    """Refuse anything but an order of all nodes or edges."""
    check_numbers(path, name, values, num, one)
    seen = torch.zeros(num, dtype=torch.bool)
    seen[values.reshape(-1).long()] = True
    if values.shape != seen.shape or not bool(seen.all()):
        raise _damage(path, name, f"it must hold the number of each {one} once")


def name_in(path: Path, name: str) -> str:
    """Name an array: its file in a store, or its key in a file."""
    return str(path / f"{name}.bin") if path.is_dir() else f"{path}: {name}"


def _damage(path: Path, name: str, text: str) -> DamagedFile:
    return DamagedFile(f"{name_in(path, name)} is damaged: {text}")


def _integers(path: Path, name: str, values: object, dim: int = 1) -> Tensor:
    """Return the values of an array, or refuse what does not hold integers or has another number of dimensions."""
    if isinstance(values, Tensor):
        if values.dim() == dim and values.dtype in (torch.int32, torch.int64):
            return values
        found = f"{values.dtype} of the shape {list(values.shape)}"
    else:
        found = "nothing"
    dimensions = count(dim, "dimension")
    raise _damage(path, name, f"it must hold int32 or int64 in {dimensions}, not {found}")
