"""KaMinPar: cuts graphs that METIS cannot hold, in a process of its own, which may fail without this one."""

import contextlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch_geometric import EdgeIndex

from pipeline.graph.cut import cut_graph, find_links
from pipeline.graph.partition import Partition
from pipeline.run import files
from pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
# Run without the folder of whoever started this (-P): something there may have the name of a module.
PROCESS = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.graph import kaminpar_process as process; " \
          "process.main()"
# Of how the graph is written and which of KaMinPar's presets cuts it; see kaminpar_process.py.
FORMAT_VERSION = 1
# Edges that are written at a time.
BLOCK = 2**22
# What ParHIP's header says of graphs without weights: 64-bit offsets, and nodes of 64 bits or of 32.
NO_WEIGHTS, NODES_OF_32_BITS = 3, 8
HEADER_BYTES = 24


def check_package() -> None:
    """Refuse to cut with KaMinPar where it is not installed.

    Raises:
        ValueError: says how to install it.
    """
    if importlib.util.find_spec("kaminpar") is None:
        raise ValueError("partition=kaminpar and kaminpar_random cut with KaMinPar, which is not installed: "
                         "pip install -e .[kaminpar]")


def cut_with_kaminpar(edge_index: EdgeIndex, num_parts: int, seed: int, cache: Path | None = None) -> Partition:
    """Cut an undirected graph into clusters of about equal size, few edges between them, none of them empty.

    One thread cuts: equal graphs, seeds and versions give equal cuts, and two threads would not.

    Args:
        edge_index: edges sorted by destination; self-loops and duplicates are left out of what KaMinPar sees.
        seed: any non-negative integer; different seeds give different partitions.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and KaMinPar's
            version; the graph is written there too while it is cut.

    Raises:
        ValueError: KaMinPar is not installed.
        ChildProcessError: its process was killed, or ended with an error.
        FileError: there is no space for the graph.
    """
    check_package()
    folder = Path(tempfile.gettempdir()) if cache is None else cache

    def run(edge_index: EdgeIndex, num_parts: int, seed: int) -> np.ndarray:
        # Files without a name: however this process ends, nothing is left of them.
        with contextlib.ExitStack() as stack:
            with files.naming(folder / "graph", "written"):
                graph, parts = (stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(2))
                write_parhip(edge_index, graph)
            peak = run_process(graph, parts, num_parts, seed)
            log.info("KaMinPar: at most %s in its process", format_bytes(peak))
            return np.frombuffer(parts.read(), np.int32).astype(np.int64)

    return cut_graph(edge_index, num_parts, seed, cache, run, title="KaMinPar",
                     version=f"{metadata.version('kaminpar')}-{FORMAT_VERSION}")


def write_parhip(edge_index: EdgeIndex, file: BinaryIO) -> None:
    """Write an undirected graph as ParHIP's binary format, without self-loops and duplicates, a block at a time.

    Args:
        edge_index: edges sorted by destination, then source.
    """
    src, dst = edge_index.as_tensor().numpy()
    num_nodes, blocks = edge_index.get_sparse_size(1), range(0, len(src), BLOCK)
    node_type, flags = ((np.uint32, NO_WEIGHTS | NODES_OF_32_BITS) if num_nodes < 2**31 else (np.uint64, NO_WEIGHTS))

    def links(first: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the links of a block; the edge before it tells whether its first one is a duplicate."""
        before = min(first, 1)
        ends = src[first - before:first + BLOCK], dst[first - before:first + BLOCK]
        kept = find_links(*ends)
        kept[:before] = False
        return ends[0][kept], ends[1][kept]

    offsets = np.zeros(num_nodes + 1, np.int64)
    for first in blocks:
        np.add.at(offsets, links(first)[1] + 1, 1)
    np.cumsum(offsets, out=offsets)
    file.write(np.array([flags, num_nodes, offsets[-1]], np.uint64).tobytes())
    offsets *= node_type().itemsize
    offsets += HEADER_BYTES + offsets.nbytes
    file.write(offsets.data)
    for first in blocks:
        file.write(links(first)[0].astype(node_type).data)
    file.flush()


def run_process(graph: BinaryIO, parts: BinaryIO, num_parts: int, seed: int) -> int:
    """Cut a graph in a process of its own, which ends when this one does.

    Args:
        graph: in ParHIP's format.
        parts: empty; the cluster of each node is written to it, int32.

    Returns:
        The most memory that the process had, in bytes.

    Raises:
        ChildProcessError: it was killed, or ended with an error.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            # Signals interrupt this thread, perhaps before it knew of a process that it had started: another starts it.
            status, output, errors = pool.submit(_run, [graph.fileno(), parts.fileno()], num_parts, seed,
                                                 stopped).result()
        finally:
            stopped.set()
    mend = "Try again, or set partition=random"
    if status < 0:
        name = signal.Signals(-status).name
        memory = ": the machine had no memory left, perhaps" if name == "SIGKILL" else ""
        raise ChildProcessError(f"the process of KaMinPar was ended by {name}{memory}. {mend}")
    if status:
        lines = errors.strip().splitlines() or [f"exit status {status}"]
        raise ChildProcessError(f"KaMinPar failed: {lines[-1]}. {mend}")
    parts.seek(0)
    return int(output.split()[-1])


def _run(descriptors: list[int], num_parts: int, seed: int, stopped: threading.Event) -> tuple[int, str, str]:
    """Wait for the end of a process, and end it if asked to; return its status and what it said."""
    arguments = map(str, [*descriptors, num_parts, seed % 2**31, os.getpid()])
    process = subprocess.Popen([sys.executable, "-P", "-c", PROCESS, *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", pass_fds=descriptors,
                               start_new_session=True)  # Ctrl-C ends it through this process
    while True:
        try:
            output, errors = process.communicate(timeout=0.1)
            return process.returncode, output, errors
        except subprocess.TimeoutExpired:
            if stopped.is_set():
                process.kill()
