"""The probe of vectors: which nodes it fits on, and which it scores."""

import numpy as np
import pytest

from parallel_epochs.pipeline.node_embedding import probe
from parallel_epochs.pipeline.node_embedding.probe import LabelProbe, LinkProbe

NUM_NODES, UNLABELLED = 220, 20


@pytest.fixture
def fits(monkeypatch):
    """What the classifier is given: the nodes to fit on, and each set of nodes to score; scores are the sizes."""
    given = []

    def classify(vectors, labels, train, others, **_):
        given.append((train, [*others]))
        return [{"micro_f1": float(len(nodes)), "macro_f1": 0.0} for nodes in others]

    monkeypatch.setattr(probe, "classify", classify)
    return given


def test_no_node_is_scored_by_a_classifier_that_was_fitted_on_it(fits):
    labels = np.eye(2)[np.arange(NUM_NODES) % 2]
    labels[:UNLABELLED] = np.nan
    scores = LabelProbe(labels, metric="micro_f1", portions=[0.1, 0.5, 0.9], num_draws=2)(
        np.zeros((NUM_NODES, 3))
    )
    labelled = set(range(UNLABELLED, NUM_NODES))
    assert len(fits) == 2 * 4
    for validation, split, tenth, most in (fits[:4], fits[4:]):
        (fitted, (valid,)), (half, (own, test)) = validation, split
        assert (len(fitted), len(valid), len(half), len(test)) == (90, 10, 100, 100)
        assert {*fitted, *valid} == {*half} == {*own} and {*half, *test} == labelled
        assert not {*fitted} & {*valid} and not {*half} & {*test}
        for (first, (rest,)), count in ((tenth, 20), (most, 180)):
            assert len(first) == count and {*first, *rest} == labelled and not {*first} & {*rest}
    assert {*fits[1][0]} != {*fits[5][0]}, "each draw has nodes of its own"
    assert scores == {
        "train": 100,
        "valid": 10,
        "test": 100,
        "micro_f1@0.1": 180,
        "macro_f1@0.1": 0,
        "micro_f1@0.5": 100,
        "macro_f1@0.5": 0,
        "micro_f1@0.9": 20,
        "macro_f1@0.9": 0,
    }


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(
        ValueError, match="some vectors are not finite: training has diverged. Lower train.lr"
    ):
        probe.classify(
            np.full((8, 2), np.nan), np.eye(2)[np.arange(8) % 2], np.arange(4), [np.arange(4, 8)]
        )


def test_labels_that_all_nodes_have_or_none_are_not_fitted():
    labels = np.tile([1, 0], (8, 1))
    assert (
        probe.classify(np.random.rand(8, 2), labels, np.arange(4), [np.arange(4, 8)])[0]["micro_f1"]
        == 1
    )


def pairs_told_by(what: str) -> tuple[np.ndarray, dict]:
    """Vectors and pairs of each split whose links have the larger product, or the larger cosine, and not the other."""
    rng, splits = np.random.default_rng(0), {}
    directions = rng.standard_normal((120, 2))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = rng.random((120, 1)) + 0.1
    vectors = directions * lengths
    pairs = rng.integers(120, size=(300, 2))
    cosines = (directions[pairs[:, 0]] * directions[pairs[:, 1]]).sum(1)
    products = cosines * lengths[pairs].prod(1)[:, 0]
    values = {"dot": products, "cosine": cosines}[what]
    for split, part in zip(("train", "valid", "test"), np.split(np.arange(300), 3)):
        best = part[np.argsort(values[part])]
        splits[split] = pairs[best[50:]], pairs[best[:50]]
    return vectors, splits


@pytest.mark.parametrize("what, other", [("dot", "cosine"), ("cosine", "dot")])
def test_the_score_of_links_is_chosen_by_validation(what, other, caplog):
    caplog.set_level("INFO")
    vectors, pairs = pairs_told_by(what)
    chosen = LinkProbe(pairs, score="auto")
    assert (
        chosen(vectors)
        == LinkProbe(pairs, score=what)(vectors)
        == {"train": 1.0, "valid": 1.0, "test": 1.0}
    )
    assert LinkProbe(pairs, score=other)(vectors)["test"] < 1
    chosen(vectors)
    assert (
        caplog.text.count(f"links are scored by {what}: validation AUC 1.0000; by {other}: 0.9")
        == 1
    )
    # The test split has no say.
    assert (
        LinkProbe(pairs | {"valid": pairs_told_by(other)[1]["valid"]}, score="auto")._choose(
            vectors
        )[0]
        == other
    )
