"""Knowledge graphs as they are read and generated, and the scores of their triples."""

import csv
import gzip
import math
import tarfile

import numpy as np
import pytest
import torch

from parallel_epochs.models.embedding import distances
from parallel_epochs.models.embedding.triple_losses import cubes, negative_sampling, one_vs_all
from parallel_epochs.models.embedding.triples import (
    MODELS,
    TripleTables,
    compare,
    first_rows,
    match,
    modulus,
)
from parallel_epochs.pipeline.data.cache import hash_content, load, read
from parallel_epochs.pipeline.data.config import MathConfig, TriplesConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.knowledge.build import describe
from tests.helpers.tensors import same_for_any_threads

ROWS = {
    "train": ["b\tlikes\ta", "a\tlikes\tc", "c\tknows\tb"],
    "valid": ["a\tknows\tb"],
    "test": ["b\tknows\tc"],
}


def write(folder, rows=ROWS, ending=".txt", separator="\t"):
    folder.mkdir(exist_ok=True)
    for split, lines in rows.items():
        content = "".join(line.replace("\t", separator) + "\n" for line in lines).encode()
        (folder / f"{split}{ending}").write_bytes(
            gzip.compress(content) if ending.endswith(".gz") else content
        )
    return folder


def as_names(data) -> list[tuple[str, str, str]]:
    """The triples of a graph, with names."""
    entities = unpack_names(data)
    content, ptr = data.relation_names.numpy().tobytes().decode(), data.relation_names_ptr.tolist()
    kinds = [content[a:b] for a, b in zip(ptr[:-1], ptr[1:])]
    return [(entities[h], kinds[r], entities[t]) for h, r, t in data.triples.tolist()]


EXPECTED = [tuple(line.split("\t")) for lines in ROWS.values() for line in lines]


@pytest.mark.parametrize(
    "ending, separator",
    [
        (".txt", "\t"),
        (".tsv", "\t"),
        (".del", " "),
        (".csv", ","),
        (".txt.gz", "\t"),
        (".csv", ", "),
    ],
)
def test_tables_are_read_as_they_come(tmp_path, ending, separator):
    data = read(
        TriplesConfig(folder=str(write(tmp_path / "kg", ending=ending, separator=separator)))
    )
    assert as_names(data) == EXPECTED and data.triple_ptr.tolist() == [0, 3, 4, 5]
    assert unpack_names(data) == ["a", "b", "c"] and data.num_relations == 2


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_quoted_names_are_read_as_their_writer_meant_them(tmp_path, separator):
    names = ["Washington, D.C.", 'the "Bridge"', "a; b", "plain"]
    rows = [(names[number % 4], "near to", names[(number + 1) % 4]) for number in range(6)]
    for split, part in zip(ROWS, (rows[:4], rows[4:5], rows[5:])):
        with open(tmp_path / f"{split}.csv", "w", newline="") as file:
            csv.writer(file, delimiter=separator).writerows(part)
    assert as_names(read(TriplesConfig(folder=str(tmp_path)))) == rows
    raw = {
        split: ['"' + line.replace("\t", '"\t"') + '"' for line in lines]
        for split, lines in ROWS.items()
    }
    assert "a" in unpack_names(read(TriplesConfig(folder=str(write(tmp_path / "all", raw)))))
    some = {split: [line.replace("a", '"a"') for line in lines] for split, lines in ROWS.items()}
    assert '"a"' in unpack_names(
        read(TriplesConfig(folder=str(write(tmp_path / "some", some))))
    )  # as literals of RDF
    raw["valid"] = ['5"\tr\t"a"']  # no writer of CSV does so: marks are a part of the names
    assert '"a"' in unpack_names(read(TriplesConfig(folder=str(write(tmp_path / "kg", raw)))))


