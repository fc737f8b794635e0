"""Cuts graphs that are too large for METIS with KaMinPar. A process of its own runs it, and may fail alone."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch_geometric import EdgeIndex

import parallel_epochs
from parallel_epochs.pipeline.graph.cut import cut_graph, find_links
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command

ROOT = Path(parallel_epochs.__file__).resolve().parents[1]
# -P keeps the current folder out of the search path, since a file there may have the name of a module.
PROCESS = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from parallel_epochs.pipeline.graph import kaminpar_process as process; "
    "process.main()"
)
# Version of the way in which the graph is written, and of KaMinPar's preset; see kaminpar_process.py.
FORMAT_VERSION = 1
# Edges that are written at a time.
BLOCK = 2**22
# Flags of ParHIP's header: a graph without weights and with 64-bit offsets, and 32-bit instead of 64-bit nodes.
NO_WEIGHTS, NODES_OF_32_BITS = 3, 8
HEADER_BYTES = 24


def check_package() -> None:
    """Check that KaMinPar is installed.

    Raises:
        ValueError: it is not. The message says how to install it.
    """
    if importlib.util.find_spec("kaminpar") is None:
        raise ValueError(
            "partition=kaminpar and kaminpar_random need KaMinPar, which is not installed: "
            f"{install_command('kaminpar')}"
        )


def cut_with_kaminpar(
    edge_index: EdgeIndex, num_parts: int, seed: int, cache: Path | None = None
) -> Partition:
    """Cut an undirected graph into non-empty clusters of about equal size with few edges between them.

    KaMinPar runs with one thread, so that equal graphs, seeds and versions give equal cuts. With two threads they
    would not.

    Args:
        edge_index: edges sorted by destination. KaMinPar does not see self-loops and duplicates.
        seed: any non-negative integer. Different seeds give different partitions.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and KaMinPar's
            version. The graph is written there too while it is cut.

    Raises:
        ValueError: KaMinPar is not installed.
        ChildProcessError: its process was killed, or ended with an error.
        FileError: the disk has not enough space for the graph.
    """
    check_package()
    folder = Path(tempfile.gettempdir()) if cache is None else cache

    def run(edge_index: EdgeIndex, num_parts: int, seed: int) -> np.ndarray:
        # The system deletes files without a name, however this process ends.
        with contextlib.ExitStack() as stack:
            with files.naming(folder / "graph", "written"):
                graph, parts = (
                    stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(2)
                )
                write_parhip(edge_index, graph)
            run_process(graph, parts, num_parts, seed)
            return np.frombuffer(parts.read(), np.int32).astype(np.int64)

    return cut_graph(
        edge_index,
        num_parts,
        seed,
        cache,
        run,
        title="KaMinPar",
        version=f"{metadata.version('kaminpar')}-{FORMAT_VERSION}",
    )


def write_parhip(edge_index: EdgeIndex, file: BinaryIO) -> None:
    """Write an undirected graph in ParHIP's binary format, without self-loops and duplicates, block by block.

    Args:
        edge_index: edges sorted by destination, then source.
    """
    src, dst = edge_index.as_tensor().numpy()
    num_nodes, blocks = edge_index.get_sparse_size(1), range(0, len(src), BLOCK)
    node_type, flags = (
        (np.uint32, NO_WEIGHTS | NODES_OF_32_BITS) if num_nodes < 2**31 else (np.uint64, NO_WEIGHTS)
    )

    def links(first: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the links of a block. The edge before the block tells whether its first edge is a duplicate."""
        before = min(first, 1)
        ends = src[first - before : first + BLOCK], dst[first - before : first + BLOCK]
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


def run_process(graph: BinaryIO, parts: BinaryIO, num_parts: int, seed: int) -> None:
    """Cut a graph in a process of its own, which ends together with this one.

    Args:
        graph: in ParHIP's format.
        parts: empty; the cluster of each node is written to it, int32.

    Raises:
        ChildProcessError: the process was killed, ended with an error, or ended without a result.
    """
    descriptors = [graph.fileno(), parts.fileno()]
    arguments = map(str, [*descriptors, num_parts, seed % 2**31, os.getpid()])
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROCESS, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        pass_fds=descriptors,
        start_new_session=True,
    )  # Ctrl-C ends it through this process
    parts.seek(0)
    if not done.returncode and os.fstat(parts.fileno()).st_size:
        return
    lines = done.stderr.strip().splitlines() or ["it wrote nothing"]
    reason = (
        lines[-1] if done.returncode >= 0 else f"killed by {signal.Signals(-done.returncode).name}"
    )
    memory = ", perhaps for lack of memory" if done.returncode == -signal.SIGKILL else ""
    raise ChildProcessError(
        f"KaMinPar's process failed: {reason}{memory}. Try again, or set partition=random"
    )
