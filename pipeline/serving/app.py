"""The application (ASGI) that answers requests about a trained model, within limits."""

import asyncio
import contextlib
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from parallel_epochs.pipeline.run.errors import one_line, printable
from parallel_epochs.pipeline.run.memory import resident_bytes
from parallel_epochs.pipeline.serving.answers import Answers, Ask
from parallel_epochs.pipeline.serving.limits import Limits
from parallel_epochs.pipeline.serving.metrics import Metrics
from parallel_epochs.pipeline.serving.openapi import describe
from parallel_epochs.pipeline.serving.rows import Refused
from parallel_epochs.pipeline.serving.worker import Busy, Worker

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# The routes, each with its method.
ROUTES = {
    "/predict": "POST",
    "/top": "POST",
    "/explain": "POST",
    "/reload": "POST",
    "/schema": "GET",
    "/health": "GET",
    "/metrics": "GET",
}
JSON, TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
# A client that goes on sending a body is not read any more.
CLOSE = (b"connection", b"close")
# Seconds for such a client to read the answer, which it would not find if the connection were closed at once, and bytes
# of its body that are dropped then.
DRAIN_SECONDS, DRAIN_BYTES = 1.0, 1 << 25
# Letters of a message of an error, at most.
MOST_LETTERS = 1000


class Gone(Exception):
    """The client has closed the connection."""