def test_an_archive_is_read_wherever_it_lies(tmp_path, monkeypatch):
    folder = write(tmp_path / "kg")
    (tmp_path / "alone").mkdir()
    path = tmp_path / "alone" / "set.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "inside/kg")
    assert as_names(read(TriplesConfig(folder=str(path)))) == EXPECTED
    assert as_names(read(TriplesConfig(folder=str(path.parent)))) == EXPECTED
    monkeypatch.chdir(tmp_path)
    digests = {
        hash_content(TriplesConfig(folder=name))
        for name in ("alone", "alone/set.tar.gz", str(path))
    }
    assert len(digests) == 1 and digests != {hash_content(TriplesConfig(folder="kg"))}


def test_ids_are_numbered_as_numbers_blank_lines_and_a_head_are_left_out(tmp_path):
    rows = {
        "train": ["head\trelation\ttail", "10\t0\t9", "", "9\t1\t2"],
        "valid": ["2\t0\t9"],
        "test": ["2\t1\t10"],
    }
    data = read(TriplesConfig(folder=str(write(tmp_path / "kg", rows))))
    assert unpack_names(data) == ["2", "9", "10"] and data.triples[:2].tolist() == [
        [2, 0, 1],
        [1, 1, 0],
    ]


@pytest.mark.parametrize(
    "head, order",
    [
        ("head\ttail\trelation", (0, 2, 1)),
        ("x_name\trelation\ty_name", (0, 1, 2)),
        (":START_ID\t:TYPE\t:END_ID", (0, 1, 2)),
        ("predicate\tobject\tsubject", (1, 2, 0)),
    ],
)
def test_columns_are_in_the_order_of_their_names(head, order, tmp_path):
    rows = {
        split: [head, *("\t".join(line.split("\t")[place] for place in order) for line in lines)]
        for split, lines in ROWS.items()
    }
    assert as_names(read(TriplesConfig(folder=str(write(tmp_path / "kg", rows))))) == EXPECTED


