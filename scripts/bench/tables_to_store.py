"""Tables to a store: Parquet files of pairs of names with features become a graph on disk, under a memory limit."""

import sys
import tempfile
import time
from pathlib import Path

from pipeline.data import cache
from pipeline.data.tables_config import EdgeColumns, TablesConfig
from pipeline.data.tables_sql import Database
from scripts.bench.measure import say, write_row
from scripts.bench.processes import watch

# Rows of each generated file.
ROWS = 5_000_000


def bench_ingest(num_nodes: int, num_pairs: int, memory_gib: int, threads: int, folder: str) -> None:
    """Generate pairs of string ids with two features, make a store of them in another process, and watch its memory.

    Args:
        memory_gib: data.memory_limit.
        threads: of DuckDB.
        folder: for the tables, the store and what does not fit into memory.

    Raises:
        SystemExit: the store was not made.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name)
        start = time.perf_counter()
        _generate(path, num_nodes, num_pairs)
        table = sum(file.stat().st_size for file in (path / "edges").iterdir())
        say(f"{num_pairs:,} pairs of {num_nodes:,} names in {table / 2**30:.2f} GiB of Parquet, generated in "
            f"{time.perf_counter() - start:.0f} s")
        start, peak = time.perf_counter(), (0, 0)
        command = [sys.executable, "-m", "scripts.bench.tables_to_store", str(path), f"{memory_gib}GiB", str(threads)]
        for held in watch(command, every=0.2):
            peak = max(peak[0], held.pss_kib), max(peak[1], held.anonymous_kib)
        seconds = time.perf_counter() - start
        store, = (path / "cache" / "graphs").glob("*.store")
        size = sum(file.stat().st_size for file in store.iterdir())
        write_row(None, {
            "bench": "ingest", "num_nodes": num_nodes, "num_pairs": num_pairs, "duckdb_threads": threads,
            "seconds": round(seconds, 1), "limit_gib": memory_gib, "resident_gib": round(peak[0] / 2**20, 2),
            "private_gib": round(peak[1] / 2**20, 2), "tables_gib": round(table / 2**30, 2),
            "store_gib": round(size / 2**30, 2)})


def _generate(path: Path, num_nodes: int, num_pairs: int) -> None:
    """Write the files; a node is the more often in them the smaller its number, as the square of a uniform draw."""
    (path / "edges").mkdir()
    with Database(path, "2GB", 0) as db:
        db.execute("SELECT setseed(0.5)")
        for number, first in enumerate(range(0, num_pairs, ROWS)):
            ends = ", ".join(f"'protein:' || lpad(({num_nodes} * random() ** 2)::INTEGER::VARCHAR, 9, '0') AS {end}"
                             for end in ("source", "target"))
            db.execute(f"COPY (SELECT {ends}, random()::FLOAT AS score, random()::FLOAT AS weight FROM "
                       f"range({min(ROWS, num_pairs - first)})) TO '{path / 'edges' / f'{number:04d}.parquet'}'")


def _make_store(folder: str, memory_limit: str, threads: str) -> None:
    config = TablesConfig(folder=folder, edges=EdgeColumns(path="edges", features=["score", "weight"]),
                          memory_limit=memory_limit, threads=int(threads))
    data = cache.load(config, Path(folder, "cache"))
    say(f"{data.num_nodes:,} nodes, {data.num_edges:,} directed edges")


if __name__ == "__main__":
    _make_store(*sys.argv[1:])
