"""Puts the files that rows of ``scripts.bench gpu`` read into a folder: those at hand, else generated ones as large."""

import argparse
import shutil
from pathlib import Path

import numpy as np


def write_triples(folder: Path, given: Path, scale: float) -> None:
    """Write a folder of triples: 14,541 entities, 237 relations and 272,115 / 17,535 / 20,466 triples."""
    if (given / "FB15k-237.tar.gz").exists():
        shutil.unpack_archive(given / "FB15k-237.tar.gz", folder / "triples", filter="data")
        return
    rng = np.random.default_rng(0)
    (folder / "triples").mkdir()
    for split, count in (("train", 272_115), ("valid", 17_535), ("test", 20_466)):
        head, relation, noise = (
            rng.random((3, int(count * scale))) ** 2 * [[14_541 * scale], [237], [5]]
        ).astype(int)
        tail = (7 * head + 31 * relation + noise) % int(14_541 * scale)
        np.savetxt(
            folder / "triples" / f"{split}.txt", np.stack([head, relation, tail], 1), "%d", "\t"
        )


def write_points(folder: Path, given: Path, scale: float) -> None:
    """Write points.npy: 100,000 points of 50 numbers in a hundred clouds."""
    rng, num_points = np.random.default_rng(0), int(100_000 * scale)
    clouds = 8 * rng.standard_normal((100, 50), np.float32)
    np.save(
        folder / "points.npy",
        clouds[rng.integers(100, size=num_points)]
        + rng.standard_normal((num_points, 50), np.float32),
    )


WRITERS = {
    "triples": write_triples,
    "points": write_points,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="+", choices=WRITERS)
    parser.add_argument(
        "--given", type=Path, default=Path("none"), help="folder of the files at hand"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of what is generated")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.what:
        WRITERS[name](options.folder, options.given, options.scale)
