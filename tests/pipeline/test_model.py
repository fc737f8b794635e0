"""A trained model as a person reads it from Python: tables with ids and names, of data that are read once."""

import logging
import multiprocessing
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import parallel_epochs as pe
from tests.helpers.building import EvaluateConfig, predict
from tests.helpers.purchases import KEYS, SCHEMA, make_labels, make_orders
from tests.pipeline.gnn.test_new_data import graph

SMALL = {
    "num_layers": 2,
    "hidden_channels": 8,
    "epochs": 2,
    "verbose": False,
    "partition": "whole",
    "evaluation": "exact",
}


def people() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return sixty people of three towns, and who knows whom and pays how."""
    rng = np.random.default_rng(0)
    nodes = pd.DataFrame(
        {
            "id": [f"p{number}" for number in range(60)],
            "age": rng.integers(18, 80, 60),
            "town": rng.choice(["Ulm", "Bonn", "Jena"], 60),
        }
    )
    edges = pd.DataFrame(
        {
            "source": rng.choice(nodes["id"], 400),
            "target": rng.choice(nodes["id"], 400),
            "sum": rng.random(400).round(3),
            "kind": rng.choice(["gift", "loan"], 400),
        }
    )
    return nodes, edges[edges["source"] != edges["target"]]


def assert_top(model, request, expected):
    """Ask an application for what is likeliest, and compare with a table."""
    from tests.pipeline.serving.test_app import ask

    status, found = ask(model.app(), "/top", request)
    assert status == 200
    pd.testing.assert_frame_equal(
        pd.DataFrame(found["rows"]).astype(expected.dtypes), expected.reset_index(drop=True)
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run on people, whose towns are learned."""
    folder = tmp_path_factory.mktemp("model")
    return pe.train(
        people(),
        folder=folder / "run",
        cache_dir=folder / "cache",
        **SMALL,
        **{
            "data.nodes.label": "town",
            "data.nodes.features": ["age"],
            "data.edges.features": ["sum"],
        },
    )


def test_a_table_has_the_ids_and_classes_of_the_user(result):
    nodes, model = people()[0], pe.load(result.folder)
    assert model.ids.tolist() == nodes["id"].tolist() and model.classes == ["Bonn", "Jena", "Ulm"]
    found, rows = model.predict(table=True), model.predict()
    assert list(found.columns) == [
        "id",
        "split",
        "class",
        *(f"probability_{name}" for name in model.classes),
    ]
    np.testing.assert_array_equal(found.iloc[:, 3:].to_numpy(), rows.numpy())
    assert found["class"].tolist() == [model.classes[number] for number in rows.argmax(1)]
    some = model.predict(nodes=["p7", "p3"], table=True, columns="top3")
    assert (
        some["id"].tolist() == ["p7", "p3"]
        and some["class_1"].tolist() == found["class"].iloc[[7, 3]].tolist()
    )
    assert torch.equal(model.predict(nodes=["p7", "p3"]), rows[[7, 3]])
    assert model.scores == result.scores and model.history == result.history
    pd.testing.assert_frame_equal(
        pe.predict(result.folder, nodes=["p7", "p3"], columns="top3"), some
    )
    assert pe.evaluate(result.folder)["test"] == pytest.approx(result.scores["test"])


def test_a_second_call_reads_nothing(result, tmp_path):
    shutil.copytree(result.folder, tmp_path / "run")
    model = pe.load(tmp_path / "run")
    first = model.predict(table=True)
    shutil.rmtree(tmp_path / "run")
    pd.testing.assert_frame_equal(model.predict(table=True), first)
    pd.testing.assert_frame_equal(
        model.predict(nodes=["p9"], table=True), first.iloc[[9]].reset_index(drop=True)
    )


def test_keys_of_the_command_are_arguments(result, tmp_path):
    nodes, edges = people()
    predict(
        EvaluateConfig(run=str(result.folder), output=str(tmp_path / "own.csv"), calibrate=True)
    )
    found = result.model.predict(table=True, calibrate=True)
    np.testing.assert_allclose(
        found.iloc[:, 3:], pd.read_csv(tmp_path / "own.csv").iloc[:, 3:], atol=1e-6
    )
    assert not np.allclose(found.iloc[:, 3:], result.model.predict())
    other = result.model.predict(
        (nodes[:30], edges[edges[["source", "target"]].isin(set(nodes["id"][:30])).all(axis=1)]),
        table=True,
    )
    assert other["id"].tolist() == nodes["id"][:30].tolist() and set(other["split"]) == {"unknown"}
    grown = pd.concat([nodes, pd.DataFrame({"id": ["new"], "age": [30], "town": [None]})])
    known = result.model.predict((grown, edges), table=True, known_labels="all")
    assert (known["split"] != "unknown").sum() == 60 and known["split"].iloc[-1] == "unknown"
    pd.testing.assert_frame_equal(
        known,
        result.model.predict(
            table=True, known_labels="all", **{"data.nodes.path": grown, "data.edges.path": edges}
        ),
    )


