"""Trained knowledge graphs again: their metrics, and answers to questions beside those found one by one."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.models.embedding.triples import MODELS, TripleTables, first_rows
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.cache import read
from parallel_epochs.pipeline.data.config import MathConfig
from parallel_epochs.pipeline.knowledge import predictions as answers, questions
from parallel_epochs.pipeline.knowledge.questions import answer
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers import building as restore
from tests.helpers.building import EvaluateConfig
from tests.helpers.running import TOY as GNN, train
from tests.pipeline.test_model import assert_top

TOY = [
    "trainer=knowledge",
    "data=math",
    "data.num_entities=60",
    "data.num_operands=6",
    "data.num_train=1400",
    "data.num_valid=150",
    "data.num_test=150",
    "trainer.dim=8",
    "trainer.batch_size=200",
    "train.epochs=4",
    "train.eval_every=2",
]
NEGATIVES = [
    "trainer.model=rotate",
    "trainer.loss=negatives",
    "trainer.num_negatives=10",
    "trainer.optimizer=adam",
    "train.lr=0.02",
]
KINDS = [
    (name, reciprocal)
    for name in MODELS
    for reciprocal in (False, True)
    if not (reciprocal and MODELS[name].is_distance)
]


def tables_of(name, reciprocal, num_entities, num_relations):
    rows = first_rows(
        MODELS[name],
        num_entities,
        num_relations * (1 + reciprocal),
        8,
        margin=2.0,
        scale=0.5,
        rng=torch.Generator().manual_seed(0),
    )
    return TripleTables(MODELS[name], *rows, reciprocal=reciprocal)


@torch.no_grad()
def score_one(tables, h, r, t, asked):
    """The score of one triple as an answer, from its three rows."""
    heads, tails = tables.entities[h], tables.entities[t]
    if asked == "head" and tables.reciprocal:
        return float(
            tables.model.score(tails, tables.relations[r + len(tables.relations) // 2], heads)
        )
    return float(tables.model.score(heads, tables.relations[r], tails))


@pytest.mark.parametrize("name, reciprocal", KINDS)
@pytest.mark.parametrize("filtered", [True, False])
def test_answers_are_those_found_one_by_one(name, reciprocal, filtered, monkeypatch):
    data = read(
        MathConfig(num_entities=30, num_operands=2, num_train=130, num_valid=10, num_test=10)
    )
    monkeypatch.setattr(questions, "BLOCK", 90)  # three questions at a time
    tables = tables_of(name, reciprocal, 30, data.num_relations)
    train_triples = data.triples[:130]
    known = {tuple(row) for row in train_triples.tolist()}
    asked = data.triples[::12].clone()
    asked[::3, 2], asked[1::3, 0] = -1, -1
    found = answer(
        tables,
        asked,
        5,
        known=train_triples if filtered else None,
    )
    place = 0
    for number, (h, r, t) in enumerate(asked.tolist()):
        kind = "head" if h < 0 else "tail" if t < 0 else None
        candidates = (
            [(h if h >= 0 else e, r, t if t >= 0 else e) for e in range(30)]
            if kind
            else [(h, r, t)]
        )
        if kind and filtered:
            candidates = [triple for triple in candidates if triple not in known]
        expected = sorted(
            ((score_one(tables, *triple, kind), triple) for triple in candidates), reverse=True
        )[:5]
        rows = slice(place, place + len(expected))
        place += len(expected)
        assert found.rows[rows].tolist() == [number] * len(expected)
        assert found.places[rows].tolist() == (list(range(1, len(expected) + 1)) if kind else [0])
        assert [tuple(row) for row in found.triples[rows].tolist()] == [
            triple for _, triple in expected
        ]
        np.testing.assert_allclose(
            found.scores[rows], [score for score, _ in expected], rtol=1e-4, atol=1e-6
        )
    assert place == len(found.scores) > 5 * len(asked) // 2
    if filtered:
        asks = found.places > 0
        assert not known & {tuple(row) for row in found.triples[asks].tolist()}


def test_equal_scores_are_in_the_order_of_the_entities_and_few_are_left():
    tables = tables_of("distmult", False, 9, 1)
    tables.entities.data.fill_(1)
    train_triples = torch.tensor([[0, 0, 1], [0, 0, 4], [5, 0, 0]])
    asked = torch.tensor([[0, 0, -1], [-1, 0, 0], [8, 0, -1]])
    found = answer(tables, asked, 4, known=train_triples)
    assert [
        found.triples[found.rows == 0, 2].tolist(),
        found.triples[found.rows == 1, 0].tolist(),
    ] == [[0, 2, 3, 5], [0, 1, 2, 3]]
    assert found.triples[found.rows == 2, 2].tolist() == [
        0,
        1,
        2,
        3,
    ]  # of which training knows nothing
    assert len(answer(tables, asked, 100, known=train_triples).rows) == 7 + 8 + 9


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each loss."""
    folder = tmp_path_factory.mktemp("runs")
    for name, overrides in (("all", []), ("drawn", NEGATIVES)):
        train(
            cli.compose_config([*TOY, *overrides, f"cache_dir={folder / 'cache'}"]), folder / name
        )
    return folder


