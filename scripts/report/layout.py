"""The layout that a finished run has written: positions, names and classes of its points."""

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_epochs.pipeline.run import files

NAME = "layout.npz"
PARTS = {
    "position": ("f", 2, "real numbers [num_points, 2 or 3]"),
    "names": ("U", 1, "text [num_points]"),
    "labels": ("iu", 1, "whole numbers [num_points]"),
    "label_names": ("U", 1, "text [num_labels]"),
    "title": ("U", 0, "one text"),
}
AGAIN = "Continue the run, which writes the file again when it ends"
# The first view of a layout in three dimensions is from the right and from above. The rows are the directions to the
# right, up, and towards the reader.
_RIGHT, _ABOVE = 0.6, 0.35
TURN = np.array(
    [
        [np.cos(_RIGHT), 0, -np.sin(_RIGHT)],
        [-np.sin(_RIGHT) * np.sin(_ABOVE), np.cos(_ABOVE), -np.cos(_RIGHT) * np.sin(_ABOVE)],
        [np.sin(_RIGHT) * np.cos(_ABOVE), np.sin(_ABOVE), np.cos(_RIGHT) * np.cos(_ABOVE)],
    ]
)


@dataclass(frozen=True)
class Layout:
    """Points in two or three dimensions.

    Attributes:
        position: float64 [num_points, 2 or 3], centred and scaled so that the longest axis goes from -1 to 1.
        names: names of the points.
        labels: int64 [num_points], the class of each point, or -1.
        label_names: names of the classes.
        title: title of the layout.
    """

    position: np.ndarray
    names: list[str]
    labels: np.ndarray
    label_names: list[str]
    title: str

    @property
    def dimensions(self) -> int:
        return self.position.shape[1]

    def counts(self) -> np.ndarray:
        """Return the number of points of each class, int64 [num_labels]."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.label_names))

    def flat(self) -> np.ndarray:
        """Return the points in the first view, float64 [num_points, 2 or 3]: right, up and towards the reader."""
        return self.position @ TURN.T if self.dimensions == 3 else self.position

    def brush(self, width: float, height: float) -> tuple[float, float]:
        """Return the radius of points in units of 1/72 inch, and how opaque they are: the denser they lie, the less.

        Args:
            width, height: size of the picture in inches.
        """
        cells = np.floor((self.flat()[:, :2] + 2) * 100).astype(np.int64)
        _, numbers = np.unique(cells[:, 0] * 1000 + cells[:, 1], return_counts=True)
        crowding = float((numbers.astype(np.float64) ** 2).sum() / numbers.sum())
        radius = min(
            max(math.sqrt(0.22 * 72**2 * width * height / (math.pi * len(self.names))), 0.5), 4.0
        )
        covered = (
            (crowding - 1) * math.pi * (radius + 0.2) ** 2 / (72 * max(width, height) / 200) ** 2
        )
        return radius, min(max((covered or 1) ** -0.3, 0.35), 0.92)


def read_layout(folder: Path) -> Layout:
    """Read the layout of a run directory.

    Raises:
        ValueError: there is no layout, or its file is damaged or of another kind.
        FileError: the file cannot be read.
    """
    path = folder / NAME
    if not files.is_there(path):
        raise ValueError(
            f"{path} does not exist. A run of trainer=layout writes it when it ends: continue the run"
        )
    parts = _read_parts(path)
    for name, (kind, dimensions, expected) in PARTS.items():
        part = parts[name]
        if part.dtype.kind not in kind or part.ndim != dimensions:
            raise ValueError(
                f"{path}: {name} is {part.dtype} {list(part.shape)}, not {expected}. {AGAIN}"
            )
    position, num_points = parts["position"].astype(np.float64), len(parts["position"])
    if position.shape[1] not in (2, 3) or not num_points:
        raise ValueError(
            f"{path}: position is {list(position.shape)}, but must be [num_points, 2 or 3] with at least "
            f"one point. {AGAIN}"
        )
    for name in ("names", "labels"):
        if len(parts[name]) != num_points:
            raise ValueError(
                f"{path} has {len(parts[name]):,} {name} for {num_points:,} positions. {AGAIN}"
            )
    names, label_names = _texts(parts["names"]), _texts(parts["label_names"])
    if lost := np.flatnonzero(~np.isfinite(position).all(1)).tolist():
        raise ValueError(
            f"{path}: {len(lost):,} of {num_points:,} positions are not finite. The first one is "
            f"{position[lost[0]].tolist()} of point {lost[0]:,} ({names[lost[0]]:.80}). The training "
            "diverged: lower train.lr"
        )
    labels = parts["labels"].astype(np.int64)
    if wrong := np.flatnonzero((labels < -1) | (labels >= len(label_names))).tolist():
        raise ValueError(
            f"{path}: {len(wrong):,} labels are neither -1 nor one of {len(label_names):,} label_names. "
            f"The first one is {labels[wrong[0]]} of point {wrong[0]:,}. {AGAIN}"
        )
    low, high = position.min(0), position.max(0)
    half = (high / 2 - low / 2).max() or 1.0
    return Layout(
        (position - (low / 2 + high / 2)) / half,
        names,
        labels,
        label_names,
        _texts(parts["title"])[0],
    )


def _read_parts(path: Path) -> dict[str, np.ndarray]:
    try:
        with files.open_file(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                raise ValueError(
                    "it is truncated"
                    if file.read(2) == b"PK"
                    else "it is not an archive of NumPy arrays"
                )
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            missing = [name for name in PARTS if name not in archive.files]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
            parts = {name: archive[name] for name in PARTS}
            if wrong := [name for name, part in parts.items() if not isinstance(part, np.ndarray)]:
                raise ValueError(f"{', '.join(wrong)} is not a NumPy array")
            return parts
    except (
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        AttributeError,
        SyntaxError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} is damaged or not a layout: {' '.join(str(error).split())}. {AGAIN}"
        ) from None


def _texts(array: np.ndarray) -> list[str]:
    """Return texts that can be encoded as UTF-8; unpaired surrogates become question marks."""
    return [text.encode("utf-8", "replace").decode() for text in array.reshape(-1).tolist()]