class App:
    """Answers requests about a model.

    Args:
        model: a trained model, :class:`pipeline.model.Model`. All of its rows are predicted now.
        limits: of requests.
        reopen: opens the model anew, for /reload; none: it cannot be reloaded.
    """

    def __init__(
        self, model: Any, limits: Limits = Limits(), reopen: Callable[[], Any] | None = None
    ):
        self.limits, self._reopen = limits, reopen
        self._open = partial(Answers, max_rows=limits.max_rows, max_neighbors=limits.max_neighbors)
        self.answers = self._open(model)
        self._worker, self._metrics, self._opened = (
            Worker(limits.max_waiting),
            Metrics(),
            time.time(),
        )
        self._reloading = asyncio.Lock()
        self._token = None if limits.token is None else limits.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its errors become answers, too."""
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        began = time.perf_counter()
        route = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            status, body, kind, more = await self._respond(route, scope, receive)
        except Gone:
            return None
        if status >= 400:
            body = json.dumps({"error": printable(body.decode())[:MOST_LETTERS]}).encode()
        self._metrics.count(
            route if route in ROUTES else "other", status, time.perf_counter() - began
        )
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {
                "type": "http.response.body",
                "body": body if scope["method"] != "HEAD" else b"",
                "more_body": CLOSE in more,
            }
        )
        if CLOSE in more:
            await _drain(receive, min(DRAIN_SECONDS, self.limits.seconds))
            await send({"type": "http.response.body", "body": b""})

    async def reload(self) -> str:
        """Open the model anew, and answer by it from then on. Requests under way are answered by the one of before.

        Returns:
            What is served now.

        Raises:
            Refused: another reload is under way, or the run cannot be opened; the old model stays.
        """
        if self._reopen is None:
            raise Refused(
                403, "/reload: this application was given a model, and not the directory of a run"
            )
        if self._reloading.locked():
            raise Refused(409, "/reload: another reload is under way")
        async with self._reloading:
            reopen = self._reopen
            try:
                self.answers = await asyncio.to_thread(lambda: self._open(reopen()))
            except Exception as error:
                raise Refused(
                    409, f"/reload: the model of before goes on answering, since {one_line(error)}"
                ) from error
            self._opened = time.time()
        return self.title

    @property
    def title(self) -> str:
        """The run that is served and the number of its ids, for people."""
        return f"{self.answers.folder}: {self.answers.num_ids:,} known ids"

    async def _respond(
        self, route: str, scope: Scope, receive: Receive
    ) -> tuple[int, bytes, bytes, list]:
        """Return status, body or message, its type, and further headers."""
        try:
            if (refused := self._refuse(route, scope)) is not None:
                return *refused[:3], [*refused[3], CLOSE]
            kind = TEXT if route == "/metrics" else JSON
            return 200, await self._answer(route, scope, receive), kind, []
        except Refused as error:
            return (
                error.status,
                str(error).encode(errors="replace"),
                JSON,
                [CLOSE] * (not error.is_read),
            )
        except Busy:
            message = f"{len(self._worker)} requests are waiting; try again later"
            return 503, message.encode(), JSON, [(b"retry-after", b"1")]
        except TimeoutError:
            message = f"there was no answer within {self.limits.seconds:g} s; ask for less, or try again later"
            return 503, message.encode(), JSON, [(b"retry-after", b"1")]
        except (ValueError, RecursionError) as error:
            return (
                400,
                (one_line(error) or "the request is wrong").encode(errors="replace"),
                JSON,
                [],
            )
        except (Gone, asyncio.CancelledError):
            raise
        except Exception as error:  # nothing that a client sends ends the service
            log.error("error: %s: %s", route, f"{type(error).__name__}: {one_line(error)}")
            return 500, b"the service failed to compute this; its log says why", JSON, []

    def _refuse(self, route: str, scope: Scope) -> tuple[int, bytes, bytes, list] | None:
        """Refuse a request by its path and headers."""
        headers = dict(scope["headers"])
        if self.limits.hosts is not None:
            host = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1").lower())
            if host not in self.limits.hosts:
                return (
                    403,
                    f"the host {host!r:.100} is not a name of this service".encode(),
                    JSON,
                    [],
                )
        if route not in ROUTES:
            return (
                404,
                f"there is no {route[:100]!r}; there are {', '.join(ROUTES)}".encode(),
                JSON,
                [],
            )
        if scope["method"] not in (method := ROUTES[route], *["HEAD"] * (method == "GET")):
            return 405, f"{route} takes {method}".encode(), JSON, [(b"allow", method.encode())]
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if (
            self._token is not None
            and route != "/health"
            and not (hmac.compare_digest(token, self._token) and scheme.lower() == b"bearer")
        ):
            message = (
                b"this service needs the header Authorization: Bearer TOKEN, with the right token"
            )
            return 401, message, JSON, [(b"www-authenticate", b"Bearer")]
        if route == "/reload" and self._token is None:
            return (
                403,
                b"/reload needs a service with token=; without one, send the signal SIGHUP",
                JSON,
                [],
            )
        if (
            method == "POST"
            and route != "/reload"
            and headers.get(b"content-type", b"").lower().partition(b";")[0].strip() != JSON
        ):
            return (
                415,
                b"the body must be JSON: send the header Content-Type: application/json",
                JSON,
                [],
            )
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size[:20]) > self.limits.max_body:
            return 413, self._too_long().encode(), JSON, []
        return None

    async def _answer(self, route: str, scope: Scope, receive: Receive) -> bytes:
        """Compute the body of an answer.

        Raises:
            ValueError: the request is wrong.
        """
        if route == "/health":
            return json.dumps(
                {
                    "status": "ok",
                    "run": self.answers.folder,
                    "ids": self.answers.num_ids,
                    "opened": round(self._opened, 3),
                }
            ).encode()
        if route == "/metrics":
            return self._metrics.text(
                {
                    "waiting_requests": len(self._worker),
                    "known_ids": self.answers.num_ids,
                    "resident_memory_bytes": resident_bytes("/proc/none"),
                }
            ).encode()
        if route == "/schema":
            return json.dumps(describe(self.answers, self.limits)).encode()
        if route == "/reload":
            return json.dumps({"status": await self.reload()}).encode()
        request = _parse(await self._read(receive))
        async with asyncio.timeout(self.limits.seconds):
            found = getattr(self.answers, route[1:])(request)
            source = "known"
            if isinstance(found, Ask):
                found, source = await self._worker.ask(found.compute, found.item), "live"
        self._metrics.rows[source] += len(found)
        return b'{"rows":[%s]}' % b",".join(found)

    async def _read(self, receive: Receive) -> bytes:
        """Read the body of a request.

        Raises:
            Refused: it is too long, or does not arrive in time.
            Gone: the client has gone.
        """
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limits.max_body:
                        raise Refused(413, self._too_long(), is_read=False)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(
                408,
                f"the body of the request did not arrive within {self.limits.seconds:g} s",
                is_read=False,
            ) from None

    def _too_long(self) -> str:
        return f"the body has more than {self.limits.max_body:,} bytes (max_body); ask in several requests"


async def _drain(receive: Receive, seconds: float) -> None:
    """Drop the rest of a body, until it ends, the client has gone, its time is over, or it goes on for long."""
    end, size = time.perf_counter() + seconds, 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (
                time.perf_counter() < end
                and size < DRAIN_BYTES
                and (message := await receive()).get("more_body")
            ):
                size += len(message.get("body", b""))


def _parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON of a request.

    Raises:
        ValueError: it is none, holds NaN or infinity, or is not an object.
    """
    try:
        found = json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("the body is not JSON in UTF-8") from None
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError('the body must be an object of JSON, such as {"ids": ["a"]}')
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, each of whose names may be there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(
            "an object of the body has a name twice, and only one of its values could be answered"
        )
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON; write null for an empty cell")


async def _live(receive: Receive, send: Send) -> None:
    """Answer a server that tells of its start and end; nothing has to be done then."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
