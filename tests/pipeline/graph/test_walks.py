"""Random walks and pairs: their distribution against exact probabilities, and that nothing depends on threads."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare

from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.node_parts import deal_nodes, orthogonal_rounds, tied_rounds
from parallel_epochs.pipeline.graph.walks import (
    WalkSampler,
    alias_tables,
    collect_pairs,
)

# Two triangles that share node 2, a tail to node 6, a node that only enters (7), and an isolated one (8).
PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2), (4, 5), (5, 6)]
EDGES = torch.tensor([*PAIRS, *((b, a) for a, b in PAIRS), (7, 0)]).t()
# Edges without a reverse, so that "a neighbour of the last node" is one that an edge of it leads to.
DIRECTED = torch.tensor(
    [*PAIRS, (1, 0), (0, 3), (3, 1), (2, 4), (4, 1), (5, 4), (6, 4), (6, 2), (7, 0)]
).t()
WEIGHT = torch.linspace(0.5, 4, EDGES.size(1))


def sampler(weighted=False, edges=EDGES, **options):
    edge_index, perm = sort_edges(edges, 9)
    return WalkSampler(edge_index, WEIGHT[perm] if weighted else None, **options)


def transitions(p, q, weighted, edges):
    """Exact probabilities of the third node of a walk after the first two, [9, 9, 9]."""
    matrix = np.zeros((9, 9))
    matrix[tuple(edges.numpy())] = WEIGHT[: edges.size(1)].numpy() if weighted else 1
    factor = np.where(matrix > 0, 1, 1 / q)[:, None, :] * np.ones(
        (9, 9, 9)
    )  # of [last, here, next]
    for last in range(9):
        factor[last, :, last] = 1 / p
    table = factor * matrix[None]
    total = table.sum(2, keepdims=True)
    return np.divide(table, total, out=np.zeros_like(table), where=total > 0)


@pytest.mark.parametrize(
    "p, q, weighted, edges",
    [
        (1, 1, False, EDGES),
        (0.25, 4, True, EDGES),
        (4, 0.25, False, DIRECTED),
        (0.2, 0.3, True, DIRECTED),
        (3, 5, True, EDGES),
        (3, 5, False, DIRECTED),
    ],
)
def test_walks_have_the_probabilities_of_node2vec(p, q, weighted, edges):
    walks = sampler(weighted, edges, length=2, p=p, q=q).draw(0, 400_000, key=5).numpy()
    walks = walks[walks[:, 1] >= 0]
    found = np.bincount(walks @ np.array([81, 9, 1]), minlength=9**3).reshape(9, 9, 9)
    expected = transitions(p, q, weighted, edges) * found.sum(2, keepdims=True)
    possible = expected > 0
    assert not found[~possible].any()
    # The distance of all contexts together: a bias that none of them shows alone adds up.
    distance = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - possible.any(2).sum()
    assert freedom >= 10 and chi2.sf(distance, freedom) > 1e-4, (distance, freedom)


@pytest.mark.parametrize("weighted", [False, True])
def test_first_steps_and_starts(weighted):
    matrix = np.zeros((9, 9))
    matrix[tuple(EDGES.numpy())] = WEIGHT.numpy() if weighted else 1
    walks = sampler(weighted, length=1).draw(0, 80_000, key=1).numpy()
    assert np.bincount(walks[:, 0], minlength=9).tolist() == [10_000] * 8 + [0], (
        "each node with an edge in turn"
    )
    edges = sampler(weighted, length=1, random_starts=True).draw(0, 80_000, key=2).numpy()
    for found, exact in (
        (walks, matrix / matrix.sum(1, keepdims=True).clip(1e-9) / 8),
        (edges, matrix / matrix.sum()),
    ):
        counts = np.zeros((9, 9))
        np.add.at(counts, (found[:, 0], found[:, 1]), 1)
        expected = exact * len(found)
        assert not counts[expected == 0].any()
        assert chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-4


def test_a_walk_is_a_function_of_its_number():
    whole = sampler(length=7, p=0.5, q=2.0).draw(0, 300, key=9)
    for num_threads in (2, 3):
        again = sampler(length=7, p=0.5, q=2.0).draw(100, 150, key=9, num_threads=num_threads)
        assert torch.equal(again, whole[100:250])
    assert not torch.equal(sampler(length=7, p=0.5, q=2.0).draw(0, 300, key=10), whole)


def test_walks_end_where_no_edge_leaves():
    edge_index, _ = sort_edges(torch.tensor([[0, 1], [1, 2]]), 3)
    walks = WalkSampler(edge_index, length=4).draw(0, 2, key=0)
    assert walks.tolist() == [[0, 1, 2, -1, -1], [1, 2, -1, -1, -1]]
    weighted = WalkSampler(edge_index, torch.tensor([1.0, 0.0]), length=4)
    assert weighted.starts.tolist() == [0], "an edge that weighs nothing is no way out"


def test_alias_tables_have_the_weights():
    rng = np.random.default_rng(0)
    sizes = [1, 2, 5, 0, 40]
    ptr = torch.tensor([0, *np.cumsum(sizes)])
    weight = torch.from_numpy(rng.exponential(size=int(ptr[-1])).astype(np.float32))
    weight[4] = 0
    accept, alias = (tensor.numpy() for tensor in alias_tables(ptr, weight))
    for first, end in zip(ptr[:-1], ptr[1:]):
        size = int(end - first)
        found = accept[first:end].astype(float)
        np.add.at(found, alias[first:end], 1 - accept[first:end])
        own = weight[first:end].numpy()
        np.testing.assert_allclose(found / max(size, 1), own / max(own.sum(), 1e-9), atol=1e-6)
    assert alias_tables(torch.tensor([0, 3]), torch.zeros(3))[0].tolist() == [1, 1, 1], (
        "no weight at all: evenly"
    )


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("distance", [1, 3])
def test_pairs_are_those_of_the_walks_in_blocks(distance, both):
    walks = sampler(length=5).draw(0, 200, key=3)
    parts = deal_nodes(torch.arange(9), 3)
    found = collect_pairs(walks, parts, distance=distance, both=both)
    expected = []
    for walk in walks.tolist():
        for place, node in enumerate(walk):
            for other in walk[place + 1 : place + 1 + distance]:
                if -1 not in (node, other) and node != other:
                    expected += [(node, other), (other, node)] if both else [(node, other)]
    nodes = []
    for i in range(3):
        for j in range(3):
            first = found.ptr[i, j]
            block = found.pairs[first : first + found.counts[i, j]].long()
            heads, tails = (
                parts.node[parts.ptr[i] + block[:, 0]],
                parts.node[parts.ptr[j] + block[:, 1]],
            )
            nodes += zip(heads.tolist(), tails.tolist())
            assert (block < (parts.ptr[1:] - parts.ptr[:-1])[[i, j]]).all()
    assert sorted(nodes) == sorted(expected) and found.counts.sum() == len(found.pairs)
    again = collect_pairs(walks, parts, distance=distance, both=both, num_threads=3)
    assert torch.equal(again.pairs, found.pairs)


@pytest.mark.parametrize("num_nodes, num_parts", [(9, 3), (10, 4), (7, 7), (100, 1), (50, 6)])
def test_nodes_are_dealt_out_by_degree(num_nodes, num_parts):
    degree = torch.from_numpy(np.random.default_rng(1).permutation(num_nodes) ** 2)
    parts = deal_nodes(degree, num_parts)
    assert parts.node.sort().values.tolist() == list(range(num_nodes))
    assert parts.row[parts.node].tolist() == list(range(num_nodes))
    sizes = parts.ptr.diff()
    assert sizes.max() - sizes.min() <= 1
    for number, (first, end) in enumerate(zip(parts.ptr[:-1], parts.ptr[1:])):
        assert (parts.part[parts.node[first:end]] == number).all()
    if num_parts > 1:
        mass = torch.stack([degree[parts.part == number].sum() for number in range(num_parts)])
        assert mass.max() - mass.min() <= degree.max()
    with pytest.raises(ValueError, match="trainer.num_parts=11 is more than the 10 nodes"):
        deal_nodes(torch.ones(10), 11)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 7, 8])
def test_each_block_once_and_none_that_share_a_partition_at_a_time(num_parts):
    every = sorted((i, j) for i in range(num_parts) for j in range(num_parts))
    for rounds, tied in ((orthogonal_rounds(num_parts), False), (tied_rounds(num_parts), True)):
        assert sorted(block for tasks in rounds for task in tasks for block in task) == every
        for tasks in rounds:
            if tied:
                touched = [{part for block in task for part in block} for task in tasks]
                assert sum(map(len, touched)) == len(set().union(*touched))
            else:
                for side in (0, 1):
                    parts = [block[side] for task in tasks for block in task]
                    assert len(parts) == len(set(parts))
