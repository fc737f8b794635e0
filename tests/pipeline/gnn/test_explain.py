"""Explanations against exact references: closed forms of linear models, and graphs that are rebuilt without an edge."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.pipeline.command import arguments, cli
from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.data.column_names import ATOMS
from parallel_epochs.pipeline.gnn.base import bases, fusion
from parallel_epochs.pipeline.gnn.explain.explainer import Explainer
from parallel_epochs.pipeline.gnn.explain.score import Score
from parallel_epochs.pipeline.gnn.explain.view import without
from tests.helpers.purchases import write_purchases
from tests.helpers.running import train as train_run
from tests.helpers.typed_tables import SCHEMA as TYPED, write_tables
from tests.pipeline.test_model import SMALL, people

OPTIONS = {
    **SMALL,
    "base": "none",
    "epochs": 3,
    "data.nodes.label": "town",
    "data.nodes.features": ["age"],
    "data.nodes.categories": ["job"],
    "data.edges.features": ["sum"],
}


def tables():
    nodes, edges = people()
    return nodes.assign(job=np.random.default_rng(1).choice(["cook", "smith"], 60)), edges


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains runs on people, and keeps them."""
    folder, known = tmp_path_factory.mktemp("explain"), {}

    def get(**options):
        name = str(sorted(options.items()))
        if name not in known:
            known[name] = pe.train(
                tables(),
                folder=folder / str(len(known)),
                cache_dir=folder / "cache",
                **(OPTIONS | options),
            ).model
        return known[name]

    return get


@pytest.mark.slow
def test_a_view_without_an_edge_is_the_graph_rebuilt_without_it(train):
    opened = train(model="deepergcn")
    explainer, inputs, network = opened._open().explainer, opened.prepare(), opened.module()
    score = Score(explainer.run, 7)
    view = score.view
    names = view.data.n_id[view.edges]
    for link in [-1, *range(int(view.link.max()) + 1)]:
        own = names[:, view.link == link]
        pairs = {tuple(pair) for pair in [*own.t().tolist(), *own.flip(0).t().tolist()]}
        kept = torch.tensor([tuple(pair) not in pairs for pair in inputs.edge_index.t().tolist()])
        rebuilt = network(inputs.x, inputs.edge_index[:, kept], inputs.edge_attr[kept])
        (row,) = score._network(without(view.data, view.link == link))
        torch.testing.assert_close(row, rebuilt[7], rtol=1e-5, atol=1e-6)


def test_shares_of_a_linear_model_are_weights_times_differences(train, monkeypatch):
    opened = train(model="pyg", conv="SAGEConv", num_layers=1, norm_last=False)
    explainer, inputs, network = opened._open().explainer, opened.prepare(), opened.module()
    # A logit is linear in the features; log odds are not.
    monkeypatch.setattr(Score, "_of", lambda self, rows: rows[0, self._column])
    score = Score(explainer.run, 7, "Ulm")
    nodes, _, end, start = score.integrate()
    x, mean = inputs.x.clone().requires_grad_(), inputs.x.double().mean(0).float()
    logit = network(x, inputs.edge_index, inputs.edge_attr)[7, 2]
    (weight,) = torch.autograd.grad(logit, x)
    expected = ((inputs.x - mean) * weight)[score.view.data.n_id]
    torch.testing.assert_close(nodes, expected, rtol=1e-3, atol=1e-5)
    assert end == pytest.approx(float(logit.detach()), abs=1e-5)
    assert float(nodes.sum()) == pytest.approx(end - start, abs=1e-4)