@pytest.mark.parametrize("name", ["all", "drawn"])
def test_the_metrics_of_a_run_are_those_of_its_summary(name, runs, tmp_path, caplog):
    summary = json.loads((runs / name / "summary.json").read_text())
    options = EvaluateConfig(run=str(runs / name), predictions=str(tmp_path / "v.npy"))
    with caplog.at_level("INFO"):
        scores = restore.evaluate(options)
    assert summary["scores"] and all(
        scores[key] == value for key, value in summary["scores"].items()
    )
    assert scores["test"] == summary["test"] and scores["valid"] == summary["best_valid"]
    assert (
        "test mrr" in caplog.text and "hits@10 " in caplog.text and (tmp_path / "v.npy").is_file()
    )
    last = restore.evaluate(EvaluateConfig(run=str(runs / name), checkpoint="last"))
    assert set(last) == set(scores)


def ask(runs, tmp_path, text, *, run="drawn", file="answers.tsv", **options):
    (tmp_path / "questions.tsv").write_text(text)
    restore.predict(
        EvaluateConfig(
            run=str(runs / run),
            predictions=str(tmp_path / file),
            triples=str(tmp_path / "questions.tsv"),
            **options,
        )
    )
    return tmp_path / file


TEXT = "7\t*3\t?\n\n?\t+2\t9\n7\t*3\t21\n"


def test_an_open_graph_answers_what_the_command_writes(runs, tmp_path):
    file = ask(runs, tmp_path, TEXT, top=3, filtered=False)
    written = pd.read_csv(file, sep="\t", dtype={"head": str, "tail": str}, keep_default_na=False)
    model = pe.load(runs / "drawn")
    found = model.predict(
        triples=[(7, "*3", "?"), ("?", "+2", 9), (7, "*3", 21)], top=3, filtered=False
    )
    pd.testing.assert_frame_equal(
        found.iloc[:, 1:], written.iloc[:, 1:], check_dtype=False, rtol=1e-5
    )
    assert found["line"].tolist() == [0, 0, 0, 1, 1, 1, 2]
    one = model.predict(triples=found.loc[[6], ["head", "relation", "tail"]])
    pd.testing.assert_frame_equal(one.iloc[:, 1:], found.iloc[[6], 1:].reset_index(drop=True))
    near = model.top(2, sources=["7", "21"], candidates=["21", "9", "3"])
    assert_top(model, {"ids": [7, "21"], "k": 2, "candidates": ["21", "9", "3"]}, near)
    assert_top(
        model,
        {"triples": [[7, "*3", "?"], ["?", "+2", 9], [7, "*3", 21]], "k": 3, "filtered": False},
        found,
    )
    assert near["source"].tolist() == ["7", "7", "21", "21"] and near["rank"].tolist() == [
        1,
        2,
        1,
        2,
    ]
    assert "21" not in near["target"][2:].tolist()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda model: model.predict(triples=[(7, "?", 9)]),
            "triples: entry 0: relations are not asked for",
        ),
        (
            lambda model: model.predict(triples=[(7, "*3", "?"), (7, "*3", "nobody")]),
            "triples: entry 1: the graph has",
        ),
        (
            lambda model: model.predict(triples=[(7, "*3")]),
            r"triples is a list of \(head, relation, tail\), as \[\('ada'",
        ),
        (lambda model: model.predict(triples=5), r"triples is a list of \(head, relation, tail\)"),
        (
            lambda model: model.predict(triples=[]),
            "triples has no entry: name a head, a relation and a tail",
        ),
        (
            lambda model: model.predict(triples=[(7, "*3", "?")], nodes=["7"]),
            "triples= and nodes= exclude each other",
        ),
        (
            lambda model: model.predict(triples=[(7, "*3", "?")], top=0),
            "top must be a whole number, 1 or more, not 0",
        ),
        (
            lambda model: model.predict(),
            r".* was trained by trainer=knowledge: ask for its vectors\(\) or top\(\)",
        ),
        (lambda model: model.module(), r".* was trained by trainer=knowledge: ask for its vectors"),
        (lambda model: model.top(2, sources=["nobody"]), "sources: there is no vector of 'nobody'"),
        (lambda model: model.top(2, candidates=[]), "candidates: give one id at least"),
        (lambda model: model.top(2, filtered=False), "filtered=False is for links"),
    ],
)
def test_an_open_graph_refuses_in_the_words_of_the_call(call, message, runs):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(pe.load(runs / "drawn"))


