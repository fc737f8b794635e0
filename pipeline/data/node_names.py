"""Names of nodes, entities and relations: numbers for them, and tensors that hold them."""

import difflib
from collections.abc import Collection

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.run.errors import DamagedFile

# Among more names nobody waits for one that looks alike.
MANY_NAMES = 200_000


def suggest_name(name: str, known: Collection[str]) -> str:
    """Ask in an error about a name that is not known whether one that looks alike was meant; "" if none does."""
    near = difflib.get_close_matches(name, known, n=1) if len(known) <= MANY_NAMES else []
    return f"; did you mean {near[0]}?" if near else ""


def number_names(names: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Number names in their order, as numbers where all of them are; returns the numbers and the different names."""
    numbers, different = pd.factorize(names, sort=False)
    values = pd.to_numeric(pd.Series(different), errors="coerce")
    order = np.argsort(
        values.to_numpy() if values.notna().all() else np.asarray(different).astype(str),
        kind="stable",
    )
    place = np.empty(len(different), np.int64)
    place[order] = np.arange(len(different))
    return place[numbers], np.asarray(different)[order]


def refuse_rounded(origin: str, ids: pd.Series) -> None:
    """Refuse ids that became floating point numbers beyond 2^53, where they may have been rounded to others.

    Raises:
        ValueError: names the first of them.
    """
    if pd.api.types.is_float_dtype(ids) and (wrong := ids.abs() >= 2**53).any():
        raise ValueError(
            f"{origin}: the id {ids[wrong].iloc[0]:.0f} is a floating point number beyond 2^53, and may have "
            "been rounded to another id, perhaps as one id is missing: save ids as whole numbers or texts"
        )


def pack_names(names: np.ndarray, key: str = "names") -> dict[str, Tensor]:
    """Turn names into tensors, which a memory-mapped file can hold.

    Returns:
        Under `key`, their bytes in UTF-8 one behind the other, uint8; with ``_ptr`` behind it, where each begins
        [num_names + 1].
    """
    encoded = [str(name).encode() for name in names]
    ptr = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return {
        key: torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
        f"{key}_ptr": torch.from_numpy(ptr),
    }


def check_names(names: Tensor, ptr: Tensor, num_nodes: int) -> None:
    """Refuse tensors that are no names, or those of another number of nodes; see :func:`pack_names`.

    Raises:
        ValueError: they are none.
    """
    fits = (
        names.dtype == torch.uint8
        and ptr.dtype == torch.int64
        and names.dim() == ptr.dim() == 1
        and len(ptr) == num_nodes + 1
        and int(ptr[0]) == 0
        and int(ptr[-1]) == len(names)
        and bool((ptr.diff() >= 0).all())
    )
    try:
        different = len(set(unpack_names(Data(names=names, names_ptr=ptr)))) if fits else 0
    except UnicodeDecodeError:
        different = 0
    if different < num_nodes:
        raise ValueError(
            f"names and names_ptr are not {num_nodes:,} different names in UTF-8: leave them out"
        )


def unpack_names(data: Data, key: str = "names") -> list[str]:
    """Return the names of the nodes; their numbers where they have none.

    Raises:
        DamagedFile: they are not what :func:`pack_names` returned.
    """
    if key not in data:
        return [str(node) for node in range(data.num_nodes)]
    try:
        content, ptr = data[key].numpy().tobytes(), data[f"{key}_ptr"].tolist()
        return [content[first:end].decode() for first, end in zip(ptr[:-1], ptr[1:], strict=True)]
    except (LookupError, TypeError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{key} of the data are damaged: they hold no names ({error})") from None
