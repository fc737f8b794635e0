"""The application that answers about a model: known rows, wrong requests of a thousand kinds, and its limits."""

import asyncio
import copy
import json
import random
import socket
import time

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import parallel_epochs as pe
from parallel_epochs.pipeline.serve import bind
from parallel_epochs.pipeline.serving.answers import Answers
from parallel_epochs.pipeline.serving.app import App
from parallel_epochs.pipeline.serving.limits import Limits
from tests.pipeline.test_model import SMALL, people

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run on people, whose towns are learned."""
    folder = tmp_path_factory.mktemp("served")
    return pe.train(
        people(),
        folder=folder / "run",
        cache_dir=folder / "cache",
        **SMALL,
        **{
            "data.nodes.label": "town",
            "data.nodes.features": ["age"],
            "data.edges.features": ["sum"],
            "task.base": "none",
        },
    ).model


@pytest.fixture(scope="module")
def app(model):
    return model.app(max_rows=100, max_body=5000)


def ask(app, route, content=None, *, method=None, **headers):
    """Send a request; returns status and the object of the answer."""

    async def send():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            given = {"content-type": "application/json", **headers}
            body = content if isinstance(content, (bytes, str, type(None))) else json.dumps(content)
            return await client.request(
                method or ("GET" if content is None else "POST"), route, content=body, headers=given
            )

    answer = asyncio.run(send())
    return answer.status_code, answer.json() if "json" in answer.headers[
        "content-type"
    ] else answer.text


def test_known_rows_are_those_of_predict(app, model):
    table = model.predict(table=True)
    status, found = ask(app, "/predict", {"ids": ["p7", "p3"]})
    assert status == 200 and [row["id"] for row in found["rows"]] == ["p7", "p3"]
    for row, (_, expected) in zip(found["rows"], table.iloc[[7, 3]].iterrows()):
        assert row["class"] == expected["class"] and list(row) == list(table.columns)
        numbers = [row[f"probability_{name}"] for name in model.classes]
        np.testing.assert_array_equal(np.float32(numbers), expected.iloc[3:].to_numpy(np.float32))
    assert (
        ask(app, "/predict", {"ids": ["p7"], "columns": "class"})[1]["rows"][0]["class"]
        == table["class"][7]
    )


def test_new_rows_are_predicted_from_the_columns_of_the_user(app, model):
    rows, edges = [{"id": "n1", "age": 40}], [{"source": "n1", "target": "p3", "sum": 0.5}]
    status, found = ask(app, "/predict", {"rows": rows, "edges": edges})
    assert status == 200 and found["rows"][0]["id"] == "n1"
    expected = model.newcomers().predict(rows, edges)
    np.testing.assert_allclose(
        found["rows"][0]["probability_Ulm"], expected["probability_Ulm"][0], atol=1e-6
    )
    status, told = ask(app, "/predict", {"rows": [{"id": "n1"}]})
    assert status == 400 and told["error"].startswith("rows[0] lacks the column 'age'")
    items = ask(app, "/schema")[1]["paths"]["/predict"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]
    columns = items["oneOf"][1]["properties"]["rows"]["items"]["properties"]
    assert {name: told["x-kind"] for name, told in columns.items()} == {"id": "id", "age": "number"}
    bounded = ask(model.app(max_neighbors=1), "/predict", {"rows": rows, "edges": edges})[1][
        "rows"
    ][0]
    assert (
        bounded["bounded"] is True
        and bounded["probability_Ulm"] != found["rows"][0]["probability_Ulm"]
    )


def test_new_rows_that_arrive_together_are_computed_together(app, model, monkeypatch):
    newcomers, sizes = model.newcomers(), []
    each = newcomers.predict_each

    def predict_each(asked, **more):
        while (
            not sizes and len(asked) + len(app._worker) < 5
        ):  # the others wait while the first ones are computed
            time.sleep(0.01)
        sizes.append(len(asked))
        return each(asked, **more)

    monkeypatch.setattr(newcomers, "predict_each", predict_each)
    rows = [[{"id": "n1", "age": age}] for age in (20, 30, "old", 40, 50)]
    edges = [{"source": "n1", "target": "p3", "sum": 0.5}]

    async def several():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            return await asyncio.gather(
                *(client.post("/predict", json={"rows": own, "edges": edges}) for own in rows)
            )

    found = asyncio.run(several())
    assert [answer.status_code for answer in found] == [200, 200, 400, 200, 200]
    assert len(sizes) <= 2 and sum(sizes) == 5
    assert "rows[0]: the cell of age holds 'old'" in found[2].json()["error"]
    for answer, own in zip(found, rows):
        if own[0]["age"] != "old":
            expected = newcomers.predict(own, edges)["probability_Ulm"][0]
            assert answer.json()["rows"][0]["probability_Ulm"] == pytest.approx(expected, abs=1e-6)


def test_a_client_that_still_sends_reads_why_its_body_is_too_long(app):
    sent, chunks = [], iter([b"x" * 3000] * 5)

    async def receive():
        body = next(chunks, None)
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    async def send(message):
        sent.append((message, sum(1 for _ in copy.copy(chunks))))

    asyncio.run(
        app(
            {
                "type": "http",
                "method": "POST",
                "path": "/predict",
                "headers": [(b"content-type", b"application/json; charset=utf-8")],
            },
            receive,
            send,
        )
    )
    (start, _), (body, left), (end, rest) = sent
    assert (
        start["status"] == 413
        and b"max_body" in body["body"]
        and (body["more_body"], left, rest) == (True, 3, 0)
    )
    assert not end.get("more_body")


WRONG = [
    (
        404,
        "/predict",
        {"ids": ["nobody"]},
        "ids: nothing has the id 'nobody'; there are 60, such as p0, p1, p2",
    ),
    (400, "/predict", {"ids": []}, "ids must be a list with one item at least, and is []"),
    (400, "/predict", {"ids": "p1"}, "ids must be a list with one item at least, and is 'p1'"),
    (400, "/predict", {"ids": [1.5]}, "ids: 1.5 is no id; an id is a text or a whole number"),
    (400, "/predict", {"ids": [True]}, "ids: True is no id; an id is a text or a whole number"),
    (400, "/predict", {}, "ids must be a list with one item at least"),
    (400, "/predict", {"nodes": ["p1"]}, "'nodes' is unknown here"),
    (400, "/predict", {"ids": ["p1"], "columns": "best"}, "columns='best' is unknown"),
    (
        400,
        "/predict",
        {"ids": ["p1"], "columns": ["top3"]},
        "columns must be a text, such as all, and is ['top3']",
    ),
    (400, "/predict", b'{"ids": ["p1"], "ids": ["p2"]}', "an object of the body has a name twice"),
    (413, "/predict", {"ids": ["p1"] * 101}, "ids has 101 items, and 100 are allowed"),
    (413, "/predict", b"[" + b" " * 5000 + b"]", "the body has more than 5,000 bytes"),
    (400, "/predict", b'{"ids": [NaN]}', "NaN is no number of JSON; write null for an empty cell"),
    (400, "/predict", b"{", "the body is not JSON"),
    (400, "/predict", b"\xff\xfe", "the body is not JSON in UTF-8"),
    (
        400,
        "/predict",
        b"[" * 4000,
        "the body is n",
    ),  # nested too deeply, or no JSON where Python 3.13 reads it all
    (400, "/predict", b"[1]", "the body must be an object of JSON"),
    (404, "/top", {"ids": ["p1"]}, "ranks nothing: /top is for runs of task=link"),
    (404, "/pickle", {"ids": ["p1"]}, "there is no '/pickle'; there are /predict, /top"),
    (405, "/predict", None, "/predict takes POST"),
    (405, "/health", {}, "/health takes GET"),
    (403, "/reload", {}, "/reload needs a service with token="),
]


@pytest.mark.parametrize("status, route, content, message", WRONG)
def test_a_wrong_request_gets_one_line(app, status, route, content, message):
    found, answer = ask(app, route, content)
    assert found == status and list(answer) == ["error"] and message in answer["error"]
    assert "\n" not in answer["error"]


def test_a_thousand_kinds_of_requests_end_nothing(app, caplog):
    rng = random.Random(0)
    values = [
        None,
        True,
        -1,
        0,
        1e308,
        10**400,
        "",
        "p1",
        "\ud800",
        "\x00",
        "é" * 50,
        [],
        {},
        [[]],
        [None],
        ["p1"],
        {"id": 1},
        [{"id": "p1"}],
        [["p1", "p2", "?"]],
    ]
    names = [
        "ids",
        "rows",
        "edges",
        "k",
        "columns",
        "pairs",
        "triples",
        "candidates",
        "filtered",
        "id",
        "top",
        "\ud800",
    ]
    statuses = set()
    for _ in range(1000):
        content = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(4))}
        text = json.dumps(content).encode()
        if rng.random() < 0.3:
            cut = rng.randrange(len(text))
            text = (
                text[:cut]
                + bytes([rng.randrange(256)]) * rng.randrange(3)
                + text[cut + rng.randrange(2) :]
            )
        status, answer = ask_raw(
            app, rng.choice(["/predict", "/top", "/explain", "/schema", "/%00"]), text
        )
        statuses.add(status)
        assert status < 500 or status == 501, (content, answer)
        assert status == 200 or list(json.loads(answer)) == ["error"]
    assert {400, 404} <= statuses and not caplog.records
    assert ask(app, "/predict", {"ids": ["p1"]})[0] == 200


def ask_raw(app, path, body, headers=((b"content-type", b"application/json"),)):
    """Call an application without a client, which costs less."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(
        app(
            {"type": "http", "method": "POST", "path": path, "headers": list(headers)},
            receive,
            send,
        )
    )
    return sent[0]["status"], sent[1]["body"]


