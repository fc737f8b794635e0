"""Vectors that a run has trained: their metrics, files in the formats of the field, nearest nodes, scores of pairs."""

import io
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from models.embedding.spectral import unit_rows
from pipeline import build, config as configuration, folder as run_folder, keys
from pipeline.config import EvaluateConfig
from pipeline.data.node_names import unpack_names
from pipeline.graph.pairs import check_pairs
from pipeline.predictions import check_parquet
from pipeline.probe import compare_pairs
from pipeline.run import checkpoint, files
from pipeline.run.log import format_score, format_table
from pipeline.run.session import check_data
from pipeline.trainers.blocks import BlockTrainer

log = logging.getLogger(__name__)

# Keys that only a knowledge graph has a use for, and those of what `predict` saves.
QUESTIONS = ("triples", "top", "filtered")
WANTED = ("pairs", "neighbors", *QUESTIONS)
# Products of vectors that are looked at a time.
MAX_PRODUCTS = 2**26


def restore(options: EvaluateConfig) -> tuple[BlockTrainer, Tensor, list[str], int]:
    """Load the vectors of a checkpoint.

    Returns:
        The trainer, which scores them; the vectors [num_nodes, dim]; the names of the nodes; the epoch.

    Raises:
        ValueError: no such run or checkpoint, a damaged checkpoint, or another dataset.
    """
    keys.check(options)
    folder = Path(options.run)
    config = configuration.load(folder / "config.yaml")
    if config.trainer.name == "layout" and (options.neighbors or options.pairs is not None):
        given = f"neighbors={options.neighbors}" if options.neighbors else f"pairs={options.pairs}"
        raise ValueError(f"{given}: {folder} holds a layout, whose places have no angles to compare; leave it out, and "
                         "measure distances between the places that are saved")
    refuse_unused(options)
    refuse(options, QUESTIONS, "learned no triples")
    state = run_folder.load_checkpoint(folder, config, options.checkpoint)
    data = build.open_graph(config).data
    check_data(folder, state, data.get("content_hash"))
    trainer = cast(BlockTrainer, build.build_trainer(config, data, torch.device("cpu")))
    if options.checkpoint == "best":
        return trainer, state["model"]["embedding"].clone(), unpack_names(data), state["epoch"]
    trainer.load(state)
    return trainer, trainer.embedding(), unpack_names(data), trainer.progress.epochs


