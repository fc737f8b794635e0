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
from typing import TYPE_CHECKING, cast

from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import cli, entry_points
from parallel_epochs.pipeline.command.schema import check_options
from parallel_epochs.pipeline.command.service import ServeConfig
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command

if TYPE_CHECKING:
    from parallel_epochs.pipeline.model import Model
    from parallel_epochs.pipeline.serving.app import App

log = logging.getLogger(__name__)

# The environment variable that may hold the token.
TOKEN = "PARALLEL_EPOCHS_TOKEN"
# Letters of a token, at least.
LEAST_LETTERS = 16
# Seconds that requests under way have when the service is to end.
DRAIN_SECONDS = 30
# Open connections.
MAX_CLIENTS = 1000
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def serve(cfg: DictConfig) -> None:
    """Open a run, and answer requests until SIGTERM or SIGINT.

    Raises:
        ValueError: the run, the address or the token cannot be used; or the packages of the extra are missing.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cli.named_run(cfg, "serve")
    asked = keys.expand_paths(cast(ServeConfig, OmegaConf.to_object(cfg)))
    check_options(asked)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(f"serve needs {error.name}: {install_command('serve')}") from None
    token = read_token(asked.token)
    with bind(asked.host, asked.port, is_open=token is None) as listening:
        log.info("opening %s, and predicting all of its rows", asked.run)
        app = build(asked, token, listening.getsockname()[0])
        log.info(
            "serving %s, at http://%s:%d%s",
            app.title,
            asked.host,
            listening.getsockname()[1],
            "" if token is None else ", with a token",
        )
        _run(app, listening)
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
            f"host={host} can be reached from other machines, and no token is asked for. Give token=FILE"
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


def build(asked: ServeConfig, token: str | None, address: str = "127.0.0.1") -> "App":
    """Open the model of a run, and build the application.

    Args:
        address: on which the service listens.
    """
    from parallel_epochs.pipeline.model import load  # imports torch

    def opened() -> "Model":
        return load(asked.run, checkpoint=asked.checkpoint, device=asked.device, trust=asked.trust)

    # A page of a browser on this machine must not reach an open service by another name.
    names = None if token is not None else LOOPBACK | {asked.host.lower(), address}
    app = opened().app(token=token, hosts=names)
    gc.collect()
    gc.freeze()  # what is open stays out of later passes of the collector, which take .3 s
    return app


def _run(app: "App", listening: socket.socket) -> None:
    """Serve an application until a signal asks to end; then requests under way are answered first."""
    import uvicorn

    class Server(uvicorn.Server):
        """Ends with status 0 after a signal."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, self.handle_exit)
            yield

    config = uvicorn.Config(
        app,
        http=_impatient(app.limits.seconds),
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(app.limits.seconds),
        limit_concurrency=MAX_CLIENTS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        asyncio.run(Server(config).serve([listening]))
    finally:
        gc.unfreeze()  # else extension modules say on exit that their objects leak


def _impatient(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol of HTTP, which closes a connection that does not send a whole request in time."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._check, None)

        def _check(self, before: object) -> None:
            """Close the connection if no request came since the last check, and none is being answered."""
            if self.transport.is_closing():
                return
            if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
            self.loop.call_later(seconds, self._check, self.cycle)

    return Impatient


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    entry_points.call("serve", entry_points.Command(serve, "serve"))
