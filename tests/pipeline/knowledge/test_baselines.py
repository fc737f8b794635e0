"""Simple methods on knowledge graphs whose answers are known."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.knowledge import baselines
from parallel_epochs.pipeline.knowledge.baselines import SLIGHTLY, Frequencies, Rules
from tests.helpers.running import train

NUM_ENTITIES = 40


def triples_of(seed=0) -> np.ndarray:
    """Random triples of a relation, all of them again as its inverse, and half of them as a third relation."""
    rng = np.random.default_rng(seed)
    heads, tails = rng.integers(NUM_ENTITIES - 1, size=(2, 150))  # the last entity is unknown
    rows = [
        np.stack([heads, np.zeros(150, int), tails], 1),
        np.stack([tails, np.full(150, 1), heads], 1),
        np.stack([heads, np.full(150, 2), tails], 1)[::2],
    ]
    return np.unique(np.concatenate(rows), axis=0)


def by_hand(triples, relation, anchor, is_tail):
    """Scores of all entities, one rule after the other."""
    known = {tuple(row) for row in triples.tolist()}
    pairs = {kind: {(h, t) for h, r, t in known if r == kind} for kind in range(3)}
    counts = [
        sum(r == relation and (t if is_tail else h) == entity for h, r, t in known)
        for entity in range(NUM_ENTITIES)
    ]
    scores = np.array(counts) * SLIGHTLY / max(max(counts), 1)
    for entity in range(NUM_ENTITIES):
        pair = (anchor, entity) if is_tail else (entity, anchor)
        best = 0.0
        for kind in range(3):
            if kind != relation and pair in pairs[kind]:
                best = max(best, len(pairs[kind] & pairs[relation]) / len(pairs[kind]))
            if pair[::-1] in pairs[kind]:
                both = sum((t, h) in pairs[relation] for h, t in pairs[kind])
                best = max(best, both / len(pairs[kind]))
        scores[entity] += best
    return scores


@pytest.mark.parametrize("is_tail", [True, False])
@pytest.mark.parametrize("at_once", [1 << 20, 5])
def test_scores_are_those_of_rules_one_by_one(is_tail, at_once, monkeypatch):
    monkeypatch.setattr(baselines, "TRIPLES", at_once)
    triples = triples_of()
    frequencies = Frequencies(torch.from_numpy(triples), NUM_ENTITIES, 3)
    anchors, relations = torch.arange(NUM_ENTITIES), torch.arange(NUM_ENTITIES) % 3
    found = Rules(torch.from_numpy(triples), frequencies)(anchors, relations, is_tail).numpy()
    counted = frequencies(anchors, relations, is_tail).numpy()
    for anchor, relation in zip(anchors.tolist(), relations.tolist()):
        np.testing.assert_allclose(
            found[anchor], by_hand(triples, relation, anchor, is_tail), rtol=1e-12
        )
        own = triples[triples[:, 1] == relation][:, 2 if is_tail else 0]
        assert counted[anchor].tolist() == np.bincount(own, minlength=NUM_ENTITIES).tolist()


def test_runs_are_compared_with_rules(configure, tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(
        baselines,
        "Frequencies",
        lambda train, *sizes: fitted.append(train) or Frequencies(train, *sizes),
    )
    triples = triples_of()
    order = np.random.default_rng(1).permutation(len(triples))
    (tmp_path / "kg").mkdir()
    for split, rows in zip(
        ("train", "valid", "test"), np.split(triples[order], [-60, -30]), strict=True
    ):
        (tmp_path / "kg" / f"{split}.txt").write_text(
            "".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in rows)
        )
    config = configure(
        "trainer=knowledge",
        "data=triples",
        f"data.folder={tmp_path / 'kg'}",
        "trainer.dim=4",
        "train.epochs=1",
        "train.eval_every=1",
    )
    table = training.find_baselines(config)
    assert (
        len(fitted[0]) == len(triples) - 60
    )  # a triple of validation or test alone counts for nothing
    lines = [line for line in table.splitlines() if "valid" in line]
    assert len(lines) == 2 and f"mrr of simple methods on {tmp_path}" in table
    assert "same and inverse relations" in lines[1] and lines[1].endswith("best validation")
    best = train(config, tmp_path / "run")["baseline"]
    assert best["name"] == "same and inverse relations" and best["test"] > 0.6
