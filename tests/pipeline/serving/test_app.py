"""The application that answers about a model: known rows, wrong requests of a thousand kinds, and its limits."""

import asyncio
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
from parallel_epochs.pipeline.model import Model
from parallel_epochs.pipeline.serve import bind
from tests.pipeline.test_model import SMALL, people

TOKEN = "0123456789abcdef"
IDS = {"ids": ["p1"]}
EDGES = [{"source": "n1", "target": "p3", "sum": 0.5}]


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


def test_new_rows_are_those_of_the_model(app, model):
    rows = [{"id": "n1", "age": 40}]
    status, found = ask(app, "/predict", {"rows": rows, "edges": EDGES})
    expected = model.newcomers().predict(rows, EDGES)["probability_Ulm"][0]
    assert status == 200 and found["rows"][0]["probability_Ulm"] == pytest.approx(
        expected, abs=1e-6
    )
    schema = ask(app, "/schema")[1]["components"]["schemas"]["Known"]["properties"]["rows"]
    columns = schema["anyOf"][0]["items"]["properties"]
    assert {name: told["x-kind"] for name, told in columns.items()} == {"id": "id", "age": "number"}


WRONG = [
    (404, "/predict", {"ids": ["no"]}, "ids: nothing has the id 'no'; there are 60, such as p0"),
    (400, "/predict", {}, "nothing to answer; it may have ids, rows, edges"),
    (400, "/predict", {"nodes": ["p1"]}, "nodes: this run answers none here; GET /schema"),
    (
        400,
        "/predict",
        {"ids": 5},
        "ids: Input should be a valid list, and is 5",
    ),
    (400, "/predict", {"rows": [{"id": "n1"}]}, "rows[0] lacks 'age'"),
    (400, "/predict", b'{"ids": ["p1"], "ids": ["p2"]}', "an object has a name twice"),
    (413, "/predict", {"ids": ["p1"] * 101}, "ids: List should have at most 100 items"),
    (413, "/predict", b"[" + b" " * 5000 + b"]", "the body has more than 5,000 bytes"),
    (400, "/predict", b'{"ids": [NaN]}', "NaN is no number; write null for an empty cell"),
    (400, "/predict", b"[" * 4000, "the body is n"),
    (404, "/top", IDS, "there is no '/top'; there are /predict, /explain"),
    (405, "/predict", None, "Method Not Allowed"),
    (400, "/explain", {"id": "p99"}, "p99"),
]


@pytest.mark.parametrize("status, route, content, message", WRONG)
def test_a_wrong_request_gets_one_line(app, model, status, route, content, message):
    found, answer = ask(app, route, content)
    assert found == status and list(answer) == ["error"] and message in answer["error"]
    assert "\n" not in answer["error"] and str(model.run.folder) not in answer["error"]


def call(app, body, *, path="/predict", headers=(), chunks=None, is_gone=False):
    """Call an application without a client; returns a coroutine of its status, headers and body."""
    sent, left = [], [body] if chunks is None else list(chunks)
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    scope["headers"] = [(b"content-type", b"application/json"), *headers]

    async def receive():
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        if not is_gone:
            await asyncio.sleep(100)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        await app(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"], len(left)

    return run()


def test_a_thousand_kinds_of_requests_end_nothing(app, caplog):
    rng = random.Random(0)
    values = [None, True, -1, 0, 1e308, 10**400, "", "p1", "\ud800", "\x00", "é" * 50, [], {}, [[]]]
    values += [[None], ["p1"], {"id": 1}, [{"id": "p1"}], [["p1", "p2", "?"]]]
    names = ["ids", "rows", "edges", "k", "columns", "pairs", "triples", "candidates"]
    names += ["filtered", "id", "top", "\ud800"]
    statuses = set()
    for _ in range(1000):
        content = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(4))}
        text = json.dumps(content).encode()
        if rng.random() < 0.3:
            cut = rng.randrange(len(text))
            noise = bytes([rng.randrange(256)]) * rng.randrange(3)
            text = text[:cut] + noise + text[cut + rng.randrange(2) :]
        path = rng.choice(["/predict", "/top", "/explain", "/schema", "/%00"])
        status, _, answer, _ = asyncio.run(call(app, text, path=path))
        statuses.add(status)
        assert status < 500, (content, answer)
        assert status == 200 or list(json.loads(answer)) == ["error"]
    assert {200, 400, 404} <= statuses and not caplog.records
    assert ask(app, "/predict", IDS)[0] == 200


def test_a_client_that_still_sends_reads_why_its_body_is_too_long(app):
    status, headers, body, left = asyncio.run(call(app, b"", chunks=[b"x" * 3000] * 5))
    assert (
        status == 413 and b"max_body" in body and left == 0 and headers[b"connection"] == b"close"
    )