def evaluate(options: EvaluateConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's vectors, and save them if asked to.

    Raises:
        ValueError: see :func:`restore`; a format that is unknown or not installed, keys of `predict`.
    """
    check_evaluation(options)
    trainer, vectors, names, epoch = restore(options)
    with trainer:
        scores = trainer.score(vectors.numpy())
    title = f"{options.checkpoint} checkpoint of {Path(options.run)}, epoch {epoch}"
    rows = [(name if "@" in name else f"{name} {trainer.metric}", format_score(score))
            for name, score in scores.items()]
    log.info("%s", format_table(rows, title))
    if options.predictions is not None:
        save(Path(options.predictions), vectors, names)
    return scores


def predict(options: EvaluateConfig) -> None:
    """Save vectors, the nearest nodes of each, or the scores of pairs.

    Raises:
        ValueError: see :func:`restore`; pairs that name no nodes, a format that is unknown or not installed.
    """
    pairs = check_wanted(options)
    trainer, vectors, names, _ = restore(options)
    trainer.__exit__()
    if not save_cosines(options, pairs, vectors, names):
        save(Path(options.predictions), vectors, names)


def refuse(options: EvaluateConfig, names: Iterable[str], reason: str) -> None:
    """Refuse keys that do nothing for a run.

    Args:
        reason: what the run did that makes them useless.

    Raises:
        ValueError: names the first that has been given.
    """
    for name in names:
        if (value := getattr(options, name)) != getattr(EvaluateConfig, name):
            raise ValueError(f"{name}={value}: {options.run} {reason}; leave it out")


def refuse_unused(options: EvaluateConfig) -> None:
    """Refuse what has no meaning for vectors.

    Raises:
        ValueError: names the key.
    """
    refuse(options, ("method", "num_views", "num_parts", "num_neighbors"),
           "learned vectors, which no evaluation predicts")
    if options.device != "cpu":
        refuse(options, ("device",), "learned vectors, which are read on the CPU")


def check_evaluation(options: EvaluateConfig) -> None:
    """Refuse what `predict` alone looks at, and vectors in a format that nothing writes.

    Raises:
        ValueError: names the key.
    """
    refuse(options, WANTED, "is evaluated, and `python -m pipeline.predict` alone looks at it")
    if options.predictions is not None:
        writer_of(Path(options.predictions))


def check_wanted(options: EvaluateConfig) -> Tensor | None:
    """Check what shall be saved, before any long work; returns the pairs whose cosines are asked for.

    Raises:
        ValueError: names the keys.
    """
    wanted = {name: value for name in ("pairs", "neighbors", "triples") if (value := getattr(options, name))}
    if len(wanted) > 1:
        raise ValueError(f"{' and '.join(f'{name}={value}' for name, value in wanted.items())}: give one of them")
    if options.pairs is not None:
        return read_pairs(Path(options.pairs))
    if not wanted:
        writer_of(Path(options.predictions))
    return None


def save_cosines(options: EvaluateConfig, pairs: Tensor | None, vectors: Tensor, names: list[str]) -> bool:
    """Save the cosines of pairs or the nearest nodes of each, where they are asked for; returns whether.

    Raises:
        ValueError: pairs that name no nodes.
    """
    path = Path(options.predictions)
    if pairs is not None:
        check_pairs(pairs, len(names))
        scores = torch.from_numpy(compare_pairs(vectors.numpy(), pairs.numpy()))
        files.write_atomically(path, lambda file: torch.save({"pairs": pairs, "logits": scores}, file))
        log.info("cosines of %s pairs in %s", f"{len(pairs):,}", path)
    elif options.neighbors:
        nearest, cosines = find_nearest(vectors, options.neighbors)
        files.write_atomically(path, lambda file: torch.save(
            {"neighbors": nearest, "logits": cosines, "names": names}, file))
        log.info("%d nearest of each of %s nodes in %s", nearest.size(1), f"{len(names):,}", path)
    return pairs is not None or options.neighbors > 0


def find_nearest(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the nodes whose vectors have the largest cosines with each.

    Args:
        vectors: [num_nodes, dim].

    Returns:
        Their numbers, the nearest first [num_nodes, count], and the cosines; of fewer other nodes as many as there
        are.
    """
    unit, count = torch.from_numpy(unit_rows(vectors.numpy())), min(count, len(vectors) - 1)
    numbers = torch.empty(len(unit), count, dtype=torch.int64)
    cosines = torch.empty(len(unit), count)
    size = max(1, MAX_PRODUCTS // len(unit))
    for first in range(0, len(unit), size):
        products = unit[first:first + size] @ unit.T
        own = torch.arange(len(products))
        products[own, first + own] = -torch.inf
        cosines[first:first + size], numbers[first:first + size] = products.topk(count)
    return numbers, cosines


def save(path: Path, vectors: Tensor, names: list[str]) -> None:
    """Save vectors in the format that the name of the file ends with.

    Raises:
        ValueError: see :func:`writer_of`.
    """
    write = writer_of(path)
    files.write_atomically(path, lambda file: write(file, vectors, names))
    log.info("%s vectors of %d numbers in %s", f"{len(vectors):,}", vectors.size(1), path)


def writer_of(path: Path) -> Callable[[IO[bytes], Tensor, list[str]], None]:
    """Choose what writes vectors to a file.

    Raises:
        ValueError: see :func:`check_format`.
    """
    check_format(path, "vectors", WRITERS)
    return WRITERS[path.suffix]


def check_format(path: Path, what: str, formats: Iterable[str]) -> None:
    """Check that a file can be written in the format that its name ends with.

    Raises:
        ValueError: it is none of the formats, or what writes it is not installed.
    """
    if path.suffix not in formats:
        raise ValueError(f"predictions={path}: {what} are saved as one of {', '.join(formats)}")
    if path.suffix == ".parquet":
        check_parquet("predictions", path)


def _write_tensors(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    torch.save({"embedding": vectors, "names": names}, file)


def _write_numpy(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    np.save(file, vectors.numpy())


def _write_parquet(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    columns = {"id": names, **{f"v{number}": column for number, column in enumerate(vectors.numpy().T)}}
    file.write(pd.DataFrame(columns).to_parquet(index=False))  # pandas would close the file


def _write_word2vec(file: IO[bytes], vectors: Tensor, names: list[str]) -> None:
    """Write a line of sizes, and a line a node: its name, blanks in it as underscores, and its numbers."""
    file.write(f"{vectors.size(0)} {vectors.size(1)}\n".encode())
    for name, row in zip(names, vectors.tolist(), strict=True):
        file.write(f"{'_'.join(name.split())} {' '.join(f'{value:.6g}' for value in row)}\n".encode())


# By the end of the file's name.
WRITERS: dict[str, Callable[[IO[bytes], Tensor, list[str]], None]] = {
    ".pt": _write_tensors, ".npy": _write_numpy, ".parquet": _write_parquet, ".txt": _write_word2vec}


def read_pairs(path: Path) -> Tensor:
    """Read a tensor that torch.save wrote.

    Raises:
        ValueError: there is none.
    """
    if not path.is_file():
        raise ValueError(f"pairs={path} does not exist; save a tensor of shape [num_pairs, 2] there with torch.save")
    try:
        pairs = torch.load(io.BytesIO(files.read_bytes(path)), weights_only=True)
    except checkpoint.UNREADABLE as error:
        raise ValueError(f"pairs={path} is no tensor that torch.save wrote ({type(error).__name__})") from error
    if not isinstance(pairs, Tensor):
        raise ValueError(f"pairs={path} holds a {type(pairs).__name__}, not a tensor of shape [num_pairs, 2]")
    return pairs