def test_an_explanation_names_the_columns_and_ids_of_the_user(train, tmp_path):
    opened, before = train(model="deepergcn"), torch.get_rng_state()
    found, again = opened.explain("p7", top=4), opened.explain("p7", top=4)
    assert torch.equal(before, torch.get_rng_state()) and str(found) == str(again)
    nodes, edges = tables()
    shown = dict(found.columns[["column", "value"]].to_numpy())
    assert (
        shown["age"] == str(nodes["age"][7])
        and shown["job"] == nodes["job"][7]
        and set(shown) <= {"age", "job", "degree"}
    )
    linked = {frozenset(pair) for pair in edges[["source", "target"]].to_numpy()}
    named = {frozenset(pair) for pair in found.edges[["source", "target"]].to_numpy()}
    assert len(found.edges) == 4 and named <= linked
    assert found.neighbours["label"].tolist() == [
        nodes.set_index("id")["town"][id] for id in found.neighbours["id"]
    ]
    assert list(found.edges["drop"]) == sorted(found.edges["drop"], reverse=True)
    probabilities = opened.predict(nodes=["p7"])[0]
    assert (
        found.prediction == pytest.approx(float(probabilities.max()), abs=1e-5)
        and found.is_complete
    )
    assert found.label == opened.classes[int(probabilities.argmax())]
    other = opened.explain("p7", label="Ulm")
    assert other.prediction == pytest.approx(float(probabilities[2]), abs=1e-5)
    assert "complete: their sum misses the difference" in str(found)
    assert "A share or a drop above 0 raises the score" in str(found)
    content = json.loads(json.dumps(found.to_dict()))
    assert (
        content["edges"][0]["source"] == found.edges["source"][0] and content["is_complete"] is True
    )
    found.write(tmp_path / "why.csv")
    parts = pd.read_csv(tmp_path / "why.csv")["part"].value_counts()
    assert parts["edges"] == 4 and parts["columns"] == len(found.columns)
    model = opened._open()._setup.model
    assert not [
        conv.pygs_reason for conv in model.convs if conv.pygs_reason
    ]  # fused, also afterwards


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"id": "nobody"}, "id: none of the 60 nodes has the id 'nobody'"),
        ({"id": "nobody", "key": "node"}, "^node: none of the 60 nodes has the id 'nobody'"),
        ({"id": "p1", "top": 0}, "top must be a whole number, 1 or more, not 0"),
        (
            {"id": "p1", "label": "Rome"},
            "label=Rome is no class or task of this run; choose one of Bonn, Jena, Ulm",
        ),
    ],
)
def test_wrong_questions_are_refused(train, asked, message):
    model = train(model="deepergcn")
    with pytest.raises(ValueError, match=message):
        model._open().explain(
            asked["id"], 3, None, asked["key"]
        ) if "key" in asked else model.explain(**asked)


def test_a_node_alone_has_an_explanation_of_its_own_columns(tmp_path):
    nodes, edges = tables()
    edges = edges[(edges["source"] != "p7") & (edges["target"] != "p7")]
    model = pe.train(
        (nodes, edges), folder=tmp_path / "run", cache_dir=tmp_path / "cache", **OPTIONS
    ).model
    found = model.explain("p7")
    assert (
        not len(found.edges)
        and not len(found.neighbours)
        and len(found.columns)
        and found.is_complete
    )
    assert "it has no neighbours: only its own columns carry the prediction" in str(found)
    assert found.without is None and found.totals["neighbours"] == 0


@pytest.mark.parametrize("candidate", ["network", "offset"])
@pytest.mark.parametrize(
    "base",
    [
        "propagation",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("diffusion", "linear")),
    ],
)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_drop_is_that_of_the_whole_answer_without_the_edge(train, base, candidate, share):
    opened = train(model="deepergcn", base=base, candidate=candidate)
    warm = opened._open()
    setup, kept = warm._setup, replace(fusion.read_kept(opened.run), share=share)
    explainer, ids = Explainer(setup, kept, warm._predicted.ids), list(warm._predicted.ids)
    row = int(setup.data.test_mask.nonzero()[0, 0])
    found = explainer.explain(row, top=60)
    assert found.is_complete and not any("stay as they are" in note for note in found.notes)
    assert ("the simple method alone answers" in str(found)) == (share == 1)

    def answer(data):
        # Scores of training rows are out of fold.
        base = fusion.score_other(kept, data, setup.task)
        change = base.rows - fusion.score_other(kept, whole, setup.task).rows
        base = replace(base, rows=setup.base.rows + change)
        shown = bases.show(setup.config, data, base, kept.moments)
        network = opened.module()(shown.x, shown.edge_index.as_tensor(), shown.edge_attr)[row]
        return fusion.mix(network, base.rows[row], share).detach().softmax(0)

    whole, place = setup.bare or setup.data, opened.classes.index(found.label)
    src, dst = whole.edge_index.as_tensor()
    for edge in found.edges.head(3).itertuples():
        first, second = ids.index(edge.source), ids.index(edge.target)
        gone = ((src == first) & (dst == second)) | ((src == second) & (dst == first))
        assert edge.prediction == pytest.approx(
            float(answer(without(whole, gone))[place]), abs=1e-4
        )
    assert len(found.edges) > 3 and abs(found.edges["drop"]).max() > 0
    if share == 1 and base == "linear":
        assert set(found.columns["column"]) <= {"age", "job", "degree"}
        assert abs(found.columns["drop"]).max() > 0