def test_rows_of_a_label_table_come_from_memory(tmp_path):
    orders = make_orders()
    users, items = (
        pd.DataFrame({"id": sorted(orders[name].unique()), column: range(orders[name].nunique())})
        for name, column in (("user", "age"), ("item", "price"))
    )
    schema = yaml.safe_load(SCHEMA)
    for kind, table in (("nodes", users), ("nodes", items), ("edges", orders)):
        name = {id(users): "user", id(items): "item", id(orders): "orders"}[id(table)]
        schema[kind][name]["path"] = table
    labels = make_labels(orders)
    labels = labels[labels["id"].isin(users["id"])]
    keys = dict(key.split("=") for key in KEYS[2:])
    model = pe.train(
        schema,
        folder=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        verbose=False,
        evaluation="exact",
        **{**keys, "data.label_table": labels, "train.epochs": 1},
    ).model
    some = labels[labels["time"] == 100].drop(columns="label")
    found = model.predict(table=True, label_table=some)
    own = model.predict(table=True)
    assert len(found) == len(some) and len(own) == len(labels)
    np.testing.assert_allclose(
        found["probability_1"] if "probability_1" in found else found.iloc[:, -1],
        own[(labels["time"] == 100).to_numpy()].iloc[:, -1],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"foo": 1}, "foo is unknown; choose one of data.path, "),
        ({"path": "x.pt", "nodes": ["p1"]}, "data.path=x.pt: "),
        (
            {"known_labels": "some", "data": people()},
            "data.known_labels=some is unknown; choose one of none, all, old",
        ),
        (
            {"known_labels": "all"},
            "data.known_labels=all is for other tables than those of the training",
        ),
        ({"num_views": "many"}, "num_views='many': "),
        ({"calibrate": people()[0]}, "calibrate takes no table"),
        (
            {"nodes": ["p1", "nobody"]},
            "nodes: none of the 60 nodes has the id 'nobody'; they are called p0, p1, p2, ...",
        ),
        ({"nodes": "p1"}, r"nodes is a list of ids, as \['u1'\], and not of type str"),
        ({"nodes": 5}, r"nodes is a list of ids, as \['u1'\], and not of type int"),
        ({"columns": "class"}, "columns='class' is for table=True. Leave it out"),
        (
            {"columns": "best", "table": True},
            "columns='best' is unknown; choose one of all, class, top3",
        ),
        ({"pairs": [("p1", "p2")], "table": True}, r"pairs= is for models of links \(task=link\)"),
        ({"pairs": torch.tensor([[0, 1]])}, r"pairs= is for models of links \(task=link\)"),
    ],
)
def test_wrong_questions_are_refused_in_the_words_of_the_call(result, asked, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        result.model.predict(**asked)


def test_edges_with_labels_name_their_ids_and_ends(tmp_path):
    _, edges = people()
    edges["order"] = [f"o{number}" for number in range(len(edges), 0, -1)]
    places = {"folder": tmp_path / "run", "cache_dir": tmp_path / "cache"}
    keys = {"data.edges.label": "kind", "data.edges.features": ["sum"], "data.edges.id": "order"}
    twice = edges.assign(order=edges["order"].replace("o1", "o2"))
    with pytest.raises(
        ValueError, match=r"'o2' .* there 2 times \(data.edges.id=order\): give each"
    ):
        pe.train((None, twice), "task=edge", **places, **SMALL, **keys)
    model = pe.train((None, edges), "task=edge", **places, **SMALL, **keys).model
    found = model.predict(table=True)
    assert found["id"].tolist() == edges["order"].tolist()
    assert (
        found[["source", "target"]].to_numpy().tolist()
        == edges[["source", "target"]].to_numpy().tolist()
    )
    assert set(found["class"]) <= {"gift", "loan"} == set(model.classes)
    some = model.predict(nodes=found["id"].iloc[[5, 2]], table=True)
    pd.testing.assert_frame_equal(some, found.iloc[[5, 2]].reset_index(drop=True))


def test_links_between_ids(tmp_path):
    _, edges = people()
    model = pe.train(
        (None, edges), "task=link", folder=tmp_path / "run", cache_dir=tmp_path / "cache", **SMALL
    ).model
    found = model.predict(pairs=[("p1", "p2"), ("p9", "p4")], table=True)
    assert (
        found[["source", "target"]].to_numpy().tolist() == [["p1", "p2"], ["p9", "p4"]]
        and model.classes is None
    )
    np.testing.assert_allclose(found["score"], model.predict(pairs=found), rtol=1e-6)
    assert model.vectors().shape == (60, 8)
    ranked = model.top(2, sources=["p1"], filtered=False)
    assert ranked["rank"].tolist() == [1, 2] and ranked["source"].tolist() == ["p1", "p1"]
    pd.testing.assert_frame_equal(model.predict(nodes=["p1"], top=2, filtered=False), ranked)
    assert_top(model, {"ids": ["p1"], "k": 2, "filtered": False}, ranked)
    with pytest.raises(ValueError, match="sources is a list of ids"):
        model.top(2, sources=5)
    with pytest.raises(
        ValueError, match="triples= is for runs of trainer=knowledge, and .*run is none"
    ):
        model.predict(triples=[("p1", "knows", "?")])
    for asked, message in (
        ({"pairs": [("p1",)], "table": True}, "pairs is a list of pairs of ids, or a table with"),
        ({"pairs": edges[["source"]], "table": True}, "pairs is a list of pairs of ids, or a ta"),
        ({"pairs": torch.tensor([[0, 1]])}, "pairs: row 1 below the header names '0'"),
        ({"table": True}, "this model predicts links: name the pairs of nodes by pairs="),
        ({"pairs": [("p1", "nobody")], "table": True}, "pairs: row 1 below the header names 'nob"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            model.predict(**asked)
    with pytest.raises(ValueError, match="sources must hold ids, each once"):
        model.top(2, sources=["p1", "p1"])


@pytest.mark.parametrize(
    "kind, keys",
    [
        ("classes", {}),
        ("tasks", {"train.label_input": 0.5}),
        ("classes", {"features": "embedding", "features.channels": 4}),
    ],
)
def test_a_network_alone_computes_what_the_run_does(kind, keys, tmp_path):
    model = pe.train(
        graph(kind=kind),
        folder=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        **{**SMALL, "epochs": 1, "task.base": "none"},
        **keys,
    ).model
    inputs, module, expected = model.prepare(), model.module(), model.logits()
    del model  # and its data
    with torch.no_grad():
        rows = module(inputs.x, inputs.edge_index, inputs.edge_attr)
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
    order = torch.randperm(inputs.num_edges, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows = module(inputs.x, inputs.edge_index[:, order], inputs.edge_attr[order])
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_caller_hears_of_each_round_and_may_stop(num_ranks, tmp_path):
    options = {**SMALL, "epochs": 200, "task.base": "none", "num_ranks": num_ranks}
    heard = []

    def hear(record):
        heard.append(record)
        return np.bool_(len(heard) < 3)

    with pytest.raises(pe.Stopped, match="on_round returned False"):
        pe.train(
            graph(), folder=tmp_path / "run", cache_dir=tmp_path / "cache", on_round=hear, **options
        )
    assert [record["round"] for record in heard] == sorted(
        record["round"] for record in heard
    ) and len(heard) == 3
    with pytest.raises(TypeError):
        heard[0]["loss"] = 0
    first, last = heard[0], len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert last < 200 and (tmp_path / "run" / "checkpoints" / "last.pt").exists()
    heard.clear()
    result = pe.train(
        graph(),
        folder=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        resume="auto",
        on_round=heard.append,
        **{**options, "epochs": 10 + last},
    )
    assert [dict(record) for record in heard] == result.history[-len(heard) :]
    assert len(heard) > 3 and first not in heard


def look_up(record):
    raise LookupError("of the caller")


@pytest.mark.parametrize(
    "on_round, error, message",
    [
        (look_up, LookupError, "of the caller"),
        (lambda record: pe.train(graph()), ValueError, "on_round calls pe.train, which would"),
    ],
)
def test_what_the_caller_does_at_a_round_stops_the_run(on_round, error, message, tmp_path):
    options = {**SMALL, "epochs": 200, "task.base": "none", "cache_dir": tmp_path / "cache"}
    with pytest.raises(error, match=message):
        pe.train(graph(), folder=tmp_path / "run", on_round=on_round, **options)
    assert (tmp_path / "run" / "checkpoints" / "last.pt").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_what_a_caller_changes_is_its_own(result):
    model = pe.load(result.folder)
    vectors, table = model.vectors(), model.vectors(table=True)
    assert list(table.columns) == ["id", *(f"v{number}" for number in range(8))]
    np.testing.assert_array_equal(table.iloc[:, 1:].to_numpy(), vectors)
    assert table["id"].tolist() == model.ids.tolist()
    before = [model.vectors(), model.logits(), model.predict(), model.prepare().x, model.ids]
    copies = [each.copy() if isinstance(each, np.ndarray) else each.clone() for each in before]
    for each in before:
        each[:] = each[0]
    again = [model.vectors(), model.logits(), model.predict(), model.prepare().x, model.ids]
    for one, other in zip(copies, again, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_settings_of_the_caller_do_not_reach_a_training(num_ranks, result, tmp_path):
    loggers = [
        logging.getLogger("torch.distributed.elastic"),
        logging.getLogger("torch.multiprocessing"),
    ]
    before = [logger.level for logger in loggers], multiprocessing.get_start_method(allow_none=True)
    options = {
        **SMALL,
        "task.base": "none",
        "cache_dir": tmp_path / "cache",
        "num_ranks": num_ranks,
    }
    data = graph()
    plain = pe.train(data, folder=tmp_path / "plain", **options)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            changed = pe.train(data, folder=tmp_path / "changed", **options)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert changed.summary["weights_sha256"] == plain.summary["weights_sha256"]
    assert before == (
        [logger.level for logger in loggers],
        multiprocessing.get_start_method(allow_none=True),
    )
