"""Generates the triples that rows of ``scripts.bench gpu`` read, as many as FB15k-237's."""

import sys
from pathlib import Path

import numpy as np


def write_triples(folder: Path, scale: float) -> None:
    """Write a folder of triples: 14,541 entities, 237 relations and 272,115 / 17,535 / 20,466 triples."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split, count in (("train", 272_115), ("valid", 17_535), ("test", 20_466)):
        head, relation, noise = (
            rng.random((3, int(count * scale))) ** 2 * [[14_541 * scale], [237], [5]]
        ).astype(int)
        tail = (7 * head + 31 * relation + noise) % int(14_541 * scale)
        np.savetxt(folder / f"{split}.txt", np.stack([head, relation, tail], 1), "%d", "\t")


if __name__ == "__main__":
    folder, scale = Path(sys.argv[1]), float([*sys.argv, "1"][2])
    write_triples(folder / "triples", scale)