@pytest.mark.parametrize("run", ["all", "drawn"])
def test_questions_by_name_in_every_format(run, runs, tmp_path):
    path, texts = ask(runs, tmp_path, TEXT, run=run, top=3), {"head": str, "tail": str}
    table = pd.read_csv(path, sep="\t", keep_default_na=False, dtype=texts)
    assert table["line"].tolist() == [1, 1, 1, 3, 3, 3, 4]
    places = [1, 2, 3, 1, 2, 3, 0]
    assert table["place"].tolist() == places
    assert table["asked"].tolist() == ["tail"] * 3 + ["head"] * 3 + [""]
    assert (
        set(table["head"][:3]) == {"7"}
        and set(table["tail"][3:6]) == {"9"}
        and table["tail"][6] == "21"
    )
    assert table["score"][0] >= table["score"][1] >= table["score"][2]
    parquet = pd.read_parquet(ask(runs, tmp_path, TEXT, run=run, top=3, file="a.parquet"))
    for column in ("line", "head", "relation", "tail", "asked", "place"):
        assert list(parquet[column]) == list(table[column]), column
    np.testing.assert_array_equal(parquet["score"], table["score"].astype(np.float32))
    best = checkpoint.load(runs / run / "checkpoints" / "best.pt")["model"]
    names, kinds = restored_names(runs / run)
    h, r, t = (known.index(name) for known, name in zip((names, kinds, names), ("7", "*3", "21")))
    model = MODELS["complex" if run == "all" else "rotate"]
    assert float(
        model.score(best["entities"][h], best["relations"][r], best["entities"][t])
    ) == pytest.approx(table["score"][6], rel=1e-5)


