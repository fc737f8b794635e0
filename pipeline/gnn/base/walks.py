"""Scores of pairs of nodes by the paths of links between them: they need no training."""

import copy
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from scipy.linalg import lapack
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.links import link_relation_of
from parallel_epochs.pipeline.gnn.predict.ranking import Direction, Links

log = logging.getLogger(__name__)

# A product is made of dense rows from this share of entries that are not 0.
DENSE = 0.05
# Pairs that are scored at a time.
BLOCK = 1 << 11
# Penalties of EASE; the first one where there is time for one only.
PENALTIES = (300.0, 30.0, 100.0, 1000.0)
# Multiplications and additions a second that one core is taken to make in the inverse of a matrix, and of sparse ones.
FLOPS, SPARSE_FLOPS = 2e10, 1e8
# Factor of the columns of targets in EASE, and numbers that columns may have.
OF_TARGETS, MOST_NUMBERS = 3.0, 1 << 25
# Bytes of the matrices of EASE that are kept, so that a run inverts each one once.
MOST_BYTES = 1 << 31
_kept: dict[str, np.ndarray] = {}
# Links of a path along several relations, and number of such paths, at most.
LONGEST, MOST_PATHS = 3, 40
# The part of the known links that is the latest.
LATEST = 0.2
# The methods that a source without links can be scored by, where candidates and where pairs are compared.
POPULARITY, DEGREES = "popularity", "product of degrees"
GAINED = "resource allocation to what like sources gained lately"


class Scorer(Protocol):
    """Scores pairs of nodes, more is better: all pairs of some sources and candidates, or some pairs."""

    def __call__(
        self, sources: Int[Tensor, " num_sources"], candidates: Int[Tensor, " num_candidates"]
    ) -> Float[Tensor, "num_sources num_candidates"]: ...
    def of_pairs(self, pairs: Int[Tensor, "num_pairs 2"]) -> Float[Tensor, " num_pairs"]: ...


class Walk:
    """Scores a pair by a product of matrices: the sum of the weights of all paths from the source to the target.

    Args:
        first: a matrix with a row for each node.
        steps: the other matrices, of which the last, sparse or dense, has a column for each node, or for each of some.
        columns: the nodes of the last one's columns in ascending order; others score 0. None: all nodes.
    """

    def __init__(
        self,
        first: scipy.sparse.csr_array,
        *steps: scipy.sparse.csr_array | np.ndarray,
        columns: Int[Tensor, " num_columns"] | None = None,
    ):
        self._first, self._middle = first.tocsr(), cast(list[scipy.sparse.csr_array], steps[:-1])
        self._last = steps[-1] if isinstance(steps[-1], np.ndarray) else steps[-1].tocsc()
        self._columns, self._unit = columns, 0.0

    def in_logarithms(self, unit: float) -> "Walk":
        """Return the same with log(1 + x / `unit`) for each score x, 0 for a negative one."""
        out = copy.copy(self)
        out._unit = unit
        return out

    def seconds(self, num_sources: int, num_pairs: int | None = None) -> float:
        """Estimate the time for all candidates of some sources, from the numbers of entries alone.

        Args:
            num_pairs: that are scored instead; the last product is that of their rows and columns alone.
        """
        entries, operations = self._first.nnz / max(self._first.shape[0], 1), 0.0
        for before, step in zip(
            [self._first, *self._middle], [*self._middle, *[self._last] * (num_pairs is None)]
        ):
            if isinstance(step, np.ndarray):
                is_dense = entries > DENSE * step.shape[0]
                operations += (
                    step.size * SPARSE_FLOPS / FLOPS if is_dense else entries * step.shape[1]
                )
                continue
            # A walk reaches a row the more often, the more entries its column has in the step before.
            reached = np.bincount(before.tocsr().indices, minlength=step.shape[0])
            branches = float(reached @ np.diff(step.tocsr().indptr)) / max(before.nnz, 1)
            operations += entries * branches
            entries = min(entries * branches, step.shape[1])
        of_pairs = (num_pairs or 0) * (entries + self._last.size / max(self._last.shape[1], 1))
        return (num_sources * operations + of_pairs) / SPARSE_FLOPS

    def __call__(self, sources: Tensor, candidates: Tensor) -> Tensor:
        place, is_there = self._places(candidates)
        rows, last = self._rows(sources.numpy()), self._last[:, place]
        if rows.nnz <= DENSE * rows.shape[0] * rows.shape[1]:
            found = rows @ last
        else:
            found = rows.toarray() @ last
        if scipy.sparse.issparse(found):
            found.data = self._scale(found.data)
            found = found.toarray()
        else:
            found = self._scale(found)
        found = torch.from_numpy(np.ascontiguousarray(found, np.float32))
        return found if is_there is None else found * is_there

    def of_pairs(self, pairs: Tensor) -> Tensor:
        """Score some pairs."""
        parts = [torch.empty(0)]
        for block in pairs.long().split(BLOCK):
            found, row = block[:, 0].unique(return_inverse=True)
            place, is_there = self._places(block[:, 1])
            rows, last = self._rows(found.numpy())[row.numpy()], self._last.T[place]
            scores = torch.from_numpy(
                self._scale(np.asarray(rows.multiply(last).sum(1), np.float32).reshape(-1))
            )
            parts.append(scores if is_there is None else scores * is_there)
        return torch.cat(parts)

    def _rows(self, sources: np.ndarray) -> scipy.sparse.csr_array:
        rows = self._first[sources]
        for step in self._middle:
            rows = rows @ step
        return rows

    def _places(self, nodes: Tensor) -> tuple[np.ndarray, Tensor | None]:
        """Return the columns of nodes, and which of them have one; none if all have."""
        if self._columns is None:
            return nodes.numpy(), None
        place = torch.searchsorted(self._columns, nodes.contiguous()).clamp(
            max=len(self._columns) - 1
        )
        return place.numpy(), self._columns[place] == nodes

    def _scale(self, scores: np.ndarray) -> np.ndarray:
        return np.log1p(np.maximum(scores, 0) / np.float32(self._unit)) if self._unit else scores