def test_what_has_no_explanation_says_so(train, tmp_path):
    opened = train(model="deepergcn")
    opened.export(tmp_path / "model.pe")
    links = pe.train(
        (None, tables()[1]),
        "task=link",
        folder=tmp_path / "links",
        cache_dir=tmp_path / "cache",
        **SMALL | {"epochs": 1, "base": "none"},
    ).model
    for model, message in (
        (pe.load(tmp_path / "model.pe"), "is a model without data. Name the directory of its run"),
        (links, "has task=link, and only predictions of labels are explained"),
    ):
        with pytest.raises(ValueError, match=message):
            model.explain("p1")


@pytest.mark.slow
def test_rows_of_a_label_table_have_explanations_with_a_simple_method(tmp_path):
    overrides = write_purchases(tmp_path / "tables")
    train_run(
        cli.compose_config(
            [
                *overrides,
                "task.base=linear",
                "task.candidate=network",
                f"cache_dir={tmp_path / 'cache'}",
            ]
        ),
        tmp_path / "run",
    )
    for share in (1.0, 0.5):
        found = explained_with_share(pe.load(tmp_path / "run"), share)
        assert ("the simple method alone answers" in str(found)) == (share == 1)
        assert set(found.edges["relation"])


@pytest.mark.slow
def test_typed_graphs_have_explanations_with_a_simple_method(tmp_path):
    write_tables(tmp_path)
    model = pe.train(
        None,
        "data=tables",
        folder=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        **SMALL | {"base": "linear"},
        **{"data.folder": str(tmp_path), "data.schema": TYPED},
    ).model
    for share in (1.0, 0.5):
        found = explained_with_share(model, share)
        names = {name for names in found.edges["relation"] for name in names.split(", ")}
        relations = {name.removeprefix("rev_") for name in names}
        assert relations <= {"buys", "sees", "knows", "sold_by"}
        assert set(found.neighbours["type"]) <= {"user", "item", "shop"}
        assert ("drop" if share == 1 else "share") in found.columns


def explained_with_share(model, share: float):
    """Explain the first row of the test as if the simple method had a share of the answer."""
    warm = model._open()
    kept = replace(fusion.read_kept(model.run), share=share)
    explainer = Explainer(warm._setup, kept, warm._predicted.ids)
    found = explainer.explain(int(warm._setup.data.test_mask.nonzero()[0]), top=5)
    assert found.base["part"] == share and found.is_complete and len(found.edges)
    return found


@pytest.mark.parametrize(
    "given, argument",
    [
        ("node=A,B", 'node="A,B"'),
        ("node=null", "node=null"),
    ],
)
def test_ids_on_the_command_line_are_texts(given, argument):
    from parallel_epochs.pipeline import keys

    texts = [entry.name for entry in keys.entries(ExplainConfig("runs/a")) if entry.meaning.is_text]
    assert arguments.complete([given, "top=3"], [], texts) == [argument, "top=3"]


def test_molecules_have_explanations(tmp_path):
    pytest.importorskip("rdkit")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"smiles": rng.choice(["CCO", "CCN", "c1ccccc1O", "CC(=O)O", "CCCl"], 60)})
    table["y"] = table["smiles"].str.contains("O").astype(int)
    table.to_csv(tmp_path / "molecules.csv", index=False)
    model = pe.train(
        None,
        "data=smiles",
        "task=graph",
        "loader=graph",
        folder=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        num_layers=2,
        hidden_channels=8,
        epochs=3,
        verbose=False,
        base="none",
        **{"data.path": str(tmp_path / "molecules.csv"), "data.label_columns": ["y"]},
    ).model
    warm = model._open()
    found = warm.explainer.explain(2, top=5)
    assert (
        found.is_complete
        and set(found.columns["column"]) < {*ATOMS, "place in the graph"}
        and len(found.edges)
    )
    assert found.neighbours["id"].tolist() and found.prediction == pytest.approx(
        float(model.predict()[2].max()), abs=1e-5
    )
