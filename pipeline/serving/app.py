"""The application (ASGI) that answers requests about a trained model, within limits."""

import asyncio
import contextlib
import hmac
import json
import logging
import re
import reprlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import Message, Receive, Scope, Send

from parallel_epochs.pipeline.run.errors import one_line, printable
from parallel_epochs.pipeline.run.memory import resident_bytes
from parallel_epochs.pipeline.serving.answers import Answers
from parallel_epochs.pipeline.serving.limits import ServiceLimits

log = logging.getLogger(__name__)

# Upper bounds of the times of requests that are counted, in seconds.
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Bodies with more bytes are parsed outside of the event loop, and so many of them are in memory at once.
LARGE_BODY, LARGE_BODIES = 1 << 16, 2
# The rest of a refused body is dropped for so many seconds and bytes, so that a client that still sends reads why.
DROP_SECONDS, DROP_BYTES = 1.0, 1 << 25
# Letters of a message of an error, at most.
MOST_LETTERS = 1000
PRIVATE, LATER, CLOSE = ("token", "hosts"), {"retry-after": "1"}, {"connection": "close"}


class Answer(BaseModel):
    """The body of an answer."""

    rows: list[dict]


class Wrong(BaseModel):
    """The body of an error."""

    error: str


class App:
    """Answers requests about a model.

    Args:
        model: a trained model, :class:`pipeline.model.Model`. All of its rows are predicted now.
        limits: of requests.
    """

    def __init__(self, model: Any, limits: ServiceLimits = ServiceLimits()):
        self.limits, self.answers = limits, Answers(model, limits)
        self._large, self._registry = asyncio.Semaphore(LARGE_BODIES), CollectorRegistry()
        # One thread computes, so that the event loop goes on answering.
        self._worker, self._asked = ThreadPoolExecutor(1, "serving"), set[Future]()
        self._requests = self._metric(Counter, "requests", "route", "status")
        self._rows = self._metric(Counter, "rows", "source")
        self._seconds = self._metric(Histogram, "request_seconds", "route", buckets=BOUNDS)
        for name, value in (
            ("waiting_requests", self._count_waiting),
            ("known_ids", lambda: self.answers.num_ids),
            ("resident_memory_bytes", resident_bytes),
        ):
            self._metric(Gauge, name).set_function(value)
        self._api = self._build()

    def _metric(self, kind: Any, name: str, *labels: str, **more: Any) -> Any:
        text = name.replace("_", " ")
        return kind(f"parallel_epochs_{name}", text, labels, registry=self._registry, **more)

    def _build(self) -> FastAPI:
        answers, opened = self.answers, round(time.time(), 3)
        api = FastAPI(
            title=answers.folder,
            version="1",
            openapi_url="/schema",
            docs_url=None,
            redoc_url=None,
            responses={"default": {"model": Wrong, "description": "What is wrong, in one line"}},
        )
        api.router.redirect_slashes = False
        api.router.route_class = _Route
        for path, (kind, answer, title) in answers.routes.items():
            api.post(path, summary=title, response_model=Answer)(self._endpoint(kind, answer))

        @api.get("/health", summary="Whether the service answers")
        async def health() -> dict:
            run = {"run": answers.folder, "ids": answers.num_ids, "opened": opened}
            return {"status": "ok", **run}

        @api.get("/metrics", summary="Numbers for Prometheus")
        async def metrics() -> Response:
            text = generate_latest(self._registry)
            return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

        for error in (AnyHTTPException, RequestValidationError, ValueError, RecursionError):
            api.add_exception_handler(error, self._tell)
        api.add_exception_handler(Exception, self._tell)
        schema = api.openapi()
        schema["x-limits"] = {
            name: value for name, value in vars(self.limits).items() if name not in PRIVATE
        }
        if self.limits.token is not None:
            bearer = {"token": {"type": "http", "scheme": "bearer"}}
            schema.setdefault("components", {})["securitySchemes"] = bearer
            schema["security"] = [{"token": []}]
        self._routes = [*schema["paths"], "/schema"]
        return api

    @property
    def title(self) -> str:
        """The run that is served and the number of its ids, for people."""
        return f"{self.answers.folder}: {self.answers.num_ids:,} known ids"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self._api(scope, receive, send)
        began = time.perf_counter()
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = dict(scope["headers"])

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = path if path in self._routes else "other"
                self._requests.labels(route, message["status"]).inc()
                self._seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        if refused := self._refuse(path, headers):
            await _drop(receive)
            return await refused(scope, receive, count_and_send)
        size = headers.get(b"content-length", b"")
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        # The length of a body in chunks is not known.
        is_large = int(size[:20]) > LARGE_BODY if size.isdigit() else scope["method"] == "POST"
        async with contextlib.AsyncExitStack() as held:
            if is_large:
                try:
                    async with asyncio.timeout(self.limits.seconds):
                        await held.enter_async_context(self._large)
                except TimeoutError:
                    message = "other large requests are answered; try again later"
                    return await Told(503, message, LATER)(scope, receive, count_and_send)
            with contextlib.suppress(Exception):  # which _tell has told
                await self._api(scope, self._bound(receive), count_and_send)

    def _refuse(self, route: str, headers: dict[bytes, bytes]) -> Response | None:
        """Refuse a request by its headers."""
        host = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1").lower())
        if self.limits.hosts is not None and host not in self.limits.hosts:
            return Told(403, f"the host {host!r:.100} is not a name of this service", CLOSE)
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if self.limits.token is None or route == "/health":
            return None
        is_right = hmac.compare_digest(token, self.limits.token.encode())
        if is_right and scheme.lower() == b"bearer":
            return None
        message = "this service needs the header Authorization: Bearer TOKEN, with the right token"
        return Told(401, message, CLOSE | {"www-authenticate": "Bearer"})

    def _bound(self, receive: Receive) -> Receive:
        """Return what receives a body within the limits of its size and time."""
        end = asyncio.get_running_loop().time() + self.limits.seconds
        left, is_whole = self.limits.max_body, False

        async def receive_within() -> Message:
            nonlocal left, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole else end):
                    message = await receive()
            except TimeoutError:
                text = f"the body of the request did not arrive within {self.limits.seconds:g} s"
                raise HTTPException(408, text, CLOSE) from None
            left -= len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if left < 0:
                await _drop(receive)
                most = f"{self.limits.max_body:,} bytes (max_body)"
                text = f"the body has more than {most}; ask in several requests"
                raise HTTPException(413, text, CLOSE)
            return message

        return receive_within

    def _endpoint(self, kind: Any, answer: Callable[[Any], Any]) -> Callable[..., Any]:
        async def endpoint(request: Request, asked: Any) -> Response:
            found, source = answer(asked), "known"
            if not isinstance(found, list):
                found, source = await self._compute(request, found), "live"
            self._rows.labels(source).inc(len(found))
            return Response(b'{"rows":[%s]}' % b",".join(found), media_type="application/json")

        endpoint.__annotations__["asked"] = Annotated[kind, Body()]
        return endpoint

    def _count_waiting(self) -> int:
        return sum(not one.running() for one in self._asked)

    async def _compute(self, request: Request, compute: Callable[[], Any]) -> list[bytes]:
        """Wait for a computation, which is given up where the client has gone or the time is over."""
        if (waiting := self._count_waiting()) >= self.limits.max_waiting:
            message = f"{waiting} requests are waiting; try again later"
            raise HTTPException(503, message, LATER)
        asked = self._worker.submit(compute)
        self._asked.add(asked)
        answer = asyncio.wrap_future(asked)
        # After the body, a server tells only that the client has gone.
        gone = asyncio.ensure_future(request.receive())
        either = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait((answer, gone), timeout=self.limits.seconds, return_when=either)
            if answer.done():
                return answer.result()
            message = f"there was no answer within {self.limits.seconds:g} s; ask for less, or try again later"
            raise HTTPException(503, message, LATER)
        finally:
            gone.cancel()
            asked.cancel()
            self._asked.remove(asked)

    async def _tell(self, request: Request, error: Exception) -> Response:
        """Answer what is wrong with a request."""
        if isinstance(error, RequestValidationError):
            # A name that is not answered is told first: it is why another one is missing.
            wrong = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            if isinstance(wrong["input"], bytes):
                return Told(415, "send JSON with the header Content-Type: application/json")
            place = ".".join(map(str, wrong["loc"][1:])) or "the body"
            if wrong["type"] == "extra_forbidden":
                if place in ("rows", "edges"):
                    return Told(400, self.answers.no_newcomers)
                known = "GET /schema says what it answers"
                return Told(400, f"{place}: this run answers none here; {known}")
            reason = wrong.get("ctx", {}).get("error", wrong["msg"])
            seen = reprlib.repr(wrong["input"])
            status = 413 if wrong["type"] == "too_long" else 400
            return Told(status, f"{place}: {reason}, and is {seen}")
        if isinstance(error, AnyHTTPException):
            message = str(error.detail)
            if message == "Not Found":
                message = (
                    f"there is no {request.url.path[:100]!r}; there are {', '.join(self._routes)}"
                )
            message = message.replace(self.answers.folder, "the run")
            return Told(error.status_code, message, error.headers)
        if isinstance(error, (ValueError, RecursionError)):
            message = one_line(error).replace(self.answers.folder, "the run")
            return Told(400, message or "the request is wrong")
        # Nothing that a client sends ends the service.
        log.error("error: %s: %s: %s", request.url.path, type(error).__name__, one_line(error))
        return Told(500, "the service failed to compute this; its log says why")


class Told(Response):
    """An error, as an object of JSON with one line."""

    media_type = "application/json"  # type: ignore[assignment] # starlette says None

    def __init__(self, status: int, message: str, headers: Any = None):
        line = printable(message)[:MOST_LETTERS]
        super().__init__(json.dumps({"error": line}), status, headers)


class _Bounded(Request):
    """A request whose large body is parsed outside of the event loop."""

    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.to_thread(_parse, body) if len(body) > LARGE_BODY else _parse(body)


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(_Bounded(request.scope, request.receive))

        return handle_bounded


async def _drop(receive: Receive) -> None:
    """Drop the rest of a body, until it ends, its time is over, or it goes on for long."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_SECONDS):
            while size < DROP_BYTES and (message := await receive()).get("more_body"):
                size += len(message["body"])
                await asyncio.sleep(0)  # else a time that is over is not noticed


def _parse(body: bytes) -> Any:
    """Parse the JSON of a request.

    Raises:
        HTTPException: it is none, or holds NaN, infinity, or an object with a name twice.
    """
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON in UTF-8: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, each of whose names may be there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice, and only one of its values could be answered")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number; write null for an empty cell")
