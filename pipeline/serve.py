"""`python -m pipeline.serve run=DIR`: answer requests about a trained model over HTTP, until a signal ends it."""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, entry_points
from parallel_epochs.pipeline.command.schema import check_options
from parallel_epochs.pipeline.command.service import ServeConfig
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command

if TYPE_CHECKING:
    from parallel_epochs.pipeline.serving.app import App

log = logging.getLogger(__name__)

# The environment variable that may hold the token.
TOKEN = "PARALLEL_EPOCHS_TOKEN"
# Letters of a token, at least.
LEAST_LETTERS = 16
# Seconds that requests under way have when the service is to end.
DRAIN_SECONDS = 30
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def serve(cfg: DictConfig) -> None:
    """Open a run, and answer requests until SIGTERM or SIGINT.

    Raises:
        ValueError: the run, the address or the token cannot be used; or the packages of the extra are missing.
    """
    cli.named_run(cfg, "serve")
    asked = keys.expand_paths(cast(ServeConfig, OmegaConf.to_object(cfg)))
    check_options(asked)
    try:
        import uvicorn  # noqa: F401
    except ImportError:
        raise ValueError(f"serve needs uvicorn: {install_command('serve')}") from None
    token = read_token(asked.token)
    with bind(asked.host, asked.port, is_open=token is None and not asked.insecure) as listening:
        app = build(asked, token)
        log.info(
            "serving %s, at http://%s:%d%s",
            app.title,
            asked.host,
            listening.getsockname()[1],
            "" if token is None else ", with a token",
        )
        _run(app, listening, asked)
    log.info("the service has ended")


def read_token(path: str | None) -> str | None:
    """Read the token from a file or the environment; none if there is none.

    Raises:
        ValueError: it is too short or cannot stand in a header.
    """
    token, origin = (
        (os.environ.get(TOKEN), TOKEN)
        if path is None
        else (files.read_text(Path(path)), f"token={path}")
    )
    if token is None:
        return None
    token = token.strip()
    if len(token) < LEAST_LETTERS or not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError(
            f"{origin}: a token has {LEAST_LETTERS} letters of ASCII at least and no blanks; make one by "
            "openssl rand -hex 32"
        )
    return token


def bind(host: str, port: int, *, is_open: bool) -> socket.socket:
    """Bind a socket, before the model is read.

    Args:
        is_open: whether everyone who reaches the address may ask.

    Raises:
        ValueError: the address is none or in use, or others would reach an open service.
    """
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host={host} is no address of this machine: {error}") from None
    if is_open and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ValueError(
            f"host={host} can be reached from other machines, and no token is asked for. Give token=FILE, "
            "or insecure=true if everyone may ask"
        )
    # asyncio sends an answer's body at once (TCP_NODELAY) where the protocol is named; else it waits some 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(2048)  # another service that was given this port is refused from now on
    except OSError as error:
        listening.close()
        raise ValueError(
            f"host={host} port={port} cannot be used: {error.strerror}. Choose another port, or 0 for a "
            "free one"
        ) from None
    return listening


def build(asked: ServeConfig, token: str | None) -> "App":
    """Open the model of a run, and build the application."""
    from parallel_epochs.pipeline.model import load  # imports torch
    from parallel_epochs.pipeline.serving.app import App
    from parallel_epochs.pipeline.serving.limits import Limits

    def reopen() -> Any:
        return load(asked.run, checkpoint=asked.checkpoint, device=asked.device, trust=asked.trust)

    is_local = asked.host in (*LOOPBACK, "::1") and token is None and not asked.insecure
    limits = Limits(
        asked.max_body,
        asked.max_rows,
        asked.max_waiting,
        asked.seconds,
        token,
        LOOPBACK if is_local else None,
        asked.max_neighbors,
    )

    class Service(App):
        async def reload(self) -> str:
            title = await super().reload()
            _leave_to_stay()
            return title

    service = Service(reopen(), limits, reopen)
    _leave_to_stay()
    return service


def _leave_to_stay() -> None:
    """Leave all that is open out of the passes of Python's garbage collector; one over a large model takes .3 s."""
    gc.unfreeze()  # a model of before can go
    gc.collect()
    gc.freeze()


def _run(app: "App", listening: socket.socket, asked: ServeConfig) -> None:
    """Serve an application until a signal asks to end; then requests under way are answered first."""
    import uvicorn

    class Server(uvicorn.Server):
        """Ends with status 0 after a signal, and reloads the run on SIGHUP."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, self.handle_exit)
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_reload(app)))
            yield

    config = uvicorn.Config(
        app,
        http=_impatient(asked.seconds),
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=max(int(asked.seconds), 1),
        limit_concurrency=asked.max_clients,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        asyncio.run(Server(config).serve([listening]))
    finally:
        gc.unfreeze()  # else extension modules say on exit that their objects leak


async def _reload(app: "App") -> None:
    try:
        log.info("serving %s", await app.reload())
    except ValueError as error:
        log.error("error: %s", error)


def _impatient(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol of HTTP, which closes a connection whose request does not arrive in time."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, self._end, self.cycle)

        def data_received(self, data: bytes) -> None:
            if self._timer is None and (self.cycle is None or self.cycle.response_complete):
                self._timer = self.loop.call_later(seconds, self._end, self.cycle)
            before = self.cycle
            super().data_received(data)
            if self._timer is not None and self.cycle is not before:
                self._timer.cancel()
                self._timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _end(self, before: object) -> None:
            self._timer = None
            if self.cycle is before and not self.transport.is_closing():
                self.transport.close()

    return Impatient


if __name__ == "__main__":
    entry_points.call("serve", entry_points.Command(serve, "serve"))
