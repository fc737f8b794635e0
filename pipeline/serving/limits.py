"""The limits of a service."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of a service; see :class:`pipeline.command.service.ServeConfig` for what each means.

    Attributes:
        token: that clients must send; none: they need none.
        hosts: names of the service that a client may have called; none: any. A page in a browser on this machine
            cannot reach a service on the loopback by another name then.
    """

    max_body: int = 8_000_000
    max_rows: int = 10_000
    max_waiting: int = 256
    seconds: float = 30.0
    token: str | None = None
    hosts: frozenset[str] | None = None
