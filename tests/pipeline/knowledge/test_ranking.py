"""Filtered ranks against those that are counted one by one."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.knowledge import ranking
from parallel_epochs.pipeline.knowledge.ranking import KnownAnswers, Ranking, TripleProbe, summarise
from parallel_epochs.pipeline.run.ranks import Ranks


def toy(num_entities=7, num_relations=3, num_triples=40, seed=0):
    rng = np.random.default_rng(seed)
    triples = torch.from_numpy(
        np.stack(
            [
                rng.integers(num_entities, size=num_triples),
                rng.integers(num_relations, size=num_triples),
                rng.integers(num_entities, size=num_triples),
            ],
            1,
        )
    )
    # Few different scores: many ties.
    table = torch.from_numpy(
        rng.integers(0, 3, size=(num_relations, num_entities, num_entities)).astype(np.float32)
    )
    return triples, table


def scorer(table):
    return lambda anchors, relations, is_tail: (table if is_tail else table.mT)[relations, anchors]


def rank_one(table, known, head, relation, tail, is_tail) -> float:
    """The realistic rank of one triple, entity by entity."""
    best = worst = 1
    for entity in range(table.size(1)):
        other = (head, relation, entity) if is_tail else (entity, relation, tail)
        if other == (head, relation, tail) or other in known:
            continue
        score, truth = (
            float(table[other[1], other[0], other[2]]),
            float(table[relation, head, tail]),
        )
        best, worst = best + (score > truth), worst + (score >= truth)
    return (best + worst) / 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [1, 20, 1 << 20])
def test_ranks_are_those_counted_one_by_one(monkeypatch, seed, block):
    monkeypatch.setattr(ranking, "BLOCK", block)
    triples, table = toy(seed=seed)
    known, asked = (
        {tuple(row) for row in triples.tolist()},
        torch.cat([triples[25:], triples[30:32]]),
    )
    found = Ranking(triples, 7, 3)(scorer(table), asked)
    expected = [
        [rank_one(table, known, *row, is_tail) for is_tail in (False, True)]
        for row in asked.tolist()
    ]
    assert found.tolist() == expected
    assert any(rank % 1 for row in expected for rank in row)  # ties there were


def test_constant_scores_and_no_numbers_rank_in_the_middle():
    triples = torch.tensor([[0, 0, 1], [0, 0, 2]])
    for value in (0.0, float("nan")):
        table = torch.full((1, 9, 9), value)
        # Eight others, of which one is known: (1 + 8) / 2 with seven of them.
        assert Ranking(triples, 9, 1)(scorer(table), triples).tolist() == [[5.0, 4.5], [5.0, 4.5]]


def test_answers_are_found():
    answers = KnownAnswers(
        torch.tensor([2, 0, 2, 1]), torch.tensor([1, 0, 1, 1]), torch.tensor([5, 6, 7, 8]), 2
    )
    assert (
        len(answers) == 3
        and answers.anchors.tolist() == [0, 1, 2]
        and answers.relations.tolist() == [0, 1, 1]
    )
    query = answers.find(torch.tensor([2, 1]), torch.tensor([1, 1]))
    places, entities = answers.of(query)
    assert places.tolist() == [0, 0, 1] and entities.tolist() == [5, 7, 8]


def test_numbers_of_ranks():
    found = summarise(torch.tensor([[1.0, 2.0], [10.5, 4.0]], dtype=torch.float64))
    assert found == {
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 10.5 + 1 / 4) / 4),
        "mr": pytest.approx(17.5 / 4),
        "hits@1": 0.25,
        "hits@3": 0.5,
        "hits@10": 0.75,
    }
    assert np.isnan(summarise(torch.empty(0, 2))["mrr"])


def probe(**options):
    triples, table = toy(num_triples=60)
    splits = {"train": triples[:40], "valid": triples[40:50], "test": triples[50:]}
    return TripleProbe(splits, 7, 3, **options), splits, scorer(table), Ranking(triples, 7, 3)


def test_a_probe_scores_every_split():
    score, splits, table, ranks = probe()
    before, last = score(table), score.test(table)
    for split, triples in splits.items():
        assert (last if split == "test" else before)[split] == summarise(ranks(table, triples))[
            "mrr"
        ]
    valid, test = ranks(table, splits["valid"]), ranks(table, splits["test"])
    assert before == {
        "train": before["train"],
        "valid": summarise(valid)["mrr"],
        **{f"valid_{name}": value for name, value in summarise(valid).items() if name != "mrr"},
    }
    assert (
        last["mrr@heads"] == summarise(test[:, 0])["mrr"]
        and last["mrr@tails"] == summarise(test[:, 1])["mrr"]
    )
    assert last["mr"] == summarise(test)["mr"] and last["hits@3"] == summarise(test)["hits@3"]


def test_each_rank_ranks_its_share(monkeypatch):
    asked = []
    monkeypatch.setattr(Ranks, "sum_", lambda self, tensor: asked.append(tensor.clone()))
    for ranks in (Ranks(), *(Ranks(rank, 3) for rank in range(3))):
        score, _, table, _ = probe(ranks=ranks)
        score(table)
        score.test(table)
    whole, *parts = asked[:3], asked[3:6], asked[6:9], asked[9:]
    for together, *found in zip(whole, *parts, strict=True):
        assert torch.equal(sum(found), together)