def test_other_content_is_refused_and_a_page_of_a_browser_too(model):
    app = model.app(hosts=frozenset({"localhost", "[::1]"}))
    for kind, status in (
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("application/json;charset=utf-8", 200),
    ):
        assert ask(app, "/predict", {"ids": ["p1"]}, **{"content-type": kind})[0] == status
    assert ask(app, "/predict", {"ids": ["p1"]}, host="evil.example:80")[0] == 403
    assert ask(app, "/predict", {"ids": ["p1"]}, host="localhost:80")[0] == 200
    for host, status in (
        ("[::1]", 200),
        ("[::1]:80", 200),
        ("LocalHost", 200),
        ("evil.example:80:80", 403),
    ):
        assert ask(app, "/predict", {"ids": ["p1"]}, host=host)[0] == status


def test_a_token_is_asked_for_everywhere_but_by_health(model):
    app = model.app(token=TOKEN)
    right = {"authorization": f"Bearer {TOKEN}"}
    for route in ("/predict", "/reload", "/metrics", "/schema"):
        content = {"ids": ["p1"]} if route in ("/predict", "/reload") else None
        for headers in (
            {},
            {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": TOKEN},
            {"authorization": f"Basic {TOKEN}"},
        ):
            assert ask(app, route, content, **headers)[0] == 401
        assert ask(app, route, content, authorization=f"bearer {TOKEN}")[0] != 401
        assert ask(app, route, content, **right)[0] == (403 if route == "/reload" else 200)
    assert ask(app, "/health")[0] == 200


def test_schema_and_metrics_tell_of_the_run(app):
    ask(app, "/predict", {"ids": ["p1", "p2"]})
    schema = ask(app, "/schema")[1]
    assert (
        schema["openapi"] == "3.1.0"
        and schema["x-limits"]["max_rows"] == 100
        and "/top" not in schema["paths"]
    )
    text = ask(app, "/metrics")[1]
    for name in (
        'requests_total{route="/predict",status="200"}',
        'rows_total{source="known"}',
        'request_seconds_bucket{route="/predict",le="+Inf"}',
        "waiting_requests 0",
        "resident_memory_bytes",
    ):
        assert f"parallel_epochs_{name}" in text
    assert ask(app, "/health")[1]["ids"] == 60


def test_a_full_queue_and_a_slow_answer_are_told(model, monkeypatch):
    app = model.app(seconds=0.2, max_waiting=1)
    monkeypatch.setattr(Answers, "_narrow", lambda *_: time.sleep(0.5) or [b"{}"])
    body = json.dumps({"ids": ["p1"], "columns": "class"}).encode()

    async def call():
        sent = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        await app(
            {
                "type": "http",
                "method": "POST",
                "path": "/predict",
                "headers": [(b"content-type", b"application/json")],
            },
            receive,
            send,
        )
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])

    async def several():
        calls = []
        for _ in range(3):
            calls.append(asyncio.create_task(call()))
            await asyncio.sleep(0.02)
        return await asyncio.gather(*calls)

    (slow, _, told), _, (full, headers, message) = asyncio.run(several())
    assert slow == 503 and "no answer within 0.2 s" in told["error"]
    assert (
        full == 503
        and headers[b"retry-after"] == b"1"
        and message["error"] == ("1 requests are waiting; try again later")
    )