def restored_names(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the entities and the relations of a run."""
    found = answers.restore(pe.load(folder).run)
    return found.names, found.relation_names


def test_what_training_has_is_left_out_unless_asked_for(runs, tmp_path):
    data = read(
        MathConfig(num_entities=60, num_operands=6, num_train=1400, num_valid=150, num_test=150)
    )
    names = answers.relation_names(data)
    h, r, t = data.triples[0].tolist()
    text = f"{h}\t{names[r]}\t?\n"
    whole = pd.read_csv(ask(runs, tmp_path, text, top=60, filtered=False), sep="\t")
    left = pd.read_csv(ask(runs, tmp_path, text, top=60), sep="\t")
    assert len(whole) == 60 and set(whole["tail"]) - set(left["tail"]) == {t}


BAD = {
    "no such entity": (
        "7\t*3\t?\n77\t*3\t?\n",
        r"line 2: the graph has no entity 77; did you mean 7\?",
    ),
    "no such relation": (
        "7\t**3\t?\n1\t**3\t?\n",
        r"line 1: the graph has no relation \*\*3; did you mean \*3\?; so "
        "on 1 more lines",
    ),
    "two columns": ("7\t*3\t?\n7\t*3\n", "line 2: 2 columns instead of three"),
    "four columns": ("7\t*3\t?\t1\n", "line 1: 4 columns instead of three"),
    "a relation is asked for": (
        "7\t*3\t?\n\n7\t?\t8\n",
        "line 3: relations are not asked for; name it",
    ),
    "both are asked for": ("?\t*3\t?\n", "line 1: name the head or the tail"),
    "empty": ("\n\n", "is empty: write a head, a relation and a tail in each line"),
}


@pytest.mark.parametrize("name", BAD)
def test_questions_that_are_none(name, runs, tmp_path, monkeypatch):
    text, message = BAD[name]
    if "no such" not in name:  # before the run is looked at
        monkeypatch.setattr(answers, "restore", None)
    with pytest.raises(ValueError, match=message) as raised:
        ask(runs, tmp_path, text)
    assert f"triples={tmp_path / 'questions.tsv'}" in str(raised.value)
    assert not (tmp_path / "answers.tsv").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top": 0}, "top must be at least 1, not 0"),
        ({"file": "a.npy"}, "predictions=.*a.npy: tables are one of .parquet, .csv"),
        ({"method": "views"}, "method=views is read for runs of trainer=gnn only"),
        ({"device": "cuda"}, "device=cuda: .* learned vectors, which are read on the CPU"),
    ],
)
def test_impossible_wishes_are_refused(options, message, runs, tmp_path):
    with pytest.raises(ValueError, match=message):
        ask(runs, tmp_path, TEXT, **options)


def test_a_table_that_is_not_there(runs, tmp_path):
    with pytest.raises(ValueError, match="triples=nowhere.tsv does not exist"):
        restore.predict(
            EvaluateConfig(
                run=str(runs / "all"), predictions=str(tmp_path / "a.tsv"), triples="nowhere.tsv"
            )
        )
    with pytest.raises(
        ValueError, match="triples=x.tsv is read by python -m pipeline.predict only"
    ):
        restore.evaluate(EvaluateConfig(run=str(runs / "all"), triples="x.tsv"))


def test_entities_that_training_does_not_have_are_told_of(configure, tmp_path, caplog):
    folder = tmp_path / "kg"
    folder.mkdir()
    for split, rows in (
        ("train", "a r b\nb r c\nc r a\n"),
        ("valid", "a r c\n"),
        ("test", "new r a\n"),
    ):
        (folder / f"{split}.txt").write_text(rows)
    train(
        configure(
            "trainer=knowledge",
            "data=triples",
            f"data.folder={folder}",
            "trainer.dim=4",
            "train.epochs=1",
        ),
        tmp_path / "run",
    )
    with caplog.at_level("INFO"):
        table = ask(tmp_path, tmp_path, "new r ?\na r ?\n", run="run").read_text().splitlines()
    assert (
        "1 lines name an entity that occurs in no training triple" in caplog.text
        and len(table) == 1 + 4 + 3
    )


@pytest.mark.parametrize(
    "names, expected",
    [
        (["likes", "knows"], ["likes^-1", "knows^-1"]),
        (["likes", "likes^-1"], ["likes^-1^-1", "likes^-1^-1^-1"]),
    ],
)
def test_no_reciprocal_relation_has_the_name_of_another(names, expected):
    assert answers.name_reciprocals(names) == expected


@pytest.mark.parametrize("run, doubled", [("all", 2), ("drawn", 1)])
def test_vectors_in_the_formats_of_the_field(run, doubled, runs, tmp_path):
    best = checkpoint.load(runs / run / "checkpoints" / "best.pt")["model"]
    entities, relations = best["entities"].numpy(), best["relations"].numpy()

    def predict(file, **options):
        restore.predict(
            EvaluateConfig(run=str(runs / run), predictions=str(tmp_path / file), **options)
        )
        return tmp_path / file

    saved = torch.load(predict("v.pt"), weights_only=True)
    assert np.array_equal(saved["embedding"], entities) and np.array_equal(
        saved["relations"], relations
    )
    assert saved["names"][:3] == ["0", "1", "2"] and len(
        saved["relation_names"]
    ) == doubled * 30 == len(relations)
    assert all(name.endswith("^-1") for name in saved["relation_names"][30:])
    assert np.array_equal(np.load(predict("v.npy")), entities)
    assert np.array_equal(np.load(tmp_path / "v.relations.npy"), relations)
    assert predict("v.txt").read_text().startswith("60 8\n0 ")
    assert (
        (tmp_path / "v.relations.txt")
        .read_text()
        .startswith(f"{len(relations)} {relations.shape[1]}\n")
    )


def test_other_runs_take_no_questions(configure, tmp_path):
    (tmp_path / "run").mkdir()
    restore.write_config(tmp_path / "run", configure(*GNN))
    with pytest.raises(
        ValueError,
        match="triples=q.tsv is read for runs of trainer=knowledge only; .*has trainer=gnn",
    ):
        restore.predict(
            EvaluateConfig(run=str(tmp_path / "run"), predictions="x.pt", triples="q.tsv")
        )
    with pytest.raises(
        ValueError, match="filtered=False is read by python -m pipeline.predict only"
    ):
        restore.evaluate(EvaluateConfig(run=str(tmp_path / "run"), filtered=False))
