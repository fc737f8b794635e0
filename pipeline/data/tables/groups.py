"""Groups of nodes with many edges among themselves. DuckDB holds the edges, which may exceed memory."""

import numpy as np
import pyarrow as pa

from parallel_epochs.models.kernels.hash import mix
from parallel_epochs.pipeline.data.tables.sql import Database

# Rounds of merging, at most: in each, a quarter of the pairs of groups may merge.
NUM_ROUNDS = 32
# This tells whether two linked groups have room together.
FITS = """SELECT count(*) > 0 FROM between JOIN sizes AS g ON guest = g.number JOIN sizes AS h ON host = h.number
    WHERE g.size + h.size <= {largest}"""
# The group that each one joins: that with the most edges to it, in relation to all edges of that group.
BEST = """SELECT guest, best.number AS host FROM (
    SELECT guest, max({{'rate': num / volume, 'number': host}}) AS best FROM between
    JOIN sizes AS g ON guest = g.number JOIN sizes AS h ON host = h.number
    JOIN (SELECT guest AS number, sum(num) AS volume FROM between GROUP BY ALL) AS v ON host = v.number
    WHERE NOT g.hosts AND h.hosts AND g.size + h.size <= {largest} GROUP BY guest)
    ORDER BY host, best.rate DESC, guest"""


def find_groups(db: Database, links: str, num_nodes: int, largest: int) -> np.ndarray:
    """Merge nodes along their edges into groups of bounded size.

    In each round a hash divides the groups into hosts and guests, and guests join hosts while there is room. Hubs have
    many edges, so that they take in few nodes that have another neighbour.

    Args:
        links: a query of the ends of all edges, ``s`` and ``t``, numbers among all nodes.
        num_nodes: of the graph.
        largest: number of nodes of a group at most.

    Returns:
        The number of each node's group, int64 [num_nodes], the same on every machine.
    """
    group, numbers = np.arange(num_nodes), np.arange(num_nodes)
    db.execute("DROP TABLE IF EXISTS between")
    db.stage(
        "between",
        f"SELECT s AS guest, t AS host, count(*) AS num FROM (SELECT s, t FROM ({links}) UNION ALL "
        f"SELECT t, s FROM ({links})) WHERE s <> t GROUP BY ALL",
        "grouping nodes",
        ordered=False,
    )
    for round_ in range(NUM_ROUNDS):
        size = np.bincount(group, minlength=num_nodes)
        hosts = mix((numbers + num_nodes * round_).astype(np.uint64)) % 2 > 0
        _fill(db, "sizes", number=numbers, size=size, hosts=hosts)
        found = db.fetch(BEST.format(largest=largest))
        if not len(found):
            if not db.execute(FITS.format(largest=largest))[0][0]:
                break
            continue
        guest, host = found["guest"].to_numpy(), found["host"].to_numpy()
        into = numbers.copy()
        into[guest] = np.where(_fit(host, size[guest], largest - size[host]), host, guest)
        group = into[group]
        _fill(db, "joins", number=numbers, joined=into)
        db.stage(
            "merged",
            "SELECT g.joined AS guest, h.joined AS host, sum(num)::BIGINT AS num FROM between "
            "JOIN joins AS g ON guest = g.number JOIN joins AS h ON host = h.number WHERE g.joined <> h.joined "
            "GROUP BY ALL",
            "grouping nodes",
            ordered=False,
        )
        db.execute("DROP TABLE between")
        db.execute("ALTER TABLE merged RENAME TO between")
    return group


def _fit(host: np.ndarray, size: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Tell which guests fit into the room of their hosts, those of a host in turn."""
    total = np.cumsum(size)
    is_first = np.append(True, host[1:] != host[:-1])[: len(host)]
    before = np.maximum.accumulate(np.where(is_first, total - size, 0))
    return total - before <= room


def _fill(db: Database, name: str, **columns: np.ndarray) -> None:
    db.execute(f"DROP TABLE IF EXISTS {name}")
    db.fill(name, pa.table(columns))
