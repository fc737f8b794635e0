"""The digest of the files that a dataset is read from. It is part of the dataset's name in the cache."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from parallel_epochs.pipeline.run import files

# :func:`sample_file` reads only some blocks of files above so many bytes: to read all of one would take minutes.
HASHED_WHOLLY = 1 << 30
HASHED_BLOCK, NUM_HASHED_BLOCKS = 1 << 20, 64


def hash_file(path: Path) -> str:
    """Compute BLAKE2b of the content of a file.

    Raises:
        FileError: it cannot be read.
    """
    with files.open_file(path) as file:
        return files.file_digest(file)


def sample_file(path: Path) -> str:
    """Compute BLAKE2b of a file's content. Above 1 GiB, hash its size, its modification time and 64 MiB spread over it.

    Raises:
        FileError: it cannot be read.
    """
    with files.open_file(path) as file:
        found = path.stat()
        if found.st_size <= HASHED_WHOLLY:
            return files.file_digest(file)
        blake = hashlib.blake2b(f"{found.st_size} {found.st_mtime_ns}".encode(), digest_size=16)
        for number in range(NUM_HASHED_BLOCKS):
            file.seek((found.st_size - HASHED_BLOCK) * number // (NUM_HASHED_BLOCKS - 1))
            blake.update(file.read(HASHED_BLOCK))
    return blake.hexdigest()


def hash_parts(
    parts: Iterable[str | Path],
    *,
    algorithm: Callable = hashlib.sha256,
    digest: Callable[[Path], str] = hash_file,
) -> str:
    """Compute a digest of texts and files in their order: a text counts as it stands, a file by its digest."""
    out = algorithm()
    for part in parts:
        out.update((digest(part) if isinstance(part, Path) else part).encode())
    return out.hexdigest()


def label(labelled: Iterable[tuple[str, Path]], end: str = ";") -> Iterator[str | Path]:
    """Put its label before each file, for :func:`hash_parts`."""
    for text, path in labelled:
        yield from (f"{text}:", path, end)


def hash_named(paths: Iterable[Path]) -> str:
    """Compute a digest of the names and the content of some files."""
    return hash_parts(
        label(((path.name, path) for path in paths), end=""),
        algorithm=partial(hashlib.blake2b, digest_size=16),
    )