def test_a_header_of_other_words_and_blanks_around_names_are_left_out(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = {
        "train": ["from\tkind\tto", "1\tx\t3", "3\tx \t2"],
        "valid": [" 2\tx\t3"],
        "test": ["2\tx\t1"],
    }
    data = read(TriplesConfig(folder=str(write(tmp_path / "kg", rows))))
    assert (
        unpack_names(data) == ["1", "2", "3"] and data.num_relations == 1 and len(data.triples) == 4
    )
    assert "train.txt: the first line is left out as a header: from kind to" in caplog.text
    (tmp_path / "kg" / "test.txt").write_bytes(b"1\tx\t3\ncaf\xe9\tx\t3\n")
    with pytest.raises(ValueError, match="test.txt is not UTF-8 text: line 2 has the byte 0xe9"):
        read(TriplesConfig(folder=str(tmp_path / "kg")))


@pytest.mark.parametrize(
    "rows, message",
    [
        (
            {"train": ["a\tb"], "valid": ["a\tr\tb"], "test": ["a\tr\tb"]},
            r"train.txt, line 1: 2 columns instead of three",
        ),
        (
            {**ROWS, "test": ["a\tr\tb", "a\tr\tb\t1"]},
            r"test.txt, line 2: 4 columns instead of three",
        ),
        (
            {**ROWS, "valid": ["a\tr\tb", "", "a\tr"]},
            r"valid.txt, line 3: 2 columns instead of three",
        ),
        ({**ROWS, "valid": []}, r"valid.txt holds no triples"),
        ({**ROWS, "valid": ["head\trelation\ttail"]}, r"valid.txt holds no triples"),
        ({"train": ROWS["train"], "test": ROWS["test"]}, r"has no valid.txt"),
        ({**ROWS, "dev": ROWS["valid"]}, r"has dev.txt and valid.txt: leave one"),
        (
            {split: ["u\tv\tw", *lines] for split, lines in ROWS.items()},
            r"all tables begin with 'u v w', whose words stand nowhere else",
        ),
    ],
)
def test_bad_tables_are_refused_with_the_place(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read(TriplesConfig(folder=str(write(tmp_path / "kg", rows))))


def test_bad_files_are_refused(tmp_path):
    folder = write(tmp_path / "kg", ending=".txt.gz")
    (folder / "test.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"test.txt.gz is damaged"):
        read(TriplesConfig(folder=str(folder)))
    (tmp_path / "set.tar.gz").write_bytes(b"no tar")
    with pytest.raises(ValueError, match=r"set.tar.gz is damaged or cut short"):
        read(TriplesConfig(folder=str(tmp_path / "set.tar.gz")))
    with pytest.raises(ValueError, match=r"data.folder=nowhere does not exist"):
        TriplesConfig(folder="nowhere").check()
    with pytest.raises(
        ValueError, match=r"data.components=largest needs one graph, but data=triples holds triples"
    ):
        TriplesConfig(folder=str(folder), components="largest").check()


def test_what_training_does_not_have_is_counted_and_kept(tmp_path):
    rows = {**ROWS, "valid": ["a\tknows\tz", "y\tknows\tz"], "test": ["a\thates\tb", "a\tknows\tb"]}
    data = load(TriplesConfig(folder=str(write(tmp_path / "kg", rows))), tmp_path / "cache")
    assert len(data.triples) == 7 and data.num_nodes == 5 and data.num_relations == 3
    text = describe(data)
    assert "5 entities, 3 relations, 3 / 2 / 2 triples" in text
    assert "2 valid triples with an entity that occurs in no training triple" in text
    assert "1 test triple with a relation that occurs in no training triple" in text
    assert "test triples with an entity" not in text and "valid triples with a relation" not in text


def test_arithmetic_is_right_and_no_triple_is_there_twice():
    data = read(MathConfig())
    assert data.num_nodes == 1000 and data.num_relations == 150
    assert data.triple_ptr.tolist() == [0, 20_000, 21_000, 22_000]
    made = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "/": int.__floordiv__,
        "%": int.__mod__,
    }
    for head, relation, tail in as_names(data):
        assert made[relation[0]](int(head), int(relation[1:])) % 1000 == int(tail)
    assert len(data.triples.unique(dim=0)) == 22_000
    assert torch.equal(data.triples, read(MathConfig()).triples)
    assert not torch.equal(data.triples, read(MathConfig(graph_seed=1)).triples)
    with pytest.raises(ValueError, match=r"ask for 22,000 triples, but data.num_entities=10 with"):
        MathConfig(num_entities=10).check()


def rows_of(model, num=3, dim=8):
    rng = torch.Generator().manual_seed(1)
    heads, tails = (torch.randn(num, dim, generator=rng, dtype=torch.float64) for _ in range(2))
    return (
        heads,
        torch.randn(num, model.relation_dim(dim), generator=rng, dtype=torch.float64),
        tails,
    )


def by_the_book(name, h, r, t) -> float:
    """A score as the papers write it, of one triple; complex numbers and quaternions are Python's and numpy's."""
    half = len(h) // 2
    if name == "transe":
        return -np.abs(h + r - t).sum()
    if name == "transe2":
        return -math.sqrt(((h + r - t) ** 2).sum())
    if name == "distmult":
        return (h * r * t).sum()
    if name == "complex":
        return (_complex(h) * _complex(r) * _complex(t).conj()).sum().real
    if name == "rotate":
        return -np.abs(_complex(h) * np.exp(1j * r) - _complex(t)).sum()
    if name == "simple":
        return ((h[:half] * r[:half] * t[half:]).sum() + (t[:half] * r[half:] * h[half:]).sum()) / 2
    heads, relations, tails = (x.reshape(4, -1).T for x in (h, r, t))
    return sum(_matrix(q) @ (p / np.linalg.norm(p)) @ s for q, p, s in zip(heads, relations, tails))


def _complex(row):
    return row[: len(row) // 2] + 1j * row[len(row) // 2 :]


def _matrix(q):
    """The matrix of a multiplication by a quaternion from the left."""
    a, b, c, d = q
    return np.array([[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]])


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_papers(name):
    model = MODELS[name]
    rows = rows_of(model)
    expected = [by_the_book(name, *(part[i].numpy() for part in rows)) for i in range(3)]
    assert model.score(*rows).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_all_entities_are_those_of_single_triples(name):
    model = MODELS[name]
    heads, relations, tails = rows_of(model)
    for all_of_them, anchors in (
        (model.score_tails(heads, relations, tails), heads),
        (model.score_heads(tails, relations, heads), tails),
    ):
        for i in range(3):
            for j in range(3):
                triple = (
                    (heads[i], relations[i], tails[j])
                    if anchors is heads
                    else (heads[j], relations[i], tails[i])
                )
                assert float(all_of_them[i, j]) == pytest.approx(
                    float(model.score(*triple)), rel=1e-12
                )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_scores_are_finite_differences(name):
    model = MODELS[name]
    rows = [part.requires_grad_() for part in rows_of(model)]
    assert torch.autograd.gradcheck(model.score, rows)
    heads, relations, tails = rows
    assert torch.autograd.gradcheck(model.score_tails, (heads, relations, tails))
    assert torch.autograd.gradcheck(model.score_heads, (tails, relations, heads))


def test_moduli_in_blocks_and_batches_are_the_plain_ones(monkeypatch):
    monkeypatch.setattr(distances, "BLOCK", 40)
    rng = torch.Generator().manual_seed(0)
    queries, entities = (
        torch.randn(2, n, 6, generator=rng, dtype=torch.float64, requires_grad=True) for n in (7, 5)
    )
    found = compare(queries, entities, "modulus")
    plain = match(
        queries.unsqueeze(2).expand(2, 7, 5, 6), entities.unsqueeze(1).expand(2, 7, 5, 6), "modulus"
    )
    torch.testing.assert_close(found, plain)
    weight = torch.rand(found.shape, generator=rng, dtype=torch.float64)
    for a, b in zip(
        *(
            torch.autograd.grad((scores * weight).sum(), (queries, entities))
            for scores in (found, plain)
        )
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("half", [1, 7, 8, 50])
def test_moduli_of_cpp_are_those_of_torch(half):
    assert distances.LIBRARY.get() is not None, distances.LIBRARY.missing()
    rng = torch.Generator().manual_seed(half)
    queries, entities = (
        torch.randn(3, n, 2 * half, generator=rng, requires_grad=True) for n in (5, 9)
    )
    entities.data[1, 2] = queries.data[1, 3]  # at a distance of zero
    ours, plain = (
        distances.modulus_distances(queries, entities, native=native) for native in (True, False)
    )
    torch.testing.assert_close(ours, plain)
    weight = torch.rand(ours.shape, generator=rng)
    for a, b in zip(
        *(
            torch.autograd.grad((scores * weight).sum(), (queries, entities))
            for scores in (ours, plain)
        )
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    queries.data[0, 0, 0] = float("nan")
    assert distances.modulus_distances(queries, entities)[0, 0].isnan().all()


def test_moduli_have_the_same_bits_for_any_number_of_threads():
    rng = torch.Generator().manual_seed(0)
    queries, entities = (torch.randn(3, n, 20, generator=rng, requires_grad=True) for n in (17, 9))

    def compute():
        sums = distances.modulus_distances(queries, entities)
        return [sums, *torch.autograd.grad(sums.square().sum(), (queries, entities))]

    same_for_any_threads(compute, (1, 3))


def test_a_distance_of_zero_has_a_finite_gradient():
    for comparison in ("l1", "modulus"):
        row = torch.ones(1, 4, requires_grad=True)
        (
            match(row, row.detach(), comparison).sum()
            + compare(row, row.detach(), comparison).sum()
        ).backward()
        assert torch.isfinite(row.grad).all(), comparison


def test_one_vs_all_is_the_cross_entropy_of_every_answer():
    rng = torch.Generator().manual_seed(0)
    queries, entities = (
        torch.randn(n, 4, generator=rng, dtype=torch.float64, requires_grad=True) for n in (3, 6)
    )
    query_of, answers = (
        torch.tensor([0, 0, 1, 2, 2, 2]),
        torch.tensor([1, 5, 0, 2, 2, 4]),
    )  # one of them twice
    fast = one_vs_all(queries, entities, query_of, answers)
    plain = torch.nn.functional.cross_entropy(
        (queries @ entities.mT)[query_of], answers, reduction="sum"
    )
    torch.testing.assert_close(fast, plain)
    for a, b in zip(
        *(torch.autograd.grad(2 * loss, (queries, entities)) for loss in (fast, plain))
    ):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(
        lambda q, e: one_vs_all(q, e, query_of, answers), (queries, entities)
    )


def test_negatives_are_weighted_by_their_own_scores():
    positive, negative = (
        torch.tensor([0.5], dtype=torch.float64),
        torch.tensor([[-1.0, 2.0]], dtype=torch.float64),
    )

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    weight = math.exp(2 / 0.5) / (math.exp(2 / 0.5) + math.exp(-1 / 0.5))
    for temperature, share in ((0.5, weight), (0.0, 0.5)):
        apart = -(1 - share) * math.log(sigma(-3 + 1)) - share * math.log(sigma(-3 - 2))
        expected = (apart - math.log(sigma(3.5))) / 2
        found = negative_sampling(positive, negative, margin=3.0, temperature=temperature)
        assert float(found) == pytest.approx(expected)
    # The weights are constants: the gradient of a score is its weight times that of log sigma.
    leaf = negative.clone().requires_grad_()
    negative_sampling(positive, leaf, margin=3.0, temperature=0.5).backward()
    assert float(leaf.grad[0, 1]) == pytest.approx(weight * sigma(5) / 2)


def test_cubes_are_of_moduli():
    rows = torch.tensor([[3.0, 1.0, 4.0, 0.0]])
    assert modulus(rows, 2).tolist() == [[5.0, 1.0]] and cubes(rows, 2).tolist() == [126.0]
    assert cubes(rows, 1).tolist() == [27 + 1 + 64] and modulus(rows, 4).tolist() == [
        [pytest.approx(26**0.5)]
    ]


@pytest.mark.parametrize("name", MODELS)
def test_first_rows_have_the_shapes_and_sizes_of_the_papers(name):
    model = MODELS[name]
    entities, relations = first_rows(
        model, 500, 20, 40, margin=9.0, scale=1e-3, rng=torch.Generator().manual_seed(0)
    )
    assert entities.shape == (500, 40) and relations.shape == (20, model.relation_dim(40))
    if model.is_distance:
        bound = 11 / (40 // model.parts)
        assert 0.98 * bound < float(entities.abs().max()) <= bound
    elif name == "quate":
        assert float(modulus(entities, 4).max()) <= 1 / math.sqrt(20)
    else:
        assert float(entities.std()) == pytest.approx(1e-3, rel=0.05)
    if name == "rotate":
        assert relations.shape == (20, 20) and 3 < float(relations.abs().max()) <= math.pi


def test_heads_are_tails_of_reciprocal_relations():
    model, rng = MODELS["complex"], torch.Generator().manual_seed(0)
    tables = TripleTables(
        model, torch.randn(5, 4, generator=rng), torch.randn(6, 4, generator=rng), reciprocal=True
    )
    found = tables.score_all(torch.tensor([1, 2]), torch.tensor([0, 2]), False)
    expected = model.score_tails(tables.entities[[1, 2]], tables.relations[[3, 5]], tables.entities)
    assert torch.equal(found, expected) and not found.requires_grad