def test_a_body_that_does_not_arrive_is_told(model):
    app = App(model, Limits(seconds=0.05))

    async def call():
        sent = []

        async def receive():
            await asyncio.sleep(10)

        async def send(message):
            sent.append(message)

        await app(
            {
                "type": "http",
                "method": "POST",
                "path": "/predict",
                "headers": [(b"content-type", b"application/json")],
            },
            receive,
            send,
        )
        return sent[0]["status"]

    assert asyncio.run(call()) == 408


def test_a_reload_swaps_the_model_and_keeps_it_where_it_fails(model):
    opened = []

    def reopen():
        opened.append(1)
        if len(opened) > 1:
            raise ValueError("runs/gone is not a run directory")
        return model

    app = App(model, Limits(token=TOKEN), reopen)
    right, before = {"authorization": f"Bearer {TOKEN}"}, app.answers
    assert ask(app, "/reload", {}, **right)[0] == 200 and app.answers is not before
    now = app.answers
    status, told = ask(app, "/reload", {}, **right)
    assert (
        status == 409
        and "goes on answering, since runs/gone is not a run" in told["error"]
        and app.answers is now
    )
    assert ask(app, "/predict", {"ids": ["p1"]}, **right)[0] == 200


def test_an_explanation_is_that_of_the_model(app, model):
    status, found = ask(app, "/explain", {"id": "p7", "top": 3})
    expected = model.explain("p7", top=3)
    assert (
        status == 200
        and found["rows"][0]["columns"]
        and len(found["rows"][0]["neighbours"]) == len(expected.neighbours) <= 3
    )
    assert found["rows"][0]["id"] == "p7" and found["rows"][0]["gap"] == pytest.approx(
        expected.gap, abs=1e-4
    )
    assert (
        ask(app, "/explain", {"id": "p99"})[0] == 400
        and "/explain" in ask(app, "/schema")[1]["paths"]
    )


def test_an_application_of_starlette_may_hold_it(app, model):
    outer = Starlette(routes=[Mount("/model", app=app)])
    status, found = ask(outer, "/model/predict", {"ids": ["p7"]})
    assert status == 200 and found["rows"][0]["class"] == model.predict(table=True)["class"][7]
    assert ask(outer, "/model/nothing")[0] == 404


def test_the_body_of_an_answer_does_not_wait_for_an_acknowledgement():
    """asyncio sets TCP_NODELAY for sockets of this protocol alone."""
    with bind("127.0.0.1", 0, is_open=True) as listening:
        assert listening.proto == socket.IPPROTO_TCP