class Sum:
    """Adds up scores, each times a weight.

    Args:
        direct: returns pairs with the sources first.
    """

    def __init__(self, terms: Sequence[tuple[float, Scorer]], direct: Callable[[Tensor], Tensor]):
        self._terms, self._direct = terms, direct

    def __call__(self, sources: Tensor, candidates: Tensor) -> Tensor:
        total = torch.zeros(len(sources), len(candidates))
        for weight, term in self._terms:
            total.add_(term(sources, candidates), alpha=weight)
        return total

    def of_pairs(self, pairs: Tensor) -> Tensor:
        """Score some pairs."""
        pairs, total = self._direct(pairs), torch.zeros(len(pairs))
        for weight, term in self._terms:
            total.add_(term.of_pairs(pairs), alpha=weight)
        return total


def find_walks(
    links: Links,
    matrix: scipy.sparse.csr_array,
    data: Data | None = None,
    *,
    of_pairs: bool = False,
    asked: Collection[str] = (),
) -> dict[str, Callable[[], Walk]]:
    """Name the walks that fit a graph, and how each is made.

    Args:
        matrix: of the links that may be known, see :func:`matrix_of`.
        data: the graph, for walks along its other relations and for the features of its nodes. None: links alone.
        of_pairs: whether pairs of several sources are compared, so that the source counts too, and the order of two
            nodes does not where links have no direction.
        asked: names that are needed: without times, all links count as the latest ones.
    """
    direction, candidates = (
        links.directions[0],
        torch.cat([one.candidates for one in links.answered]).unique(),
    )
    found: dict[str, Callable[[], Walk]] = {
        POPULARITY: partial(by_popularity, matrix),
        "item cosine": partial(by_cosine, matrix),
    }
    if of_pairs:
        found = {
            DEGREES: partial(by_degrees, matrix),
            **({} if links.is_two_way else {"item cosine": partial(by_cosine, matrix)}),
        }
    if len(np.intersect1d(direction.sources, direction.candidates)):
        found |= {
            "resource allocation over two hops": partial(allocate_in_two_hops, matrix),
            "cosine of neighbours": partial(by_neighbours, matrix),
        }
    found["resource allocation over three hops"] = partial(allocate_in_three_hops, matrix)
    lately = latest_of(links, matrix)
    if lately is None and any(name.endswith(" lately") for name in asked):
        log.warning(
            "the simple method asks for the latest links, and these have no times: all of them are read"
        )
        lately = matrix
    if lately is not None:
        found[GAINED] = partial(allocate_in_three_hops, matrix, lately)
        if not of_pairs:
            found["popularity lately"] = partial(by_popularity, lately)
    if data is not None:
        found |= dict(_along_relations(matrix, data))
        if data.types.homogeneous and data.get("x_source") == "data" and data.x.size(1):
            found["cosine of features"] = partial(by_features, data)
    if of_pairs and links.is_two_way:
        return found
    direction = replace(direction, candidates=candidates)
    columns = None if data is None else columns_of(data, direction)
    if columns is not None and columns[0].shape[1] + columns[1].shape[1]:
        found["EASE with columns"] = partial(ease, matrix, direction, PENALTIES[0], columns)
    for penalty in PENALTIES:
        found[f"EASE (penalty {penalty:g})"] = partial(ease, matrix, direction, penalty)
    return found