def test_other_hosts_contents_and_tokens_are_refused(model):
    local = model.app(hosts=frozenset({"localhost", "[::1]"}))
    for kind, status in (("text/plain", 415), ("application/json;charset=utf-8", 200)):
        assert ask(local, "/predict", IDS, **{"content-type": kind})[0] == status
    for host in ("localhost:80", "[::1]", "[::1]:80", "LocalHost"):
        assert ask(local, "/predict", IDS, host=host)[0] == 200
    for host in ("evil.example:80", "evil.example", "localhost.evil", "localhost:80:80"):
        assert ask(local, "/predict", IDS, host=host)[0] == 403
    closed = model.app(token=TOKEN)
    for route, content in (
        ("/predict", IDS),
        ("/metrics", None),
        ("/schema", None),
    ):
        for wrong in ("", f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}"):
            assert ask(closed, route, content, authorization=wrong)[0] == 401
        assert ask(closed, route, content, authorization=f"bearer {TOKEN}")[0] == 200
    assert ask(closed, "/health")[0] == 200


def test_schema_and_metrics_tell_of_the_run(app):
    ask(app, "/predict", {"ids": ["p1", "p2"]})
    schema = ask(app, "/schema")[1]
    assert schema["openapi"] == "3.1.0" and schema["x-limits"]["max_rows"] == 100
    assert set(schema["paths"]) == {"/predict", "/explain", "/health", "/metrics"}
    text = ask(app, "/metrics")[1]
    for name in (
        'requests_total{route="/predict",status="200"}',
        'rows_total{source="known"}',
        'request_seconds_bucket{le="+Inf",route="/predict"}',
        "waiting_requests 0",
        "resident_memory_bytes",
    ):
        assert f"parallel_epochs_{name}" in text
    assert ask(app, "/health")[1]["ids"] == 60


def test_a_full_queue_a_slow_answer_and_a_late_body_are_told(model, monkeypatch):
    app = model.app(seconds=0.2, max_waiting=1)
    monkeypatch.setattr(Model, "explain", lambda *_, **__: time.sleep(0.5))
    body = json.dumps({"id": "p1"}).encode()

    async def several():
        calls = []
        for _ in range(3):
            calls.append(asyncio.create_task(call(app, body, path="/explain")))
            await asyncio.sleep(0.02)
        return await asyncio.gather(*calls, call(app, b"", chunks=[b"{"] * 0))

    (slow, _, told, _), _, (full, headers, message, _), (late, *_) = asyncio.run(several())
    assert slow == 503 and b"no answer within 0.2 s" in told
    assert full == 503 and headers[b"retry-after"] == b"1" and b"1 requests are waiting" in message
    assert late == 408


def test_what_a_client_that_has_gone_asked_is_not_computed(model, monkeypatch):
    app, computed = model.app(), []

    def explain(self, id, **_):
        computed.append(id)
        time.sleep(0.3)
        raise ValueError("computed")

    monkeypatch.setattr(Model, "explain", explain)

    async def several():
        calls = []
        for one, is_gone in (("p1", False), ("p2", True), ("p3", False)):
            body = json.dumps({"id": one}).encode()
            calls.append(asyncio.create_task(call(app, body, path="/explain", is_gone=is_gone)))
            await asyncio.sleep(0.05)
        return await asyncio.gather(*calls)

    assert [status for status, *_ in asyncio.run(several())] == [400, 503, 400]
    assert computed == ["p1", "p3"]


def test_large_bodies_are_parsed_apart_a_few_at_a_time(model, monkeypatch):
    from parallel_epochs.pipeline.serving import app as module

    parse, now, most, waits = module._parse, [0], [0], []

    def slow_parse(body):
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.2)
        now[0] -= 1
        return parse(body)

    monkeypatch.setattr(module, "_parse", slow_parse)
    app = model.app()
    body = json.dumps({"ids": ["p1"], "rows": []}).encode() + b" " * 70_000

    async def several():
        headers = [(b"content-length", str(len(body)).encode())]
        calls = [asyncio.create_task(call(app, body, headers=headers)) for _ in range(6)]
        while not all(each.done() for each in calls):
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            waits.append(time.perf_counter() - began)
        return [each.result()[0] for each in calls]

    assert asyncio.run(several()) == [200] * 6
    assert most[0] == module.LARGE_BODIES and max(waits) < 0.15


def test_an_explanation_is_that_of_the_model(app, model):
    status, found = ask(app, "/explain", {"id": "p7", "top": 3})
    row, expected = found["rows"][0], model.explain("p7", top=3)
    assert status == 200 and row["columns"] and row["id"] == "p7"
    assert len(row["neighbours"]) == len(expected.neighbours) <= 3
    assert row["gap"] == pytest.approx(expected.gap, abs=1e-4)


def test_an_application_of_starlette_may_hold_it(app, model):
    outer = Starlette(routes=[Mount("/model", app=app)])
    status, found = ask(outer, "/model/predict", {"ids": ["p7"]})
    assert status == 200 and found["rows"][0]["class"] == model.predict(table=True)["class"][7]
    assert ask(outer, "/model/nothing")[0] == 404


def test_the_body_of_an_answer_does_not_wait_for_an_acknowledgement():
    """asyncio sets TCP_NODELAY for sockets of this protocol alone."""
    with bind("127.0.0.1", 0, is_open=True) as listening:
        assert listening.proto == socket.IPPROTO_TCP
