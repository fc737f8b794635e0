"""The walk of every Triton pass over rows and their edges, and the merge of rows that several chunks share.

This is the counterpart of walk.h. Rows and edges are cut together into chunks of equal length: row r is its edges and
one closing item, so that the work of a chunk is bounded whatever the degrees are. A program takes one chunk. It
finishes the rows that lie in its chunk. For a row that begins before or ends after the chunk, it leaves a partial
state, and a second kernel merges these states in their order.

A pass is its functions, and a named tuple `p` of what these read. A kernel gets an :class:`Edges` and such a tuple, made
by :func:`record`, and adds what its program computes first. Triton makes numbers of the constants in a tuple that has a
name of its own, so the longer tuple is made where it is passed.
"""

from collections import namedtuple

import triton
import triton.language as tl

# The sorted edges of a graph, cut into chunks. `ptr` has the first edge of each row [num_rows + 1], `other` the node at
# the other end of each edge, `position` its number in the caller's order (none: in order). Row r has the items
# ptr[r] + r to ptr[r + 1] + r: its edges and a closing item. `cuts` has the first item of each chunk, and the number of
# items; `rows` the first and last row of each chunk [2, num_chunks]; inside of a long row, a cut is at each multiple of
# `chunk_items`. WIDE is tl.int32 or tl.int64, what holds numbers of items. BLOCK_E edges are read at a time.
Edges = namedtuple("Edges", "ptr cuts rows other position chunk_items WIDE BLOCK_E")
# Chunks whose states are merged at a time.
MERGED = tl.constexpr(8)


def record(kind, **fields):
    """Make a named tuple for a kernel. Fields in capitals are constants, for which Triton compiles the kernel."""
    return kind(
        **{name: tl.constexpr(value) if name.isupper() else value for name, value in fields.items()}
    )


@triton.jit
def find_span(edges, row, begin, end):
    """Return a row's first edge within a chunk, the edge after its last one, the row's degree, whether the row begins
    in the chunk, and whether it ends there.
    """
    first, last = (
        tl.load(edges.ptr + row).to(edges.WIDE),
        tl.load(edges.ptr + row + 1).to(edges.WIDE),
    )
    inside_first, inside_last = tl.maximum(first, begin - row), tl.minimum(last, end - row)
    return inside_first, inside_last, last - first, first + row >= begin, last + row + 1 <= end


@triton.jit
def load_edges(edges, block, last):
    """Return the places of a block of edges, their far ends, numbers in the caller's order, and which exist."""
    edge = block + tl.arange(0, edges.BLOCK_E)
    valid = edge < last
    node = tl.load(edges.other + edge, mask=valid, other=0).to(tl.int64)
    number = edge.to(tl.int64)
    if edges.position is not None:
        number = tl.load(edges.position + edge, mask=valid, other=0).to(tl.int64)
    return edge, node, number, valid


@triton.jit
def leave(state, sums):
    """Return the sums over a chunk as they are."""
    return sums


@triton.jit
def walk(
    edges,
    p,
    sums,
    start: tl.constexpr,
    add: tl.constexpr,
    store: tl.constexpr,
    close: tl.constexpr = leave,
):
    """Walk over the rows of this program's chunk.

    Args:
        edges: an :class:`Edges`.
        p: what the functions read.
        sums: a tuple of sums over the whole chunk, such as those of a weight's gradient; perhaps empty.
        start: from ``p, row`` to what the row's edges need of it, and to its state without edges; both are tuples.
        add: from ``p, own, state, sums, edge, node, number, valid``, a block of edges, to the new state and sums.
        store: writes ``p, row, state, degree, True`` of a row that lies in the chunk, and ``p, slot, state, degree,
            False`` of another one. The slot is 2 * chunk if the row began before, 2 * chunk + 1 if it ends later.
        close: from ``state, sums`` at the end of a row to the new sums.

    Returns:
        The sums.
    """
    chunk = tl.program_id(0)
    begin, end = (
        tl.load(edges.cuts + chunk).to(edges.WIDE),
        tl.load(edges.cuts + chunk + 1).to(edges.WIDE),
    )
    for row in range(
        tl.load(edges.rows + chunk), tl.load(edges.rows + tl.num_programs(0) + chunk) + 1
    ):
        first, last, degree, begins, ends = find_span(edges, row, begin, end)
        own, state = start(p, row)
        for block in range(first, last, edges.BLOCK_E):
            edge, node, number, valid = load_edges(edges, block, last)
            state, sums = add(p, own, state, sums, edge, node, number, valid)
        sums = close(state, sums)
        if begins & ends:
            store(p, tl.cast(row, tl.int64), state, degree, True)
        else:
            store(p, (2 * chunk + begins.to(tl.int32)).to(tl.int64), state, degree, False)
    return sums


@triton.jit
def merge(edges, p, start: tl.constexpr, add: tl.constexpr, store: tl.constexpr):
    """Finish the row that begins in this program's chunk and ends in a later one, if there is one.

    Args:
        start, store: as in :func:`walk`.
        add: from ``p, state, slot, is_part`` to the state with those in some slots, of which `is_part` masks those that
            are there.
    """
    chunk = tl.program_id(0)
    begin, end = (
        tl.load(edges.cuts + chunk).to(edges.WIDE),
        tl.load(edges.cuts + chunk + 1).to(edges.WIDE),
    )
    row = tl.load(edges.rows + tl.num_programs(0) + chunk)
    first, _last, degree, begins, ends = find_span(edges, row, begin, end)
    if begins & (ends == 0):
        last_chunk = (first + degree + row) // edges.chunk_items
        _, state = start(p, row)
        # The parts lie in slots 2 * chunk + 1, 2 * (chunk + 1), 2 * (chunk + 2) and so on.
        for block in range(chunk, last_chunk + 1, MERGED):
            part = block + tl.arange(0, MERGED)
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            state = add(p, state, slot, part <= last_chunk)
        store(p, tl.cast(row, tl.int64), state, degree, True)