def seconds_of_ease(links: Links) -> float:
    """Estimate the time for the inverse of a matrix of all candidates."""
    return len(torch.cat([one.candidates for one in links.answered]).unique()) ** 3 / FLOPS


def matrix_of(answers: Int[Tensor, "num_answers 2"], num_nodes: int) -> scipy.sparse.csr_array:
    """Return a matrix [num_nodes, num_nodes] with 1 for each source and target."""
    source, target = answers.numpy().T
    found = scipy.sparse.coo_array(
        (np.ones(len(answers), np.float32), (source, target)), (num_nodes,) * 2
    ).tocsr()
    found.data[:] = 1
    return found


def latest_of(links: Links, matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array | None:
    """Return the latest links of those in a matrix; none where links have no times."""
    if (found := links.timed()) is None:
        return None
    pairs, times = found
    source, target = (ends.numpy().copy() for ends in pairs.t())
    is_known = torch.from_numpy(np.asarray(matrix[source, target]).reshape(-1) > 0)
    if not bool(is_known.any()):
        return None
    known = times[is_known].sort().values
    return matrix_of(
        pairs[is_known & (times >= known[int((1 - LATEST) * len(known))])], links.num_nodes
    )


def by_popularity(links: scipy.sparse.csr_array) -> Walk:
    """Score a candidate by its number of links."""
    ones = scipy.sparse.csr_array(np.ones((links.shape[0], 1), np.float32))
    return Walk(ones, scipy.sparse.csr_array(np.asarray(links.sum(0), np.float32)[None]))


def by_degrees(links: scipy.sparse.csr_array) -> Walk:
    """Score a pair by the product of the numbers of links of both nodes, each increased by one."""
    return Walk(
        *(
            scipy.sparse.csr_array(1 + np.asarray(links.sum(axis), np.float32).reshape(shape))
            for axis, shape in ((1, (-1, 1)), (0, (1, -1)))
        )
    )


def by_cosine(links: scipy.sparse.csr_array) -> Walk:
    """Score a candidate by its similarities to the targets of a source: the cosines of the sets of their sources."""
    scaled = _scaled(links, _inverse(links.sum(0), 0.5))
    return Walk(scaled, links.T.tocsr(), scaled)


def allocate_in_two_hops(links: scipy.sparse.csr_array) -> Walk:
    """Score a candidate by the nodes between it and a source: the sum of 1 / degree, links taken both ways round."""
    both = _two_way(links)
    return Walk(_scaled(both, _inverse(both.sum(0))), both)


def by_neighbours(links: scipy.sparse.csr_array) -> Walk:
    """Score a candidate by the cosine of its set of neighbours and that of the source, links taken both ways round."""
    both = _two_way(links)
    by_row = _scaled(both.T.tocsr(), _inverse(both.sum(0), 0.5))
    return Walk(by_row.T.tocsr(), by_row)


def allocate_in_three_hops(
    links: scipy.sparse.csr_array, last: scipy.sparse.csr_array | None = None
) -> Walk:
    """Score a candidate by the sources that share a target with a source: the sum of 1 / (degree of that target times
    degree of the other source), over all such paths of links to the candidate.

    This is the second step of the diffusion of Zhou et al. (https://arxiv.org/abs/0707.0540).

    Args:
        last: the links that a path may end with. None: all of them.
    """
    scaled = (
        _scaled(links, _inverse(links.sum(0))),
        _scaled(links.T.tocsr(), _inverse(links.sum(1))),
    )
    return Walk(*scaled, links if last is None else last)


def by_features(data: Data) -> Walk:
    """Score a candidate by the cosine of its features and those of the source."""
    x = data.x[:, : data.x.size(1) - data.num_categories].double()
    own = scipy.sparse.csr_array(torch.nn.functional.normalize(x).float().numpy())
    return Walk(own, own.T)


def ease(
    links: scipy.sparse.csr_array,
    direction: Direction,
    penalty: float,
    columns: tuple[np.ndarray, np.ndarray] | None = None,
) -> Walk:
    """Score candidates by the other targets of a source, see :func:`ease_weights`.

    Args:
        columns: of sources and of candidates. A column of the sources is one more target, and a column of the
            candidates one more source.
    """
    own = links[:, direction.candidates.numpy()]
    if columns is None:
        return Walk(own, ease_weights(own, penalty), columns=direction.candidates)
    of_sources, of_targets = (scipy.sparse.coo_array(each.astype(np.float32)) for each in columns)
    place = direction.sources.numpy()[of_sources.coords[0]], of_sources.coords[1]
    spread = scipy.sparse.coo_array((of_sources.data, place), (links.shape[0], of_sources.shape[1]))
    own = scipy.sparse.hstack([own, spread]).tocsr()
    more = OF_TARGETS * of_targets.T
    more.resize(more.shape[0], own.shape[1])
    weights = ease_weights(scipy.sparse.vstack([own, more]), penalty)
    return Walk(own, weights[:, : len(direction.candidates)], columns=direction.candidates)


def ease_weights(
    links: scipy.sparse.csr_array, penalty: float
) -> Float[np.ndarray, "num_targets num_targets"]:
    """Fit "Embarrassingly Shallow Autoencoders" (https://arxiv.org/abs/1905.03375): each column of a matrix is
    predicted from the others, by ridge regression with a closed form.

    Args:
        links: a row for each source, a column for each target.
    """
    links = links.tocsr()
    links.sort_indices()
    digest = hashlib.sha256(f"{links.shape} {penalty}".encode())
    for array in (links.indptr, links.indices, links.data):
        digest.update(array.tobytes())
    name = digest.hexdigest()
    weights = _kept.pop(name, None)
    if weights is None:
        weights = _invert(links.astype(np.float64), penalty)
    _kept[name] = weights  # the last one that is thrown away
    while len(_kept) > 1 and sum(matrix.nbytes for matrix in _kept.values()) > MOST_BYTES:
        del _kept[next(iter(_kept))]
    return weights


def _invert(links: scipy.sparse.csr_array, penalty: float) -> np.ndarray:
    matrix = (links.T @ links).toarray(order="F")
    matrix[np.diag_indices_from(matrix)] += penalty
    # In place, the lower triangle alone: a third of the time of a general inverse, and half of its memory.
    factor, failed = lapack.dpotrf(matrix, lower=1, overwrite_a=1, clean=0)
    inverse, fails = lapack.dpotri(factor, lower=1, overwrite_c=1)
    if failed or fails:
        raise np.linalg.LinAlgError(
            f"the matrix of EASE with penalty {penalty:g} cannot be inverted"
        )
    weights, diagonal = inverse.astype(np.float32), np.diag(inverse).astype(np.float32)
    del matrix, factor, inverse
    for row in range(len(weights)):
        weights[row, row + 1 :] = weights[row + 1 :, row]
        weights[row, row] = 0
    weights /= -diagonal
    return weights


def columns_of(data: Data, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of the sources and those of the candidates, float32; none of them where nodes have none, or
    where there are too many numbers.
    """
    found = []
    for nodes in (direction.sources, direction.candidates):
        types, width = data.types, 0
        if types.homogeneous:
            width = data.x.size(1) - data.num_categories if data.get("x_source") == "data" else 0
        elif len(nodes):
            name = next(name for name in types.names if int(nodes[0]) in types.nodes_of(name))
            width = 0 if name in types.averaged else types.widths[types.names.index(name)]
        found.append(data.x[nodes, :width].float().numpy())
    if len(direction.sources) * sum(columns.shape[1] for columns in found) > MOST_NUMBERS:
        return found[0][:, :0], found[1][:, :0]
    return found[0], found[1]


def _along_relations(
    links: scipy.sparse.csr_array, data: Data
) -> Iterator[tuple[str, Callable[[], Walk]]]:
    """Name random walks of one to three steps along the relations of a graph, from its sources to its targets.

    A step goes to each of its neighbours with the same probability, as in "Relational Retrieval Using a Combination of
    Path-Constrained Random Walks" (Lao and Cohen, Machine Learning 81, 2010). The links that are learned are one of
    the relations; a pair's own link is no path.
    """
    own, types = link_relation_of(data), data.types
    if own is None:
        return
    source, target = (types.relations[own.number][place] for place in (0, 2))
    steps: list[tuple[str, str, str, scipy.sparse.csr_array]] = [(own.name, source, target, links)]
    edges, relation = data.edge_index.as_tensor().long(), data.edge_attr[:, 0]
    for number, (first, name, last) in enumerate(types.relations):
        if number not in (own.number, own.reverse, *types.reverse):
            is_alone = [name for _, name, _ in types.relations].count(name) == 1
            steps.append(
                (
                    name if is_alone else f"[{first},{name},{last}]",
                    first,
                    last,
                    matrix_of(edges[:, relation == number].t(), data.num_nodes),
                )
            )
    steps += [
        (f"{name} back", last, first, matrix.T.tocsr()) for name, first, last, matrix in steps
    ]
    known = {
        (own.name,),
        (f"{own.name} back",),
        (own.name, f"{own.name} back", own.name),
    }  # the last one is a method
    paths, num_found = [((), source)], 0
    for _ in range(LONGEST):
        paths = [
            ((*path, step), step[2]) for path, end in paths for step in steps if step[1] == end
        ]
        for path, end in paths:
            names = tuple(step[0] for step in path)
            if end == target and names not in known and num_found < MOST_PATHS:
                num_found += 1
                yield (
                    f"walks along {', '.join(names)}",
                    partial(_walk_along, [step[3] for step in path]),
                )


def _walk_along(matrices: list[scipy.sparse.csr_array]) -> Walk:
    steps = [_scaled(matrix.T.tocsr(), _inverse(matrix.sum(1))).T.tocsr() for matrix in matrices]
    every = scipy.sparse.eye_array(steps[0].shape[0], dtype=np.float32, format="csr")
    return Walk(*steps) if len(steps) > 1 else Walk(every, *steps)


def _two_way(links: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    return ((links + links.T) > 0).astype(np.float32).tocsr()


def _scaled(matrix: scipy.sparse.csr_array, factor: np.ndarray) -> scipy.sparse.csr_array:
    """Multiply each column by a factor."""
    out = matrix.copy()
    out.data = out.data * factor[out.indices]
    return out


def _inverse(degree: np.ndarray, power: float = 1.0) -> np.ndarray:
    """Return 1 / degree^power, in float32; 0 where the degree is 0."""
    degree = np.asarray(degree, np.float64)
    return np.where(degree > 0, np.maximum(degree, 1) ** -power, 0).astype(np.float32)
