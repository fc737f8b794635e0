"""Import of Parquet files of edges with features into a graph on disk, with a memory limit."""

import sys
import tempfile
import time
from pathlib import Path

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.tables.config import EdgeColumns, TablesConfig
from parallel_epochs.scripts.bench.measure import say, write_row
from parallel_epochs.scripts.bench.processes import peak_of

# Rows of each generated file.
ROWS = 5_000_000


def bench_ingest(
    num_nodes: int = 132_534,
    num_pairs: int = 39_600_000,
    memory_gib: int = 4,
    threads: int = 2,
    folder: str = ".cache",
) -> None:
    """Measure the import of Parquet files of edges, with string ids and two features, under a memory limit.

    Args:
        num_pairs: number of undirected edges.
        memory_gib: value of data.memory_limit in GiB.
        threads: number of threads of DuckDB.
        folder: folder for some GB: the tables, the store and temporary files.

    Raises:
        SystemExit: the import failed.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name)
        start = time.perf_counter()
        _generate(path, num_nodes, num_pairs)
        table = sum(file.stat().st_size for file in (path / "edges").iterdir())
        say(
            f"{num_pairs:,} pairs of {num_nodes:,} names in {table / 2**30:.2f} GiB of Parquet, generated in "
            f"{time.perf_counter() - start:.0f} s"
        )
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "scripts.bench.tables_to_store",
            str(path),
            f"{memory_gib}GiB",
            str(threads),
        ]
        peak = peak_of(command, every=0.2)
        seconds = time.perf_counter() - start
        (store,) = (path / "cache" / "graphs").glob("*.store")
        size = sum(file.stat().st_size for file in store.iterdir())
        write_row(
            {
                "bench": "ingest",
                "num_nodes": num_nodes,
                "num_pairs": num_pairs,
                "duckdb_threads": threads,
                "seconds": round(seconds, 1),
                "limit_gib": memory_gib,
                "resident_gib": round(peak[0] / 2**20, 2),
                "private_gib": round(peak[1] / 2**20, 2),
                "tables_gib": round(table / 2**30, 2),
                "store_gib": round(size / 2**30, 2),
            }
        )


def _generate(path: Path, num_nodes: int, num_pairs: int) -> None:
    """Write files of random edges, in which nodes with small numbers have more edges."""
    from parallel_epochs.pipeline.data.tables.sql import (
        Database,
    )  # imports DuckDB, which may be missing

    (path / "edges").mkdir()
    starts = range(0, num_pairs, ROWS)
    files = [path / "edges" / f"{number:04d}.parquet" for number in range(len(starts))]
    with Database(path, "2GB", 0, files) as db:
        db.execute("SELECT setseed(0.5)")
        for file, first in zip(files, starts):
            ends = ", ".join(
                f"'protein:' || lpad(({num_nodes} * random() ** 2)::INTEGER::VARCHAR, 9, '0') AS {end}"
                for end in ("source", "target")
            )
            db.execute(
                f"COPY (SELECT {ends}, random()::FLOAT AS score, random()::FLOAT AS weight FROM "
                f"range({min(ROWS, num_pairs - first)})) TO '{file.absolute()}'"
            )


def _make_store(folder: str, memory_limit: str, threads: str) -> None:
    config = TablesConfig(
        folder=folder,
        edges=EdgeColumns(path="edges", features=["score", "weight"]),
        memory_limit=memory_limit,
        threads=int(threads),
    )
    data = cache.load(config, Path(folder, "cache"))
    say(f"{data.num_nodes:,} nodes, {data.num_edges:,} directed edges")


if __name__ == "__main__":
    _make_store(*sys.argv[1:])
